"""Barriers: the mark that tells a stream "the cut is here".

Rules:
- One injector reaches one stream; whoever coordinates owns one injector a stream.
- At most one barrier is pending. A newer trigger supersedes an unclaimed older one, and says which.
- A pending barrier is claimed by exactly one caller of `poll`, over all handles of the injector.
- `poll` with nothing pending takes no lock and makes no object: it stands on the path of every epoch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag
from threading import Lock
from typing import Any, TypeAlias

from holdfast._validation import checked_bytes, checked_u64
from holdfast.errors import BadValue

_WIRE = struct.Struct("<QQQ")
_WORD_BITS = 32
_WORD_MAX = (1 << _WORD_BITS) - 1


class BarrierFlags(IntFlag):
    """What a barrier asks for beyond the cut itself."""

    NONE = 0
    FULL_SNAPSHOT = 1  # self-contained: a savepoint
    DRAIN = 2  # the last barrier before the stream ends
    CANCEL = 4  # give up the checkpoint with this id


_KNOWN_FLAGS = int(BarrierFlags.FULL_SNAPSHOT | BarrierFlags.DRAIN | BarrierFlags.CANCEL)


def _checked_flags(flags: int) -> BarrierFlags:
    if isinstance(flags, bool) or not isinstance(flags, int) or flags & ~_KNOWN_FLAGS:
        raise BadValue(what="barrier flags", value=flags, why=f"only the bits of {_KNOWN_FLAGS} are known")
    return BarrierFlags(flags)


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """The mark of checkpoint `checkpoint_id` in a stream that stands at `epoch`. Both may be any u64."""

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
        """Whether the checkpoint with this id is given up."""
        return bool(self.flags & BarrierFlags.CANCEL)

    def to_bytes(self) -> bytes:
        """Return the wire form: id, epoch and flags, each a u64, little-endian."""
        return _WIRE.pack(self.checkpoint_id, self.epoch, self.flags)

    @classmethod
    def from_bytes(cls, data: bytes) -> CheckpointBarrier:
        """Read the wire form; another length or an unknown flag is refused."""
        if len(checked_bytes("barrier", data)) != _WIRE.size:
            raise BadValue(what="barrier of length", value=len(data), why=f"it has {_WIRE.size} bytes")
        checkpoint_id, epoch, flags = _WIRE.unpack(data)
        return cls(checkpoint_id, epoch, _checked_flags(flags))


@dataclass(frozen=True, slots=True)
class Event:
    """Data on its way through a stage; on Spark the payload is the micro-batch DataFrame."""

    payload: Any


@dataclass(frozen=True, slots=True)
class Watermark:
    """No event older than this many milliseconds is expected any more."""

    ms: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """The cut is here."""

    barrier: CheckpointBarrier


StreamMessage: TypeAlias = Event | Watermark | Barrier
"""What flows through a stage; consumers tell the three apart by `match`."""


class BarrierHandle:
    """The stream's end. Any number of handles may poll one injector, from any thread."""

    __slots__ = ("_slot",)

    def __init__(self, slot: _Slot) -> None:
        self._slot = slot

    def poll(self, epoch: int) -> CheckpointBarrier | None:
        """Return the pending barrier stamped with the caller's epoch, to one caller only; else `None`."""
        if self._slot.word:
            return self._slot.claim(epoch)
        return None


class BarrierInjector:
    """The coordinator's end: makes barriers pending for one stream."""

    __slots__ = ("_epoch", "_slot")

    def __init__(self) -> None:
        self._slot = _Slot()
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """How many triggers there have been."""
        return self._epoch

    def trigger(self, checkpoint_id: int, flags: int = BarrierFlags.NONE) -> int | None:
        """Make a barrier pending and return the id of the unclaimed one that it superseded, if any."""
        if isinstance(checkpoint_id, bool) or not isinstance(checkpoint_id, int):
            raise BadValue(what="checkpoint id", value=checkpoint_id, expected="an integer")
        if not 0 < checkpoint_id <= _WORD_MAX:
            raise BadValue(what="checkpoint id", value=checkpoint_id, why=f"1 to {_WORD_MAX} can be triggered")
        word = checkpoint_id << _WORD_BITS | _checked_flags(flags)
        slot = self._slot
        with slot.lock:
            superseded, slot.word = slot.word, word
            self._epoch += 1
        return superseded >> _WORD_BITS or None

    def handle(self) -> BarrierHandle:
        """Return a handle for the stream that this injector reaches."""
        return BarrierHandle(self._slot)


class _Slot:
    """The pending word, `checkpoint_id << 32 | flags`; 0 when nothing is pending, which id 0 therefore cannot be.

    Reading the word is one load; every change happens under the lock, so the claim is exclusive with or without a
    global interpreter lock.
    """

    __slots__ = ("lock", "word")

    def __init__(self) -> None:
        self.lock = Lock()
        self.word = 0

    def claim(self, epoch: int) -> CheckpointBarrier | None:
        checked_u64("epoch", epoch)  # before the word is taken: a refused caller must not lose the barrier
        with self.lock:
            word, self.word = self.word, 0
        if not word:
            return None
        return CheckpointBarrier(word >> _WORD_BITS, epoch, BarrierFlags(word & _WORD_MAX))
