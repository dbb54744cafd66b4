"""The checkpointer: saves the state of a stream to a store whenever a checkpoint is due by the policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast._validation import checked_type
from holdfast.errors import BadValue
from holdfast.formats.state import CheckpointState
from holdfast.policy import IntervalPolicy, Progress
from holdfast.stores.base import CheckpointStore


@dataclass(frozen=True, slots=True)
class Recovered:
    """The last state of a stream. It includes all events up to and including `last_included`."""

    state: CheckpointState

    @property
    def last_included(self) -> int:
        """The sequence of the last event that the state includes."""
        return self.state.id.sequence

    @property
    def next_sequence(self) -> int:
        """The first sequence to process after the recovery."""
        return self.state.id.sequence + 1


class Checkpointer:
    """Combines a policy and a store. Each stream has its own marks, which `recover` sets again."""

    def __init__(
        self, store: CheckpointStore, policy: IntervalPolicy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._policy = policy
        self._clock = clock
        self.total_checkpoints = 0

    def offer(self, stream: str, sequence: int, capture: Callable[[], CheckpointState], *, epoch: int = 0) -> bool:
        """If a checkpoint is due, save the state that `capture` returns. A checkpoint that fails remains due."""
        progress = Progress(sequence, epoch, self._clock())
        if not self._policy.due(stream, progress):
            return False
        state = checked_type("captured state", capture(), CheckpointState)
        if (state.id.stream_id, state.id.sequence) != (stream, sequence):
            expected = f"a state of stream {stream!r} at sequence {sequence}"
            raise BadValue(what="captured state", value=state.id, expected=expected)
        self._store.save(state)
        self._policy.taken(stream, progress)
        self.total_checkpoints += 1
        return True

    def recover(self, stream: str) -> Recovered | None:
        """Return the last state of a stream and count the next interval from it; `None` for a new stream."""
        state = self._store.latest(stream)
        progress = Progress(state.id.sequence, None, self._clock()) if state else Progress(now=self._clock())
        self._policy.taken(stream, progress)
        return Recovered(state) if state else None
