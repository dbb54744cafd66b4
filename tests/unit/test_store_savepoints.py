"""Savepoints on an object store whose driver was replaced, with a large stage state. The store is in memory."""

from __future__ import annotations

import pytest

from holdfast.errors import AlreadyExists, CheckpointFailed, Fenced
from holdfast.formats.manifest import Manifest
from holdfast.formats.sidecar import PackedStates, pack_states
from holdfast.repository import Checkpoints, Identity, Lease, ObjectRepository
from holdfast.repository.base import Data, StoredObject
from holdfast.repository.checkpoint_keys import AttemptRecord, place_of
from holdfast.restore import plan_restore, stage_states
from memorystore import store_repository

NAME = "rows/stage"


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> ObjectRepository:
    return store_repository(monkeypatch)


def state(byte: bytes) -> PackedStates:
    return pack_states({NAME: byte * 100}, threshold=16)


def manifest(repository: ObjectRepository, number: int, states: PackedStates) -> Manifest:
    return Manifest(
        checkpoint_id=number,
        epoch=number,
        timestamp_ms=number,
        pipeline="orders",
        uid=Identity.load(repository).uid,
        timeline=1,
        lease=1,
        savepoint="keep",
        operator_states=states.entries,
        state_checksum=states.checksum,
    )


def take(repository: ObjectRepository, byte: bytes) -> None:
    checkpoints = Checkpoints(repository)
    checkpoints.put(manifest(repository, checkpoints.claim(1, 2), state(byte)), state(byte).sidecar)


def restored(repository: ObjectRepository) -> bytes:
    return stage_states(repository, plan_restore(repository, "keep"))[NAME]


def test_a_driver_that_was_replaced_does_not_write_over_the_state_of_a_savepoint(
    repository: ObjectRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused after it had seen that there is none of this name."""
    late = Checkpoints(repository)
    number, put_new = late.claim(1, 1), repository.put_new

    def paused(key: str, data: Data) -> None:
        monkeypatch.setattr(repository, "put_new", put_new)
        Checkpoints(repository).close_open(1, 2)
        take(repository, b"b")
        put_new(key, data)

    monkeypatch.setattr(repository, "put_new", paused)
    with pytest.raises(AlreadyExists):
        late.put(manifest(repository, number, state(b"a")), state(b"a").sidecar)
    assert restored(repository) == b"b" * 100


def test_a_late_clean_up_leaves_the_state_of_a_savepoint_that_was_finished_meanwhile(
    repository: ObjectRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, flat = Checkpoints(repository), repository.flat
    number = late.claim(1, 1)
    repository.put_new(late.place(1, number, "keep").sidecar, state(b"a").sidecar)

    def paused(folder: str = "") -> list[StoredObject]:
        found = flat(folder)
        monkeypatch.setattr(repository, "flat", flat)
        Checkpoints(repository).close_open(1, 2)
        take(repository, b"b")
        return found

    monkeypatch.setattr(repository, "flat", paused)
    late.drop_unfinished("keep", number)
    assert restored(repository) == b"b" * 100


@pytest.mark.parametrize("finished", [True, False])
def test_a_listing_of_several_pages_does_not_delete_a_later_savepoint(
    repository: ObjectRepository, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """The late driver was replaced between two requests of its listing, or while its successor wrote the files."""
    late, flat = Checkpoints(repository), repository.flat
    number = late.claim(1, 1)
    repository.put_new(late.place(1, number, "keep").sidecar, state(b"a").sidecar)
    own = Checkpoints(repository)

    def paged(folder: str = "") -> list[StoredObject]:
        monkeypatch.setattr(repository, "flat", flat)
        first = own.claim(1, 2)
        if finished:
            own.put(manifest(repository, first, state(b"b")), state(b"b").sidecar)
        else:
            repository.put_new(own.place(1, first, "keep").sidecar, state(b"b").sidecar)
        return [each for each in flat(folder) if not each.key.endswith("manifest.json")]

    monkeypatch.setattr(repository, "flat", paged)
    late.drop_unfinished("keep", number)
    found = {each.key for each in repository.flat("savepoints")}
    assert own.place(1, number + 1, "keep").sidecar in found
    assert late.place(1, number, "keep").sidecar not in found
    assert not finished or restored(repository) == b"b" * 100


def test_a_late_start_leaves_a_savepoint_whose_name_was_free_again(
    repository: ObjectRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name belonged to an aborted attempt that had written its manifest too late."""
    late, flat = Checkpoints(repository), repository.flat
    number = late.claim(1, 1)
    late.abort(1, number, 1, "a test")
    with pytest.raises(CheckpointFailed):
        late.put(manifest(repository, number, state(b"a")), state(b"a").sidecar)

    def paused(folder: str = "") -> list[StoredObject]:
        monkeypatch.setattr(repository, "flat", flat)
        Checkpoints(repository).close_open(1, 3)
        take(repository, b"b")
        return flat(folder)

    monkeypatch.setattr(repository, "flat", paused)
    late.close_open(1, 2)
    assert restored(repository) == b"b" * 100


def test_a_start_that_was_replaced_before_it_looks_changes_nothing(repository: ObjectRepository) -> None:
    """Its successor is taking a savepoint."""
    number = Checkpoints(repository).claim(1, 1)
    with Lease.take(repository) as old, Lease.take(repository, take_over=True) as new:
        own = Checkpoints(repository)
        taken = own.claim(1, new.number)
        repository.put_new(own.place(1, taken, "keep").sidecar, state(b"b").sidecar)
        with pytest.raises(Fenced):
            Checkpoints(repository).close_open(1, old.number)
        own.put(manifest(repository, taken, state(b"b")))
        assert restored(repository) == b"b" * 100
        assert own.close_open(1, new.number) == [number]


def test_a_start_that_is_replaced_while_it_looks_leaves_the_checkpoint_of_its_successor(
    repository: ObjectRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor finishes a savepoint before the attempts that were found are aborted."""
    late, own = Checkpoints(repository), Checkpoints(repository)
    left = late.claim(1, 1)
    open_attempts = late.open_attempts

    def paused(timeline: int) -> list[AttemptRecord]:
        number = own.claim(1, 3)
        found = open_attempts(timeline)
        own.put(manifest(repository, number, state(b"b")), state(b"b").sidecar)
        return found

    monkeypatch.setattr(late, "open_attempts", paused)
    assert late.close_open(1, 2) == [left]
    assert restored(repository) == b"b" * 100


def test_the_state_of_a_savepoint_of_an_earlier_version_is_read(repository: ObjectRepository) -> None:
    take(repository, b"a")
    key = place_of(1, 1, "keep", shared=False).sidecar
    assert key == "savepoints/keep/1/state.bin"
    repository.put_new("savepoints/keep/state.bin", repository.read(key))
    repository.delete(key)
    assert restored(repository) == b"a" * 100
    Checkpoints(repository).drop_savepoint("keep")
    assert repository.flat("savepoints") == []
