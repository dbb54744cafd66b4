"""Writing to an event log: atomic appends, aborts that leave a cancelled range, and the repair of a torn head.

Rules:
- An append is one record: all of its events become visible, or none. The steps are segment, index, head, each synced
  before the next; the head's write is the moment.
- An aborted append leaves a cancelled range. One that a crash cut off has never been: what lies behind the head is
  dropped when the next writer opens the log, and its sequences are given again. Nobody has seen them.
- One process writes at a time. Whatever fails from the index on halts the writer until the log is opened again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.errors import AppendOpen, Closed, LogCorrupt, LogHalted, OutcomeUnknown
from holdfast.loghead import (
    HEAD,
    INDEX,
    SEGMENTS,
    find_head,
    head_in,
    read_about,
    read_head,
    read_schema,
    read_segment,
    sync_head,
    write_head,
)
from holdfast.names import checked_positive, checked_type, in_words, readable
from holdfast.ranges import Cancelled, Committed, Head, Range, RangeDamaged, Segment, decode, encode
from holdfast.repository import FileBlocks, files
from holdfast.repository.files import local_path
from holdfast.segment import NewEvent, joined, to_parquet, to_table

if TYPE_CHECKING:
    import pyarrow as pa

_MANY = 1 << 20  # enough of what lies behind the head to see two records of any size that we write


@dataclass(frozen=True, slots=True)
class Repaired:
    """What `repair` did: how many records stand now, how many of them the head had lost, what was dropped behind."""

    records: int
    regained: int
    dropped_bytes: int


class LogWriter:
    """The one writer of a log. Close it, or use it in `with`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path = local_path("event log", path)
        self._schema = read_schema(read_about(path), path)
        read_head(path)  # a damaged one is said to be so before anything else is
        self._blocks = FileBlocks.open(path / HEAD, f"the writer's place at event log {path}")
        self._halted = False
        self._open: Append | None = None
        self._index = -1
        try:
            sync_head(path)  # its writer may have been killed before it did; what follows is built on it
            self._head = read_head(path)
            self._found = find_head(self._blocks, path)
            with files.failing_as("open", str(path)):
                self._index = os.open(path / INDEX, os.O_RDWR | os.O_CLOEXEC)
                self._drop_undecided()
        except BaseException:
            self.close()
            raise

    @property
    def tail(self) -> int:
        """The next sequence that will be given."""
        return self._head.tail

    def append(self, events: Iterable[NewEvent] | pa.Table | pa.RecordBatch) -> range:
        """Append events atomically and return their sequences; durable and visible on return."""
        with self.begin() as append:
            append.add(events)
        return append.sequences

    def begin(self) -> Append:
        """Begin an append of several steps: `add`, then `commit` or `abort`. One at a time."""
        self._check()
        if self._open is not None:
            raise AppendOpen(path=str(self.path))
        self._open = Append(self)
        return self._open

    def cancel(self, count: int, why: str) -> range:
        """Record a range of sequences as cancelled, as an aborted append does."""
        self._check()
        if self._open is not None:
            raise AppendOpen(path=str(self.path))
        self._clear(self.tail)
        why = readable(checked_type("reason", why, str))
        return self._record(Cancelled(self.tail, checked_positive("count", count), why))

    def close(self) -> None:
        """Let go of the log; an append that is open has never been. Harmless when done twice."""
        self._open = None
        if self._index >= 0:
            os.close(self._index)
            self._index = -1
        self._blocks.close()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._index < 0 or not self._blocks.held:
            raise Closed(what=f"the writer of event log {self.path}")
        if self._halted:
            raise LogHalted(path=str(self.path))

    def _commit(self, table: pa.Table) -> range:
        """Make a table visible: segment, then its range. A failure before the index leaves the log as it was."""
        data = to_parquet(table)
        first = self.tail
        self._clear(first)
        name = f"{_folder(first)}/{uuid.uuid4().hex}.parquet"
        path = self.path / name
        with files.failing_as("append to", str(self.path)):
            files.make_folder(path.parent)
            files.replace_durably(path, data, name)
        segment = Segment(name, first, table.num_rows, len(data), hashlib.sha256(data).digest())
        return self._record(Committed(first, table.num_rows, (segment,)))

    def _record(self, range_: Range) -> range:
        """1. Append the record to the index and sync it.  2. Make it count by the head, synced.

        Whatever fails here halts the writer: only the head on disk knows whether the range counts.
        """
        record, head = encode(range_, self._head)
        self._halted = True
        with files.failing_as("append to", str(self.path), unknown=True):
            os.lseek(self._index, self._head.length, os.SEEK_SET)
            files.write_all(self._index, record)  # 1
            os.fdatasync(self._index)
        try:
            self._found = write_head(self._blocks, head, self._found)  # 2
        except Exception as error:
            raise OutcomeUnknown(action="append to", key=str(self.path), why=str(error)) from error
        self._head = head
        self._halted = False
        return range(range_.first, range_.first + range_.count)

    def _clear(self, first: int) -> None:
        """Remove what an append that failed or crashed has left in the folder of these sequences.

        Nobody has seen it; but those who read a log's folders with Parquet alone must not find it beside what counts.
        """
        with files.failing_as("append to", str(self.path)), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path / _folder(first))

    def _drop_undecided(self) -> None:
        """Cut off what an append that crashed has left behind the head: nobody has seen it.

        A crash leaves one record at most. Several whole ones were counted once, so it is the head that went back.
        """
        behind = os.pread(self._index, _MANY, self._head.length)
        whole = 0
        with contextlib.suppress(RangeDamaged):
            for _ in decode(behind, self._head):
                whole += 1
        if whole > 1:
            why = f"it counts {self._head.records} records, and {whole} more follow them whole"
            raise LogCorrupt(path=str(self.path), part=HEAD, why=why)
        if behind:
            _cut_durably(self.path / INDEX, self._head.length)


def _cut_durably(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        os.ftruncate(file.fileno(), length)
        os.fsync(file.fileno())


def _folder(first: int) -> str:
    return f"{SEGMENTS}/first={first:020}"


class Append:
    """An append under way. In `with`, the end of the block commits it and an exception aborts it."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._tables: list[pa.Table] = []
        self.sequences = range(writer.tail, writer.tail)

    def add(self, events: Iterable[NewEvent] | pa.Table | pa.RecordBatch) -> None:
        """Add events behind those that were added before; nobody sees them yet."""
        self._require_open()
        table = to_table(events, self._writer._schema)
        if table.num_rows:
            self._tables.append(table)

    def commit(self) -> range:
        """Make all events visible at once and return their sequences. Without events there is nothing to record."""
        self._require_open()
        self._writer._check()
        self._writer._open = None
        if self._tables:
            self.sequences = self._writer._commit(joined(self._tables))
        return self.sequences

    def abort(self, why: str = "aborted") -> range:
        """Give the append up and leave its sequences cancelled."""
        self._require_open()
        self._writer._check()
        self._writer._open = None
        count = sum(table.num_rows for table in self._tables)
        if count:
            self.sequences = self._writer.cancel(count, why)
        return self.sequences

    def _require_open(self) -> None:
        if self._writer._open is not self:
            raise Closed(what=f"this append to event log {self._writer.path}")

    def __enter__(self) -> Append:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer._open is not self:
            return  # ended inside the block
        if error is None:
            self.commit()
        else:
            self.abort(in_words(error))


def repair(path: str | os.PathLike[str]) -> Repaired:
    """Rebuild a head of which one slot is damaged from the index, which proves itself record by record.

    Records that the sound slot does not count are regained where they and their segments are whole: the damaged slot
    may have counted them. What follows them is cut off. With both slots damaged nothing tells how many records there
    were, and the log stays refused.
    """
    folder = local_path("event log", path)
    about = read_about(folder)
    schema = read_schema(about, folder)
    with FileBlocks.open(folder / HEAD) as blocks:
        found = find_head(blocks, folder)
        counted = head_in(found, folder)
        with files.failing_as("read", INDEX):
            data = (folder / INDEX).read_bytes()
        head = Head.first(about.uid)
        with contextlib.suppress(RangeDamaged):
            for range_, behind in decode(data, head):
                if behind.records > counted.records and not _is_whole(folder, range_, schema):
                    break
                head = behind
        if head.records < counted.records:
            raise LogCorrupt(path=str(folder), part=INDEX, why=f"{head.records} of {counted.records} records are whole")
        write_head(blocks, head, write_head(blocks, head, found))
        with files.failing_as("repair", str(folder), unknown=True):
            _cut_durably(folder / INDEX, head.length)
    return Repaired(head.records, head.records - counted.records, len(data) - head.length)


def _is_whole(folder: Path, range_: Range, schema: pa.Schema) -> bool:
    try:
        for segment in range_.segments if isinstance(range_, Committed) else ():
            read_segment(folder, segment, schema)
    except LogCorrupt:
        return False
    return True
