"""Checkpoints as a repository keeps them: ids, aborts, savepoints, damage."""

from pathlib import Path
from typing import Any

import pytest

from fabricated import Fabricated, flip
from holdfast.barriers import BarrierFlags
from holdfast.errors import (
    AlreadyExists,
    BadName,
    BadValue,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointMissing,
    StorageFailed,
    UnsupportedVersion,
)
from holdfast.formats.manifest_parts import StreamCut
from holdfast.formats.sealed_json import seal
from holdfast.repository import Checkpoints, FileList, HeldFile, LocalRepository, MemoryRepository, Status
from holdfast.repository.checkpoint_keys import place_of
from holdfast.testing import FaultyRepository

SHA = "a" * 64


@pytest.fixture(params=["local", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Fabricated:
    return Fabricated(LocalRepository(tmp_path / "root") if request.param == "local" else MemoryRepository())


def again(made: Fabricated) -> Checkpoints:
    """As a process sees them that has just started."""
    return Checkpoints(made.repository)


# --- ids -------------------------------------------------------------------------------------------------------------


def test_ids_are_never_used_twice(made: Fabricated) -> None:
    """Over aborts, drops, savepoints, timelines and restarts, also where the highest one is what goes."""
    given: list[int] = []

    def claim(timeline: int = 1, flags: int = 0) -> int:
        given.append(again(made).claim(timeline, 1, flags))
        return given[-1]

    made.finish(claim(), {"orders": ["a"]})
    again(made).abort(1, claim(), 1, "late")
    made.finish(claim(), {"orders": ["b"]})
    again(made).drop(1, 3)
    assert again(made).open_attempts(1) == []
    made.finish(claim(flags=BarrierFlags.FULL_SNAPSHOT), {"orders": ["c"]}, savepoint="before")
    again(made).drop_savepoint("before")
    assert again(made).open_attempts(1) == []
    made.finish(claim(timeline=2), {"orders": ["d"]}, timeline=2)
    again(made).drop(2, 5)
    claim(timeline=3)
    again(made).close_open(3, 2)
    again(made).drop(1, 1)
    claim()
    assert given == [1, 2, 3, 4, 5, 6, 7]
    assert again(made).highest() == 7


def test_the_highest_id_outlasts_any_number_of_aborts_and_old_ones_are_forgotten(made: Fabricated) -> None:
    for _ in range(103):
        number = again(made).claim(1, 1)
        again(made).abort(1, number, 1, "late")
    assert len(again(made).all()) == 103, "no checkpoint stands: a late manifest of any of them must not count"
    made.take("a")
    again(made).abort(1, again(made).claim(1, 1), 1, "late")
    assert [each.checkpoint for each in again(made).all()] == list(range(5, 106))
    assert again(made).claim(1, 1) == 106


def test_an_id_that_two_timelines_took_at_the_same_moment_is_used_by_neither(made: Fabricated) -> None:
    """A driver that was replaced may still be at work in the timeline before."""
    again(made).claim(2, 2)
    overtaken = []

    def overtake(action: str, key: str) -> None:
        if action == "put_if_absent" and key == "timelines/1/checkpoints/2/attempt.json":
            overtaken.append(again(made).claim(2, 2))

    late = Checkpoints(FaultyRepository(made.repository, overtake)).claim(1, 1)
    assert (overtaken, late) == ([2], 3)
    assert [each.status for each in again(made).all() if each.timeline == 1] == [Status.ABORTED, Status.OPEN]


# --- what counts -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_counts_from_its_manifest_on(made: Fabricated) -> None:
    assert again(made).all() == []
    with pytest.raises(CheckpointMissing, match="can be restored"):
        again(made).latest()
    number = again(made).claim(1, 1)
    assert [each.status for each in again(made).all()] == [Status.OPEN]
    with pytest.raises(CheckpointMissing, match="checkpoint 1"):
        again(made).read(number)
    manifest = made.finish(number, {"orders": ["a", "b"], "totals": ["c"]}, timestamp_ms=1_700_000_000_000)
    assert again(made).read(number) == again(made).latest() == manifest
    (found,) = again(made).restorable()
    assert (found.name, found.epochs, found.rows, found.file_count) == (1, {"orders": 1, "totals": 1}, 20, 5)
    assert found.digest == made.digest(1)
    assert set(found.lists) == {cut.files for cut in manifest.streams.values()}
    assert found.summary().startswith("1  timeline 1  restorable  2023-11-14 22:13:20 UTC  5 files")
    assert found.to_dict()["epochs"] == {"orders": 1, "totals": 1}
    with pytest.raises(AlreadyExists):
        again(made).put(manifest)


def test_the_newest_is_found_by_looking(made: Fabricated) -> None:
    for number in range(1, 12):
        made.take(str(number))
    assert again(made).latest().checkpoint_id == 11
    again(made).drop(1, 11)
    assert again(made).latest().checkpoint_id == 10
    assert [each.checkpoint for each in again(made).restorable()] == list(range(1, 11))


def test_aborted_wins_over_a_late_manifest_of_a_replaced_driver(made: Fabricated) -> None:
    made.take("a")
    late = again(made).claim(1, 1)
    assert again(made).close_open(1, 2) == [late]
    with pytest.raises(CheckpointFailed, match="aborted"):
        made.finish(late, {"orders": ["late"]})
    assert again(made).latest().checkpoint_id == 1
    with pytest.raises(CheckpointMissing):
        again(made).find(late)
    (_, shown) = again(made).all()
    assert (shown.status, shown.why) == (Status.ABORTED, "it was left unfinished under lease 1")
    assert again(made).claim(1, 2) == 3


def test_the_late_savepoint_of_a_replaced_driver_does_not_count_and_its_name_is_free_again(made: Fabricated) -> None:
    late = again(made).claim(1, 1, BarrierFlags.FULL_SNAPSHOT)
    again(made).close_open(1, 2)
    with pytest.raises(CheckpointFailed):
        made.finish(late, {"orders": ["late"]}, savepoint="before")
    (shown,) = again(made).savepoints()
    assert shown.status is Status.ABORTED
    again(made).close_open(1, 3)
    again(made).require_free("before")
    assert made.repository.list("savepoints") == []


def test_open_attempts_survive_a_damaged_record_and_say_whose_they_were(made: Fabricated) -> None:
    first, second, third = (again(made).claim(1, 4) for _ in range(3))
    made.repository.put(f"timelines/1/checkpoints/{first}/attempt.json", b"{}")
    made.repository.delete(f"timelines/1/checkpoints/{third}/attempt.json")
    made.repository.put(f"timelines/1/checkpoints/{third}/state.bin", b"left by a driver that woke up")
    assert [(each.checkpoint_id, each.lease) for each in again(made).open_attempts(1)] == [(1, 0), (2, 4), (3, 0)]
    assert again(made).close_open(1, 5) == [first, second, third]
    assert "record is damaged" in str(again(made).all()[0].why)
    assert again(made).claim(1, 5) == 4


def test_an_attempt_is_listed_by_when_it_was_begun_also_when_it_was_given_up(made: Fabricated) -> None:
    now = 1000.0
    checkpoints = Checkpoints(made.repository, clock=lambda: now)
    for _ in range(2):
        checkpoints.claim(1, 1)
    [first, _] = checkpoints.all()
    assert (first.status, first.timestamp_ms, first.aborted_at_ms) == (Status.OPEN, 1_000_000, None)
    now = 1060.0
    checkpoints.abort(1, 1, 1, "late")
    [given_up, still_open] = again(made).all()
    assert (given_up.status, given_up.timestamp_ms, given_up.aborted_at_ms) == (Status.ABORTED, 1_000_000, 1_060_000)
    assert (still_open.status, still_open.timestamp_ms) == (Status.OPEN, 1_000_000)


def test_the_highest_that_is_dropped_is_listed_by_when_it_was_begun(made: Fabricated) -> None:
    checkpoints = Checkpoints(made.repository, clock=lambda: 1000.0)
    made.finish(checkpoints.claim(1, 1), {"orders": ["a"]})
    Checkpoints(made.repository, clock=lambda: 1060.0).drop(1, 1)
    [found] = again(made).all()
    assert (found.why, found.timestamp_ms, found.aborted_at_ms) == ("it was deleted", 1_000_000, 1_060_000)


def test_an_abort_record_of_an_earlier_version_does_not_say_when_it_was_begun(made: Fabricated) -> None:
    old = seal({"version": 1, "checkpoint_id": 1, "lease": 1, "at_ms": 1_060_000, "why": "late", "late": []})
    made.repository.put("timelines/1/checkpoints/aborted/1.json", old)
    [found] = again(made).all()
    assert (found.status, found.why, found.timestamp_ms, found.aborted_at_ms) == (Status.ABORTED, "late", 0, 1_060_000)


def test_a_damaged_abort_record_aborts_all_the_same(made: Fabricated) -> None:
    again(made).abort(1, again(made).claim(1, 1), 1, "late", late=["orders"])
    assert again(made).all()[0].why == "late"
    made.repository.put("timelines/1/checkpoints/aborted/1.json", b"{}")
    assert again(made).all()[0].status is Status.ABORTED


def test_what_a_person_put_beside_them_is_passed_over(made: Fabricated) -> None:
    made.take("a")
    for key in (
        "timelines/x/y",
        "timelines/1/checkpoints/copy/manifest.json",
        "timelines/1/checkpoints/007/manifest.json",
    ):
        made.repository.put(key, b"")
    made.repository.put("savepoints/stray", b"")
    if isinstance(made.repository, LocalRepository):
        (made.repository.root / "savepoints" / "my copy").mkdir()
        (made.repository.root / "timelines" / "²").mkdir()
    assert [each.checkpoint for each in again(made).all()] == [1]
    assert again(made).claim(1, 1) == 2


# --- savepoints ------------------------------------------------------------------------------------------------------


def test_a_savepoint_is_found_by_name_and_by_id_and_shares_no_objects(made: Fabricated) -> None:
    made.take("a")
    number = again(made).claim(1, 1, BarrierFlags.FULL_SNAPSHOT)
    manifest = made.finish(number, {"orders": ["a", "b"]}, savepoint="before", states={"model": b"x" * 100})
    assert again(made).read("before") == again(made).read(number) == manifest
    assert again(made).find(number) == again(made).find("before") == (place_of(0, 0, "before"), 0)
    assert [each.name for each in again(made).all()] == [1, "before"]
    assert [each.checkpoint for each in again(made).restorable()] == [1]
    assert again(made).latest().checkpoint_id == 1
    with pytest.raises(AlreadyExists, match="before"):
        again(made).require_free("before")
    with pytest.raises(AlreadyExists):  # and its sidecar stays as it is
        made.finish(again(made).claim(1, 1), {}, savepoint="before", states={"model": b"y" * 100})
    place = place_of(0, 0, "before")
    assert again(made).sidecar(place, manifest) == b"x" * 100
    for each in again(made).files(place, manifest.streams["orders"], "before").files:
        assert made.repository.sizes([place.object(each.sha256)]) == {place.object(each.sha256): each.size}


def test_a_damaged_savepoint_is_shown_and_never_given_up(made: Fabricated) -> None:
    number = again(made).claim(1, 1, BarrierFlags.FULL_SNAPSHOT)
    made.finish(number, {"orders": ["a"]}, savepoint="before")
    sound = made.repository.read("savepoints/before/manifest.json")
    flip(made.repository, "savepoints/before/manifest.json")
    assert [each.status for each in again(made).savepoints()] == [Status.DAMAGED]
    assert again(made).close_open(1, 2) == []
    for asked in (0, -1, 1.5, None):
        with pytest.raises(BadValue, match="at least 1"):
            again(made).find(asked)  # type: ignore[arg-type]
    with pytest.raises(CheckpointMissing):
        again(made).find(number)
    with pytest.raises(CheckpointDamaged, match="before"):
        again(made).read("before")
    made.repository.put("savepoints/before/manifest.json", sound)  # put back from a copy
    assert again(made).read(number).savepoint == "before"
    made.repository.put("savepoints/other/manifest.json", sound)
    with pytest.raises(CheckpointDamaged, match="that of savepoint 'before'"):
        again(made).read("other")


def test_an_unfinished_savepoint_is_cleared_by_whoever_takes_over(made: Fabricated) -> None:
    made.repository.put("savepoints/half/files/ab/abc", b"")
    again(made).require_free("half")
    again(made).close_open(1, 2)
    assert made.repository.list("savepoints") == []
    for wrong in ("../x", "a/b", ""):
        with pytest.raises(BadName):
            again(made).require_free(wrong)
        with pytest.raises(CheckpointMissing):
            again(made).find(wrong)


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_damaged_newest_is_refused_by_its_id_with_the_one_before_it_offered(made: Fabricated) -> None:
    for text in "abc":
        made.take(text)
    flip(made.repository, "timelines/1/checkpoints/3/manifest.json")
    for ask in (lambda: again(made).latest(), lambda: again(made).read(3)):
        with pytest.raises(
            CheckpointDamaged, match=r"checkpoint 3 is damaged.*the previous checkpoint: holdfast verify 2"
        ) as caught:
            ask()
        assert (caught.value.checkpoint, caught.value.offered) == (3, 2)
    newest = again(made).newest()
    assert newest is not None
    assert (newest.checkpoint, newest.status) == (3, Status.DAMAGED)
    assert again(made).read(2).checkpoint_id == 2
    flip(made.repository, "timelines/1/checkpoints/2/manifest.json")
    flip(made.repository, "timelines/1/checkpoints/1/manifest.json")
    with pytest.raises(CheckpointDamaged, match="no earlier checkpoint is intact"):
        again(made).latest()


def test_a_manifest_in_the_wrong_place_is_damage(made: Fabricated) -> None:
    made.take("a")
    data = made.repository.read("timelines/1/checkpoints/1/manifest.json")
    made.repository.put("timelines/1/checkpoints/2/manifest.json", data)
    made.repository.put("timelines/2/checkpoints/1/manifest.json", data)
    with pytest.raises(CheckpointDamaged, match="that of checkpoint 1"):
        again(made).latest()
    made.rewind(None)
    with pytest.raises(CheckpointDamaged, match="that of timeline 1"):
        again(made).latest()


def test_a_newer_holdfasts_manifest_is_told_from_damage(made: Fabricated) -> None:
    made.take("a")
    newer = seal({"version": 9, "checkpoint_id": 1, "timeline": 1, "timestamp_ms": 1})
    made.repository.put("timelines/1/checkpoints/1/manifest.json", newer)
    assert "newer Holdfast" in str(again(made).all()[0].why)
    with pytest.raises(UnsupportedVersion):
        again(made).read(1)


def test_a_storage_that_says_no_is_no_damage(made: Fabricated) -> None:
    made.take("a")

    def fail(action: str, key: str) -> None:
        if action == "read" and key.endswith("manifest.json"):
            raise StorageFailed(action="read", key=key, why="Input/output error")

    with pytest.raises(StorageFailed):
        Checkpoints(FaultyRepository(made.repository, fail)).read(1)


def test_file_lists_are_proven_by_their_digest(made: Fabricated) -> None:
    cut = made.take("a", "b").streams["orders"]
    place = place_of(1, 1)
    listed = again(made).files(place, cut, 1)
    assert [each.path for each in listed.files] == sorted(each.path for each in listed.files)
    assert FileList.from_bytes(listed.to_bytes()) == listed
    assert again(made).files(place, StreamCut(timeline=1, epoch=0), 1).files == []
    sound = made.repository.read(place.object(str(cut.files)))
    flip(made.repository, place.object(str(cut.files)))
    with pytest.raises(CheckpointDamaged, match="does not match its digest"):
        again(made).files(place, cut, 1)
    made.repository.delete(place.object(str(cut.files)))
    with pytest.raises(CheckpointDamaged, match="missing"):
        again(made).files(place, cut, 1)
    made.repository.put(place.object(str(cut.files)), sound)
    assert again(made).files(place, cut, 1) == listed


@pytest.mark.parametrize(
    "files",
    [
        [HeldFile(path, 1, SHA)]
        for path in ("../x", "/etc/passwd", "a/../../x", "..", ".", "", "a//b", "a/", "a/./b", "a\\b", "a\0b", "a/..")
    ]
    + [
        [HeldFile("a", 1, SHA), HeldFile("a", 1, SHA)],
        [HeldFile("a", 1, SHA), HeldFile("a/b", 1, SHA)],
        [HeldFile("a", 1, SHA), HeldFile("a/b/c", 1, SHA)],
        [HeldFile("a", -1, SHA)],
        [HeldFile("a", 1, "../../" + SHA)],
        [HeldFile("a", 1, "")],
    ],
    ids=lambda files: files[-1].path,
)
def test_a_hostile_list_is_damage(made: Fabricated, files: list[HeldFile]) -> None:
    place = place_of(1, 1)
    digest, _ = again(made).put_files(place, files)
    with pytest.raises(CheckpointDamaged, match="refused"):
        again(made).files(place, StreamCut(timeline=1, epoch=1, files=digest), 1)


@pytest.mark.parametrize("files", ["../x", "", "A" * 64])
def test_a_list_that_is_named_otherwise_is_damage(made: Fabricated, files: str) -> None:
    with pytest.raises(CheckpointDamaged, match="not a digest"):
        again(made).files(place_of(1, 1), StreamCut(timeline=1, epoch=1, files=files), 1)


def test_hidden_and_deep_paths_are_sound() -> None:
    files: list[Any] = [HeldFile(path, 0, SHA) for path in ("a/.1.crc", "a/b/c", "...", "x..y", ".metadata.crc")]
    assert FileList(files).unsound() is None
