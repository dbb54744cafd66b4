"""The index of an event log: which ranges of sequences were committed, and which were cancelled.

The index is append-only. A record is

    u32 LE length of the body | body, MessagePack | 32 bytes of chain

The chain is the SHA-256 of the previous chain (initially that of the log's uid), the length and the body: changing,
removing or moving a record breaks it. The head contains the number of records and bytes and the last chain, so that
truncation between two records is also detected. Ranges are contiguous, from sequence 0 on.

A committed range may have a key that identifies its append. A range without a key has the older encoding, without that
field.

The log is never cut. A rewind appends a record that names the ranges that it abandons, and its undo one that restores
them. Such a record takes one sequence, without an event. A range is abandoned or restored by records after it only. So
the records from a sequence on suffice to know which events after that sequence readers must skip.

`LogIndex` keeps only a part of a long index in memory: the newest records, and one head for each block of older ones.
A block is read again when it is needed. It must lead from the head before it to the head after it; otherwise it was
changed, and an error is raised.

The head on disk also contains one or two anchors: earlier heads, 4 to 8 KiB before the end of a long index. An index
can be opened at an anchor: only the records after it are read. They must lead from the anchor to the head, and each
chain is a digest of the one before it, so an anchor that is not an earlier head of this index is detected. The records
before the anchor are read and checked when they are first needed.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TypeAlias

import msgspec

from holdfast.errors import BadValue
from holdfast.formats.decoding import UNDECODABLE

_LENGTH = struct.Struct("<I")
CHAIN = 32
_BLOCK = 1 << 16  # bytes of the index per head in memory
_CACHED_BLOCKS = 4
_PIECE = 1 << 20  # bytes of the index per read
_ANCHOR_EVERY = 1 << 12  # bytes of the index between two anchors


class RangeDamaged(Exception):
    """The index or the head fails its checks; the log translates this into its own error."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A file of events: its path inside the log, its rows, its size and its SHA-256. Row n has sequence `first` + n."""

    path: str
    first: int
    count: int
    size: int
    sha256: bytes


class Committed(msgspec.Struct, frozen=True, tag="committed", array_like=True):
    """Sequences with events, in one or more segments; `key` identifies the append, if it has one."""

    first: int
    count: int
    segments: tuple[Segment, ...]
    key: str = ""


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled", array_like=True):
    """Sequences of an aborted append: a gap with a known reason."""

    first: int
    count: int
    why: str


class Rewound(msgspec.Struct, frozen=True, tag="rewound", array_like=True):
    """A rewind of one writer, or its undo: whole committed ranges, as first sequence and count. It has no events.

    `key` identifies the timeline that begins here. `count` is 1.
    """

    first: int
    count: int
    key: str
    abandoned: tuple[tuple[int, int], ...]
    restored: tuple[tuple[int, int], ...] = ()

    def is_sound(self) -> bool:
        """Whether it takes one sequence, and its ranges are before that."""
        return self.count == 1 and all(
            first >= 0 and count >= 1 and first + count <= self.first
            for first, count in (*self.abandoned, *self.restored)
        )


Range: TypeAlias = Committed | Cancelled | Rewound
ReadIndex: TypeAlias = Callable[[int, int], bytes]  # the bytes from start to end; fewer if the index ends earlier
Block: TypeAlias = list[tuple[Range, bytes]]  # consecutive ranges, each with its chain
_decoder: msgspec.msgpack.Decoder[Range] = msgspec.msgpack.Decoder(Range)


class IndexHead(msgspec.Struct, frozen=True):
    """The committed part of the index: records after it were never committed."""

    records: int
    length: int
    chain: bytes
    tail: int  # the next sequence to be assigned

    @classmethod
    def first(cls, uid: str) -> IndexHead:
        """Return the head of an empty log. Its chain starts with the log's uid, so no index matches another log."""
        return cls(0, 0, hashlib.sha256(uid.encode()).digest(), 0)


class StoredHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """A head as it is stored: with at most two anchors, the older one first. Earlier versions stored none."""

    records: int
    length: int
    chain: bytes
    tail: int
    anchors: tuple[IndexHead, ...] = ()

    @classmethod
    def of(cls, head: IndexHead, anchors: tuple[IndexHead, ...] = ()) -> StoredHead:
        """Return a head with its anchors."""
        return cls(head.records, head.length, head.chain, head.tail, anchors)

    @property
    def head(self) -> IndexHead:
        """The head without its anchors."""
        return IndexHead(self.records, self.length, self.chain, self.tail)

    def followed_by(self, head: IndexHead) -> StoredHead:
        """Return the next head. This one becomes an anchor if the last anchor is too far away."""
        anchors = self.anchors
        if not anchors or self.length - anchors[-1].length >= _ANCHOR_EVERY:
            anchors = (*anchors[-1:], self.head)
        return StoredHead.of(head, anchors)


def encode(range_: Range, head: IndexHead) -> tuple[bytes, IndexHead]:
    """Return the record of a range that follows `head`, and the head that commits it."""
    try:
        body = _body(range_)
        _decoder.decode(body)  # never write a record that could not be read back
    except (TypeError, OverflowError, *UNDECODABLE) as error:
        raise BadValue(what="range", value=range_, why=str(error)) from error
    framed = _LENGTH.pack(len(body)) + body
    chain = hashlib.sha256(head.chain + framed).digest()
    record = framed + chain
    return record, IndexHead(head.records + 1, head.length + len(record), chain, range_.first + range_.count)


def _body(range_: Range) -> bytes:
    if isinstance(range_, Committed) and not range_.key:
        return msgspec.msgpack.encode(("committed", range_.first, range_.count, range_.segments))
    return msgspec.msgpack.encode(range_)


def decode(data: bytes, head: IndexHead, *, continues: bool = False) -> Iterator[tuple[Range, IndexHead]]:
    """Yield the ranges in `data`, which follows `head`, each with the head after it.

    Raises `RangeDamaged` at the first record that is incomplete, out of order or changed. If the index `continues`
    after `data`, an incomplete record at the end of `data` is skipped instead.
    """
    at = 0
    while at < len(data):
        end = _end_of_record(data, at)
        if end > len(data):
            if continues:
                return
            raise RangeDamaged(f"{_name(head)} is truncated")
        framed, chain = data[at : end - CHAIN], data[end - CHAIN : end]
        if hashlib.sha256(head.chain + framed).digest() != chain:
            raise RangeDamaged(f"{_name(head)} does not match its chain")
        try:
            found = _decoder.decode(framed[_LENGTH.size :])
        except UNDECODABLE as error:
            raise RangeDamaged(f"{_name(head)}: {error}") from error
        if found.first != head.tail or found.count < 1:
            raise RangeDamaged(f"{_name(head)} does not follow sequence {head.tail}")
        if isinstance(found, Rewound) and not found.is_sound():
            raise RangeDamaged(f"{_name(head)} abandons or restores sequences that are not before it")
        head = IndexHead(head.records + 1, head.length + end - at, chain, found.first + found.count)
        yield found, head
        at = end


def _end_of_record(data: bytes, at: int) -> int:
    """Return the end of the record at offset `at`; past the end of `data` if the record is incomplete."""
    if len(data) - at < _LENGTH.size:
        return len(data) + 1
    length: int = _LENGTH.unpack_from(data, at)[0]
    return at + _LENGTH.size + length + CHAIN


def _name(head: IndexHead) -> str:
    return f"record {head.records} at byte {head.length}"


def _walk(read: ReadIndex, head: IndexHead, end: int) -> Iterator[tuple[Range, IndexHead]]:
    """Decode the index from `head` to byte `end`, holding only one piece, or one larger record, in memory."""
    size = _PIECE
    while head.length < end:
        stop = min(head.length + size, end)
        data = read(head.length, stop)
        if head.length + len(data) < stop:
            raise RangeDamaged(f"it ends at byte {head.length + len(data)}, but its head counts {end} bytes")
        size *= 2
        for found, after in decode(data, head, continues=stop < end):
            yield found, after
            head, size = after, _PIECE


class Ranges(ABC):
    """The committed ranges of a log in order, and the head after them: the questions that any index answers."""

    def __init__(self, head: IndexHead) -> None:
        self.head = head
        self._rewound: list[Rewound] = []  # of all records that were read
        self._abandoned: frozenset[tuple[int, int]] = frozenset()

    @property
    @abstractmethod
    def begins(self) -> int:
        """The number of the first record that was read."""

    @abstractmethod
    def ranges(self) -> Iterator[Range]:
        """Yield all ranges, in order."""

    @abstractmethod
    def keys(self, since: int) -> Iterator[str]:
        """Yield the keys of committed ranges and of rewinds from record number `since` on, in order."""

    @abstractmethod
    def _read_from(self, sequence: int) -> None:
        """Read earlier records, if necessary, so that all records that contain later sequences are known."""

    @abstractmethod
    def _find(self, sequence: int) -> tuple[Range, bytes] | None:
        """Return the range that contains a sequence, with its chain; read earlier records if necessary."""

    @property
    def rewinds(self) -> int:
        """The number of rewinds and undos in the records that were read."""
        return len(self._rewound)

    def _note(self, rewound: list[Rewound]) -> None:
        """Replace the list of rewinds by a longer one."""
        if len(rewound) == len(self._rewound):
            return
        abandoned: set[tuple[int, int]] = set()
        for each in rewound:
            abandoned |= set(each.abandoned)
            abandoned -= set(each.restored)
        self._rewound, self._abandoned = rewound, frozenset(abandoned)

    def is_abandoned(self, range_: Range) -> bool:
        """Whether a rewind has abandoned a range, and no undo has restored it."""
        return (range_.first, range_.count) in self._abandoned

    def changed_before(self, sequence: int) -> int | None:
        """Return the first sequence before this one that a later record abandoned or restored, or `None`.

        A reader that has read up to here has then read events that are abandoned, or has missed restored ones.
        """
        self._read_from(sequence)
        changed: set[tuple[int, int]] = set()
        for each in self._rewound:
            if each.first >= sequence:
                changed ^= set(each.abandoned)
                changed ^= set(each.restored)
        return min((first for first, _ in changed if first < sequence), default=None)

    def holding(self, sequence: int) -> Range | None:
        """Return the range that contains a sequence, or `None` past the end."""
        found = self._find(sequence)
        return None if found is None else found[0]

    def chain_at(self, sequence: int) -> bytes | None:
        """Return the chain of the record that contains a sequence: a digest of the history up to that record."""
        found = self._find(sequence)
        return None if found is None else found[1]

    def cancelled(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the half-open ranges without events, clipped to `start` and `end`; adjacent ranges are merged.

        They were cancelled, or a rewind has abandoned them, or they are the sequences of rewinds.
        """
        found: list[tuple[int, int]] = []
        at = start
        while at < end and (range_ := self.holding(at)) is not None:
            after = range_.first + range_.count
            if not isinstance(range_, Committed) or self.is_abandoned(range_):
                adjacent = found and found[-1][1] == at
                found.append((found.pop()[0] if adjacent else at, min(after, end)))
            at = after
        return found


class LiveIndex(Ranges):
    """The index of a log that can be looked at again.

    Reading it raises `RangeDamaged` if it fails its checks. `record_of` and `seek` are for places where a record can
    only be found by its name: a position that is stored elsewhere contains that name too.
    """

    @abstractmethod
    def refresh(self) -> None:
        """Read the records that were appended since the last look."""

    @abstractmethod
    def catch_up(self) -> None:
        """Do the same before an append, unless the append itself fails if there are such records."""

    @property
    def first_known(self) -> int:
        """The number of the first record that `known_keys` accounts for."""
        return self.begins

    def known_keys(self, since: int) -> Iterator[str]:
        """Yield the keys from record number `since` on without reading earlier records.

        An index whose records summarise those before them yields at least the last key of each timeline.
        """
        return self.keys(max(since, self.begins))

    def record_of(self, sequence: int) -> int | None:
        """Return the first sequence of the record that contains a sequence, if positions must contain it."""
        del sequence
        return None

    def seek(self, sequence: int, record: int | None) -> None:
        """Read the records from the one on that a stored position names."""
        del sequence, record


class LogIndex(Ranges):
    """The committed ranges in order, and the head after them; `read` returns bytes of the index on demand.

    `anchor` is the head to begin at, by default that of an empty index.
    """

    def __init__(self, uid: str, read: ReadIndex, anchor: IndexHead | None = None) -> None:
        self._first = IndexHead.first(uid)
        super().__init__(anchor or self._first)
        self._read = read
        self._starts = [self.head]  # the head before each block
        self._newest: Block = []  # the last block, which is appended to
        self._cache: OrderedDict[int, Block] = OrderedDict()

    @property
    def begins(self) -> int:
        """The number of the first record that was read."""
        return self._starts[0].records

    def advance(self, head: IndexHead) -> None:
        """Read the part of the index between the current head and a newer one. A failure changes nothing."""
        starts: list[IndexHead] = []
        newest = list(self._newest)
        start, reached = self._starts[-1], self.head
        rewound = list(self._rewound)
        for found, reached in _walk(self._read, self.head, head.length):
            newest.append((found, reached.chain))
            if isinstance(found, Rewound):
                rewound.append(found)
            if reached.length - start.length >= _BLOCK:
                start, newest = reached, []
                starts.append(start)
        if reached != head:
            raise RangeDamaged(f"the index has {reached.records} records, but its head counts {head.records}")
        self._starts += starts
        self._newest = newest
        self.head = head
        self._note(rewound)

    def ranges(self) -> Iterator[Range]:
        """Yield all ranges, in order."""
        if self.begins:
            self._read_earlier()
        for number in range(len(self._starts)):
            for each, _ in self._block(number):
                yield each

    def keys(self, since: int) -> Iterator[str]:
        """Yield the keys of committed ranges and of rewinds from record number `since` on, in order."""
        since = max(since, 0)
        if since < self.begins:
            self._read_earlier()
        first = bisect_right(self._starts, since, key=attrgetter("records")) - 1
        for number in range(first, len(self._starts)):
            skipped = max(since - self._starts[number].records, 0)
            for each, _ in self._block(number)[skipped:]:
                if not isinstance(each, Cancelled) and each.key:
                    yield each.key

    def _find(self, sequence: int) -> tuple[Range, bytes] | None:
        if not 0 <= sequence < self.head.tail:
            return None
        self._read_from(sequence)
        block = self._block(bisect_right(self._starts, sequence, key=attrgetter("tail")) - 1)
        return block[bisect_right(block, sequence, key=_first) - 1]

    def _read_from(self, sequence: int) -> None:
        if sequence < self._starts[0].tail:
            self._read_earlier()

    def _block(self, number: int) -> Block:
        """Return a block; the newest one and the last few that were used are in memory."""
        if number == len(self._starts) - 1:
            return self._newest
        if number not in self._cache:
            self._cache[number] = self._read_again(self._starts[number], self._starts[number + 1])
            if len(self._cache) > _CACHED_BLOCKS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(number)
        return self._cache[number]

    def _read_earlier(self) -> None:
        """Read the records before the anchor. A failure changes nothing."""
        anchor = self._starts[0]
        starts, reached = [self._first], self._first
        rewound = []
        for found, reached in _walk(self._read, self._first, anchor.length):
            if isinstance(found, Rewound):
                rewound.append(found)
            if reached.length - starts[-1].length >= _BLOCK and reached.length < anchor.length:
                starts.append(reached)
        if reached != anchor:
            raise RangeDamaged(f"its first {anchor.records} records are not those that its head continues")
        self._starts = [*starts, *self._starts]
        self._cache.clear()  # blocks have other numbers now
        self._note([*rewound, *self._rewound])

    def _read_again(self, start: IndexHead, end: IndexHead) -> Block:
        block: Block = []
        reached = start
        for found, reached in _walk(self._read, start, end.length):
            block.append((found, reached.chain))
        if reached != end:
            raise RangeDamaged(f"{_name(start)}, or a record after it, has changed since it was read")
        return block


def _first(record: tuple[Range, bytes]) -> int:
    return record[0].first
