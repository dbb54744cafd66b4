"""One contract for event logs wherever they are: in a folder, on S3, and on S3 while requests fail."""

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from faultproxy import Fault, FaultProxy
from holdfast.errors import (
    AlreadyExists,
    AppendOpen,
    BadValue,
    Closed,
    CursorAhead,
    CursorDiverged,
    CursorFenced,
    Fenced,
    LogCorrupt,
    LogDiverged,
    LogMissing,
    LogRewound,
    LogTrimmed,
)
from holdfast.eventlog import (
    Action,
    Batch,
    Cursor,
    CursorWorker,
    DurableCursor,
    EventLog,
    Region,
)
from holdfast.eventlog._cursor_reset import apply_reset, plan_reset
from holdfast.eventlog._cursor_slot import cursor_names, read_cursor
from holdfast.eventlog.appending import StagedSegment
from holdfast.eventlog.homes import home_of
from holdfast.eventlog.segment import to_parquet, to_table
from holdfast.eventlog.trimming import apply_trim, plan_trim
from holdfast.repository import MemoryRepository, ObjectRepository, Repository
from holdfast.spark.logsource import LogReader, spark_schema
from s3fixture import S3_PARAMS, S3Place, with_faults
from support import events, new_log, refused_in_a_child, segment_files

ALL = Region.everything()


@pytest.fixture(params=["folder", *S3_PARAMS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Any]:
    """Addresses of one kind, by name."""
    if request.param == "folder":
        return lambda name: tmp_path / name
    bucket = request.getfixturevalue("s3")
    if request.param == "s3-faults":
        with_faults(request.getfixturevalue("s3_faults"))
    found: Callable[[str], Any] = bucket.url
    return found


@pytest.fixture
def address(place: Callable[[str], Any]) -> Any:
    return place("log")


@pytest.fixture
def cursors(place: Callable[[str], Any]) -> Repository:
    """A repository for cursors of the same kind."""
    where = place("state")
    return ObjectRepository(where) if isinstance(where, str) else MemoryRepository()


def names(log: EventLog, region: Region | None = None, start: int = 0) -> list[tuple[int, str]]:
    return [(event.sequence, event.entity) for event in log.read(region, start)]


def polled(cursor: Cursor, limit: int = 100) -> list[int]:
    return [event.sequence for event in cursor.poll_batch(limit)]


def staged(log: EventLog, folder: Path, *batches: list[Any]) -> list[Any]:
    """Segments that are ready to be adopted, where this kind of log has them."""
    if log.home.parquet is not None:
        return segment_files(folder, log, *batches)
    found = []
    for number, batch in enumerate(batches):
        data = to_parquet(to_table(batch, log.schema))
        path = f"segments/s/{folder.name}/{number}.parquet"
        ObjectRepository(str(log.path)).put_new(path, data)
        found.append(StagedSegment(Path(path), len(batch), len(data), hashlib.sha256(data).digest()))
    return found


# --- appending -------------------------------------------------------------------------------------------------------


def test_events_come_back_in_one_sequence_from_zero(address: Any) -> None:
    log = new_log(address, events("a", "b"), events("c"))
    assert names(log) == names(EventLog.open(address)) == names(EventLog.open_end(address))
    assert names(log) == [(0, "a"), (1, "b"), (2, "c")]
    assert names(log, start=1) == [(1, "b"), (2, "c")]
    assert names(log, start=99) == []
    assert [event.entity for event in log.read(start=1, end=2)] == ["b"]
    assert list(log.read(start=2, end=1)) == []
    assert (log.tail, log.records) == (3, 2)
    event = next(log.read())
    assert (event.scope, event.category, event.type, event.clock, event.payload) == ("default", 0, 0, None, b"a")


def test_a_log_is_created_once(address: Any) -> None:
    with pytest.raises(LogMissing):
        EventLog.open(address)
    log = EventLog.create(address, keep_clock=True, payload=pa.int64())
    with pytest.raises(AlreadyExists):
        EventLog.create(address)
    with pytest.raises(AlreadyExists, match="other columns"):
        EventLog.open_or_create(address)
    again = EventLog.open_or_create(address, keep_clock=True, payload=pa.int64())
    assert (again.identity, again.tail) == (log.identity, 0)
    assert list(again.read()) == []


def test_several_threads_that_create_a_log_open_the_same_one(address: Any) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(EventLog.open_or_create(address).identity)) for _ in "abcd"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 4 and len(set(found)) == 1


def test_many_steps_are_one_append_and_an_abort_leaves_a_cancelled_range(address: Any) -> None:
    log = EventLog.create(address)
    with log.writer() as writer:
        with writer.begin() as append:
            append.add(events("a"))
            append.add(events("b", "c"))
            assert names(log) == []
            with pytest.raises(AppendOpen, match="commit or abort"):
                writer.begin()
        assert append.sequences == range(3)
        with pytest.raises(RuntimeError), writer.begin() as append:
            append.add(events("x", "y"))
            raise RuntimeError("not this one")
        assert append.sequences == range(3, 5)
        assert writer.append(events("d")) == range(5, 6)
        assert writer.append([]) == range(6, 6)
        assert writer.cancel(4, "by hand") == range(6, 10)
        with pytest.raises(BadValue):
            writer.cancel(0, "nothing")
    with pytest.raises(Closed):
        writer.append(events("z"))
    assert names(log) == [(0, "a"), (1, "b"), (2, "c"), (5, "d")]
    assert log.cancelled(0, log.tail) == [(3, 5), (6, 10)]
    assert log.cancelled(4, 8) == [(4, 5), (6, 8)]


def test_a_writer_in_a_forked_child_is_closed(address: Any) -> None:
    log = EventLog.create(address)
    with log.writer() as writer:
        assert refused_in_a_child(lambda: writer.append(events("a")), Closed)
        writer.append(events("b"))
    assert names(log) == [(0, "b")]


def test_threads_share_a_writer(address: Any) -> None:
    log = EventLog.create(address)
    with log.writer() as writer:

        def append(name: str) -> None:
            for number in range(4):
                writer.append(events(f"{name}:{number}"))

        threads = [threading.Thread(target=append, args=(name,)) for name in "abc"]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    found = names(log)
    assert [sequence for sequence, _ in found] == list(range(12))
    for name in "abc":
        assert [entity for _, entity in found if entity[0] == name] == [f"{name}:{number}" for number in range(4)]


def test_files_are_adopted_as_they_are_under_a_key(address: Any, tmp_path: Path) -> None:
    log = EventLog.create(address)
    with log.writer() as writer:
        assert writer.adopt(staged(log, tmp_path / "one", events("a", "b"), events("c")), "k1") == range(3)
        writer.append(events("d"))
        assert writer.adopt(staged(log, tmp_path / "two", events("e")), "k2") == range(4, 5)
        assert writer.adopt_as(lambda: None, "k3") is None
    log.refresh()
    assert names(log) == [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")]
    assert list(log.keys()) == list(EventLog.open_end(address).keys()) == ["k1", "k2"]
    assert list(log.keys(1)) == ["k2"]
    assert [(each.first, each.count) for each in log.segments(1, 5)] == [(0, 2), (2, 1), (3, 1), (4, 1)]


# --- rewinds ---------------------------------------------------------------------------------------------------------


def test_abandoned_ranges_are_skipped_until_they_are_restored(address: Any) -> None:
    log = new_log(address, events("a", "b"), events("c", "d"), events("e"), events("f"))
    with log.writer() as writer:
        assert writer.rewind("key", [(2, 2), (5, 1)]) == 6
        assert writer.append(events("g")) == range(7, 8)
    for found in (log, EventLog.open(address), EventLog.open_end(address)):
        assert [sequence for sequence, _ in names(found)] == [0, 1, 4, 7]
        assert found.cancelled(0, 8) == [(2, 4), (5, 7)]
        assert found.changed_before(2) is None
        assert found.changed_before(3) == found.changed_before(6) == 2
        assert found.changed_before(8) is None
    with log.writer() as writer:
        writer.rewind("undo", (), [(2, 2), (5, 1)])
    assert [sequence for sequence, _ in names(log)] == [0, 1, 2, 3, 4, 5, 7]
    with log.writer() as writer, pytest.raises((BadValue, LogCorrupt)):
        writer.rewind("bad", [("x", 1)])  # type: ignore[list-item]


def test_a_cursor_past_a_rewind_is_stopped_and_reset(address: Any, cursors: Repository) -> None:
    log = new_log(address, events("a", "b"), events("c", "d"), events("e"))
    with DurableCursor(cursors, "reader", log, ALL) as cursor:
        assert polled(cursor) == [0, 1, 2, 3, 4]
        cursor.commit()
        with log.writer() as writer:
            writer.rewind("key", [(2, 2)])
            writer.append(events("f"))
        with pytest.raises(LogRewound):
            cursor.poll()
    with pytest.raises(LogRewound, match="holdfast cursor reset reader"):
        DurableCursor(cursors, "reader", EventLog.open(address), ALL)
    plan = plan_reset(cursors, "reader", EventLog.open(address))
    assert (plan.before, plan.after) == (5, 2)
    apply_reset(cursors, plan, EventLog.open(address))
    with DurableCursor(cursors, "reader", EventLog.open(address), ALL) as cursor:
        assert polled(cursor) == [4, 6]


# --- cursors and workers ---------------------------------------------------------------------------------------------


def test_a_durable_cursor_continues_after_its_position_also_inside_a_record(address: Any, cursors: Repository) -> None:
    log = new_log(address, events("a"), events("b", "c", "d"), events("e"))
    with DurableCursor(cursors, "reader", log, ALL) as cursor:
        assert polled(cursor, 3) == [0, 1, 2]
        cursor.commit()
        assert polled(cursor) == [3, 4]
        cursor.rollback()
        assert polled(cursor, 1) == [3]
    for _ in range(2):
        with DurableCursor(cursors, "reader", EventLog.open_end(address), ALL) as cursor:
            assert cursor.committed == 2
            assert polled(cursor) == [3, 4]
    record = read_cursor(cursors, "reader")
    assert record is not None and record.position == 2
    assert record.record == (1 if isinstance(address, str) else None)
    assert cursor_names(cursors) == ["reader"]


def test_a_cursor_of_another_history_is_refused(place: Callable[[str], Any], cursors: Repository) -> None:
    log = new_log(place("log"), events("a", "b"), events("c"))
    with DurableCursor(cursors, "reader", log, ALL) as cursor:
        polled(cursor)
        cursor.commit()
    shorter = new_log(place("other"), events("a"))
    shorter.identity = log.identity
    with pytest.raises(CursorAhead):
        DurableCursor(cursors, "reader", shorter, ALL)
    other = new_log(place("another"), events("a", "b"), events("d"))
    other.identity = log.identity
    with pytest.raises(CursorDiverged):
        DurableCursor(cursors, "reader", other, ALL)
    moved = new_log(place("moved"), events("a", "b", "c"))
    moved.identity = log.identity
    with pytest.raises((CursorDiverged, LogCorrupt)):  # on a store, its record has another name: damage, never a gap
        DurableCursor(cursors, "reader", moved, ALL)


def test_a_worker_processes_every_event_and_its_successor_continues(address: Any, cursors: Repository) -> None:
    log = new_log(address, *(events(f"e{number}") for number in range(5)))
    seen: list[int] = []

    def handler(batch: Batch, log: EventLog, witness: Any) -> Action:
        seen.extend(event.sequence for event in batch)
        return Action.CONTINUE

    def work() -> None:
        worker = CursorWorker(ALL, handler, log=log, repository=cursors, cursor="worker", batch=2)
        assert worker.start().drain(120)

    work()
    with log.writer() as writer:
        writer.append(events("x", "y"))
    work()
    assert seen == list(range(7))


# --- positions of Spark ----------------------------------------------------------------------------------------------


def reader(address: Any, limit: int | None = None) -> LogReader:
    home = home_of(address)
    return LogReader(home, spark_schema(home), limit, 2)


def test_a_position_may_lie_inside_a_record(address: Any) -> None:
    new_log(address, events("a"), events("b", "c", "d"), events("e"))
    first = reader(address, 2)
    start = first.first_offset()
    inside = first.end_after(start, 2)
    assert (start["sequence"], inside["sequence"]) == (0, 2)
    assert inside.get("record") == (1 if isinstance(address, str) else None)
    later = reader(address)
    end = later.end_after(inside, None)
    found = [
        row["entity"]
        for run in later.inputs_between(inside, end)
        for batch in later.read(run)
        for row in batch.to_pylist()
    ]
    assert found == ["c", "d", "e"]
    assert later.last_offset() == end


def test_a_position_of_another_log_or_history_is_refused(place: Callable[[str], Any]) -> None:
    new_log(place("log"), events("a"), events("b", "c"))
    end = reader(place("log")).last_offset()
    with pytest.raises(LogDiverged, match="and this is log"):
        new_log(place("other"), events("a"), events("b", "c"))
        reader(place("other")).position(end)
    with pytest.raises(LogDiverged, match="ends before"):
        reader(place("log")).position({**end, "sequence": 9})
    with pytest.raises(LogDiverged, match="rolled back"):
        reader(place("log")).position({**end, "chain": "0" * 16})
    with pytest.raises(LogDiverged, match="cannot be read"):
        reader(place("log")).position({"x": 1})


def test_a_reader_past_a_rewind_is_stopped(address: Any) -> None:
    log = new_log(address, events("a"), events("b"), events("c"))
    end = reader(address).last_offset()
    with log.writer() as writer:
        writer.rewind("key", [(1, 1)])
    with pytest.raises(LogRewound):
        reader(address).position(end)


# --- retention -------------------------------------------------------------------------------------------------------


def test_only_whole_segments_before_the_need_go(address: Any) -> None:
    log = new_log(address, *(events(f"a{number}", f"b{number}") for number in range(5)))
    assert plan_trim(address, 5) is None, "a log without a setting is never trimmed"
    home_of(address).set_keep(3600.0)
    assert plan_trim(address, 5) is None, "the events are too young"
    home_of(address).set_keep(0.0)
    assert home_of(address).keep() == 0.0
    late: dict[str, Any] = {"clock": lambda: 4e9}
    trim = plan_trim(address, 5, **late)
    assert trim is not None and (trim.floor, trim.segments) == (4, 2) and trim.bytes > 0
    assert log.home.floor() == 0
    apply_trim(trim)
    apply_trim(trim)
    assert plan_trim(address, 5, **late) is None
    assert log.home.floor() == 4
    assert [sequence for sequence, _ in names(EventLog.open(address), start=4)] == [4, 5, 6, 7, 8, 9]
    for behind in (lambda: names(EventLog.open(address)), lambda: names(EventLog.open(address), start=3)):
        with pytest.raises(LogTrimmed, match="it begins with 4"):
            behind()
    assert reader(address).first_offset()["sequence"] == 4
    with log.writer() as writer:
        writer.append(events("c"))
    again = plan_trim(address, 100, **late)
    assert again is not None and (again.floor, again.segments) == (11, 4)
    apply_trim(again)
    assert EventLog.open(address).chain_at(0) == log.chain_at(0), "the index stays complete"
    home_of(address).set_keep(None)
    assert home_of(address).keep() is None


# --- cursors on a store ----------------------------------------------------------------------------------------------


@pytest.fixture
def store(s3: S3Place) -> ObjectRepository:
    return ObjectRepository(s3.url("state"))


@pytest.fixture
def stored_log(s3: S3Place) -> EventLog:
    return new_log(s3.url("log"), *(events(f"e{number}") for number in range(60)))


def numbers(store: ObjectRepository, name: str = "reader") -> list[int]:
    return [int(each.removesuffix(".ckpt")) for each in store.list(f"cursors/{name}")]


def test_a_second_owner_fences_the_first(store: ObjectRepository, stored_log: EventLog) -> None:
    first = DurableCursor(store, "reader", stored_log, ALL)
    polled(first, 2)
    first.commit()
    second = DurableCursor(store, "reader", EventLog.open(stored_log.path), ALL)
    assert polled(second, 2) == [2, 3]
    second.commit()
    polled(first, 1)
    with pytest.raises(CursorFenced, match="saved by another process: number 2"):
        first.commit()
    with pytest.raises(Fenced):
        first.commit()
    second.commit()
    assert DurableCursor(store, "reader", stored_log, ALL).committed == 3


def test_a_number_that_is_free_again_does_not_count(store: ObjectRepository, stored_log: EventLog) -> None:
    """The first owner was paused for so long that newer ones have used and removed its next number."""
    paused = DurableCursor(store, "reader", stored_log, ALL)
    polled(paused, 1)
    paused.commit()
    other = DurableCursor(store, "reader", EventLog.open(stored_log.path), ALL)
    for _ in range(40):
        polled(other, 1)
        other.commit()
    assert 2 not in numbers(store)
    assert len(numbers(store)) <= 18
    polled(paused, 1)
    with pytest.raises(CursorFenced):
        paused.commit()
    assert DurableCursor(store, "reader", stored_log, ALL).committed == 40


def test_a_worker_that_was_replaced_ends_with_that_error(store: ObjectRepository, stored_log: EventLog) -> None:
    replaced = threading.Event()

    def handler(batch: Batch, log: EventLog, witness: Any) -> Action:
        with DurableCursor(store, "worker", EventLog.open(stored_log.path), ALL) as other:
            other.poll()
            other.commit()
        replaced.set()
        return Action.CONTINUE

    running = CursorWorker(ALL, handler, log=stored_log, repository=store, cursor="worker", batch=5).start()
    with pytest.raises(CursorFenced):
        running.join(120)
    assert replaced.is_set()


def test_a_lost_answer_does_not_fence_the_owner(
    s3: S3Place, s3_faults: FaultProxy, store: ObjectRepository, stored_log: EventLog
) -> None:
    with DurableCursor(store, "reader", stored_log, ALL) as cursor:
        for number, fault in enumerate(Fault):
            s3_faults.hang_s = 0.1
            polled(cursor, 1)
            s3_faults.fail(fault, "CREATE", key="cursors/")
            cursor.commit()
            assert cursor.committed == number
    record = read_cursor(store, "reader")
    assert record is not None and record.position == len(Fault) - 1


def test_a_position_whose_record_is_gone_or_changed_is_damage(
    s3: S3Place, store: ObjectRepository, stored_log: EventLog
) -> None:
    with DurableCursor(store, "reader", stored_log, ALL) as cursor:
        polled(cursor, 10)
        cursor.commit()
    record = s3.folder / "log/index" / f"{9:020}.json"
    data = record.read_bytes()
    record.write_bytes(data.replace(b'"count":1', b'"count":2'))
    with pytest.raises(LogCorrupt):
        DurableCursor(store, "reader", EventLog.open(stored_log.path), ALL)
    record.unlink()
    with pytest.raises(LogCorrupt, match="is missing"):
        DurableCursor(store, "reader", EventLog.open(stored_log.path), ALL)
