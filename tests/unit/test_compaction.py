"""What a compaction merges and what it never does; that commits and readers are not disturbed; what it refuses."""

import itertools
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochfiles import EpochFiles, due, rows_in
from fabricated import Fabricated, flip
from holdfast.errors import (
    BadValue,
    CommitOpen,
    CompactionOutdated,
    Locked,
    NotSupported,
    RecordCorrupt,
    RepositoryMissing,
    SinkFailed,
    SinkForeign,
    SinkMissing,
    StagedGone,
    TimelineEnded,
)
from holdfast.formats.sealed_json import seal
from holdfast.repository import History, Lease, LocalRepository
from holdfast.repository.checkpoint_keys import place_of
from holdfast.sinks import apply_compact, file_sinks, plan_compact
from holdfast.sinks.base import CannotTakeBack, Link, TakeBack
from holdfast.sinks.compaction import apply as compaction
from holdfast.sinks.compaction import trees
from holdfast.sinks.compaction.apply import POINTS, Compacted
from holdfast.sinks.compaction.plan import CompactPlan
from holdfast.sinks.compaction.runs import closed_runs, run_of
from holdfast.sinks.files.epoch_folders import (
    KEY_FILE,
    EpochFolder,
    KeyRecord,
    compression_of,
    folder_name,
    link_at,
    shape_of,
)
from holdfast.sinks.files.gate import Gate, beside
from holdfast.sinks.places import record_places
from holdfast.testing import CrashAt, Crashed


@pytest.fixture
def files(tmp_path: Path) -> EpochFiles:
    return EpochFiles(tmp_path)


def compact(files: EpochFiles, **options: Any) -> Compacted:
    plan = plan_compact(files.repository, files.path)
    return apply_compact(files.repository, plan, **({"grace_s": 0.0} | options))


def spans(plan: CompactPlan) -> list[tuple[int, int, int]]:
    return [(run.timeline, run.first, run.last) for run in plan.runs]


# --- the plan --------------------------------------------------------------------------------------------------------


def folder(timeline: int, epoch: int, first: int = 0, shape: str = "a", sizes: tuple[int, ...] = (1,)) -> EpochFolder:
    names = {f"part-{number}.parquet": size for number, size in enumerate(sizes)}
    record = KeyRecord(
        pipeline="p",
        uid="u",
        stream="s",
        timeline=timeline,
        epoch=epoch,
        attempt=1,
        lease=1,
        rows=1,
        files=names,
        first=first,
        shape=shape,
    )
    return EpochFolder(folder_name(timeline, epoch), record, f"{timeline}.{epoch}")


EPOCHS = st.sets(st.tuples(st.integers(1, 3), st.integers(1, 30)), max_size=40)
CUTS = st.dictionaries(st.integers(1, 3), st.lists(st.integers(0, 31), max_size=5), max_size=3)
CEILINGS = st.dictionaries(st.integers(1, 3), st.integers(0, 31), max_size=3)


@given(EPOCHS, CUTS, CEILINGS, st.integers(2, 4), st.sets(st.integers(1, 30), max_size=5))
def test_runs_are_consecutive_whole_and_on_one_side_of_every_cut(
    epochs: set[tuple[int, int]], cuts: dict[int, list[int]], ceilings: dict[int, int], keep: int, others: set[int]
) -> None:
    folders = [folder(t, e, shape="b" if e in others else "a") for t, e in epochs]
    runs = closed_runs(folders, cuts, ceilings, keep_last=keep)
    everything = sorted(epochs)
    for run in runs:
        places = [(each.timeline, each.epoch) for each in run]
        start = everything.index(places[0])
        assert places == everything[start : start + len(places)], "consecutive, in order"
        assert len({t for t, _ in places}) == 1
        assert len({each.record.shape for each in run}) == 1
        (first, last), timeline = (places[0][1], places[-1][1]), places[0][0]
        assert not any(first <= cut < last for cut in cuts.get(timeline, ()))
        assert last <= ceilings.get(timeline, last)
        newest = [e for t, e in everything if t == timeline][-keep:]
        assert last not in newest
    merged = [(each.timeline, each.epoch) for run in runs for each in run]
    assert len(merged) == len(set(merged))
    allowed = {
        (t, e)
        for t, e in everything
        if e not in [x for u, x in everything if u == t][-keep:] and e <= ceilings.get(t, e)
    }
    assert set(merged) == allowed, "nothing that may be merged is left out"


@given(st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=4), min_size=1, max_size=6))
def test_a_run_makes_fewer_files_or_is_none(sizes: list[list[int]]) -> None:
    folders = [folder(1, number, sizes=tuple(each)) for number, each in enumerate(sizes, 1)]
    run = run_of(folders, 100)
    every = [size for each in sizes for size in each]
    small = [size for size in every if size < 50]
    if run is None:
        assert len(small) <= max(1, -(-sum(small) // 100))
    else:
        assert (run.first, run.last, run.files, run.bytes) == (1, len(sizes), len(every), sum(every))
        assert len(every) - len(small) < run.into < len(every)


def test_names_tell_the_compression() -> None:
    uuid = "0a0b0c0d-0000-0000-0000-000000000000"
    for name, form, found in [
        (f"part-00000-{uuid}-c000.snappy.parquet", "parquet", "snappy"),
        (f"part-00000-{uuid}.c000.zstd.parquet", "parquet", "zstd"),
        (f"part-00000-{uuid}.c000.parquet", "parquet", ""),
        (f"day=1.2/part-00000-{uuid}-c000.json", "json", ""),
        (f"part-00000-{uuid}-c000.csv.gz", "csv", "gz"),
        (f"part-00000-{uuid}.c000.json.bz2", "json", "bz2"),
    ]:
        assert compression_of(name, form) == found, name


def test_the_last_two_epochs_stay(files: EpochFiles) -> None:
    for count in (1, 2):
        files.commit(count)
        assert plan_compact(files.repository, files.path).empty
    files.commit(3, 4)
    plan = plan_compact(files.repository, files.path)
    assert spans(plan) == [(1, 1, 2)]
    assert (plan.files, plan.files_after, plan.folders, plan.by_spark) == (8, 5, 4, False)
    assert "epochs 1 to 2 of timeline 1: 4 files" in plan.summary()
    assert plan.to_dict()["runs"][0]["into"] == 1
    assert spans(plan_compact(files.repository, files.path, keep_last=3)) == [(1, 1, 1)]
    assert plan_compact(files.repository, files.path, keep_last=4).empty
    for wrong in (1, True, 2.0):
        with pytest.raises(BadValue):
            plan_compact(files.repository, files.path, keep_last=wrong)
    with pytest.raises(BadValue):
        plan_compact(files.repository, files.path, target_bytes=0)


def test_no_run_crosses_a_cut(files: EpochFiles) -> None:
    files.commit(*range(1, 11))
    made = Fabricated(files.repository)
    for epoch, more in ((3, {}), (5, {"savepoint": "mine"})):
        number = made.checkpoints.claim(1, 1)
        made.finish(number, {"s": ["x"]}, cuts={"s": {"epoch": epoch}}, **more)
    assert spans(plan_compact(files.repository, files.path)) == [(1, 1, 3), (1, 4, 5), (1, 6, 8)]
    number = made.checkpoints.claim(1, 1)  # being taken: its cut may be anywhere behind the last one
    assert spans(plan_compact(files.repository, files.path)) == [(1, 1, 3), (1, 4, 5)]
    plan = plan_compact(files.repository, files.path)
    made.finish(number, {"s": ["x"]}, cuts={"s": {"epoch": 9}})
    assert spans(plan_compact(files.repository, files.path)) == [(1, 1, 3), (1, 4, 5), (1, 6, 8)]
    apply_compact(files.repository, plan, grace_s=0.0)
    assert files.folders() == [3, 5, 6, 7, 8, 9, 10]
    assert files.rows() == due(*range(1, 11))


def test_a_checkpoint_of_a_later_timeline_cuts_a_stream_in_its_own(files: EpochFiles) -> None:
    """Another stream was taken back, and this one stayed: its epochs are still of timeline 1."""
    files.commit(*range(1, 11))
    made = Fabricated(files.repository)
    number = made.checkpoints.claim(2, 1)
    made.finish(number, {"s": ["x"]}, timeline=2, cuts={"s": {"epoch": 5, "timeline": 1}})
    assert spans(plan_compact(files.repository, files.path)) == [(1, 1, 5), (1, 6, 8)]
    made.checkpoints.claim(2, 1)  # being taken
    assert spans(plan_compact(files.repository, files.path)) == [(1, 1, 5)]


def test_a_rewind_cannot_divide_a_merged_folder(files: EpochFiles) -> None:
    files.commit(*range(1, 7))
    apply_compact(files.repository, plan_compact(files.repository, files.path), grace_s=0.0)
    assert files.folders() == [4, 5, 6]
    for epoch in (1, 3):
        found = files.sink.can_take_back(files.owner, (1, epoch))
        assert isinstance(found, CannotTakeBack)
        assert "has merged epochs 1 to 4" in found.why
        with pytest.raises(SinkFailed, match="also holds epochs"):
            files.sink.take_back(files.owner, (1, epoch), 2)
    assert files.sink.can_take_back(files.owner, (1, 4)) == TakeBack(2, 4, str(files.path.parent / ".out.aside"))
    assert files.sink.can_take_back(files.owner, (1, 0)) == TakeBack(6, 12, str(files.path.parent / ".out.aside"))
    files.sink.take_back(files.owner, (1, 0), 2)
    assert files.rows() == []
    files.sink.put_back(files.owner, (1, 6), 3, 2)
    assert files.rows() == due(*range(1, 7))


def test_a_rewind_waits_for_a_compaction(files: EpochFiles) -> None:
    """Its stamp and its moves are not lost with a tree that was built before them."""
    files.commit(*range(1, 7))
    plan = plan_compact(files.repository, files.path)
    threads = []

    def rewind(point: str) -> None:
        if point == "tree built":
            threads.append(threading.Thread(target=files.sink.take_back, args=(files.owner, (1, 4), 2)))
            threads[0].start()

    apply_compact(files.repository, plan, grace_s=0.0, reach=rewind)
    threads[0].join()
    assert files.rows() == due(1, 2, 3, 4)
    assert files.sink.inspect(files.owner, 2).epoch == 4
    with pytest.raises(CompactionOutdated):
        apply_compact(files.repository, plan, grace_s=0.0)


def test_a_compaction_keeps_the_stamp_of_a_rewind(files: EpochFiles) -> None:
    files.commit(*range(1, 7))
    files.sink.take_back(files.owner, (1, 5), 2)
    apply_compact(files.repository, plan_compact(files.repository, files.path), grace_s=0.0)
    assert files.sink.inspect(files.owner, 2).epoch == 5
    with pytest.raises(TimelineEnded):
        files.commit(7)
    assert files.rows() == due(1, 2, 3, 4, 5)


def test_a_first_checkpoint_that_is_being_taken_holds_all_back(files: EpochFiles) -> None:
    files.commit(*range(1, 6))
    Fabricated(files.repository).checkpoints.claim(1, 1)
    assert plan_compact(files.repository, files.path).empty


def test_a_damaged_checkpoint_holds_all_back(files: EpochFiles) -> None:
    files.commit(*range(1, 6))
    plan = plan_compact(files.repository, files.path)
    made = Fabricated(files.repository)
    made.finish(made.checkpoints.claim(1, 1), {"s": ["x"]}, cuts={"s": {"epoch": 2}})
    with pytest.raises(CompactionOutdated, match="a checkpoint now cuts between epochs 1 and 3"):
        apply_compact(files.repository, plan)
    flip(files.repository, place_of(1, 1).manifest)
    plan_now = plan_compact(files.repository, files.path)
    assert plan_now.empty
    assert "checkpoint 1 is damaged" in (plan_now.blocked or "")
    assert "nothing is merged: checkpoint 1 is damaged" in plan_now.summary()
    with pytest.raises(CompactionOutdated, match="damaged"):
        apply_compact(files.repository, plan)
    assert not beside(files.path).exists()


def test_timelines_are_apart(files: EpochFiles) -> None:
    files.commit(1, 2, 3, 4)
    for epoch in (3, 4, 5, 6):
        files.commit(epoch, timeline=2)
    assert spans(plan_compact(files.repository, files.path)) == [(1, 1, 2), (2, 3, 4)]


def test_planning_needs_no_spark_and_no_pyspark(files: EpochFiles) -> None:
    files.commit(1, 2, 3, 4)
    program = f"""
import sys
sys.modules["pyspark"] = None
import holdfast as hf
plan = hf.sinks.plan_compact(hf.open_repository({str(files.repository.root)!r}), {str(files.path)!r})
print(hf.sinks.apply_compact(hf.open_repository({str(files.repository.root)!r}), plan, grace_s=0).files_after)
print(hf.sinks.file_sinks(hf.open_repository({str(files.repository.root)!r})))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n[]\n"


# --- doing it --------------------------------------------------------------------------------------------------------


def test_epochs_become_one_folder_and_again(files: EpochFiles) -> None:
    files.commit(*range(1, 8))
    told: list[str] = []
    done = compact(files, progress=told.append)
    assert (done.epochs, done.folders, done.files_before, done.files_after, done.rows) == (5, 1, 10, 1, 10)
    assert done.bytes_before == done.bytes_after
    assert "merged 5 epochs, 10 rows, into 1 folders: 10 files became 1" in done.summary()
    assert done.to_dict()["rows"] == 10
    assert told[0] == "merge 1 of 1: epochs 1 to 5"
    assert files.folders() == [5, 6, 7]
    assert files.rows() == due(*range(1, 8))
    assert files.sink.inspect(files.owner, 1).epoch == 7
    assert sorted(each.name for each in files.path.parent.iterdir()) == ["out", "out.staging", "root"]
    assert plan_compact(files.repository, files.path).empty
    assert "nothing to merge" in compact(files).summary()
    (entry,) = History(files.repository).entries()
    assert (entry.what, entry.facts["runs"], entry.facts["stream"]) == ("compact", [[1, 1, 5]], "s")
    EpochFiles(files.path.parent).commit(8, 9)  # a restart takes the folder as it is
    assert compact(files).epochs == 7
    assert files.folders() == [7, 8, 9]
    assert files.rows() == due(*range(1, 10))


def test_partitions_stay_and_large_files_are_linked(files: EpochFiles) -> None:
    files.commit(1, 2, 3, 4, leaves=("day=1", "day=2/hour=x"))
    assert plan_compact(files.repository, files.path, target_bytes=20).empty, "none has less than half of it: 10 bytes"
    plan = plan_compact(files.repository, files.path, target_bytes=21)
    assert [run.into for run in plan.runs] == [4]
    apply_compact(files.repository, plan, grace_s=0.0)
    made = list((files.path / folder_name(1, 2)).glob("**/*.json"))
    assert sorted(str(each.parent.relative_to(files.path)) for each in made) == sorted(
        [f"{folder_name(1, 2)}/day=1", f"{folder_name(1, 2)}/day=2/hour=x"] * 2
    )
    assert files.rows() == sorted(due(1, 2, 3, 4) * 2)
    large = {each.stat().st_ino for each in made if each.stat().st_size == 30}
    assert len(large) == 2
    files.commit(5, leaves=("day=1",))
    apply_compact(files.repository, plan_compact(files.repository, files.path, target_bytes=30), grace_s=0.0)
    assert large < {each.stat().st_ino for each in (files.path / folder_name(1, 3)).glob("**/*.json")}
    assert files.rows() == sorted(due(1, 2, 3, 4, 5) + due(1, 2, 3, 4))


def test_rights_links_and_files_of_others_survive(files: EpochFiles) -> None:
    files.commit(1, 2, 3, 4)
    files.path.chmod(0o2750)
    (files.path / folder_name(1, 2)).chmod(0o750)
    (files.path / "_mine").mkdir()
    (files.path / "_mine/note").write_text("x")
    (files.path / ".link").symlink_to("_mine/note")

    def meddle(point: str) -> None:
        if point == "tree built":
            (files.path / "_mine/new").write_text("y")
            (files.path / "_mine/note").unlink()
            (files.path / "_other").write_text("z")

    compact(files, reach=meddle)
    assert stat.S_IMODE(files.path.stat().st_mode) == 0o2750
    assert stat.S_IMODE((files.path / folder_name(1, 2)).stat().st_mode) == 0o750
    assert sorted(each.name for each in (files.path / "_mine").iterdir()) == ["new"]
    assert (files.path / "_other").read_text() == "z"
    assert (files.path / ".link").is_symlink()


def test_a_folder_behind_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "disk/real").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "disk/real")
    files = EpochFiles(tmp_path)
    files.commit(1, 2, 3, 4)
    compact(files, reach=lambda point: files.commit(5) if point == "tree built" else None)
    files.commit(6)
    assert (tmp_path / "out").is_symlink()
    assert files.rows() == rows_in(tmp_path / "disk/real") == due(1, 2, 3, 4, 5, 6)
    assert not (tmp_path / "disk/real.compact").exists()


def test_commits_at_every_point_are_kept(files: EpochFiles) -> None:
    """The pipeline runs on: what it commits, wherever the compaction is, is in the new tree."""
    files.commit(1, 2, 3, 4, 5)
    numbers = itertools.count(6)

    def commit(point: str) -> None:
        if point != "gate closed":
            files.commit(next(numbers))
            assert files.rows() == due(*range(1, files.folders()[-1] + 1))

    compact(files, reach=commit)
    assert files.rows() == due(*range(1, next(numbers)))
    assert 3 in files.folders()
    assert 2 not in files.folders()


def test_a_commit_removes_old_keys_while_the_tree_is_built(files: EpochFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key file is removed by a commit just before it is linked; the other files must be there."""
    files.commit(1, 2, 3, 4, 5)
    link, removed = trees.link, []

    def race(source: Path, target: Path) -> None:
        if source.suffix == ".key" and source.name.startswith("t1-") and not removed:
            removed.append(source)
            source.unlink()
        link(source, target)

    monkeypatch.setattr(trees, "link", race)
    compact(files)
    assert removed, "the test has removed nothing"
    assert files.rows() == due(1, 2, 3, 4, 5)
    files.commit(6)
    assert files.rows() == due(1, 2, 3, 4, 5, 6)


def test_a_commit_waits_while_the_gate_is_closed(files: EpochFiles) -> None:
    files.commit(1, 2, 3, 4)
    late = threading.Thread(target=files.commit, args=(5,))

    def begin(point: str) -> None:
        if point == "gate closed":
            late.start()
            time.sleep(0.2)
            assert late.is_alive()
            assert 5 not in files.folders()

    compact(files, reach=begin)
    late.join(60)
    assert files.rows() == due(1, 2, 3, 4, 5)


def test_a_key_that_was_merged_is_done_already(files: EpochFiles) -> None:
    """A zombie wakes up with the handle of an epoch that was merged long ago: nothing is doubled or refused."""
    handles = {}
    for epoch in (1, 2, 3, 4, 5):
        handles[epoch] = files.stage(epoch)
        files.sink.commit(files.key(epoch), handles[epoch])
    compact(files)
    for epoch in (1, 2, 3, 4, 5):
        files.sink.commit(files.key(epoch), handles[epoch])
    assert files.rows() == due(1, 2, 3, 4, 5)
    with pytest.raises(StagedGone):
        files.sink.commit(files.key(6), handles[5])
    stranger = files.key(3)
    object.__setattr__(stranger, "owner", type(files.owner)("shop", "another", "s"))
    with pytest.raises(SinkForeign):
        files.sink.commit(stranger, handles[3])


def test_an_epoch_that_another_copy_of_the_repository_merged_is_not_taken_for_ours(files: EpochFiles) -> None:
    """They went on from epoch 1 with an epoch 2 of their own, and merged it; ours waits in the staging folder."""
    files.commit(1)
    first = link_at(files.path / folder_name(1, 1) / KEY_FILE, 1)
    files.commit(2, 3, 4)
    compact(files)
    assert files.folders() == [2, 3, 4]
    for epoch in (1, 2):
        ours = replace(files.key(epoch), lease=2, before=first if epoch == 2 else Link(0, None))
        with pytest.raises(SinkForeign, match="another copy of this repository"):
            files.sink.commit(ours, {"rows": 2, "files": 2, "digest": "0" * 64})
    assert files.rows() == due(1, 2, 3, 4)


def test_whoever_was_listing_finds_all_rows_or_a_file_gone(files: EpochFiles) -> None:
    """The old names are all there for a while, and each leads to the whole of its run, or to nothing."""
    files.commit(*range(1, 8))
    listing = os.scandir(files.path)
    names = [next(listing).name]

    def list_on(point: str) -> None:
        if point == "trees swapped":  # the old names stay for the time of grace from now on
            names.extend(each.name for each in listing)

    compact(files, reach=list_on, grace_s=0.1)
    assert len([name for name in names if name.startswith("hf_epoch")]) == 7
    assert files.folders() == [5, 6, 7]
    assert sorted(row for name in names for row in rows_in(files.path / name)) == due(*range(1, 8))


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_each_point(files: EpochFiles, point: str) -> None:
    files.commit(1, 2, 3, 4, 5)
    crash = CrashAt(point)
    with pytest.raises(Crashed):
        compact(files, reach=crash)
    assert crash.died
    after = list(POINTS).index(point) >= list(POINTS).index("trees swapped")
    assert files.folders() == ([3, 4, 5] if after else [1, 2, 3, 4, 5])
    assert files.rows() == due(1, 2, 3, 4, 5)
    again = EpochFiles(files.path.parent)  # a restart is not disturbed by what was left
    again.commit(6)
    left = plan_compact(files.repository, files.path)
    assert bool(left.leftovers) is (point not in ("compaction planned", "compacted"))
    assert left.empty is False
    compact(files)
    assert files.rows() == due(1, 2, 3, 4, 5, 6)
    assert files.folders() == [4, 5, 6]
    assert not beside(files.path).exists()


def test_what_is_left_is_cleared_when_there_is_nothing_to_merge(
    files: EpochFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.commit(1, 2, 3, 4)
    with pytest.raises(Crashed):
        compact(files, reach=CrashAt("trees swapped"))
    plan = plan_compact(files.repository, files.path)
    assert (plan.runs, plan.leftovers, plan.empty) == ((), ("new",), False)
    assert "left by a compaction that died" in plan.summary()
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    apply_compact(files.repository, plan, grace_s=600)  # who lists it may have begun just before the swap
    assert len(slept) == 1 and 0 < slept[0] <= 600
    assert plan_compact(files.repository, files.path).empty
    assert not beside(files.path).exists()


# --- others ----------------------------------------------------------------------------------------------------------


def test_a_second_compaction_is_refused(files: EpochFiles) -> None:
    files.commit(1, 2, 3, 4)
    refused: list[str] = []

    def second(point: str) -> None:
        if point == "tree built":
            with pytest.raises(Locked) as caught:
                compact(files)
            refused.append(str(caught.value))

    compact(files, reach=second)
    assert "the compaction of" in refused[0]


def test_a_commit_that_does_not_end_makes_it_give_up(files: EpochFiles) -> None:
    files.commit(1, 2, 3, 4)
    before = sorted(files.path.rglob("*"))
    with Gate(files.path).passing(), pytest.raises(CommitOpen, match=r"did not finish within 0\.1 s"):
        compact(files, busy_s=0.1)
    assert sorted(files.path.rglob("*")) == before
    assert not beside(files.path).exists()
    assert compact(files).epochs == 2


def test_a_compaction_that_does_not_go_on_is_passed_over(files: EpochFiles) -> None:
    files.commit(1, 2, 3, 4)
    files.sink._gate = Gate(files.path, patience_s=0.1)

    def commit(point: str) -> None:
        if point == "gate closed":
            files.commit(5)

    with pytest.raises(CompactionOutdated, match="too long"):
        compact(files, reach=commit)
    assert files.folders() == [1, 2, 3, 4, 5]
    assert files.rows() == due(1, 2, 3, 4, 5)
    assert not beside(files.path).exists()
    assert compact(files).epochs == 3
    files.commit(6)
    assert files.rows() == due(1, 2, 3, 4, 5, 6)


def test_a_paused_swap_that_took_place_is_not_undone(files: EpochFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was paused right behind the swap, the gate still closed: a commit goes into the new tree."""
    files.commit(1, 2, 3, 4)
    files.sink._gate = Gate(files.path, patience_s=0.1)
    real = trees.exchange

    def slow(one: Path, other: Path) -> None:
        real(one, other)
        if one == files.path:
            files.commit(5)

    monkeypatch.setattr(trees, "exchange", slow)
    assert compact(files).epochs == 2
    assert files.folders() == [2, 3, 4, 5]
    assert files.rows() == due(1, 2, 3, 4, 5)
    assert not beside(files.path).exists()


def test_without_a_gate_the_lease_must_be_free(files: EpochFiles) -> None:
    """The folder was last written by a version whose commits hold nothing: while that runs, nothing is swapped."""
    files.commit(1, 2, 3, 4)
    Gate(files.path).file.unlink()
    with Lease.take(files.repository), pytest.raises(Locked, match="the lease of"):
        compact(files)
    assert files.folders() == [1, 2, 3, 4]
    assert compact(files).epochs == 2
    assert Gate(files.path).file.exists()


def test_a_shared_pipeline_must_have_ended(tmp_path: Path) -> None:
    files = EpochFiles(tmp_path, shared=True)
    files.commit(1, 2, 3, 4)
    Lease.take(files.repository, shared=True).release()
    with pytest.raises(NotSupported, match="take_over=True"):
        compact(files)
    assert compact(files, take_over=True).epochs == 2
    assert files.rows() == due(1, 2, 3, 4)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_what_is_no_sink_of_this_pipeline(files: EpochFiles, tmp_path: Path) -> None:
    with pytest.raises(SinkMissing, match="there is no such folder"):
        plan_compact(files.repository, tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkMissing, match="it is a file"):
        plan_compact(files.repository, tmp_path / "file")
    (tmp_path / "strange").mkdir()
    with pytest.raises(SinkMissing, match="no owner"):
        plan_compact(files.repository, tmp_path / "strange")
    (tmp_path / "other").mkdir()
    other = EpochFiles(tmp_path / "other")
    with pytest.raises(SinkForeign):
        plan_compact(files.repository, other.path)
    with pytest.raises(RepositoryMissing):
        plan_compact(LocalRepository(tmp_path / "nothing"), files.path)
    with pytest.raises(NotSupported, match="its ledger"):
        (tmp_path / "flat").mkdir()
        flat = EpochFiles(tmp_path / "flat", layout="flat")
        plan_compact(flat.repository, flat.path)


def test_damage_is_named_and_nothing_is_changed(files: EpochFiles) -> None:
    files.commit(1, 2, 3, 4)
    plan = plan_compact(files.repository, files.path)
    data = files.path / folder_name(1, 1) / "part-10-c000.json"
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    with pytest.raises(SinkFailed, match="has 9 bytes, but 10 were written"):
        plan_compact(files.repository, files.path)
    with pytest.raises(SinkFailed, match="has 9 bytes"):
        apply_compact(files.repository, plan)
    data.unlink()
    with pytest.raises(SinkFailed, match="No such file"):
        plan_compact(files.repository, files.path)
    data.write_bytes(whole[:-1] + b"x")  # its end of line is gone: two rows would become one
    with pytest.raises(SinkFailed, match="does not end with a newline"):
        apply_compact(files.repository, plan)
    data.write_bytes(whole)
    key = files.path / folder_name(1, 1) / "_holdfast.key"
    record = key.read_bytes()
    key.write_bytes(record.replace(b'"rows": 2', b'"rows": 3'))
    with pytest.raises(RecordCorrupt):
        plan_compact(files.repository, files.path)
    key.write_bytes((files.path / folder_name(1, 2) / "_holdfast.key").read_bytes())
    with pytest.raises(RecordCorrupt, match="it is the record of t1-0000000002"):
        plan_compact(files.repository, files.path)
    key.write_bytes(record)
    shutil.rmtree(files.path / folder_name(1, 1))
    with pytest.raises(CompactionOutdated):
        apply_compact(files.repository, plan)
    assert not beside(files.path).exists()
    assert files.rows() == due(2, 3, 4)


def test_an_epoch_that_vanishes_meanwhile_is_not_brought_back(files: EpochFiles) -> None:
    for epoch, point in [(1, "tree built"), (6, "tree built"), (2, "run merged")]:
        shutil.rmtree(files.path)
        files = EpochFiles(files.path.parent)
        files.commit(*range(1, 8))
        gone = files.path / folder_name(1, epoch)
        with pytest.raises(CompactionOutdated):
            compact(files, reach=lambda at, gone=gone, point=point: shutil.rmtree(gone) if at == point else None)
        assert files.rows() == due(*sorted({1, 2, 3, 4, 5, 6, 7} - {epoch}))
        assert not beside(files.path).exists()


def test_a_full_disk_changes_nothing(files: EpochFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.commit(1, 2, 3, 4)
    before = sorted(files.path.rglob("*"))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for module, name in [(shutil, "copyfileobj"), (trees, "link"), (compaction, "sync_all"), (trees, "exchange")]:
        with monkeypatch.context() as patched, pytest.raises(SinkFailed, match="No space left"):
            patched.setattr(module, name, full)
            compact(files)
        assert sorted(files.path.rglob("*")) == before
        assert not beside(files.path).exists()
    assert compact(files).epochs == 2


def test_a_file_system_that_cannot_is_refused_before_any_work(
    files: EpochFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.commit(1, 2, 3, 4)

    def cannot(one: Path, other: Path) -> None:
        raise OSError(22, "Invalid argument", str(one), None, str(other))

    monkeypatch.setattr(trees, "exchange", cannot)
    with pytest.raises(NotSupported, match="RENAME_EXCHANGE"):
        compact(files, reach=CrashAt("compaction planned"))
    assert not beside(files.path).exists()


def test_text_that_cannot_be_joined_is_refused(tmp_path: Path) -> None:
    refused = {
        "csv": [{"header": "True"}, {"encoding": "UTF-16"}],
        "json": [{"linesep": "|"}, {"charset": "latin1"}],
    }
    for form, cases in refused.items():
        for number, options in enumerate(cases):
            (tmp_path / f"{form}{number}").mkdir()
            files = EpochFiles(tmp_path / f"{form}{number}", format=form)
            files.commit(1, 2, 3, 4, options=options)
            with pytest.raises(NotSupported, match="are concatenated"):
                plan_compact(files.repository, files.path)
    (tmp_path / "pressed").mkdir()
    files = EpochFiles(tmp_path / "pressed", format="json")
    files.sink.format = "json.bz2"
    files.commit(1, 2, 3, 4)
    with pytest.raises(NotSupported, match="compressed as bz2"):
        plan_compact(files.repository, files.path)
    (tmp_path / "old").mkdir()
    files = EpochFiles(tmp_path / "old", format="csv")
    files.commit(1, 2, options=None)
    files.commit(3, 4, 5, 6, 7)
    plan = plan_compact(files.repository, files.path)
    assert spans(plan) == [(1, 3, 5)]
    assert "do not state whether" in plan.notes[0]
    (tmp_path / "secret").mkdir()
    files = EpochFiles(tmp_path / "secret", format="parquet")
    files.commit(1, 2, 3, 4, options={"parquet.encryption.footer.key": ""})
    with pytest.raises(NotSupported, match="would not be encrypted"):
        plan_compact(files.repository, files.path)
    (tmp_path / "none").mkdir()
    files = EpochFiles(tmp_path / "none", format="parquet")
    files.commit(1, 2, 3, 4)
    with pytest.raises(NotSupported, match="without Spark"):
        compact(files)


def test_where_the_sinks_of_a_pipeline_are(files: EpochFiles) -> None:
    assert file_sinks(files.repository) == []
    record_places(files.repository, "s", 1, [files.sink])
    (found,) = file_sinks(files.repository)
    assert (found.stream, found.sink, found.path) == ("s", "files.out", files.path)
    files.sink.target = None
    record_places(files.repository, "s", 2, [files.sink])  # a later timeline: it has no such sink any more
    assert file_sinks(files.repository) == []


def test_the_shape_is_read_back_as_it_is_written() -> None:
    from holdfast.sinks.files.epoch_folders import layout_and_format

    assert layout_and_format(shape_of("epochs", "json", ["a", "b]"])) == ("epochs", "json")
    assert layout_and_format("something else") is None


def test_records_of_earlier_versions_are_read() -> None:
    """They do not tell how the files were written: such are merged with each other only."""
    facts = {"version": 1, "pipeline": "p", "uid": "u", "stream": "s", "timeline": 1, "epoch": 2, "attempt": 1}
    record = KeyRecord.unsealed(seal(facts | {"lease": 1, "rows": 3, "files": {"part-0.parquet": 9}}), "")
    assert (record.first, record.epochs, record.shape, record.options) == (0, 1, "", None)
    assert not record.holds(1, 2)
    folders = [EpochFolder(folder_name(1, 2), record, "x"), *(folder(1, epoch, shape="") for epoch in (3, 4, 5))]
    assert [len(run) for run in closed_runs(folders, {}, {})] == [2]
    folders = [EpochFolder(folder_name(1, 2), record, "x"), *(folder(1, epoch) for epoch in (3, 4, 5))]
    assert [len(run) for run in closed_runs(folders, {}, {})] == [1, 1]


def test_planning_beside_a_compaction_raises_no_false_alarm(files: EpochFiles) -> None:
    """The folder is swapped under the planner's feet again and again: it looks again."""
    files.commit(*range(1, 9))
    wrong: list[Exception] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                plan_compact(files.repository, files.path)
            except Exception as error:
                wrong.append(error)

    looking = [threading.Thread(target=look) for _ in range(2)]
    for thread in looking:
        thread.start()
    try:
        for start in range(9, 129, 4):
            files.commit(*range(start, start + 4))
            compact(files)
    finally:
        over.set()
        for thread in looking:
            thread.join()
    assert wrong == []
