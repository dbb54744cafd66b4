"""Writing to an event log on an object store. There is no lock: the name of a record decides who has appended.

Rules:
- An append writes its segments under names that are used once, then one record under the name of the tail, by
  `put_if_absent`. The record makes all of its events visible, or none.
- A writer that loses the name reads the records that were written meanwhile. If one of them has the key of its own
  append, the append is done: another process has finished it. Otherwise it plans again, and tries at the new tail.
- What an append depends on is checked for the records before the tail at which it is written, and for no others: the
  plan is made after the tail was taken, and a lost name discards it. So a driver that a rewind has replaced cannot
  append after the rewind, however long it was paused.
- An append whose outcome is unknown halts the writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from holdfast._validation import checked_positive
from holdfast.epoch import Reach
from holdfast.errors import LogCorrupt, OutcomeUnknown, StorageFailed
from holdfast.eventlog._files import SEGMENTS
from holdfast.eventlog.appending import AdoptPlan, Appender, RangePlan
from holdfast.eventlog.index import Cancelled, Committed, Range, RangeDamaged, Rewound, Segment
from holdfast.eventlog.segment import to_parquet
from holdfast.eventlog.store_index import StoreIndex
from holdfast.eventlog.store_record import INDEX_FOLDER, IndexRecord, record_key
from holdfast.repository.objectstore import ObjectRepository

if TYPE_CHECKING:
    import pyarrow as pa

OWN_SEGMENTS = f"{SEGMENTS}/_"  # the folder of segments that no stream has written


class StoreWriter(Appender):
    """A writer of a log on a store. Several may append at the same time, in any number of processes.

    Not guaranteed: that the sequences of two appends of one writer are consecutive.
    """

    def __init__(self, address: str, repository: ObjectRepository, index: StoreIndex, schema: pa.Schema) -> None:
        super().__init__(address, schema)
        self._repository = repository
        self._index = index
        self._process: int | None = os.getpid()

    def look(self) -> None:
        """Find the tail."""
        with self._damage_translated():
            self._index.refresh()

    @property
    def tail(self) -> int:
        """The next sequence, unless another writer takes it first."""
        return self._index.head.tail

    @property
    def _held(self) -> bool:
        return self._process == os.getpid()

    def _release(self) -> None:
        self._process = None

    def _commit(self, table: pa.Table) -> range:
        data = to_parquet(table)
        path, digest = f"{OWN_SEGMENTS}/{uuid.uuid4().hex}.parquet", hashlib.sha256(data).digest()
        try:
            self._repository.put_new(path, data)
        except OutcomeUnknown as error:  # no record refers to it, so the log is unchanged
            raise StorageFailed(action="append to", key=self._where, why=error.why) from error

        def made(first: int) -> Range:
            return Committed(first, table.num_rows, (Segment(path, first, table.num_rows, len(data), digest),))

        return self._always(made)

    def _cancel(self, count: int, why: str) -> range:
        return self._always(lambda first: Cancelled(first, count, why))

    def _adopt(self, plan: AdoptPlan, key: str, reach: Reach, mark: str) -> range | None:
        def made(first: int) -> Range | None:
            staged = plan()
            if not staged:
                return None
            segments, at = [], first
            for each in staged:
                count = checked_positive("count", each.count)
                segments.append(Segment(each.path.as_posix(), at, count, each.size, each.sha256))
                at += count
            return Committed(first, at - first, tuple(segments), key)

        return self._append(made, key, mark, reach)

    def _rewind(self, key: str, plan: RangePlan, mark: str) -> int | None:
        def made(first: int) -> Range | None:
            planned = plan()
            return None if planned is None else Rewound(first, 1, key, tuple(planned[0]), tuple(planned[1]))

        found = self._append(made, key, mark)
        return None if found is None else found.start

    def _always(self, made: Callable[[int], Range]) -> range:
        found = self._append(made)
        if found is None:
            raise AssertionError(made)  # there is always something to append
        return found

    def _append(
        self, made: Callable[[int], Range | None], key: str = "", mark: str = "", reach: Reach = lambda _: None
    ) -> range | None:
        """Write one record.

        1. Take the tail.  2. Plan what to append there.  3. Write the record under the name of the tail.  4. If another
        writer has the name, read on: a record with the same key is this append, unless the plan refuses it now,
        because a rewind has followed.  5. Otherwise begin again.
        """
        while True:
            before = self._index.newest  # 1
            first = 0 if before is None else before.head.tail
            range_ = made(first)  # 2
            if range_ is None:
                return None
            record = IndexRecord.after(before, self._index.uid, range_, {mark: key} if mark else {})
            reach("committing")
            if self._put(record):  # 3
                self._index.add(record)
                return range(first, record.head.tail)
            found = self._read_on(record.number, key)  # 4
            if found is not None:
                made(self.tail)
                return found

    def _put(self, record: IndexRecord) -> bool:
        """Write a record; return whether this writer has the name. If that is unknown, the writer is halted."""
        data = record.sealed(one_line=True)
        try:
            return self._repository.put_if_absent(record_key(record.first), data).won
        except OutcomeUnknown as error:
            self._halted = True
            raise OutcomeUnknown(action="append to", key=self._where, why=error.why) from error

    def _read_on(self, number: int, key: str) -> range | None:
        with self._damage_translated():
            self._index.refresh()
            found = self._index.since(number)
        if not found:
            why = f"{record_key(self.tail)} exists, but it cannot be read"
            raise LogCorrupt(path=self._where, part=INDEX_FOLDER, why=why)
        same = (range(each.first, each.head.tail) for each in found if key and each.key == key)
        return next(same, None)

    @contextlib.contextmanager
    def _damage_translated(self) -> Iterator[None]:
        try:
            yield
        except RangeDamaged as damage:
            raise LogCorrupt(path=self._where, part=INDEX_FOLDER, why=str(damage)) from damage
