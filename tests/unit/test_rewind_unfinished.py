"""While a rewind is unfinished, nothing may change what finishing it needs: it could never be finished then."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakespark import install
from holdfast.control.prune_requests import request_prune
from holdfast.errors import BadValue, Fenced, PlanOutdated, RewindUnfinished, SinkFailed, SinksChanged
from holdfast.policy import Retention
from holdfast.pruning import apply_prune, plan_prune
from holdfast.repository import Checkpoints, History, Lease, Repository
from holdfast.repository.contracts import Put
from holdfast.repository.rewinds import RewindRecord, decide_rewind
from holdfast.rewind import finish_rewind, plan_undo
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


@pytest.mark.parametrize("point", ["rewind decided", "stream ended", "sink taken back"])
def test_a_rewind_is_completed_without_a_sink_that_is_lost_for_good(bench: WalkBench, point: str) -> None:
    with pytest.raises(Crashed):
        bench.rewind(1, CrashAt(point, 1))
    (bench.place / "a.db").unlink()
    with pytest.raises(SinkFailed, match="--lost table"):
        bench.run()
    with pytest.raises(BadValue, match="the program still writes to it"):
        finish_rewind(bench, lost=["table"], take_over=True)
    bench.others = ()  # as a user who removes the sink from the program
    with pytest.raises(RewindUnfinished, match="--lost SINK"):
        bench.run()
    done = finish_rewind(bench, lost=["table"], take_over=True)
    assert done is not None
    assert bench.lineage.current == done.timeline
    assert bench.seen()["files"] == [1, 2]
    bench.run()
    assert bench.seen()["files"] == [1, 2, 3, 4, 5, 6]
    assert not (bench.place / "a.db").exists()
    (entry,) = [each for each in History(bench.repository).seen()[0] if each.what == "rewind"]
    assert entry.facts["lost"] == ["table"]


def test_a_sink_that_is_lost_after_the_bases_were_written(bench: WalkBench) -> None:
    """The base names it, so the next start asks as for any sink that was removed."""
    with pytest.raises(Crashed):
        bench.rewind(1, CrashAt("base written", 1))
    (bench.place / "a.db").unlink()
    bench.others = ()
    finish_rewind(bench, lost=["table"], take_over=True)
    with pytest.raises(SinksChanged, match="removed 'table'"):
        bench.run()
    bench.run(accept=("sinks",))
    assert bench.seen()["files"] == [1, 2, 3, 4, 5, 6]


def test_a_rewind_that_was_completed_without_a_sink_cannot_be_undone(bench: WalkBench) -> None:
    stop_halfway(bench)
    bench.others = ()
    finish_rewind(bench, lost=["table"], take_over=True)
    bench.others = ("table",)  # its target is back, without the base
    assert "was completed without sink 'table'" in plan_undo(bench).problems[0]


def test_only_a_sink_of_an_interrupted_rewind_can_be_lost(bench: WalkBench) -> None:
    with pytest.raises(BadValue, match="no rewind was interrupted"):
        finish_rewind(bench, lost=["table"], take_over=True)
    stop_halfway(bench)
    with pytest.raises(BadValue, match="files, table"):
        finish_rewind(bench, lost=["tabel"], take_over=True)
    bench.run()
    assert [row for row, _ in bench.seen()["table"]] == [1, 2, 3, 4, 5, 6]


def test_dying_between_the_declaration_and_the_end_changes_nothing(bench: WalkBench) -> None:
    stop_halfway(bench)
    bench.others = ()
    for point in ("sink taken back", "base written", "timeline begun"):
        with pytest.raises(Crashed):
            finish_rewind(bench, lost=["table"], take_over=True, reach=CrashAt(point, 1))
    bench.run()  # a start completes it: the declaration is recorded
    assert bench.seen()["files"] == [1, 2, 3, 4, 5, 6]


def test_a_rewind_that_is_decided_just_after_a_driver_has_started_says_what_becomes_of_it(
    bench: WalkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver does not know of it. Its next start completes the rewind."""
    bench.shared = True

    def late(repository: Repository, record: RewindRecord) -> Put:
        bench.add([7])
        return decide_rewind(repository, record)

    monkeypatch.setattr("holdfast.rewind.apply.decide_rewind", late)
    with pytest.raises(RewindUnfinished, match=r"replaced by lease 5, .* stop that process") as caught:
        bench.rewind(1)
    assert isinstance(caught.value.__cause__, Fenced)
    assert bench.lineage.current == 1
    bench.run()
    assert bench.lineage.current == 2
