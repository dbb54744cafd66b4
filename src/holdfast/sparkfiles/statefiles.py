"""The files that make up one version of a state store, for each provider.

V is the version.

- HDFS-backed stores: the newest `S.snapshot` up to V, then `S+1.delta` to `V.delta`.
- RocksDB: the newest `S.zip` up to V, then the changelogs to V; of the folders `SSTs/` and `logs/`, exactly the files
  that the zip lists. In format 2 every name contains an id, and Spark's checksum file is beside it. The ids of V are in
  the commit of its batch; those of an earlier version are in the commit before, or in the header of the changelog of
  the next version.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

import msgspec

from holdfast.errors import UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.sparkfiles.folder import SparkFolder, files_below, files_in, folders_in
from holdfast.sparkfiles.lz4 import MAGIC, BadBlock, first_bytes
from holdfast.sparkfiles.records import CommitEntry, damaged, lines_of, record_of

VERSIONED = re.compile(r"(\d+)(?:_([0-9a-fA-F-]+))?\.(delta|snapshot|changelog|zip)")
_STATE = "state"
_DESCRIPTIONS = ("_metadata", "_stateSchema")
_DATA = frozenset(("SSTs", "logs"))  # folders of a store that its zips list
_CODEC = "spark.sql.streaming.stateStore.compression.codec"
_BESIDE_ZIP = re.compile(r"(?:SSTs|logs)/[^/\0]*[^/\0.][^/\0]*")  # a file in the folder, not a path out of it
_ZIP_DAMAGED = (zipfile.BadZipFile, zlib.error, KeyError, EOFError, OSError, ValueError, RuntimeError)


class Vanished(Exception):
    """A file no longer exists, or a state version is incomplete. A retry may find a newer version."""


class StateReader(Protocol):
    """Reads the files that name the versions of a store."""

    def commit(self, batch: int) -> bytes | None:
        """Return an entry of the commit log, or `None` if Spark has deleted it."""

    def changelog(self, path: str) -> bytes:
        """Return the bytes of a changelog."""

    def path_of(self, path: str) -> str:
        """Return the place of a file, for errors."""


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """One store of one partition of one operator, and the names in its folder."""

    path: str
    operator: str
    partition: int
    names: frozenset[str]

    @property
    def kind(self) -> str:
        """The provider: "hdfs" or "rocksdb"."""
        return "hdfs" if any(name.endswith((".delta", ".snapshot")) for name in self.names) else "rocksdb"

    def chain(self, version: int, names: VersionNames) -> list[str]:
        """Return the files that make up a version: the newest base up to it, and the changes since the base."""
        base, step = ("snapshot", "delta") if self.kind == "hdfs" else ("zip", "changelog")
        chosen: list[str] = []
        while version > 0:
            stem = names.stem(self, version, chosen[-1] if chosen else None)
            for suffix in (base, step):
                name = f"{stem}.{suffix}"
                if name in self.names:
                    chosen += [f"{name}.crc"] * (f"{name}.crc" in self.names) + [name]
                    break
            else:
                raise Vanished(f"{self.path}/{stem}.{step}")
            if chosen[-1].endswith(base):
                break
            version -= 1
        return chosen


class VersionNames:
    """The file names of versions: in format 1 the number of the version, in format 2 the number and an id."""

    def __init__(self, reader: StateReader, batch: int, commit: CommitEntry) -> None:
        self._reader = reader
        self._commits: dict[int, CommitEntry | None] = {batch + 1: commit}
        self._with_ids = bool(commit.ids)

    def stem(self, store: StoreFolder, version: int, above: str | None) -> str:
        """Return a version's name without its suffix; `above` is the file of the next version."""
        if not self._with_ids:
            return str(version)
        commit = self._commit(version)
        for each in commit.ids_of(store.operator, store.partition) if commit is not None else ():
            stem = f"{version}_{each}"
            if f"{stem}.changelog" in store.names or f"{stem}.zip" in store.names:
                return stem
        found = {name.partition(".")[0] for name in store.names if name.startswith(f"{version}_")}
        if (
            len(found) > 1 and above is not None
        ):  # failed attempts left files: only the lineage identifies the right one
            path = f"{store.path}/{above}"
            found &= set(_lineage(self._reader.changelog(path), version, self._reader.path_of(path)))
        if len(found) != 1:
            raise Vanished(f"{store.path}/{version}_*.changelog")
        return found.pop()

    def _commit(self, version: int) -> CommitEntry | None:
        if version not in self._commits:
            data = self._reader.commit(version - 1)
            where = self._reader.path_of(f"commits/{version - 1}")
            self._commits[version] = None if data is None else CommitEntry(data, where)
        return self._commits[version]


class _Version(msgspec.Struct):
    """One version of a store, in the header of a changelog."""

    version: int
    checkpointUniqueId: str  # noqa: N815 - Spark's name, as are the next ones


def _lineage(changelog: bytes, version: int, path: str) -> Iterator[str]:
    """Yield the name of a version from the header of a later changelog: its first record lists versions and ids."""
    try:
        if not changelog.startswith(MAGIC):
            raise UnsupportedVersion(what=f"Spark's changelog {path} with another {_CODEC}", found=0, known="lz4")
        text = first_bytes(changelog)
        at = 2 + struct.unpack_from(">H", text)[0]
        (length,) = struct.unpack_from(">H", text, at)
        found = from_json(text[at + 2 : at + 2 + length], list[_Version])
    except (struct.error, BadBlock, Undecodable) as error:
        raise damaged(path, str(error)) from error
    for each in found:
        if each.version == version:
            yield f"{version}_{each.checkpointUniqueId}"


class _SstFile(msgspec.Struct):
    dfsSstFileName: str  # noqa: N815
    sizeBytes: int | None = None  # noqa: N815


class _LogFile(msgspec.Struct):
    dfsLogFileName: str  # noqa: N815
    sizeBytes: int | None = None  # noqa: N815


class _Archive(msgspec.Struct):
    """The fields that are read from the metadata in a zip: the files beside it."""

    sstFiles: list[_SstFile] = []  # noqa: N815
    logFiles: list[_LogFile] = []  # noqa: N815


def listed_in_zip(data: bytes, path: str) -> Iterator[str]:
    """Yield the files beside a zip that its metadata lists."""
    yield from sizes_in_zip(data, path)


def sizes_in_zip(data: bytes, path: str) -> dict[str, int | None]:
    """Return the files beside a zip that its metadata lists, with their sizes as far as it has them."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            text = archive.read("metadata")
    except _ZIP_DAMAGED as error:
        raise damaged(path, f"it is not a zip file with its metadata: {error}") from error
    _, record, *_ = lines_of(text, path)
    found = record_of(record, _Archive, path)
    sizes = {f"SSTs/{each.dfsSstFileName}": each.sizeBytes for each in found.sstFiles}
    sizes |= {f"logs/{each.dfsLogFileName}": each.sizeBytes for each in found.logFiles}
    for name in sizes:
        if not _BESIDE_ZIP.fullmatch(name):
            raise damaged(path, f"it lists the invalid file name {name!r}")
    return sizes


def stores_in(folder: SparkFolder) -> Iterator[StoreFolder]:
    """Find every store: a folder of versions in `state/<operator>/<partition>`."""
    for operator in _folders(folder, _STATE):
        for partition in _folders(folder, f"{_STATE}/{operator}"):
            inside = f"{_STATE}/{operator}/{partition}"
            for path in (inside, *(f"{inside}/{name}" for name in _folders(folder, inside))):
                names = files_in(folder, path)
                if partition.isdecimal() and any(VERSIONED.fullmatch(name) for name in names):
                    yield StoreFolder(path, operator, int(partition), frozenset(names))


def descriptions_in(folder: SparkFolder) -> Iterator[str]:
    """Yield the files that describe the state: few, and required for every version."""
    for path in files_below(folder, _STATE, _DATA):
        if any(part in _DESCRIPTIONS for part in path.split("/")[:-1]):
            yield path


def _folders(folder: SparkFolder, path: str) -> list[str]:
    """Return the subfolders that belong to operators, partitions or stores."""
    return [name for name in folders_in(folder, path) if not name.startswith("_") and name not in _DATA]
