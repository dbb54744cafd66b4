"""Trimming: remove the oldest segments of an event log that no reader needs.

Rules:
- The floor is written durably before a segment is removed, and it never goes down. So a segment that is missing below
  the floor was removed on purpose: a reader there gets `LogTrimmed`, never a gap.
- Only whole segments are removed. The index stays complete: sequences and the chain of the history are not affected.
- Readers and the writer go on meanwhile. A trim that was interrupted is completed by the next one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from holdfast.eventlog.home import OldSegments
from holdfast.eventlog.homes import home_of
from holdfast.eventlog.keeping import LogTrim
from holdfast.eventlog.log import EventLog


def plan_trim(
    address: str | os.PathLike[str], needed: int, *, clock: Callable[[], float] = time.time
) -> LogTrim | None:
    """Return what can be removed if no reader needs the events before `needed`; `None` if there is nothing."""
    keep = home_of(address).keep()
    if keep is None:
        return None
    log = EventLog.open_end(address)
    before, old = log.home.floor(), log.home.old_segments(log.index)
    floor = _new_floor(log, old, before, needed, clock() - keep)
    found = old.below(floor)
    return LogTrim(str(log.path), floor, len(found), sum(found.values())) if found or floor > before else None


def apply_trim(trim: LogTrim) -> None:
    """Write the floor, then remove the segments before it."""
    log = EventLog.open_end(trim.path)
    log.home.old_segments(log.index).remove(trim.floor)


def _new_floor(log: EventLog, old: OldSegments, floor: int, needed: int, oldest: float) -> int:
    """Return the end of the last segment that lies before `needed` and was written before a time."""
    for segment in log.segments(floor, min(needed, log.tail)):
        end = segment.first + segment.count
        if end > needed or old.written_s(segment) > oldest:
            break
        floor = end
    return floor
