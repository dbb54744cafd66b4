"""Entries of Spark's offset log and commit log, as far as they are read here."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from holdfast.errors import SparkFileDamaged, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json

T = TypeVar("T")
_Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Batch(msgspec.Struct):
    """The fields that are read from a batch in the offset log."""

    batchWatermarkMs: _Long = 0  # noqa: N815 - Spark's name, as is the next one
    batchTimestampMs: _Long = 0  # noqa: N815
    conf: dict[str, Any] = {}


class _States(msgspec.Struct):
    """The fields that are read from a batch in the commit log."""

    stateUniqueIds: dict[str, list[list[str]]] | None = None  # noqa: N815 - Spark's name


class OffsetEntry:
    """An entry of the offset log."""

    def __init__(self, data: bytes, path: str) -> None:
        version, record, *ends = lines_of(data, path)
        _require_version("offset log", path, version, ("v1", "v2"))
        batch = record_of(record, _Batch, path)
        self.version = version
        self.watermark_ms, self.begun_at_ms = batch.batchWatermarkMs, batch.batchTimestampMs
        self.confs: dict[str, str] = {k: str(v) for k, v in batch.conf.items()}
        self.ends = [None if line == "-" else line for line in ends]


class CommitEntry:
    """An entry of the commit log: in format 2, the ids of the state versions, by operator and partition."""

    def __init__(self, data: bytes, path: str) -> None:
        version, record, *_ = lines_of(data, path)
        _require_version("commit log", path, version, ("v1", "v2", "v3"))
        self.version = version
        self.ids = record_of(record, _States, path).stateUniqueIds or {}

    def ids_of(self, operator: str, partition: int) -> list[str]:
        """Return the ids of one partition's stores; empty if the entry has none."""
        partitions = self.ids.get(operator, [])
        return partitions[partition] if partition < len(partitions) else []


def lines_of(data: bytes, path: str) -> list[str]:
    """Return the lines of one of Spark's files: at least two, the version and a record."""
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise damaged(path, str(error)) from error
    return lines if len(lines) > 1 else [*lines, ""]


def record_of(text: str, kind: type[T], path: str) -> T:
    """Return a record from its JSON text."""
    try:
        return from_json(text.encode(), kind)
    except Undecodable as error:
        raise damaged(path, str(error)) from error


def damaged(path: str, why: str) -> SparkFileDamaged:
    """Return the error for a damaged file in `streams/<stream>/spark`."""
    stream = next((above.name for above in PurePath(path).parents if above.parent.name == "streams"), "")
    return SparkFileDamaged(stream=stream, path=path, why=why)


def _require_version(what: str, path: str, found: str, known: tuple[str, ...]) -> None:
    if found not in known:
        number = int(found[1:]) if re.fullmatch(r"v\d{1,9}", found) else 0
        raise UnsupportedVersion(what=f"Spark's {what} {path}", found=number, known=" and ".join(known))
