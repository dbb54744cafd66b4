"""The index of an event log on an object store: one object per record, named after its first sequence.

Rules:
- A record is complete when its object exists: there is no head. The next record can only have one name, the tail. So
  one request shows whether there is one.
- Names are listed in ascending order only, and an index may have millions of them. Therefore only its end is read at
  first. A stored position contains the name of its record, and the records from that name on are listed. Without a
  position, a record is found by bisection.
- Records that are read one after another must be linked: sequence, number and chain. A record that is missing between
  two others, or that has another chain than a stored position, is damage.
- In memory are the first sequences of all records that were read, and the last of the records themselves. A record that
  is read again must have the chain that it had.

Not guaranteed: that damage to records that are not read is noticed.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from holdfast.errors import NotFound
from holdfast.eventlog.index import Cancelled, IndexHead, LiveIndex, Range, RangeDamaged, Rewound
from holdfast.eventlog.store_record import INDEX_FOLDER, IndexRecord, first_in, record_key
from holdfast.repository.base import StoredObject
from holdfast.repository.objectstore import PAGE, ObjectRepository

_KEPT = 2048  # records in memory
_AT_ONCE = 256  # records per round of requests
_FOLLOWED = 2  # records that are read one by one before the next ones are listed
_MARK = 8  # bytes of a chain that are kept to recognise its record

Known: TypeAlias = tuple[IndexRecord, Range]


class StoreIndex(LiveIndex):
    """The index of one log, from some record on. Safe to use from several threads."""

    def __init__(self, repository: ObjectRepository, uid: str) -> None:
        super().__init__(IndexHead.first(uid))
        self.uid = uid
        self.newest: IndexRecord | None = None
        self._repository = repository
        self._firsts = array("Q")  # of all records that were read, without a gap
        self._chains = array("Q")  # the beginnings of their chains
        self._begins = 0
        self._kept: OrderedDict[int, Known] = OrderedDict()  # by first sequence
        self._looked = False
        self._mutex = threading.RLock()

    @property
    def begins(self) -> int:
        """The number of the first record that was read."""
        return self._begins

    # --- the end ---

    def refresh(self) -> None:
        """Read the next record until there is none. The first time, find the last record."""
        with self._mutex:
            if not self._looked:
                self._open_end()
            followed = 0
            while (found := self._next()) is not None:
                self._add([found])
                followed += 1
                if followed == _FOLLOWED:
                    self._read_rest()
                    followed = 0

    def catch_up(self) -> None:
        """Look once; an append at a tail that is no longer the tail fails."""
        with self._mutex:
            if not self._looked:
                self.refresh()

    def add(self, record: IndexRecord) -> None:
        """Add a record that this process has written, unless it was read meanwhile."""
        with self._mutex:
            if record.follows(self.newest):
                self._add([record])

    def since(self, number: int) -> list[IndexRecord]:
        """Return the records from a number on, which must not be before the first that was read."""
        with self._mutex:
            places = range(number - self._begins, len(self._firsts))
            return [record for record, _ in self._several(places)]

    def _open_end(self) -> None:
        last = self._last_first(None)
        if last is not None:
            record = self._read(last)
            self._begins = record.number
            self._add([record], linked=False)
        self._looked = True

    def _next(self) -> IndexRecord | None:
        name = record_key(self.head.tail)
        try:
            return IndexRecord.read(self._repository.read(name), name, self.uid)
        except NotFound:
            return None

    def _read_rest(self) -> None:
        """List the names after the last record, and read those records, many at a time."""
        while names := self._names_after(self.head.tail - 1):
            self._add(self._read_all(names))
            if len(names) < PAGE:
                return

    def _add(self, records: Sequence[IndexRecord], *, linked: bool = True) -> None:
        """Add records at the end. A failure changes nothing."""
        before = self.newest
        for record in records:
            if linked:
                _require_link(before, record)
            before = record
        for record in records:
            self._firsts.append(record.first)
            self._chains.append(_mark(record))
            self._keep(record)
        if before is not None:
            self.newest, self.head = before, before.head
        rewound = [range_ for each in records if isinstance(range_ := each.range, Rewound)]
        self._note([*self._rewound, *rewound])

    # --- positions ---

    def record_of(self, sequence: int) -> int | None:
        """Return the first sequence of the record that contains a sequence."""
        with self._mutex:
            return self._first_of(sequence) if 0 <= sequence < self.head.tail else None

    def seek(self, sequence: int, record: int | None) -> None:
        """List the records from the named one on, and require that it contains the sequence."""
        if record is None or not 0 <= sequence < self.head.tail:
            return
        with self._mutex:
            if self._begins and record < self._firsts[0]:
                self._read_back(record)
            if self._first_of(sequence) != record:
                raise RangeDamaged(f"{record_key(record)} does not contain sequence {sequence}")

    # --- questions ---

    def whole(self) -> list[IndexRecord]:
        """Read all records, and return them in order."""
        self.refresh()
        self._read_from(0)
        return self.since(0)

    def ranges(self) -> Iterator[Range]:
        """Yield all ranges, in order."""
        self._read_from(0)
        for start in range(0, len(self._firsts), _AT_ONCE):
            with self._mutex:
                found = self._several(range(start, min(start + _AT_ONCE, len(self._firsts))))
            for _, each in found:
                yield each

    def keys(self, since: int) -> Iterator[str]:
        """Yield the keys of committed ranges and of rewinds from record number `since` on, in order."""
        if since < self._begins:
            self._read_from(0)
        for start in range(max(since, 0) - self._begins, len(self._firsts), _AT_ONCE):
            with self._mutex:
                found = self._several(range(start, min(start + _AT_ONCE, len(self._firsts))))
            for _, each in found:
                if not isinstance(each, Cancelled) and each.key:
                    yield each.key

    def newest_first(self) -> Iterator[IndexRecord]:
        """Yield the records from the last one on backwards; each names the one before it."""
        record = self.newest
        while record is not None:
            yield record
            if record.previous is None:
                return
            with self._mutex:
                known = self._kept.get(record.previous)
            before = known[0] if known else self._read(record.previous)
            _require_link(before, record)
            record = before

    @property
    def first_known(self) -> int:
        """0: the marks of a record stand for all records before it."""
        return 0

    def known_keys(self, since: int) -> Iterator[str]:
        """Yield the marks of the first record that was read, then the keys of later records."""
        if since <= self._begins and self._firsts:
            yield from self._several(range(1))[0][0].marks.values()
        yield from self.keys(max(since, self._begins))

    def _find(self, sequence: int) -> tuple[Range, bytes] | None:
        if not 0 <= sequence < self.head.tail:
            return None
        with self._mutex:
            record, range_ = self._several([self._place(sequence)])[0]
            return range_, bytes.fromhex(record.chain)

    def _first_of(self, sequence: int) -> int:
        place = self._place(sequence)  # it may read earlier records, which moves all places
        return self._firsts[place]

    def _place(self, sequence: int) -> int:
        self._read_from(sequence)
        return bisect_right(self._firsts, sequence) - 1

    def _read_from(self, sequence: int) -> None:
        with self._mutex:
            if self._begins and sequence < self._firsts[0]:
                found = self._last_first(max(sequence, 0))
                if found is None:
                    raise RangeDamaged(f"there is no record of sequence {sequence}")
                self._read_back(found)

    # --- requests ---

    def _read_back(self, first: int) -> None:
        """Read the records from a name on that are before those in memory. A failure changes nothing."""
        known = self._several(range(1))[0][0]
        firsts, chains, rewound = array("Q"), array("Q"), []
        before: IndexRecord | None = None
        after = first - 1
        while names := [each for each in self._names_after(after) if each < known.first]:
            if before is None and names[0] != first:
                raise RangeDamaged(f"{record_key(first)} is missing")
            for record in self._read_all(names):
                if before is not None or not record.first:
                    _require_link(before, record)
                before = record
                firsts.append(record.first)
                chains.append(_mark(record))
                if isinstance(range_ := record.range, Rewound):
                    rewound.append(range_)
            after = names[-1]
        if before is None:
            raise RangeDamaged(f"{record_key(first)} is missing")
        _require_link(before, known)
        self._firsts, self._chains = firsts + self._firsts, chains + self._chains
        self._begins -= len(firsts)
        self._note([*rewound, *self._rewound])

    def _last_first(self, limit: int | None) -> int | None:
        """Return the first sequence of the last record, or of the last one that begins at or before a sequence.

        Names can only be listed upwards: look at the first page, then at twice the sequence until nothing is there,
        then halve the distance.
        """

        def page(after: int) -> list[int]:
            return [each for each in self._names_after(after) if limit is None or each <= limit]

        found = page(-1)
        low, high = found[-1] if found else None, None if limit is None else limit
        while low is not None and len(found) == PAGE:
            if high is not None and high - low <= PAGE:
                probe = low
            else:
                probe = 2 * low + PAGE if high is None else (low + high) // 2
            found = page(probe)
            if found:
                low = found[-1]
            elif probe == low:
                break
            else:
                high, found = probe, [0] * PAGE  # nothing there: look again, further down
        return low

    def _names_after(self, first: int) -> list[int]:
        """Return the names of at most a thousand records that begin after a sequence, in order."""
        page = self._repository.page(INDEX_FOLDER, record_key(first) if first >= 0 else None)
        return [found for each in page if (found := first_in(each.key)) is not None]

    def times_from(self, first: int) -> Iterator[tuple[int, float]]:
        """Yield the first sequences of the records from a name on, and when each was written by the store's clock."""
        after, page = first - 1, list[StoredObject]()
        while page := self._repository.page(INDEX_FOLDER, record_key(after) if after >= 0 else None):
            for each in page:
                if (found := first_in(each.key)) is not None:
                    yield found, each.modified_s
                    after = found
            if len(page) < PAGE:
                return

    def _several(self, places: Sequence[int]) -> list[Known]:
        """Return the records at these places; those that are not in memory are read again, and compared."""
        missing = [self._firsts[each] for each in places if self._firsts[each] not in self._kept]
        again = {record.first: (record, record.range) for record in self._read_all(missing)} if missing else {}
        found = []
        for place in places:
            first = self._firsts[place]
            record, range_ = self._kept.get(first) or again[first]
            if _mark(record) != self._chains[place]:
                raise RangeDamaged(f"{record_key(first)} has changed since it was read")
            found.append((record, range_))
        for record, _ in again.values():
            self._keep(record)
        return found

    def _keep(self, record: IndexRecord) -> None:
        self._kept[record.first] = (record, record.range)
        self._kept.move_to_end(record.first)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def _read(self, first: int) -> IndexRecord:
        return self._read_all([first])[0]

    def _read_all(self, firsts: Sequence[int]) -> list[IndexRecord]:
        names = [record_key(each) for each in firsts]
        records = []
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            for name, data in self._repository.read_all(some).items():
                if data is None:
                    raise RangeDamaged(f"{name} is missing")
                records.append(IndexRecord.read(data, name, self.uid))
        return records


def _require_link(before: IndexRecord | None, record: IndexRecord) -> None:
    if not record.follows(before):
        name = "the beginning of the log" if before is None else record_key(before.first)
        raise RangeDamaged(f"{record_key(record.first)} does not follow {name}")


def _mark(record: IndexRecord) -> int:
    return int(record.chain[: 2 * _MARK], 16)
