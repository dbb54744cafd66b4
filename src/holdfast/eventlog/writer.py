"""Writing to an event log: atomic appends, aborts that leave a cancelled range, and the repair of a torn head.

Rules:
- An append is one record: all of its events become visible, or none. The steps are segment, index, head, each synced
  before the next; the head's write is the moment.
- An aborted append leaves a cancelled range. One that a crash cut off has never been: what lies behind the head is
  dropped when the next writer opens the log, and its sequences are given again. Nobody has seen them.
- An append makes the folder of its first sequence durable before it makes another one. So where there is no folder at
  the tail, no append has left any behind it, and opening a log or appending to it lists none.
- One process writes at a time: opening a writer takes an OS lock. Its threads may share the writer: a lock in it lets
  one append run at a time. A failure from the index on halts the writer until the log is opened again.
- An append whose object is gone cannot be ended by its caller. It is aborted when the next append begins.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._validation import checked_positive, checked_type
from holdfast.epoch import Reach, unwatched
from holdfast.errors import (
    AppendOpen,
    Closed,
    LogCorrupt,
    LogHalted,
    OutcomeUnknown,
    StorageFailed,
    describe_error,
    readable,
)
from holdfast.eventlog._files import (
    HEAD,
    INDEX,
    SEGMENTS,
    find_head,
    head_in,
    read_about,
    read_head,
    read_schema,
    read_segment,
    require_head,
    sync_head,
    write_head,
)
from holdfast.eventlog.index import CHAIN, Cancelled, Committed, IndexHead, Range, RangeDamaged, Segment, decode, encode
from holdfast.eventlog.segment import NewEvent, joined, to_parquet, to_table
from holdfast.repository import FileBlocks, files
from holdfast.repository.files import local_path

if TYPE_CHECKING:
    import pyarrow as pa

_REASON_LENGTH = 1000
_FOLDER = re.compile(r"first=\d{20}")
_DROPPED = "dropped without commit or abort"


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A file of events that lies ready to become a segment: where it is, its rows, its size and its SHA-256."""

    path: Path
    count: int
    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Repaired:
    """What `repair` did: how many records stand now, how many of them the head had lost, what was dropped behind."""

    records: int
    regained: int
    dropped_bytes: int


@dataclass(slots=True)
class _Open:
    """The append that is open. Only its caller keeps the object alive; the writer must know when it is gone."""

    append: weakref.ref[Append]
    rows: int = 0


class LogWriter:
    """The one writer of a log. Close it, or use it in `with`.

    Threads may share a writer: calls of `append`, `cancel`, `adopt` and `close` wait for one another. While an append
    of several steps is open, every other append raises `AppendOpen`, in all threads. Processes may not share a writer:
    opening a second one raises `Locked`, and a forked child that uses its parent's gets `Closed`.

    Not guaranteed: an order among the appends of different threads.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path = local_path("event log", path)
        self._schema = read_schema(read_about(path), path)
        read_head(path)  # a damaged one is said to be so before anything else is
        self._blocks = FileBlocks.open(path / HEAD, f"the writer's place at event log {path}")
        self._lock = threading.Lock()
        self._halted = False
        self._open: _Open | None = None
        self._index = -1
        try:
            sync_head(path)  # its writer may have been killed before it did; what follows is built on it
            self._head = read_head(path)
            self._found = find_head(self._blocks, path)
            self._drop_undecided()
            with files.failing_as("open", str(path)):
                files.sweep_temporaries(path)
                self._index = os.open(path / INDEX, os.O_RDWR | os.O_CLOEXEC)
        except BaseException:
            self.close()
            raise

    @property
    def tail(self) -> int:
        """The next sequence that will be given."""
        return self._head.tail

    def append(self, events: Iterable[NewEvent] | pa.Table | pa.RecordBatch) -> range:
        """Append events atomically and return their sequences; durable and visible on return."""
        self._require_held()
        table = to_table(events, self._schema)
        with self._alone():
            self._require_no_append()
            return self._commit(table) if table.num_rows else range(self.tail, self.tail)

    def begin(self) -> Append:
        """Begin an append of several steps: `add`, then `commit` or `abort`. One at a time.

        An append that is dropped without either is aborted when the next one begins. If the writer is closed before
        that, its events are dropped and leave no cancelled range.
        """
        with self._alone():
            self._require_no_append()
            append = Append(self)
            self._open = _Open(weakref.ref(append))
            return append

    def cancel(self, count: int, why: str) -> range:
        """Record a range of sequences as cancelled, as an aborted append does."""
        with self._alone():
            self._require_no_append()
            return self._cancel(checked_positive("count", count), _reason(why))

    def _cancel(self, count: int, why: str) -> range:
        cancelled = Cancelled(self.tail, count, why)
        self._clear()
        return self._record(cancelled)

    def adopt(self, staged: Iterable[StagedSegment], key: str, reach: Reach = unwatched) -> range:
        """Append files as they are, in one record under `key`, and return their sequences.

        1. Link each file into the folder of its first sequence.  2. Make the names durable.  3. Record the range.

        Not checked here: that the files are durable and hold what is said of them, and that no append has this key.
        """
        with self._alone():
            self._require_no_append()
            return self._adopt(staged, key, reach)

    def _adopt(self, staged: Iterable[StagedSegment], key: str, reach: Reach) -> range:
        segments: list[Segment] = []
        at = first = self.tail
        self._clear()
        with files.failing_as("append to", str(self.path)):
            for each in staged:
                name = f"{_folder(at)}/{each.path.name}"
                self._link(each.path, self.path / name, durably=at == first)  # 1
                segments.append(Segment(name, at, checked_positive("count", each.count), each.size, each.sha256))
                at += each.count
            if not segments:
                return range(first, first)
            files.sync_all([*[(self.path / each.path).parent for each in segments], self.path / SEGMENTS])  # 2
        reach("committing")
        return self._record(Committed(first, at - first, tuple(segments), checked_type("key", key, str)))  # 3

    def _link(self, source: Path, target: Path, *, durably: bool) -> None:
        if durably:
            files.make_folder(target.parent)
        else:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(target.parent)  # of a log that was copied while it was written to, say
            target.parent.mkdir()
        files.link_or_copy(source, target)

    def close(self) -> None:
        """Release the log after the append that is running, if any. Events of an append that is open are dropped.

        Closing twice is harmless.
        """
        # In a forked child the lock may stay held forever: the thread that holds it exists only in the parent.
        with self._lock if self._blocks.held else contextlib.nullcontext():
            self._open = None
            if self._index >= 0:
                os.close(self._index)
                self._index = -1
            self._blocks.close()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_held(self) -> None:
        if self._index < 0 or not self._blocks.held:
            raise Closed(what=f"the writer of event log {self.path}")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of a writer that can append. A forked child is refused first: it might wait forever."""
        self._require_held()
        with self._lock:
            self._require_held()
            if self._halted:
                raise LogHalted(path=str(self.path))
            yield

    def _require_no_append(self) -> None:
        """Raise `AppendOpen` if an append is open. If its object is gone, abort it."""
        if self._open is None:
            return
        if self._open.append() is not None:
            raise AppendOpen(path=str(self.path))
        rows, self._open = self._open.rows, None
        if rows:
            self._cancel(rows, _DROPPED)

    def _commit(self, table: pa.Table) -> range:
        """Make a table visible: segment, then its range. A failure before the index leaves the log as it was."""
        data = to_parquet(table)
        first = self.tail
        self._clear()
        name = f"{_folder(first)}/{uuid.uuid4().hex}.parquet"
        path = self.path / name
        try:
            with files.failing_as("append to", str(self.path)):
                files.make_folder(path.parent)
                files.replace_durably(path, data, name)
        except OutcomeUnknown as error:  # of the segment, which no record names yet: the log is as it was
            raise StorageFailed(action="append to", key=str(self.path), why=error.why) from error
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

    def _clear(self) -> None:
        """Remove what an append that failed or crashed has left at the tail and behind it, the first folder last.

        Nobody has seen it; but those who read a log's folders with Parquet alone must not find it beside what counts.
        """
        first = self.path / _folder(self.tail)
        with files.failing_as("append to", str(self.path)):
            if not first.exists():
                return
            for folder in first.parent.iterdir():
                if _FOLDER.fullmatch(folder.name) and folder.name > first.name:
                    shutil.rmtree(folder)
            files.sync_folder(first.parent)
            shutil.rmtree(first)

    def _drop_undecided(self) -> None:
        """Cut off what an append that crashed has left behind the head: nobody has seen it.

        A crash leaves one record at most. Several whole ones were counted once, so it is the head that went back. And
        what the head does count must be there: nothing is written behind an index that was cut. Its last chain stands
        for all of it, so no more than that is read.
        """
        length = self._head.length
        last, behind = _end_of_index(self.path, length)
        if length and last != self._head.chain:
            raise LogCorrupt(path=str(self.path), part=INDEX, why="it does not end with what its head counts")
        whole = 0
        with contextlib.suppress(RangeDamaged):
            for _ in decode(behind, self._head):
                whole += 1
        if whole > 1:
            why = f"it counts {self._head.records} records, and {whole} more follow them whole"
            raise LogCorrupt(path=str(self.path), part=HEAD, why=why)
        if behind:
            with files.failing_as("open", str(self.path)):
                _cut_durably(self.path / INDEX, length)


def _reason(why: object) -> str:
    return readable(checked_type("reason", why, str))[:_REASON_LENGTH]


def _cut_durably(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        os.ftruncate(file.fileno(), length)
        os.fsync(file.fileno())


def _folder(first: int) -> str:
    return f"{SEGMENTS}/first={first:020}"


class Append:
    """An append in progress. In `with`, the end of the block commits it and an exception aborts it.

    One that is dropped without `commit` or `abort` is aborted when the writer's next append begins.
    """

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._ended = False
        self._tables: list[pa.Table] = []
        tail = writer.tail
        self.sequences = range(tail, tail)

    def add(self, events: Iterable[NewEvent] | pa.Table | pa.RecordBatch) -> None:
        """Add events after those that were added before. No reader sees them yet."""
        self._require_open()
        table = to_table(events, self._writer._schema)
        with self._writer._lock:
            open_ = self._require_open()
            if table.num_rows:
                self._tables.append(table)
                open_.rows += table.num_rows

    def commit(self) -> range:
        """Make all events visible at once and return their sequences. Without events there is nothing to record."""
        with self._ending():
            if self._tables:
                self.sequences = self._writer._commit(joined(self._tables))
        return self.sequences

    def abort(self, why: str = "aborted") -> range:
        """Give the append up and leave its sequences cancelled."""
        why = _reason(why)
        with self._ending():
            count = sum(table.num_rows for table in self._tables)
            if count:
                self.sequences = self._writer._cancel(count, why)
        return self.sequences

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Hold the writer's lock while the append ends. It is no longer open then, even if this fails."""
        self._require_open()
        with self._writer._alone():
            self._require_open()
            self._writer._open = None
            self._ended = True
            yield

    def _require_open(self) -> _Open:
        open_ = self._writer._open
        if open_ is not None and open_.append() is self:
            return open_
        raise Closed(what=f"this append to event log {self._writer.path}", do="begin another with writer.begin()")

    def __enter__(self) -> Append:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._ended:
            return  # inside the block
        if error is None:
            self.commit()
        else:
            with contextlib.suppress(Closed, LogHalted):  # nothing to leave a range in; the caller's error matters
                self.abort(describe_error(error))


def repair(path: str | os.PathLike[str]) -> Repaired:
    """Rebuild a head of which one slot is damaged from the index, which proves itself record by record.

    Whole records that the sound slot does not count are regained: the damaged slot may have counted them. One whose
    segment is damaged or missing is therefore refused, by the segment's name. What follows the last whole record is cut
    off. With both slots damaged nothing tells how many records there were, and the log stays refused.
    """
    folder = local_path("event log", path)
    about = read_about(folder)
    schema = read_schema(about, folder)
    require_head(folder)
    with FileBlocks.open(folder / HEAD) as blocks:
        found = find_head(blocks, folder)
        counted = head_in(found, folder)
        data = _index_bytes(folder)
        head = IndexHead.first(about.uid)
        with contextlib.suppress(RangeDamaged):
            for range_, behind in decode(data, head):
                head = behind
                if head.records > counted.records and isinstance(range_, Committed):
                    for segment in range_.segments:
                        read_segment(folder, segment, schema)
        if head.records < counted.records:
            raise LogCorrupt(path=str(folder), part=INDEX, why=f"{head.records} of {counted.records} records are whole")
        write_head(blocks, head, write_head(blocks, head, found))
        with files.failing_as("repair", str(folder), unknown=True):
            _cut_durably(folder / INDEX, head.length)
    return Repaired(head.records, head.records - counted.records, len(data) - head.length)


def _end_of_index(folder: Path, length: int) -> tuple[bytes, bytes]:
    """Return the last chain before `length`, and everything behind."""
    data = _index_bytes(folder, max(length - CHAIN, 0))
    return data[: min(length, CHAIN)], data[CHAIN if length else 0 :]


def _index_bytes(folder: Path, start: int = 0) -> bytes:
    with files.failing_as("read", str(folder / INDEX)):
        try:
            with (folder / INDEX).open("rb") as reader:
                reader.seek(start)
                return reader.read()
        except FileNotFoundError:
            raise LogCorrupt(path=str(folder), part=INDEX, why="it is missing") from None
