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


class Failure(msgspec.Struct, frozen=True):
    """What went wrong: the class of the error, its text, and what to do next."""

    kind: str
    message: str
    next: str


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
    "version": Version,
}
"""The shape of each verb's `result`."""
