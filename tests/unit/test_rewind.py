"""Going back: plan, apply, crash anywhere, finish, undo. One stream without a JVM; the rest is the real code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fabricated import flip
from fakespark import install
from holdfast.epoch import Attempt, Decision, Facts, Verdict
from holdfast.errors import (
    BadName,
    BadValue,
    CheckpointDamaged,
    CheckpointMissing,
    Locked,
    PlanOutdated,
    RewindRefused,
    RewindUnfinished,
    SinkBehind,
    SparkLogMismatch,
    StorageFailed,
    StoreUnreachable,
    StreamFailed,
    TimelineEnded,
    UnsupportedVersion,
)
from holdfast.formats.manifest import Manifest
from holdfast.formats.sealed_json import Record
from holdfast.formats.sidecar import pack_states
from holdfast.in_doubt import in_doubt
from holdfast.repository import Checkpoints, Decisions, HeldFile, History, Identity, Lease, LocalRepository
from holdfast.repository.base import Held
from holdfast.repository.checkpoint_keys import place_of
from holdfast.repository.decisions import slot_key
from holdfast.repository.identity import KEY
from holdfast.repository.rewinds import read_rewind, unfinished_epochs, unfinished_rewind
from holdfast.repository.verdicts import LastVerify, Verdicts
from holdfast.restore import plan_restore
from holdfast.rewind import Readable, SinkAction, apply_rewind, kept_rows, plan_undo
from holdfast.rewind.steps import POINTS
from holdfast.rewind.way_back import way_back
from holdfast.sinks.base import CannotTakeBack, EpochKey, Sink, SinkPosition, StreamIdentity
from holdfast.testing import CrashAt, Crashed
from rewindbench import STREAM, DiskBench, HandFileSink, HandSqliteSink, RewindBench, TimelinePlace, TimelineSink


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
def bench(tmp_path: Path) -> RewindBench:
    """A pipeline with two epochs, a checkpoint, and two more epochs."""
    made = RewindBench(tmp_path)
    made.add([1], [2])
    made.take()
    made.add([3], [4])
    return made


BEFORE, AFTER = [[1, 2]] * 2, [[1, 2, 3, 4]] * 2


def test_the_sinks_and_the_stream_go_back_and_continue(bench: RewindBench) -> None:
    plan = bench.rewind(1)
    assert bench.visible() == BEFORE
    assert [place.aside[2] for place in bench.outputs] == [{(1, 3): [3], (1, 4): [4]}] * 2
    assert bench.lineage.current == 2
    assert plan.streams[0].epochs == 2
    assert plan.streams[0].rows == 2
    bench.source[2:] = [[30], [40], [50]]  # the fixed program gives other rows
    bench.run()
    assert bench.visible() == [[1, 2, 30, 40, 50]] * 2
    newest = Decisions(bench.repository).newest(STREAM, 2)
    assert newest is not None
    assert newest.attempt.epoch == 5, "epochs go on counting"
    assert Facts.of(newest).total_rows == 5


def test_a_new_query_id_and_no_file_of_a_later_epoch(bench: RewindBench) -> None:
    old = bench.folder / "spark"
    bench.rewind(1)
    new = bench.folder / "spark"
    assert new != old
    assert sorted(path.name for path in (new / "offsets").iterdir()) == ["0", "1"]
    assert [path.name for path in (new / "commits").iterdir()] == ["1"]
    assert json.loads((new / "metadata").read_text()) != json.loads((old / "metadata").read_text())
    assert (bench.folder / "stream.json").exists()


def test_a_base_with_a_changed_byte_is_refused_and_nothing_changes(bench: RewindBench) -> None:
    """The plan compares sizes only; `verify` may never have been run."""
    plan = plan_restore(bench.repository, 1)
    key, _ = next(iter(plan.files(STREAM)))
    flip(bench.repository, key)
    with pytest.raises(CheckpointDamaged, match="does not match its digest"):
        bench.rewind(1)
    assert bench.visible() == AFTER
    assert bench.lineage.current == 1
    bench.add([5])
    assert bench.visible() == [[1, 2, 3, 4, 5]] * 2


def test_a_verdict_on_a_deleted_savepoint_is_not_one_on_a_later_savepoint_of_the_same_name(bench: RewindBench) -> None:
    first = bench.take("keep")
    unsound = LastVerify(checkpoint="keep", ok=False, grade="digests", at_ms=first.timestamp_ms, text="other bytes")
    verdicts = Verdicts(bench.repository)
    verdicts.record([unsound])
    assert "was verified and is unsound" in "".join(bench.plan("keep").problems)
    Checkpoints(bench.repository).drop_savepoint("keep")
    assert bench.take("keep").timestamp_ms > first.timestamp_ms
    assert verdicts.all() == ({}, [])
    assert bench.plan("keep").problems == ()


def test_the_base_decision_is_made_from_the_manifest_alone(bench: RewindBench) -> None:
    """Old decisions may be pruned; savepoints do not keep them."""
    Decisions(bench.repository).prune(STREAM, 1, before=4)
    bench.rewind(1)
    base = Decisions(bench.repository).newest(STREAM, 2)
    assert base is not None
    facts = Facts.of(base)
    assert (base.attempt.epoch, facts.total_rows, facts.rows) == (2, 2, 0)
    assert facts.end == ['{"t": {"0": 2}}']
    assert {name: (share.stands, share.before) for name, share in facts.sinks.items()} == {
        "sink0": (2, 2),
        "sink1": (2, 2),
    }
    bench.run()
    assert bench.visible() == AFTER


def test_undo_brings_every_row_back_and_the_stream_continues_after_them(bench: RewindBench) -> None:
    bench.rewind(1)
    bench.undo()
    assert bench.visible() == AFTER
    assert bench.lineage.timelines == (1, 4), "an undo leaves one number unused"
    bench.add([5])
    assert bench.visible() == [[1, 2, 3, 4, 5]] * 2
    with pytest.raises(RewindRefused, match="itself an undo"):
        plan_undo(bench)
    bench.rewind(1)
    assert bench.visible() == BEFORE
    assert bench.lineage.timelines == (1, 4, 5)


def test_undo_is_refused_once_the_new_timeline_has_decided(bench: RewindBench) -> None:
    bench.rewind(1)
    bench.source[2:] = [[30]]
    bench.run()
    assert plan_undo(bench).problems == ("stream 'rows' has decided epoch 3 since the rewind: it cannot be undone",)
    with pytest.raises(RewindRefused, match="decided epoch 3"):
        bench.undo()
    assert bench.visible() == [[1, 2, 30]] * 2


def test_there_is_nothing_to_undo_before_a_rewind(bench: RewindBench) -> None:
    with pytest.raises(RewindRefused, match="state before the last rewind: there is no rewind to undo") as refused:
        plan_undo(bench)
    assert "another checkpoint" not in str(refused.value)


# --- crashes ---------------------------------------------------------------------------------------------------------

CRASHES = [(point, hit) for point in POINTS for hit in ((1, 2) if point == "sink taken back" else (1,))]
DECIDED = {point for point in POINTS if point not in ("rewind planned", "rewind built")}


@pytest.mark.parametrize("by", ["run", "rewind"])
@pytest.mark.parametrize(("point", "hit"), CRASHES)
def test_a_crash_at_every_point_is_finished_by_the_next_start(
    bench: RewindBench, point: str, hit: int, by: str
) -> None:
    reach = CrashAt(point, hit)
    with pytest.raises(Crashed):
        bench.rewind(1, reach)
    assert reach.died
    bench.source[2:] = []
    if by == "run" and point in DECIDED:
        bench.run()
        assert bench.visible() == BEFORE
    elif point in DECIDED and point not in ("timeline begun", "rewound"):
        with pytest.raises(RewindUnfinished, match="checkpoint 1"):
            bench.plan(1)
        bench.run()
    else:
        bench.rewind(1)
    assert bench.visible() == BEFORE
    assert unfinished_rewind(bench.repository, bench.lineage) is None
    rewinds = [each for each in History(bench.repository).entries() if each.what == "rewind"]
    assert len(rewinds) == len({each.facts["timeline"] for each in rewinds}) >= 1
    bench.undo()
    assert bench.visible() == (AFTER if len(rewinds) == 1 else BEFORE)


@pytest.mark.parametrize(("point", "hit"), CRASHES)
def test_a_crash_of_an_undo_at_every_point_is_finished(bench: RewindBench, point: str, hit: int) -> None:
    bench.rewind(1)
    with pytest.raises(Crashed):
        bench.undo(CrashAt(point, hit))
    if point not in DECIDED:
        bench.undo()
    bench.run()
    assert bench.visible() == AFTER
    bench.add([5])
    assert bench.visible() == [[1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize(
    ("step", "hit"),
    [(step, hit) for step in ("stamping", "stamped") for hit in (1, 2)] + [("moving", hit) for hit in (1, 2, 3)],
)
def test_a_crash_within_a_sink_is_finished(bench: RewindBench, step: str, hit: int) -> None:
    bench.at = crash = CrashAt(step, hit)
    with pytest.raises(Crashed):
        bench.rewind(1)
    assert crash.died
    bench.source[2:] = []
    bench.run()
    assert bench.visible() == BEFORE
    bench.undo()
    assert bench.visible() == AFTER


def test_only_a_program_with_the_same_sinks_finishes_a_rewind(bench: RewindBench) -> None:
    with pytest.raises(Crashed):
        bench.rewind(1, CrashAt("rewind decided"))
    bench.sinks = lambda: bench.made_sinks()[:1]
    with pytest.raises(RewindUnfinished, match=r"needs sink 'sink1'.*the program does not have it"):
        bench.run()
    other = TimelineSink("sink1", TimelinePlace())
    other.target = "another place"
    bench.sinks = lambda: [bench.made_sinks()[0], other]
    with pytest.raises(RewindUnfinished, match="another place"):
        bench.run()
    assert bench.visible() == AFTER
    bench.sinks = bench.made_sinks
    bench.source[2:] = []
    bench.run()
    assert bench.visible() == BEFORE


# --- a driver that does not know of it -------------------------------------------------------------------------------


def test_an_epoch_in_doubt_is_given_to_its_sinks_first_and_comes_back_with_an_undo(bench: RewindBench) -> None:
    bench.source.append([5])
    with pytest.raises((Crashed, StreamFailed)):
        bench.run(CrashAt("decided"))
    assert bench.visible() == AFTER
    plan = bench.rewind(1)
    assert plan.streams[0].epochs == 3
    assert plan.streams[0].sinks[0].rows == 2, "the sink lacks the epoch in doubt"
    assert bench.visible() == BEFORE
    bench.undo()
    assert bench.visible() == [[1, 2, 3, 4, 5]] * 2
    bench.add([6])
    assert bench.visible() == [[1, 2, 3, 4, 5, 6]] * 2


@pytest.mark.parametrize("when", ["before its slot is looked at", "just before its slot is closed"])
def test_an_epoch_that_is_decided_during_the_rewind_is_kept(
    bench: RewindBench, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was paused decides an epoch before the rewind closes the slot: its sinks are given it first."""
    old = Decisions(bench.repository).newest(STREAM, 1)
    assert old is not None
    facts = Facts.of(old)
    for place in bench.outputs:
        place.staged["late"] = ((1, 5), [5])
    share = {"handle": {"staged": "late"}, "rows": 1, "stands": 5, "before": 4, "before_handle": None}
    late = Decision(
        attempt=Attempt(stream=STREAM, timeline=1, epoch=5, attempt=1),
        verdict=Verdict.COMMIT,
        lease=old.lease,
        facts={**facts.plain(), "sinks": dict.fromkeys(facts.sinks, share)},
    )
    real = Decisions.end

    def end(decisions: Decisions, stream: str, timeline: int, lease: int, after: int) -> Decision | None:
        assert decisions.close(late) == late
        return real(decisions, stream, timeline, lease, after)

    def decide(point: str) -> None:
        if point == "rewind decided" and when == "before its slot is looked at":
            assert Decisions(bench.repository).close(late) == late

    if when == "just before its slot is closed":
        monkeypatch.setattr(Decisions, "end", end)
    bench.rewind(1, decide)
    assert bench.visible() == BEFORE
    assert [place.aside[2][1, 5] for place in bench.outputs] == [[5], [5]]
    with pytest.raises(TimelineEnded):
        bench.made_sinks()[0].commit(_key(bench, late), {"staged": "late"})


def _key(bench: RewindBench, decision: Decision) -> Any:
    from holdfast.sinks.base import EpochKey, StreamIdentity

    owner = StreamIdentity("pipeline", bench.identity.uid, STREAM)
    return EpochKey(owner, decision.attempt, decision.lease)


def test_an_epoch_that_cannot_be_given_is_recorded_and_undo_is_off(bench: RewindBench) -> None:
    bench.source.append([5])
    with pytest.raises((Crashed, StreamFailed)):
        bench.run(CrashAt("decided"))
    bench.outputs[1].staged.clear()
    bench.rewind(1)
    assert bench.visible() == BEFORE
    assert [each.sink for each in unfinished_epochs(bench.repository, 2, STREAM)] == ["sink1"]
    with pytest.raises(RewindRefused, match="never got epoch 5"):
        bench.undo()


def test_a_running_pipeline_is_not_rewound(bench: RewindBench) -> None:
    plan = bench.plan(1)
    with Lease.take(bench.repository), pytest.raises(Locked):
        apply_rewind(bench, plan, accept_input=True)
    assert bench.visible() == AFTER


# --- the plan --------------------------------------------------------------------------------------------------------


def test_a_plan_is_compared_and_never_obeyed(bench: RewindBench) -> None:
    plan = bench.plan(1)
    assert plan.id == bench.plan(1).id, "nothing that changes by itself is in it"
    bench.add([5])
    assert bench.plan(1).id != plan.id
    with pytest.raises(PlanOutdated, match="holdfast rewind"):
        apply_rewind(bench, plan, accept_input=True)
    assert bench.visible() == [[1, 2, 3, 4, 5]] * 2
    assert bench.lineage.current == 1


def test_the_id_covers_the_answers_of_the_sinks_and_what_is_left(bench: RewindBench) -> None:
    ids = {bench.plan(1).id, bench.plan(1, leave=["sink0"]).id}
    bench.outputs[0].visible[1, 3].append(99)
    assert len(ids | {bench.plan(1).id}) == 3


def test_unknown_input_must_be_accepted(bench: RewindBench) -> None:
    plan = bench.plan(1)
    assert [source.readable for source in plan.streams[0].sources] == [Readable.UNKNOWN]
    with pytest.raises(RewindRefused, match="--accept-input"):
        apply_rewind(bench, plan)
    assert bench.lineage.current == 1


def test_rows_that_the_decisions_did_not_count_are_refused(bench: RewindBench) -> None:
    bench.outputs[0].visible[1, 3].append(99)
    plan = bench.plan(1)
    assert plan.problems == (
        "sink 'sink0' of stream 'rows' has 3 rows after the base, but 2 were committed: another program changed them",
    )
    with pytest.raises(RewindRefused, match="has 3 rows after the base, but 2 were committed"):
        apply_rewind(bench, plan, accept_input=True)


@pytest.mark.parametrize(("rows", "refused"), [(1, False), (2, False), (3, True)])
def test_an_epoch_whose_commit_stopped_halfway_does_not_look_changed(
    bench: RewindBench, rows: int, refused: bool
) -> None:
    """Some of its rows are visible, and the sink does not report it yet. More rows than the epoch has are others'."""

    class Halfway(TimelineSink):
        def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
            found = super().inspect(owner, timeline)
            return SinkPosition(4) if timeline == 1 and found.epoch == 5 else found

    bench.sinks = lambda: [Halfway(f"sink{n}", each) for n, each in enumerate(bench.outputs)]
    bench.source += [[5, 6]]
    with pytest.raises((Crashed, StreamFailed)):
        bench.run(CrashAt("decided"))
    for place in bench.outputs:
        place.visible[(1, 5)] = [5, 6, 7][:rows]
    assert any("another program changed them" in each for each in bench.plan(1).problems) is refused
    if not refused:
        bench.rewind(1)
        assert bench.visible() == BEFORE


def test_a_plan_can_be_printed_and_stored(bench: RewindBench) -> None:
    plan = bench.plan(1)
    text = plan.summary()
    assert f"plan {plan.id}: pipeline goes back to checkpoint 1" in text
    assert "stream 'rows': from epoch 4 to epoch 2; 2 epochs, 2 rows are abandoned" in text
    assert "sink 'sink0' (TimelineSink): take back 2 epochs, 2 rows; kept in memory aside sink0" in text
    assert "undo: possible until the next run has decided an epoch" in text
    stored = json.loads(json.dumps(plan.to_dict()))
    assert stored["id"] == plan.id
    assert stored["streams"][0]["sinks"][1]["rows"] == 2


class StuckSink(TimelineSink):
    def can_take_back(self, owner: Any, base: Any) -> CannotTakeBack:
        del owner, base
        return CannotTakeBack(why="it is a stream of messages", do="use another sink")


def test_a_sink_that_cannot_is_named_and_may_be_left(bench: RewindBench) -> None:
    def sinks() -> list[Sink]:
        return [bench.made_sinks()[0], StuckSink("sink1", bench.outputs[1])]

    bench.sinks = sinks
    plan = bench.plan(1)
    assert [sink.action for sink in plan.streams[0].sinks] == [SinkAction.TAKE_BACK, SinkAction.CANNOT]
    with pytest.raises(
        RewindRefused,
        match=r"it is a stream of messages \(use another sink; or accept that its rows stay: --leave sink1\)",
    ):
        apply_rewind(bench, plan, accept_input=True)
    assert bench.plan(1, leave=["other"]).problems[-1].startswith("there is no sink 'other' to leave")
    bench.rewind(1, leave=["sink1"])
    assert bench.visible() == [[1, 2], [1, 2, 3, 4]]
    bench.source[2:] = [[30]]
    bench.run()
    assert bench.visible() == [[1, 2, 30], [1, 2, 3, 4, 30]]


class OpenedSink(StuckSink):
    """A sink that commits only while it is open, as a function that needs a session does. It keeps no stamp."""

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        assert self.context
        super().commit(key, handle)

    stamp = Sink.stamp


@pytest.mark.parametrize("point", ["decided", None])
def test_a_sink_that_must_be_open_is_left_with_an_epoch_in_doubt(bench: RewindBench, point: str | None) -> None:
    """The rewind cannot give the epoch to it, and is finished without. Going back once more is possible."""
    bench.sinks = lambda: [bench.made_sinks()[0], OpenedSink("sink1", bench.outputs[1])]
    bench.take()
    if point:
        bench.source.append([5])
        with pytest.raises(StreamFailed):
            bench.run(CrashAt(point))
    bench.rewind(2, leave=["sink1"])
    bench.rewind(1, leave=["sink1"])
    assert bench.visible() == [[1, 2], [1, 2, 3, 4]]
    bench.source[2:] = [[30]]
    bench.run()
    assert bench.visible() == [[1, 2, 30], [1, 2, 3, 4, 30]]


def test_the_first_start_reports_once_which_sinks_cannot_be_taken_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = DiskBench(tmp_path)
    table = partial(HandSqliteSink, tmp_path / "out.db", "rows", name="table")
    bench.sinks = lambda: [HandFileSink(tmp_path / "out", name="files"), table()]

    def reported() -> list[str]:
        found = [each.getMessage() for each in caplog.records if "taken back" in each.getMessage()]
        caplog.clear()
        return found

    text = "stream rows: sink 'table' cannot be taken back by a rewind: its rows do not show their epochs"
    bench.run()
    assert reported() == [f"{text} (pass epoch_column=...; it applies to later epochs)"]
    bench.add([1])
    assert len(reported()) == 1  # nothing was decided before
    bench.add([2])
    assert reported() == []


def test_undo_of_a_left_sink_moves_nothing(bench: RewindBench) -> None:
    bench.rewind(1, leave=["sink1"])
    bench.undo()
    assert bench.visible() == AFTER
    bench.add([5])
    assert bench.visible() == [[1, 2, 3, 4, 5]] * 2


def test_a_sink_that_the_program_lacks_is_refused(bench: RewindBench) -> None:
    bench.sinks = lambda: bench.made_sinks()[:1]
    assert "holds its last epoch, but is not in the program" in bench.plan(1).problems[0]
    plan = bench.plan(1, leave=["sink1"])
    assert plan.problems == ()
    assert plan.no_undo == "sink 'sink1' is not in the program"


def test_a_sink_that_was_restored_from_a_backup_is_named_with_a_checkpoint_that_fits(bench: RewindBench) -> None:
    bench.take()
    for place in bench.outputs:
        place.visible = {at: rows for at, rows in place.visible.items() if at[1] <= 3}
    plan = bench.plan(2)
    assert "holds only epoch 3, which is before the base" in plan.problems[0]
    assert "go back to checkpoint 1" in plan.problems[0]
    fits = bench.plan(1)
    assert fits.problems == ()
    assert fits.streams[0].sinks[0].counted == 1
    bench.rewind(1)
    bench.source[2:] = [[30]]
    bench.run()
    assert bench.visible() == [[1, 2, 30]] * 2


# --- where to go back to ---------------------------------------------------------------------------------------------


def test_bases_by_id_by_name_and_by_epoch(bench: RewindBench) -> None:
    bench.take()
    assert bench.plan("1").checkpoint == 1
    assert bench.plan("latest").checkpoint == 2
    assert bench.plan("before:rows:3").checkpoint == 1
    assert bench.plan("before:rows:5").checkpoint == 2
    with pytest.raises(
        CheckpointMissing,
        match=r"no checkpoint without epoch 2 of stream 'rows' in .*: the oldest one is 1, at epoch 2\.",
    ):
        bench.plan("before:rows:2")
    with pytest.raises(CheckpointMissing):
        bench.plan("some-savepoint")
    for bad in ("before:rows", "before:rows:x", "before::3", "9" * 30):
        with pytest.raises(BadValue):
            bench.plan(bad)
    with pytest.raises(BadValue, match="rows"):
        bench.plan("before:other:3")
    with pytest.raises(BadName, match="latest"):
        Checkpoints(bench.repository).require_free("latest")


def test_a_base_that_was_pruned_is_called_so(bench: RewindBench) -> None:
    bench.take()
    Checkpoints(bench.repository).drop(1, 1)
    with pytest.raises(CheckpointMissing, match="the oldest one is 2, at epoch 4; earlier ones were pruned or deleted"):
        bench.plan("before:rows:3")
    with pytest.raises(CheckpointMissing, match=r"no checkpoint 1 in .*: it was pruned or deleted"):
        bench.plan(1)
    with pytest.raises(CheckpointMissing) as caught:
        bench.plan(3)
    assert caught.value.why == ""


def test_a_sink_without_rows_after_the_base_has_nothing_to_take_back(tmp_path: Path) -> None:
    """An append table is not replaced by the next epoch."""
    bench = DiskBench(tmp_path)
    bench.add([1], [2])
    bench.take()
    assert "sink 'table' (HandSqliteSink): nothing to take back" in bench.plan(1).summary()
    assert "replaces" not in bench.plan(1).summary()


def test_a_plan_reads_only_the_manifests_of_the_base_and_of_the_newest(
    bench: RewindBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline may have thousands of checkpoints."""
    bench.take("kept")
    newest = [bench.take() for _ in range(5)][-1].checkpoint_id
    read: set[str] = set()
    real = LocalRepository.read

    def noted(repository: LocalRepository, key: str) -> bytes:
        read.add(key)
        return real(repository, key)

    monkeypatch.setattr(LocalRepository, "read", noted)
    for to in (1, "latest"):
        read.clear()
        base = bench.plan(to).checkpoint
        numbers = {number for number in range(1, newest + 1) if place_of(1, number).manifest in read}
        assert numbers == {base, newest}


def test_a_savepoint_is_a_base_and_needs_space_for_its_copies(bench: RewindBench) -> None:
    bench.take(savepoint="kept")
    bench.add([5])
    bench.take()
    plan = bench.plan("kept")
    assert plan.bytes_needed > 0
    assert plan.base == "savepoint kept"
    assert bench.plan("before:rows:5").checkpoint == 2
    bench.rewind("kept")
    assert bench.visible() == AFTER
    source = bench.repository.root / "savepoints/kept"
    linked = {path.stat().st_ino for path in source.rglob("*") if path.is_file()}
    assert not linked & {path.stat().st_ino for path in bench.folder.rglob("*") if path.is_file()}
    with pytest.raises(RewindRefused, match="abandoned"):
        bench.plan(3)
    bench.run()
    assert bench.visible() == [[1, 2, 3, 4, 5]] * 2


def test_a_checkpoint_of_an_abandoned_branch_is_not_a_base(bench: RewindBench) -> None:
    bench.take()
    bench.rewind(1)
    with pytest.raises(RewindRefused, match="abandoned branch"):
        bench.plan(2)
    assert bench.plan("latest").checkpoint == 1


def test_one_can_go_back_again_and_across_timelines(bench: RewindBench) -> None:
    bench.take()
    bench.rewind(1)
    bench.source[2:] = [[30], [40]]
    bench.run()
    third = bench.take().checkpoint_id
    bench.add([50])
    bench.rewind(third)
    assert bench.visible() == [[1, 2, 30, 40]] * 2
    bench.rewind(1)
    assert bench.visible() == BEFORE
    assert bench.lineage.timelines == (1, 2, 3, 4)
    bench.source[2:] = [[7]]
    bench.run()
    assert bench.visible() == [[1, 2, 7]] * 2


def test_a_base_before_the_first_epoch(tmp_path: Path) -> None:
    bench = RewindBench(tmp_path)
    bench.run()
    bench.take()
    bench.add([1], [2])
    bench.rewind(1)
    assert bench.visible() == [[], []]
    bench.source[:] = [[9]]
    bench.run()
    assert bench.visible() == [[9], [9]]
    assert not Decisions(bench.repository).has_ended(STREAM, 2, 1)


def test_numbers_are_never_reused_and_garbage_is_removed(bench: RewindBench) -> None:
    for _ in range(2):
        with pytest.raises(Crashed):
            bench.rewind(1, CrashAt("rewind built"))
    assert (bench.repository.root / "timelines/3").exists()
    bench.rewind(1)
    assert bench.lineage.current == 4
    assert sorted(path.name for path in (bench.repository.root / "timelines").iterdir()) == ["1", "4"]


def test_older_programs_refuse_the_repository_from_the_first_rewind_on(bench: RewindBench) -> None:
    assert Identity.load(bench.repository).version == 1
    bench.rewind(1)
    found = Identity.load(bench.repository)
    assert (found.version, found.uid) == (2, bench.identity.uid)

    class OldIdentity(Record, frozen=True, kw_only=True):
        pipeline: str
        uid: str

    with pytest.raises(UnsupportedVersion, match="version 1"):
        OldIdentity.unsealed(bench.repository.read(KEY), KEY)


@pytest.mark.parametrize("damaged", ["history.jsonl", "timelines/2/rewind.json"])
def test_a_damaged_record_of_a_finished_rewind_does_not_stop_the_pipeline(bench: RewindBench, damaged: str) -> None:
    """Neither is needed to go on, or to go back again."""
    bench.rewind(1)
    path = bench.repository.root / damaged
    path.write_bytes(path.read_bytes()[:-9])
    bench.run()
    assert bench.visible() == [[1, 2, 3, 4]] * 2
    assert kept_rows(bench) == []
    bench.rewind(1)
    bench.add([6])
    assert bench.visible() == [[1, 2, 3, 4, 6]] * 2


def test_the_history_has_the_rewind_with_its_reason(bench: RewindBench) -> None:
    apply_rewind(bench, bench.plan(1), accept_input=True, why="a bug of yesterday")
    entry = History(bench.repository).entries()[-1]
    assert (entry.what, entry.why) == ("rewind", "a bug of yesterday")
    assert entry.facts["epochs"] == {"rows": 2}
    record = read_rewind(bench.repository, 2)
    assert record is not None
    assert record.why == "a bug of yesterday"


# --- a disaster ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["spark", "spark/offsets"])
def test_a_lost_spark_folder_is_no_obstacle(bench: RewindBench, lost: str) -> None:
    shutil.rmtree(bench.folder / lost)
    with pytest.raises((SparkLogMismatch, Exception)) as caught:
        bench.run()
    assert caught.type.__name__ in ("SparkLogMismatch", "SparkFileDamaged")
    assert "holdfast rewind app.py:pipeline --to 1 --accept-input;" in str(way_back(bench.repository, bench.lineage))
    plan = bench.rewind(1)
    assert plan.no_undo == "the Spark folder of stream 'rows' lacks its last epoch"
    bench.run()
    assert bench.visible() == AFTER


def test_the_way_back_passes_over_damaged_checkpoints(bench: RewindBench) -> None:
    assert "--to 1 --accept-input;" in str(way_back(bench.repository, bench.lineage))
    newest = bench.take()
    digest = newest.streams[STREAM].files or ""
    files = Checkpoints(bench.repository).file_list(place_of(1, 2), digest)
    assert not isinstance(files, str)
    assert "--to 2;" in str(way_back(bench.repository, bench.lineage))  # nothing was read since
    (file,) = (each for each in files.files if each.path == "commits/3")
    (other,) = (each for each in files.files if each.path == "offsets/3")
    assert file != other
    key = place_of(1, 2).object(other.sha256)
    flip(bench.repository, key)  # a hard link of Spark's file: both are damaged, and the size is the same
    assert "--to 1 --accept-input;" in str(way_back(bench.repository, bench.lineage))
    bench.repository.delete(key)
    assert "--to 1 --accept-input;" in str(way_back(bench.repository, bench.lineage))
    bench.repository.delete(place_of(1, 1).manifest)
    assert way_back(bench.repository, bench.lineage) is None


def test_the_way_back_passes_over_a_checkpoint_that_the_disk_cannot_read(
    bench: RewindBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are hard links to those of the damaged folder: the same sectors of the disk."""
    newest = {key for key, _ in _files_of(bench, bench.take())} - {key for key, _ in _files_of(bench, 1)}
    digests = LocalRepository.digests

    def unreadable(self: LocalRepository, keys: Iterable[str]) -> dict[str, Held | None]:
        wanted = list(keys)
        for key in newest.intersection(wanted):
            raise StorageFailed(action="read", key=key, why="Input/output error")
        return digests(self, wanted)

    monkeypatch.setattr(LocalRepository, "digests", unreadable)
    assert "--to 1 --accept-input;" in str(way_back(bench.repository, bench.lineage))


def test_the_way_back_passes_over_a_checkpoint_whose_files_cannot_be_looked_up(bench: RewindBench) -> None:
    """A loop of links fails like a damaged folder: it is not known whether there is a file."""
    newest = {key for key, _ in _files_of(bench, bench.take())} - {key for key, _ in _files_of(bench, 1)}
    path = bench.repository.root / newest.pop()
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(StorageFailed):
        plan_restore(bench.repository, 2)
    assert "--to 1 --accept-input;" in str(way_back(bench.repository, bench.lineage))


def test_an_outage_of_a_store_does_not_make_a_checkpoint_unsound(
    bench: RewindBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.rewind.way_back.ObjectRepository", LocalRepository)

    def away(*_: object) -> NoReturn:
        raise StoreUnreachable(action="list", key="timelines", why="no route to host")

    monkeypatch.setattr("holdfast.rewind.way_back.plan_restore", away)
    with pytest.raises(StoreUnreachable):
        way_back(bench.repository, bench.lineage)


def test_the_way_back_is_named_although_the_last_decision_cannot_be_read(bench: RewindBench) -> None:
    path = bench.repository.root / slot_key(Attempt(stream=STREAM, timeline=1, epoch=4, attempt=1))
    path.unlink()
    path.symlink_to(path)
    assert "holdfast rewind app.py:pipeline --to 1" in str(way_back(bench.repository, bench.lineage))


def test_damage_that_a_restore_finds_is_reported_although_no_other_checkpoint_can_be_looked_for(
    bench: RewindBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = bench.plan(1)
    flip(bench.repository, _files_of(bench, 1)[0][0])

    def failing(*_: object) -> NoReturn:
        raise StorageFailed(action="list", key="timelines", why="Input/output error")

    monkeypatch.setattr("holdfast.rewind.building.newest_sound", failing)
    with pytest.raises(CheckpointDamaged, match="does not match its digest"):
        apply_rewind(bench, plan, accept_input=True)


def test_the_way_back_passes_over_a_checkpoint_with_a_damaged_sidecar(bench: RewindBench) -> None:
    states = pack_states({f"{STREAM}/stage": bytes(100_000)})
    manifest = replace(bench.take(), checkpoint_id=3, operator_states=states.entries, state_checksum=states.checksum)
    checkpoints = Checkpoints(bench.repository)
    assert checkpoints.claim(1, 1) == 3
    checkpoints.put(manifest, states.sidecar)
    assert "--to 3;" in str(way_back(bench.repository, bench.lineage))
    flip(bench.repository, place_of(1, 3).sidecar)
    assert "--to 2;" in str(way_back(bench.repository, bench.lineage))


def _files_of(bench: RewindBench, checkpoint: Manifest | int) -> list[tuple[str, HeldFile]]:
    number = checkpoint if isinstance(checkpoint, int) else checkpoint.checkpoint_id
    return list(plan_restore(bench.repository, number).files(STREAM))


def test_an_epoch_is_in_doubt_although_its_folder_is_gone(bench: RewindBench) -> None:
    assert in_doubt(bench.repository, STREAM, 1) is None
    shutil.rmtree(bench.folder / "spark")
    found = in_doubt(bench.repository, STREAM, 1)
    assert found is not None
    assert found.epoch == 4


class TestRestoredFromACopy:
    """A table is restored from a copy that was made before a rewind: it lacks the stamp of the current timeline."""

    @pytest.fixture
    def disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskBench:
        install(monkeypatch)
        made = DiskBench(tmp_path)
        made.add([1], [2])
        made.take()
        shutil.copy(tmp_path / "out.db", tmp_path / "copy.db")
        made.add([3])
        made.take()
        shutil.copy(tmp_path / "out.db", tmp_path / "later.db")
        made.rewind(1)
        return made

    def restore(self, disk: DiskBench, copy: str) -> None:
        shutil.copy(disk.place / copy, disk.place / "out.db")

    @pytest.mark.parametrize("undone", [True, False])
    @pytest.mark.parametrize("run", [True, False])
    def test_a_checkpoint_that_the_copy_holds_is_a_base(self, disk: DiskBench, undone: bool, run: bool) -> None:
        if undone:
            disk.undo()
        if run:
            disk.source[:] = [[1], [2], *([[3]] if undone else [])]
            disk.add([4])
            disk.take()
        self.restore(disk, "copy.db")
        newest = 3 if run else 2
        before = "holds epoch 2, but " + ("epoch" if undone or run else "it was restored from a copy")
        with pytest.raises((SinkBehind, StreamFailed), match=before):
            disk.run()
        if undone or run:
            (problem,) = disk.plan(newest).problems
            assert "holds only epoch 2, which is before the base" in problem
            assert "go back to checkpoint 1" in problem
        disk.rewind(1)
        assert disk.visible() == [[1, 2]] * 2
        disk.source[:] = [[1], [2]]
        disk.add([5])
        assert disk.visible() == [[1, 2, 5]] * 2

    def test_rows_of_an_abandoned_branch_do_not_come_back(self, disk: DiskBench) -> None:
        self.restore(disk, "later.db")
        (problem,) = disk.plan(1).problems
        assert "has 1 rows after the base, but 0 were committed" in problem
