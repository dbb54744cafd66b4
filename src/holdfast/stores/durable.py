"""Checkpoint states in a repository: one file per state, `states/<stream>/<sequence>.state`, in version 2.

Files in version 1 are read too. Only one process may write the states of a stream at a time; the lease ensures this.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from holdfast._validation import checked_name, checked_positive, checked_type, checked_u64
from holdfast.errors import NotFound, StateCorrupt, UnsupportedVersion
from holdfast.formats.state import CheckpointId, CheckpointState
from holdfast.repository import FileRepository
from holdfast.repository.base import checked_repository
from holdfast.stores.base import evicted_by

FOLDER = "states"
_TRIES = 100
_NAME = re.compile(r"(\d{20})\.state")


class DurableCheckpointStore:
    """Keeps at most `limit` states per stream; a state is durable when `save` returns."""

    def __init__(self, repository: FileRepository, limit: int) -> None:
        self._repository = checked_repository(repository)
        self._limit = checked_positive("number of states kept", limit)

    def save(self, state: CheckpointState) -> None:
        """Write the new state, then delete the evicted ones: a crash in between leaves one too many, never too few."""
        stream = checked_name("stream", checked_type("state", state, CheckpointState).id.stream_id)
        evicted = evicted_by(stream, state.id.sequence, self._sequences(stream), self._limit)
        self._repository.put(_key(stream, state.id.sequence), state.to_bytes())
        for sequence in evicted:
            self._repository.delete(_key(stream, sequence))

    def latest(self, stream: str) -> CheckpointState | None:
        """Return the state with the highest sequence, or `None`. If it is damaged, raise; never use an older one."""
        for _ in range(_TRIES):
            sequences = self._sequences(stream)
            if not sequences:
                return None
            with contextlib.suppress(NotFound):  # evicted between listing and reading: there is a newer one
                return self._read(stream, sequences[-1])
        return self._read(stream, self._sequences(stream)[-1])

    def load(self, stream: str, sequence: int) -> CheckpointState | None:
        """Return the state with this sequence, or `None`."""
        try:
            return self._read(stream, sequence)
        except NotFound:
            return None

    def list(self, stream: str) -> list[CheckpointId]:
        """Return the ids of all states of a stream, ascending; each file is read and checked."""
        found = (self.load(stream, sequence) for sequence in self._sequences(stream))
        return [state.id for state in found if state is not None]  # without those that were evicted in between

    def delete_before(self, stream: str, sequence: int) -> int:
        """Delete the states with a lower sequence and return their number."""
        old = [each for each in self._sequences(stream) if each < sequence]
        for each in old:
            self._repository.delete(_key(stream, each))
        return len(old)

    def count(self, stream: str) -> int:
        """Return the number of stored states of a stream."""
        return len(self._sequences(stream))

    def _sequences(self, stream: str) -> Sequence[int]:
        names = self._repository.list(f"{FOLDER}/{checked_name('stream', stream)}")
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def _read(self, stream: str, sequence: int) -> CheckpointState:
        key = _key(checked_name("stream", stream), checked_u64("sequence", sequence))
        where = f"checkpoint state {key!r}"
        data = self._repository.read(key)
        try:
            state = CheckpointState.from_bytes(data, stream)
        except StateCorrupt as damage:
            damage.where = where
            raise
        except UnsupportedVersion as newer:
            newer.what = where
            raise
        if state.id.sequence != sequence:
            why = f"the file of sequence {sequence} contains sequence {state.id.sequence}"
            raise StateCorrupt(offset=0, why=why, where=where)
        return state


def _key(stream: str, sequence: int) -> str:
    return f"{FOLDER}/{stream}/{sequence:020}.state"
