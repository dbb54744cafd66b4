"""What the page shows, read from a repository: states, problems with their next steps, epochs, runs."""

import os
from pathlib import Path

import pytest

from holdfast.repository import Lineage, LocalRepository
from holdfast.repository.lease import LeaseRecord
from holdfast.web.reading.checkpoints import CheckpointReader
from holdfast.web.reading.epochs import epochs_of, measured_phases, points, slowest_first
from holdfast.web.reading.runs import runs_of
from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import RunState
from webfixture import Sample


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path)


def test_a_pipeline_that_stopped_gracefully_has_no_problem(sample: Sample) -> None:
    line = status_of(sample.healthy().repository)
    assert (line.pipeline, line.state, line.problems, line.doubts, line.gaps) == ("orders", RunState.STOPPED, [], [], 0)
    assert (line.checkpoint, line.checkpoints, line.checkpoints_damaged) == (5, 5, 0)
    orders = line.streams[0]
    assert (orders.stream, orders.epoch, orders.rows, orders.in_doubt) == ("orders", 60, 6000, None)
    assert orders.rows_per_s == pytest.approx(100, rel=0.01)
    assert orders.behind == 160
    assert {name: each.epoch for name, each in orders.sinks.items()} == {"files": 60, "table": 60}
    assert 0 < sample.now_ms - orders.fresh_at_ms < 1000, "its rows had arrived when the epoch began"
    assert line.streams[1].sources[0].stream == "orders"


def test_a_new_repository_is_new(sample: Sample) -> None:
    assert status_of(sample.repository).state is RunState.NEW


def test_a_killed_run_is_an_error_that_names_the_next_step(sample: Sample) -> None:
    sample.lease(closed=False)
    sample.epochs("orders", 5, committed=False)
    line = status_of(sample.repository)
    assert line.state is RunState.KILLED
    assert [each.severity for each in line.problems] == ["error", "warning"]
    assert "killed" in line.problems[0].what
    assert "holdfast run" in line.problems[0].next
    assert [each.epoch for each in line.doubts] == [5]
    assert "epoch 5 of stream orders is in doubt" in line.problems[1].what
    assert line.streams[0].sinks == {}
    assert line.streams[0].in_doubt == 5


def test_a_killed_run_was_last_seen_at_its_last_epoch_and_names_the_program_as_it_was_typed(sample: Sample) -> None:
    sample.lease(closed=False, ago_s=3600, program="jobs/shop.py:shop")
    sample.event("recovered", stream="orders", ago_s=3590)
    assert sample.now_ms - status_of(sample.repository).since_ms == 3590_000
    sample.now_ms -= 60_000
    sample.epochs("orders", 5, committed=False)
    line = status_of(sample.repository)
    assert line.since_ms == sample.now_ms == line.problems[0].at_ms
    assert [each.state for each in line.streams] == ["killed"]
    assert all(each.next.endswith("holdfast run jobs/shop.py:shop") for each in line.problems)


def test_events_name_the_program_of_the_newest_run_that_has_one(sample: Sample) -> None:
    sample.lease(1, program="old.py")
    sample.lease(2, program="new.py")
    sample.lease(3)
    sample.event("failed", "no disk", stream="orders", lease=3, next="holdfast rewind app.py:pipeline --to 5")
    assert status_of(sample.repository).problems[0].next == "holdfast rewind new.py --to 5"
    assert runs_of(sample.repository).events[0].next == "holdfast rewind new.py --to 5"


def test_a_failed_run_shows_its_error_and_its_next_step(sample: Sample) -> None:
    sample.lease()
    sample.event(
        "failed", "stream 'orders' failed", stream="orders", next="fix the sink", error="StreamFailed", ago_s=2
    )
    sample.event("ended", "StreamFailed", ago_s=1)
    line = status_of(sample.repository)
    assert line.state is RunState.FAILED
    do = "fix the sink; then start the pipeline again: holdfast run app.py:pipeline"
    assert [(each.what, each.next, each.stream) for each in line.problems] == [("stream 'orders' failed", do, "orders")]


def test_a_running_pipeline_whose_stream_waits_is_troubled(sample: Sample) -> None:
    record = LeaseRecord(
        number=1,
        host=os.uname().nodename,
        pid=os.getpid(),
        token="t",  # noqa: S106 - it only tells two holders apart
        taken_at_ms=sample.now_ms,
        why="run",
        shared=True,
    )
    sample.write("lease/00000001.json", record.sealed())
    sample.epochs("orders", 3)
    assert status_of(sample.repository).state is RunState.RUNNING
    sample.event("recovered", "begun", stream="orders", ago_s=3)
    sample.event("outage", "the server does not answer", stream="orders", ago_s=2)
    line = status_of(sample.repository)
    assert line.state is RunState.TROUBLED
    assert line.streams[0].state == "waiting"
    assert "does not answer" in line.problems[0].what
    sample.event("outage over", stream="orders", ago_s=1)
    assert status_of(sample.repository).state is RunState.RUNNING


def test_damage_is_reported_and_hides_nothing_else(sample: Sample) -> None:
    sample.healthy()
    manifest = sample.checkpoint(6)
    manifest.write_bytes(manifest.read_bytes()[:-20])
    slot = sample.folder / "timelines/1/streams/totals/epochs/60.1.json"
    slot.write_bytes(slot.read_bytes().replace(b"100", b"101", 1))
    line = status_of(sample.repository)
    assert (line.checkpoint, line.checkpoints_damaged) == (5, 1)
    assert any("checkpoint 6 is damaged" in each.what and "verify" in each.next for each in line.problems)
    assert any("60.1.json" in each.what for each in line.problems)
    assert [each.stream for each in line.streams] == ["orders"], "the other stream cannot be read"
    (sample.folder / "holdfast.json").write_text("{}")
    damaged = status_of(sample.repository)
    assert damaged.state is RunState.DAMAGED
    assert damaged.problems[0].next


def test_gaps_are_counted_and_reported(sample: Sample) -> None:
    sample.healthy().gap("orders", 12)
    line = status_of(sample.repository)
    assert line.gaps == 1
    assert [(each.severity, each.next) for each in line.problems] == [("warning", "read the ledger: holdfast gaps")]


def test_a_failed_checkpoint_is_a_problem_until_a_later_one_succeeds(sample: Sample) -> None:
    sample.lease()
    sample.checkpoint(1, ago_s=60)
    sample.event("checkpoint failed", "stream totals did not acknowledge", next="raise the timeout", ago_s=30)
    (problem,) = status_of(sample.repository).problems
    assert (problem.severity, problem.next) == ("warning", "raise the timeout")
    sample.checkpoint(2, ago_s=5)
    assert status_of(sample.repository).problems == []


def test_an_epoch_has_its_phases_and_the_last_one_lacks_its_end(sample: Sample) -> None:
    sample.epochs("orders", 50)
    found = epochs_of(sample.repository, "orders", last=10)
    assert [each.epoch for each in found.epochs] == list(range(50, 40, -1))
    newest, before = found.epochs[:2]
    assert set(newest.phases) == {"open", "prepare", "harden"}
    assert before.phases["commit"] == 0.021
    assert before.commit == {"files": 0.006, "table": 0.015}
    assert before.seconds == pytest.approx(sum(before.phases.values()))
    assert measured_phases(sample.repository, "orders") == before.phases
    everything = epochs_of(sample.repository, "orders", last=100)
    assert slowest_first(everything.epochs)[0].epoch == 37


def test_epochs_of_a_rewound_stream_follow_the_lineage(sample: Sample) -> None:
    sample.epochs("orders", 9)
    sample.streams = ("orders",)
    sample.checkpoint(4)
    sample.timeline(2, 1, checkpoint=4, why="a bug")
    sample.epochs("orders", 6, first=5, timeline=2)
    found = epochs_of(sample.repository, "orders", lineage=Lineage.load(sample.repository))
    assert [(each.timeline, each.epoch) for each in found.epochs] == [(2, 6), (2, 5), (1, 4), (1, 3), (1, 2), (1, 1)]


def test_a_long_span_is_summed_up_and_nothing_is_lost(sample: Sample) -> None:
    sample.periods(700)
    sample.epochs("orders", 1)
    found = epochs_of(sample.repository, "orders", since_ms=0)
    assert 200 <= len(found.activity) <= 241
    assert sum(each.epochs for each in found.activity) == sum(55 + n % 7 for n in range(700))
    assert points([], "orders") == []


def test_runs_show_what_each_start_found(sample: Sample) -> None:
    found = runs_of(sample.healthy().repository)
    (run,) = found.runs
    assert (run.lease, run.end, run.failed) == (1, "stopped gracefully", False)
    assert [each.stream for each in run.recoveries] == ["orders", "totals"]
    assert run.recoveries[0].steps["build"] == 0.21
    assert [each.kind for each in found.events] == ["ended", "started", "recovered", "recovered"]


def test_checkpoints_are_read_again_only_when_something_changed(sample: Sample) -> None:
    sample.checkpoint(1)
    now = [0.0]
    reader = CheckpointReader(sample.repository, lambda: now[0])
    first = reader.all()
    manifest = sample.folder / "timelines/1/checkpoints/1/manifest.json"
    manifest.write_bytes(b"{}")
    assert reader.all() is first
    now[0] = 31.0
    assert reader.all()[0].status == "damaged"
    sample.checkpoint(2)
    assert [each.checkpoint for each in reader.all()] == [1, 2]


def test_nothing_is_written_by_looking(sample: Sample) -> None:
    sample.healthy()
    before = {path: path.stat().st_mtime_ns for path in sample.folder.rglob("*")}
    status_of(LocalRepository(sample.folder))
    runs_of(sample.repository)
    epochs_of(sample.repository, "orders", since_ms=0)
    assert {path: path.stat().st_mtime_ns for path in sample.folder.rglob("*")} == before
