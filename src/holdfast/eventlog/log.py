"""The event log on a local disk: committed events in one global sequence, read by region.

    <log>/
      log.json      uid and columns of the log; sealed
      head          two slots (see `formats.blocks`): how many records of the index are committed
      index         committed and cancelled ranges, and rewinds, append-only (see `index`)
      segments/first=<sequence>/<token>.parquet

The sequence of a row is the first sequence of its segment plus its row number, so sequences are not stored. Readers
take no lock and see the records that the head counts. The write protocol is described in `writer`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._validation import checked_type, checked_u64
from holdfast.errors import AlreadyExists, BadValue, ClockNotKept, Locked, LogCorrupt, LogMissing
from holdfast.eventlog._files import (
    ABOUT,
    HEAD,
    HEAD_BLOCKS,
    INDEX,
    SEGMENTS,
    About,
    has_records,
    read_about,
    read_head,
    read_index,
    read_schema,
    read_segment,
    read_stored,
    sync_head,
    write_head,
)
from holdfast.eventlog.index import Committed, IndexHead, LogIndex, Range, RangeDamaged, Segment, StoredHead
from holdfast.eventlog.region import Region
from holdfast.eventlog.segment import LogEvent, matching, schema_of, schema_to_text
from holdfast.eventlog.writer import LogWriter
from holdfast.formats.blocks import MemoryBlocks
from holdfast.repository import FileBlocks, files
from holdfast.repository.files import local_path

if TYPE_CHECKING:
    import pyarrow as pa

_CACHED_SEGMENTS = 4
_OPEN_TRIES = 500
_OPEN_PAUSE_S = 0.01


class EventLog:
    """The reader's view of a log; `writer()` opens it for writing. Not thread-safe."""

    def __init__(self, path: Path, about: About, anchor: IndexHead | None = None) -> None:
        self.path = path
        self.keep_clock = about.keep_clock
        self.identity = about.uid
        self._ranges = LogIndex(about.uid, partial(read_index, path), anchor)
        self._cache: OrderedDict[str, pa.Table] = OrderedDict()
        self.schema = read_schema(about, path)

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, keep_clock: bool = False, payload: pa.DataType | None = None
    ) -> EventLog:
        """Create a new log. `payload` is the Arrow type of the event payloads, bytes by default.

        `log.json` is written last: until then there is no log, and an interrupted creation can be repeated. A folder
        that contains records never becomes a new log.
        """
        folder = local_path("event log", path)
        schema = schema_of(payload, keep_clock=keep_clock)
        _require_own_folder(folder)
        with files.failing_as("create", str(folder)):
            files.make_folder(folder / SEGMENTS)
        with FileBlocks.lock(folder / HEAD, f"the writer lock of event log {folder}"):
            if (folder / ABOUT).exists():
                raise AlreadyExists(what=f"an event log at {folder}")
            if has_records(folder):
                raise LogCorrupt(path=str(folder), part=ABOUT, why="it is missing, but the log has records")
            uid, head = uuid.uuid4().hex, MemoryBlocks(HEAD_BLOCKS)
            write_head(head, StoredHead.of(IndexHead.first(uid)), None)
            files.replace_durably(folder / INDEX, b"", INDEX)
            files.replace_durably(folder / HEAD, head.data, HEAD)
            about = About(
                uid=uid,
                keep_clock=keep_clock,
                columns=", ".join(f"{each.name}: {each.type}" for each in schema),
                schema=schema_to_text(schema),
            )
            files.replace_durably(folder / ABOUT, about.sealed(), ABOUT)
        return cls.open(folder)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> EventLog:
        """Open a log and check its whole index."""
        folder = local_path("event log", path)
        log = cls(folder, read_about(folder))
        log.refresh()
        return log

    @classmethod
    def open_end(cls, path: str | os.PathLike[str]) -> EventLog:
        """Open a log and check the end of its index: the time that this takes does not grow with the log.

        Earlier records are read and checked when one of them is first needed; until then damage to them is not noticed.
        """
        folder = local_path("event log", path)
        about = read_about(folder)
        anchors = read_stored(folder).anchors
        log = cls(folder, about, anchors[0] if anchors else None)
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
    def tail(self) -> int:
        """The sequence after the last committed or cancelled one, as of the last refresh."""
        return self._ranges.head.tail

    @property
    def records(self) -> int:
        """The number of records: committed and cancelled ranges, and rewinds, as of the last refresh."""
        return self._ranges.head.records

    def refresh(self) -> int:
        """Read the records that were appended since the last refresh, and return the tail."""
        head = read_head(self.path)
        known = self._ranges.head
        if head != known:
            sync_head(self.path)
            with self._damage_translated():
                if head.records < known.records:
                    raise RangeDamaged(f"the head counts {head.records} records, but there were {known.records}")
                self._ranges.advance(head)
        return head.tail

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
            return self._ranges.cancelled(start, end)

    def chain_at(self, sequence: int) -> bytes | None:
        """Return the digest of the log's history up to the record of a sequence, or `None` past the end."""
        with self._damage_translated():
            return self._ranges.chain_at(sequence)

    @property
    def rewinds(self) -> int:
        """The number of rewinds and undos that this object has read, as of the last refresh."""
        return self._ranges.rewinds

    def changed_before(self, sequence: int) -> int | None:
        """Return the first sequence that was taken back, or put back, after a reader read up to `sequence`.

        `None` if there is none: the events before `sequence` are still those that the reader has read.
        """
        with self._damage_translated():
            return self._ranges.changed_before(sequence)

    def ranges(self) -> Iterator[Range]:
        """Yield all ranges of the index, in order, as of the last refresh."""
        with self._damage_translated():
            yield from self._ranges.ranges()

    def is_abandoned(self, range_: Range) -> bool:
        """Whether readers skip a range, because a rewind has abandoned it."""
        return self._ranges.is_abandoned(range_)

    @property
    def first_checked(self) -> int:
        """The number of the first record that was read and checked; 0 unless the log was opened by `open_end`."""
        return self._ranges.begins

    def keys(self, since: int = 0) -> Iterator[str]:
        """Yield the keys of the appends that have one, from record number `since` on, in order."""
        with self._damage_translated():
            yield from self._ranges.keys(since)

    def segments(self, start: int, end: int) -> Iterator[Segment]:
        """Yield the segments with events from `start` to before `end`, in order, as of the last refresh."""
        while start < end and (range_ := self._holding(start)) is not None:
            if isinstance(range_, Committed) and not self.is_abandoned(range_):
                for segment in range_.segments:
                    if segment.first + segment.count > start and segment.first < end:
                        yield segment
            start = range_.first + range_.count

    def writer(self) -> LogWriter:
        """Open the log for writing, or raise `Locked` with the pid of the current writer."""
        return LogWriter(self.path)

    def _holding(self, sequence: int) -> Range | None:
        with self._damage_translated():
            return self._ranges.holding(sequence)

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
            self._cache[segment.path] = read_segment(self.path, segment, self.schema)
            if len(self._cache) > _CACHED_SEGMENTS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(segment.path)
        return self._cache[segment.path]


def _require_own_folder(folder: Path) -> None:
    """Raise if the folder contains files that do not belong to a log."""
    known = {ABOUT, HEAD, INDEX, SEGMENTS, f"{HEAD}.lock"}
    with files.failing_as("create", str(folder)):
        others = [path.name for path in folder.iterdir() if path.name not in known] if folder.is_dir() else []
    foreign = sorted(name for name in others if not name.startswith(files.TEMP_PREFIX))
    if foreign:
        why = f"the folder contains other files, such as {foreign[0]!r}"
        raise BadValue(what="event log", value=str(folder), why=why, do="use an empty folder")
