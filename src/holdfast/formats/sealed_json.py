"""JSON that contains a digest of its own exact bytes.

A sealed text begins with its digest, `{"digest": "<64 hex>", …`. The digest is the SHA-256 of the whole text with those
64 characters written as zeros, so a changed bit is detected anywhere, even in a key or in white space. There are two
layouts: indented for files that people open, and one line for records in a list. Reformatting a text breaks its digest.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from holdfast.errors import BadValue, RecordCorrupt, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json

_DEPTH = 32
_LENGTH = 64
_ZEROS = b"0" * _LENGTH
_OPENING = re.compile(rb'\{(?:\n  )?"digest": ?"')
_DIGEST = re.compile(rb"[0-9a-f]{64}")

R = TypeVar("R", bound="Record")


class SealBroken(Exception):
    """The digest is wrong or missing. Callers translate this into the error for their kind of record."""


def seal(fields: Mapping[str, Any], *, one_line: bool = False) -> bytes:
    """Return `fields` as sealed JSON: the digest, then the fields in their order."""
    if "digest" in fields:
        raise BadValue(what="field", value="digest", why="the name is reserved for the digest of the text")
    raw = msgspec.json.encode({"digest": _ZEROS.decode(), **fields})
    text = raw if one_line else msgspec.json.format(raw, indent=2) + b"\n"
    start = text.index(_ZEROS)  # the first field's value
    return text[:start] + hashlib.sha256(text).hexdigest().encode() + text[start + _LENGTH :]


def is_sealed(data: bytes) -> bool:
    """Whether the text begins like a sealed one. The digest is not checked."""
    return _OPENING.match(data) is not None


def digest_of(data: bytes) -> str:
    """Check the seal and return the digest, or raise `SealBroken`."""
    opening = _OPENING.match(data)
    if opening is None:
        raise SealBroken("it does not begin with a digest")
    start = opening.end()
    digest = data[start : start + _LENGTH]
    if not _DIGEST.fullmatch(digest):
        raise SealBroken("its digest is not 64 hex characters")
    body = data[:start] + _ZEROS + data[start + _LENGTH :]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise SealBroken("its digest does not match its bytes")
    return digest.decode()


def plain(value: object) -> dict[str, Any]:
    """Return a record or dataclass as a JSON-serialisable dict."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return found


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A small sealed record of the repository. Subclasses add their fields, and the versions that they can read."""

    KNOWN: ClassVar[tuple[int, ...]] = (1,)  # the versions that this program reads
    version: int = 1  # the version of the record's format

    def sealed(self, *, one_line: bool = False) -> bytes:
        """Return the record as sealed JSON, or raise `BadValue` if it could not be read back."""
        _require_plain(self)
        try:
            data = seal(msgspec.structs.asdict(self), one_line=one_line)
            msgspec.json.decode(data, type=type(self))
        except (TypeError, UnicodeError, msgspec.MsgspecError, RecursionError) as error:
            raise BadValue(what="record", value=type(self).__name__, why=str(error)) from error
        return data

    @classmethod
    def unsealed(cls: type[R], data: bytes, key: str) -> R:
        """Check and decode a record; `key` identifies it in errors."""
        try:
            digest_of(data)
            found = from_json(data, _Versioned).version
            if found not in cls.KNOWN:
                versions = "version 1" if cls.KNOWN == (1,) else f"versions {' and '.join(map(str, cls.KNOWN))}"
                raise UnsupportedVersion(what=f"record {key!r}", found=found, known=versions)
            return from_json(data, cls)
        except (SealBroken, Undecodable) as broken:
            raise RecordCorrupt(key=key, why=str(broken)) from broken


def _require_plain(value: object, depth: int = 0) -> None:
    """Reject values that JSON would change: bytes, keys that are not text, infinity and NaN."""
    if depth > _DEPTH:
        raise BadValue(what="record", value="…", why=f"it is nested more than {_DEPTH} levels deep")
    match value:
        case None | bool() | int() | str():
            return
        case float() if math.isfinite(value):
            return
        case list():
            for each in value:
                _require_plain(each, depth + 1)
        case dict() if all(isinstance(key, str) for key in value):
            for each in value.values():
                _require_plain(each, depth + 1)
        case msgspec.Struct():
            for each in msgspec.structs.asdict(value).values():
                _require_plain(each, depth + 1)
        case _:
            raise BadValue(what="value in a record", value=value, expected="a value that JSON can represent")


class _Versioned(msgspec.Struct):
    version: int
