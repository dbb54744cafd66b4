"""The cursor worker: hands the events of a region to a handler, batch by batch, at least once.

Rules:
- The position is committed after the handler has returned, never before: an event may come again, none is left out.
- An exception goes back to the last committed position and tries again within the restart budget. When the budget is
  used up, `join()` raises, callback or not.
- A position that cannot be saved ends the worker: callback, rollback, stop, and `PersistFailed` at `join()`.
- With `quarantine_after=n` a batch that has failed n times in a row in the same way is recorded and passed over. With a
  durable cursor the record stands in the repository before the position moves on. The restarts that led there are given
  back to the budget.
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
from holdfast.errors import BadValue, PersistFailed, WorkerFailed, in_words
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
_PATIENCE_AT_EXIT_S = 5.0


class Action(Enum):
    """What a handler wants next."""

    CONTINUE = "continue"  # commit the position, go on
    STOP = "stop"  # commit the position, stop
    STOP_WITH_ROLLBACK = "stop with rollback"  # back to the last committed position, stop


@dataclass(frozen=True, slots=True)
class AtLeastOnce:
    """The witness that a handler runs under a durable cursor: what it is given may come again, and is never lost.

    `committed` is the position that a restart would come back to.
    """

    cursor: str  # its name
    committed: int | None


@dataclass(frozen=True, slots=True)
class Batch(Sequence[LogEvent]):
    """Events in order, and the gaps before them that were seen and not yet committed past."""

    events: tuple[LogEvent, ...]  # in the order of their sequences
    gaps: tuple[Gap, ...] = ()  # seen before them, as far as they are kept
    dropped_gaps: int = 0  # how many more there were than the buffer holds, over the cursor's life

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, index: Any) -> Any:
        return self.events[index]

    def __iter__(self) -> Iterator[LogEvent]:
        return iter(self.events)


class Quarantined(Record, frozen=True, kw_only=True):
    """A batch that was passed over: its first and last sequence, how often it failed, and how."""

    cursor: str  # whose worker it was
    first: int  # sequence of its first event
    last: int  # sequence of its last event
    events: int  # how many there are
    failures: int  # how often it failed
    error: str  # the last failure, in words
    at_ms: int  # when it was passed over


def read_quarantine(repository: Repository, cursor: str) -> list[Quarantined]:
    """Return what a durable cursor's workers have passed over, oldest first; each record is checked."""
    folder = _quarantine_folder(cursor)
    names = checked_repository(repository).list(folder)
    return [Quarantined.unsealed(repository.read(f"{folder}/{name}"), f"{folder}/{name}") for name in names]


def _quarantine_folder(cursor: str) -> str:
    return f"{FOLDER}/{checked_name('cursor', cursor)}.quarantine"


Handler: TypeAlias = Callable[[Batch, EventLog, AtLeastOnce | None], Action]
"""Handles a batch of a log; the witness is there where the cursor is durable."""


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class WorkerCallbacks:
    """Who is told what. A callback that fails is logged; it changes nothing."""

    on_restart: Callable[[Exception, int], object] = _nothing  # the error, and how many restarts so far
    on_exhausted: Callable[[Exception], object] = _nothing  # the error that ended it
    on_persist_failed: Callable[[Exception], object] = _nothing  # the error of the storage
    on_quarantine: Callable[[Quarantined], object] = _nothing  # what was passed over


@dataclass(frozen=True, slots=True)
class CursorWorker:
    """What a worker is to do; `start()` begins it in a thread of its own.

    `handler(batch, log, witness)` is given each batch, the log, and the witness that the cursor is durable, or `None`;
    it returns an `Action`. With `repository` and `cursor` the position is durable, under that name; without, it lasts
    as long as the worker. `batch` is how many events a handler gets at most, and what `quarantine_after` passes over as
    a whole: with 1, a single event. `gap_buffer` is how many gaps are kept for the handler.
    """

    region: Region  # which events of the log
    handler: Handler
    _: KW_ONLY
    log: EventLog
    repository: Repository | None = None
    cursor: str | None = None
    batch: int = 64
    idle_sleep: float = 0.010  # seconds between two looks at a log that has nothing new
    restart: RestartPolicy = field(default_factory=RestartPolicy.once)  # how often a failed handler is tried again
    gap_buffer: int = 0
    quarantine_after: int | None = None
    callbacks: WorkerCallbacks = field(default_factory=WorkerCallbacks)  # who is told of failures
    clock: Callable[[], float] = time.monotonic  # for tests

    def __post_init__(self) -> None:
        checked_type("region", self.region, Region)
        checked_type("log", self.log, EventLog)
        checked_type("restart", self.restart, RestartPolicy)
        checked_type("callbacks", self.callbacks, WorkerCallbacks)
        if not callable(self.handler):
            raise BadValue(what="handler", value=self.handler, why="it cannot be called")
        checked_positive("batch", self.batch)
        object.__setattr__(self, "idle_sleep", checked_seconds("idle sleep", self.idle_sleep))
        if self.repository is not None:
            checked_repository(self.repository)
        if (self.repository is None) is not (self.cursor is None):
            raise BadValue(what="cursor", value=self.cursor, why="a durable cursor needs a repository and a name")
        if self.quarantine_after is not None:
            checked_positive("quarantine_after", self.quarantine_after)
            if self.quarantine_after > self.restart.max_restarts + 1:
                raise BadValue(
                    what="quarantine_after",
                    value=self.quarantine_after,
                    why=f"the restart budget ({self.restart}) is used up before so many failures",
                )

    @property
    def name(self) -> str:
        """The worker's name: its cursor's, or its region's identity."""
        return self.cursor or self.region.identity

    def start(self) -> WorkerHandle:
        """Take the cursor and begin. A cursor that is refused raises here, before anything runs."""
        reader = EventLog.open(self.log.path)  # a reader of its own: logs are not shared between threads
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
    """A worker at work. In `with`, leaving the block stops and joins it; letting go of the handle stops it."""

    def __init__(self, run: _Run, thread: threading.Thread) -> None:
        self._run = run
        self._thread = thread
        _at_work[run] = thread
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
        """How often the worker has been restarted."""
        return self._run.budget.restarts

    @property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """The batches that were passed over."""
        return tuple(self._run.quarantined)

    def stop(self) -> None:
        """Ask the worker to stop after the batch that it is at."""
        self._run.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end, raise what ended the worker, and return whether it has ended."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._run.failure is not None:
            raise self._run.failure
        return True

    def drain(self, timeout: float | None = None) -> bool:
        """Let the worker handle what there is, stop when it finds nothing more, and wait for that as `join` does."""
        self._run.drain()
        return self.join(timeout)

    def stop_and_join(self, timeout: float | None = None) -> bool:
        """Ask for the end and wait for it."""
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
    """The last failure, how often it has come in a row, and how many events were in hand."""

    what: tuple[int, int, str] | None = None
    times: int = 0
    events: int = 0

    def count(self, batch: Batch, error: Exception) -> int:
        what = (batch[0].sequence, batch[-1].sequence, in_words(error)) if batch else None
        self.times = self.times + 1 if what == self.what else 1
        self.what, self.events = what, len(batch)
        return self.times

    def clear(self) -> None:
        self.what, self.times, self.events = None, 0, 0


class _Ended(Exception):
    """The worker ends with this failure."""

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
        self._waking = threading.Event()  # set for good by either, so that neither waits out an idle sleep
        self.failure: BaseException | None = None
        self.quarantined: list[Quarantined] = []
        self._repeated = _Repeated()

    def stop(self) -> None:
        """Ask for an end after the batch at hand."""
        self.stopping.set()
        self._waking.set()

    def drain(self) -> None:
        """Ask for an end when there is nothing more."""
        self.draining.set()
        self._waking.set()

    def run(self) -> None:
        """Go on until told to stop, or until it cannot."""
        try:
            while not self.stopping.is_set() and self._step():
                pass
        except _Ended as ended:
            self.failure = ended.failure
        except BaseException as error:  # an exit, say: kept for join(), which raises it
            self.failure = self._given_up(error)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the cursor."""
        if isinstance(self.cursor, DurableCursor):
            self.cursor.close()

    def _step(self) -> bool:
        """Take one batch through the handler; return whether to go on."""
        batch = Batch(())
        try:
            last = self.draining.is_set()  # before the look, so that nothing can come between
            batch = self._next()
            if not batch:
                if last:
                    return False
                self._waking.wait(self._worker.idle_sleep)
                return True
            action = self._worker.handler(batch, self.cursor.log, self._witness())
            if not isinstance(action, Action):
                why = "it must return Action.CONTINUE, Action.STOP or Action.STOP_WITH_ROLLBACK"
                raise BadValue(what="handler's answer", value=action, why=why)
        except Exception as error:  # a handler may raise anything; the budget decides
            self._failed(batch, error)
            return True
        self._repeated.clear()
        if action is Action.STOP_WITH_ROLLBACK:
            self.cursor.rollback()
            return False
        self._save()
        self.cursor.take_gaps()  # the handler has had them
        return action is Action.CONTINUE

    def _next(self) -> Batch:
        """Poll a batch. After a failure it is the same one again, however many events have come since."""
        events = self.cursor.poll_batch(self._repeated.events or self._worker.batch)
        return Batch(tuple(events), self.cursor.gaps, self.cursor.dropped_gaps)

    def _witness(self) -> AtLeastOnce | None:
        if not isinstance(self.cursor, DurableCursor):
            return None
        return AtLeastOnce(self.cursor.name, self.cursor.committed)

    def _save(self) -> None:
        try:
            self.cursor.commit()
        except Exception as error:  # a repository of the user's may raise anything
            raise self._unsaved(error) from error

    def _unsaved(self, error: Exception) -> _Ended:
        """Tell, roll back, and end."""
        self._tell(self._worker.callbacks.on_persist_failed, error)
        self.cursor.rollback()
        failure = PersistFailed(worker=self._worker.name, position=self.cursor.committed, why=in_words(error))
        failure.__cause__ = error
        _log.error("%s", failure)
        return _Ended(failure)

    def _failed(self, batch: Batch, error: Exception) -> None:
        """Quarantine the batch, restart, or give up: in this order."""
        times = self._repeated.count(batch, error)
        if batch and times == self._worker.quarantine_after:
            self._quarantine(batch, error, times)
            return
        self.cursor.rollback()
        if self.budget.spend(self._worker.clock()):
            _log.warning(
                "worker %r restarts after position %s: %s", self._worker.name, self.cursor.committed, in_words(error)
            )
            self._tell(self._worker.callbacks.on_restart, error, self.budget.restarts)
            return
        self._tell(self._worker.callbacks.on_exhausted, error)
        raise _Ended(self._given_up(error))

    def _given_up(self, error: BaseException) -> WorkerFailed:
        failure = WorkerFailed(
            worker=self._worker.name,
            restarts=self.budget.restarts,
            policy=str(self._worker.restart),
            position=self.cursor.committed,
            why=in_words(error),
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
            error=in_words(error),
            at_ms=time.time_ns() // 1_000_000,
        )
        if self._worker.repository is not None:
            key = f"{_quarantine_folder(str(self._worker.cursor))}/{record.first:020}-{record.last:020}.json"
            try:
                self._worker.repository.put_if_absent(key, record.sealed())
            except Exception as failed:  # as when a position cannot be saved
                raise self._unsaved(failed) from failed
        self._repeated.clear()
        self.budget.give_back(times - 1)  # they led here, which the user asked for
        self._save()  # the gaps stay, for the handler of the next batch
        self.quarantined.append(record)
        _log.warning(
            "worker %r passed over %d events, %d to %d: %s",
            self._worker.name,
            record.events,
            record.first,
            record.last,
            record.error,
        )
        self._tell(self._worker.callbacks.on_quarantine, record)

    def _tell(self, callback: Callable[..., object], *facts: object) -> None:
        try:
            callback(*facts)
        except Exception:
            _log.exception("callback of worker %s failed; the worker goes on", self._worker.name)


_at_work: weakref.WeakKeyDictionary[_Run, threading.Thread] = weakref.WeakKeyDictionary()


@atexit.register
def _stop_all() -> None:
    """Let workers whose handles were forgotten finish their batch: a thread cut off inside Arrow aborts the process."""
    for run, thread in list(_at_work.items()):
        run.stop()
        thread.join(_PATIENCE_AT_EXIT_S)
