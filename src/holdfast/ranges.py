"""The index of an event log: which ranges of sequences were committed, and which were cancelled.

The index is append-only. A record is

    u32 LE length of the body | body, MessagePack | 32 bytes of chain

and the chain is the SHA-256 of the chain before it, the length and the body: a record that was changed, taken out or
put elsewhere breaks it. The head holds how many records and bytes there are and the last chain, so a cut at a record's
edge is found too. Ranges follow one another without a hole from sequence 0 on.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

_LENGTH = struct.Struct("<I")
_CHAIN = 32
GENESIS = bytes(_CHAIN)


class RangeDamaged(Exception):
    """Index or head fail their checks; the log turns this into its own error."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A file of events: its path inside the log, its rows, its size and its SHA-256. A row's sequence is its place."""

    path: str
    first: int
    count: int
    size: int
    sha256: bytes


class Committed(msgspec.Struct, frozen=True, tag="committed", array_like=True):
    """Sequences that hold events, in one or several segments."""

    first: int
    count: int
    segments: tuple[Segment, ...]


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled", array_like=True):
    """Sequences that an aborted append left behind: a hole with a known reason."""

    first: int
    count: int
    why: str


Range: TypeAlias = Committed | Cancelled


class Head(msgspec.Struct, frozen=True):
    """What of the index counts: everything behind it has not happened."""

    records: int = 0
    length: int = 0
    chain: bytes = GENESIS
    tail: int = 0  # the next sequence to be given


def encode(range_: Range, head: Head) -> tuple[bytes, Head]:
    """Return the record of a range that follows `head`, and the head that makes it count."""
    body = msgspec.msgpack.encode(range_)
    framed = _LENGTH.pack(len(body)) + body
    chain = hashlib.sha256(head.chain + framed).digest()
    record = framed + chain
    return record, Head(head.records + 1, head.length + len(record), chain, range_.first + range_.count)


def decode(data: bytes, head: Head) -> Iterator[tuple[Range, Head]]:
    """Return the ranges in `data`, which follows `head`, each with the head behind it.

    Raises `RangeDamaged` at the first record that is not whole, not in its place, or not what was written.
    """
    at = 0
    while at < len(data):
        start = f"record {head.records} at byte {head.length}"
        if len(data) - at < _LENGTH.size:
            raise RangeDamaged(f"{start} is cut")
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + _LENGTH.size + length + _CHAIN
        if end > len(data):
            raise RangeDamaged(f"{start} is cut")
        framed, chain = data[at : end - _CHAIN], data[end - _CHAIN : end]
        if hashlib.sha256(head.chain + framed).digest() != chain:
            raise RangeDamaged(f"{start} does not match its chain")
        try:
            found = msgspec.msgpack.decode(framed[_LENGTH.size :], type=Range)
        except msgspec.MsgspecError as error:
            raise RangeDamaged(f"{start}: {error}") from error
        if found.first != head.tail or found.count < 1:
            raise RangeDamaged(f"{start} does not follow sequence {head.tail}")
        head = Head(head.records + 1, head.length + end - at, chain, found.first + found.count)
        yield found, head
        at = end


class Ranges:
    """The ranges that count, in order, and the head behind them."""

    def __init__(self) -> None:
        self.head = Head()
        self._firsts: list[int] = []
        self._ranges: list[Range] = []

    def add(self, data: bytes, head: Head) -> None:
        """Take in the part of the index between the head known so far and a newer one."""
        new = list(decode(data, self.head))
        reached = new[-1][1] if new else self.head
        if reached != head:
            raise RangeDamaged(f"the index ends with record {reached.records}, and its head counts {head.records}")
        for found, _ in new:
            self._firsts.append(found.first)
            self._ranges.append(found)
        self.head = head

    def holding(self, sequence: int) -> Range | None:
        """Return the range that holds a sequence, or `None` past the end."""
        if sequence >= self.head.tail:
            return None
        return self._ranges[bisect_right(self._firsts, sequence) - 1]

    def cancelled(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the cancelled half-open ranges within `start` to `end`, clipped to it."""
        found: list[tuple[int, int]] = []
        at = start
        while at < end and (range_ := self.holding(at)) is not None:
            after = range_.first + range_.count
            if isinstance(range_, Cancelled):
                found.append((at, min(after, end)))
            at = after
        return found
