"""Checkpoint state: the state of one stream at one sequence, and its encoding.

Version 1 is the layout of the system that preceded Holdfast, read and written exactly. All integers are little-endian:

    u64 sequence, u64 watermark_ns, u64 event_count,
    u32 operators, then for each: u32 length, UTF-8 name, u32 length, state
    u32 sources,   then for each: u32 length, UTF-8 name, u64 offset

Version 2 is an envelope (see `envelope`) whose body is

    u32 length, UTF-8 stream id; u64 created_at; a version 1 record; u32 entries, then for each: two strings of metadata

Rules:
- Names are written sorted by their bytes and read in any order; a duplicate name is an error.
- Every byte is accounted for: truncation and trailing bytes are errors that contain the offset.
- Equal values have equal encodings.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast._validation import checked_bytes, checked_type, checked_u64
from holdfast.errors import BadValue, StateCorrupt, StateMismatch, UnsupportedVersion
from holdfast.formats import envelope

MAGIC = b"HFSTATE\n"
VERSION = 2
V = TypeVar("V")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_U32_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """The identity of a state; ordered by stream, then sequence, then creation time."""

    stream_id: str  # the name of its stream
    sequence: int  # of the last event that it includes
    created_at: int = 0  # nanoseconds since 1970; 0: unknown

    def __post_init__(self) -> None:
        if not isinstance(self.stream_id, str):
            raise BadValue(what="stream id", value=self.stream_id, expected="a str")
        checked_u64("sequence", self.sequence)
        checked_u64("created_at", self.created_at)


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The whole state of one stream at one sequence.

    The offset of a Spark source is JSON and does not fit into a u64: it is stored verbatim in the metadata.
    """

    id: CheckpointId
    operator_states: Mapping[str, bytes] = field(default_factory=dict)  # by operator
    source_offsets: Mapping[str, int] = field(default_factory=dict)  # by source
    watermark_ns: int = 0  # no older event is expected
    event_count: int = 0  # how many events it includes
    metadata: Mapping[str, str] = field(default_factory=dict)  # additional key-value pairs

    def __post_init__(self) -> None:
        checked_type("checkpoint id", self.id, CheckpointId)
        checked_u64("watermark_ns", self.watermark_ns)
        checked_u64("event_count", self.event_count)
        for name, state in self.operator_states.items():
            checked_type(f"state of operator {name!r}", state, bytes)
        for name, value in self.metadata.items():
            checked_type(f"metadata {name!r}", value, str)
        for name, offset in self.source_offsets.items():
            checked_u64(f"offset of source {name!r}", offset)

    def to_bytes(self) -> bytes:
        """Encode as version 2."""
        writer = _Writer()
        writer.text(self.id.stream_id)
        writer.u64(self.id.created_at)
        self._write_v1(writer)
        writer.count(len(self.metadata))
        for name, value in _sorted_by_bytes(self.metadata):
            writer.text(name)
            writer.text(value)
        return envelope.pack(MAGIC, VERSION, writer.bytes())

    def to_v1_bytes(self) -> bytes:
        """Encode as version 1, which drops stream id, creation time and metadata."""
        writer = _Writer()
        self._write_v1(writer)
        return writer.bytes()

    def _write_v1(self, writer: _Writer) -> None:
        writer.u64(self.id.sequence)
        writer.u64(self.watermark_ns)
        writer.u64(self.event_count)
        writer.count(len(self.operator_states))
        for name, state in _sorted_by_bytes(self.operator_states):
            writer.text(name)
            writer.blob(state)
        writer.count(len(self.source_offsets))
        for name, offset in _sorted_by_bytes(self.source_offsets):
            writer.text(name)
            writer.u64(offset)

    @classmethod
    def from_bytes(cls, data: bytes, stream_id: str | None = None) -> CheckpointState:
        """Decode either version.

        Version 1 does not contain the stream id, so the caller must pass it. If it is passed for version 2, the id in
        the file must be the same.
        """
        data = checked_bytes("checkpoint state", data)
        if data[:8] != MAGIC:
            if stream_id is None:
                raise StateCorrupt(offset=0, why="no magic; a version 1 state can be read only with a stream id")
            return cls.from_v1_bytes(data, stream_id)
        try:
            version, body = envelope.unpack(MAGIC, data)
        except envelope.EnvelopeDamaged as damage:
            raise StateCorrupt(offset=damage.offset, why=str(damage)) from damage
        if version != VERSION:
            raise UnsupportedVersion(what="checkpoint state", found=version, known="versions 1 and 2")
        reader = _Reader(body)
        found = reader.text("stream id")
        if stream_id is not None and found != stream_id:
            raise StateMismatch(found=found, asked=stream_id)
        created_at = reader.u64("creation time")
        values = _read_v1(reader)
        metadata: dict[str, str] = {}
        for _ in range(reader.u32("count of metadata")):
            name = reader.new_name("metadata", metadata)
            metadata[name] = reader.text(f"metadata {name!r}")
        reader.end()
        return values.as_state(found, created_at, metadata)

    @classmethod
    def from_v1_bytes(cls, data: bytes, stream_id: str) -> CheckpointState:
        """Decode version 1; the creation time is unknown and becomes 0."""
        reader = _Reader(checked_bytes("checkpoint state", data))
        values = _read_v1(reader)
        reader.end()
        return values.as_state(stream_id, 0, {})


@dataclass(frozen=True, slots=True)
class _StateV1:
    sequence: int
    watermark_ns: int
    event_count: int
    operators: dict[str, bytes]
    sources: dict[str, int]

    def as_state(self, stream_id: str, created_at: int, metadata: dict[str, str]) -> CheckpointState:
        return CheckpointState(
            id=CheckpointId(stream_id, self.sequence, created_at),
            operator_states=self.operators,
            source_offsets=self.sources,
            watermark_ns=self.watermark_ns,
            event_count=self.event_count,
            metadata=metadata,
        )


def _read_v1(reader: _Reader) -> _StateV1:
    sequence = reader.u64("sequence")
    watermark_ns = reader.u64("watermark")
    event_count = reader.u64("event count")
    operators: dict[str, bytes] = {}
    for _ in range(reader.u32("count of operators")):
        name = reader.new_name("operator", operators)
        operators[name] = reader.blob(f"state of operator {name!r}")
    sources: dict[str, int] = {}
    for _ in range(reader.u32("count of sources")):
        name = reader.new_name("source", sources)
        sources[name] = reader.u64(f"offset of source {name!r}")
    return _StateV1(sequence, watermark_ns, event_count, operators, sources)


def _sorted_by_bytes(named: Mapping[str, V]) -> list[tuple[str, V]]:
    return sorted(named.items(), key=lambda item: _utf8(item[0]))


def _utf8(text: str) -> bytes:
    checked_type("name", text, str)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadValue(what="text", value=text, why="it cannot be written as UTF-8") from error


class _Writer:
    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def u64(self, value: int) -> None:
        self._parts.append(_U64.pack(value))

    def count(self, value: int) -> None:
        if value > _U32_MAX:
            raise BadValue(what="length", value=value, expected=f"at most {_U32_MAX}, the limit of the format")
        self._parts.append(_U32.pack(value))

    def text(self, text: str) -> None:
        self.blob(_utf8(text))

    def blob(self, data: bytes) -> None:
        self.count(len(data))
        self._parts.append(data)

    def bytes(self) -> bytes:
        return b"".join(self._parts)


class _Reader:
    """Reads fields one after another and tracks the byte offset."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def u32(self, what: str) -> int:
        value: int = _U32.unpack(self._take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack(self._take(8, what))[0]
        return value

    def blob(self, what: str) -> bytes:
        return self._take(self.u32(f"length of {what}"), what)

    def text(self, what: str) -> str:
        start = self._at
        try:
            return self.blob(what).decode()
        except UnicodeDecodeError as error:
            raise StateCorrupt(offset=start + 4 + error.start, why=f"{what} is not UTF-8") from error

    def new_name(self, what: str, taken: Mapping[str, object]) -> str:
        start = self._at
        name = self.text(f"name of {what}")
        if name in taken:
            raise StateCorrupt(offset=start, why=f"duplicate {what} {name!r}")
        return name

    def end(self) -> None:
        if self._at != len(self._data):
            raise StateCorrupt(offset=self._at, why=f"{len(self._data) - self._at} bytes after the end")

    def _take(self, length: int, what: str) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise StateCorrupt(
                offset=self._at,
                why=f"{what} needs {length} bytes, but {len(self._data) - self._at} are left",
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken
