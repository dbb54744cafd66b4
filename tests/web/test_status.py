"""The status of a pipeline: which run it is about."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli.verbs.status import print_status
from holdfast.errors import NotFound
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
