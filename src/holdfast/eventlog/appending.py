"""Appending to an event log, wherever it is kept: one append at a time, and what becomes of one that is given up.

Rules:
- An append is one record: all of its events become visible, or none. An aborted append leaves a cancelled range.
- Threads may share a writer: an internal lock lets one append run at a time.
- An append whose object was garbage-collected cannot be ended by its caller. It is aborted when the next one starts.
- A writer whose last append has an unknown outcome is halted: the log must be opened again.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from holdfast._validation import checked_positive, checked_type
from holdfast.epoch import Reach, unwatched
from holdfast.errors import AppendOpen, Closed, LogHalted, describe_error, readable
from holdfast.eventlog.segment import NewEvent, joined, to_table

if TYPE_CHECKING:
    import pyarrow as pa

_REASON_LENGTH = 1000
_DROPPED = "dropped without commit or abort"


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A file of events that is ready to become a segment: on a store, its path inside the log."""

    path: Path
    count: int  # the number of events
    size: int
    sha256: bytes


Bounds: TypeAlias = tuple[int, int]
"""A range as first sequence and count."""

AdoptPlan: TypeAlias = Callable[[], Sequence[StagedSegment] | None]
"""What to append to the log as it is now; `None` if there is nothing to do. It may be called more than once."""

RangePlan: TypeAlias = Callable[[], tuple[Iterable[Bounds], Iterable[Bounds]] | None]
"""Which ranges to abandon and which to restore in the log as it is now; `None` if there is nothing to do."""


@dataclass(slots=True)
class _Open:
    """The open append. The weak reference shows the writer when the caller has dropped the object."""

    append: weakref.ref[Append]
    rows: int = 0


class Appender(ABC):
    """Writes to a log. Close it, or use it as a context manager.

    While an append of several steps is open, every other append raises `AppendOpen`, in all threads. Processes may not
    share a writer: using the parent's writer in a forked child raises `Closed`.

    Not guaranteed: an order among the appends of different threads.
    """

    def __init__(self, where: str, schema: pa.Schema) -> None:
        self._where = where  # the log, for errors
        self._schema = schema
        self._lock = threading.Lock()
        self._halted = False
        self._open: _Open | None = None

    @property
    @abstractmethod
    def tail(self) -> int:
        """The next sequence that will be assigned, as far as this writer knows."""

    @property
    @abstractmethod
    def _held(self) -> bool:
        """Whether this writer is open, and belongs to this process."""

    @abstractmethod
    def _commit(self, table: pa.Table) -> range:
        """Make a table visible. A failure before the record is written leaves the log unchanged."""

    @abstractmethod
    def _cancel(self, count: int, why: str) -> range:
        """Record a cancelled range."""

    @abstractmethod
    def _adopt(self, plan: AdoptPlan, key: str, reach: Reach, mark: str) -> range | None:
        """Record staged files under a key."""

    @abstractmethod
    def _rewind(self, key: str, plan: RangePlan, mark: str) -> int | None:
        """Record a rewind."""

    @abstractmethod
    def _release(self) -> None:
        """Release the log; idempotent."""

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

    def rewind(self, key: str, abandoned: Iterable[Bounds], restored: Iterable[Bounds] = ()) -> int:
        """Record that readers must skip some committed ranges, or read them again; return the sequence of the record.

        The ranges are given as first sequence and count. Their segments stay where they are.
        """
        ranges = tuple(abandoned), tuple(restored)
        found = self.rewind_as(key, lambda: ranges)
        if found is None:
            raise AssertionError(key)  # this plan always has something to do
        return found

    def rewind_as(self, key: str, plan: RangePlan, mark: str = "") -> int | None:
        """Record a rewind by a plan that is made when no other writer can append in between; `None`: nothing to do.

        The newest key under each `mark` can be found without reading the whole index.
        """
        checked_type("key", key, str)
        with self._alone():
            self._require_no_append()
            return self._rewind(key, plan, mark)

    def adopt(self, staged: Iterable[StagedSegment], key: str, reach: Reach = unwatched) -> range:
        """Append files as they are, in one record under `key`, and return their sequences.

        Not checked here: that the files are durable and match their descriptions, and that the key is unique.
        """
        segments = list(staged)
        found = self.adopt_as(lambda: segments, key, reach)
        return range(self.tail, self.tail) if found is None else found

    def adopt_as(self, plan: AdoptPlan, key: str, reach: Reach = unwatched, mark: str = "") -> range | None:
        """Do the same by a plan that is made when no other writer can append in between; `None`: nothing to do."""
        checked_type("key", key, str)
        with self._alone():
            self._require_no_append()
            return self._adopt(plan, key, reach, mark)

    def close(self) -> None:
        """Release the log after the running append, if any. The events of an open append are dropped.

        Closing twice is harmless.
        """
        # In a forked child the lock may stay held forever: the thread that holds it exists only in the parent.
        with self._lock if self._held else contextlib.nullcontext():
            self._open = None
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_held(self) -> None:
        if not self._held:
            raise Closed(what=f"the writer of event log {self._where}")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of a writer that can append. In a forked child, raise first: it might wait forever."""
        self._require_held()
        with self._lock:
            self._require_held()
            if self._halted:
                raise LogHalted(path=self._where)
            yield

    def _require_no_append(self) -> None:
        """Raise `AppendOpen` if an append is open. If its object was dropped, abort it."""
        if self._open is None:
            return
        if self._open.append() is not None:
            raise AppendOpen(path=self._where)
        rows, self._open = self._open.rows, None
        if rows:
            self._cancel(rows, _DROPPED)


def _reason(why: object) -> str:
    return readable(checked_type("reason", why, str))[:_REASON_LENGTH]


class Append:
    """An append in progress. As a context manager, it commits at the end of the block and aborts on an exception.

    An append that is dropped without `commit` or `abort` is aborted when the writer's next append starts.
    """

    def __init__(self, writer: Appender) -> None:
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
        raise Closed(what=f"this append to event log {self._writer._where}", do="begin another with writer.begin()")

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
