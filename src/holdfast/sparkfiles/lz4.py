"""The block stream that Spark's state files are compressed with by default, as lz4-java frames it.

A file is a series of blocks, each with a header, and ends with an empty block. Only as much is decoded as is needed
without Spark: the first block, and whether the end is there.
"""

from __future__ import annotations

import struct

MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBIII")  # magic, method and level, packed size, size, checksum
_STORED = 0x10  # the method of a block that is not compressed
_LARGEST = 1 << 25  # lz4-java makes no larger block
_LEAST_MATCH = 4
_LONG = 15  # a length in a token that continues in the following bytes


class BadBlock(Exception):
    """The bytes are not a block of the stream. Callers translate this into the error for their kind of file."""


def has_end(tail: bytes) -> bool:
    """Whether the last bytes of a file are the empty block that ends the stream."""
    if len(tail) < _HEADER.size:
        return False
    magic, _, packed, size, _ = _HEADER.unpack(tail[-_HEADER.size :])
    return bool(magic == MAGIC and packed == size == 0)


END = _HEADER.size
"""The number of bytes that `has_end` needs."""


def first_bytes(data: bytes) -> bytes:
    """Return the content of the first block, or raise `BadBlock`."""
    try:
        magic, method, packed, size, _ = _HEADER.unpack_from(data)
    except struct.error as error:
        raise BadBlock(str(error)) from None
    if magic != MAGIC:
        raise BadBlock("it does not begin with a block of LZ4")
    block = data[_HEADER.size : _HEADER.size + packed]
    if method & 0xF0 == _STORED:
        return block
    if size > _LARGEST:
        raise BadBlock(f"its header gives {size} bytes for the first block")
    try:
        return _unpacked(block, size)
    except IndexError:
        raise BadBlock("its first block is cut off") from None


def _unpacked(block: bytes, size: int) -> bytes:
    """Decode sequences of literals and matches: the format of a raw LZ4 block."""
    found = bytearray()
    at = 0
    while at < len(block):
        token = block[at]
        length, at = _length(token >> 4, block, at + 1)
        found += block[at : at + length]
        at += length
        if at >= len(block):
            break  # the last sequence has no match
        back = block[at] | block[at + 1] << 8
        length, at = _length(token & 0xF, block, at + 2)
        length += _LEAST_MATCH
        if len(found) + length > size:
            raise BadBlock(f"its first block has more than {size} bytes")
        _repeat(found, back, length)
    if len(found) != size:
        raise BadBlock(f"its first block has {len(found)} bytes instead of {size}")
    return bytes(found)


def _length(start: int, block: bytes, at: int) -> tuple[int, int]:
    """Return a length and the place after it."""
    if start < _LONG:
        return start, at
    while True:
        more = block[at]
        start, at = start + more, at + 1
        if more != 0xFF:
            return start, at


def _repeat(found: bytearray, back: int, length: int) -> None:
    if not 0 < back <= len(found):
        raise BadBlock(f"its first block refers to byte {len(found) - back}")
    while length > 0:
        part = bytes(found[len(found) - back :][:length])
        found += part
        length -= len(part)
