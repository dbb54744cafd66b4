"""One suite for every store of checkpoint states, and the checkpointer above them."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue, SaveTooOld, StateCorrupt, StorageFailed
from holdfast.policy import IntervalPolicy
from holdfast.repository import LocalRepository, MemoryRepository
from holdfast.stores import (
    Checkpointer,
    CheckpointId,
    CheckpointState,
    CheckpointStore,
    DurableCheckpointStore,
    MemoryCheckpointStore,
)
from holdfast.stores.base import evicted_by
from holdfast.testing import FaultyRepository, ManualClock


@pytest.fixture(params=["memory", "durable"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def store(kind: str, limit: int) -> CheckpointStore:
    return MemoryCheckpointStore(limit) if kind == "memory" else DurableCheckpointStore(MemoryRepository(), limit)


def state(sequence: int, stream: str = "s", data: bytes = b"") -> CheckpointState:
    return CheckpointState(CheckpointId(stream, sequence, 9), operator_states={"op": data}, metadata={"k": "v"})


def sequences(found: CheckpointStore, stream: str = "s") -> list[int]:
    return [each.sequence for each in found.list(stream)]


def test_states_come_back_whole_in_order(kind: str) -> None:
    found = store(kind, 10)
    assert found.latest("s") is None
    assert (found.list("s"), found.count("s")) == ([], 0)
    for sequence in (5, 1, 300):
        found.save(state(sequence))
    assert sequences(found) == [1, 5, 300]
    assert found.latest("s") == state(300)
    assert (found.load("s", 5), found.load("s", 6), found.load("t", 5)) == (state(5), None, None)
    with pytest.raises(BadValue):
        found.save(b"state")
    assert found.count("s") == 3


def test_the_oldest_is_evicted_and_streams_do_not_touch_each_other(kind: str) -> None:
    found = store(kind, 2)
    for sequence in (1, 2, 3):
        found.save(state(sequence))
        found.save(state(sequence, "t"))
    found.save(state(4))
    assert sequences(found) == [3, 4]
    assert sequences(found, "t") == [2, 3]


def test_a_duplicate_sequence_replaces(kind: str) -> None:
    found = store(kind, 2)
    found.save(state(1))
    found.save(state(2, data=b"old"))
    found.save(state(2, data=b"new"))
    assert found.latest("s") == state(2, data=b"new")
    assert sequences(found) == [1, 2]


def test_a_save_that_would_be_evicted_at_once_is_an_error(kind: str) -> None:
    found = store(kind, 2)
    found.save(state(5))
    found.save(state(3))
    with pytest.raises(SaveTooOld) as caught:
        found.save(state(2))
    assert (caught.value.sequence, caught.value.oldest, caught.value.limit) == (2, 3, 2)
    found.save(state(4))
    assert sequences(found) == [4, 5]


def test_delete_before_is_strict(kind: str) -> None:
    found = store(kind, 10)
    for sequence in (1, 2, 3):
        found.save(state(sequence))
    assert found.delete_before("s", 3) == 2
    assert sequences(found) == [3]
    assert found.delete_before("s", 3) == 0
    assert found.delete_before("other", 3) == 0


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_store_keeps_at_least_one(kind: str, limit: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        store(kind, limit)


@given(st.integers(1, 4), st.lists(st.integers(0, 12), max_size=30))
def test_every_store_behaves_like_the_rule(limit: int, saves: list[int]) -> None:
    stores = [store("memory", limit), store("durable", limit)]
    model: set[int] = set()
    for sequence in saves:
        after = sorted({*model, sequence})[-limit:]
        for each in stores:
            if sequence in after:
                each.save(state(sequence))
            else:
                with pytest.raises(SaveTooOld):
                    each.save(state(sequence))
        if sequence in after:
            model = set(after)
            assert evicted_by("s", sequence, model, limit) == []
        for each in stores:
            assert sequences(each) == sorted(model)
            assert each.count("s") == len(model)


def test_a_durable_store_survives_its_process_and_refuses_a_damaged_state(tmp_path: Path) -> None:
    DurableCheckpointStore(LocalRepository(tmp_path), 3).save(state(7))
    found = DurableCheckpointStore(LocalRepository(tmp_path), 3)
    assert found.latest("s") == state(7)
    found.save(state(8))
    path = tmp_path / "states/s/00000000000000000008.state"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(StateCorrupt, match=r"states/s/0+8\.state"):
        found.latest("s")  # not the older one in its place
    path.write_bytes(state(9).to_bytes())
    with pytest.raises(StateCorrupt, match="the file of sequence 8 contains sequence 9"):
        found.latest("s")
    path.write_bytes(state(8).to_v1_bytes())
    latest = found.latest("s")
    assert latest is not None
    assert latest.operator_states == {"op": b""}


def test_what_the_caller_changes_later_changes_nothing_in_the_store(kind: str) -> None:
    found = store(kind, 2)
    operators = {"op": b"old"}
    found.save(CheckpointState(CheckpointId("s", 1), operators))
    operators["op"] = b"new"
    latest = found.latest("s")
    assert latest is not None
    assert latest.operator_states == {"op": b"old"}


def test_a_reader_that_loses_the_race_with_an_eviction_looks_again() -> None:
    inner = MemoryRepository()
    writer = DurableCheckpointStore(inner, 1)
    writer.save(state(1))

    def evict(action: str, key: str) -> None:
        if action == "read" and key.endswith("1.state"):
            writer.save(state(2))

    def vanish(action: str, key: str) -> None:
        if action == "read":
            inner.delete(key)

    assert DurableCheckpointStore(FaultyRepository(inner, evict), 1).latest("s") == state(2)
    assert DurableCheckpointStore(FaultyRepository(inner, evict), 1).list("s") == [state(2).id]
    listed = DurableCheckpointStore(FaultyRepository(inner, vanish), 1).list("s")
    assert listed == []


def test_a_failed_eviction_leaves_one_too_many_never_too_few() -> None:
    inner = MemoryRepository()

    def fail(action: str, key: str) -> None:
        if action == "delete":
            raise StorageFailed(action="delete", key=key, why="test")

    found = DurableCheckpointStore(FaultyRepository(inner, fail), 1)
    found.save(state(1))
    with pytest.raises(StorageFailed):
        found.save(state(2))
    healed = DurableCheckpointStore(inner, 1)
    assert sequences(healed) == [1, 2]
    healed.save(state(3))
    assert sequences(healed) == [3]


# --- the checkpointer ------------------------------------------------------------------------------------------------


def test_states_are_saved_when_they_are_due_and_counted(kind: str) -> None:
    found = store(kind, 10)
    checkpointer = Checkpointer(found, IntervalPolicy(sequences=100))
    taken = [sequence for sequence in range(0, 451, 30) if checkpointer.offer("s", sequence, partial(state, sequence))]
    assert taken == [120, 240, 360]
    assert sequences(found) == taken
    assert checkpointer.total_checkpoints == 3


def test_recovery_gives_the_whole_state_and_seeds_the_mark_again(kind: str) -> None:
    found = store(kind, 10)
    found.save(state(5_000, data=b"all"))
    checkpointer = Checkpointer(found, IntervalPolicy(sequences=100))
    assert checkpointer.recover("new") is None
    recovered = checkpointer.recover("s")
    assert recovered is not None
    assert recovered.state == state(5_000, data=b"all")
    assert (recovered.last_included, recovered.next_sequence) == (5_000, 5_001)
    assert not checkpointer.offer("s", 5_099, lambda: state(5_099))
    assert checkpointer.offer("s", 5_100, lambda: state(5_100))


def test_epochs_are_counted_from_where_a_recovered_stream_is_seen_next() -> None:
    found = MemoryCheckpointStore(5)
    found.save(state(7))
    checkpointer = Checkpointer(found, IntervalPolicy(epochs=10))
    checkpointer.recover("s")
    assert not checkpointer.offer("s", 8, lambda: state(8), epoch=501)
    assert not checkpointer.offer("s", 9, lambda: state(9), epoch=510)
    assert checkpointer.offer("s", 10, lambda: state(10), epoch=511)


def test_a_captured_state_of_another_stream_or_sequence_is_refused_and_stays_due() -> None:
    found = MemoryCheckpointStore(5)
    checkpointer = Checkpointer(found, IntervalPolicy(sequences=10))
    for wrong in (state(10, "t"), state(7), None):
        with pytest.raises(BadValue, match="captured state"):
            checkpointer.offer("s", 10, lambda wrong=wrong: wrong)
    assert (found.count("s"), found.count("t"), checkpointer.total_checkpoints) == (0, 0, 0)
    assert checkpointer.offer("s", 10, lambda: state(10))


def test_time_and_epochs_make_a_checkpoint_due() -> None:
    clock = ManualClock()
    checkpointer = Checkpointer(MemoryCheckpointStore(5), IntervalPolicy(seconds=10, epochs=3), clock)
    assert not checkpointer.offer("s", 1, lambda: state(1), epoch=1)
    clock.advance(10)
    assert checkpointer.offer("s", 2, lambda: state(2), epoch=1)
    assert checkpointer.offer("s", 3, lambda: state(3), epoch=4)


def test_a_checkpoint_that_failed_stays_due() -> None:
    checkpointer = Checkpointer(MemoryCheckpointStore(5), IntervalPolicy(sequences=10))

    def fail() -> CheckpointState:
        raise RuntimeError("no state today")

    with pytest.raises(RuntimeError):
        checkpointer.offer("s", 10, fail)
    assert checkpointer.total_checkpoints == 0
    assert checkpointer.offer("s", 11, lambda: state(11))
