"""Looks at the checkpoint folder of a plain Spark query: whether the query is stopped, and whether it can be adopted.

Rules:
- The query must be stopped. Two looks, a few seconds apart, must find the same files, with the same sizes and times.
- Asynchronous progress tracking, continuous processing and real-time mode are refused: their logs do not record every
  batch, or record it after its rows have left.
- Every error that the doctor finds is a reason to refuse, except for hidden files, which are not copied.

Not guaranteed: that an idle query is detected. It writes nothing while it waits for input.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.doctor import Examination, FindingSeverity, examine
from holdfast.doctor.files import CheckpointFiles, FileFacts
from holdfast.doctor.findings import Code
from holdfast.doctor.modes import Mode
from holdfast.doctor.targets import checkpoint_folder, repository_of
from holdfast.errors import NotSupported, SparkCheckpointDamaged, SparkCheckpointMissing, SparkQueryLive

PAUSE_S = 3.0
_HARMLESS = (Code.CHECKSUM_BLOCKS, Code.START_REFUSED)  # hidden files; an empty offset log has its own error
_REFUSED = {
    Mode.ASYNCHRONOUS: "asynchronous progress tracking",
    Mode.CONTINUOUS: "continuous processing",
    Mode.REAL_TIME: "real-time mode",
}
_WHY = {
    Mode.ASYNCHRONOUS: "its logs do not record every batch, so batches after the last record may be in the sink",
    Mode.CONTINUOUS: "it has no micro-batches, and its rows reach the sink before its offsets are recorded",
    Mode.REAL_TIME: "it records offsets at the end of a batch, when its rows have reached the sink already",
}


@dataclass(frozen=True, slots=True)
class FolderLook:
    """The files of a folder at one moment."""

    folder: Path
    at: float  # by the monotonic clock
    facts: Mapping[str, FileFacts] = field(repr=False)

    @classmethod
    def take(cls, folder: Path) -> FolderLook:
        """Look at a folder."""
        return cls(folder, time.monotonic(), CheckpointFiles(folder).facts)

    def require_same(self, *, pause: float = 0.0, sleep: Callable[[float], object] = time.sleep) -> None:
        """Look again, at least `pause` seconds after the first look; raise `SparkQueryLive` if a file has changed."""
        rest = self.at + pause - time.monotonic()
        if rest > 0:
            sleep(rest)
        now = CheckpointFiles(self.folder).facts
        changed = sorted(path for path in {*now, *self.facts} if now.get(path) != self.facts.get(path))
        if changed:
            raise SparkQueryLive(path=str(self.folder), file=changed[0], files=len(changed))


def examined(path: str | Path) -> Examination:
    """Examine a checkpoint folder, and refuse one that cannot be adopted."""
    folder = checkpoint_folder(path)
    repository = repository_of(folder)
    if repository is not None:
        why = "it belongs to a Holdfast repository, not to plain Spark"
        raise SparkCheckpointMissing(path=str(folder), why=why, do="run its pipeline: holdfast run app.py:pipeline")
    found = examine(folder, pause=0)
    mode = Mode(found.mode)
    if mode in _REFUSED:
        do = "run the query once with micro-batches until it is idle, then stop it; or start a new stream"
        raise NotSupported(what=f"adopting a query with {_REFUSED[mode]} ({folder})", why=_WHY[mode], do=do)
    errors = [
        each for each in found.findings if each.severity is FindingSeverity.ERROR and Code(each.code) not in _HARMLESS
    ]
    if errors:
        more = f"; and {len(errors) - 1} more" if errors[1:] else ""
        raise SparkCheckpointDamaged(path=str(folder), why=f"{errors[0].message} [{errors[0].code}]{more}")
    if found.offsets.last is None:
        why = "no batch was begun in it, so there is nothing to adopt"
        raise SparkCheckpointMissing(path=str(folder), why=why, do="run the pipeline: holdfast run app.py:pipeline")
    if found.offsets.versions != ("v1",):
        why = f"its offset log has the format {' and '.join(found.offsets.versions)}, in which sources have names"
        do = "start a new stream; sources with names cannot be compared by path and topic yet"
        raise NotSupported(what=f"adopting {folder}", why=why, do=do)
    return found
