"""The event log on a local disk: committed events in one global sequence, read by region.

    <log>/
      log.json      who the log is and its columns; sealed
      head          two slots (see `blocks`): how many records of the index count
      index         committed and cancelled ranges, append-only (see `ranges`)
      segments/first=<sequence>/<token>.parquet

A row's sequence is its segment's first plus its place in it: nothing is numbered by a pass over the data. Readers take
no lock and see what the head counts. How a log is written stands in `logwriter`.
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
    sync_head,
    write_head,
)
from holdfast.eventlog.index import Committed, IndexHead, LogIndex, Range, RangeDamaged, Segment
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
    """The reader's view of a log; `writer()` gives the other one. Not safe to share between threads."""

    def __init__(self, path: Path, about: About) -> None:
        self.path = path
        self.keep_clock = about.keep_clock
        self.identity = about.uid
        self._ranges = LogIndex(about.uid, partial(read_index, path))
        self._cache: OrderedDict[str, pa.Table] = OrderedDict()
        self.schema = read_schema(about, path)

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, keep_clock: bool = False, payload: pa.DataType | None = None
    ) -> EventLog:
        """Make a new log. `payload` is the Arrow type of what events say, bytes unless told otherwise.

        `log.json` is written last: without it there is no log, and a creation that was cut off can be repeated. A
        folder that holds records is never made into a new log.
        """
        folder = local_path("event log", path)
        schema = schema_of(payload, keep_clock=keep_clock)
        _require_own_folder(folder)
        with files.failing_as("create", str(folder)):
            files.make_folder(folder / SEGMENTS)
        with FileBlocks.lock(folder / HEAD, f"the writer's place at event log {folder}"):
            if (folder / ABOUT).exists():
                raise AlreadyExists(what=f"an event log at {folder}")
            if has_records(folder):
                raise LogCorrupt(path=str(folder), part=ABOUT, why="it is missing, and the log has records")
            uid, head = uuid.uuid4().hex, MemoryBlocks(HEAD_BLOCKS)
            write_head(head, IndexHead.first(uid), None)
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
    def open_or_create(
        cls, path: str | os.PathLike[str], *, keep_clock: bool = False, payload: pa.DataType | None = None
    ) -> EventLog:
        """Open a log, or make it where there is none. One that keeps other columns is refused."""
        for _ in range(_OPEN_TRIES):  # two may be at it at the same moment: whoever comes second finds the first's
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
        """The sequence behind the last one that is committed or cancelled, as of the last refresh."""
        return self._ranges.head.tail

    @property
    def records(self) -> int:
        """How many ranges were committed or cancelled, as of the last refresh."""
        return self._ranges.head.records

    def refresh(self) -> int:
        """Take in what writers have appended since, and return the tail."""
        head = read_head(self.path)
        known = self._ranges.head
        if head != known:
            sync_head(self.path)
            with self._damage_told():
                if head.records < known.records:
                    raise RangeDamaged(f"the head counts {head.records} records where there were {known.records}")
                self._ranges.advance(head)
        return head.tail

    def check_region(self, region: Region) -> None:
        """Raise `ClockNotKept` where a region asks for what this log does not keep."""
        if region.clock is not None and not self.keep_clock:
            raise ClockNotKept(log=str(self.path))

    def read(self, region: Region | None = None, start: int = 0, end: int | None = None) -> Iterator[LogEvent]:
        """Return the events of a region from `start` to before `end`, or to the tail as it is now, in order."""
        region = checked_type("region", region or Region.everything(), Region)
        checked_u64("start", start)
        self.check_region(region)
        tail = self.refresh()
        events = self._read(region, start, tail if end is None else min(checked_u64("end", end), tail))
        return events if end is None else itertools.takewhile(lambda event: event.sequence < end, events)

    def cancelled(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the cancelled half-open ranges between two sequences; adjacent ones are reported as one."""
        with self._damage_told():
            return self._ranges.cancelled(start, end)

    def chain_at(self, sequence: int) -> bytes | None:
        """Return the digest that stands for the log up to the record of a sequence, or `None` past the end."""
        with self._damage_told():
            return self._ranges.chain_at(sequence)

    def keys(self, since: int = 0) -> Iterator[str]:
        """Give the keys of the appends that have one, from the n-th record on, in their order."""
        with self._damage_told():
            yield from self._ranges.keys(since)

    def segments(self, start: int, end: int) -> Iterator[Segment]:
        """Give the segments that hold events from `start` to before `end`, in order, as of the last refresh."""
        while start < end and (range_ := self._holding(start)) is not None:
            if isinstance(range_, Committed):
                for segment in range_.segments:
                    if segment.first + segment.count > start and segment.first < end:
                        yield segment
            start = range_.first + range_.count

    def writer(self) -> LogWriter:
        """Become the one writer of this log, or raise `Locked` with the pid of the process that is it."""
        return LogWriter(self.path)

    def _holding(self, sequence: int) -> Range | None:
        with self._damage_told():
            return self._ranges.holding(sequence)

    @contextlib.contextmanager
    def _damage_told(self) -> Iterator[None]:
        try:
            yield
        except RangeDamaged as damage:
            raise LogCorrupt(path=str(self.path), part=INDEX, why=str(damage)) from damage

    def _read(self, region: Region, start: int, end: int) -> Iterator[LogEvent]:
        for segment in self.segments(start, end):
            yield from matching(self._table(segment), segment.first, max(start - segment.first, 0), region)

    def _table(self, segment: Segment) -> pa.Table:
        """Return a segment's events; the last few segments are kept, checked already."""
        if segment.path not in self._cache:
            self._cache[segment.path] = read_segment(self.path, segment, self.schema)
            if len(self._cache) > _CACHED_SEGMENTS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(segment.path)
        return self._cache[segment.path]


def _require_own_folder(folder: Path) -> None:
    """Refuse to scatter a log's files among others'."""
    ours = {ABOUT, HEAD, INDEX, SEGMENTS, f"{HEAD}.lock"}
    with files.failing_as("create", str(folder)):
        others = [path.name for path in folder.iterdir() if path.name not in ours] if folder.is_dir() else []
    foreign = sorted(name for name in others if not name.startswith(files.TEMP_PREFIX))
    if foreign:
        why = f"the folder holds other things, such as {foreign[0]!r}"
        raise BadValue(what="event log", value=str(folder), why=why, do="name a folder of its own")
