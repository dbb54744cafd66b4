"""The status of a pipeline: which run it is about."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli.verbs.doubt import doubts_of
from holdfast.cli.verbs.ls import ls
from holdfast.cli.verbs.status import print_status
from holdfast.errors import NotFound, StorageFailed
from holdfast.repository import Lease
from holdfast.repository.activity import Activity, Period, StreamActivity
from holdfast.web.book import Book
from holdfast.web.places import Places
from holdfast.web.reading.epochs import epochs_of, measured_phases
from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import RunState
from webfixture import Sample


def test_the_failure_of_an_earlier_run_is_not_reported_for_a_run_that_left_no_event(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    sample.event("failed", "no disk", stream="orders", next="free some space", ago_s=0.5)
    sample.event("restart", "no disk", stream="orders", ago_s=0.6)
    before = status_of(sample.repository)
    assert (before.state, before.restarts) == (RunState.FAILED, 1)
    assert [each.what for each in before.problems] == ["no disk"]
    sample.lease(2, ago_s=0.1, closed=False)
    after = status_of(sample.repository)
    assert (after.state, after.restarts) == (RunState.KILLED, 0)
    assert ["no disk" in each.what for each in after.problems] == [False]


def test_a_run_whose_lease_record_is_gone_is_known_by_its_events(tmp_path: Path) -> None:
    """The folder `lease` came from an older copy than the rest."""
    sample = Sample(tmp_path)
    sample.lease(1, ago_s=60, closed=False)
    sample.event("recovered", stream="orders", lease=2, ago_s=9)
    sample.epochs("orders", 5)
    killed = status_of(sample.repository)
    assert (killed.state, killed.problems[0].at_ms) == (RunState.KILLED, sample.now_ms)
    assert "(lease 2)" in killed.problems[0].what
    sample.event("ended", "stopped gracefully", lease=2, ago_s=1)
    assert status_of(sample.repository).state is RunState.STOPPED


def test_nothing_is_said_of_the_streams_of_a_run_that_is_not_known(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    sample.write("lease/00000001.json", b"junk")
    line = status_of(sample.repository)
    assert (line.state, {each.state for each in line.streams}) == (RunState.UNKNOWN, {""})


FOLDERS = (
    "activity",
    "activity/events",
    "activity/periods",
    "activity/verdicts",
    "lease",
    "programs",
    "requests",
    "timelines",
    "timelines/1/checkpoints",
    "timelines/1/streams",
    "timelines/1/streams/orders/epochs",
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_that_cannot_be_listed_is_a_problem_and_hides_nothing_else(tmp_path: Path, folder: str) -> None:
    """Such as one of another user, or a part of a store that does not answer."""
    sample = Sample(tmp_path).healthy(3, 2)
    sample.lease(2, ago_s=5, closed=False)
    path = sample.folder / folder
    if path.exists():
        shutil.rmtree(path)
    path.write_bytes(b"")
    line = status_of(sample.repository)
    assert line.problems
    assert all(each.next for each in line.problems)


def test_one_is_not_called_several(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 4)
    sample.epochs("orders", 4, first=4, committed=False)
    sample.gap("orders", 2)
    for number in range(1, 5):
        sample.checkpoint(number).write_bytes(b"")
    line = status_of(sample.repository)
    assert [each.what for each in line.problems if "too" in each.what] == ["damaged too: 1 earlier checkpoint"]
    out = io.StringIO()
    print_status(Console(file=out, width=200), line)
    assert "1 epoch in doubt; 1 gap\n" in out.getvalue()


@pytest.mark.parametrize("epoch", [40, 50])
def test_a_stream_with_a_damaged_earlier_decision_is_still_shown(tmp_path: Path, epoch: int) -> None:
    sample = Sample(tmp_path).healthy(60, 1)
    (sample.folder / f"timelines/1/streams/orders/epochs/{epoch}.1.json").write_bytes(b"junk")
    line = status_of(sample.repository)
    assert [each.stream for each in line.streams] == ["orders", "totals"]
    assert (line.streams[0].epoch, line.streams[0].rows_per_s) == (60, pytest.approx(100))
    reported = [f"{epoch}.1.json" in each.what for each in line.problems]
    assert reported == ([True] if epoch == 40 else [])  # the last epochs are not all read


@pytest.mark.parametrize("epoch", [40, 60])
def test_a_decision_that_is_pruned_while_it_is_read_is_no_problem(tmp_path: Path, epoch: int) -> None:
    sample = Sample(tmp_path).healthy(60, 1)
    read, key = sample.repository.read, f"timelines/1/streams/orders/epochs/{epoch}.1.json"

    def pruned(asked: str) -> bytes:
        if asked == key:
            raise NotFound(key=asked, where=sample.repository.where)
        return read(asked)

    sample.repository.read = pruned  # type: ignore[method-assign]
    line = status_of(sample.repository)
    assert ([each.stream for each in line.streams], line.problems) == (["orders", "totals"], [])


def test_a_failure_before_a_rewind_of_all_streams_is_over(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy()
    sample.lease(2, ago_s=7200)
    sample.event("failed", "no disk", stream="orders", next="free some space", lease=2, ago_s=7100)
    assert status_of(sample.repository).state is RunState.FAILED
    sample.timeline(2, 1, checkpoint=3, why="a bug")
    line = status_of(sample.repository)
    assert (line.state, line.since_ms) == (RunState.STOPPED, sample.now_ms - 3_600_000)
    assert "no disk" not in [each.what for each in line.problems]
    assert {each.state for each in line.streams} == {"ended"}
    sample.event("failed", "no disk", stream="orders", lease=2, ago_s=60)
    assert status_of(sample.repository).state is RunState.FAILED, "it failed again afterwards"


def test_a_lease_that_cannot_be_read_is_reported_also_after_a_rewind(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy()
    sample.timeline(2, 1, checkpoint=3, why="a bug")
    assert status_of(sample.repository).state is RunState.STOPPED
    sample.write("lease/00000001.json", b"junk")
    line = status_of(sample.repository)
    assert line.state is RunState.UNKNOWN
    assert any("it is not known whether the pipeline runs" in each.what for each in line.problems)


def test_a_failure_of_a_stream_that_was_not_taken_back_is_not_over(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy()
    sample.lease(2, ago_s=7200)
    sample.event("failed", "no disk", stream="orders", lease=2, ago_s=7100)
    sample.streams = ("totals",)
    sample.timeline(2, 1, checkpoint=3, why="a bug in the totals")
    assert status_of(sample.repository).state is RunState.FAILED


# --- outages ---


@pytest.mark.parametrize("count", [3, 20, 200])
def test_freshness_rate_and_phases_are_known_throughout_an_outage(tmp_path: Path, count: int) -> None:
    """Each retry closes a slot with `abort`."""
    sample = Sample(tmp_path, streams=("orders",)).healthy(30, 1)
    before, phases = status_of(sample.repository).streams[0], measured_phases(sample.repository, "orders")
    sample.aborts("orders", 31, count)
    during = status_of(sample.repository).streams[0]
    assert during.epoch == 30
    assert during.fresh_at_ms == before.fresh_at_ms > 0
    assert during.rows_per_s == before.rows_per_s == pytest.approx(100)
    assert measured_phases(sample.repository, "orders") == phases != {}


def test_an_abort_after_the_decision_of_an_epoch_hides_nothing(tmp_path: Path) -> None:
    """A driver that was paused has decided the epoch just before the next driver closed a slot."""
    sample = Sample(tmp_path, streams=("orders",)).healthy(30, 1)
    before, phases = status_of(sample.repository).streams[0], measured_phases(sample.repository, "orders")
    sample.aborts("orders", 30, 1, first=2)
    sample.aborts("orders", 10, 1, first=2)
    assert status_of(sample.repository).streams[0] == before
    assert measured_phases(sample.repository, "orders") == phases


def test_aborted_attempts_are_still_listed(tmp_path: Path) -> None:
    sample = Sample(tmp_path, streams=("orders",)).healthy(30, 1)
    sample.aborts("orders", 31, 3)
    found = epochs_of(sample.repository, "orders", last=4).epochs
    assert [(each.epoch, each.attempt) for each in found] == [(31, 3), (31, 2), (31, 1), (30, 1)]


def test_a_stream_that_waits_is_shown_as_waiting_however_many_events_are_newer(tmp_path: Path) -> None:
    """Only the first attempt of an outage is recorded as an event."""
    sample = Sample(tmp_path).healthy(3, 1)
    with Lease.take(sample.repository, why="run") as lease:
        sample.event("outage", "the broker is gone", stream="orders", lease=lease.number, ago_s=900)
        for number in range(120):
            text, at = "a stream is not ready", 800 - number
            sample.event("checkpoint failed", text, lease=lease.number, ago_s=at)
        streams = {"orders": StreamActivity(state="waiting"), "totals": StreamActivity(state="running")}
        period = Period(start_ms=sample.now_ms, end_ms=sample.now_ms, lease=lease.number, streams=streams)
        Activity(sample.repository).add_period(period)
        line = status_of(sample.repository)
        assert {each.stream: each.state for each in line.streams} == {"orders": "waiting", "totals": "running"}
        assert line.state is RunState.TROUBLED
        (found,) = [each for each in line.problems if each.stream == "orders"]
        assert found.what == "stream orders is waiting"
        sample.event("outage over", stream="orders", lease=lease.number)
        assert status_of(sample.repository).state is RunState.RUNNING


# --- who holds the lease ---


@pytest.mark.parametrize("why", ["prune", "rewind", "compact"])
def test_a_maintenance_command_does_not_make_a_failed_pipeline_run(tmp_path: Path, why: str) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    sample.lease(2, ago_s=20)
    sample.event("restart", "no disk", stream="orders", lease=2, ago_s=6)
    sample.event("failed", "no disk", stream="orders", lease=2, ago_s=5)
    before = status_of(sample.repository)
    assert (before.state, before.restarts) == (RunState.FAILED, 1)
    with Lease.take(sample.repository, why=why) as lease:
        during = status_of(sample.repository)
        listed = ls(sample.repository.where)
    assert (during.state, during.since_ms, during.restarts) == (before.state, before.since_ms, before.restarts)
    assert during.holder is None
    assert during.streams == before.streams
    (found,) = [each for each in during.problems if each not in before.problems]
    assert found.severity == "warning"
    assert f"process {lease.record.pid} on {lease.record.host}" in found.what
    assert why in found.what
    assert "holdfast " in found.next
    out = io.StringIO()
    listed.show(Console(file=out, width=200))
    assert "  not running; " in out.getvalue()
    assert f": {why}\n" in out.getvalue()
    assert status_of(sample.repository).problems == before.problems


@pytest.mark.parametrize("why", ["run", "backfill", ""])
def test_a_run_a_backfill_and_a_holder_without_a_reason_are_running(tmp_path: Path, why: str) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    with Lease.take(sample.repository, why=why):
        line = status_of(sample.repository)
    assert (line.state, line.problems) == (RunState.RUNNING, [])
    assert line.holder is not None


def test_a_rewind_of_a_shared_pipeline_on_another_machine_is_named(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    sample.lease(2, ago_s=5, closed=False, why="rewind", shared=True)
    line = status_of(sample.repository)
    assert line.state is RunState.STOPPED
    (found,) = line.problems
    assert found.severity == "warning"
    assert "process 4242 on worker-1" in found.what
    assert "check on worker-1" in found.next


def shared(tmp_path: Path, *, decided_ago_s: float) -> Sample:
    """Return a shared pipeline on another machine, with an epoch that Spark has not committed yet."""
    sample = Sample(tmp_path).healthy(3, 1)
    sample.lease(2, ago_s=300, closed=False, shared=True)
    sample.now_ms -= int(decided_ago_s * 1000)
    sample.epochs("orders", 4, first=4, committed=False)
    return sample


def test_an_epoch_that_a_shared_pipeline_has_just_decided_is_no_problem(tmp_path: Path) -> None:
    sample = shared(tmp_path, decided_ago_s=0)
    line = status_of(sample.repository)
    assert (line.state, line.problems, line.doubts) == (RunState.UNKNOWN, [], [])
    found = doubts_of(sample.repository)
    assert (found.settling, len(found.doubts)) == (True, 1)
    assert "probably" in found.advice


def test_nobody_is_told_to_start_a_second_driver_of_a_shared_pipeline(tmp_path: Path) -> None:
    sample = shared(tmp_path, decided_ago_s=60)
    line = status_of(sample.repository)
    (found,) = line.problems
    assert found.severity == "warning"
    assert found.next.startswith("check on worker-1 whether process 4242 still runs; only if it has ended, start")
    assert {each.state for each in line.streams} == {""}, "it is not known whether they run"
    doubts = doubts_of(sample.repository)
    assert not doubts.settling
    assert doubts.advice.startswith("next: check on worker-1 whether process 4242 still runs")


def test_a_maintenance_command_does_not_complete_an_epoch_in_doubt(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    sample.epochs("orders", 4, first=4, committed=False)
    with Lease.take(sample.repository, why="prune"):
        found = doubts_of(sample.repository)
        assert len(status_of(sample.repository).doubts) == 1
    assert not found.settling
    assert "start the pipeline" in found.advice


def test_a_pipeline_that_starts_while_its_status_is_read_is_not_killed(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    listed, taken = sample.repository.list, []

    def starting(folder: str) -> list[str]:
        if folder == "activity/events" and not taken:
            taken.append(Lease.take(sample.repository, why="run"))
        return listed(folder)

    sample.repository.list = starting  # type: ignore[method-assign]
    line = status_of(sample.repository)
    taken[0].release()
    assert (line.state, line.problems) == (RunState.RUNNING, [])
    assert line.holder is not None


# --- what cannot be read ---


def test_the_end_of_a_run_that_cannot_be_looked_up_leaves_the_rest(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    sample.lease(2, ago_s=5, closed=False)
    loop = sample.folder / "requests/00000002"
    loop.symlink_to(loop)
    line = status_of(sample.repository)
    assert line.state is RunState.UNKNOWN
    assert {each.state for each in line.streams} == {""}
    assert line.problems[0].next


def test_a_lease_that_vanishes_while_it_is_read_leaves_the_rest(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    read = sample.repository.read

    def gone(key: str) -> bytes:
        if key == "lease/00000002.json":
            raise NotFound(key=key, where=sample.repository.where)
        return read(key)

    with Lease.take(sample.repository, why="run"):
        sample.repository.read = gone  # type: ignore[method-assign]
        line = status_of(sample.repository)
    assert line.state is RunState.UNKNOWN
    assert [each.stream for each in line.streams] == ["orders", "totals"]


def test_an_error_that_nothing_expects_is_reported_as_the_status_of_its_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Sample(tmp_path).healthy(3, 1)

    def failing(*_: object) -> None:
        raise StorageFailed(action="read", key="lease", why="no answer")

    monkeypatch.setattr("holdfast.web.reading.status.readable_holder", failing)
    line = status_of(sample.repository)
    assert (line.pipeline, line.state) == ("orders", RunState.DAMAGED)
    assert line.problems[0].next


def test_the_ledger_names_the_next_step_for_an_epoch_in_doubt(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    sample.lease(2, ago_s=9, closed=False, program="jobs/shop.py:pipeline")
    sample.epochs("orders", 4, committed=False)
    found = Book(Places([str(tmp_path)])).look("/p/orders/ledger")
    assert found is not None
    assert "it completes them first: holdfast run jobs/shop.py:pipeline" in found.view.body
