"""The documents of `holdfast run --json`: one line per event, and a last line when the run has ended."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.repository import GapRecord


class RunUnread(msgspec.Struct, frozen=True, kw_only=True):
    """Input files that no sink has received yet."""

    files: int  # number of files
    bytes: int  # their total size


class RunEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """Duration of the last epoch, from Spark's call to the last sink's commit."""

    epoch: int  # its number
    rows: int  # rows written to each sink
    ended_at_ms: int  # when every sink had committed it
    seconds: float  # total duration
    phases: dict[str, float]  # seconds per phase: open, prepare, harden, decide, commit
    commits: dict[str, float] = {}  # by sink: its own part of the commit, in seconds


class RunOutage(msgspec.Struct, frozen=True, kw_only=True):
    """An outage: a stream waits for a dependency that is unavailable."""

    kind: str  # what is unavailable: source, sink, state, user code, repository, executors
    since_ms: int  # when it first failed
    tries: int  # failed tries so far
    waited_s: float  # seconds since the first failure
    next_try_s: float  # seconds until the next try, at the time of this report
    limit_s: float  # the stream fails after this many seconds
    error: str  # error of the last try


class RunStream(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a stream. `rows` counts this run only; a value that is unknown is null."""

    stream: str  # its name
    state: str  # starting, running, restarting, waiting, ended, stopped, failed
    epoch: int  # the last epoch that every sink has committed
    rows: int  # rows written to each sink in this run
    restarts: int  # number of restarts in this run
    in_doubt: int | None = None  # an epoch that is decided but not yet in every sink
    last_error: str | None = None  # cause of the last restart, or of the failure
    behind: int | None = None  # lag: events or records that its sources have and no sink has received
    watermark_ms: int | None = None  # its watermark
    unread: RunUnread | None = None  # files that its file sources have and no sink has received
    rows_per_s: float = 0.0  # rows written to each sink per second, over the last minute
    input_rows_per_s: float | None = None  # rows that arrived per second, in Spark's last trigger
    processed_rows_per_s: float | None = None  # rows that were processed per second, in Spark's last trigger
    last_epoch: RunEpoch | None = None  # the last epoch of this run
    last_progress: dict[str, Any] | None = None  # Spark's progress report of its last trigger
    outage: RunOutage | None = None  # the current outage, from the first failure to the next epoch
    behind_s: float | None = None  # age of the oldest Kafka record that no sink has received, in seconds; 0: none


class RunCheckpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Status of checkpoints: the newest restorable one, and the counts of this run."""

    last: int | None = None  # id of the newest restorable one
    last_at_ms: int | None = None  # when it was taken
    taken: int = 0  # number taken in this run
    failed: int = 0  # number failed in this run
    under_way: int | None = None  # id of the one that is being taken
    last_error: str | None = None  # why the last failed one failed


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a pipeline."""

    pipeline: str  # its name
    uid: str  # distinguishes pipelines of the same name
    timeline: int  # the current one
    lease: int  # number of the lease that this run holds
    streams: dict[str, RunStream]  # by name
    checkpoints: RunCheckpoints  # of all streams together


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `run --json` before the last one: an event. `progress` is repeated every `--interval`."""

    event: str  # started, recovered, progress, checkpoint[_failed], restart, outage[_over], quarantine, stopping, ...
    at: str  # when, in UTC
    stream: str | None = None  # the stream that it is about
    checkpoint: int | None = None  # the checkpoint that it is about
    epoch: int | None = None  # the epoch that it is about
    restarts: int | None = None  # number of restarts so far
    kind: str | None = None  # of an outage: what is unavailable
    tries: int | None = None  # of an outage: number of failed tries
    waited_s: float | None = None  # of an outage: seconds since its first failure
    next_try_s: float | None = None  # of an outage: seconds until the next try
    error: str | None = None  # what went wrong
    found: str | None = None  # of `recovered`: what the start found and did
    by: str | None = None  # of `stopping`: who requested it from another process, and why
    status: RunStatus | None = None  # with `started`, `progress` and `over`


class RunStopper(msgspec.Struct, frozen=True, kw_only=True):
    """The request of another process that stopped a run."""

    request: str  # its id
    who: str  # user, machine and process
    why: str  # the reason that was given with it
    drain: bool  # whether the available input was to be processed first
    savepoint: str | None  # name of the savepoint that was to be taken


class RunEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of `run`: how the run ended, and the gaps that it recorded. The lines before it are `RunEvent`s."""

    stopped: bool  # whether a signal or a request stopped it; otherwise all available input was processed
    seconds: float  # duration of the run
    status: RunStatus  # at the end
    gaps: list[GapRecord]  # gaps recorded in this run
    stopped_by: RunStopper | None = None  # the request of another process that stopped it


SHAPES = {"run": RunEnded}
STEPS = {"run": RunEvent}
