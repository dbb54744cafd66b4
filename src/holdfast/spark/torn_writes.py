"""Whether a file of Spark's log lost bytes with the power: Spark syncs none, so a name may outlive what it names.

Where Hadoop's checksum file can be read it tells; else the form does. What has another form than those known here is
taken for whole: whoever reads it will refuse it.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

_CHECKSUMS = struct.Struct(">4sI")  # what such a file begins with: a mark, and the bytes of each checksum
_MARK = b"crc\0"
_VERSION = re.compile(r"v\d{1,9}")
_BEGINS_JSON = ("{", "[", '"')
Form: TypeAlias = Callable[[str], bool]
"""Says whether a text is whole, by its form."""


def checksum_file(path: Path) -> Path:
    """Return the file that Hadoop keeps beside another one for its checksums."""
    return path.with_name(f".{path.name}.crc")


def is_torn(path: Path, is_whole: Form) -> bool:
    """Whether a file is not as it was written. One that is not there is torn if its checksums are."""
    if not path.exists():
        return checksum_file(path).exists()
    data = path.read_bytes()
    if not data.strip(b"\0"):
        return True
    agree = _sums_agree(data, checksum_file(path))
    return not (is_whole(data.decode("utf-8", "replace")) if agree is None else agree)


def _sums_agree(data: bytes, path: Path) -> bool | None:
    """Whether the checksums are those of the data; `None` where they cannot be read, which Hadoop ignores too."""
    sums = path.read_bytes() if path.exists() else b""
    if len(sums) < _CHECKSUMS.size:
        return None
    mark, size = _CHECKSUMS.unpack_from(sums)
    if mark != _MARK or not size:
        return None
    due = b"".join(struct.pack(">I", zlib.crc32(data[at : at + size])) for at in range(0, len(data), size))
    return due == sums[_CHECKSUMS.size :]


def is_offsets(text: str) -> bool:
    """Whether an entry of the offset log is whole: a version, a line about the batch, a line for each source."""
    version, *lines = text.split("\n")
    if version not in ("v1", "v2"):
        return _is_another_version(version)
    ends = [line if version == "v1" or line == "-" else line.partition(":")[2] for line in lines[1:]]
    return len(lines) > 1 and _is_record(lines[0]) and all(end and _may_be_json(end) for end in ends)


def is_commit(text: str) -> bool:
    """Whether an entry of the commit log is whole: a version and a record."""
    version, _, record = text.partition("\n")
    return _is_record(record) if version in ("v1", "v2", "v3") else _is_another_version(version)


def is_metadata(text: str) -> bool:
    """Whether the record of a query's id is whole."""
    return _is_record(text)


def is_source_entry(text: str) -> bool:
    """Whether an entry of a source's log may be whole; each kind of source has its own form."""
    return all(map(_may_be_json, text.split("\n")))


def _is_another_version(line: str) -> bool:
    return _VERSION.fullmatch(line) is not None


def _is_record(line: str) -> bool:
    return isinstance(_parsed(line), dict)


def _may_be_json(line: str) -> bool:
    return not line.startswith(_BEGINS_JSON) or _parsed(line) is not None


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
