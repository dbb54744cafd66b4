"""Cursor files: the format of a durable read position, and functions that read one without its log.

The file `cursors/<name>.ckpt` is an envelope (see `formats.envelope`) around the MessagePack map `{version, position,
started, process_boot_ns, region_identity, log_identity, log_chain}`. Version 1 is the bare map of `position`,
`started`, `process_boot_ns` and `region_identity`; it is read, and rewritten as version 2 at the next commit.

If the log is on an object store, the map also has `log_record`: the first sequence of the record that contains the
position. Where the cursor itself is kept, and how one owner keeps another out, is described in `_cursor_slot`.
"""

from __future__ import annotations

import msgspec

from holdfast._validation import checked_bytes
from holdfast.errors import CursorCorrupt, UnsupportedVersion
from holdfast.formats import envelope
from holdfast.formats.decoding import Undecodable, from_msgpack

MAGIC = b"HFCURSOR"
VERSION = 2
FOLDER = "cursors"
SUFFIX = ".ckpt"
_U64_MAX = (1 << 64) - 1


class _CursorV1(msgspec.Struct, frozen=True):
    position: int
    started: bool
    process_boot_ns: int | None
    region_identity: str | None = None


class CursorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a cursor file. A version 1 file does not identify its log."""

    version: int = VERSION
    position: int
    started: bool
    process_boot_ns: int | None = None
    region_identity: str | None
    log_identity: str | None
    log_chain: bytes | None = None
    log_record: int | msgspec.UnsetType = msgspec.UNSET  # not stored unless the log needs it

    @property
    def record(self) -> int | None:
        """The first sequence of the record of the position, if it is stored."""
        return None if isinstance(self.log_record, msgspec.UnsetType) else self.log_record

    def to_bytes(self) -> bytes:
        """Encode as version 2."""
        return envelope.pack(MAGIC, VERSION, msgspec.msgpack.encode(msgspec.structs.replace(self, version=VERSION)))

    @classmethod
    def from_bytes(cls, data: bytes, name: str, where: str = "") -> CursorRecord:
        """Decode either version; `name` and the repository `where` identify the cursor in errors."""
        data = checked_bytes("cursor", data)
        file = "/".join([*([where] if where else []), FOLDER, f"{name}{SUFFIX}"])
        try:
            record = cls._v2(data, file) if data.startswith(MAGIC) else cls._v1(data)
        except (envelope.EnvelopeDamaged, Undecodable) as damage:
            raise CursorCorrupt(cursor=name, file=file, why=str(damage)) from damage
        if not 0 <= record.position <= _U64_MAX:
            why = f"position {record.position} does not fit 64 bits"
            raise CursorCorrupt(cursor=name, file=file, why=why)
        return record

    @classmethod
    def _v2(cls, data: bytes, file: str) -> CursorRecord:
        version, body = envelope.unpack(MAGIC, data)
        if version != VERSION:
            raise UnsupportedVersion(what=f"cursor file {file}", found=version, known="versions 1 and 2")
        return from_msgpack(body, cls)

    @classmethod
    def _v1(cls, data: bytes) -> CursorRecord:
        old = from_msgpack(data, _CursorV1)
        return cls(version=1, **msgspec.structs.asdict(old), log_identity=None)
