"""The status of a pipeline as values, which the command prints as JSON and the page draws."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.cli.holder import Holder
from holdfast.in_doubt import Doubt


class RunState(StrEnum):
    """What a pipeline is doing, as far as its repository shows it."""

    NEW = "new"  # no run has begun yet
    RUNNING = "running"
    TROUBLED = "troubled"  # it runs, and a stream restarts or waits for an outage to end
    STOPPING = "stopping"  # it was asked to stop, and has not ended
    STOPPED = "stopped"  # the last run has ended gracefully
    FAILED = "failed"  # the last run has ended with an error
    KILLED = "killed"  # the last run has ended without a trace: killed, or its machine went down
    UNKNOWN = "unknown"  # a shared pipeline on another machine, or its lease or its end cannot be read
    DAMAGED = "damaged"  # the identity of the repository cannot be read, or its status at all


class SinkLine(msgspec.Struct, frozen=True, kw_only=True):
    """One sink of a stream."""

    kind: str = ""  # its class
    target: str = ""  # where it writes
    epoch: int = 0  # the last epoch that is known to be committed to it; 0: none
    fresh_at_ms: int = 0  # when the last such epoch with rows began: its rows had arrived by then; 0: not known


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a stream."""

    kind: str  # such as kafka or FileSource
    reads: str = ""  # its path, topics or table
    stream: str = ""  # the stream of the same pipeline whose log it reads; empty: none


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of a pipeline."""

    stream: str  # its name
    timeline: int  # the timeline that it writes to
    state: str  # running, restarting, waiting, failed, killed, ended; empty: not known
    epoch: int  # the last decided one; 0: none
    decided_at_ms: int  # when; 0: not recorded
    rows: int  # given to each sink since the first epoch
    rows_per_s: float | None  # over the last epochs; null: not known
    epoch_s: float | None  # seconds of the last epoch whose phases are recorded
    behind: int | None  # input that is not processed yet, when the lag was counted last
    unread_files: int | None  # the same in files
    unread_bytes: int | None  # their size
    behind_s: float | None = None  # the age of the oldest record of Kafka that is not processed yet; 0: none
    lag_at_ms: int  # when the lag was counted; 0: never
    watermark_ms: int  # of event time; 0: none
    in_doubt: int | None  # an epoch that is decided, but perhaps not committed in every sink
    gaps: int  # in the ledger, of the current history
    restarts: int  # after failures, in the last run
    fresh_at_ms: int  # when the last epoch with rows that every sink has began; 0: not known
    sinks: dict[str, SinkLine] = {}  # by name
    sources: list[SourceLine] = []
    dead_rows: int = 0  # given to the dead letter since the first epoch, or since the last rewind


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs attention."""

    severity: str  # error: the pipeline does not do its work; warning: it does, or that is not known
    what: str  # what is wrong
    next: str  # what to do
    at_ms: int = 0  # since when; 0: not known
    stream: str = ""  # its stream; empty: the whole pipeline


class PipelineLine(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline."""

    pipeline: str  # its name
    where: str  # its repository
    state: RunState
    uid: str = ""  # distinguishes pipelines of the same name
    timeline: int = 0  # the current one
    since_ms: int = 0  # when the state began; for `killed`, its last sign of life; 0: not known
    holder: Holder | None = None  # the process that runs it; null: none on this machine
    streams: list[StreamLine] = []  # by name
    checkpoint: int | None = None  # the newest of the current history that the pipeline can go back to
    checkpoint_at_ms: int = 0  # when it was taken
    checkpoint_s: float | None = None  # how long it took
    checkpoint_bytes: int = 0  # size of the files that it needs
    checkpoints: int = 0  # those that the pipeline can go back to, with savepoints
    checkpoints_damaged: int = 0  # whose manifest cannot be read, or that a recorded verification found unsound
    checkpoints_failed: int = 0  # in the last run
    doubts: list[Doubt] = []  # epochs in doubt
    gaps: int = 0  # in the ledger, on the current history
    restarts: int = 0  # of all streams after failures, in the last run
    problems: list[Problem] = []  # the most severe first


class StatusFound(msgspec.Struct, frozen=True):
    """The status of every pipeline that was found."""

    pipelines: list[PipelineLine]  # sorted by name
