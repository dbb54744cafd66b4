"""What `holdfast run --json` prints: a line for each thing that happens, and the last one when it is over."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.repository import GapRecord


class RunUnread(msgspec.Struct, frozen=True, kw_only=True):
    """Input files that no sink has yet."""

    files: int  # how many
    bytes: int  # their size


class RunEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """How long the last epoch took, from Spark's call to the last sink's commit."""

    epoch: int  # which one
    rows: int  # given to each sink
    ended_at_ms: int  # when it was in every sink
    seconds: float  # in all
    phases: dict[str, float]  # seconds of each phase: open, prepare, harden, decide, commit


class RunOutage(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a stream needs is unavailable, and the stream waits for it."""

    kind: str  # what is unavailable: source, sink, state, user code, repository, executors
    since_ms: int  # when it first failed
    tries: int  # that have failed so far
    waited_s: float  # since the first failure
    next_try_s: float  # until the next try, counted from when this was reported
    limit_s: float  # after which the stream gives up
    error: str  # of the last try


class RunStream(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream is doing. `rows` counts this run alone; what cannot be told is null."""

    stream: str  # its name
    state: str  # starting, running, restarting, waiting, ended, stopped, failed
    epoch: int  # the last one that every sink has
    rows: int  # given to each sink in this run
    restarts: int  # in this run
    in_doubt: int | None = None  # an epoch that is decided and not yet in every sink
    last_error: str | None = None  # what the last restart, or the end, was for
    behind: int | None = None  # events or records that its sources have and no sink has yet
    watermark_ms: int | None = None  # the event time that it has come to
    unread: RunUnread | None = None  # files that its file sources have and no sink has yet
    rows_per_s: float = 0.0  # given to each sink, over the last minute
    input_rows_per_s: float | None = None  # that arrived, in Spark's last trigger
    processed_rows_per_s: float | None = None  # that were processed, in Spark's last trigger
    last_epoch: RunEpoch | None = None  # of this run
    last_progress: dict[str, Any] | None = None  # Spark's own report of its last trigger
    outage: RunOutage | None = None  # what it waits for, from the first failure to the next epoch


class RunCheckpoints(msgspec.Struct, frozen=True, kw_only=True):
    """How checkpoints are doing: the newest restorable one, and what was taken and failed in this run."""

    last: int | None = None  # the id of the newest restorable one
    last_at_ms: int | None = None  # when it was taken
    taken: int = 0  # how many, in this run
    failed: int = 0  # how many, in this run
    under_way: int | None = None  # the id of the one that is being taken
    last_error: str | None = None  # why the last one that failed did


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a pipeline is doing."""

    pipeline: str  # its name
    uid: str  # which tells it from others of its name
    timeline: int  # the current one
    lease: int  # the number of the lease that this run took
    streams: dict[str, RunStream]  # by name
    checkpoints: RunCheckpoints  # of all streams together


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `run --json` before the last one: what happened, and when; `progress` comes every `--interval`."""

    event: str  # started, progress, checkpoint, checkpoint_failed, restart, outage, outage_over, quarantine, failed,
    # stopping, over
    at: str  # when, in UTC
    stream: str | None = None  # of which stream
    checkpoint: int | None = None  # of which checkpoint
    epoch: int | None = None  # of which epoch
    restarts: int | None = None  # how many so far
    kind: str | None = None  # of an outage: what is unavailable
    tries: int | None = None  # of an outage: how many have failed
    waited_s: float | None = None  # of an outage: since its first failure
    next_try_s: float | None = None  # of an outage: until the next try
    error: str | None = None  # what went wrong
    status: RunStatus | None = None  # with `progress` and at the beginning and the end


class RunEnded(msgspec.Struct, frozen=True, kw_only=True):
    """`run`, its last line: how it ended, and the gaps that were recorded in this run. Lines before it: `RunEvent`."""

    stopped: bool  # by a signal; else all that was available went through
    seconds: float  # how long it ran
    status: RunStatus  # at the end
    gaps: list[GapRecord]  # that were recorded in this run


SHAPES = {"run": RunEnded}
STEPS = {"run": RunEvent}
