"""Rewinds of an event log: it is never cut, readers skip what was abandoned, and one that has read it is stopped."""

from pathlib import Path

import msgspec
import pytest

from handstaged import Log
from holdfast.errors import (
    BadValue,
    CursorLogMismatch,
    CursorMissing,
    Locked,
    LogCorrupt,
    LogRewound,
    UnsupportedVersion,
)
from holdfast.eventlog import Cursor, DurableCursor, EventLog, NewEvent, Region, repair
from holdfast.eventlog import index as module
from holdfast.eventlog._cursor_reset import CursorReset, apply_reset, plan_reset
from holdfast.eventlog._files import About, read_stored
from holdfast.eventlog.index import Cancelled, Committed, IndexHead, RangeDamaged, Rewound, decode
from holdfast.repository import MemoryRepository
from holdfast.spark.logsource import LogReader, abandoned_in, spark_schema
from support import events, new_log

ALL = Region.everything()


def read(log: EventLog) -> list[int]:
    return [event.sequence for event in log.read()]


def polled(cursor: Cursor, limit: int = 100) -> list[int]:
    return [event.sequence for event in cursor.poll_batch(limit)]


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    """A log of the sequences 0 and 1, 2 and 3, 4, 5."""
    return new_log(tmp_path / "log", events("a", "b"), events("c", "d"), events("e"), events("f"))


def rewound(log: EventLog, *abandoned: tuple[int, int], restored: tuple[tuple[int, int], ...] = ()) -> int:
    with log.writer() as writer:
        return writer.rewind("key", abandoned, restored)


def appended(log: EventLog, *names: str) -> range:
    with log.writer() as writer:
        return writer.append(events(*names))


# --- the log ---------------------------------------------------------------------------------------------------------


def test_abandoned_ranges_are_skipped_and_no_sequence_is_used_twice(log: EventLog) -> None:
    assert rewound(log, (2, 2), (5, 1)) == 6
    assert appended(log, "g") == range(7, 8)
    assert read(log) == read(EventLog.open(log.path)) == read(EventLog.open_end(log.path)) == [0, 1, 4, 7]
    assert log.tail == 8
    assert log.cancelled(0, 8) == [(2, 4), (5, 7)]
    assert [segment.first for segment in log.segments(0, 8)] == [0, 4, 7]


def test_an_undo_restores_them(log: EventLog) -> None:
    rewound(log, (2, 2), (5, 1))
    rewound(log, restored=((2, 2), (5, 1)))
    assert appended(log, "g") == range(8, 9)
    assert read(log) == [0, 1, 2, 3, 4, 5, 8]
    assert log.cancelled(0, 9) == [(6, 8)]


def test_a_log_that_is_opened_at_its_end_reads_earlier_rewinds_when_it_needs_them(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a"), events("b"))
    rewound(log, (1, 1))
    with log.writer() as writer:
        for _ in range(200):
            writer.append(events("x"))
    assert read_stored(log.path).anchors[0].records > 3
    end = EventLog.open_end(log.path)
    assert (end.rewinds, end.tail) == (0, 203)
    assert [event.sequence for event in end.read(start=195)] == list(range(195, 203))
    assert end.rewinds == 0
    assert read(end) == [0, *range(3, 203)]
    assert end.rewinds == 1
    other = EventLog.open_end(log.path)
    assert other.changed_before(200) is None
    assert other.changed_before(3) is None
    assert other.changed_before(2) == 1
    assert other.changed_before(1) is None


def test_earlier_programs_refuse_the_log(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the version of `log.json`; and one that has it open, by the record in the index."""
    rewound(log)
    assert read(log) == [0, 1, 2, 3, 4, 5]
    monkeypatch.setattr(About, "KNOWN", (1,))
    with pytest.raises(UnsupportedVersion):
        EventLog.open(log.path)
    monkeypatch.undo()
    monkeypatch.setattr(module, "_decoder", msgspec.msgpack.Decoder(Committed | Cancelled))
    with pytest.raises(LogCorrupt, match="rewound"):
        EventLog.open(log.path)


@pytest.mark.parametrize("record", [(6, 1, "k", ((6, 1),)), (6, 2, "k", ((2, 2),)), (6, 1, "k", (), ((2, 0),))])
def test_a_record_that_contradicts_itself_is_damage(log: EventLog, record: tuple[object, ...]) -> None:
    head = IndexHead.first("x")
    for count in (4, 2):
        data, head = module.encode(Committed(head.tail, count, ()), head)
    data, _ = module.encode(Rewound(*record), head)  # type: ignore[arg-type]
    with pytest.raises(RangeDamaged, match="not before it"):
        list(decode(data, head))


def test_a_torn_head_is_repaired_with_the_rewind(log: EventLog) -> None:
    rewound(log, (4, 1))
    head = log.path / "head"
    data = bytearray(head.read_bytes())
    data[600] ^= 1
    head.write_bytes(data)
    repair(log.path)
    assert read(EventLog.open(log.path)) == [0, 1, 2, 3, 5]


# --- cursors ---------------------------------------------------------------------------------------------------------


def test_a_cursor_before_the_cut_skips_what_was_abandoned(log: EventLog) -> None:
    cursor = Cursor(log, ALL, gap_buffer=5)
    assert polled(cursor, 2) == [0, 1]
    rewound(log, (2, 2), (4, 1), (5, 1))
    appended(log, "g")
    assert polled(cursor) == [7]
    assert [gap.cancelled for gap in cursor.take_gaps()] == [((2, 7),)]


def test_a_cursor_that_has_delivered_abandoned_events_is_stopped(log: EventLog) -> None:
    cursor = Cursor(log, ALL)
    assert polled(cursor, 2) == [0, 1]
    cursor.commit()
    assert polled(cursor, 1) == [2]
    rewound(log, (2, 2), (4, 1), (5, 1))
    appended(log, "g")
    for _ in range(2):
        with pytest.raises(LogRewound) as refused:
            while polled(cursor):  # what it has read from the file before the rewind, it may still deliver
                pass
        assert refused.value.changed == 2
    cursor.rollback()
    assert polled(cursor) == [7]


def test_a_cursor_is_not_stopped_by_a_rewind_that_was_undone(log: EventLog) -> None:
    cursor = Cursor(log, ALL)
    assert polled(cursor) == [0, 1, 2, 3, 4, 5]
    rewound(log, (4, 1), (5, 1))
    rewound(log, restored=((4, 1), (5, 1)))
    appended(log, "g")
    assert polled(cursor) == [8]


def test_a_cursor_that_skipped_events_delivers_them_after_the_undo(log: EventLog) -> None:
    cursor = Cursor(log, ALL)
    assert polled(cursor, 4) == [0, 1, 2, 3]
    rewound(log, (4, 1), (5, 1))
    assert polled(cursor) == []
    rewound(log, restored=((4, 1), (5, 1)))
    assert polled(cursor) == [4, 5]


def test_a_cursor_that_has_passed_abandoned_events_is_stopped_when_they_return(log: EventLog) -> None:
    """Another writer has appended in between, so the cursor stands after the events that it skipped."""
    rewound(log, (4, 1), (5, 1))
    appended(log, "g")
    cursor = Cursor(log, ALL)
    assert polled(cursor) == [0, 1, 2, 3, 7]
    rewound(log, restored=((4, 1), (5, 1)))
    with pytest.raises(LogRewound):
        polled(cursor)


@pytest.fixture
def repository(log: EventLog) -> MemoryRepository:
    """With a cursor `c` that has read up to sequence 4."""
    repository = MemoryRepository()
    with DurableCursor(repository, "c", log, ALL) as cursor:
        assert polled(cursor, 5) == [0, 1, 2, 3, 4]
        cursor.commit()
    return repository


def test_a_durable_cursor_past_the_cut_names_the_command_that_resets_it(
    log: EventLog, repository: MemoryRepository
) -> None:
    rewound(log, (2, 2), (4, 1), (5, 1))
    with pytest.raises(LogRewound, match=r"cursor 'c' has read up to sequence 4.*holdfast cursor reset c"):
        DurableCursor(repository, "c", EventLog.open(log.path), ALL)
    plan = plan_reset(repository, "c", log)
    assert plan == CursorReset("c", 5, 2, log.identity)
    apply_reset(repository, plan, log)
    appended(log, "g")
    with DurableCursor(repository, "c", log, ALL) as cursor:
        assert polled(cursor) == [7]
        with pytest.raises(Locked):
            apply_reset(repository, plan, log)


def test_a_durable_cursor_before_the_cut_is_not_moved(log: EventLog, repository: MemoryRepository) -> None:
    rewound(log, (5, 1))
    assert plan_reset(repository, "c", log) == CursorReset("c", 5, 5, log.identity)
    with DurableCursor(repository, "c", log, ALL) as cursor:
        assert polled(cursor) == []


def test_a_cursor_is_reset_to_any_place(log: EventLog, repository: MemoryRepository, tmp_path: Path) -> None:
    for to, expected in ((3, [3, 4, 5]), (0, [0, 1, 2, 3, 4, 5]), (6, [])):
        apply_reset(repository, plan_reset(repository, "c", log, to), log)
        with DurableCursor(repository, "c", log, ALL) as cursor:
            assert polled(cursor) == expected
    apply_reset(repository, plan_reset(repository, "c", None, 0), None)
    with DurableCursor(repository, "c", log, ALL) as cursor:
        assert not cursor.started
    with pytest.raises(BadValue, match="ends before sequence 6"):
        plan_reset(repository, "c", log, 7)
    with pytest.raises(BadValue, match="--log"):
        plan_reset(repository, "c", None, 3)
    with pytest.raises(CursorMissing):
        plan_reset(repository, "other", log)
    with pytest.raises(CursorLogMismatch):
        plan_reset(repository, "c", new_log(tmp_path / "other", events("a")), 0)


# --- the source and the sink -----------------------------------------------------------------------------------------


def test_a_stream_that_has_read_past_the_cut_is_stopped(log: EventLog) -> None:
    reader = LogReader(log.home, spark_schema(log.home), None, 2)
    offsets = [reader._offset(sequence) for sequence in range(7)]
    rewound(log, (4, 1), (5, 1))
    again = LogReader(log.home, spark_schema(log.home), None, 2)
    assert [again.position(offset) for offset in offsets[:5]] == [0, 1, 2, 3, 4]
    for offset in offsets[5:]:
        with pytest.raises(LogRewound, match="from sequence 4 on"):
            again.position(offset)
    assert [piece.segment.first for piece in again._pieces(0, 6)] == [0, 2]
    rewound(log, restored=((4, 1), (5, 1)))
    assert [again.position(offset) for offset in offsets] == list(range(7))


def test_a_batch_query_leaves_out_what_was_abandoned(log: EventLog) -> None:
    rewound(log, (0, 2), (4, 1), (5, 1))
    log.refresh()
    assert abandoned_in(log, 0, 7) == [(0, 2), (4, 6)]
    assert abandoned_in(log, 2, 5) == [(4, 5)]


def test_only_the_epochs_of_the_owner_are_abandoned(tmp_path: Path) -> None:
    """Another program has appended to the same log."""
    contract = Log()
    sink = contract._filled(None, tmp_path)
    with EventLog.open(tmp_path / "log").writer() as writer:
        writer.append([NewEvent("row 9", {"n": 9, "text": "row 9"})])
    assert contract._taken(tmp_path, (1, 2), 2)
    assert contract._seen(None, sink) == [1, 2, 9]
    log = EventLog.open(tmp_path / "log")
    assert [each.first for each in log.ranges() if isinstance(each, Rewound)] == [5]
