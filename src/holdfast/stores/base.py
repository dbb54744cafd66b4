"""The contract of a store of checkpoint states.

Rules for every store:
- At most `limit` states a stream; saving one more evicts the oldest. Streams do not touch each other.
- A state whose sequence is there already replaces it.
- A state that would be evicted at once is refused with `SaveTooOld`: a save that returns has saved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.errors import SaveTooOld
from holdfast.formats.state import CheckpointId, CheckpointState


class CheckpointStore(Protocol):
    """Keeps the last states of each stream."""

    def save(self, state: CheckpointState) -> None:
        """Keep a state."""

    def latest(self, stream: str) -> CheckpointState | None:
        """Return the state with the highest sequence, or `None`."""

    def load(self, stream: str, sequence: int) -> CheckpointState | None:
        """Return the state with this sequence, or `None`."""

    def list(self, stream: str) -> list[CheckpointId]:
        """Return the ids of all states of a stream, ascending."""

    def delete_before(self, stream: str, sequence: int) -> int:
        """Remove the states whose sequence is strictly less; return how many."""

    def count(self, stream: str) -> int:
        """Return how many states of a stream are kept."""


def evicted_by(stream: str, sequence: int, kept: Iterable[int], limit: int) -> list[int]:
    """Return which of the `kept` sequences give way to a new one, or raise `SaveTooOld`. The rule, for all stores."""
    after = sorted({*kept, sequence})
    evicted, staying = after[:-limit], after[-limit:]
    if sequence in evicted:
        raise SaveTooOld(stream=stream, sequence=sequence, oldest=staying[0], limit=limit)
    return evicted
