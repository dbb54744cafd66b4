"""The contract of a store of checkpoint states.

Rules for every store:
- At most `limit` states are kept per stream; saving one more evicts the oldest. Streams are independent.
- A state replaces a stored state with the same sequence.
- A state that would be evicted at once is refused with `SaveTooOld`: after `save` returns, the state is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.errors import SaveTooOld
from holdfast.formats.state import CheckpointId, CheckpointState


class CheckpointStore(Protocol):
    """Keeps the last states of each stream."""

    def save(self, state: CheckpointState) -> None:
        """Store a state."""

    def latest(self, stream: str) -> CheckpointState | None:
        """Return the state with the highest sequence, or `None`."""

    def load(self, stream: str, sequence: int) -> CheckpointState | None:
        """Return the state with this sequence, or `None`."""

    def list(self, stream: str) -> list[CheckpointId]:
        """Return the ids of all states of a stream, ascending."""

    def delete_before(self, stream: str, sequence: int) -> int:
        """Delete the states with a lower sequence and return their number."""

    def count(self, stream: str) -> int:
        """Return the number of stored states of a stream."""


def evicted_by(stream: str, sequence: int, kept: Iterable[int], limit: int) -> list[int]:
    """Return which of the `kept` sequences a new one evicts, or raise `SaveTooOld`. All stores use this rule."""
    after = sorted({*kept, sequence})
    evicted, staying = after[:-limit], after[-limit:]
    if sequence in evicted:
        raise SaveTooOld(stream=stream, sequence=sequence, oldest=staying[0], limit=limit)
    return evicted
