import gc
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import RestartPolicy
from holdfast.errors import (
    BadValue,
    ClockNotKept,
    CursorAhead,
    CursorCorrupt,
    CursorRegionMismatch,
    Locked,
    PersistFailed,
    StorageFailed,
    WorkerFailed,
)
from holdfast.eventlog import Action, AtLeastOnce, Batch, CursorWorker, EventLog, Region, WorkerCallbacks
from holdfast.eventlog._cursor_slot import read_cursor
from holdfast.eventlog.worker import Quarantined, _Run, read_quarantine
from holdfast.repository import LocalRepository, MemoryRepository
from holdfast.testing import FaultyRepository, ManualClock
from support import events, eventually, new_log, rounds

ALL = Region.everything()


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return new_log(tmp_path / "log", events(*"abcdefghij"))


class Handler:
    """Remembers what it was given; `plan` says what to do with each call."""

    def __init__(self, *plan: Any, until: int | None = 9) -> None:
        self.plan = list(plan)
        self.until = until
        self.batches: list[list[int]] = []
        self.calls: list[tuple[Batch, EventLog, AtLeastOnce | None]] = []

    def __call__(self, batch: Batch, log: EventLog, witness: AtLeastOnce | None) -> Action:
        self.batches.append([event.sequence for event in batch])
        self.calls.append((batch, log, witness))
        step = self.plan.pop(0) if self.plan else None
        if isinstance(step, Exception):
            raise step
        if step is not None:
            return step
        return Action.STOP if batch[-1].sequence == self.until else Action.CONTINUE


def worker(log: EventLog, handler: Any, repository: Any = None, **options: Any) -> CursorWorker:
    durable = {"repository": repository, "cursor": "mine"} if repository else {}
    return CursorWorker(ALL, handler, log=log, **durable, **{"idle_sleep": 0.001, **options})


def saved(repository: Any) -> int | None:
    record = read_cursor(repository, "mine")
    return record.position if record else None


def test_defaults_are_the_contract(log: EventLog) -> None:
    made = CursorWorker(ALL, Handler(), log=log)
    assert (made.batch, made.idle_sleep, made.restart) == (64, 0.010, RestartPolicy.once())


def test_continue_commits_and_goes_on_and_stop_commits_and_ends(log: EventLog) -> None:
    handler, repository = Handler(), MemoryRepository()
    handle = worker(log, handler, repository, batch=4).start()
    assert handle.join(60)
    assert handler.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert saved(repository) == handle.position == 9
    again = Handler(until=None)
    with worker(log, again, repository).start():
        time.sleep(0.05)
    assert again.batches == []


def test_stop_with_rollback_keeps_the_last_committed_position(log: EventLog) -> None:
    handler, repository = Handler(Action.CONTINUE, Action.STOP_WITH_ROLLBACK), MemoryRepository()
    handle = worker(log, handler, repository, batch=3).start()
    handle.join(60)
    assert saved(repository) == handle.position == 2
    again = Handler()
    worker(log, again, repository).start().join(60)
    assert again.batches == [[3, 4, 5, 6, 7, 8, 9]]


def test_the_handler_gets_the_log_and_a_witness_where_the_cursor_is_durable(log: EventLog) -> None:
    handler = Handler()
    worker(log, handler, MemoryRepository(), batch=5).start().join(60)
    assert [witness for _, _, witness in handler.calls] == [AtLeastOnce("mine", None), AtLeastOnce("mine", 4)]
    assert handler.calls[0][1].identity == log.identity
    plain = Handler()
    worker(log, plain).start().join(60)
    assert [witness for _, _, witness in plain.calls] == [None]


def test_an_exception_restarts_from_the_last_committed_position(log: EventLog) -> None:
    told: list[Any] = []
    handler, repository = Handler(Action.CONTINUE, RuntimeError("once")), MemoryRepository()
    callbacks = WorkerCallbacks(on_restart=lambda error, count: told.append((str(error), count)))
    handle = worker(log, handler, repository, batch=4, callbacks=callbacks).start()
    handle.join(60)
    assert handler.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7], [8, 9]]
    assert told == [("once", 1)]
    assert handle.restarts == 1


def test_an_exhausted_budget_raises_at_join_without_any_callback(log: EventLog) -> None:
    repository = MemoryRepository()
    handler = Handler(Action.CONTINUE, RuntimeError("one"), RuntimeError("two"))
    handle = worker(log, handler, repository, batch=4).start()
    for _ in range(2):
        with pytest.raises(WorkerFailed, match="failed after 1 restarts") as caught:
            handle.join(60)
    assert caught.value.position == saved(repository) == 3
    assert str(caught.value.__cause__) == "two"
    assert not handle.alive


def test_once_means_once_in_a_workers_life_even_after_success(log: EventLog) -> None:
    handler = Handler(RuntimeError("one"), Action.CONTINUE, RuntimeError("two"))
    with pytest.raises(WorkerFailed):
        worker(log, handler, batch=4).start().join(60)


def test_a_bounded_budget_rolls_with_the_clock(log: EventLog) -> None:
    clock = ManualClock()
    told: list[str] = []

    def handle(batch: Batch, log: EventLog, witness: AtLeastOnce | None) -> Action:
        clock.advance(6)
        raise RuntimeError(str(clock.now))

    callbacks = WorkerCallbacks(on_exhausted=lambda error: told.append(str(error)))
    policy = RestartPolicy.bounded(2, within=10)
    handle_ = worker(log, handle, restart=policy, clock=clock, callbacks=callbacks).start()
    eventually(lambda: handle_.restarts > 10 or not handle_.alive)
    assert handle_.alive  # never more than two within ten seconds: it goes on
    handle_.stop_and_join(60)
    tight = worker(log, handle, restart=RestartPolicy.bounded(2, within=13), clock=clock, callbacks=callbacks).start()
    with pytest.raises(WorkerFailed, match="at most 2 in 13 s"):
        tight.join(60)
    assert len(told) == 1


def test_a_handler_that_answers_nonsense_is_a_failure(log: EventLog) -> None:
    with pytest.raises(WorkerFailed) as caught:
        worker(log, lambda *_: None, restart=RestartPolicy.never()).start().join(60)
    assert isinstance(caught.value.__cause__, BadValue)
    assert "expected Action.CONTINUE" in str(caught.value)


def test_an_exit_from_the_handler_reaches_join(log: EventLog) -> None:
    def leave(*_: object) -> Action:
        raise SystemExit(3)

    handle = worker(log, leave, MemoryRepository()).start()
    with pytest.raises(WorkerFailed, match="SystemExit: 3"):
        handle.join(60)


def test_a_failed_persist_is_told_rolled_back_and_raised_at_join(log: EventLog) -> None:
    inner = MemoryRepository()
    told: list[str] = []

    def fault(action: str, key: str) -> None:
        if action == "put" and inner.list("cursors"):
            raise StorageFailed(action="write", key=key, why="disk full")

    callbacks = WorkerCallbacks(on_persist_failed=lambda error: told.append(str(error)))
    handler = Handler()
    handle = worker(log, handler, FaultyRepository(inner, fault), batch=4, callbacks=callbacks).start()
    with pytest.raises(PersistFailed) as caught:
        handle.join(60)
    assert handler.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert caught.value.position == handle.position == saved(inner) == 3
    assert isinstance(caught.value.__cause__, StorageFailed)
    assert len(told) == 1


def test_callbacks_that_fail_change_nothing(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("callback broke")

    handler = Handler(RuntimeError("one"))
    with caplog.at_level(logging.ERROR):
        worker(log, handler, callbacks=WorkerCallbacks(on_restart=fail)).start().join(60)
    assert "callback broke" in caplog.text
    assert handler.batches[-1][-1] == 9


def test_stop_ends_after_the_batch_at_hand_and_commits_it(log: EventLog) -> None:
    entered, leave = threading.Event(), threading.Event()

    def handle(batch: Batch, log: EventLog, witness: AtLeastOnce | None) -> Action:
        entered.set()
        leave.wait(60)
        return Action.CONTINUE

    repository = MemoryRepository()
    running = worker(log, handle, repository, batch=4).start()
    entered.wait(60)
    running.stop()
    assert running.join(0.02) is False
    assert running.alive
    leave.set()
    assert running.join(60)
    assert saved(repository) == 3


def test_leaving_the_handles_scope_stops_the_worker(log: EventLog) -> None:
    with worker(log, Handler(until=None)).start() as handle:
        assert handle.alive
    assert not handle.alive
    loose = worker(log, Handler(until=None)).start()
    thread = loose._thread
    del loose
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_leaving_the_scope_raises_what_ended_the_worker_but_hides_no_other_error(log: EventLog) -> None:
    failing = worker(log, Handler(RuntimeError("1"), RuntimeError("2")))
    with pytest.raises(WorkerFailed), failing.start() as handle:
        while handle.alive:
            time.sleep(0.001)
    with pytest.raises(KeyError, match="mine"), worker(log, Handler(RuntimeError("1"), RuntimeError("2"))).start():
        raise KeyError("mine")


def test_drain_handles_what_there_is_and_stops(log: EventLog) -> None:
    handler, repository = Handler(until=None), MemoryRepository()
    with worker(log, handler, repository, batch=4).start() as handle:
        assert handle.drain(60)
    assert [sequence for batch in handler.batches for sequence in batch] == list(range(10))
    assert saved(repository) == 9
    failing = worker(log, Handler(RuntimeError("1"), RuntimeError("2"))).start()
    with pytest.raises(WorkerFailed):
        failing.drain(60)


def test_restarts_quarantine_and_giving_up_are_logged(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        with pytest.raises(WorkerFailed):
            worker(log, Handler(RuntimeError("one"), RuntimeError("two"))).start().join(60)
        worker(log, Handler(RuntimeError("bad")), quarantine_after=1, batch=10).start().drain(60)
    assert "restarts after position None: RuntimeError: one" in caplog.text
    assert "failed after 1 restarts" in caplog.text
    assert "skipped 10 events, sequences 0 to 9: RuntimeError: bad" in caplog.text


def test_a_worker_that_was_forgotten_ends_with_its_process(log: EventLog) -> None:
    """Its thread is in the middle of Arrow when the program ends; that must not abort the process."""
    program = f"""
import holdfast as hf
def handle(batch, log, witness):
    for _ in range(50):
        log._cache.clear()
        list(log.read())
    return hf.eventlog.Action.CONTINUE
log = hf.eventlog.EventLog.open({str(log.path)!r})
worker = lambda: hf.eventlog.CursorWorker(hf.eventlog.Region(), handle, log=log, batch=1, idle_sleep=0.0001)
kept = [worker().start() for _ in range(8)]
"""
    for _ in range(rounds(2, 8)):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_new_events_are_picked_up(log: EventLog) -> None:
    handler = Handler(until=11)
    handle = worker(log, handler).start()
    eventually(lambda: handler.batches)
    with log.writer() as writer:
        writer.append(events("k", "l"))
    handle.join(60)
    assert handler.batches == [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11]]


def test_gaps_reach_the_handler_and_a_restart_keeps_them(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path / "gaps")
    with log.writer() as writer:
        writer.append(events("a"))
        writer.cancel(2, "x")
        writer.append(events("b"))
        writer.cancel(1, "y")
        writer.append(events("c"))
    handler = Handler(None, RuntimeError("again"), until=5)
    worker(log, handler, gap_buffer=10, batch=2).start().join(60)
    assert handler.batches == [[0, 3], [5], [5]]
    ranges = [[gap.cancelled for gap in batch.gaps] for batch, _, _ in handler.calls]
    assert ranges == [[((1, 3),)], [((4, 5),)], [((4, 5),)]]


# --- quarantine ------------------------------------------------------------------------------------------------------


def test_a_poison_batch_is_quarantined_after_identical_failures_and_recorded(log: EventLog, tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path / "r")
    told: list[Quarantined] = []

    class Poisoned(Handler):
        def __call__(self, batch: Batch, log: EventLog, witness: AtLeastOnce | None) -> Action:
            action = super().__call__(batch, log, witness)
            if any(event.entity == "e" for event in batch):
                raise ValueError("cannot read e")
            return action

    handler = Poisoned()
    handle = worker(
        log,
        handler,
        repository,
        batch=3,
        quarantine_after=3,
        restart=RestartPolicy.bounded(2, 60),
        callbacks=WorkerCallbacks(on_quarantine=told.append),
    ).start()
    handle.join(60)
    assert handler.batches == [[0, 1, 2], [3, 4, 5], [3, 4, 5], [3, 4, 5], [6, 7, 8], [9]]
    (record,) = handle.quarantined
    assert (record.first, record.last, record.events, record.failures) == (3, 5, 3, 3)
    assert record.error == "ValueError: cannot read e"
    assert told == [record]
    assert repository.list("cursors/mine.quarantine") == [f"{3:020}-{5:020}.json"]
    key = f"cursors/mine.quarantine/{3:020}-{5:020}.json"
    assert Quarantined.unsealed(repository.read(key), key) == record
    assert read_quarantine(repository, "mine") == [record]
    assert read_quarantine(repository, "nobody") == []
    assert saved(repository) == 9


def test_a_quarantine_record_stands_before_the_position_moves_on(log: EventLog) -> None:
    """Else a crash between the two would leave events passed over and nobody told."""
    inner = MemoryRepository()
    told: list[Exception] = []

    def fault(action: str, key: str) -> None:
        if action == broken:
            raise StorageFailed(action=action, key=key, why="disk full")

    options: dict[str, Any] = {"quarantine_after": 1, "callbacks": WorkerCallbacks(on_persist_failed=told.append)}
    broken = "put"
    with pytest.raises(PersistFailed):
        worker(log, Handler(ValueError("x")), FaultyRepository(inner, fault), **options).start().join(60)
    assert inner.list("cursors/mine.quarantine") == [f"{0:020}-{9:020}.json"]
    assert saved(inner) is None
    inner.delete(f"cursors/mine.quarantine/{0:020}-{9:020}.json")
    broken = "put_if_absent"
    with pytest.raises(PersistFailed):
        worker(log, Handler(ValueError("x")), FaultyRepository(inner, fault), **options).start().join(60)
    assert saved(inner) is None
    assert len(told) == 2


def test_a_failed_persist_is_told_before_the_rollback(log: EventLog) -> None:
    seen: list[int | None] = []

    def fault(action: str, key: str) -> None:
        if action == "put":
            raise StorageFailed(action=action, key=key, why="disk full")

    callbacks = WorkerCallbacks(on_persist_failed=lambda _: seen.append(handle._run.cursor.position))
    entered = threading.Event()

    def wait(batch: Batch, log: EventLog, witness: AtLeastOnce | None) -> Action:
        entered.wait(60)
        return Action.CONTINUE

    handle = worker(log, wait, FaultyRepository(MemoryRepository(), fault), callbacks=callbacks).start()
    entered.set()
    with pytest.raises(PersistFailed):
        handle.join(60)
    assert seen == [9]
    assert handle._run.cursor.position is None


def test_a_worker_whose_thread_cannot_start_lets_go_of_its_cursor(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = LocalRepository(tmp_path / "r")

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            worker(log, Handler(), repository).start()
    worker(log, Handler(), repository).start().join(60)


def test_gaps_before_a_quarantined_batch_reach_the_next_handler(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path / "gaps")
    with log.writer() as writer:
        writer.cancel(3, "x")
        writer.append(events("poison", "good"))
    handler = Handler(ValueError("poison"), until=None)
    worker(log, handler, MemoryRepository(), gap_buffer=5, batch=1, quarantine_after=1).start().drain(60)
    assert handler.batches == [[3], [4]]
    assert [gap.cancelled for gap in handler.calls[1][0].gaps] == [((0, 3),)]


def test_drain_misses_nothing_that_comes_while_it_looks(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event is appended, and drain asked for, in the moment between the look that finds nothing and its end."""
    handler = Handler(until=None)
    real = _Run._next

    def late(run: _Run) -> Batch:
        found = real(run)
        if not found and not run.draining.is_set():
            with log.writer() as writer:
                writer.append(events("late"))
            run.drain()
        return found

    monkeypatch.setattr(_Run, "_next", late)
    handle = worker(log, handler).start()
    assert handle.join(60)
    assert handler.batches[-1] == [10]


def test_drain_and_stop_do_not_wait_out_an_idle_sleep(log: EventLog) -> None:
    for end in ("drain", "stop_and_join"):
        handle = worker(log, Handler(until=None), idle_sleep=60).start()
        time.sleep(0.05)
        assert getattr(handle, end)(50)


def test_poison_alone_never_uses_up_the_budget(log: EventLog) -> None:
    """The restarts that led to a quarantine are given back."""
    seen = []

    def poisoned(batch: Batch, log: EventLog, witness: AtLeastOnce | None) -> Action:
        seen.append(batch[0].sequence)
        if batch[0].sequence % 2:
            raise ValueError("odd")
        return Action.CONTINUE

    policy = RestartPolicy.bounded(2, within=600)
    handle = worker(log, poisoned, batch=1, quarantine_after=3, restart=policy).start()
    assert handle.drain(60)
    assert [record.first for record in handle.quarantined] == [1, 3, 5, 7, 9]
    assert seen.count(3) == 3


def test_failures_that_differ_are_not_poison(log: EventLog) -> None:
    handler = Handler(*[RuntimeError(str(number)) for number in range(4)])
    running = worker(log, handler, quarantine_after=2, restart=RestartPolicy.bounded(3, 60)).start()
    with pytest.raises(WorkerFailed):
        running.join(60)
    assert running.quarantined == ()


def test_a_failed_batch_is_tried_again_as_it_was_however_much_has_come_since(log: EventLog) -> None:
    handler = Handler()

    def growing(batch: Batch, inner: EventLog, witness: AtLeastOnce | None) -> Action:
        action = handler(batch, inner, witness)
        if len(handler.batches) == 1:
            with log.writer() as writer:
                writer.append(events("k"))
            raise RuntimeError("first")
        return action

    worker(log, growing).start().join(60)
    assert handler.batches == [list(range(10)), list(range(10))]


# --- refusals at start -----------------------------------------------------------------------------------------------


def test_a_second_worker_on_the_same_cursor_is_refused(log: EventLog, tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path / "r")
    with worker(log, Handler(until=None), repository).start():
        with pytest.raises(Locked):
            worker(log, Handler(), repository).start()
    worker(log, Handler(until=None), repository).start().stop_and_join(60)


def test_wrong_cursors_are_refused_before_anything_runs(log: EventLog, tmp_path: Path) -> None:
    repository = MemoryRepository()
    worker(log, Handler(), repository).start().join(60)
    good = repository.read("cursors/mine.ckpt")
    handler = Handler()
    with pytest.raises(CursorRegionMismatch):
        CursorWorker(Region(entity="x"), handler, log=log, repository=repository, cursor="mine").start()
    repository.put("cursors/mine.ckpt", good[:40])
    with pytest.raises(CursorCorrupt):
        worker(log, handler, repository).start()
    repository.put("cursors/mine.ckpt", good)
    copy = EventLog.create(tmp_path / "copy")
    saved_ = {name: (copy.path / name).read_bytes() for name in ("head", "index")}
    with copy.writer() as writer:
        writer.append(events("a"))
    copied = CursorWorker(ALL, Handler(until=0), log=copy, repository=repository, cursor="copied")
    copied.start().join(60)
    for name, data in saved_.items():  # the log is restored from an older copy
        (copy.path / name).write_bytes(data)
    with pytest.raises(CursorAhead):
        copied.start()
    assert handler.batches == []


@pytest.mark.parametrize(
    "bad",
    [
        {"batch": 0},
        {"idle_sleep": 0},
        {"quarantine_after": 0},
        {"quarantine_after": 3},
        {"restart": RestartPolicy.never(), "quarantine_after": 2},
        {"cursor": "mine"},
        {"restart": 3},
        {"callbacks": {}},
        {"log": "orders.log"},
        {"region": "order"},
        {"handler": 5},
        {"repository": "./state", "cursor": "mine"},
        {"repository": MemoryRepository()},
    ],
    ids=",".join,
)
def test_options_that_cannot_work_are_refused(log: EventLog, bad: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        CursorWorker(**{"region": ALL, "handler": Handler(), "log": log, **bad})


def test_a_region_that_the_log_cannot_filter_is_refused_at_start(log: EventLog) -> None:
    with pytest.raises(ClockNotKept):
        CursorWorker(Region(clock=(0, 1)), Handler(), log=log).start()
