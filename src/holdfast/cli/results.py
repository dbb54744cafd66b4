"""What `--json` prints: one document of these shapes. `docs/reference/json.md` is drawn from this file.

A field may be added; one is removed or changed only with a new `FORMAT`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.difference import Difference
from holdfast.doubt import Doubt
from holdfast.pruning import Pruned
from holdfast.repository.gaps import GapRecord
from holdfast.repository.summary import Status
from holdfast.verification import Finding

FORMAT = 1


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong: the class of the error, its text, and what to do next."""

    kind: str
    message: str
    next: str
    trace: str | None = None  # of the user's own program, their frames alone


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every answer. `exit` is the exit code; there is a `result` or an `error`, never both."""

    command: str
    exit: int
    repository: str | None = None  # where it was found
    result: Any = None
    error: Failure | None = None
    format: int = msgspec.field(default_factory=lambda: FORMAT)  # always there: a default that is made is not omitted


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that runs a pipeline, as far as the lock of this machine tells."""

    lease: int
    host: str
    pid: int
    taken_at_ms: int


class CheckpointLine(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint or savepoint in a list."""

    checkpoint: int
    timeline: int
    status: Status
    timestamp_ms: int
    epochs: dict[str, int] | None  # by stream
    rows: int
    file_count: int
    file_bytes: int
    digest: str | None
    parent: str | None
    savepoint: str | None
    why: str | None


class PipelineListing(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline and its checkpoints, oldest first."""

    pipeline: str
    uid: str
    timeline: int
    where: str
    holder: Holder | None
    checkpoints: list[CheckpointLine]


class Ls(msgspec.Struct, frozen=True):
    """`ls`."""

    pipelines: list[PipelineListing]


class Show(msgspec.Struct, frozen=True):
    """`show`: the manifest as it stands in its file (docs/formats.md), and with `--files` each stream's files."""

    manifest: dict[str, Any]
    files: dict[str, list[FileLine]] | None = None


class FileLine(msgspec.Struct, frozen=True):
    """A file that a cut needs."""

    path: str
    size: int
    sha256: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one checkpoint."""

    checkpoint: int | str
    grade: str
    ok: bool
    files: int
    bytes: int
    seconds: float
    findings: list[Finding]


class Verify(msgspec.Struct, frozen=True):
    """`verify`."""

    verifications: list[Verified]


class Diff(msgspec.Struct, frozen=True):
    """`diff`."""

    same: bool
    difference: Difference


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done to a pipeline."""

    at: str
    who: str
    what: str
    why: str
    facts: dict[str, Any]


class Log(msgspec.Struct, frozen=True):
    """`log`, oldest first."""

    entries: list[LogLine]


class GapsFound(msgspec.Struct, frozen=True):
    """`gaps`, by stream and epoch."""

    gaps: list[GapRecord]


class DoubtsFound(msgspec.Struct, frozen=True, kw_only=True):
    """`doubt`. `settling` says that the pipeline runs and has just decided them."""

    settling: bool
    holder: Holder | None
    doubts: list[Doubt]


class Prune(msgspec.Struct, frozen=True, kw_only=True):
    """`prune`: the plan, and what was done of it; `pruned` is null in a dry run."""

    timeline: int
    retention: str
    drops: list[int]
    keeps: dict[str, str]  # by id or name: why
    garbage: int
    garbage_bytes: int
    leftovers: list[int]
    blocked: str | None
    pruned: Pruned | None = None


class CursorLine(msgspec.Struct, frozen=True, kw_only=True):
    """A cursor as it was last saved. `position` is null before the first event; `damaged`: why it cannot be read."""

    cursor: str
    position: int | None = None
    version: int | None = None
    region: str | None = None
    log: str | None = None
    owner_pid: int | None = None  # 0: somebody whose pid cannot be told
    behind: int | None = None  # with `--log`: how many sequences the log has after it
    damaged: str | None = None


class CursorLs(msgspec.Struct, frozen=True):
    """`cursor ls`."""

    cursors: list[CursorLine]


class CursorShow(msgspec.Struct, frozen=True):
    """`cursor show`."""

    cursor: CursorLine


class RunStream(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream is doing. `rows` counts this run alone; what cannot be told is null."""

    stream: str
    state: str  # starting, running, restarting, ended, stopped, failed
    epoch: int  # the last one that every sink has
    rows: int
    restarts: int
    in_doubt: int | None = None
    last_error: str | None = None
    behind: int | None = None  # events or records that its sources have and no sink has yet
    watermark_ms: int | None = None


class RunCheckpoints(msgspec.Struct, frozen=True, kw_only=True):
    """How checkpoints are doing: the newest restorable one, and what was taken and failed in this run."""

    last: int | None = None
    last_at_ms: int | None = None
    taken: int = 0
    failed: int = 0
    under_way: int | None = None
    last_error: str | None = None


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a pipeline is doing."""

    pipeline: str
    uid: str
    timeline: int
    lease: int
    streams: dict[str, RunStream]
    checkpoints: RunCheckpoints


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `run --json` before the last one: what happened, and when; `progress` comes every `--interval`."""

    event: str  # started, progress, checkpoint, checkpoint_failed, restart, quarantine, failed, stopping, over
    at: str
    stream: str | None = None
    checkpoint: int | None = None
    epoch: int | None = None
    restarts: int | None = None
    error: str | None = None
    status: RunStatus | None = None


class RunEnded(msgspec.Struct, frozen=True, kw_only=True):
    """`run`, its last line: how it ended, and the gaps that were recorded in this run. Lines before it: `RunEvent`."""

    stopped: bool  # by a signal; else all that was available went through
    seconds: float
    status: RunStatus
    gaps: list[GapRecord]


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """`version`; null where a package is not installed."""

    holdfast: str
    python: str
    pyspark: str | None
    pyarrow: str | None
    psycopg: str | None


SHAPES: dict[str, type[msgspec.Struct]] = {
    "ls": Ls,
    "show": Show,
    "verify": Verify,
    "diff": Diff,
    "log": Log,
    "gaps": GapsFound,
    "doubt": DoubtsFound,
    "prune": Prune,
    "cursor ls": CursorLs,
    "cursor show": CursorShow,
    "run": RunEnded,
    "version": Version,
}
"""The shape of each verb's `result`."""

LINES: dict[str, type[msgspec.Struct]] = {"run": RunEvent}
"""The shape of each line that comes before the last one, for verbs that go on for a while: a document a line."""
