"""Restore from a copy: bytes are damaged."""

from __future__ import annotations

import shlex

from holdfast.errors.base import RESTORE_FOLDER, HoldfastError


class Corrupt(HoldfastError):
    """Bytes are damaged. They are never replaced by defaults."""


class StateCorrupt(Corrupt):
    """A checkpoint state cannot be decoded; `offset` is the byte at which decoding stopped."""

    offset: int
    why: str
    where: str = "checkpoint state"
    says = "{e.where} is damaged at byte {e.offset}: {e.why}"
    next_step = "restore the file from a copy, or recover from the previous state"


class ManifestCorrupt(Corrupt):
    """A manifest, or its sidecar as a whole, is damaged."""

    why: str
    says = "manifest is damaged: {e.why}"
    next_step = "restore the file from a copy, or recover from the previous checkpoint"


class OperatorStateCorrupt(Corrupt):
    """One operator's state is damaged. It is never replaced by an empty one."""

    operator: str
    why: str
    says = "state of operator {e.operator!r} is damaged: {e.why}"
    next_step = "restore the checkpoint's files from a copy, or recover from the previous checkpoint"


class StageCorrupt(Corrupt):
    """No slot of a stage image is intact. `step` names the check that failed."""

    stage: str
    step: str
    why: str
    says = "stage {e.stage!r}: {e.step}: {e.why}"
    next_step = "restore the device from a copy"


class BlocksCut(Corrupt):
    """A block file has the wrong size: it was truncated, or it is another kind of file."""

    path: str
    size: int
    says = "block file {e.path} is damaged: its size of {e.size} bytes is not a multiple of the block size"
    next_step = "restore it from a copy, or check the path"


class CursorCorrupt(Corrupt):
    """A cursor file cannot be decoded."""

    cursor: str
    file: str
    why: str
    says = "cursor {e.cursor!r} is damaged: {e.file}: {e.why}"
    next_step = "restore {e.file} from a copy; without the file, the log would be read from its beginning"


class CheckpointDamaged(Corrupt):
    """A checkpoint cannot be restored: its manifest or one of its files is damaged. Other checkpoints may be intact."""

    checkpoint: int | str
    why: str
    offered: int | None = None  # the newest earlier checkpoint that appears intact
    says = "checkpoint {e.checkpoint} is damaged: {e.why}"
    next_step = "{e.advice}"

    @property
    def advice(self) -> str:
        """The next step."""
        if self.offered is None:
            return "restore the repository from a copy (no earlier checkpoint is intact), then holdfast verify --all"
        return f"restore the files from a copy, or use the previous checkpoint: holdfast verify {self.offered}"


class SparkFileDamaged(Corrupt):
    """A log or state file in a stream's Spark checkpoint folder is damaged or missing."""

    stream: str
    path: str
    why: str = "its bytes are not those that Spark wrote"
    do: str = RESTORE_FOLDER
    says = "Spark file {e.path} of stream {e.stream!r} is damaged: {e.why}"
    next_step = "{e.do}"


class SparkCheckpointDamaged(Corrupt):
    """The checkpoint folder of a plain Spark query lacks what a stream needs to continue. Nothing was changed."""

    path: str
    why: str
    says = "the Spark checkpoint {e.path} cannot be continued: {e.why}"
    next_step = "examine the folder, and follow the advice: holdfast doctor {e.quoted}"

    @property
    def quoted(self) -> str:
        """The path, for a shell."""
        return shlex.quote(self.path)


class LogCorrupt(Corrupt):
    """The index, the head or a segment of an event log is damaged; `part` names it."""

    path: str
    part: str
    why: str
    says = "event log {e.path}: {e.part} is damaged: {e.why}"
    next_step = "restore the log from a copy; if only the head is torn, holdfast.eventlog.repair(path) rebuilds it"


class StagedDamaged(Corrupt):
    """The staged files of a decided epoch are damaged, incomplete or mixed with other files; none of it is visible."""

    sink: str
    epoch: int
    path: str
    why: str
    do: str = (
        "restore this file from a copy and run again, which commits the epoch. A decided epoch is never computed "
        "again, so without such a copy restore the repository and all sinks to one earlier point in time "
        "(docs/howto.md, 'Back up and restore a repository'); show the epoch: holdfast doubt"
    )
    says = "sink {e.sink!r}: {e.path}, staged for epoch {e.epoch}, is damaged: {e.why}"
    next_step = "{e.do}"


class RecordCorrupt(Corrupt):
    """A sealed record of the repository (lease, decision, identity, history) has a wrong digest or format."""

    key: str
    why: str
    says = "record {e.key!r} is damaged: {e.why}"
    next_step = "restore the file from a copy; check for more damage: holdfast verify --all"
