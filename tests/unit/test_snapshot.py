"""What is kept of Spark's files: linked before any is read, and read in parts."""

import json
import struct
from pathlib import Path

import pytest

from holdfast.errors import NotFound, StorageFailed
from holdfast.repository import LocalRepository
from holdfast.repository.checkpoint_keys import place_of
from holdfast.spark import pins
from holdfast.spark.pins import Pinned, SparkCut
from holdfast.spark.snapshot import Snapshots

STATE = ("1.delta", "2.delta")


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """A folder as Spark keeps it, after two batches."""
    folder = tmp_path / "root/timelines/1/streams/a/spark"
    for path, text in {
        "metadata": "{}",
        **{f"offsets/{batch}": f'v1\n{{"conf":{{}}}}\n{batch}' for batch in (0, 1)},
        **{f"commits/{batch}": "v1\n{}" for batch in (0, 1)},
        **{f"state/0/0/{name}": f"state {name}" for name in STATE},
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> LocalRepository:
    return LocalRepository(tmp_path / "root")


NEEDED = ["commits/1", "metadata", "offsets/0", "offsets/1", "state/0/0/1.delta", "state/0/0/2.delta"]
PLACES = {False: place_of(1, 1), True: place_of(1, 1, "x")}


def kept(snapshots: Snapshots, pinned: Pinned) -> tuple[SparkCut, int]:
    """Keep all, and tell in how many parts."""
    for parts in range(1, 100):
        cut = snapshots.keep(pinned)
        if cut is not None:
            return cut, parts
    raise AssertionError("it has no end")


@pytest.mark.parametrize("copy", [False, True])
def test_what_is_pinned_is_kept_though_spark_deletes_it(live: Path, repository: LocalRepository, copy: bool) -> None:
    place, snapshots = PLACES[copy], Snapshots(live, repository)
    pinned = snapshots.pin(1, place, copy=copy)
    for path in NEEDED:
        (live / path).unlink()
    cut, _ = kept(snapshots, pinned)
    assert [each.path for each in cut.files] == NEEDED
    assert repository.read(place.object(cut.files[-1].sha256)) == b"state 2.delta"
    pinned.release()
    assert not list(live.parent.glob(".*/*"))


def test_files_are_read_in_parts_and_what_was_read_is_not_read_again(
    live: Path, repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that is given up in the middle has not been in vain."""
    monkeypatch.setattr(pins, "_PART", 1)
    snapshots = Snapshots(live, repository)
    pinned = snapshots.pin(1, PLACES[False])
    for _ in range(4):
        assert snapshots.keep(pinned) is None
    pinned.release()
    assert len(set(snapshots.kept)) == 4
    cut, parts = kept(snapshots, snapshots.pin(1, PLACES[False]))
    assert (len(cut.files), cut.new_files, parts) == (6, 2, 2)
    (live / "state/0/0/3.snapshot").write_text("all of it")
    for log in ("offsets", "commits"):
        (live / log / "2").write_text((live / log / "1").read_text())
    snapshots.pin(2, PLACES[False])
    assert len(set(snapshots.kept)) < 6, "what no later cut needs is not spared"


def test_the_same_cut_again_costs_nothing(live: Path, repository: LocalRepository) -> None:
    snapshots = Snapshots(live, repository)
    first, _ = kept(snapshots, snapshots.pin(1, PLACES[False]))
    (live / "metadata").unlink()
    assert snapshots.keep(snapshots.pin(1, PLACES[False])) is first


def test_what_is_gone_before_it_could_be_pinned_is_told_and_leaves_no_pin(
    live: Path, repository: LocalRepository
) -> None:
    (live / "state/0/0/1.delta").unlink()
    with pytest.raises(StorageFailed, match=r"1\.delta no longer exists"):
        Snapshots(live, repository).pin(1, PLACES[False])
    assert not list(live.parent.glob(".*/*"))


def test_pins_of_a_driver_that_died_are_removed_at_the_next_start(live: Path, repository: LocalRepository) -> None:
    Snapshots(live, repository).pin(1, PLACES[False])
    assert list(live.parent.glob(".*/*"))
    Snapshots(live, repository).release_all()
    assert not list(live.parent.glob(".*"))
    Snapshots(live, repository).release_all()


def test_a_pin_that_somebody_removed_fails_the_attempt(live: Path, repository: LocalRepository) -> None:
    snapshots = Snapshots(live, repository)
    pinned = snapshots.pin(1, PLACES[False])
    Snapshots(live, repository).release_all()
    with pytest.raises(NotFound):
        snapshots.keep(pinned)


def test_what_a_failed_try_left_is_told_apart_by_the_changelog_that_was_linked(
    live: Path, repository: LocalRepository
) -> None:
    """In format 2 a version's name has an id; where the commit that tells it is gone, the changelog above does."""
    lineage = json.dumps([{"version": 1, "checkpointUniqueId": "bb"}]).encode()
    text = struct.pack(">H", 2) + b"v2" + struct.pack(">H", len(lineage)) + lineage
    changelog = struct.pack("<8sBIII", b"LZ4Block", 0x10, len(text), len(text), 0) + text
    for name in STATE:
        (live / "state/0/0" / name).unlink()
    for name in ("1_aa", "1_bb", "2_cc"):
        (live / f"state/0/0/{name}.changelog").write_bytes(changelog + name.encode())
    (live / "commits/0").unlink()
    (live / "commits/1").write_text('v3\n{"stateUniqueIds":{"0":[["cc"]]}}')
    snapshots = Snapshots(live, repository)
    cut, _ = kept(snapshots, snapshots.pin(1, PLACES[False]))
    chosen = [each.path for each in cut.files if each.path.startswith("state/")]
    assert chosen == ["state/0/0/1_bb.changelog", "state/0/0/2_cc.changelog"]
    assert cut.state_format == "rocksdb-2"
