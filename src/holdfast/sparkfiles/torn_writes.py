"""Detection of torn files in Spark's logs: Spark does not fsync, so after a power loss a file may lack its bytes.

If Hadoop's checksum file can be read, it decides; otherwise the form of the content does. A file of a form that is not
known here counts as complete: its reader will refuse it.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

_CHECKSUMS = struct.Struct(">4sI")  # the header of a checksum file: a magic number, and the bytes per checksum
_MARK = b"crc\0"
_VERSION = re.compile(r"v\d{1,9}")
_BEGINS_JSON = ("{", "[", '"')
Form: TypeAlias = Callable[[str], bool]
"""Returns whether a text is complete, by its form."""


def checksum_file(path: Path) -> Path:
    """Return the path of Hadoop's checksum file for a file."""
    return path.with_name(f".{path.name}.crc")


def is_torn(path: Path, is_whole: Form) -> bool:
    """Whether a file is not as it was written. A missing file is torn if its checksum file exists."""
    if not path.exists():
        return checksum_file(path).exists()
    data = path.read_bytes()
    if not data.strip(b"\0"):
        return True
    sums = checksum_file(path)
    agree = sums_agree(data, sums.read_bytes() if sums.exists() else b"")
    return not (is_whole(data.decode("utf-8", "replace")) if agree is None else agree)


def sums_agree(data: bytes, sums: bytes) -> bool | None:
    """Whether the bytes of a checksum file match the data; `None` if they cannot be read, which Hadoop ignores too."""
    size = _bytes_per_sum(sums)
    if size is None:
        return None
    expected = b"".join(struct.pack(">I", zlib.crc32(data[at : at + size])) for at in range(0, len(data), size))
    return expected == sums[_CHECKSUMS.size :]


def sums_fit(length: int, sums: bytes) -> bool | None:
    """Whether a checksum file has as many checksums as a file of this length needs; `None` if it cannot be read."""
    size = _bytes_per_sum(sums)
    return None if size is None else len(sums) == _CHECKSUMS.size + 4 * -(-length // size)


def _bytes_per_sum(sums: bytes) -> int | None:
    if len(sums) < _CHECKSUMS.size:
        return None
    mark, size = _CHECKSUMS.unpack_from(sums)
    return size if mark == _MARK and size else None


def is_offsets(text: str) -> bool:
    """Whether an entry of the offset log is complete: a version, a line about the batch, a line for each source."""
    version, *lines = text.split("\n")
    if version not in ("v1", "v2"):
        return _is_another_version(version)
    ends = [line if version == "v1" or line == "-" else line.partition(":")[2] for line in lines[1:]]
    return len(lines) > 1 and _is_record(lines[0]) and all(end and _may_be_json(end) for end in ends)


def is_commit(text: str) -> bool:
    """Whether an entry of the commit log is complete: a version and a record."""
    version, _, record = text.partition("\n")
    return _is_record(record) if version in ("v1", "v2", "v3") else _is_another_version(version)


def is_metadata(text: str) -> bool:
    """Whether the record of a query's id is complete."""
    return _is_record(text)


def is_source_entry(text: str) -> bool:
    """Whether an entry of a source's log may be complete; each kind of source has its own form."""
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
