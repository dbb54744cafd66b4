"""While a rewind is unfinished, nothing may change what finishing it needs: it could never be finished then."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakespark import install
from holdfast import apply_compact, plan_compact
from holdfast.control.prune_requests import request_prune
from holdfast.errors import PlanOutdated, RewindUnfinished
from holdfast.policy import Retention
from holdfast.pruning import apply_prune, plan_prune
from holdfast.repository import Checkpoints, Lease
from holdfast.rewind.planning import plan_rewind
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
