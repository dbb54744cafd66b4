"""From a checkpoint to folders that Spark can start from: everything, nothing over something, nothing outside."""

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from fabricated import UID, Fabricated, flip
from holdfast.barriers import BarrierFlags
from holdfast.errors import (
    AlreadyExists,
    BadValue,
    CheckpointDamaged,
    CheckpointMissing,
    NotSupported,
    StorageFailed,
    UnsupportedVersion,
)
from holdfast.formats.manifest import Manifest
from holdfast.repository import FileList, HeldFile, LocalRepository, MemoryRepository
from holdfast.repository.checkpoint_keys import place_of
from holdfast.restore import StreamRestore, link_spark_folder, plan_restore, restore_stream, stage_states


@pytest.fixture(params=["local", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Fabricated:
    return Fabricated(LocalRepository(tmp_path / "root") if request.param == "local" else MemoryRepository())


def texts(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.rglob("*") if path.is_file() and path.name != "metadata"}


def test_the_newest_of_the_current_timeline_or_the_one_that_is_asked_for(made: Fabricated) -> None:
    with pytest.raises(CheckpointMissing):
        plan_restore(made.repository)
    made.take("a")
    made.take("a", "bb")
    plan = plan_restore(made.repository)
    assert (plan.checkpoint, plan.streams["orders"].epoch) == (2, 2)
    assert plan.summary().splitlines() == [
        "checkpoint 2 of timeline 1",
        f"  stream 'orders' after epoch 2: 3 files, {plan.streams['orders'].bytes} B",
    ]
    assert plan.to_dict()["streams"]["orders"]["files"] == 3
    assert plan_restore(made.repository, 1).checkpoint == 1
    made.rewind(1)
    made.take("c", timeline=2)
    assert plan_restore(made.repository).checkpoint == 3
    made.checkpoints.drop(2, 3)
    assert plan_restore(made.repository).checkpoint == 1, "2 was abandoned"
    made.checkpoints.drop(1, 1)
    with pytest.raises(CheckpointMissing):
        plan_restore(made.repository)


def test_a_stream_comes_back_with_all_its_files_and_a_new_id(made: Fabricated, tmp_path: Path) -> None:
    number = made.checkpoints.claim(1, 1)
    made.finish(number, {"orders": ["a", "b"], "totals": ["c"], "late": []}, cuts={"late": {"epoch": 0}})
    plan = plan_restore(made.repository)
    for target in (tmp_path / "one", tmp_path / "deep" / "two"):
        if target.name == "one":
            target.mkdir()
        restore_stream(made.repository, plan, "orders", target)
        assert texts(target) == {"a", "b"}
        found = json.loads((target / "metadata").read_text())
        assert str(uuid.UUID(found["id"], version=4)) == found["id"] != UID
    restore_stream(made.repository, plan, "totals", tmp_path / "totals")
    assert texts(tmp_path / "totals") == {"c"}
    restore_stream(made.repository, plan, "late", tmp_path / "late")
    assert not (tmp_path / "late").exists()
    assert (tmp_path / "one" / "metadata").read_text() != (tmp_path / "deep" / "two" / "metadata").read_text()


def test_the_checksum_of_the_old_id_is_left_behind(made: Fabricated, tmp_path: Path) -> None:
    """Spark would refuse the new id by it."""
    files = made.hold(["a"], "objects")
    files.append(HeldFile(".metadata.crc", files[0].size, files[0].sha256))
    digest, _ = made.checkpoints.put_files(place_of(1, 1), files)
    made.finish(made.checkpoints.claim(1, 1), {"orders": []}, cuts={"orders": {"files": digest}})
    restore_stream(made.repository, plan_restore(made.repository), "orders", tmp_path / "out")
    assert not (tmp_path / "out" / ".metadata.crc").exists()
    assert UID not in (tmp_path / "out" / "metadata").read_text()


SCHEMA = "state/3/_stateSchema/default/0_11464100"
OPERATOR = {
    "operatorInfo": {"operatorId": 3, "operatorName": "transformWithStateInPySparkExec"},
    "stateStoreInfo": [
        {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [f"file:/old/state/3/x/{SCHEMA}"]},
        {"storeName": "other", "numPartitions": 2, "stateSchemaFilePaths": []},
    ],
    "operatorPropertiesJson": '{"where":"file:/old/state/3/_stateSchema/näu"}',
}


def with_operator(made: Fabricated, tmp_path: Path, data: bytes, path: str = "state/3/_metadata/v2/0") -> str:
    """Take a checkpoint with metadata of an operator; return the key of its object."""
    (tmp_path / "operator").write_bytes(data)
    (held,) = made.repository.hold_all([tmp_path / "operator"], "objects")
    files = [*made.hold(["a"], "objects"), HeldFile(path, held.size, held.sha256)]
    digest, _ = made.checkpoints.put_files(place_of(1, 1), files)
    made.finish(made.checkpoints.claim(1, 1), {"orders": []}, cuts={"orders": {"files": digest}})
    return held.key


def operator(**fields: object) -> bytes:
    return b"v2\n" + json.dumps({**OPERATOR, **fields}, separators=(",", ":"), ensure_ascii=False).encode()


def test_paths_of_schema_files_move_with_the_folder(made: Fabricated, tmp_path: Path) -> None:
    """And nothing else does: not even the same text elsewhere, nor the object that others restore from."""
    key = with_operator(made, tmp_path, operator())
    target = tmp_path / "new 100%"
    restore_stream(made.repository, plan_restore(made.repository), "orders", target)
    before = operator()
    after = before.replace(b"file:/old/state/3/x/state/3", f"file:{target}/state/3".encode())
    assert (target / "state/3/_metadata/v2/0").read_bytes() == after
    assert made.repository.read(key) == before


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (operator().replace(b"v2", b"v3", 1), "state/3/_metadata/v2/0"),
        (operator().replace(b"v2", b"", 1), "state/3/_metadata/v2/0"),
        (operator(), "state/3/_metadata/v3/0"),
        (operator(), "state/4/_metadata/v2/0"),
        (operator(stateStoreInfo=[{"stateSchemaFilePaths": ["file:/old/elsewhere"]}]), "state/3/_metadata/v2/0"),
        (operator(stateStoreInfo=[{"stateSchemaFilePaths": [7]}]), "state/3/_metadata/v2/0"),
        (operator(stateStoreInfo=[{"storeName": "default"}]), "state/3/_metadata/v2/0"),
        (operator(stateStoreInfo=None), "state/3/_metadata/v2/0"),
        (b"v2\n[]", "state/3/_metadata/v2/0"),
        (b"v2\n{", "state/3/_metadata/v2/more/0"),
        (b"v2\n\xff", "state/3/_metadata/v2/0"),
        (b"", "state/3/_metadata/v2/0"),
    ],
)
def test_metadata_of_another_form_is_refused(made: Fabricated, tmp_path: Path, data: bytes, path: str) -> None:
    with_operator(made, tmp_path, data, path)
    with pytest.raises((NotSupported, UnsupportedVersion), match=f"operator metadata '{path}'"):
        restore_stream(made.repository, plan_restore(made.repository), "orders", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_metadata_is_checked_before_it_is_rewritten(made: Fabricated, tmp_path: Path) -> None:
    flip(made.repository, with_operator(made, tmp_path, operator()))
    with pytest.raises(CheckpointDamaged, match="does not match its digest"):
        restore_stream(made.repository, plan_restore(made.repository), "orders", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_is_written_over(made: Fabricated, tmp_path: Path) -> None:
    made.take("a")
    plan = plan_restore(made.repository)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path / "full", tmp_path / "file"):
        with pytest.raises(AlreadyExists, match="empty or does not exist"):
            restore_stream(made.repository, plan, "orders", target)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["x"]
    with pytest.raises(BadValue, match="expected one of orders"):
        restore_stream(made.repository, plan, "other", tmp_path / "new")
    with pytest.raises((StorageFailed, AlreadyExists)):
        restore_stream(made.repository, plan, "orders", tmp_path / "file" / "below")


def test_what_comes_from_a_savepoint_shares_no_bytes_with_it(tmp_path: Path) -> None:
    made = Fabricated(LocalRepository(tmp_path / "root"))
    made.finish(made.checkpoints.claim(1, 1, BarrierFlags.FULL_SNAPSHOT), {"orders": ["a"]}, savepoint="before")
    made.take("a")
    for name, links in (("before", 1), (2, 2)):
        plan = plan_restore(made.repository, name)
        assert plan.name == name
        restore_stream(made.repository, plan, "orders", tmp_path / str(name))
        (path,) = (tmp_path / str(name)).rglob("*.delta")
        assert path.stat().st_nlink == links


@pytest.mark.parametrize("part", ["object gone", "object cut", "list", "manifest", "sidecar gone", "sidecar cut"])
def test_damage_is_named_and_the_one_before_is_offered(made: Fabricated, part: str) -> None:
    made.take("a")
    made.finish(made.checkpoints.claim(1, 1), {"orders": ["b"]}, states={"model": b"x" * 100})
    place = place_of(1, 2)
    listed = plan_restore(made.repository).streams["orders"].files.files
    key = place.object(listed[1].sha256)
    hurt = {
        "object gone": lambda: made.repository.delete(key),
        "object cut": lambda: made.repository.put(key, b""),
        "list": lambda: flip(made.repository, place.object(str(made.checkpoints.read(2).streams["orders"].files))),
        "manifest": lambda: flip(made.repository, place.manifest),
        "sidecar gone": lambda: made.repository.delete(place.sidecar),
        "sidecar cut": lambda: made.repository.put(place.sidecar, b"x" * 99),
    }
    hurt[part]()
    named = {"object gone": "is missing", "object cut": "has 0 bytes, expected 1", "sidecar cut": "'model'"}
    for asked in (None, 2):
        with pytest.raises(CheckpointDamaged, match=r"the previous checkpoint: holdfast verify 1") as caught:
            plan_restore(made.repository, asked)
        assert (caught.value.checkpoint, caught.value.offered) == (2, 1)
        assert named.get(part, part.split(maxsplit=1)[0]) in str(caught.value)
    assert plan_restore(made.repository, 1).checkpoint == 1


def test_a_changed_byte_is_found_before_anything_is_written(made: Fabricated, tmp_path: Path) -> None:
    """Its size is right, so a plan does not notice it. Spark might load it as state."""
    made.take("a")
    made.finish(made.checkpoints.claim(1, 1), {"orders": ["b"]})
    plan = plan_restore(made.repository)
    listed = plan.streams["orders"].files.files[1]
    flip(made.repository, place_of(1, 2).object(listed.sha256))
    with pytest.raises(CheckpointDamaged, match=r"does not match its digest.*holdfast verify 1") as caught:
        restore_stream(made.repository, plan_restore(made.repository), "orders", tmp_path / "restored")
    assert repr(listed.path) in str(caught.value)
    assert not (tmp_path / "restored").exists()


def test_two_lists_that_give_one_file_two_sizes_are_damage(made: Fabricated) -> None:
    files = made.hold(["a"], "objects")
    wrong = [HeldFile(each.path, each.size + 1, each.sha256) for each in files]
    digests = [made.checkpoints.put_files(place_of(1, 1), each)[0] for each in (wrong, files)]
    cuts = {name: {"files": digest} for name, digest in zip(("orders", "totals"), digests, strict=True)}
    made.finish(made.checkpoints.claim(1, 1), {"orders": [], "totals": []}, cuts=cuts)
    with pytest.raises(CheckpointDamaged, match="stream 'orders'"):
        plan_restore(made.repository)


def test_another_pipelines_checkpoint_is_refused(made: Fabricated) -> None:
    made.take("a")
    manifest = made.checkpoints.read(1)
    made.repository.put(place_of(1, 1).manifest, replace(manifest, uid="other").to_bytes())
    with pytest.raises(CheckpointDamaged, match="belongs to pipeline other"):
        plan_restore(made.repository)


def test_what_is_not_valid_is_refused(made: Fabricated) -> None:
    made.take("a")
    manifest: Manifest = replace(made.checkpoints.read(1), vnode_count=7)
    made.repository.put(place_of(1, 1).manifest, manifest.to_bytes())
    with pytest.raises(CheckpointDamaged, match="vnode count is 7"):
        plan_restore(made.repository)


@pytest.mark.parametrize("path", ["../escaped", "/escaped", "a/../../escaped"])
def test_a_plan_with_paths_that_lead_elsewhere_writes_nothing(made: Fabricated, tmp_path: Path, path: str) -> None:
    made.take("a")
    plan = plan_restore(made.repository)
    file = plan.streams["orders"].files.files[1]
    hostile = FileList([HeldFile(path, file.size, file.sha256)])
    with pytest.raises(CheckpointDamaged, match="leads out of its folder"):
        restore_stream(
            made.repository,
            replace(plan, streams={"orders": StreamRestore(1, hostile)}),
            "orders",
            tmp_path / "new" / "target",
        )
    assert not list(tmp_path.rglob("escaped"))


def test_an_object_that_goes_after_the_plan_was_made_is_damage(made: Fabricated, tmp_path: Path) -> None:
    made.take("a")
    plan = plan_restore(made.repository)
    made.repository.clear("objects")
    with pytest.raises(CheckpointDamaged, match="checkpoint 1"):
        restore_stream(made.repository, plan, "orders", tmp_path / "new")
    assert not (tmp_path / "new" / "metadata").exists(), "what was cut off is not taken for a query's folder"


def test_states_come_back_checked(made: Fabricated) -> None:
    states = {"small": b"s", "model": b"x" * 100, "empty": b""}
    made.take("a")
    made.finish(made.checkpoints.claim(1, 1), {"orders": ["b"]}, states=states)
    plan = plan_restore(made.repository)
    assert stage_states(made.repository, plan) == states
    assert stage_states(made.repository, plan_restore(made.repository, 1)) == {}
    flip(made.repository, place_of(1, 2).sidecar)
    with pytest.raises(CheckpointDamaged, match=r"'model'.*the previous checkpoint: holdfast verify 1"):
        stage_states(made.repository, plan)
    made.repository.delete(place_of(1, 2).sidecar)
    with pytest.raises(CheckpointDamaged, match="missing"):
        stage_states(made.repository, plan)


def test_a_linked_folder_stands_by_itself(tmp_path: Path) -> None:
    """Finished files are linked, temporary ones left out, the id is new, and the paths of schemas are rewritten."""
    old, new = tmp_path / "old", tmp_path / "new"
    metadata = {"stateStoreInfo": [{"stateSchemaFilePaths": [f"file:{old}/state/0/_stateSchema/default/0_x"]}]}
    texts = {
        "metadata": json.dumps({"id": UID}),
        ".metadata.crc": "old",
        "offsets/0": "v1",
        "offsets/.0.crc": "sum",
        "offsets/.1.tmp": "torn",
        "offsets/.1.crc": "of nothing",
        "state/0/_metadata/v2/0": f"v2\n{json.dumps(metadata)}",
        "state/0/_metadata/v2/.0.crc": "of the old paths",
        "state/0/_stateSchema/default/0_x": "schema",
    }
    for name, text in texts.items():
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text(text)
    link_spark_folder(old, new)
    found = {path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file()}
    assert found == texts.keys() - {
        ".metadata.crc",
        "offsets/.1.tmp",
        "offsets/.1.crc",
        "state/0/_metadata/v2/.0.crc",
    }
    assert (new / "offsets/0").stat().st_ino == (old / "offsets/0").stat().st_ino
    assert json.loads((new / "metadata").read_text())["id"] != UID
    rewritten = json.loads((new / "state/0/_metadata/v2/0").read_text().split("\n")[1])
    assert rewritten["stateStoreInfo"][0]["stateSchemaFilePaths"] == [f"file:{new}/state/0/_stateSchema/default/0_x"]
    assert str(old) in (old / "state/0/_metadata/v2/0").read_text()
    with pytest.raises(AlreadyExists):
        link_spark_folder(old, new)
