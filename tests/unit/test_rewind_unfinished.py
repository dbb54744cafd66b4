"""While a rewind is unfinished, nothing may change what finishing it needs: it could never be finished then."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakespark import install
from holdfast.control.prune_requests import request_prune
from holdfast.errors import PlanOutdated, RewindUnfinished, SinkFailed
from holdfast.policy import Retention
from holdfast.pruning import apply_prune, plan_prune
from holdfast.repository import Checkpoints, Lease
from holdfast.rewind.planning import plan_rewind
from holdfast.sinks import apply_compact, plan_compact
from holdfast.testing import CrashAt, Crashed
from rewindwalk import WalkBench

ONE = Retention(last=1)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WalkBench:
    """A pipeline of six epochs, with a checkpoint after the second and the fourth."""
    install(monkeypatch)
    made = WalkBench(tmp_path, ["table"])
    made.add([1], [2])
    made.take()
    made.add([3], [4])
    made.take()
    made.add([5], [6])
    return made


def stop_halfway(bench: WalkBench) -> None:
    with pytest.raises(Crashed):
        bench.rewind(1, CrashAt("stream ended", 1))


def test_a_prune_must_wait_and_so_keeps_the_base(bench: WalkBench) -> None:
    """Without the base, a compaction would merge epochs from both sides of it."""
    stop_halfway(bench)
    with pytest.raises(RewindUnfinished):
        request_prune(bench.repository, ONE, timeout_s=5.0, take_over=False)
    assert len(Checkpoints(bench.repository).all()) == 2
    bench.run()
    assert bench.seen()["files"] == [1, 2, 3, 4, 5, 6]


def test_a_compaction_must_wait(bench: WalkBench) -> None:
    plan = plan_compact(bench.repository, bench.place / "out")
    assert not plan.empty
    stop_halfway(bench)
    with pytest.raises(RewindUnfinished):
        apply_compact(bench.repository, plan, take_over=True, grace_s=0)
    bench.run()
    assert bench.seen()["files"] == [1, 2, 3, 4, 5, 6]


def test_the_plan_of_a_prune_is_outdated_once_a_timeline_has_begun(bench: WalkBench) -> None:
    """What was abandoned when it was made may be back."""
    bench.rewind(1)
    plan = plan_prune(bench.repository, ONE, abandoned=True)
    bench.undo()
    with (
        Lease.take(bench.repository, locker=lambda: None, shared=True) as lease,
        pytest.raises(PlanOutdated, match="timeline 2 was current"),
    ):
        apply_prune(bench.repository, plan, lease)
    assert not plan_rewind(bench, 2).problems


@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.parametrize("point", ["rewind decided", "stream ended", "sink taken back"])
@pytest.mark.parametrize("gone", ["out", "a.db"])
def test_a_target_that_is_not_there_is_not_taken_for_an_empty_one(
    bench: WalkBench, point: str, gone: str, undone: bool
) -> None:
    """As after a restart of the machine with a disk that is not mounted: the rewind would stamp an empty target."""
    if undone:
        bench.rewind(1)
    with pytest.raises(Crashed):
        bench.undo(CrashAt(point, 1)) if undone else bench.rewind(1, CrashAt(point, 1))
    (bench.place / gone).rename(bench.place / "unmounted")
    with pytest.raises(SinkFailed, match="available again"):
        bench.run()
    if (bench.place / gone).exists():
        (bench.place / gone).unlink()  # SQLite creates a file
    (bench.place / "unmounted").rename(bench.place / gone)
    bench.run()
    assert bench.seen()["files"] == [1, 2, 3, 4, 5, 6]
    assert [row for row, _ in bench.seen()["table"]] == [1, 2, 3, 4, 5, 6]
