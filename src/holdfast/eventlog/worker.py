"""The cursor worker: passes the events of a region to a handler, batch by batch, at least once.

Rules:
- The position is committed after the handler has returned, never before: an event may be delivered again, but none is
  skipped.
- An exception rolls back to the last committed position and retries within the restart budget. When the budget is
  exhausted, `join()` raises, with or without a callback.
- A position that cannot be saved ends the worker: callback, rollback, stop, and `PersistFailed` from `join()`.
- With `quarantine_after=n`, a batch that has failed n times in a row in the same way is recorded and skipped. With a
  durable cursor, the record is in the repository before the position advances. The restarts that led to the quarantine
  do not count against the budget.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from holdfast._validation import checked_name, checked_positive, checked_seconds, checked_type
from holdfast.errors import BadValue, PersistFailed, WorkerFailed, describe_error
from holdfast.eventlog._cursor_file import FOLDER
from holdfast.eventlog.cursor import Cursor, DurableCursor, Gap
from holdfast.eventlog.log import EventLog
from holdfast.eventlog.region import Region
from holdfast.eventlog.segment import LogEvent
from holdfast.formats.sealed_json import Record
from holdfast.policy import RestartBudget, RestartPolicy
from holdfast.repository import Repository
from holdfast.repository.base import checked_repository

_log = logging.getLogger(__name__)
_EXIT_TIMEOUT_S = 5.0


class Action(Enum):
    """The result of a handler: what the worker does next."""

    CONTINUE = "continue"  # commit the position and continue
    STOP = "stop"  # commit the position and stop
    STOP_WITH_ROLLBACK = "stop with rollback"  # return to the last committed position and stop


@dataclass(frozen=True, slots=True)
class AtLeastOnce:
    """Evidence that a handler runs with a durable cursor: its events may be delivered again, but are never lost.

    `committed` is the position that a restart returns to.
    """

    cursor: str  # the name of the cursor
    committed: int | None


@dataclass(frozen=True, slots=True)
class Batch(Sequence[LogEvent]):
    """Events in order, and the gaps since the last committed batch."""

    events: tuple[LogEvent, ...]  # in the order of their sequences
    gaps: tuple[Gap, ...] = ()  # gaps before and between the events, as many as the buffer holds
    dropped_gaps: int = 0  # gaps that did not fit into the buffer, over the lifetime of the cursor

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, index: Any) -> Any:
        return self.events[index]

    def __iter__(self) -> Iterator[LogEvent]:
        return iter(self.events)


class Quarantined(Record, frozen=True, kw_only=True):
    """The record of a skipped batch: its sequences, how often it failed, and the error."""

    cursor: str  # the name of the worker
    first: int  # sequence of its first event
    last: int  # sequence of its last event
    events: int  # the number of events
    failures: int  # how often it failed
    error: str  # the last error, as text
    at_ms: int  # when it was skipped


def read_quarantine(repository: Repository, cursor: str) -> list[Quarantined]:
    """Return the batches that the workers of a durable cursor have skipped, oldest first; each record is checked."""
    folder = _quarantine_folder(cursor)
    names = checked_repository(repository).list(folder)
    return [Quarantined.unsealed(repository.read(f"{folder}/{name}"), f"{folder}/{name}") for name in names]


def _quarantine_folder(cursor: str) -> str:
    return f"{FOLDER}/{checked_name('cursor', cursor)}.quarantine"


Handler: TypeAlias = Callable[[Batch, EventLog, AtLeastOnce | None], Action]
"""Processes a batch of a log; the witness is `None` unless the cursor is durable."""


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class WorkerCallbacks:
    """Functions that are called on events of a worker. A callback that fails is logged and has no other effect."""

    on_restart: Callable[[Exception, int], object] = _nothing  # the error, and the number of restarts so far
    on_exhausted: Callable[[Exception], object] = _nothing  # the error that ended the worker
    on_persist_failed: Callable[[Exception], object] = _nothing  # the error of the storage
    on_quarantine: Callable[[Quarantined], object] = _nothing  # the skipped batch


@dataclass(frozen=True, slots=True)
class CursorWorker:
    """The configuration of a worker; `start()` runs it in a thread of its own.

    `handler(batch, log, witness)` receives each batch, the log, and an `AtLeastOnce` if the cursor is durable; it
    returns an `Action`. With `repository` and `cursor`, the position is durable under that name; otherwise it lives as
    long as the worker. `batch` is the maximum number of events per call of the handler. `quarantine_after` skips a
    whole batch, so use `batch=1` to skip single events. `gap_buffer` is the number of gaps kept for the handler.
    """

    region: Region  # the events to read
    handler: Handler
    _: KW_ONLY
    log: EventLog
    repository: Repository | None = None
    cursor: str | None = None
    batch: int = 64
    idle_sleep: float = 0.010  # seconds between two polls of an idle log
    restart: RestartPolicy = field(default_factory=RestartPolicy.once)  # how often a failed handler is retried
    gap_buffer: int = 0
    quarantine_after: int | None = None
    callbacks: WorkerCallbacks = field(default_factory=WorkerCallbacks)  # notified of failures
    clock: Callable[[], float] = time.monotonic  # for tests

    def __post_init__(self) -> None:
        checked_type("region", self.region, Region)
        checked_type("log", self.log, EventLog)
        checked_type("restart", self.restart, RestartPolicy)
        checked_type("callbacks", self.callbacks, WorkerCallbacks)
        if not callable(self.handler):
            raise BadValue(what="handler", value=self.handler, expected="a callable")
        checked_positive("batch", self.batch)
        object.__setattr__(self, "idle_sleep", checked_seconds("idle sleep", self.idle_sleep))
        if self.repository is not None:
            checked_repository(self.repository)
        if (self.repository is None) is not (self.cursor is None):
            raise BadValue(what="cursor", value=self.cursor, why="a durable cursor needs both a repository and a name")
        if self.quarantine_after is not None:
            checked_positive("quarantine_after", self.quarantine_after)
            if self.quarantine_after > self.restart.max_restarts + 1:
                raise BadValue(
                    what="quarantine_after",
                    value=self.quarantine_after,
                    why=f"the restart budget ({self.restart}) is exhausted before that many failures",
                )

    @property
    def name(self) -> str:
        """The name of the worker: the name of its cursor, or the identity of its region."""
        return self.cursor or self.region.identity

    def start(self) -> WorkerHandle:
        """Open the cursor and start the thread. Errors of the cursor are raised here, before anything runs."""
        reader = EventLog.open(self.log.path)  # a separate reader: an EventLog is not thread-safe
        cursor = (
            DurableCursor(self.repository, self.cursor, reader, self.region, gap_buffer=self.gap_buffer)
            if self.repository is not None and self.cursor is not None
            else Cursor(reader, self.region, gap_buffer=self.gap_buffer)
        )
        run = _Run(self, cursor)
        thread = threading.Thread(target=run.run, name=f"holdfast-worker-{self.name}", daemon=True)
        try:
            thread.start()
        except BaseException:
            run.close()
            raise
        return WorkerHandle(run, thread)


class WorkerHandle:
    """A running worker. As a context manager, it stops and joins the worker; dropping the handle stops the worker."""

    def __init__(self, run: _Run, thread: threading.Thread) -> None:
        self._run = run
        self._thread = thread
        _running[run] = thread
        weakref.finalize(self, run.stop)

    @property
    def alive(self) -> bool:
        """Whether the worker still runs."""
        return self._thread.is_alive()

    @property
    def position(self) -> int | None:
        """The last committed position."""
        return self._run.cursor.committed

    @property
    def restarts(self) -> int:
        """The number of restarts so far."""
        return self._run.budget.restarts

    @property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """The batches that were skipped."""
        return tuple(self._run.quarantined)

    def stop(self) -> None:
        """Request a graceful stop after the current batch."""
        self._run.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the worker to end and return whether it has; raises the error that ended it."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._run.failure is not None:
            raise self._run.failure
        return True

    def drain(self, timeout: float | None = None) -> bool:
        """Let the worker process the available events, then stop it; wait as `join` does."""
        self._run.drain()
        return self.join(timeout)

    def stop_and_join(self, timeout: float | None = None) -> bool:
        """Request a graceful stop and wait for it."""
        self.stop()
        return self.join(timeout)

    def __enter__(self) -> WorkerHandle:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop()
        if error is None:
            self.join()


@dataclass(slots=True)
class _Repeated:
    """The last failure, how often it was repeated in a row, and the size of the batch."""

    what: tuple[int, int, str] | None = None
    times: int = 0
    events: int = 0

    def count(self, batch: Batch, error: Exception) -> int:
        what = (batch[0].sequence, batch[-1].sequence, describe_error(error)) if batch else None
        self.times = self.times + 1 if what == self.what else 1
        self.what, self.events = what, len(batch)
        return self.times

    def clear(self) -> None:
        self.what, self.times, self.events = None, 0, 0


class _Ended(Exception):
    """Ends the loop of a worker with this failure."""

    def __init__(self, failure: BaseException) -> None:
        super().__init__()
        self.failure = failure


class _Run:
    """The loop of one worker."""

    def __init__(self, worker: CursorWorker, cursor: Cursor) -> None:
        self._worker = worker
        self.cursor = cursor
        self.budget = RestartBudget(worker.restart)
        self.stopping = threading.Event()
        self.draining = threading.Event()
        self._waking = threading.Event()  # set by `stop` and `drain` to interrupt an idle sleep
        self.failure: BaseException | None = None
        self.quarantined: list[Quarantined] = []
        self._repeated = _Repeated()

    def stop(self) -> None:
        """Request the end after the current batch."""
        self.stopping.set()
        self._waking.set()

    def drain(self) -> None:
        """Request the end when no more events are available."""
        self.draining.set()
        self._waking.set()

    def run(self) -> None:
        """Process batches until a stop is requested or an error ends the worker."""
        try:
            while not self.stopping.is_set() and self._step():
                pass
        except _Ended as ended:
            self.failure = ended.failure
        except BaseException as error:  # for example SystemExit; join() raises the failure
            self.failure = self._failure(error)
        finally:
            self.close()

    def close(self) -> None:
        """Release the cursor."""
        if isinstance(self.cursor, DurableCursor):
            self.cursor.close()

    def _step(self) -> bool:
        """Pass one batch to the handler; return whether to continue."""
        batch = Batch(())
        try:
            last = self.draining.is_set()  # before the poll, so that no event can arrive in between
            batch = self._next()
            if not batch:
                if last:
                    return False
                self._waking.wait(self._worker.idle_sleep)
                return True
            action = self._worker.handler(batch, self.cursor.log, self._witness())
            if not isinstance(action, Action):
                expected = "Action.CONTINUE, Action.STOP or Action.STOP_WITH_ROLLBACK"
                raise BadValue(what="result of the handler", value=action, expected=expected)
        except Exception as error:  # a handler may raise anything; the budget decides
            self._failed(batch, error)
            return True
        self._repeated.clear()
        if action is Action.STOP_WITH_ROLLBACK:
            self.cursor.rollback()
            return False
        self._save()
        self.cursor.take_gaps()  # the handler has received them
        return action is Action.CONTINUE

    def _next(self) -> Batch:
        """Poll a batch. After a failure, poll the same batch, even if more events have arrived since."""
        events = self.cursor.poll_batch(self._repeated.events or self._worker.batch)
        return Batch(tuple(events), self.cursor.gaps, self.cursor.dropped_gaps)

    def _witness(self) -> AtLeastOnce | None:
        if not isinstance(self.cursor, DurableCursor):
            return None
        return AtLeastOnce(self.cursor.name, self.cursor.committed)

    def _save(self) -> None:
        try:
            self.cursor.commit()
        except Exception as error:  # a user-supplied repository may raise anything
            raise self._unsaved(error) from error

    def _unsaved(self, error: Exception) -> _Ended:
        """Notify, roll back, and return the exception that ends the worker."""
        self._notify(self._worker.callbacks.on_persist_failed, error)
        self.cursor.rollback()
        failure = PersistFailed(worker=self._worker.name, position=self.cursor.committed, why=describe_error(error))
        failure.__cause__ = error
        _log.error("%s", failure)
        return _Ended(failure)

    def _failed(self, batch: Batch, error: Exception) -> None:
        """Quarantine the batch, restart, or fail: in this order."""
        times = self._repeated.count(batch, error)
        if batch and times == self._worker.quarantine_after:
            self._quarantine(batch, error, times)
            return
        self.cursor.rollback()
        if self.budget.spend(self._worker.clock()):
            _log.warning(
                "worker %r restarts after position %s: %s",
                self._worker.name,
                self.cursor.committed,
                describe_error(error),
            )
            self._notify(self._worker.callbacks.on_restart, error, self.budget.restarts)
            return
        self._notify(self._worker.callbacks.on_exhausted, error)
        raise _Ended(self._failure(error))

    def _failure(self, error: BaseException) -> WorkerFailed:
        failure = WorkerFailed(
            worker=self._worker.name,
            restarts=self.budget.restarts,
            policy=str(self._worker.restart),
            position=self.cursor.committed,
            why=describe_error(error),
        )
        failure.__cause__ = error
        _log.error("%s", failure)
        return failure

    def _quarantine(self, batch: Batch, error: Exception, times: int) -> None:
        record = Quarantined(
            cursor=self._worker.name,
            first=batch[0].sequence,
            last=batch[-1].sequence,
            events=len(batch),
            failures=times,
            error=describe_error(error),
            at_ms=time.time_ns() // 1_000_000,
        )
        if self._worker.repository is not None:
            key = f"{_quarantine_folder(str(self._worker.cursor))}/{record.first:020}-{record.last:020}.json"
            try:
                self._worker.repository.put_if_absent(key, record.sealed())
            except Exception as failed:  # handled like a position that cannot be saved
                raise self._unsaved(failed) from failed
        self._repeated.clear()
        self.budget.give_back(times - 1)  # they led to the quarantine that the user configured
        self._save()  # the gaps are kept for the next batch
        self.quarantined.append(record)
        _log.warning(
            "worker %r skipped %d events, sequences %d to %d: %s",
            self._worker.name,
            record.events,
            record.first,
            record.last,
            record.error,
        )
        self._notify(self._worker.callbacks.on_quarantine, record)

    def _notify(self, callback: Callable[..., object], *facts: object) -> None:
        try:
            callback(*facts)
        except Exception:
            _log.exception("callback of worker %s failed; the worker continues", self._worker.name)


_running: weakref.WeakKeyDictionary[_Run, threading.Thread] = weakref.WeakKeyDictionary()


@atexit.register
def _stop_all() -> None:
    """Stop running workers at exit and wait for their batch: killing a thread inside Arrow aborts the process."""
    for run, thread in list(_running.items()):
        run.stop()
        thread.join(_EXIT_TIMEOUT_S)
