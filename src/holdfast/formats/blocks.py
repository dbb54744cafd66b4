"""Images of stage state on a device of 512-byte blocks: the layout, and the choice of a slot.

Version 1 (read only): block 0 is `PCHK`, u32 version 1, u64 length, zeros; blocks 1..n are the payload, padded with
zeros.

Version 2 divides the device into two halves, each a slot. A slot is a header block followed by its payload:

    offset  size
         0     4  `PCHK`
         4     4  version, u32 LE
         8     8  length of the payload, u64 LE
        16     8  generation, u64 LE, counted from 1; 0 in a slot that has never held a state
        24     8  number of blocks of the device, u64 LE
        32    64  name of the stage, UTF-8, padded with zeros
        96    64  name of the state's type, likewise
       160    32  SHA-256 of header and padded payload, with this field zeroed
       192        zeros

Rules:
- From the first checkpoint on, both slots always hold a state: if one slot is intact and the other is blank, damaged or
  unreadable, a state may have been lost.
- A new generation overwrites the slot that does not hold the newest valid one, so a write that is rejected, torn or
  interrupted never damages the previous state.
- The newest valid generation wins. If the other slot is not intact, `fell_back` is true.
- The header has this layout in every version: an intact slot of an unknown version is an error; it is never skipped.
- A length is checked against the device before memory is allocated, and the size of the device against the image.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from holdfast.errors import (
    BadValue,
    BlockFailed,
    HoldfastError,
    StageBlank,
    StageCorrupt,
    StageMismatch,
    StageTooLarge,
    UnsupportedVersion,
)

BLOCK_SIZE = 512
VERSION = 2
NAME_LENGTH = 64
_MAGIC = b"PCHK"
_V1_HEADER = struct.Struct("<4sIQ")
_HEADER = struct.Struct("<4sIQQQ64s64s32s")
_DIGEST_AT = _HEADER.size - 32
_NO_DIGEST = bytes(32)

T = TypeVar("T")


class BlockDevice(Protocol):
    """A fixed set of 512-byte blocks. A write is durable after `flush`.

    A device may also offer `read_blocks(first, count)` and `write_blocks(first, data)`: one call for many blocks.
    """

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""

    def read_block(self, index: int) -> bytes:
        """Return block `index`."""

    def write_block(self, index: int, data: bytes) -> None:
        """Replace block `index`."""

    def flush(self) -> None:
        """Make all earlier writes durable."""


class MemoryBlocks:
    """A device in memory, for tests, including users' own tests."""

    def __init__(self, num_blocks: int) -> None:
        self.data = bytearray(num_blocks * BLOCK_SIZE)

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""
        return len(self.data) // BLOCK_SIZE

    def read_block(self, index: int) -> bytes:
        """Return block `index`."""
        return bytes(self.data[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])

    def write_block(self, index: int, data: bytes) -> None:
        """Replace block `index`."""
        if len(data) != BLOCK_SIZE or not 0 <= index < self.num_blocks:
            expected = f"{BLOCK_SIZE} bytes for a block from 0 to {self.num_blocks - 1}"
            raise BadValue(what="block", value=index, expected=expected, why=f"the data has {len(data)} bytes")
        self.data[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE] = data

    def flush(self) -> None:
        """Do nothing: there is no storage to flush."""


@dataclass(frozen=True, slots=True)
class Image:
    """The contents of a slot. A version 1 image has generation 0 and no names."""

    generation: int
    stage: str
    type_name: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class _Blank:
    pass


@dataclass(frozen=True, slots=True)
class _Damaged:
    step: str
    why: str
    version: int | None = None  # set if the version is unknown
    failed: BlockFailed | None = None  # set if a block could not be read


@dataclass(frozen=True, slots=True)
class _ImageV1:
    payload: bytes


_Slot: TypeAlias = _Blank | _Damaged | _ImageV1 | Image


@dataclass(frozen=True, slots=True)
class Found:
    """An intact image, its slot, the highest generation in use, and whether a newer image may have been lost."""

    image: Image
    slot: int
    highest: int
    fell_back: bool


@dataclass(frozen=True, slots=True)
class Device:
    """A block device divided into two slots; `name` identifies it in errors."""

    blocks: BlockDevice
    name: str

    @property
    def capacity(self) -> int:
        """The payload bytes per slot; 0 on a device too small for two slots, which may still hold version 1."""
        return max(self._half - 1, 0) * BLOCK_SIZE

    @property
    def _half(self) -> int:
        return self.blocks.num_blocks // 2

    def find(self, generation: int | None = None) -> Found:
        """Return the newest image, or raise `StageBlank`, `StageCorrupt` or `UnsupportedVersion`.

        With `generation`, return that image if either slot holds it: the newest may belong to an epoch that was never
        decided.
        """
        first = self._read_slot(0)
        second = self._read_slot(1) if self.capacity else _Blank()
        match first, second:
            case Image() as one, Image() as other if one.generation or other.generation:
                newest = int(other.generation > one.generation)
                images = one, other
                named = 1 - newest if generation and images[1 - newest].generation == generation else newest
                return Found(images[named], named, images[newest].generation, fell_back=False)
            case _ImageV1(), Image(generation=number) as image if number:
                return _single(image, 1, fell_back=False)
            case _ImageV1(payload), rest:
                # Bytes after a version 1 image are not a slot. A damaged version 2 header is.
                torn = isinstance(rest, _Damaged) and rest.step != "bad magic" and not self._spans_halves(payload)
                return _single(Image(0, "", "", payload), 0, torn)
            case (Image(generation=0), _) | (_, Image(generation=0)):
                raise StageBlank(stage=self.name)  # interrupted before the first state was acknowledged
            case Image() as image, _:
                return _single(image, 0, fell_back=True)
            case _, Image() as image:
                return _single(image, 1, fell_back=True)
            case (_Damaged() as damaged, _) | (_, _Damaged() as damaged):
                raise self._refused(damaged)
        raise StageBlank(stage=self.name)

    def _refused(self, damaged: _Damaged) -> StageCorrupt | UnsupportedVersion | BlockFailed:
        if damaged.failed is not None:
            return damaged.failed
        if damaged.version is not None:
            known = "versions 1 and 2"
            return UnsupportedVersion(what=f"stage image {self.name!r}", found=damaged.version, known=known)
        return StageCorrupt(stage=self.name, step=damaged.step, why=damaged.why)

    def write(self, image: Image, over: Found | None) -> Found:
        """Write `image` into the slot that `over` does not occupy; durable on return.

        The first image is written into both slots, so that from then on a slot without a state means damage. On a blank
        device the other slot is first initialised with generation 0. This distinguishes an interrupted first write from
        damage: as long as one slot has generation 0, no state was acknowledged.
        """
        if len(image.payload) > self.capacity or not self.capacity:
            raise StageTooLarge(stage=self.name, size=len(image.payload), capacity=self.capacity)
        if over is not None and over.image.generation == 0 and self._spans_halves(over.image.payload):
            # Version 1 used the device as one slot: a second slot would overwrite the state that must survive.
            size = 2 * (BLOCK_SIZE + len(over.image.payload))
            raise StageTooLarge(stage=self.name, size=size, capacity=self.blocks.num_blocks * BLOCK_SIZE)
        slot = 0 if over is None else 1 - over.slot
        if over is None:
            self._write_slot(1 - slot, Image(0, image.stage, image.type_name, b""))
        self._write_slot(slot, image)
        if over is None or over.image.generation == 0:
            self._write_slot(1 - slot, image)
        return Found(image, slot, image.generation, fell_back=False)

    def _write_slot(self, slot: int, image: Image) -> None:
        self._write_run(slot * self._half, _encode(image, self.blocks.num_blocks))
        self._guarded("flush", slot * self._half, self.blocks.flush)

    def _spans_halves(self, v1_payload: bytes) -> bool:
        return 1 + _blocks_for(len(v1_payload)) > self._half

    def _read_slot(self, slot: int) -> _Slot:
        try:
            return self._read_sound_slot(slot)
        except BlockFailed as failed:
            return _Damaged(failed.step, failed.why, failed=failed)

    def _read_sound_slot(self, slot: int) -> _Slot:
        start = slot * self._half
        header = self._read_run(start, 1)
        if header == bytes(BLOCK_SIZE):
            return _Blank()
        magic, version, length = _V1_HEADER.unpack_from(header)
        if magic != _MAGIC:
            return _Damaged("bad magic", f"block {start} begins with {magic!r}")
        if version == 1 and slot == 0:
            return self._read_v1(header, length)
        if length > self.capacity:
            return _Damaged("too large", f"length {length} is more than the {self.capacity} bytes of a slot")
        padded = self._read_run(start + 1, _blocks_for(length))
        digest = header[_DIGEST_AT : _HEADER.size]
        blank = header[:_DIGEST_AT] + _NO_DIGEST + header[_HEADER.size :]
        if hashlib.sha256(blank + padded).digest() != digest:
            unknown = None if version in (1, VERSION) else version
            return _Damaged("checksum", f"slot {slot} does not match its digest", unknown)
        return self._read_v2(slot, header, padded[:length])

    def _read_v2(self, slot: int, header: bytes, payload: bytes) -> Image | _Damaged:
        """Return the image of a slot whose digest has been checked."""
        _, version, _, generation, num_blocks, stage, type_name, _ = _HEADER.unpack_from(header)
        if version != VERSION:
            raise UnsupportedVersion(what=f"stage image {self.name!r}", found=version, known="versions 1 and 2")
        if num_blocks != self.blocks.num_blocks:
            found, asked = f"{num_blocks} blocks", f"{self.blocks.num_blocks} blocks"
            raise StageMismatch(what="device", found=found, asked=asked)
        try:
            return Image(generation, _unpadded(stage), _unpadded(type_name), payload)
        except UnicodeDecodeError as error:
            return _Damaged("decode", f"a name in slot {slot}: {error}")

    def _read_v1(self, header: bytes, length: int) -> _ImageV1 | _Damaged:
        padding = header[_V1_HEADER.size :].lstrip(b"\0")
        if padding:
            at = len(header) - len(padding)
            return _Damaged("bad padding", f"byte {at} of the version 1 header is {padding[0]:#04x}, not zero")
        room = (self.blocks.num_blocks - 1) * BLOCK_SIZE
        if length > room:
            return _Damaged("too large", f"length {length} is more than the {room} bytes of the device")
        return _ImageV1(self._read_run(1, _blocks_for(length))[:length])

    def _read_run(self, first: int, count: int) -> bytes:
        many = getattr(self.blocks, "read_blocks", None)
        if many is not None:
            data = bytes(self._guarded("read", first, partial(many, first, count)))
        else:
            read = self.blocks.read_block
            data = b"".join(self._guarded("read", i, partial(read, i)) for i in range(first, first + count))
        if len(data) != count * BLOCK_SIZE:
            short = first + len(data) // BLOCK_SIZE
            raise BlockFailed(stage=self.name, action="read", block=short, why="the read returned too few bytes")
        return data

    def _write_run(self, first: int, data: bytes) -> None:
        many = getattr(self.blocks, "write_blocks", None)
        if many is not None:
            self._guarded("write", first, partial(many, first, data))
            return
        for i in range(len(data) // BLOCK_SIZE):
            block = data[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]
            self._guarded("write", first + i, partial(self.blocks.write_block, first + i, block))

    def _guarded(self, action: str, block: int, call: Callable[[], T]) -> T:
        try:
            return call()
        except HoldfastError:
            raise  # for example, the device was closed
        except Exception as error:
            # A call for many blocks may report which of them failed.
            failed = getattr(error, "block", block)
            raise BlockFailed(stage=self.name, action=action, block=failed, why=str(error)) from error


def _single(image: Image, slot: int, fell_back: bool) -> Found:
    """Return the only intact image. The generation of a lost one counts as used, so that it is not used again."""
    return Found(image, slot, image.generation + fell_back, fell_back)


def _blocks_for(length: int) -> int:
    return -(-length // BLOCK_SIZE)


def _encode(image: Image, num_blocks: int) -> bytes:
    header = _HEADER.pack(
        _MAGIC,
        VERSION,
        len(image.payload),
        image.generation,
        num_blocks,
        _padded(image.stage),
        _padded(image.type_name),
        _NO_DIGEST,
    ).ljust(BLOCK_SIZE, b"\0")
    payload = image.payload.ljust(_blocks_for(len(image.payload)) * BLOCK_SIZE, b"\0")
    digest = hashlib.sha256(header + payload).digest()
    return header[:_DIGEST_AT] + digest + header[_HEADER.size :] + payload


def _padded(name: str) -> bytes:
    data = name.encode()
    if len(data) > NAME_LENGTH or b"\0" in data:
        raise BadValue(what="name in a stage image", value=name, expected=f"at most {NAME_LENGTH} bytes without NUL")
    return data.ljust(NAME_LENGTH, b"\0")


def _unpadded(data: bytes) -> str:
    return data.rstrip(b"\0").decode()
