"""The index of an event log: which ranges of sequences were committed, and which were cancelled.

The index is append-only. A record is

    u32 LE length of the body | body, MessagePack | 32 bytes of chain

and the chain is the SHA-256 of the chain before it (of the log's uid, at first), the length and the body: a record that
was changed, taken out or put elsewhere breaks it. The head holds how many records and bytes there are and the last
chain, so a cut at a record's edge is found too. Ranges follow one another without a hole from sequence 0 on.

A committed range may say whose append it was, by a key. One without a key is written as it was before there were any.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from holdfast.errors import BadValue

_LENGTH = struct.Struct("<I")
CHAIN = 32


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
    """Sequences that hold events, in one or several segments; `key` says whose append it was, where that matters."""

    first: int
    count: int
    segments: tuple[Segment, ...]
    key: str = ""


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled", array_like=True):
    """Sequences that an aborted append left behind: a hole with a known reason."""

    first: int
    count: int
    why: str


Range: TypeAlias = Committed | Cancelled


class Head(msgspec.Struct, frozen=True):
    """What of the index counts: everything behind it has not happened."""

    records: int
    length: int
    chain: bytes
    tail: int  # the next sequence to be given

    @classmethod
    def first(cls, uid: str) -> Head:
        """The head of a log that holds nothing yet. Its chain begins with the log's uid: no index fits another log."""
        return cls(0, 0, hashlib.sha256(uid.encode()).digest(), 0)


def encode(range_: Range, head: Head) -> tuple[bytes, Head]:
    """Return the record of a range that follows `head`, and the head that makes it count."""
    try:
        body = _body(range_)
        msgspec.msgpack.decode(body, type=Range)  # what could not be read back is never written
    except (TypeError, UnicodeError, OverflowError, msgspec.MsgspecError) as error:
        raise BadValue(what="range", value=range_, why=str(error)) from error
    framed = _LENGTH.pack(len(body)) + body
    chain = hashlib.sha256(head.chain + framed).digest()
    record = framed + chain
    return record, Head(head.records + 1, head.length + len(record), chain, range_.first + range_.count)


def _body(range_: Range) -> bytes:
    if isinstance(range_, Committed) and not range_.key:
        return msgspec.msgpack.encode(("committed", range_.first, range_.count, range_.segments))
    return msgspec.msgpack.encode(range_)


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
        end = at + _LENGTH.size + length + CHAIN
        if end > len(data):
            raise RangeDamaged(f"{start} is cut")
        framed, chain = data[at : end - CHAIN], data[end - CHAIN : end]
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

    def __init__(self, uid: str) -> None:
        self.head = Head.first(uid)
        self._firsts: list[int] = []
        self._ranges: list[Range] = []
        self._chains: list[bytes] = []

    def add(self, data: bytes, head: Head) -> None:
        """Take in the part of the index between the head known so far and a newer one."""
        new = list(decode(data, self.head))
        reached = new[-1][1] if new else self.head
        if reached != head:
            raise RangeDamaged(f"the index ends with record {reached.records}, and its head counts {head.records}")
        for found, behind in new:
            self._firsts.append(found.first)
            self._ranges.append(found)
            self._chains.append(behind.chain)
        self.head = head

    def holding(self, sequence: int) -> Range | None:
        """Return the range that holds a sequence, or `None` past the end."""
        place = self._place(sequence)
        return None if place is None else self._ranges[place]

    def chain_at(self, sequence: int) -> bytes | None:
        """Return the chain of the record that holds a sequence: it stands for everything up to there."""
        place = self._place(sequence)
        return None if place is None else self._chains[place]

    def keys(self, since: int) -> list[str]:
        """Return the keys of the committed ranges from the n-th record on, in their order."""
        return [each.key for each in self._ranges[since:] if isinstance(each, Committed) and each.key]

    def _place(self, sequence: int) -> int | None:
        return bisect_right(self._firsts, sequence) - 1 if sequence < self.head.tail else None

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
