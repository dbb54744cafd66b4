"""Checkpoints on an object store: files named in place, restored, copied and verified, and what clean-up leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fabricated import Fabricated
from faultproxy import FaultProxy
from holdfast import Retention
from holdfast.control import request_prune
from holdfast.difference import diff
from holdfast.errors import (
    AlreadyExists,
    BucketUnsuitable,
    CheckpointDamaged,
    Fenced,
    NotSupported,
    RequestUnanswered,
    StageCorrupt,
    StorageFailed,
)
from holdfast.policy import CheckpointPolicy
from holdfast.pruning import Pruned, apply_prune, plan_prune
from holdfast.repository import (
    Checkpoints,
    FileList,
    HeldFile,
    Identity,
    Lease,
    Lineage,
    LocalRepository,
    ObjectRepository,
    TimelineRecord,
)
from holdfast.repository.activity import START_FAILED, Activity
from holdfast.repository.base import StoredObject
from holdfast.repository.checkpoint_keys import place_of
from holdfast.repository.lineage import begin_timeline
from holdfast.repository.rewinds import require_finished
from holdfast.restore import plan_restore, restore_stream
from holdfast.rewind.apply import apply_rewind, finish_rewind
from holdfast.rewind.building import claimed_timeline
from holdfast.rewind.forking import fork
from holdfast.rewind.planning import plan_rewind
from holdfast.rewind.program import Program, ProgramStream
from holdfast.spark.stages import INLINE, StageKeeper
from holdfast.spark.starting import _recording_why
from holdfast.sparkfiles.places import spark_key
from holdfast.stages import MsgpackCodec, Stage, StageView
from holdfast.verification import Grade, verify
from s3fixture import S3Place
from storestream import STREAM, StoreStream

RETAIN = 10


@pytest.fixture
def made(s3: S3Place) -> StoreStream:
    return StoreStream(s3.url("root/orders"))


def files_of(made: StoreStream, checkpoint: int | str) -> FileList:
    place, _ = made.checkpoints.find(checkpoint)
    return made.checkpoints.files(place, made.checkpoints.read(checkpoint).streams[STREAM], checkpoint)


def prune(made: StoreStream, last: int = 1, **options: object) -> set[str]:
    """Prune, and return what went from Spark's folder."""
    before = made.paths()
    plan = plan_prune(made.repository, Retention(last=last), retain=RETAIN, **options)  # type: ignore[arg-type]
    with Lease.take(made.repository) as lease:
        apply_prune(made.repository, plan, lease)
    return before - made.paths()


# --- the cut ---


def test_a_checkpoint_names_state_in_place_and_has_copies_of_the_logs(made: StoreStream) -> None:
    made.run(3)
    made.snapshot_all()
    made.run(2)
    made.checkpoint()
    listed = files_of(made, 1)
    in_place = {each.path for each in listed.files if each.etag}
    assert in_place == {
        "state/0/_metadata/metadata",
        *(f"state/0/{p}/SSTs/{made.ssts[p][0]}" for p in (0, 1)),
        *(f"{made.stem(3, p)}.zip" for p in (0, 1)),
        *(f"{made.stem(v, p)}.changelog{end}" for p in (0, 1) for v in (4, 5) for end in ("", ".crc")),
    }
    copied = {each.path for each in listed.files if not each.etag}
    assert copied == {"metadata", "offsets/3", "offsets/4", "commits/4", *(f"sources/0/{each}" for each in range(5))}
    folder = "timelines/1/checkpoints/1"
    there = {each.key.removeprefix(f"{folder}/") for each in made.repository.flat(folder)}
    assert {name for name in there if name.startswith("spark/")} == {f"spark/{STREAM}/{path}" for path in copied}
    assert made.repository.list("objects") == []


def test_a_snapshot_counts_only_once_every_file_that_it_lists_is_there(made: StoreStream) -> None:
    """Spark uploads the snapshot last, but another one may list files that a failed upload never wrote."""
    made.run(2)
    made.snapshot_all()
    made.run(2)
    zips = [made.snapshot(0), made.snapshot(1)]
    lost = made.upload(1)
    broken = made.snapshot(1)  # the same version again, with one more file
    made.repository.delete(f"{made.live}/{lost}")
    made.checkpoint()
    named = {each.path for each in files_of(made, 1).files}
    assert zips[0] in named
    assert broken not in named
    assert f"{made.stem(2, 1)}.zip" in named
    assert f"{made.stem(3, 1)}.changelog" in named


def test_each_new_file_is_downloaded_once_and_the_rest_is_one_list(s3: S3Place, s3_faults: FaultProxy) -> None:
    made = StoreStream(s3.url("root/orders"), partitions=20)
    made.run(3)
    made.snapshot_all()
    made.run(5)
    made.cut(1)
    s3_faults.reset()
    made.cut(2)  # nothing is new: only the copies of the logs are written
    assert s3_faults.counts["GET"] == 0
    assert (s3_faults.counts["LIST"], s3_faults.counts["HEAD"]) == (1, 0)
    assert len([each for each in s3_faults.seen if each.kind == "PUT" and "/checkpoints/2/" in each.key]) == 12
    made.run(1)
    s3_faults.reset()
    cut = made.cut(3)
    assert s3_faults.counts["GET"] == cut.new_files == 2 * 20 + 3  # changelogs with sums; offsets, commit, source entry
    assert (s3_faults.counts["LIST"], s3_faults.counts["HEAD"]) == (1, 0)
    assert not [each for each in s3_faults.seen if each.kind == "PUT" and "/checkpoints/3/" not in each.key]


def test_a_missing_file_fails_the_checkpoint(made: StoreStream) -> None:
    made.run(3)
    made.repository.delete(f"{made.live}/{made.stem(2, 0)}.changelog")
    with pytest.raises(StorageFailed, match="changelog is missing"):
        made.cut(1)


def test_an_abort_leaves_nothing_of_a_checkpoint(made: StoreStream) -> None:
    made.run(2)
    number = made.checkpoints.claim(1, 1)
    made.cut(number)
    made.checkpoints.abort(1, number, 1, "a test")
    assert made.repository.flat(f"timelines/1/checkpoints/{number}") == []
    made.checkpoint()


def test_lists_in_place_have_a_form_of_their_own_and_local_ones_are_unchanged() -> None:
    digest = "a" * 64
    local = FileList([HeldFile("metadata", 2, digest)])
    assert local.to_bytes() == b'{"files":[\n["metadata",2,"%s"]\n]}\n' % digest.encode()
    placed = FileList([HeldFile("state/0/0/1.zip", 2, digest, "e"), HeldFile("metadata", 2, digest)], "l", "c")
    assert placed.to_bytes() == (
        b'{"live":"l","copies":"c","files":[\n["metadata",2,"%s",""],\n["state/0/0/1.zip",2,"%s","e"]\n]}\n'
        % (digest.encode(), digest.encode())
    )
    assert FileList.from_bytes(placed.to_bytes()) == FileList(
        sorted(placed.files, key=lambda each: each.path), "l", "c"
    )
    assert [placed.placed_key(each) for each in placed.files] == ["l/state/0/0/1.zip", "c/metadata"]
    assert "does not name" in str(FileList([HeldFile("x", 1, digest, "e")], "", "c").unsound())


# --- restore, verify, diff ---


@pytest.mark.parametrize("savepoint", [None, "before"])
def test_a_checkpoint_is_restored_into_a_folder_and_to_another_prefix(
    made: StoreStream, s3: S3Place, tmp_path: Path, savepoint: str | None
) -> None:
    made.run(3)
    made.snapshot_all()
    made.run(12)
    made.checkpoint(savepoint)
    plan = plan_restore(made.repository, savepoint or 1)
    expected = {
        each.path: made.repository.read(f"{made.live}/{each.path}") for each in plan.streams[STREAM].files.files
    }
    made.run(1)
    restore_stream(made.repository, plan, STREAM, tmp_path / "new")
    found = {str(path.relative_to(tmp_path / "new")): path.read_bytes() for path in (tmp_path / "new").rglob("*.*")}
    found |= {path: (tmp_path / "new" / path).read_bytes() for path in expected}
    assert {**found, "metadata": b""} == {**expected, "metadata": b""}
    assert json.loads((tmp_path / "new/metadata").read_text())["id"] != json.loads(expected["metadata"])["id"]
    other = ObjectRepository(s3.url("elsewhere/new"))
    restore_stream(made.repository, plan, STREAM, other.where)
    assert {each.key for each in other.flat()} == expected.keys()
    assert {path: other.read(path) for path in expected if path != "metadata"} == {
        path: data for path, data in expected.items() if path != "metadata"
    }
    with pytest.raises(AlreadyExists):
        restore_stream(made.repository, plan, STREAM, other.where)


def test_a_local_checkpoint_is_not_restored_to_a_store(s3: S3Place, tmp_path: Path) -> None:
    repository = LocalRepository(tmp_path)
    Fabricated(repository).take("x")
    with pytest.raises(NotSupported, match="local folder"):
        restore_stream(repository, plan_restore(repository, 1), "orders", s3.url("there"))


def test_a_file_that_is_gone_or_changed_is_found(made: StoreStream, tmp_path: Path) -> None:
    made.run(4)
    made.checkpoint()
    made.run(1)
    made.checkpoint()
    assert verify(made.repository, 2, grade=Grade.DIGESTS).ok
    plan = plan_restore(made.repository, 2)
    key = f"{made.live}/{made.stem(5, 0)}.changelog"
    data = made.repository.read(key)
    made.repository.put_new(key, data.swapcase())
    found = verify(made.repository, 2, grade=Grade.STRUCTURE)
    assert (found.ok, [each.code for each in found.findings]) == (True, ["file-replaced"])
    assert [each.code for each in verify(made.repository, 2).findings] == ["file-digest"]
    with pytest.raises(StorageFailed, match="digest"):
        restore_stream(made.repository, plan, STREAM, tmp_path / "changed")
    made.repository.delete(key)
    assert [each.code for each in verify(made.repository, 2).findings] == ["file-missing"]
    with pytest.raises(CheckpointDamaged) as error:
        plan_restore(made.repository, 2)
    assert error.value.offered == 1
    with pytest.raises(CheckpointDamaged):
        restore_stream(made.repository, plan, STREAM, tmp_path / "gone")
    assert verify(made.repository, 1).ok
    copy = f"timelines/1/checkpoints/1/spark/{STREAM}/offsets/3"
    made.repository.delete(copy)
    assert [each.where for each in verify(made.repository, 1).findings] == [copy]


def test_a_plan_looks_at_files_with_lists_alone(s3: S3Place, s3_faults: FaultProxy) -> None:
    made = StoreStream(s3.url("root/orders"), partitions=20)
    made.run(5)
    made.checkpoint()
    s3_faults.reset()
    plan_restore(made.repository, 1)
    assert s3_faults.counts["HEAD"] <= 6  # of records
    assert s3_faults.counts["GET"] <= 6


def test_diff_counts_files_in_place(made: StoreStream) -> None:
    made.run(3)
    made.checkpoint()
    made.run(2)
    made.checkpoint()
    files = diff(made.repository, 1, 2).streams[STREAM].files
    assert files.added == 2 * 2 * 2 + 5
    assert files.removed == 3
    assert (made.checkpoints.all()[0].epochs, len(made.checkpoints.all())) == ({STREAM: 3}, 2)


# --- savepoints and forks ---


def test_a_savepoint_depends_on_nothing_else(made: StoreStream, tmp_path: Path) -> None:
    made.run(3)
    made.snapshot_all()
    made.run(3)
    made.checkpoint("keep")
    assert all(each.key.startswith("savepoints/keep/") or "aborted" in each.key for each in _of_savepoint(made))
    for path in made.paths():
        made.repository.delete(f"{made.live}/{path}")
    assert verify(made.repository, "keep").ok
    restore_stream(made.repository, plan_restore(made.repository, "keep"), STREAM, tmp_path / "new")
    assert (tmp_path / "new/commits/5").exists()


def test_a_driver_that_was_replaced_does_not_write_into_a_savepoint_of_its_successor(made: StoreStream) -> None:
    """It was paused while it took a savepoint. After a rewind, the same name was asked for again."""
    made.run(3)
    made.snapshot_all()
    late = made.checkpoints.claim(1, 1)
    pinned = made.snapshots.pin(made.batch, made.checkpoints.place(1, late, "keep"), copy=True)
    begin_timeline(made.repository, TimelineRecord(timeline=2, parent=1, bases={STREAM: 0}))
    new = StoreStream(made.repository.where, timeline=2)
    new.run(3)
    new.snapshot_all()
    new.checkpoint("keep")
    while made.snapshots.keep(pinned) is None:
        pass
    assert verify(made.repository, "keep", grade=Grade.DIGESTS).ok


def test_a_late_clean_up_leaves_a_savepoint_that_was_finished_meanwhile(
    made: StoreStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver was replaced while it removed what an earlier one had left of a savepoint of this name."""
    made.run(3)
    made.snapshot_all()
    left = made.checkpoints.claim(1, 1)
    made.cut(left, "keep")
    late, looked = Checkpoints(ObjectRepository(made.repository.where)), []

    def flat(folder: str = "") -> list[StoredObject]:
        found = made.repository.flat(folder)
        if folder.startswith("savepoints/") and not looked:
            looked.append(folder)  # the late driver is paused now
            made.checkpoints.close_open(1, 2)
            made.checkpoint("keep")
        return found

    monkeypatch.setattr(late.repository, "flat", flat)
    late.drop_unfinished("keep", left)
    assert looked
    assert verify(made.repository, "keep", grade=Grade.DIGESTS).ok
    late.drop_unfinished("keep", left)
    assert verify(made.repository, "keep", grade=Grade.DIGESTS).ok


def _of_savepoint(made: StoreStream) -> list[object]:
    plan = plan_restore(made.repository, "keep")
    keys = set(plan.objects)
    return [each for each in made.repository.flat("savepoints") if each.key in keys]


def test_a_fork_is_another_pipeline_with_the_files_and_a_base_decision(made: StoreStream, s3: S3Place) -> None:
    made.run(3)
    made.snapshot_all()
    made.run(2)
    made.checkpoint()
    made.run(2)
    done = fork(made.repository, 1, name="trial", root=s3.url("trials"))
    assert (done.epochs, done.where) == ({STREAM: 5}, s3.url("trials/trial"))
    new = ObjectRepository(done.where)
    assert Identity.load(new).uid != made.identity.uid
    assert {each.key.removeprefix(f"{spark_key(STREAM, 1)}/") for each in new.flat(spark_key(STREAM, 1))} == {
        each.path for each in files_of(made, 1).files
    }
    with pytest.raises(AlreadyExists):
        fork(made.repository, 1, name="trial", root=s3.url("trials"))
    with pytest.raises(NotSupported, match="s3://"):
        fork(made.repository, 1, name="trial", root="/tmp/x")  # noqa: S108 - not used


def test_a_fork_from_files_that_are_gone_names_a_newer_checkpoint_and_is_no_pipeline(
    made: StoreStream, s3: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.run(3)
    made.checkpoint()
    made.run(2)
    made.snapshot_all(merged=True)
    made.checkpoint()
    key = f"{made.live}/{made.stem(2, 0)}.changelog"
    real = ObjectRepository.copy_all

    def gone(self: ObjectRepository, pairs: object) -> None:
        made.repository.delete(key)
        real(self, pairs)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectRepository, "copy_all", gone)
    with pytest.raises(CheckpointDamaged) as error:
        fork(made.repository, 1, name="trial", root=s3.url("trials"))
    assert error.value.offered == 2
    with pytest.raises(Exception, match="no pipeline"):
        Identity.load(ObjectRepository(s3.url("trials/trial")))


def test_a_rewind_to_files_that_are_gone_names_a_newer_checkpoint_and_decides_nothing(
    made: StoreStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.run(3)
    made.checkpoint()
    made.run(2)
    made.snapshot_all(merged=True)
    made.checkpoint()
    key = f"{made.live}/{made.stem(2, 0)}.changelog"
    program = Program(
        name="orders", repository=made.repository, shared=False, streams={STREAM: ProgramStream(STREAM, ())}
    )
    pipeline = SimpleNamespace(program=program)
    plan = plan_rewind(pipeline, 1)
    real = ObjectRepository.copy_all

    def gone(self: ObjectRepository, pairs: object) -> None:
        made.repository.delete(key)
        real(self, pairs)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectRepository, "copy_all", gone)
    with pytest.raises(CheckpointDamaged) as error:
        apply_rewind(pipeline, plan, accept_input=True)
    assert error.value.offered == 2
    assert Lineage.load(made.repository).current == 1
    require_finished(made.repository)


# --- clean-up ---


def steady(made: StoreStream, rounds: int) -> None:
    """Run as a pipeline does: a snapshot now and then, and a checkpoint every few epochs."""
    for each in range(rounds):
        made.run(3)
        if each % 2:
            made.snapshot_all(merged=each % 4 == 3)
        made.checkpoint()


def make_older(s3: S3Place) -> None:
    """Make all objects ten seconds older, by the clock of the store."""
    for path in s3.folder.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - 10,) * 2)


def test_clean_up_leaves_what_a_restart_and_kept_checkpoints_need(made: StoreStream) -> None:
    steady(made, 10)
    gone = prune(made, last=2)
    assert {path for path in gone if path.endswith(".changelog")}
    assert {path for path in gone if path.endswith(".zip")}
    assert {path for path in gone if path.startswith("commits/")}
    kept = [each for each in made.checkpoints.all() if each.status.value == "restorable"]
    assert [each.checkpoint for each in kept] == [6, 9, 10]  # 6: epoch 18, the newest that is ten epochs old
    for each in kept:
        assert verify(made.repository, each.checkpoint).ok
    for partition in (0, 1):
        assert made.chain(30, partition)
    assert prune(made, last=2) == set()
    steady(made, 4)
    assert prune(made, last=2)
    assert all(verify(made.repository, each.checkpoint).ok for each in made.checkpoints.all() if each.checkpoint > 12)


def test_source_entries_go_below_the_last_but_one_compacted_one(made: StoreStream) -> None:
    made.run(30)
    made.snapshot_all()
    made.checkpoint()
    made.run(12)
    made.snapshot_all()
    made.checkpoint()
    gone = {path for path in prune(made) if path.startswith("sources/")}
    assert gone == {*(f"sources/0/{each}" for each in range(19) if each != 9), "sources/0/9.compact"}
    assert verify(made.repository, 1).ok


def test_a_snapshot_that_is_uploaded_after_a_clean_up_has_its_files(made: StoreStream, s3: S3Place) -> None:
    """Its SST files were there, named by nothing, when the clean-up looked."""
    for _ in range(8):
        made.run(3)
        made.snapshot_all(merged=True)
        made.checkpoint()
        make_older(s3)
    made.run(1)
    early = made.upload(0)
    made.run(1)
    gone = prune(made)
    assert any(path.endswith(".sst") for path in gone)
    assert early not in gone
    zip_ = made.snapshot(0)
    made.checkpoint()
    named = {each.path for each in files_of(made, made.checkpoints.highest()).files}
    assert {zip_, early} <= named
    assert verify(made.repository, made.checkpoints.highest()).ok


def test_a_batch_that_a_replaced_driver_commits_after_the_clean_up_can_be_loaded(made: StoreStream) -> None:
    """Its state files are named by nothing until then."""
    steady(made, 8)
    made.run(1, commit=False)
    prune(made)
    made.commit()
    for partition in (0, 1):
        assert made.chain(made.batch + 1, partition)
    made.checkpoint()
    assert verify(made.repository, made.checkpoints.highest()).ok


def test_a_clean_up_that_is_carried_out_ten_epochs_later_by_a_replaced_driver_harms_nothing(made: StoreStream) -> None:
    steady(made, 8)
    late = plan_prune(made.repository, Retention(last=1), retain=RETAIN)
    assert late.garbage
    steady(made, 5)
    prune(made)
    steady(made, 1)
    made.repository.delete_all(late.garbage)  # it was paused after it looked at its lease
    for partition in (0, 1):
        assert made.chain(made.batch + 1, partition)
    standing = [each for each in Checkpoints(made.repository).all() if each.status.value == "restorable"]
    assert len(standing) > 1
    for each in standing:
        assert verify(made.repository, each.checkpoint).ok
    made.checkpoint()


def test_the_lease_is_looked_at_before_every_thousand_objects(
    made: StoreStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady(made, 8)
    monkeypatch.setattr("holdfast.pruning.DELETED_AT_ONCE", 5)
    plan = plan_prune(made.repository, Retention(last=1), retain=RETAIN)
    lease = Lease.take(made.repository)
    before = made.paths()

    def reach(point: str) -> None:
        if point == "object collected":
            Lease.take(made.repository, take_over=True).release()

    with pytest.raises(Fenced):
        apply_prune(made.repository, plan, lease, reach=reach)
    assert len(before - made.paths()) == 5
    lease.release()


def test_a_clean_up_is_one_list_of_the_folder_and_one_request_per_thousand_objects(
    s3: S3Place, s3_faults: FaultProxy
) -> None:
    made = StoreStream(s3.url("root/orders"), partitions=10)
    steady(made, 8)
    s3_faults.reset()
    plan_prune(made.repository, Retention(last=1), retain=RETAIN)
    lists = [
        each.key for each in s3_faults.seen if each.kind == "LIST" and f"{made.live.replace('/', '%2F')}" in each.key
    ]
    assert len(lists) <= 2  # one for the files of kept checkpoints, one for the clean-up
    reads = [each for each in s3_faults.seen if each.kind == "GET" and "/spark/state/" in each.key]
    assert len(reads) == len({each.key for each in reads}) <= 10 * 4  # snapshots that stay
    assert not [each for each in s3_faults.seen if each.kind == "HEAD" and "/spark/" in each.key]


def test_an_ended_timeline_stays_until_a_prune_names_abandoned_ones(made: StoreStream) -> None:
    steady(made, 8)
    begin_timeline(made.repository, TimelineRecord(timeline=2, parent=1, bases={STREAM: 24}, checkpoint=8))
    new = StoreStream(made.repository.where, timeline=2)
    new.ids, new.ssts, new.batch = dict(made.ids), made.ssts, 23
    new.begin()
    new.run(1)
    assert prune(made, last=100) == set()
    gone = prune(made, last=100, abandoned=True)
    assert gone
    assert all(verify(made.repository, each).ok for each in range(1, 9))


def test_places_on_a_store_are_below_the_checkpoint() -> None:
    assert place_of(1, 7, shared=False).object("ab" * 32) == f"timelines/1/checkpoints/7/files/ab/{'ab' * 32}"
    assert place_of(1, 7).object("ab" * 32) == f"objects/ab/{'ab' * 32}"
    assert place_of(1, 7, "x", shared=False).copies("s") == "savepoints/x/spark/7/s"


# --- stages, requests, numbers ---


def test_a_large_stage_state_is_an_object_of_its_lease_that_goes_after_the_next_decision(made: StoreStream) -> None:
    repository, stage = made.repository, Stage([], MsgpackCodec(list))
    first = StageKeeper(stage, repository, "s", 1, 3)
    initial = first.load(None)
    one = first.seal(StageView(["x" * INLINE]), initial)
    key = str((one.record or {})["object"])
    assert key.startswith("stages/s/t1/l3/")
    failed = first.seal(StageView(["y" * INLINE]), one)
    two = first.seal(StageView(["z" * INLINE]), one)
    assert first.load(one.record).data == one.data  # nothing was overwritten
    first.settle(two)
    assert [each.key for each in repository.flat("stages")] == [str((two.record or {})["object"])]
    with pytest.raises(StageCorrupt, match="missing"):
        first.load(failed.record)
    later = StageKeeper(stage, repository, "s", 1, 4)
    assert later.load(two.record).data == two.data
    three = later.seal(StageView(["w" * INLINE]), two)
    first.settle(two)  # the driver that was replaced resumes
    assert later.load(three.record).data == three.data
    later.settle(three)
    assert [each.key for each in repository.flat("stages")] == [str((three.record or {})["object"])]
    small = later.seal(StageView([]), three)
    later.settle(small)
    assert repository.flat("stages") == []


@pytest.mark.parametrize("named", ["stages/other/t1/l3/x.state", "holdfast.json", "stages/s/t1/l3/../x.state", ""])
def test_a_decision_that_names_another_object_as_its_stage_is_refused(made: StoreStream, named: str) -> None:
    keeper = StageKeeper(Stage([], MsgpackCodec(list)), made.repository, "s", 1, 3)
    with pytest.raises(StageCorrupt, match="names the object"):
        keeper.load({"type": MsgpackCodec(list).type_name, "sha256": "0" * 64, "object": named})


def test_a_prune_of_another_process_takes_the_lease_of_a_stopped_pipeline(made: StoreStream) -> None:
    steady(made, 3)
    lease = Lease.take(made.repository)
    with pytest.raises(RequestUnanswered):  # its holder shows signs of life
        request_prune(made.repository, Retention(last=1), timeout_s=0.5)
    lease.release()
    done = request_prune(made.repository, Retention(last=1))
    assert isinstance(done, Pruned)
    assert done.dropped == (1, 2)


def test_nothing_is_written_to_a_bucket_that_ignores_conditions(
    made: StoreStream, s3: S3Place, s3_faults: FaultProxy
) -> None:
    """The first process that writes to a bucket need not be a driver, which probes it at its start."""
    steady(made, 3)
    before = made.repository.flat()
    program = Program(name="orders", repository=made.repository, shared=False, streams={})
    s3_faults.ignore_conditions = True
    for act in (
        lambda: fork(made.repository, 1, name="trial", root=s3.url("trials")),
        lambda: request_prune(made.repository, Retention(last=1)),
        lambda: finish_rewind(SimpleNamespace(program=program)),
    ):
        with pytest.raises(BucketUnsuitable):
            act()
    assert ObjectRepository(s3.url("trials")).flat() == []
    assert made.repository.flat() == before


def test_two_rewinds_never_build_in_the_same_timeline(made: StoreStream) -> None:
    """Both found the same number free: without a lock, one of them may have been paused."""
    assert [claimed_timeline(made.repository, lease) for lease in (1, 2)] == [2, 3]
    made.repository.put_if_absent("timelines/5/building.json", b"{}")
    assert claimed_timeline(made.repository, 3) == 6


def test_without_an_interval_a_checkpoint_is_taken_after_so_many_epochs() -> None:
    policy = CheckpointPolicy(every=None)
    assert policy.at_least_every(100).epochs == 100
    assert CheckpointPolicy(every="1s").at_least_every(100).epochs is None


def test_a_start_that_fails_is_recorded(made: StoreStream) -> None:
    """Otherwise the next look at the repository takes it for a kill."""
    with pytest.raises(ValueError, match="no such column"), _recording_why(made.repository, 1):
        raise ValueError("no such column")
    (event,) = Activity(made.repository).events()[0]
    assert (event.kind, event.error) == (START_FAILED, "ValueError")
