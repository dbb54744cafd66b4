"""What `holdfast run --json` prints: a line for each thing that happens, and the last one when it is over."""

from __future__ import annotations

import msgspec

from holdfast.repository import GapRecord


class RunStream(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream is doing. `rows` counts this run alone; what cannot be told is null."""

    stream: str  # its name
    state: str  # starting, running, restarting, ended, stopped, failed
    epoch: int  # the last one that every sink has
    rows: int  # given to each sink in this run
    restarts: int  # in this run
    in_doubt: int | None = None  # an epoch that is decided and not yet in every sink
    last_error: str | None = None  # what the last restart, or the end, was for
    behind: int | None = None  # events or records that its sources have and no sink has yet
    watermark_ms: int | None = None  # the event time that it has come to


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

    event: str  # started, progress, checkpoint, checkpoint_failed, restart, quarantine, failed, stopping, over
    at: str  # when, in UTC
    stream: str | None = None  # of which stream
    checkpoint: int | None = None  # of which checkpoint
    epoch: int | None = None  # of which epoch
    restarts: int | None = None  # how many so far
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
