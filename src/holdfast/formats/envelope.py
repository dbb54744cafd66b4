"""The envelope of binary files: checkpoint states and cursors.

    offset  size
         0     8  magic, one per kind of file
         8     4  version, u32 LE
        12     4  zero
        16     8  length of the body, u64 LE
        24     8  eight bytes 0xff
        32    32  SHA-256 of the whole frame with this field zeroed
        64        body

The header is the same in every version, and the digest is checked before the version, so a damaged file is never
mistaken for a newer one. The eight 0xff bytes are at the offset at which a version 1 state has its counts, so a version
1 reader rejects a frame, even one with a damaged magic.
"""

from __future__ import annotations

import hashlib
import struct

_HEADER = struct.Struct("<8sIIQ8s32s")
_FENCE = b"\xff" * 8
_NO_DIGEST = bytes(32)


class EnvelopeDamaged(Exception):
    """The frame fails its checks. Callers translate this into the error for their kind of file."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset


def pack(magic: bytes, version: int, body: bytes) -> bytes:
    """Return a frame that contains `body`."""
    blank = _HEADER.pack(magic, version, 0, len(body), _FENCE, _NO_DIGEST)
    digest = hashlib.sha256(blank + body).digest()
    return blank[:32] + digest + body


def unpack(magic: bytes, data: bytes) -> tuple[int, bytes]:
    """Check the digest of a frame and return its version and body. The caller checks the version."""
    if data[:8] != magic:
        raise EnvelopeDamaged(0, "the magic is missing")
    if len(data) < _HEADER.size:
        raise EnvelopeDamaged(len(data), f"truncated inside the header of {_HEADER.size} bytes")
    _, version, zero, length, fence, digest = _HEADER.unpack_from(data)
    if len(data) != _HEADER.size + length:
        raise EnvelopeDamaged(16, f"the body has {len(data) - _HEADER.size} bytes, but {length} are recorded")
    body = data[_HEADER.size :]
    if hashlib.sha256(data[:32] + _NO_DIGEST + body).digest() != digest:
        raise EnvelopeDamaged(32, "the digest does not match")
    if zero or fence != _FENCE:
        raise EnvelopeDamaged(12, "a reserved field has an unknown value")
    return version, body
