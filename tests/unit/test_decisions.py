"""The slots of decisions after many aborted attempts, and after old ones were pruned."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import EpochClosed
from holdfast.repository import Decisions, LocalRepository, MemoryRepository
from holdfast.repository.decisions import newest_slots, slot_key
from holdfast.testing import FaultyRepository


def test_a_slot_that_was_pruned_is_not_free() -> None:
    """A driver that was paused for long found its old slot empty, and took it."""
    decisions = Decisions(MemoryRepository())

    def slot(epoch: int, attempt: int = 1) -> Decision:
        return Decision(
            attempt=Attempt(stream="s", timeline=1, epoch=epoch, attempt=attempt), verdict=Verdict.COMMIT, lease=1
        )

    for epoch in range(1, 21):
        decisions.close(slot(epoch))
    assert decisions.prune("s", 1, before=15) == 14
    with pytest.raises(EpochClosed):
        decisions.close(slot(3))
    assert decisions.look("s", 1, 3).closed == ()
    assert decisions.close(slot(21)).attempt.epoch == 21


def abort(epoch: int, attempt: int) -> Decision:
    address = Attempt(stream="rows", timeline=1, epoch=epoch, attempt=attempt)
    return Decision(attempt=address, verdict=Verdict.ABORT, lease=1)


def test_only_the_last_of_many_aborted_tries_is_made_durable_again() -> None:
    """A slot is used once the one before it is closed durably: in a crash loop each start synced all of them."""
    memory, puts = MemoryRepository(), []
    for attempt in range(1, 31):
        Decisions(memory).close(abort(1, attempt))

    def note(action: str, key: str) -> None:
        if action == "put_if_absent":
            puts.append(key)

    slots = Decisions(FaultyRepository(memory, note)).look("rows", 1, 1)
    assert (len(slots.closed), slots.open.attempt) == (30, 31)
    assert puts == ["timelines/1/streams/rows/epochs/1.30.json"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    floor=st.integers(1, 6),
    attempts=st.lists(st.integers(1, 3), max_size=8),
    begun=st.sampled_from(["last", "one more", "behind", "gone"]),
    ended=st.booleans(),
    most=st.integers(1, 12),
    upto=st.none() | st.integers(1, 14),
)
def test_the_newest_slots_are_found_without_a_list_and_are_those_of_the_list(  # noqa: PLR0917
    tmp_path_factory: pytest.TempPathFactory,
    floor: int,
    attempts: list[int],
    begun: str,
    ended: bool,
    most: int,
    upto: int | None,
) -> None:
    """Whatever was pruned, however often an epoch was tried, and whatever Spark's log says."""
    folder = tmp_path_factory.mktemp("slots")
    repository = LocalRepository(folder)
    counts = [*attempts, *([1] if ended else [])]  # the end of a timeline closes the slot after the last epoch
    for epoch, count in enumerate(counts, floor):
        for number in range(1, count + 1):
            path = folder / slot_key(Attempt(stream="rows", timeline=1, epoch=epoch, attempt=number))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
    last = floor + len(attempts) - 1
    batch = {"last": last - 1, "one more": last, "behind": last - 2, "gone": -1}[begun]
    if batch >= 0:
        offsets = folder / "timelines/1/streams/rows/spark/offsets"
        offsets.mkdir(parents=True)
        (offsets / str(batch)).write_text("v1")
        (offsets / ".hidden.crc").write_text("")
    if upto is not None and not floor <= upto < floor + len(counts):
        upto = None  # a base is an epoch of its timeline
    every = [
        (epoch, number)
        for epoch, count in enumerate(counts, floor)
        for number in range(1, count + 1)
        if upto is None or epoch <= upto
    ]
    kept = sorted({epoch for epoch, _ in every})[-most:]
    found = [(each.epoch, each.attempt) for each in newest_slots(repository, "rows", 1, most, upto)]
    assert found == [each for each in every if each[0] in kept]
