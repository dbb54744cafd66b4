"""The slots of decisions after many aborted attempts, and after old ones were pruned."""

import pytest

from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import EpochClosed
from holdfast.repository import Decisions, MemoryRepository
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
