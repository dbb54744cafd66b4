"""A record of the index of an event log on an object store: one sealed JSON object.

    index/<first sequence, 20 digits>.json

The chain is that of an index on a local disk: the SHA-256 of the previous chain (initially that of the log's uid) and
of the same encoding of the range. So a record that was changed, removed or moved is detected.

`marks` are carried from record to record: for each name, the key of the last append or rewind that set it. The sink of
a stream sets one for each timeline. So the newest record alone answers which epochs a log holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import field

from holdfast.errors import BadValue, Corrupt
from holdfast.eventlog.index import Cancelled, Committed, IndexHead, Range, RangeDamaged, Rewound, Segment, encode
from holdfast.formats.sealed_json import Record

INDEX_FOLDER = "index"
_NAME = re.compile(rf"{INDEX_FOLDER}/(\d{{20}})\.json")
_HEX = re.compile(r"[0-9a-f]{64}")


class RecordSegment(msgspec.Struct, frozen=True):
    """A segment of a record. Segments follow one another; the first begins with the record."""

    path: str  # inside the log
    rows: int
    bytes: int
    sha256: str


class IndexRecord(Record, frozen=True, kw_only=True):
    """One record: a range, its place in the chain, and the marks after it."""

    log: str  # uid of the log
    number: int  # how many records there are before it
    first: int  # the first sequence
    count: int  # the number of sequences, at least 1
    previous: int | None  # the first sequence of the record before it
    before: str  # the chain of the record before it
    chain: str
    kind: str  # committed, cancelled or rewound
    key: str = ""
    segments: list[RecordSegment] = field(default_factory=list)
    why: str = ""  # of a cancelled range
    abandoned: list[list[int]] = field(default_factory=list)  # of a rewind: first sequence and count of each range
    restored: list[list[int]] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)

    @classmethod
    def after(cls, before: IndexRecord | None, uid: str, range_: Range, marks: Mapping[str, str]) -> IndexRecord:
        """Return the record of a range that follows another record, or none."""
        head = IndexHead.first(uid) if before is None else before.head
        _, reached = encode(range_, head)
        return cls(
            log=uid,
            number=head.records,
            first=range_.first,
            count=range_.count,
            previous=None if before is None else before.first,
            before=head.chain.hex(),
            chain=reached.chain.hex(),
            marks=dict(sorted({**(before.marks if before else {}), **marks}.items())),
            **_fields(range_),
        )

    @classmethod
    def read(cls, data: bytes, name: str, uid: str) -> IndexRecord:
        """Decode and check a record that was read under a name, or raise `RangeDamaged`."""
        try:
            found = cls.unsealed(data, name)
        except Corrupt as error:
            raise RangeDamaged(error.summary) from error
        if record_key(found.first) != name:
            raise RangeDamaged(f"{name} contains the record of sequence {found.first}")
        if found.log != uid:
            raise RangeDamaged(f"{name} belongs to log {found.log}")
        found._check(name)
        return found

    def _check(self, name: str) -> None:
        """Require that the chain matches the range."""
        if not _HEX.fullmatch(self.before) or self.count < 1 or self.first < 0 or self.number < 0:
            raise RangeDamaged(f"{name} contains values that cannot be right")
        range_ = self.range
        if isinstance(range_, Rewound) and not range_.is_sound():
            raise RangeDamaged(f"{name} abandons or restores sequences that are not before it")
        if isinstance(range_, Committed) and sum(each.count for each in range_.segments) != self.count:
            raise RangeDamaged(f"the segments of {name} do not have {self.count} rows")
        try:
            _, head = encode(range_, IndexHead(self.number, 0, bytes.fromhex(self.before), self.first))
        except BadValue as error:
            raise RangeDamaged(f"{name}: {error.summary}") from error
        if head.chain.hex() != self.chain:
            raise RangeDamaged(f"{name} does not match its chain")

    @property
    def head(self) -> IndexHead:
        """The head of the index after this record. It has no length: the index is not one file."""
        return IndexHead(self.number + 1, 0, bytes.fromhex(self.chain), self.first + self.count)

    @property
    def range(self) -> Range:
        """The range, as an index on a local disk would contain it."""
        match self.kind:
            case "committed":
                return Committed(self.first, self.count, self._segments(), self.key)
            case "cancelled":
                return Cancelled(self.first, self.count, self.why)
            case "rewound":
                return Rewound(
                    self.first, self.count, self.key, self._bounds(self.abandoned), self._bounds(self.restored)
                )
        raise RangeDamaged(f"{record_key(self.first)} is of an unknown kind, {self.kind!r}")

    def _segments(self) -> tuple[Segment, ...]:
        found, at = [], self.first
        for each in self.segments:
            if each.rows < 1 or not _HEX.fullmatch(each.sha256):
                raise RangeDamaged(f"{record_key(self.first)} names a segment that cannot be right: {each.path}")
            found.append(Segment(each.path, at, each.rows, each.bytes, bytes.fromhex(each.sha256)))
            at += each.rows
        return tuple(found)

    def _bounds(self, listed: list[list[int]]) -> tuple[tuple[int, int], ...]:
        if any(len(each) != 2 for each in listed):
            raise RangeDamaged(f"{record_key(self.first)} names ranges that cannot be right")
        return tuple((first, count) for first, count in listed)

    def follows(self, before: IndexRecord | None) -> bool:
        """Whether this is the record directly after another one, or the first one."""
        head = IndexHead.first(self.log) if before is None else before.head
        return (self.first, self.number, self.before) == (head.tail, head.records, head.chain.hex())


def record_key(first: int) -> str:
    """Return the name of the record that begins with a sequence."""
    return f"{INDEX_FOLDER}/{first:020}.json"


def first_in(name: str) -> int | None:
    """Return the first sequence in the name of a record; `None` for another name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def _fields(range_: Range) -> dict[str, Any]:
    match range_:
        case Committed():
            segments = [RecordSegment(each.path, each.count, each.size, each.sha256.hex()) for each in range_.segments]
            return {"kind": "committed", "key": range_.key, "segments": segments}
        case Cancelled():
            return {"kind": "cancelled", "why": range_.why}
        case Rewound():
            bounds = {"abandoned": [*map(list, range_.abandoned)], "restored": [*map(list, range_.restored)]}
            return {"kind": "rewound", "key": range_.key, **bounds}
