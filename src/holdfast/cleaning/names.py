"""What a file in Spark's checkpoint folder is, by its path. A file of another kind is never deleted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

_STORE = r"(state/[^/_.][^/]*/\d+(?:/[^/_.][^/]*)?)"
_VERSION = re.compile(rf"{_STORE}/(\d{{1,18}})(?:_[0-9a-fA-F-]+)?\.(zip|changelog)(\.crc)?")
_BESIDE = re.compile(rf"{_STORE}/(?:SSTs|logs)/[^/]+")
_LOG = re.compile(r"(?:offsets|commits)/(\d{1,18})")
_SOURCE = re.compile(r"(sources/[^/]+)/(\d{1,18})(\.compact)?")


@dataclass(frozen=True, slots=True)
class StateVersion:
    """A snapshot or a changelog of one version of a state store, or the checksum of one."""

    store: str
    version: int
    is_snapshot: bool


@dataclass(frozen=True, slots=True)
class SharedFile:
    """An SST or log file of RocksDB: every snapshot of the store may list it."""

    store: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the offset log or the commit log."""

    batch: int


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An entry of the log of a source."""

    source: str
    number: int
    is_compact: bool


SparkFileKind: TypeAlias = StateVersion | SharedFile | LogEntry | SourceEntry


def kind_of(path: str) -> SparkFileKind | None:
    """Return what a file is; `None` for files that Spark always needs, and for files of unknown kinds."""
    if found := _VERSION.fullmatch(path):
        return StateVersion(found[1], int(found[2]), found[3] == "zip" and not found[4])
    if found := _BESIDE.fullmatch(path):
        return SharedFile(found[1])
    if found := _LOG.fullmatch(path):
        return LogEntry(int(found[1]))
    if found := _SOURCE.fullmatch(path):
        return SourceEntry(found[1], int(found[2]), found[3] is not None)
    return None


def store_of(path: str) -> str:
    """Return the folder of the state store that a snapshot, a changelog or a file beside one belongs to; else ""."""
    kind = kind_of(path)
    return kind.store if isinstance(kind, StateVersion | SharedFile) else ""
