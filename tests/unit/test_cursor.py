from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import (
    BadName,
    BadValue,
    ClockNotKept,
    Closed,
    CursorAhead,
    CursorCorrupt,
    CursorDiverged,
    CursorLogMismatch,
    CursorRegionMismatch,
    Locked,
    LogCorrupt,
    StorageFailed,
)
from holdfast.eventlog import Cursor, DurableCursor, EventLog, Gap, Region
from holdfast.eventlog._cursor_slot import read_cursor
from holdfast.repository import LocalRepository, MemoryRepository
from holdfast.testing import FaultyRepository
from support import events, new_log, refused_in_a_child

ALL = Region.everything()


def polled(cursor: Cursor, limit: int = 100) -> list[int]:
    return [event.sequence for event in cursor.poll_batch(limit)]


def test_events_come_strictly_after_the_position_in_order(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a", "b"), events("c"))
    cursor = Cursor(log, ALL)
    assert (cursor.started, cursor.position) == (False, None)
    first = cursor.poll()
    assert first is not None
    assert first.sequence == 0
    assert (cursor.started, cursor.position) == (True, 0)
    assert polled(cursor, 1) == [1]
    assert polled(cursor) == [2]
    assert polled(cursor) == []
    assert cursor.poll() is None
    with log.writer() as writer:
        writer.append(events("d"))
    assert polled(cursor) == [3]


def test_what_is_appended_while_a_segment_is_read_comes_once(tmp_path: Path) -> None:
    """Also where somebody else refreshes the same log between two polls."""
    log = new_log(tmp_path, events("a", "b", "c"))
    cursor = Cursor(log, ALL)
    assert polled(cursor, 1) == [0]
    with log.writer() as writer:
        writer.append(events("d", "e"))
    log.refresh()
    assert polled(cursor, 3) == [1, 2, 3]
    assert polled(cursor) == [4]
    assert polled(cursor) == []


def test_a_region_with_few_events_moves_on_without_them(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a", "b", "b"), events("b"))
    cursor = Cursor(log, Region(entity="c"))
    assert polled(cursor) == []
    assert not cursor.started
    with log.writer() as writer:
        writer.append(events("b", "c"))
    assert polled(cursor) == [5]


def test_rollback_goes_back_to_the_last_commit(tmp_path: Path) -> None:
    cursor = Cursor(new_log(tmp_path, events(*"abcd")), ALL)
    polled(cursor, 2)
    cursor.rollback()
    assert not cursor.started
    polled(cursor, 2)
    cursor.commit()
    polled(cursor, 2)
    cursor.rollback()
    assert cursor.position == 1
    assert polled(cursor) == [2, 3]


def test_a_poll_that_fails_loses_nothing(tmp_path: Path) -> None:
    """What was read before the failure was not handed out, so it must come again."""
    log = new_log(tmp_path, events("a", "b"), events("c"), events("d"))
    (broken,) = (tmp_path / "segments").glob("first=*2/*.parquet")
    aside = broken.rename(tmp_path / "aside")
    cursor = Cursor(EventLog.open(tmp_path), ALL, gap_buffer=5)
    assert polled(cursor, 1) == [0]
    for _ in range(2):
        with pytest.raises(LogCorrupt, match="missing"):
            cursor.poll_batch(10)
        assert cursor.position == 0
    aside.rename(broken)
    assert polled(cursor) == [1, 2, 3]
    assert log.tail == 4


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_limits_out_of_range_are_refused(tmp_path: Path, limit: int) -> None:
    cursor = Cursor(new_log(tmp_path), ALL)
    with pytest.raises(BadValue):
        cursor.poll_batch(limit)
    with pytest.raises(BadValue):
        Cursor(cursor.log, ALL, gap_buffer=-1)
    with pytest.raises(ClockNotKept):
        Cursor(cursor.log, Region(clock=(0, 1)))
    for wrong in (("log", ALL), (cursor.log, "region")):
        with pytest.raises(BadValue):
            Cursor(*wrong)


# --- gaps ------------------------------------------------------------------------------------------------------------


def gappy(tmp_path: Path) -> EventLog:
    """0 a | 1-2 cancelled | 3 b | 4 a | 5 cancelled | 6-7 cancelled | 8 a."""
    log = EventLog.create(tmp_path)
    with log.writer() as writer:
        writer.append(events("a"))
        writer.cancel(2, "x")
        writer.append(events("b"))
        writer.append(events("a"))
        writer.cancel(1, "y")
        writer.cancel(2, "z")
        writer.append(events("a"))
    return log


def test_gaps_tell_what_was_expected_what_came_and_what_was_cancelled(tmp_path: Path) -> None:
    cursor = Cursor(gappy(tmp_path), ALL, gap_buffer=10)
    assert polled(cursor) == [0, 3, 4, 8]
    assert cursor.take_gaps() == [Gap(1, 3, ((1, 3),)), Gap(5, 8, ((5, 8),))]
    assert cursor.take_gaps() == []


def test_events_of_other_regions_are_no_gap_but_cancelled_ranges_between_are(tmp_path: Path) -> None:
    cursor = Cursor(gappy(tmp_path), Region(entity="b"), gap_buffer=10)
    assert polled(cursor) == [3]
    assert cursor.take_gaps() == [Gap(0, 3, ((1, 3),))]
    plain = new_log(tmp_path / "plain", events("a", "b", "a"))
    cursor = Cursor(plain, Region(entity="a"), gap_buffer=10)
    assert polled(cursor) == [0, 2]
    assert cursor.take_gaps() == []


def test_gaps_are_kept_only_on_request_and_the_oldest_is_dropped_and_counted(tmp_path: Path) -> None:
    log = gappy(tmp_path)
    silent = Cursor(log, ALL)
    polled(silent)
    assert (silent.take_gaps(), silent.dropped_gaps) == ([], 0)
    small = Cursor(log, ALL, gap_buffer=1)
    polled(small)
    assert small.take_gaps() == [Gap(5, 8, ((5, 8),))]
    assert small.dropped_gaps == 1


def test_a_rollback_shows_the_same_gaps_again_and_keeps_the_older_ones(tmp_path: Path) -> None:
    cursor = Cursor(gappy(tmp_path), ALL, gap_buffer=10)
    polled(cursor, 2)
    cursor.commit()
    polled(cursor)
    cursor.rollback()
    assert cursor.gaps == (Gap(1, 3, ((1, 3),)),)
    polled(cursor)
    assert len(cursor.gaps) == 2


def test_rollbacks_count_no_drop_twice_and_lose_no_gap(tmp_path: Path) -> None:
    cursor = Cursor(gappy(tmp_path), ALL, gap_buffer=1)
    polled(cursor, 2)
    cursor.commit()
    for _ in range(3):
        polled(cursor)
        assert (cursor.gaps, cursor.dropped_gaps) == ((Gap(5, 8, ((5, 8),)),), 1)
        cursor.rollback()
        assert (cursor.gaps, cursor.dropped_gaps) == ((Gap(1, 3, ((1, 3),)),), 0)
    for _ in range(3):
        polled(cursor)
        cursor.take_gaps()
        cursor.rollback()
        assert cursor.dropped_gaps == 0


@given(
    shape=st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.integers(1, 3)), max_size=8),
    limits=st.lists(st.integers(1, 4), min_size=1, max_size=6),
)
def test_gaps_and_events_together_account_for_every_sequence(
    tmp_path_factory: pytest.TempPathFactory, shape: list[tuple[str, int]], limits: list[int]
) -> None:
    log = EventLog.create(tmp_path_factory.mktemp("log") / "log")
    with log.writer() as writer:
        for entity, count in shape:
            if entity:
                writer.append(events(*[entity] * count))
            else:
                writer.cancel(count, "x")
    owners = [entity for entity, count in shape for _ in range(count)]
    cursor = Cursor(log, Region(entity="a"), gap_buffer=100)
    found: list[int] = []
    for limit in limits * 20:
        found += polled(cursor, limit)
    assert found == [sequence for sequence, entity in enumerate(owners) if entity == "a"]
    lost = [each for gap in cursor.take_gaps() for low, high in gap.cancelled for each in range(low, high)]
    last = found[-1] if found else 0
    assert lost == [sequence for sequence, entity in enumerate(owners) if not entity and sequence < last]


# --- durable cursors -------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return new_log(tmp_path / "log", events(*"abcdef"))


@pytest.fixture
def repository(tmp_path: Path) -> LocalRepository:
    return LocalRepository(tmp_path / "repository")


def test_a_durable_cursor_goes_on_where_it_was_committed(log: EventLog, repository: LocalRepository) -> None:
    with DurableCursor(repository, "mine", log, ALL) as cursor:
        assert not cursor.started
        assert polled(cursor, 1) == [0]
        cursor.commit()
        assert polled(cursor, 2) == [1, 2]
    with DurableCursor(repository, "mine", log, ALL) as cursor:
        assert (cursor.started, cursor.position) == (True, 0)
        assert polled(cursor) == [1, 2, 3, 4, 5]
        cursor.commit()
    record = read_cursor(repository, "mine")
    assert record is not None
    assert (record.position, record.started, record.log_identity) == (5, True, log.identity)
    assert record.region_identity == ALL.identity


def test_a_commit_before_the_first_event_is_not_a_position(log: EventLog, repository: LocalRepository) -> None:
    with DurableCursor(repository, "mine", log, ALL) as cursor:
        cursor.commit()
    with DurableCursor(repository, "mine", log, ALL) as cursor:
        assert not cursor.started
        assert polled(cursor, 1) == [0]


def test_one_cursor_has_one_owner(log: EventLog, repository: LocalRepository) -> None:
    with DurableCursor(repository, "mine", log, ALL), DurableCursor(repository, "other", log, ALL):
        with pytest.raises(Locked):
            DurableCursor(repository, "mine", log, ALL)
    DurableCursor(repository, "mine", log, ALL).close()


def test_a_closed_cursor_is_somebody_elses(log: EventLog, repository: LocalRepository) -> None:
    """It may neither read on nor save: its successor's position would go back, or skip."""
    first = DurableCursor(repository, "mine", log, ALL)
    polled(first)
    first.close()
    with DurableCursor(repository, "mine", log, ALL) as second:
        polled(second, 1)
        second.commit()
        with pytest.raises(Closed):
            first.commit()
        with pytest.raises(Closed):
            first.poll()
    with DurableCursor(repository, "mine", log, ALL) as third:
        assert polled(third, 1) == [1]


def test_each_wrong_cursor_is_refused_with_its_own_error_and_let_go(
    log: EventLog, repository: LocalRepository, tmp_path: Path
) -> None:
    with DurableCursor(repository, "mine", log, ALL) as cursor:
        polled(cursor)
        cursor.commit()
    good = repository.read("cursors/mine.ckpt")
    with pytest.raises(CursorRegionMismatch) as mismatch:
        DurableCursor(repository, "mine", log, Region(entity="a"))
    assert (mismatch.value.saved, mismatch.value.asked) == (ALL.identity, Region(entity="a").identity)
    other = new_log(tmp_path / "other", events(*"abcdef"))
    with pytest.raises(CursorLogMismatch) as elsewhere:
        DurableCursor(repository, "mine", other, ALL)
    assert (elsewhere.value.saved, elsewhere.value.asked) == (log.identity, other.identity)
    repository.put("cursors/mine.ckpt", good[:-1])
    with pytest.raises(CursorCorrupt):
        DurableCursor(repository, "mine", log, ALL)
    assert repository.read("cursors/mine.ckpt") == good[:-1]
    repository.put("cursors/mine.ckpt", good)
    assert polled(DurableCursor(repository, "mine", log, ALL)) == []


def test_a_cursor_past_the_end_of_its_log_is_refused_not_skipped_over(
    log: EventLog, repository: LocalRepository
) -> None:
    saved = {name: (log.path / name).read_bytes() for name in ("head", "index")}
    with log.writer() as writer:
        writer.append(events("g"))
    with DurableCursor(repository, "mine", log, ALL) as cursor:
        assert polled(cursor)[-1] == 6
        cursor.commit()
    for name, data in saved.items():  # the log is restored from a backup
        (log.path / name).write_bytes(data)
    with pytest.raises(CursorAhead) as caught:
        DurableCursor(repository, "mine", EventLog.open(log.path), ALL)
    assert (caught.value.position, caught.value.tail) == (6, 6)


def test_a_log_that_went_back_and_took_another_course_is_refused_not_read_on(
    log: EventLog, repository: LocalRepository
) -> None:
    """The position is within the log again, but it is another event's: those before it would be skipped."""
    backup = {name: (log.path / name).read_bytes() for name in ("head", "index")}
    with log.writer() as writer:
        writer.append(events("g", "h"))
    with DurableCursor(repository, "mine", log, ALL) as cursor:
        polled(cursor)
        cursor.commit()
    for name, data in backup.items():
        (log.path / name).write_bytes(data)
    restored = EventLog.open(log.path)
    with restored.writer() as writer:
        writer.append(events("x", "y", "z"))
    with pytest.raises(CursorDiverged, match="sequence 7"):
        DurableCursor(repository, "mine", restored, ALL)


def test_a_forked_child_has_no_part_in_its_parents_cursor(log: EventLog, repository: LocalRepository) -> None:
    with DurableCursor(repository, "mine", log, ALL) as cursor:
        polled(cursor, 2)
        assert refused_in_a_child(cursor.commit, Closed)
        assert read_cursor(repository, "mine") is None
        cursor.commit()


def test_a_failed_commit_keeps_the_old_position(log: EventLog) -> None:
    inner = MemoryRepository()
    failing = False

    def fault(action: str, key: str) -> None:
        if failing and action == "put":
            raise StorageFailed(action="write", key=key, why="disk full")

    with DurableCursor(FaultyRepository(inner, fault), "mine", log, ALL) as cursor:
        polled(cursor, 1)
        cursor.commit()
        polled(cursor, 1)
        failing = True
        with pytest.raises(StorageFailed):
            cursor.commit()
        assert cursor.committed == 0
        cursor.rollback()
        assert polled(cursor, 1) == [1]


def test_hostile_cursor_names_are_refused(log: EventLog, repository: LocalRepository) -> None:
    for name in ("../x", "/x", "", "a/b", "x" * 300):
        with pytest.raises(BadName):
            DurableCursor(repository, name, log, ALL)
    assert repository.list() == []
