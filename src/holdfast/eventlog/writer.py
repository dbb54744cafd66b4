"""Writing to an event log: atomic appends, and aborts that leave a cancelled range.

Rules:
- An append is one record: all of its events become visible, or none. The steps are segment, index, head, each synced
  before the next; writing the head commits the append.
- An aborted append leaves a cancelled range. An append that a crash interrupted leaves none: the next writer that opens
  the log drops everything after the head, which no reader has seen, and assigns its sequences again.
- An append makes the folder of its first sequence durable before it creates another one. So if there is no folder at
  the tail, there are no leftovers after it, and neither opening a log nor appending has to list the folders.
- A log is never cut: a rewind is a record that names the ranges that readers must skip from then on.
- One process writes at a time: opening a writer takes an OS lock. Its threads may share the writer: an internal lock
  lets one append run at a time. A failure from the index step on halts the writer until the log is opened again.
- An append whose object was garbage-collected cannot be ended by its caller. It is aborted when the next one starts.
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

import msgspec

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
    index_bytes,
    mark_rewound,
    read_about,
    read_head,
    read_schema,
    read_stored,
    sync_head,
    truncate_durably,
    write_head,
)
from holdfast.eventlog.index import CHAIN, Cancelled, Committed, Range, RangeDamaged, Rewound, Segment, decode, encode
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
    """A file of events that is ready to become a segment."""

    path: Path
    count: int  # the number of events
    size: int
    sha256: bytes


@dataclass(slots=True)
class _Open:
    """The open append. The weak reference shows the writer when the caller has dropped the object."""

    append: weakref.ref[Append]
    rows: int = 0


class LogWriter:
    """The only writer of a log. Close it, or use it as a context manager.

    Threads may share a writer: calls of `append`, `cancel`, `adopt` and `close` wait for one another. While an append
    of several steps is open, every other append raises `AppendOpen`, in all threads. Processes may not share a writer:
    opening a second one raises `Locked`, and using the parent's writer in a forked child raises `Closed`.

    Not guaranteed: an order among the appends of different threads.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path = local_path("event log", path)
        self._schema = read_schema(read_about(path), path)
        read_head(path)  # report a damaged head before any other problem
        self._blocks = FileBlocks.open(path / HEAD, f"the writer lock of event log {path}")
        self._lock = threading.Lock()
        self._halted = False
        self._open: _Open | None = None
        self._index = -1
        try:
            sync_head(path)  # the previous writer may have been killed before it synced the head
            self._stored = read_stored(path)
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
        """The next sequence that will be assigned."""
        return self._stored.tail

    def append(self, events: Iterable[NewEvent] | pa.Table | pa.RecordBatch) -> range:
        """Append events atomically and return their sequences; durable and visible on return."""
        self._require_held()
        table = to_table(events, self._schema)
        with self._alone():
            self._require_no_append()
            return self._commit(table) if table.num_rows else range(self.tail, self.tail)

    def begin(self) -> Append:
        """Start an append of several steps: `add`, then `commit` or `abort`. One at a time.

        An append that is dropped without either is aborted when the next one starts. If the writer is closed before
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

    def rewind(self, key: str, abandoned: Iterable[tuple[int, int]], restored: Iterable[tuple[int, int]] = ()) -> int:
        """Record that readers must skip some committed ranges, or read them again; return the sequence of the record.

        The ranges are given as first sequence and count. Their segments stay where they are.

        1. Make `log.json` version 2, so that programs that do not know such records refuse the log.  2. Record it.
        """
        record = Rewound(self.tail, 1, checked_type("key", key, str), tuple(abandoned), tuple(restored))
        with self._alone():
            self._require_no_append()
            self._clear()
            mark_rewound(self.path)  # 1
            return self._record(msgspec.structs.replace(record, first=self.tail)).start  # 2

    def _cancel(self, count: int, why: str) -> range:
        cancelled = Cancelled(self.tail, count, why)
        self._clear()
        return self._record(cancelled)

    def adopt(self, staged: Iterable[StagedSegment], key: str, reach: Reach = unwatched) -> range:
        """Append files as they are, in one record under `key`, and return their sequences.

        1. Link each file into the folder of its first sequence.  2. Make the names durable.  3. Record the range.

        Not checked here: that the files are durable and match their descriptions, and that the key is unique.
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
                shutil.rmtree(target.parent)  # for example, of a log that was copied while it was being written
            target.parent.mkdir()
        files.link_or_copy(source, target)

    def close(self) -> None:
        """Release the log after the running append, if any. The events of an open append are dropped.

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
        """Hold the lock of a writer that can append. In a forked child, raise first: it might wait forever."""
        self._require_held()
        with self._lock:
            self._require_held()
            if self._halted:
                raise LogHalted(path=str(self.path))
            yield

    def _require_no_append(self) -> None:
        """Raise `AppendOpen` if an append is open. If its object was dropped, abort it."""
        if self._open is None:
            return
        if self._open.append() is not None:
            raise AppendOpen(path=str(self.path))
        rows, self._open = self._open.rows, None
        if rows:
            self._cancel(rows, _DROPPED)

    def _commit(self, table: pa.Table) -> range:
        """Make a table visible: segment, then its range. A failure before the index step leaves the log unchanged."""
        data = to_parquet(table)
        first = self.tail
        self._clear()
        name = f"{_folder(first)}/{uuid.uuid4().hex}.parquet"
        path = self.path / name
        try:
            with files.failing_as("append to", str(self.path)):
                files.make_folder(path.parent)
                files.replace_durably(path, data, name)
        except OutcomeUnknown as error:  # only the segment is unknown; no record refers to it, so the log is unchanged
            raise StorageFailed(action="append to", key=str(self.path), why=error.why) from error
        segment = Segment(name, first, table.num_rows, len(data), hashlib.sha256(data).digest())
        return self._record(Committed(first, table.num_rows, (segment,)))

    def _record(self, range_: Range) -> range:
        """1. Append the record to the index and sync it.  2. Commit it by writing the head, synced.

        A failure here halts the writer: only the head on disk shows whether the range is committed.
        """
        record, after = encode(range_, self._stored.head)
        head = self._stored.followed_by(after)
        self._halted = True
        with files.failing_as("append to", str(self.path), unknown=True):
            os.lseek(self._index, self._stored.length, os.SEEK_SET)
            files.write_all(self._index, record)  # 1
            os.fdatasync(self._index)
        try:
            self._found = write_head(self._blocks, head, self._found)  # 2
        except Exception as error:
            raise OutcomeUnknown(action="append to", key=str(self.path), why=str(error)) from error
        self._stored = head
        self._halted = False
        return range(range_.first, range_.first + range_.count)

    def _clear(self) -> None:
        """Remove the leftovers of a failed or interrupted append at the tail and after it, the first folder last.

        They were never visible in the log, but a program that reads the folders as plain Parquet would see them.
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
        """Truncate the record that a crashed append left after the head; no reader has seen it.

        A crash leaves at most one record. Several complete ones were once committed, so the head is outdated. The
        records that the head counts must exist, so that nothing is appended to a truncated index. The last chain is a
        digest of all of them, so only the chain is read.
        """
        head = self._stored.head
        last, rest = _end_of_index(self.path, head.length)
        if head.length and last != head.chain:
            raise LogCorrupt(path=str(self.path), part=INDEX, why="it does not end with the last record of its head")
        complete = 0
        with contextlib.suppress(RangeDamaged):
            for _ in decode(rest, head):
                complete += 1
        if complete > 1:
            why = f"it counts {head.records} records, but {complete} more complete records follow"
            raise LogCorrupt(path=str(self.path), part=HEAD, why=why)
        if rest:
            with files.failing_as("open", str(self.path)):
                truncate_durably(self.path / INDEX, head.length)


def _reason(why: object) -> str:
    return readable(checked_type("reason", why, str))[:_REASON_LENGTH]


def _folder(first: int) -> str:
    return f"{SEGMENTS}/first={first:020}"


class Append:
    """An append in progress. As a context manager, it commits at the end of the block and aborts on an exception.

    An append that is dropped without `commit` or `abort` is aborted when the writer's next append starts.
    """

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._ended = False
        self._tables: list[pa.Table] = []
        tail = writer.tail
        self.sequences = range(tail, tail)

    def add(self, events: Iterable[NewEvent] | pa.Table | pa.RecordBatch) -> None:
        """Add events after those added before. No reader sees them yet."""
        self._require_open()
        table = to_table(events, self._writer._schema)
        with self._writer._lock:
            open_ = self._require_open()
            if table.num_rows:
                self._tables.append(table)
                open_.rows += table.num_rows

    def commit(self) -> range:
        """Make all events visible atomically and return their sequences. Without events, nothing is recorded."""
        with self._ending():
            if self._tables:
                self.sequences = self._writer._commit(joined(self._tables))
        return self.sequences

    def abort(self, why: str = "aborted") -> range:
        """Abort the append and record its sequences as cancelled."""
        why = _reason(why)
        with self._ending():
            count = sum(table.num_rows for table in self._tables)
            if count:
                self.sequences = self._writer._cancel(count, why)
        return self.sequences

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Hold the writer's lock while the append ends. The append is closed even if this fails."""
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
            return  # the caller committed or aborted inside the block
        if error is None:
            self.commit()
        else:
            with contextlib.suppress(Closed, LogHalted):  # no range can be recorded; keep the caller's error
                self.abort(describe_error(error))


def _end_of_index(folder: Path, length: int) -> tuple[bytes, bytes]:
    """Return the last chain before byte `length`, and the bytes after it."""
    data = index_bytes(folder, max(length - CHAIN, 0))
    return data[: min(length, CHAIN)], data[CHAIN if length else 0 :]
