"""Barriers: the markers that show a stream where the cut is.

Rules:
- An injector serves one stream; the coordinator owns one injector per stream.
- At most one barrier is pending. A new trigger supersedes an unclaimed older one and returns its id.
- Exactly one caller of `poll`, across all handles of the injector, claims a pending barrier.
- If nothing is pending, `poll` takes no lock and creates no object, because every epoch calls it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag
from threading import Lock
from typing import Any, TypeAlias

from holdfast._validation import checked_bytes, checked_u64
from holdfast.errors import BadValue

__all__ = [
    "Barrier",
    "BarrierFlags",
    "BarrierHandle",
    "BarrierInjector",
    "CheckpointBarrier",
    "Event",
    "StreamMessage",
    "Watermark",
]

_WIRE = struct.Struct("<QQQ")
_WORD_BITS = 32
_WORD_MAX = (1 << _WORD_BITS) - 1


class BarrierFlags(IntFlag):
    """What a barrier requests in addition to the cut."""

    NONE = 0
    FULL_SNAPSHOT = 1  # self-contained: a savepoint
    DRAIN = 2  # the last barrier before the stream ends
    CANCEL = 4  # abort the checkpoint with this id


_KNOWN_FLAGS = int(BarrierFlags.FULL_SNAPSHOT | BarrierFlags.DRAIN | BarrierFlags.CANCEL)


def _checked_flags(flags: int) -> BarrierFlags:
    if isinstance(flags, bool) or not isinstance(flags, int) or flags & ~_KNOWN_FLAGS:
        raise BadValue(what="barrier flags", value=flags, expected=f"a combination of the bits of {_KNOWN_FLAGS}")
    return BarrierFlags(flags)


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """The marker of checkpoint `checkpoint_id` in a stream that is at `epoch`. Both may be any u64."""

    checkpoint_id: int
    epoch: int
    flags: BarrierFlags = BarrierFlags.NONE

    def __post_init__(self) -> None:
        checked_u64("checkpoint id", self.checkpoint_id)
        checked_u64("epoch", self.epoch)
        object.__setattr__(self, "flags", _checked_flags(self.flags))

    @property
    def is_full_snapshot(self) -> bool:
        """Whether the snapshot must be self-contained."""
        return bool(self.flags & BarrierFlags.FULL_SNAPSHOT)

    @property
    def is_drain(self) -> bool:
        """Whether this is the last barrier before the stream ends."""
        return bool(self.flags & BarrierFlags.DRAIN)

    @property
    def is_cancel(self) -> bool:
        """Whether the checkpoint with this id is aborted."""
        return bool(self.flags & BarrierFlags.CANCEL)

    def to_bytes(self) -> bytes:
        """Return the wire form: id, epoch and flags, each a u64, little-endian."""
        return _WIRE.pack(self.checkpoint_id, self.epoch, self.flags)

    @classmethod
    def from_bytes(cls, data: bytes) -> CheckpointBarrier:
        """Decode the wire form. Raises `BadValue` for another length or an unknown flag."""
        if len(checked_bytes("barrier", data)) != _WIRE.size:
            raise BadValue(what="barrier length", value=len(data), expected=f"{_WIRE.size} bytes")
        checkpoint_id, epoch, flags = _WIRE.unpack(data)
        return cls(checkpoint_id, epoch, _checked_flags(flags))


@dataclass(frozen=True, slots=True)
class Event:
    """Data that flows through a stage; on Spark the payload is the micro-batch DataFrame."""

    payload: Any


@dataclass(frozen=True, slots=True)
class Watermark:
    """No event older than this time, in milliseconds, is expected."""

    ms: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """A checkpoint barrier in the stream: the cut is here."""

    barrier: CheckpointBarrier


StreamMessage: TypeAlias = Event | Watermark | Barrier
"""What flows through a stage; consumers distinguish the three with `match`."""


class BarrierHandle:
    """The stream's side. Any number of handles may poll one injector, from any thread."""

    __slots__ = ("_slot",)

    def __init__(self, slot: _Slot) -> None:
        self._slot = slot

    def poll(self, epoch: int) -> CheckpointBarrier | None:
        """Claim the pending barrier and return it with the caller's epoch, or return `None`; one caller gets it."""
        if self._slot.word:
            return self._slot.claim(epoch)
        return None


class BarrierInjector:
    """The coordinator's side: makes barriers pending for one stream."""

    __slots__ = ("_epoch", "_slot")

    def __init__(self) -> None:
        self._slot = _Slot()
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The number of triggers so far."""
        return self._epoch

    def trigger(self, checkpoint_id: int, flags: int = BarrierFlags.NONE) -> int | None:
        """Make a barrier pending and return the id of the unclaimed barrier that it supersedes, if any."""
        is_integer = isinstance(checkpoint_id, int) and not isinstance(checkpoint_id, bool)
        if not is_integer or not 0 < checkpoint_id <= _WORD_MAX:
            raise BadValue(what="checkpoint id", value=checkpoint_id, expected=f"an integer from 1 to {_WORD_MAX}")
        word = checkpoint_id << _WORD_BITS | _checked_flags(flags)
        slot = self._slot
        with slot.lock:
            superseded, slot.word = slot.word, word
            self._epoch += 1
        return superseded >> _WORD_BITS or None

    def handle(self) -> BarrierHandle:
        """Return a handle for the stream that this injector serves."""
        return BarrierHandle(self._slot)


class _Slot:
    """The pending word, `checkpoint_id << 32 | flags`. It is 0 if nothing is pending, so 0 is not a valid id.

    Reading the word is one load. Every change happens under the lock, so a claim is exclusive with or without a global
    interpreter lock.
    """

    __slots__ = ("lock", "word")

    def __init__(self) -> None:
        self.lock = Lock()
        self.word = 0

    def claim(self, epoch: int) -> CheckpointBarrier | None:
        checked_u64("epoch", epoch)  # before the word is taken: an invalid call must not consume the barrier
        with self.lock:
            word, self.word = self.word, 0
        if not word:
            return None
        return CheckpointBarrier(word >> _WORD_BITS, epoch, BarrierFlags(word & _WORD_MAX))
