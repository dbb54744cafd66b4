import contextlib
import os
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import (
    AlreadyExists,
    AppendOpen,
    BadValue,
    ClockNotKept,
    Closed,
    Locked,
    LogCorrupt,
    LogHalted,
    LogMissing,
    OutcomeUnknown,
    StorageFailed,
)
from holdfast.eventlog import EventLog, KindFilter, LogWriter, NewEvent, Region, repair
from holdfast.eventlog import index as ranges
from holdfast.eventlog import local_home as eventlogs
from holdfast.eventlog import writer as logwriter
from holdfast.eventlog._files import read_stored
from holdfast.eventlog.index import Cancelled, IndexHead, StoredHead, encode
from support import events, new_log, refused_in_a_child, segment_files


def names(log: EventLog, region: Region | None = None, start: int = 0) -> list[tuple[int, str]]:
    return [(event.sequence, event.entity) for event in log.read(region, start)]


def test_events_come_back_in_one_sequence_from_zero(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a", "b"), events("c"))
    assert names(log) == [(0, "a"), (1, "b"), (2, "c")]
    assert names(log, start=1) == [(1, "b"), (2, "c")]
    assert names(log, start=99) == []
    assert [event.entity for event in log.read(start=1, end=2)] == ["b"]
    assert [event.entity for event in log.read(end=99)] == ["a", "b", "c"]
    assert list(log.read(start=2, end=1)) == []
    with pytest.raises(BadValue, match="start"):
        log.read(start=-1)
    with pytest.raises(BadValue, match="region"):
        log.read("a")
    assert log.tail == 3
    event = next(log.read())
    assert (event.scope, event.category, event.type, event.clock, event.payload) == ("default", 0, 0, None, b"a")


def test_an_append_says_its_sequences_and_an_empty_one_leaves_nothing(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        assert writer.append(events("a", "b")) == range(2)
        assert writer.append([]) == range(2, 2)
        assert writer.append(events("c")) == range(2, 3)
        assert writer.tail == 3
    assert log.refresh() == 3


def test_many_steps_are_one_append_and_nobody_sees_half_of_it(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        with writer.begin() as append:
            append.add(events("a"))
            append.add(events("b", "c"))
            assert names(log) == []
            with pytest.raises(AppendOpen, match="commit or abort"):
                writer.begin()
        assert append.sequences == range(3)
    assert names(log) == [(0, "a"), (1, "b"), (2, "c")]
    with pytest.raises(Closed):
        append.add(events("d"))


def test_an_aborted_append_leaves_a_cancelled_range(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        writer.append(events("a"))
        with pytest.raises(RuntimeError), writer.begin() as append:
            append.add(events("b", "c"))
            raise RuntimeError("not this one")
        assert append.sequences == range(1, 3)
        append = writer.begin()
        assert append.abort() == range(3, 3)  # nothing was in it
        writer.append(events("d"))
        assert writer.cancel(4, "by hand") == range(4, 8)
    assert names(log) == [(0, "a"), (3, "d")]
    assert log.tail == 8
    assert log.cancelled(0, log.tail) == [(1, 3), (4, 8)]
    assert log.cancelled(2, 6) == [(2, 3), (4, 6)]
    assert log.cancelled(3, 4) == []


def test_regions_filter_by_scope_entity_kind_and_clock(tmp_path: Path) -> None:
    log = new_log(
        tmp_path,
        [
            NewEvent("user", b"", scope="s", category=1, type=1, clock=1),
            NewEvent("user:7", b"", scope="s", category=1, type=2, clock=2),
            NewEvent("users", b"", scope="t", category=2, type=1, clock=3),
            NewEvent("user:7", b"", scope="t", category=1, type=2, clock=4),
        ],
        keep_clock=True,
    )

    def found(**region: Any) -> list[int]:
        return [sequence for sequence, _ in names(log, Region(**region))]

    assert found() == [0, 1, 2, 3]
    assert found(entity="user") == [0, 1, 3]
    assert found(entity="user:7", scope="t") == [3]
    assert found(kind=KindFilter.any()) == [0, 1, 2, 3]
    assert found(kind=KindFilter(1)) == [0, 1, 3]
    assert found(kind=KindFilter(1, 2)) == [1, 3]
    assert found(clock=(2, 3)) == [1, 2]
    assert found(clock=(0, 2**64 - 1)) == [0, 1, 2, 3]
    assert found(clock=(2**63, 2**64 - 1)) == []


@given(data=st.data())
def test_reading_by_region_agrees_with_the_regions_own_word(data: st.DataObject, tmp_path_factory: Any) -> None:
    entities = st.sampled_from(["a", "a:b", "a:b:c", "ab", "b", "*", "%"])
    batches = data.draw(
        st.lists(
            st.lists(
                st.builds(
                    NewEvent,
                    entities,
                    st.binary(max_size=3),
                    st.sampled_from("st"),
                    st.integers(0, 2),
                    st.integers(0, 2),
                ),
                max_size=6,
            ),
            max_size=4,
        )
    )
    region = data.draw(
        st.builds(
            Region,
            st.none() | entities,
            st.none() | st.sampled_from("st"),
            st.none() | st.builds(KindFilter, st.integers(0, 2), st.none() | st.integers(0, 2)),
        )
    )
    start = data.draw(st.integers(0, 8))
    log = new_log(tmp_path_factory.mktemp("log"), *batches)
    flat = [event for batch in batches for event in batch]
    expected = [
        (sequence, event.entity, event.payload)
        for sequence, event in enumerate(flat)
        if sequence >= start and region.holds(event.scope, event.entity, event.category, event.type, None)
    ]
    assert [(event.sequence, event.entity, event.payload) for event in log.read(region, start)] == expected


def test_a_large_segment_is_numbered_by_place_alone(tmp_path: Path) -> None:
    count = 30_000
    table = pa.table(
        {
            "scope": ["s"] * count,
            "entity": [f"e:{number % 1000}" for number in range(count)],
            "category": pa.array([0] * count, pa.int32()),
            "type": pa.array([0] * count, pa.int32()),
            "payload": [str(number).encode() for number in range(count)],
        }
    )
    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        writer.append(events("before"))
        assert writer.append(table) == range(1, count + 1)
    found = [(event.sequence, event.payload) for event in log.read(Region(entity="e:7"))]
    assert found == [(number + 1, str(number).encode()) for number in range(7, count, 1000)]
    assert [event.sequence for event in log.read(start=count - 1)] == [count - 1, count]


def test_payloads_may_have_any_arrow_type(tmp_path: Path) -> None:
    kind = pa.struct([("amount", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string()))])
    log = EventLog.create(tmp_path, payload=kind)
    with log.writer() as writer:
        writer.append([NewEvent("a", {"amount": None, "tags": ["x"]}), NewEvent("b", None)])
        with pytest.raises(BadValue, match="no field 'tag'"):
            writer.append([NewEvent("a", {"amount": None, "tag": ["x"]})])
    assert [event.payload for event in EventLog.open(tmp_path).read()] == [{"amount": None, "tags": ["x"]}, None]


def arrow(**columns: Any) -> pa.Table:
    base: dict[str, Any] = {"scope": ["s"], "entity": ["e"], "category": [0], "type": [0], "payload": [b""]}
    return pa.table({**base, **columns})


@pytest.mark.parametrize(
    "bad",
    [
        [NewEvent("", b"")],
        [NewEvent("a", b"", scope="")],
        [NewEvent("a", b"", category=-1)],
        [NewEvent("a", b"", type=70_000)],
        [NewEvent("a", b"", clock=1)],
        [NewEvent("a", 5)],
        [NewEvent("a", "text")],
        NewEvent("a", b"one, not several"),
        [("a", b"1")],
        "abc",
        None,
        [NewEvent("\ud800", b"")],
        arrow(scope=[""]),
        arrow(entity=[None]),
        arrow(category=[-1]),
        arrow(type=[1 << 20]),
        arrow(payload=[5]),
        arrow().drop_columns(["type"]),
    ],
    ids=lambda bad: str(bad)[:40],
)
def test_bad_events_are_refused_and_nothing_is_appended(tmp_path: Path, bad: Any) -> None:
    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        with pytest.raises(BadValue):
            writer.append(bad)
        assert writer.append(events("good")) == range(1)
    assert names(log) == [(0, "good")]


def test_a_clock_is_refused_where_the_log_keeps_none_and_needed_where_it_does(tmp_path: Path) -> None:
    log = new_log(tmp_path / "without", events("a"))
    with pytest.raises(ClockNotKept, match="does not store entity clocks"):
        log.read(Region(clock=(0, 1)))
    with EventLog.create(tmp_path / "with", keep_clock=True).writer() as writer, pytest.raises(BadValue, match="clock"):
        writer.append(events("a"))


def test_one_process_writes_at_a_time_and_readers_need_no_lock(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        with pytest.raises(Locked) as caught:
            log.writer()
        assert caught.value.pid == os.getpid()
        writer.append(events("a"))
        assert names(EventLog.open(tmp_path)) == [(0, "a")]
    with pytest.raises(Closed):
        writer.append(events("b"))
    LogWriter(log.path).close()


def test_a_log_is_made_once_and_opened_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(LogMissing):
        EventLog.open(tmp_path)
    made = EventLog.create(tmp_path)
    with pytest.raises(AlreadyExists):
        EventLog.create(tmp_path)
    assert EventLog.open(tmp_path).identity == made.identity
    assert EventLog.open_or_create(tmp_path).identity == made.identity
    with pytest.raises(AlreadyExists, match="other columns"):
        EventLog.open_or_create(tmp_path, keep_clock=True)
    for path in ("", "s3://bucket/x?y", "http://host/x", None, 3):
        with pytest.raises(BadValue):
            EventLog.create(path)
    (tmp_path / "log.json").unlink()  # as a creation that was cut off leaves it
    again = EventLog.create(tmp_path)
    assert again.identity != made.identity
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailed):
        EventLog.create(tmp_path / "file")
    with pytest.raises(BadValue, match="contains other files, such as 'file'"):
        EventLog.create(tmp_path)
    with pytest.raises(LogMissing):
        EventLog.open(tmp_path / "file")


def test_what_a_crash_left_behind_the_head_has_never_been(tmp_path: Path) -> None:
    """A whole record, a torn one, and plain rubbish behind the head: readers ignore it, the next writer drops it."""
    log = new_log(tmp_path, events("a"))
    index = tmp_path / "index"
    good = index.read_bytes()
    head = IndexHead(1, len(good), good[-32:], 1)
    whole, _ = encode(Cancelled(1, 5, "never happened"), head)
    for rubbish in (whole, whole[:-1], b"\0", b"rubbish" * 100):
        index.write_bytes(good + rubbish)
        assert names(EventLog.open(tmp_path)) == [(0, "a")]
    log.writer().close()
    assert index.read_bytes() == good
    with log.writer() as writer:
        assert writer.append(events("b")) == range(1, 2)
    assert names(EventLog.open(tmp_path)) == [(0, "a"), (1, "b")]


def test_a_writer_that_failed_at_the_index_halts_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.eventlog import writer as logwriter

    log = new_log(tmp_path, events("a"))
    with log.writer() as writer:

        def fail(descriptor: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(logwriter.os, "fdatasync", fail)
            with pytest.raises(OutcomeUnknown, match="Input/output"):
                writer.append(events("b"))
        with pytest.raises(LogHalted):
            writer.append(events("c"))
    with log.writer() as writer:
        assert writer.tail == 1
        writer.append(events("c"))
    assert names(log) == [(0, "a"), (1, "c")]


def test_a_folder_of_sequences_never_holds_what_an_earlier_append_left(tmp_path: Path) -> None:
    """Parquet readers that take a log's folders as they are must find each sequence once."""
    log = new_log(tmp_path, events("a"))
    for first in (1, 2):
        left = tmp_path / f"segments/first={first:020}"
        left.mkdir()
        (left / "left-by-a-crash.parquet").write_bytes(b"")
    with log.writer() as writer:
        writer.append(events("b"))
        writer.cancel(1, "x")
    assert not (tmp_path / f"segments/first={2:020}").exists()
    (only,) = (tmp_path / f"segments/first={1:020}").iterdir()
    assert names(log) == [(0, "a"), (1, "b")]
    assert only.suffix == ".parquet"


def test_a_segment_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a"))
    with log.writer() as writer:
        (tmp_path / "segments").rename(tmp_path / "aside")
        (tmp_path / "segments").write_bytes(b"")
        with pytest.raises(StorageFailed):
            writer.append(events("b"))
        (tmp_path / "segments").unlink()
        (tmp_path / "aside").rename(tmp_path / "segments")
        assert writer.append(events("c")) == range(1, 2)
    assert names(log) == [(0, "a"), (1, "c")]


def test_a_halted_or_closed_writer_commits_nothing_through_an_open_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    log = new_log(tmp_path, events("a"))
    writer = log.writer()
    append = writer.begin()
    append.add(events("b"))
    with pytest.raises(AppendOpen):
        writer.cancel(1, "in between")
    writer._halted = True
    for end in (append.commit, append.abort):
        with pytest.raises(LogHalted):
            end()
    writer.close()
    for end in (append.commit, append.abort):
        with pytest.raises(Closed):
            end()
    assert names(EventLog.open(tmp_path)) == [(0, "a")]


@pytest.mark.parametrize("why", [5, None, b"x"])
def test_a_reason_that_could_not_be_read_back_is_refused(tmp_path: Path, why: Any) -> None:
    log = new_log(tmp_path, events("a"))
    with log.writer() as writer:
        with pytest.raises(BadValue):
            writer.cancel(1, why)
        append = writer.begin()
        append.add(events("b"))
        with pytest.raises(BadValue):
            append.abort(why)
    assert EventLog.open(tmp_path).tail == 1


def test_an_abort_by_an_error_with_an_odd_text_still_leaves_its_range(tmp_path: Path) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        for error in (RuntimeError("\udc80"), Mute()):
            with pytest.raises(type(error)), writer.begin() as append:
                append.add(events("a"))
                raise error
    assert log.refresh() == 2
    assert [log.index.holding(each) for each in (0, 1)] == [
        Cancelled(0, 1, "RuntimeError: \\udc80"),
        Cancelled(1, 1, "Mute: (its text cannot be shown)"),
    ]


def test_a_log_that_lost_its_record_is_damaged_and_never_made_anew(tmp_path: Path) -> None:
    new_log(tmp_path, events("a"))
    (tmp_path / "log.json").unlink()
    index = (tmp_path / "index").read_bytes()
    for make in (EventLog.open, EventLog.create, EventLog.open_or_create):
        with pytest.raises(LogCorrupt, match="it is missing, but the log has records"):
            make(tmp_path)
    assert (tmp_path / "index").read_bytes() == index


def test_a_log_is_not_made_under_a_live_writer(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path)
    about = (tmp_path / "log.json").read_bytes()
    with log.writer() as writer:
        (tmp_path / "log.json").unlink()
        with pytest.raises(Locked):
            EventLog.create(tmp_path)
        (tmp_path / "log.json").write_bytes(about)
        writer.append(events("a"))
    assert names(log) == [(0, "a")]


def test_another_logs_record_does_not_fit(tmp_path: Path) -> None:
    new_log(tmp_path / "one", events("a"))
    other = new_log(tmp_path / "other", events("a"))
    (tmp_path / "one/log.json").write_bytes((other.path / "log.json").read_bytes())
    with pytest.raises(LogCorrupt, match="chain"):
        EventLog.open(tmp_path / "one")


def test_a_head_that_went_back_does_not_take_committed_records_along(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a"))
    head = (tmp_path / "head").read_bytes()
    with log.writer() as writer:
        for name in "bcd":
            writer.append(events(name))
    index = (tmp_path / "index").read_bytes()
    (tmp_path / "head").write_bytes(head)
    with pytest.raises(LogCorrupt, match="3 more complete records follow"):
        log.writer()
    assert (tmp_path / "index").read_bytes() == index
    assert repair(tmp_path).regained == 3
    assert len(names(EventLog.open(tmp_path))) == 4


@pytest.mark.parametrize("more", [1, 3])
def test_a_repair_never_gives_up_a_record_whose_segment_is_missing(tmp_path: Path, more: int) -> None:
    """It may have been counted, and its segment may come back: it is refused by name until it does."""
    log = new_log(tmp_path, events("a"))
    head = (tmp_path / "head").read_bytes()
    with log.writer() as writer:
        for name in "bcd"[:more]:
            writer.append(events(name))
    (tmp_path / "head").write_bytes(head)
    (lost,) = tmp_path.glob(f"segments/first={1:020}/*.parquet")
    aside = lost.rename(tmp_path / "aside")
    index = (tmp_path / "index").read_bytes()
    with pytest.raises(LogCorrupt, match=f"{lost.name} is damaged: its file is missing"):
        repair(tmp_path)
    assert (tmp_path / "index").read_bytes() == index
    aside.rename(lost)
    assert repair(tmp_path).regained == more
    assert len(names(EventLog.open(tmp_path))) == 1 + more


def test_a_long_reason_is_cut_and_hides_no_record_behind_it(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a"))
    head = (tmp_path / "head").read_bytes()
    with log.writer() as writer:
        writer.cancel(1, "x" * 2**21)
        writer.append(events("b"))
    assert (tmp_path / "index").stat().st_size < 5000
    (tmp_path / "head").write_bytes(head)
    with pytest.raises(LogCorrupt, match="2 more complete records follow"):
        log.writer()


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_nothing_is_written_behind_an_index_that_was_damaged(tmp_path: Path, damage: str) -> None:
    log = new_log(tmp_path, events("a"), events("b"))
    index = tmp_path / "index"
    good = index.read_bytes()
    if damage == "missing":
        index.unlink()
    else:
        index.write_bytes(good[:10] if damage == "cut" else good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(LogCorrupt, match="index is damaged"):
        log.writer()
    index.write_bytes(good)
    log.writer().close()


def test_an_append_whose_writer_was_closed_inside_its_block_says_so(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path)
    writer = log.writer()
    with pytest.raises(Closed), writer.begin() as append:
        append.add(events("a"))
        writer.close()
    writer = log.writer()
    with pytest.raises(KeyError, match="mine"), writer.begin() as append:  # the caller's own error is not hidden
        append.add(events("a"))
        writer.close()
        raise KeyError("mine")
    assert EventLog.open(tmp_path).tail == 0


def test_threads_may_share_a_writer(tmp_path: Path) -> None:
    """Every event whose append returned is in the log, at the sequence that the append returned."""
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for trial in range(60):
            log = EventLog.create(tmp_path / str(trial))
            acknowledged: list[tuple[int, str]] = []
            start = threading.Barrier(2)
            with log.writer() as writer, ThreadPoolExecutor(2) as threads:

                def append(
                    thread: int,
                    writer: LogWriter = writer,
                    start: threading.Barrier = start,
                    acknowledged: list[tuple[int, str]] = acknowledged,
                ) -> None:
                    start.wait()
                    for number in range(3):
                        name = f"{thread}-{number}"
                        [sequence] = writer.append(events(name))
                        acknowledged.append((sequence, name))

                list(threads.map(append, range(2)))
            assert len(acknowledged) == 6
            assert names(EventLog.open(log.path)) == sorted(acknowledged)
    finally:
        sys.setswitchinterval(switch)


def test_threads_that_begin_cancel_and_adopt_take_turns(tmp_path: Path) -> None:
    """An append of several steps excludes the others, which are refused and change nothing."""
    log = EventLog.create(tmp_path / "log")
    start = threading.Barrier(4)
    counts = {"a": 0, "cancelled": 0}

    def begin(writer: LogWriter) -> None:
        with writer.begin() as append:
            append.add(events("a"))
            append.add(events("a"))
        counts["a"] += 2

    def append(writer: LogWriter) -> None:
        writer.append(events("a"))
        counts["a"] += 1

    def cancel(writer: LogWriter) -> None:
        writer.cancel(1, "by hand")
        counts["cancelled"] += 1

    def adopt(writer: LogWriter) -> None:
        writer.adopt(segment_files(tmp_path / uuid.uuid4().hex, log, events("a")), "key")
        counts["a"] += 1

    with log.writer() as writer, ThreadPoolExecutor(4) as threads:

        def work(step: Callable[[LogWriter], None]) -> None:
            start.wait()
            for _ in range(10):
                with contextlib.suppress(AppendOpen):
                    step(writer)

        list(threads.map(work, [begin, append, cancel, adopt]))
    log = EventLog.open(tmp_path / "log")
    assert (len(names(log)), log.tail) == (counts["a"], counts["a"] + counts["cancelled"])


def test_an_append_that_is_dropped_is_aborted_when_the_next_one_begins(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        for follow in (writer.begin, lambda: writer.append(events("b")), lambda: writer.cancel(1, "by hand")):
            append = writer.begin()
            append.add(events("a", "a"))
            append.add(events("a"))
            with pytest.raises(AppendOpen):
                follow()
            del append
            before = writer.tail
            follow()
            log.refresh()
            found = log.index.holding(before)
            assert found == Cancelled(before, 3, "dropped without commit or abort")
        writer.begin()  # holds nothing, so there is nothing to record
        assert writer.append(events("c")) == range(writer.tail - 1, writer.tail)


def test_two_who_open_or_create_at_the_same_moment_have_one_log(tmp_path: Path) -> None:
    for number in range(20):
        found: list[str] = []

        def both(path: Path = tmp_path / str(number), found: list[str] = found) -> None:
            found.append(EventLog.open_or_create(path).identity)

        threads = [threading.Thread(target=both) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert len(set(found)) == 1


def test_a_range_out_of_bounds_is_refused_and_the_writer_goes_on(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a"))
    with log.writer() as writer:
        with pytest.raises(BadValue):
            writer.cancel(2**64, "x")
        assert writer.append(events("b")) == range(1, 2)


def test_a_writer_syncs_the_head_that_it_builds_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed one may have left it in memory alone: with a second record behind it, a loss of power would show two."""
    log = new_log(tmp_path, events("a"))
    synced: list[str] = []
    fdatasync = os.fdatasync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", note)
    with LogWriter(str(log.path)):
        assert synced == ["head"]


def test_a_reader_makes_a_new_head_durable_before_it_believes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a cursor could be saved past events that a loss of power takes away again."""
    log = EventLog.create(tmp_path)
    synced = []
    fdatasync = os.fdatasync

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fdatasync(descriptor)

    with log.writer() as writer:
        writer.append(events("a"))
        monkeypatch.setattr(os, "fdatasync", note)
        assert log.refresh() == 1
        assert synced == [str(tmp_path / "head")]
        assert log.refresh() == 1
        assert len(synced) == 1


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.duration("us"), pa.list_(pa.timestamp("s")), pa.month_day_nano_interval(), "text"]
)
def test_payload_types_that_python_cannot_hold_are_refused(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(BadValue, match="payload type"):
        EventLog.create(tmp_path, payload=kind)
    assert not (tmp_path / "log.json").exists()


def test_a_forked_child_has_no_part_in_its_parents_writer(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        writer.append(events("a"))
        assert refused_in_a_child(lambda: writer.append(events("child")), Closed)
        assert writer.append(events("b")) == range(1, 2)
    assert names(log) == [(0, "a"), (1, "b")]


def test_an_index_that_went_back_under_a_reader_is_found(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a"))
    saved = {name: (tmp_path / name).read_bytes() for name in ("head", "index")}
    with log.writer() as writer:
        writer.append(events("b"))
    assert names(log) == [(0, "a"), (1, "b")]
    for name, data in saved.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(LogCorrupt, match="counts 1 records, but there were 2"):
        log.refresh()


@pytest.mark.parametrize("slot", [0, 1])
def test_a_torn_head_is_refused_and_repaired_on_request_without_loss(tmp_path: Path, slot: int) -> None:
    log = new_log(tmp_path, events("a"), events("b"), events("c"))
    data = bytearray((tmp_path / "head").read_bytes())
    data[slot * 1024 + 5] ^= 0xFF
    (tmp_path / "head").write_bytes(data)
    with pytest.raises(LogCorrupt, match="repair"):
        EventLog.open(tmp_path)
    with pytest.raises(LogCorrupt):
        log.writer()
    repaired = repair(tmp_path)
    assert (repaired.records, repaired.dropped_bytes) == (3, 0)
    assert names(EventLog.open(tmp_path)) == [(0, "a"), (1, "b"), (2, "c")]
    with log.writer() as writer:
        writer.append(events("d"))
    assert repair(tmp_path).regained == 0


def test_a_repair_regains_only_what_is_whole_and_refuses_to_guess(tmp_path: Path) -> None:
    new_log(tmp_path, events("a"), events("b"), events("c"))
    good = (tmp_path / "head").read_bytes()
    newest = max((0, 1), key=lambda slot: int.from_bytes(good[slot * 1024 + 16 : slot * 1024 + 24], "little"))
    torn = bytearray(good)
    torn[newest * 1024] ^= 1
    (tmp_path / "head").write_bytes(torn)
    index = (tmp_path / "index").read_bytes()
    (tmp_path / "index").write_bytes(index[:-1])
    repaired = repair(tmp_path)
    assert (repaired.records, repaired.regained) == (2, 0)
    (tmp_path / "index").write_bytes(index[:40])
    with pytest.raises(LogCorrupt, match="0 of 2 records are complete"):
        repair(tmp_path)
    both = bytearray(good)
    both[0] ^= 1
    both[1024] ^= 1
    (tmp_path / "head").write_bytes(both)
    with pytest.raises(LogCorrupt):
        repair(tmp_path)


def test_files_that_lie_ready_become_one_append(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a"))
    files = segment_files(tmp_path / "staged", log, events("b", "c"), events("d"))
    with log.writer() as writer:
        assert writer.adopt([], "nothing") == range(1, 1)
        assert writer.adopt(files, "first") == range(1, 4)
        writer.append(events("e"))
        assert writer.adopt(files[1:], "second") == range(5, 6)
        with writer.begin(), pytest.raises(AppendOpen):
            writer.adopt(files, "third")
    assert names(log) == [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e"), (5, "d")]
    assert (list(log.keys()), list(log.keys(since=2)), log.records) == (["first", "second"], ["second"], 4)
    assert [(each.first, each.count) for each in log.segments(2, 4)] == [(1, 2), (3, 1)]
    assert [each.first for each in log.segments(3, 4)] == [3]
    linked = tmp_path / "log/segments/first=00000000000000000001/part-00000.parquet"
    assert linked.samefile(files[0].path)


def test_an_adoption_that_fails_before_the_index_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a"))
    files = segment_files(tmp_path / "staged", log, events("b"), events("c"))
    files[1].path.rename(tmp_path / "moved")
    with log.writer() as writer:
        with pytest.raises(StorageFailed):
            writer.adopt(files, "k")
        assert writer.append(events("d", "e", "f")) == range(1, 4)
    assert names(log) == [(0, "a"), (1, "d"), (2, "e"), (3, "f")]
    assert len(list((tmp_path / "log/segments").iterdir())) == 2


def test_a_writer_opens_without_reading_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path / "log", *[events("a")] * 20)
    read: list[int] = []
    real = logwriter.index_bytes

    def watched(folder: Path, start: int = 0) -> bytes:
        data = real(folder, start)
        read.append(len(data))
        return data

    monkeypatch.setattr(logwriter, "index_bytes", watched)
    log.writer().close()
    assert read == [32]


def test_an_index_that_changes_under_an_open_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older parts of the index are not held: what is read of them again must be what was there when it was opened."""
    monkeypatch.setattr(ranges, "_BLOCK", 1)
    path = new_log(tmp_path / "log", events("a"), events("b"), events("c")).path
    index = path / "index"
    good = index.read_bytes()
    changed = bytearray(good)
    changed[20] ^= 1
    for bad in (bytes(changed), good[:100], b"", None):
        log = EventLog.open(path)
        index.unlink() if bad is None else index.write_bytes(bad)
        for ask in (
            lambda log=log: log.chain_at(0),
            lambda log=log: log.cancelled(0, 3),
            lambda log=log: list(log.keys()),
            lambda log=log: list(log.segments(0, 3)),
            lambda log=log: list(log.read()),
        ):
            with pytest.raises(LogCorrupt, match="index"):
                ask()
        index.write_bytes(good)
        assert names(log) == [(0, "a"), (1, "b"), (2, "c")]


def watched_index(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every read of an index by a log adds its length."""
    read: list[int] = []
    real = eventlogs.read_index

    def watched(folder: Path, start: int, end: int) -> bytes:
        data = real(folder, start, end)
        read.append(len(data))
        return data

    monkeypatch.setattr(eventlogs, "read_index", watched)
    return read


def test_a_log_is_opened_at_its_end_and_read_back_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_ANCHOR_EVERY", 600)
    log = new_log(tmp_path, *[events("a")] * 40)
    whole, read = (tmp_path / "index").stat().st_size, watched_index(monkeypatch)
    end = EventLog.open_end(tmp_path)
    assert (end.tail, end.records) == (40, 40) and end.first_known > 20
    assert sum(read) <= 1600 < whole // 3
    assert end.chain_at(39) == log.chain_at(39) and len(read) == 1
    assert names(end, start=38) == [(38, "a"), (39, "a")] and len(read) == 1
    with end.writer() as writer:
        writer.append(events("b"))
    assert end.refresh() == 41 and names(end, start=39) == [(39, "a"), (40, "b")]
    assert end.chain_at(0) == log.chain_at(0), "now the rest is read"
    assert end.first_known == 0 and len(names(end)) == 41


def test_damage_before_the_anchor_is_found_when_it_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_ANCHOR_EVERY", 600)
    new_log(tmp_path, *[events("a")] * 40)
    index = bytearray((tmp_path / "index").read_bytes())
    index[20] ^= 1
    (tmp_path / "index").write_bytes(index)
    end = EventLog.open_end(tmp_path)
    assert names(end, start=39) == [(39, "a")]
    for ask in (lambda: names(end), lambda: end.chain_at(0), lambda: list(end.keys()), lambda: EventLog.open(tmp_path)):
        with pytest.raises(LogCorrupt, match="index"):
            ask()
    index[-40] ^= 1
    (tmp_path / "index").write_bytes(index)
    with pytest.raises(LogCorrupt, match="index"):
        EventLog.open_end(tmp_path)


def test_a_head_of_an_earlier_version_gets_its_anchors_with_the_next_append(tmp_path: Path) -> None:
    """It has none: the whole index is read until then. Nor has a head that was repaired."""
    log = new_log(tmp_path, *[events("a")] * 3)
    before = read_stored(tmp_path)
    assert msgspec.msgpack.encode(StoredHead.of(before.head)) == msgspec.msgpack.encode(before.head)
    repair(tmp_path)
    assert read_stored(tmp_path) == StoredHead.of(before.head)
    assert EventLog.open_end(tmp_path).first_known == 0
    with log.writer() as writer:
        writer.append(events("b"))
    assert read_stored(tmp_path).anchors == (before.head,)
    end = EventLog.open_end(tmp_path)
    assert (end.first_known, end.tail, len(names(end))) == (3, 4, 4)


def test_a_missing_log_is_missing_at_its_end_too(tmp_path: Path) -> None:
    with pytest.raises(LogMissing):
        EventLog.open_end(tmp_path)
