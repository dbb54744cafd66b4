"""The oldest segments of an event log on an object store, for a trim.

Rules:
- A segment was written when the record that names it was, by the clock of the store.
- The floor is an object with a number (see `repository.heads`). It also contains the floor before it: between the two
  are all segments that an interrupted trim can have left. Only the index decides what is removed, never a listing.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.errors import NotFound
from holdfast.eventlog.index import Committed, Segment
from holdfast.eventlog.keeping import FLOOR, LogFloor
from holdfast.eventlog.store_index import StoreIndex
from holdfast.repository.objectstore import ObjectRepository


class StoredSegments:
    """The segments that an index names."""

    def __init__(self, repository: ObjectRepository, index: StoreIndex) -> None:
        self._repository = repository
        self._index = index
        self._times: dict[int, float] = {}
        self._unread: Iterator[tuple[int, float]] | None = None

    def written_s(self, segment: Segment) -> float:
        """Return when the record of a segment was written. Segments are asked for in order."""
        record = self._index.record_of(segment.first)
        if record is None:
            raise LookupError(segment.path)
        if self._unread is None:
            self._unread = self._index.times_from(record)
        while record not in self._times:
            first, time = next(self._unread)
            self._times[first] = time
        return self._times[record]

    def below(self, floor: int) -> dict[str, int]:
        """Return the segments between the last floor but one and a sequence that still exist."""
        sizes = self._repository.sizes(self._paths(self._floor().since, floor))
        return {path: size for path, size in sizes.items() if size is not None}

    def remove(self, floor: int) -> None:
        """1. Remove what an interrupted trim has left.  2. Record the floor.  3. Remove the segments before it."""
        last = self._floor()
        self._repository.delete_all(self._paths(last.since, last.first))  # 1
        if floor > last.first:
            record = StoreFloor(first=floor, since=last.first)
            self._repository.heads.rise(FLOOR, floor, record.sealed())  # 2
            self._repository.delete_all(self._paths(last.first, floor))  # 3

    def _floor(self) -> StoreFloor:
        try:
            return StoreFloor.unsealed(self._repository.heads.read(FLOOR), FLOOR)
        except NotFound:
            return StoreFloor(first=0)

    def _paths(self, start: int, end: int) -> list[str]:
        """Return the segments of all records in a range, also of those that a rewind has abandoned."""
        found, at = [], start
        while at < end and (range_ := self._index.holding(at)) is not None:
            if isinstance(range_, Committed):
                found += [each.path for each in range_.segments if start <= each.first < end]
            at = range_.first + range_.count
        return found


class StoreFloor(LogFloor, frozen=True, kw_only=True):
    """The floor of a log on a store."""

    since: int = 0  # the floor before it
