"""Checkpoint states in memory, for tests and for streams that need not survive their process."""

from __future__ import annotations

import threading

from holdfast._validation import checked_name, checked_positive, checked_type
from holdfast.formats.state import CheckpointId, CheckpointState
from holdfast.stores.base import evicted_by


class MemoryCheckpointStore:
    """Keeps at most `limit` states per stream, as bytes, so that later changes by the caller have no effect.

    Thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self._limit = checked_positive("number of states kept", limit)
        self._streams: dict[str, dict[int, bytes]] = {}
        self._mutex = threading.Lock()

    def save(self, state: CheckpointState) -> None:
        """Store a state."""
        name = checked_name("stream", checked_type("state", state, CheckpointState).id.stream_id)
        data = state.to_bytes()
        with self._mutex:
            states = self._streams.get(name, {})
            evicted = evicted_by(name, state.id.sequence, states, self._limit)
            kept = {**states, state.id.sequence: data}
            self._streams[name] = {each: kept[each] for each in sorted(kept) if each not in evicted}

    def latest(self, stream: str) -> CheckpointState | None:
        """Return the state with the highest sequence, or `None`."""
        states = self._states(stream)
        return CheckpointState.from_bytes(states[max(states)]) if states else None

    def load(self, stream: str, sequence: int) -> CheckpointState | None:
        """Return the state with this sequence, or `None`."""
        data = self._states(stream).get(sequence)
        return None if data is None else CheckpointState.from_bytes(data)

    def list(self, stream: str) -> list[CheckpointId]:
        """Return the ids of all states of a stream, ascending."""
        return [CheckpointState.from_bytes(data).id for data in self._states(stream).values()]

    def delete_before(self, stream: str, sequence: int) -> int:
        """Delete the states with a lower sequence and return their number."""
        with self._mutex:
            states = self._states(stream)
            kept = {each: data for each, data in states.items() if each >= sequence}
            self._streams[stream] = kept
            return len(states) - len(kept)

    def count(self, stream: str) -> int:
        """Return the number of stored states of a stream."""
        return len(self._states(stream))

    def _states(self, stream: str) -> dict[int, bytes]:
        return self._streams.get(checked_name("stream", stream), {})
