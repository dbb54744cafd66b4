"""The activity of a pipeline: written in the background, bounded, and readable in spite of damage."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fakespark
from holdfast.epoch import Facts
from holdfast.errors import BadValue, StorageFailed
from holdfast.policy import RestartPolicy
from holdfast.repository import Decisions, LocalRepository, MemoryRepository, Repository
from holdfast.repository import activity as records
from holdfast.repository.activity import (
    HOUR_MS,
    KEPT_DAYS,
    KEPT_EVENTS,
    Activity,
    ActivityEvent,
    Period,
    StreamActivity,
)
from holdfast.sinks.base import EpochKey
from holdfast.spark.activity import ActivityTally, ActivityWriter, Lag, noted
from holdfast.spark.epoch_times import EpochTimes
from holdfast.testing import FaultyRepository
from holdfast.web.reading.status import status_of

NOON = 1_760_000_400_000 // HOUR_MS * HOUR_MS
MINUTE = 60_000


@pytest.fixture(params=["local", "memory"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    return LocalRepository(tmp_path / "root") if request.param == "local" else MemoryRepository()


def at(ms: int) -> Callable[[], float]:
    return lambda: ms / 1000


def period(start_ms: int, epochs: int = 1) -> Period:
    streams = {"orders": StreamActivity(epochs=epochs, rows=10 * epochs, last_epoch=epochs, phases={"open": 0.1})}
    return Period(start_ms=start_ms, end_ms=start_ms + MINUTE, lease=1, streams=streams)


def test_periods_of_an_hour_are_merged_when_it_is_over_and_none_is_lost(repository: Repository) -> None:
    written = [period(NOON + n * MINUTE, n) for n in range(90)]
    for each in written:
        Activity(repository).add_period(each)
    later = Activity(repository, at(NOON + 90 * MINUTE))
    later.tidy(lease=1)
    assert len(repository.list("activity/periods")) == 30, "the second hour is not over"
    assert len(repository.list("activity/hours")) == 1
    assert later.periods() == (written, [])
    assert later.periods(NOON + 30 * MINUTE, NOON + 70 * MINUTE)[0] == written[30:71]


def test_a_merge_that_was_interrupted_counts_nothing_twice(repository: Repository) -> None:
    written = [period(NOON + n * MINUTE, n) for n in range(60)]
    for each in written:
        Activity(repository).add_period(each)

    def full(action: str, key: str) -> None:
        if action == "delete":
            raise StorageFailed(action=action, key=key, why="the disk is full")

    later = at(NOON + 70 * MINUTE)
    with pytest.raises(StorageFailed):
        Activity(FaultyRepository(repository, full), later).tidy(lease=1)
    assert Activity(repository, later).periods()[0] == written
    Activity(repository, later).tidy(lease=1)
    assert repository.list("activity/periods") == []
    assert Activity(repository, later).periods()[0] == written


def test_periods_that_are_merged_while_they_are_read_are_not_missed(repository: Repository) -> None:
    written = [period(NOON + n * MINUTE, n) for n in range(60)]
    for each in written:
        Activity(repository).add_period(each)
    later, merged = at(NOON + 70 * MINUTE), []

    def merge(action: str, key: str) -> None:
        if action == "read" and key.startswith("activity/periods") and not merged:
            merged.append(key)
            Activity(repository, later).tidy(lease=1)

    assert Activity(FaultyRepository(repository, merge), later).periods() == (written, [])
    assert merged


def test_old_hours_and_old_events_are_deleted(repository: Repository) -> None:
    activity = Activity(repository, at(NOON + (KEPT_DAYS + 1) * 24 * HOUR_MS))
    activity.add_period(period(NOON))
    activity.add_period(period(NOON + 2 * 24 * HOUR_MS))
    for number in range(KEPT_EVENTS + 7):
        activity.add_event(ActivityEvent(at_ms=NOON + number // 2, lease=1, kind=records.RESTART, text=str(number)))
    activity.tidy(lease=2)
    assert [each.start_ms for each in activity.periods()[0]] == [NOON + 2 * 24 * HOUR_MS]
    found, bad = activity.events()
    assert not bad
    assert [each.text for each in found] == [str(number) for number in range(7, KEPT_EVENTS + 7)]


def test_a_damaged_record_hides_only_itself(tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path)
    activity = Activity(repository)
    for number in range(3):
        activity.add_period(period(NOON + number * MINUTE))
        activity.add_event(ActivityEvent(at_ms=NOON + number, lease=1, kind=records.RECOVERED))
    for folder in ("periods", "events"):
        path = sorted((tmp_path / "activity" / folder).iterdir())[1]
        path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    (tmp_path / "activity" / "events" / "notes.txt").write_text("not one of ours")
    periods, bad_periods = activity.periods()
    events, bad_events = activity.events()
    assert [len(each) for each in (periods, bad_periods, events, bad_events)] == [2, 1, 2, 1]


def test_the_writer_writes_events_at_once_and_periods_when_they_are_over(tmp_path: Path) -> None:
    repository, tally = LocalRepository(tmp_path), ActivityTally()
    writer = ActivityWriter(repository, tally, lease=7)
    assert not writer.is_due
    for epoch, seconds in ((1, 0.5), (2, 2.0), (3, 1.0)):
        tally.epoch("orders", EpochTimes(epoch, 10, 0, seconds, {"open": seconds / 2}))
    tally.restart("orders")
    tally.checkpoint(restorable=True)
    tally.event(noted(records.FAILED, 7, stream="orders", error=StorageFailed(action="read", key="k", why="no disk")))
    writer.work()
    assert Activity(repository).periods() == ([], [])
    (event,) = Activity(repository).events()[0]
    assert (event.kind, event.stream, event.error, event.lease) == ("failed", "orders", "StorageFailed", 7)
    assert "no disk" in event.text
    assert event.next
    time.sleep(0.01)  # a period is named by the millisecond of its start
    writer.work({"orders": Lag("running", behind=5, behind_s=1.5), "idle": Lag("running")})
    (found,) = Activity(repository).periods()[0]
    assert found.checkpoints == 1
    assert found.streams["idle"] == StreamActivity(state="running")
    assert found.streams["orders"] == StreamActivity(
        epochs=3,
        rows=30,
        last_epoch=3,
        seconds=3.5,
        slowest=2.0,
        slowest_epoch=2,
        phases={"open": 1.75},
        restarts=1,
        run_restarts=1,
        state="running",
        behind=5,
        behind_s=1.5,
    )
    writer.work({})
    assert Activity(repository).periods()[0][-1].streams == {}, "each period begins again"


def test_a_disk_that_is_full_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def full(action: str, key: str) -> None:
        raise StorageFailed(action=action, key=key, why="the disk is full")

    tally = ActivityTally()
    tally.event(noted(records.STARTED, 1, text="begun"))
    ActivityWriter(FaultyRepository(LocalRepository(tmp_path), full), tally, lease=1).work({"orders": Lag()})
    assert "the disk is full" in caplog.text


def test_secrets_in_an_error_are_not_recorded() -> None:
    event = noted(records.RESTART, 1, error=ValueError("connect to postgresql://me:hunter2@host/db failed"))
    assert "hunter2" not in event.text


# --- what a run records ----------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fakespark.Bench:
    fakespark.install(monkeypatch)
    return fakespark.Bench(tmp_path, sinks=2)


def test_a_decision_records_its_phases_and_the_commit_of_the_epoch_before(bench: fakespark.Bench) -> None:
    bench.source += [[1, 2], [3], [4]]
    bench.run()
    facts = []
    for epoch in (1, 2, 3):
        decision = Decisions(bench.repository).committed("rows", 1, epoch)
        assert decision is not None
        facts.append(Facts.of(decision))
    assert facts[0].last_commit is None
    for each in facts:
        assert each.times is not None
        assert each.times.sinks.keys() == {"sink0", "sink1"}
        assert 0 < each.times.prepare < 60
    for number, each in enumerate(facts[1:], 1):
        assert each.last_commit is not None
        assert each.last_commit.epoch == number
        assert each.last_commit.sinks.keys() == {"sink0", "sink1"}
        assert facts[number - 1].decided_at_ms <= each.last_commit.ended_at_ms <= each.decided_at_ms


def test_a_recovery_is_recorded_with_its_steps_and_epochs_are_counted(bench: fakespark.Bench) -> None:
    bench.source += [[1, 2], [3]]
    stream = bench.run()
    tally = stream._parts.run.activity
    (event,) = tally.take_events()
    assert (event.kind, event.stream, event.text) == ("recovered", "rows", "stream 'rows' begins with epoch 1")
    assert set(event.steps) == {"build", "open sinks", "compare", "complete", "discard"}
    counts, _, _ = tally.take()
    assert (counts["rows"].epochs, counts["rows"].rows, counts["rows"].last_epoch) == (2, 3, 2)


def test_a_decision_of_an_earlier_version_is_read(bench: fakespark.Bench) -> None:
    bench.source += [[1]]
    bench.run()
    decision = Decisions(bench.repository).committed("rows", 1, 1)
    assert decision is not None
    del decision.facts["times"], decision.facts["last_commit"]
    assert Facts.of(decision).times is None


def test_freshness_is_known_after_any_number_of_epochs_without_rows(bench: fakespark.Bench) -> None:
    bench.source += [[1, 2], *([[]] * 25)]
    bench.run()
    first, last = (Decisions(bench.repository).committed("rows", 1, epoch) for epoch in (1, 26))
    assert first is not None
    assert last is not None
    began = Facts.of(first).fresh_at_ms
    assert 0 <= Facts.of(first).decided_at_ms - began < 10_000
    bench.source += [[]]
    bench.run()  # a restart knows it too
    (line,) = status_of(bench.repository).streams
    assert (line.epoch, line.fresh_at_ms) == (27, began)
    assert {each.fresh_at_ms for each in line.sinks.values()} == {began}
    bench.source += [[3]]
    bench.run()
    (line,) = status_of(bench.repository).streams
    assert line.fresh_at_ms >= line.decided_at_ms - 10_000
    assert line.fresh_at_ms != began


def test_a_quarantined_epoch_is_not_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakespark.install(monkeypatch)
    bench = fakespark.Bench(tmp_path, quarantine_after=1)
    bench.source += [[1], [2], []]

    def refuse(step: str, key: EpochKey) -> None:
        if step == "prepare" and key.epoch == 2:
            raise ValueError("no such row")

    bench.before = refuse
    bench.run(restart=RestartPolicy.bounded(3, 60))
    fresh = []
    for epoch in (1, 2, 3):
        decision = Decisions(bench.repository).committed("rows", 1, epoch)
        assert decision is not None
        fresh.append(Facts.of(decision).fresh_at_ms)
    assert fresh[0] == fresh[1] == fresh[2] > 0


def test_a_failure_whose_text_is_not_unicode_is_recorded() -> None:
    """It may quote the name of a file. Without its event, the page would not show the failure."""
    error = BadValue(what="file", value=1, why="caf\udce9.csv cannot be read", do="rename caf\udce9.csv")
    event = noted("failed", 1, stream="orders", error=error)
    found = ActivityEvent.unsealed(event.sealed(), "key")
    assert "caf\\udce9.csv cannot be read" in found.text
    assert found.next == "rename caf\\udce9.csv"
