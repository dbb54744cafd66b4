"""Trimming: remove the oldest segments of an event log that no reader needs.

Rules:
- The floor is written durably before a segment is removed, and it never goes down. So a segment that is missing below
  the floor was removed on purpose: a reader there gets `LogTrimmed`, never a gap.
- Only whole segments are removed. The index stays complete: sequences and the chain of the history are not affected.
- Readers and the writer go on meanwhile. A trim that was interrupted is completed by the next one.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.eventlog._files import SEGMENTS
from holdfast.eventlog.keeping import FLOOR, LogFloor, LogTrim, read_floor, read_keep
from holdfast.eventlog.log import EventLog
from holdfast.repository import files

_FIRST = re.compile(r"first=(\d{20})")


def plan_trim(folder: Path, needed: int, *, clock: Callable[[], float] = time.time) -> LogTrim | None:
    """Return what can be removed if no reader needs the events before `needed`; `None` if there is nothing."""
    keep = read_keep(folder)
    if keep is None:
        return None
    floor = _new_floor(folder, needed, clock() - keep)
    found = _below(folder, floor)
    size = sum(each.stat().st_size for each in found)
    return LogTrim(str(folder), floor, len(found), size) if found or floor > read_floor(folder) else None


def apply_trim(trim: LogTrim) -> None:
    """Write the floor, then remove the segments before it."""
    folder = Path(trim.path)
    if trim.floor > read_floor(folder):
        files.replace_durably(folder / FLOOR, LogFloor(first=trim.floor).sealed(), FLOOR)
    with files.failing_as("remove segments of", trim.path):
        for path in _below(folder, trim.floor):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds another file
                path.parent.rmdir()


def _new_floor(folder: Path, needed: int, oldest: float) -> int:
    """Return the end of the last segment that lies before `needed` and was written before a time."""
    log, floor = EventLog.open_end(folder), read_floor(folder)
    for segment in log.segments(floor, min(needed, log.tail)):
        end = segment.first + segment.count
        if end > needed or (folder / segment.path).stat().st_mtime > oldest:
            break
        floor = end
    return floor


def _below(folder: Path, floor: int) -> list[Path]:
    """Return the segment files before a sequence that is the end of a segment."""
    with files.failing_as("list", str(folder / SEGMENTS)):
        names = [(_FIRST.fullmatch(each.name), each) for each in (folder / SEGMENTS).iterdir()]
        found = [each for name, each in names if name and int(name[1]) < floor]
        return sorted(path for each in found for path in each.iterdir())
