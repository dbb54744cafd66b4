"""Cursors: read positions in an event log, optionally durable.

Rules:
- A poll returns visible events strictly after the position, in order. `started` distinguishes "no event delivered yet"
  from "at sequence 0".
- `commit` saves the position; `rollback` returns to the last committed one. The commit of a durable cursor is on disk
  when it returns, and the committed position never moves backwards, except by a reset (`_cursor_reset`).
- A durable cursor has at most one live owner: opening it takes a lock.
- Opening a cursor raises a specific error if it was saved for another region or another log, is past the end of its
  log, is in a history that its log no longer contains, or is damaged.
- If a rewind takes back events that the cursor has delivered, opening or polling it raises `LogRewound`. Events that it
  has not delivered are skipped, and delivered after all if the rewind is undone.

The file format is described in `_cursor_file`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast._validation import checked_name, checked_positive, checked_type
from holdfast.errors import (
    BadValue,
    Closed,
    CursorAhead,
    CursorDiverged,
    CursorLogMismatch,
    CursorRegionMismatch,
    LogRewound,
)
from holdfast.eventlog._cursor_file import CursorRecord, cursor_key, lock_key, read_cursor
from holdfast.eventlog.log import EventLog
from holdfast.eventlog.region import Region
from holdfast.eventlog.segment import LogEvent
from holdfast.repository import Repository
from holdfast.repository.base import checked_repository, on_this_machine


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences without events between the expected and the delivered one, as half-open ranges.

    They were cancelled, or taken back by a rewind.
    """

    expected: int  # the next sequence, if none had been cancelled
    delivered: int  # the sequence that was delivered
    cancelled: tuple[tuple[int, int], ...]  # first sequence, and the sequence after the last


class Cursor:
    """Reads a region of a log from its beginning; the position lives only in this object. Not thread-safe.

    `gap_buffer` is the number of newest gaps that are kept for `take_gaps`; older ones are dropped and counted.
    """

    def __init__(self, log: EventLog, region: Region, *, gap_buffer: int = 0) -> None:
        checked_type("log", log, EventLog).check_region(checked_type("region", region, Region))
        if isinstance(gap_buffer, bool) or not isinstance(gap_buffer, int) or gap_buffer < 0:
            raise BadValue(what="gap buffer", value=gap_buffer, expected="an integer of at least 0")
        self.log = log
        self.region = region
        self.dropped_gaps = 0
        self._gaps: deque[Gap] = deque(maxlen=gap_buffer)
        self._settled: tuple[tuple[Gap, ...], int] = ((), 0)  # gaps and drops as of the last commit
        self._position: int | None = None
        self._committed: int | None = None
        self._events: Iterator[LogEvent] = iter(())
        self._scanned = 0  # all sequences before it have been scanned
        self._reading_to = 0  # the value of `_scanned` when `_events` is exhausted
        self._rewinds = log.rewinds  # of the log, when they were last compared with the position

    @property
    def started(self) -> bool:
        """Whether any event has been delivered."""
        return self._position is not None

    @property
    def position(self) -> int | None:
        """The sequence of the last event delivered, or `None`."""
        return self._position

    @property
    def committed(self) -> int | None:
        """The position that `rollback` returns to, or `None` for the beginning."""
        return self._committed

    def poll(self) -> LogEvent | None:
        """Return the next event, or `None` if there is none."""
        batch = self.poll_batch(1)
        return batch[0] if batch else None

    def poll_batch(self, limit: int) -> list[LogEvent]:
        """Return up to `limit` next events."""
        checked_positive("limit", limit)
        before, gaps = self._position, (self.gaps, self.dropped_gaps)
        try:
            return self._poll(limit)
        except LogRewound:
            self._go_to(before, gaps)
            if self.log.changed_before(self._scanned) is not None:
                raise
            return self._poll(limit)  # only events that were read but not returned have changed
        except BaseException:
            self._go_to(before, gaps)  # events that were read but not returned must be delivered again
            raise

    def _poll(self, limit: int) -> list[LogEvent]:
        batch: list[LogEvent] = []
        looked = False
        while len(batch) < limit:
            event = next(self._events, None)
            if event is not None:
                self._note_gap(event.sequence)
                self._position = event.sequence
                batch.append(event)
                continue
            self._scanned = self._reading_to  # exhausted, not interrupted
            if looked:
                break
            looked = True  # look once for events that were appended since
            self._events = self.log.read(self.region, self._scanned)
            while self._is_rewound():
                self._events = self.log.read(self.region, self._scanned)
            self._reading_to = self.log.tail
        return batch

    def _is_rewound(self) -> bool:
        """Whether to look again from the position on, because of a rewind or its undo since the last look.

        Raise if events up to the position have changed.
        """
        if self.log.rewinds == self._rewinds:
            return False
        after = 0 if self._position is None else self._position + 1
        changed = self.log.changed_before(after)
        if changed is not None:
            raise self._rewound(changed)
        self._scanned = self._reading_to = after  # events that were skipped may be restored
        self._rewinds = self.log.rewinds
        return True

    def _rewound(self, changed: int) -> LogRewound:
        return LogRewound(path=str(self.log.path), reader="a cursor", position=self._position or 0, changed=changed)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The kept gaps that were not taken yet."""
        return tuple(self._gaps)

    def take_gaps(self) -> list[Gap]:
        """Return the gaps that were kept since the last call, and remove them."""
        gaps = list(self._gaps)
        self._gaps.clear()
        self._settled = ((), self._settled[1])
        return gaps

    def commit(self) -> None:
        """Commit the position: `rollback` returns to it."""
        self._committed = self._position
        self._settled = (self.gaps, self.dropped_gaps)

    def rollback(self) -> None:
        """Return to the last committed position. Gaps after it will be reported again."""
        self._go_to(self._committed, self._settled)

    def _go_to(self, position: int | None, gaps: tuple[tuple[Gap, ...], int]) -> None:
        self._position = position
        self._scanned = self._reading_to = 0 if position is None else position + 1
        self._events = iter(())
        kept, self.dropped_gaps = gaps
        self._gaps.clear()
        self._gaps.extend(kept)

    def _note_gap(self, delivered: int) -> None:
        if not self._gaps.maxlen:
            return
        expected = 0 if self._position is None else self._position + 1
        cancelled = self.log.cancelled(expected, delivered)
        if cancelled:
            if len(self._gaps) == self._gaps.maxlen:
                self.dropped_gaps += 1
            self._gaps.append(Gap(expected, delivered, tuple(cancelled)))


class DurableCursor(Cursor):
    """A cursor whose committed position is stored in a repository. Close it, or use it as a context manager."""

    def __init__(
        self, repository: Repository, name: str, log: EventLog, region: Region, *, gap_buffer: int = 0
    ) -> None:
        """Lock the cursor and continue after its committed position; without a file, start at the beginning."""
        super().__init__(log, region, gap_buffer=gap_buffer)
        self.name = checked_name("cursor", name)
        self._repository = on_this_machine(checked_repository(repository), "a durable cursor")
        self._lock = self._repository.lock(lock_key(self.name), f"cursor {self.name!r} in {repository.where}")
        self._closed = False
        try:
            self._committed = self._saved_position()
            self._go_to(self._committed, self._settled)
        except BaseException:
            self._lock.release()
            raise

    def poll_batch(self, limit: int) -> list[LogEvent]:
        """Return up to `limit` next events."""
        self._require_open()
        return super().poll_batch(limit)

    def commit(self) -> None:
        """Commit the position durably: `rollback` and a restart return to it."""
        self._require_open()
        record = CursorRecord(
            position=self._position or 0,
            started=self.started,
            region_identity=self.region.identity,
            log_identity=self.log.identity,
            log_chain=None if self._position is None else self.log.chain_at(self._position),
        )
        self._repository.put(cursor_key(self.name), record.to_bytes())
        super().commit()

    def close(self) -> None:
        """Release the cursor without saving an uncommitted position. Closing twice is harmless."""
        self._closed = True
        self._lock.release()

    def _require_open(self) -> None:
        """Raise if the cursor was released: another owner may have advanced it since."""
        if self._closed or not self._lock.held:  # a forked child does not hold its parent's lock
            raise Closed(what=f"cursor {self.name!r}")

    def __enter__(self) -> DurableCursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _saved_position(self) -> int | None:
        record = read_cursor(self._repository, self.name)
        if record is None:
            return None
        if record.region_identity != self.region.identity:
            raise CursorRegionMismatch(cursor=self.name, saved=record.region_identity, asked=self.region.identity)
        if record.log_identity not in (None, self.log.identity):
            raise CursorLogMismatch(cursor=self.name, saved=str(record.log_identity), asked=self.log.identity)
        if not record.started:
            return None
        tail = self.log.refresh()
        if record.position >= tail:
            raise CursorAhead(cursor=self.name, position=record.position, tail=tail)
        if record.log_chain not in (None, self.log.chain_at(record.position)):
            raise CursorDiverged(cursor=self.name, position=record.position)
        changed = self.log.changed_before(record.position + 1)
        if changed is not None:
            self._position = record.position
            raise self._rewound(changed)
        return record.position

    def _rewound(self, changed: int) -> LogRewound:
        found = super()._rewound(changed)
        found.reader = f"cursor {self.name!r}"
        found.do = f"holdfast cursor reset {self.name} -r {self._repository.where} --log {self.log.path}"
        return found
