"""The event log: committed events in one global sequence, read by region.

A log consists of `log.json` (its identity and columns), an index of committed and cancelled ranges and of rewinds (see
`index`), and segments, which are Parquet files of events. Where they are kept is described in `local_home` and
`store_home`. The sequence of a row is the first sequence of its segment plus its row number, so sequences are not
stored. Readers take no lock.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._validation import checked_type, checked_u64
from holdfast.errors import AlreadyExists, ClockNotKept, Locked, LogCorrupt, LogMissing
from holdfast.eventlog._files import INDEX, About, read_schema
from holdfast.eventlog.appending import Appender
from holdfast.eventlog.home import LogHome
from holdfast.eventlog.homes import home_of
from holdfast.eventlog.index import Committed, LiveIndex, Range, RangeDamaged, Segment
from holdfast.eventlog.region import Region
from holdfast.eventlog.segment import LogEvent, matching, schema_of

if TYPE_CHECKING:
    import pyarrow as pa

_CACHED_SEGMENTS = 4
_OPEN_TRIES = 500
_OPEN_PAUSE_S = 0.01


class EventLog:
    """The reader's view of a log; `writer()` opens it for writing. Not thread-safe."""

    def __init__(self, home: LogHome, about: About, *, whole: bool) -> None:
        self.home = home
        self.keep_clock = about.keep_clock
        self.identity = about.uid
        self.schema = read_schema(about, home.address)
        self.index: LiveIndex = home.index(about, whole=whole)
        self._cache: OrderedDict[str, pa.Table] = OrderedDict()

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, keep_clock: bool = False, payload: pa.DataType | None = None
    ) -> EventLog:
        """Create a new log. `payload` is the Arrow type of the event payloads, bytes by default.

        `log.json` is written last: until then there is no log, and an interrupted creation can be repeated. A folder
        that contains records never becomes a new log.
        """
        home = home_of(path)
        home.create(schema_of(payload, keep_clock=keep_clock), keep_clock=keep_clock)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> EventLog:
        """Open a log: a folder, or `s3://bucket/path`. In a folder, its whole index is checked.

        On a store only the end of the index is read, and earlier records when one of them is first needed.
        """
        return cls._opened(path, whole=True)

    @classmethod
    def open_end(cls, path: str | os.PathLike[str]) -> EventLog:
        """Open a log and check the end of its index: the time that this takes does not grow with the log.

        Earlier records are read and checked when one of them is first needed; until then damage to them is not noticed.
        """
        return cls._opened(path, whole=False)

    @classmethod
    def _opened(cls, path: str | os.PathLike[str], *, whole: bool) -> EventLog:
        home = home_of(path)
        log = cls(home, home.about(), whole=whole)
        log.refresh()
        return log

    @classmethod
    def open_or_create(
        cls, path: str | os.PathLike[str], *, keep_clock: bool = False, payload: pa.DataType | None = None
    ) -> EventLog:
        """Open a log, or create it if it does not exist. Raises `AlreadyExists` if its columns differ."""
        for _ in range(_OPEN_TRIES):  # another process may create it at the same time: then open that log
            try:
                log = cls.open(path)
                break
            except LogMissing:
                with contextlib.suppress(AlreadyExists, Locked):
                    return cls.create(path, keep_clock=keep_clock, payload=payload)
                time.sleep(_OPEN_PAUSE_S)
        else:
            log = cls.open(path)
        if log.schema != schema_of(payload, keep_clock=keep_clock):
            raise AlreadyExists(what=f"an event log with other columns at {log.path}")
        return log

    def __repr__(self) -> str:
        return f"EventLog({str(self.path)!r}, tail={self.tail})"

    @property
    def path(self) -> Path | str:
        """The address of the log."""
        return self.home.address

    @property
    def tail(self) -> int:
        """The sequence after the last committed or cancelled one, as of the last refresh."""
        return self.index.head.tail

    @property
    def records(self) -> int:
        """The number of records: committed and cancelled ranges, and rewinds, as of the last refresh."""
        return self.index.head.records

    def refresh(self) -> int:
        """Read the records that were appended since the last refresh, and return the tail."""
        with self._damage_translated():
            self.index.refresh()
        return self.tail

    def catch_up(self) -> None:
        """Do the same before an append, unless the append itself notices records of other writers."""
        with self._damage_translated():
            self.index.catch_up()

    def check_region(self, region: Region) -> None:
        """Raise `ClockNotKept` if the region filters by clock and this log does not store clocks."""
        if region.clock is not None and not self.keep_clock:
            raise ClockNotKept(log=str(self.path))

    def read(self, region: Region | None = None, start: int = 0, end: int | None = None) -> Iterator[LogEvent]:
        """Return the events of a region from `start` to before `end`, by default the current tail, in order."""
        region = checked_type("region", region or Region.everything(), Region)
        checked_u64("start", start)
        self.check_region(region)
        tail = self.refresh()
        events = self._read(region, start, tail if end is None else min(checked_u64("end", end), tail))
        return events if end is None else itertools.takewhile(lambda event: event.sequence < end, events)

    def cancelled(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the half-open ranges between two sequences that have no events; adjacent ranges are merged.

        They were cancelled, or a rewind has abandoned them.
        """
        with self._damage_translated():
            return self.index.cancelled(start, end)

    def chain_at(self, sequence: int) -> bytes | None:
        """Return the digest of the log's history up to the record of a sequence, or `None` past the end."""
        with self._damage_translated():
            return self.index.chain_at(sequence)

    def record_of(self, sequence: int) -> int | None:
        """Return the first sequence of the record of a sequence if a stored position needs it, as on a store."""
        with self._damage_translated():
            return self.index.record_of(sequence)

    def seek(self, sequence: int, record: int | None) -> None:
        """Read the records from a stored position on; raise `LogCorrupt` if the first is not the one that it names."""
        with self._damage_translated():
            self.index.seek(sequence, record)

    @property
    def rewinds(self) -> int:
        """The number of rewinds and undos that this object has read, as of the last refresh."""
        return self.index.rewinds

    def changed_before(self, sequence: int) -> int | None:
        """Return the first sequence that was taken back, or put back, after a reader read up to `sequence`.

        `None` if there is none: the events before `sequence` are still those that the reader has read.
        """
        with self._damage_translated():
            return self.index.changed_before(sequence)

    def ranges(self) -> Iterator[Range]:
        """Yield all ranges of the index, in order, as of the last refresh."""
        with self._damage_translated():
            yield from self.index.ranges()

    def is_abandoned(self, range_: Range) -> bool:
        """Whether readers skip a range, because a rewind has abandoned it."""
        return self.index.is_abandoned(range_)

    def keys(self, since: int = 0) -> Iterator[str]:
        """Yield the keys of the appends that have one, from record number `since` on, in order."""
        with self._damage_translated():
            yield from self.index.keys(since)

    @property
    def first_known(self) -> int:
        """The number of the first record whose keys `known_keys` accounts for."""
        return self.index.first_known

    def known_keys(self, since: int) -> Iterator[str]:
        """Yield the keys from record number `since` on, or what is known of them without reading earlier records."""
        with self._damage_translated():
            yield from self.index.known_keys(since)

    def segments(self, start: int, end: int) -> Iterator[Segment]:
        """Yield the segments with events from `start` to before `end`, in order, as of the last refresh."""
        while start < end and (range_ := self._holding(start)) is not None:
            if isinstance(range_, Committed) and not self.is_abandoned(range_):
                for segment in range_.segments:
                    if segment.first + segment.count > start and segment.first < end:
                        yield segment
            start = range_.first + range_.count

    def writer(self) -> Appender:
        """Open the log for writing. In a folder, raise `Locked` with the pid of the current writer if there is one."""
        return self.home.writer()

    def own_writer(self) -> Appender:
        """Open the log for writing. On a store, the writer uses and advances the view of this object."""
        return self.home.writer_of(self.index, self.schema)

    def _holding(self, sequence: int) -> Range | None:
        with self._damage_translated():
            return self.index.holding(sequence)

    @contextlib.contextmanager
    def _damage_translated(self) -> Iterator[None]:
        try:
            yield
        except RangeDamaged as damage:
            raise LogCorrupt(path=str(self.path), part=INDEX, why=str(damage)) from damage

    def _read(self, region: Region, start: int, end: int) -> Iterator[LogEvent]:
        for segment in self.segments(start, end):
            yield from matching(self._table(segment), segment.first, max(start - segment.first, 0), region)

    def _table(self, segment: Segment) -> pa.Table:
        """Return the events of a segment; the last few segments are cached after their check."""
        if segment.path not in self._cache:
            self._cache[segment.path] = self.home.segment(segment, self.schema)
            if len(self._cache) > _CACHED_SEGMENTS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(segment.path)
        return self._cache[segment.path]
