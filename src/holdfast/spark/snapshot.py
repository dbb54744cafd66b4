"""The snapshot of one stream at one epoch: exactly the files that Spark needs to start there, kept by their digests.

Spark's files of a committed batch never change, and stay for as many batches as it retains; so they are linked from the
live folder while the query runs on, and everything is read from what was linked, never from the live folder. All are
linked first, into `.pinned/` beside it, which is quick; then they are read, digested and kept, a part at a time.

What is taken for batch N, V = N + 1 being its state's version; hidden files never:
- `metadata`, `offsets/N-1`, `offsets/N`, `commits/N`; everything in `_metadata` and `_stateSchema` folders.
- Of a file source, L being its log offset in `offsets/N`: the newest `k.compact` up to L, then k+1 to L.
- Of state on HDFS-backed stores: the newest `S.snapshot` up to V, then `S+1.delta` to `V.delta`.
- Of RocksDB: the newest `S.zip` up to V, then the changelogs to V; of a zip exactly the `SSTs/` and `logs/` files that
  it lists. In format 2 every name carries an id, and Spark's checksum file stands beside it: the ids of V are in
  `commits/N`; those of a version below are in the commit before, or in the header of the changelog above.

Not promised: a snapshot of a batch that Spark is about to forget. What vanishes is looked for anew, then it fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import uuid
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.errors import NotFound, SparkFileDamaged, StorageFailed, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.repository import CheckpointPlace, Held, HeldFile, Repository
from holdfast.repository.files import failing_as, link_or_copy
from holdfast.spark.sparklog import log_offset

PINS = ".pinned"
_TRIES = 3
_PART = 1 << 26  # bytes that are read at a time
_VERSIONED = re.compile(r"(\d+)(?:_([0-9a-fA-F-]+))?\.(delta|snapshot|changelog|zip)")
_WHOLE = ("_metadata", "_stateSchema")
_CODEC = "spark.sql.streaming.stateStore.compression.codec"
_COMPACT = re.compile(r"(\d+)\.compact")
_BESIDE = re.compile(r"(?:SSTs|logs)/[^/\0]*[^/\0.][^/\0]*")  # a file in the folder, not a path out of it
_STORED = 0x10  # the method of a block that is not compressed
_BLOCK_MOST = 1 << 25  # lz4-java makes no larger block
_ZIP_DAMAGED = (zipfile.BadZipFile, zlib.error, KeyError, EOFError, OSError, ValueError, RuntimeError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SparkCut:
    """What was kept of one stream: the files, and what Spark's offset log says of itself."""

    batch: int
    files: tuple[HeldFile, ...]
    confs: dict[str, str]
    state_format: str | None
    new_files: int
    new_bytes: int


class Vanished(Exception):
    """A file was there and is not any more, or not all of a version is there. Looking anew may help."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What Spark's records say of a batch."""

    batch: int
    confs: dict[str, str]
    state_format: str | None


@dataclass(frozen=True, slots=True)
class _Link:
    """A link to a file of Spark's, and how to tell that file again."""

    path: Path
    identity: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Known:
    """A file that is kept already, and how to tell that it is the same."""

    identity: tuple[int, int, int]
    held: Held


class Snapshots:
    """Takes snapshots of one stream. It remembers what it has kept, so each costs new files only."""

    def __init__(self, folder: Path, repository: Repository) -> None:
        self._folder = folder
        self._repository = repository
        self._known: dict[str, _Known] = {}
        self._last: SparkCut | None = None

    @property
    def kept(self) -> Iterator[str]:
        """The keys of what was kept and would not have to be read again, also for a checkpoint that failed since."""
        return (known.held.key for known in self._known.values())

    def pin(self, batch: int, place: CheckpointPlace, *, copy: bool = False) -> Pinned:
        """Link what Spark needs to start after a batch that it has committed: from then on it may delete it."""
        if self._last is not None and self._last.batch == batch and not copy and self._all_there(self._last, place):
            return Pinned(self._folder, self._repository, place, {}, self._last)
        why = ""
        for _ in range(_TRIES):
            pinned = Pinned(self._folder, self._repository, place, {} if copy else self._known, copy=copy)
            try:
                pinned.facts = self._pin(batch, pinned)
            except (Vanished, NotFound) as gone:
                pinned.release()
                why = gone.key if isinstance(gone, NotFound) else str(gone)
            except BaseException:
                pinned.release()
                raise
            else:
                if not copy:
                    self._known = {path: known for path, known in self._known.items() if path in pinned.have}
                return pinned
        self._known = {path: known for path, known in self._known.items() if (self._folder / path).exists()}
        why = f"{why} is not there any more: Spark has gone on for more batches than it retains, or it was removed"
        raise StorageFailed(action=f"keep batch {batch} of", key=str(self._folder), why=why)

    def keep(self, pinned: Pinned) -> SparkCut | None:
        """Keep a part of what is pinned, durably; return the cut once all is kept."""
        if pinned.cut is not None:
            return pinned.cut
        known = pinned.keep_part()
        if not pinned.copy:
            self._known |= known
        if pinned.left:
            return None
        pinned.cut = pinned.finished()
        if not pinned.copy:
            self._last = pinned.cut
        return pinned.cut

    def release_all(self) -> None:
        """Remove the pins of drivers that have died."""
        shutil.rmtree(self._folder.with_name(PINS), ignore_errors=True)

    def _pin(self, batch: int, pinned: Pinned) -> _Facts:
        logs = [f"offsets/{each}" for each in (batch - 1, batch) if each >= 0] + [f"commits/{batch}"]
        pinned.link(["metadata", *logs])
        offsets = _Offsets(pinned.read(f"offsets/{batch}"), self._folder / f"offsets/{batch}")
        commit = _Commit(pinned.read(f"commits/{batch}"), self._folder / f"commits/{batch}")
        stores = list(self._stores())
        ids = _Ids(pinned, batch, commit)
        chains = {store: store.chain(batch + 1, ids) for store in stores}
        chosen = [f"{store.path}/{name}" for store, names in chains.items() for name in names]
        zips = [path for path in chosen if path.endswith(".zip")]
        pinned.link(zips)
        inside = [
            f"{path.rpartition('/')[0]}/{name}"
            for path in zips
            for name in _listed(pinned.read(path), self._folder / path)
        ]
        pinned.link([*chosen, *inside, *self._sources(offsets), *self._whole()])
        formats = {f"{store.kind}-{2 if commit.ids else 1}" for store in stores}
        return _Facts(batch, offsets.confs, ", ".join(sorted(formats)) or None)

    def _all_there(self, cut: SparkCut, place: CheckpointPlace) -> bool:
        return None not in self._repository.sizes(place.object(each.sha256) for each in cut.files).values()

    # --- what there is ---

    def _stores(self) -> Iterator[_Store]:
        """Find every store: a folder of versions below `state/<operator>/<partition>`."""
        for operator in _folders(self._folder / "state"):
            for partition in _folders(operator):
                for folder in (partition, *_folders(partition)):
                    names = _names(folder)
                    if partition.name.isdecimal() and any(_VERSIONED.fullmatch(name) for name in names):
                        path = folder.relative_to(self._folder).as_posix()
                        yield _Store(path, operator.name, int(partition.name), frozenset(names))

    def _whole(self) -> Iterator[str]:
        """Give the files that describe the state: few, and needed whatever the version."""
        for top, folders, names in os.walk(self._folder / "state"):
            inside = Path(top).relative_to(self._folder)
            if any(part in _WHOLE for part in inside.parts):
                yield from (f"{inside.as_posix()}/{name}" for name in names if not name.startswith("."))
            folders[:] = [each for each in folders if each not in ("SSTs", "logs")]

    def _sources(self, offsets: _Offsets) -> Iterator[str]:
        """Give the entries of the sources' logs up to the offsets; of a source that keeps none, whatever it keeps."""
        for number, offset in enumerate(offsets.ends):
            folder = self._folder / "sources" / str(number)
            names = frozenset(_names(folder))
            last = log_offset(offset)
            chosen = sorted(names) if last is None else _entries_up_to(last, names)
            for name in chosen:
                if name not in names:
                    raise Vanished(f"sources/{number}/{name}")  # before a damaged offset requests countless others
                yield f"sources/{number}/{name}"


class Pinned:
    """The files of one cut: those that are kept already, and links of ours to the others, until they are kept too."""

    def __init__(
        self,
        folder: Path,
        repository: Repository,
        place: CheckpointPlace,
        known: Mapping[str, _Known],
        cut: SparkCut | None = None,
        *,
        copy: bool = False,
    ) -> None:
        self.copy = copy
        self.cut = cut  # once all is kept
        self.facts = _Facts(0, {}, None)
        self.have: dict[str, Held] = {}
        self.left: dict[str, _Link] = {}
        self._new: list[Held] = []
        self._folder = folder
        self._repository = repository
        self._place = place
        self._known = known
        self._links = folder.with_name(PINS) / uuid.uuid4().hex

    def link(self, paths: Iterable[str]) -> None:
        """Link files that are neither linked nor kept yet."""
        wanted = [path for path in dict.fromkeys(paths) if path not in self.have and path not in self.left]
        found = {path: self._identity(path) for path in wanted}
        have = {
            path: known.held for path in wanted if (known := self._known.get(path)) and known.identity == found[path]
        }
        there = self._repository.sizes(held.key for held in have.values())
        self.have |= {path: held for path, held in have.items() if there[held.key] == held.size}
        for path in wanted:
            if path not in self.have:
                self.left[path] = _Link(self._linked(path), found[path])

    def _linked(self, path: str) -> Path:
        link = self._links / str(len(self.left))
        with failing_as("pin", path):
            self._links.mkdir(parents=True, exist_ok=True)
            try:
                link_or_copy(self._folder / path, link)
            except (FileNotFoundError, NotADirectoryError):
                raise Vanished(path) from None
        return link

    def read(self, path: str) -> bytes:
        """Read a file from what was linked or kept."""
        if path in self.have:
            return self._repository.read(self.have[path].key)
        with failing_as("read", path):
            return self.left[path].path.read_bytes()

    def place_of(self, path: str) -> Path:
        """Return the path of a file of Spark's, for errors."""
        return self._folder / path

    def commit(self, batch: int) -> bytes | None:
        """Return an older commit of Spark's, where it is still there; it is not kept."""
        path = self._folder / "commits" / str(batch)
        with failing_as("read", str(path)):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def changelog(self, path: str) -> bytes:
        """Return a changelog's bytes from where it is linked or kept."""
        self.link([path])
        return self.read(path)

    def keep_part(self) -> dict[str, _Known]:
        """Keep some of what is left, durably; return what is known of it now."""
        part = self._part()
        held = self._repository.hold_all([link.path for link in part.values()], self._place.objects, copy=self.copy)
        now = dict(zip(part, held, strict=True))
        self.have |= now
        self._new += held
        for path in part:
            del self.left[path]
        return {path: _Known(part[path].identity, now[path]) for path in part}

    def _part(self) -> dict[str, _Link]:
        part: dict[str, _Link] = {}
        size = 0
        for path, link in self.left.items():
            if size >= _PART:
                break
            part[path] = link
            size += link.identity[1]
        return part

    def finished(self) -> SparkCut:
        """Return the cut, now that all is kept."""
        return SparkCut(
            self.facts.batch,
            tuple(HeldFile(path, held.size, held.sha256) for path, held in sorted(self.have.items())),
            self.facts.confs,
            self.facts.state_format,
            len(self._new),
            sum(held.size for held in self._new),
        )

    def release(self) -> None:
        """Remove the links; harmless when done twice."""
        shutil.rmtree(self._links, ignore_errors=True)
        with contextlib.suppress(OSError):  # others have links there
            self._links.parent.rmdir()

    def _identity(self, path: str) -> tuple[int, int, int]:
        with failing_as("look at", path):
            try:
                found = (self._folder / path).stat()
            except (FileNotFoundError, NotADirectoryError):
                raise Vanished(path) from None
        return found.st_ino, found.st_size, found.st_mtime_ns


# --- the chain of versions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Store:
    """One store of one partition of one operator, and the names in its folder."""

    path: str
    operator: str
    partition: int
    names: frozenset[str]

    @property
    def kind(self) -> str:
        return "hdfs" if any(name.endswith((".delta", ".snapshot")) for name in self.names) else "rocksdb"

    def chain(self, version: int, ids: _Ids) -> list[str]:
        """Return the files that make up a version: the newest base up to it, and what follows the base."""
        base, step = ("snapshot", "delta") if self.kind == "hdfs" else ("zip", "changelog")
        chosen: list[str] = []
        while version > 0:
            stem = ids.stem(self, version, chosen[-1] if chosen else None)
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


class _Ids:
    """Tells the name of a version. In format 1 that is its number; in format 2 an id is added."""

    def __init__(self, pinned: Pinned, batch: int, commit: _Commit) -> None:
        self._pinned = pinned
        self._commits: dict[int, _Commit | None] = {batch + 1: commit}
        self._with_ids = bool(commit.ids)

    def stem(self, store: _Store, version: int, above: str | None) -> str:
        """Return a version's name without its suffix; `above` is the file of the version after it."""
        if not self._with_ids:
            return str(version)
        commit = self._commit(version)
        for each in commit.ids_of(store) if commit is not None else ():
            stem = f"{version}_{each}"
            if f"{stem}.changelog" in store.names or f"{stem}.zip" in store.names:
                return stem
        found = {name.partition(".")[0] for name in store.names if name.startswith(f"{version}_")}
        if len(found) > 1 and above is not None:  # tries that failed left theirs: only the lineage tells
            path = f"{store.path}/{above}"
            found &= set(_lineage(self._pinned.changelog(path), version, self._pinned.place_of(path)))
        if len(found) != 1:
            raise Vanished(f"{store.path}/{version}_*.changelog")
        return found.pop()

    def _commit(self, version: int) -> _Commit | None:
        if version not in self._commits:
            data = self._pinned.commit(version - 1)
            where = self._pinned.place_of(f"commits/{version - 1}")
            self._commits[version] = None if data is None else _Commit(data, where)
        return self._commits[version]


def _lineage(changelog: bytes, version: int, path: Path) -> Iterator[str]:
    """Give the name of a version as the header of a changelog after it tells it.

    The file is a series of LZ4 blocks as lz4-java frames them; its first record is the list of versions and ids.
    """
    import pyarrow as pa  # noqa: PLC0415 - needed where a failed try left its files, and nowhere else

    try:
        magic, method, packed, size, _ = struct.unpack_from("<8sBIII", changelog)
        if magic != b"LZ4Block":
            raise UnsupportedVersion(what=f"Spark's changelog {path} with another {_CODEC}", found=0, known="lz4")
        block = changelog[21 : 21 + packed]
        if method & 0xF0 == _STORED:
            text = block
        elif size <= _BLOCK_MOST:
            text = pa.Codec("lz4_raw").decompress(block, size, asbytes=True)
        else:
            raise _damaged(path, f"its header gives {size} bytes for the first block")
        at = 2 + struct.unpack_from(">H", text)[0]
        (length,) = struct.unpack_from(">H", text, at)
        found = from_json(text[at + 2 : at + 2 + length], list[_Version])
    except (struct.error, OSError, pa.ArrowException, Undecodable) as error:
        raise _damaged(path, str(error)) from error
    for each in found:
        if each.version == version:
            yield f"{version}_{each.checkpointUniqueId}"


# --- Spark's own records ---------------------------------------------------------------------------------------------


class _Version(msgspec.Struct):
    """One version of a store, in the header of a changelog."""

    version: int
    checkpointUniqueId: str  # noqa: N815 - Spark's name, as are the next ones


class _Batch(msgspec.Struct):
    """What is read of a batch in the offset log."""

    conf: dict[str, Any] = {}


class _States(msgspec.Struct):
    """What is read of a batch in the commit log."""

    stateUniqueIds: dict[str, list[list[str]]] | None = None  # noqa: N815


class _SstFile(msgspec.Struct):
    dfsSstFileName: str  # noqa: N815


class _LogFile(msgspec.Struct):
    dfsLogFileName: str  # noqa: N815


class _Archive(msgspec.Struct):
    """What is read of the metadata in a zip: the files beside it."""

    sstFiles: list[_SstFile] = []  # noqa: N815
    logFiles: list[_LogFile] = []  # noqa: N815


class _Offsets:
    """An entry of the offset log."""

    def __init__(self, data: bytes, path: Path) -> None:
        version, record, *ends = _lines(data, path)
        _require_version("offset log", path, version, ("v1", "v2"))
        self.confs: dict[str, str] = {k: str(v) for k, v in _record(record, _Batch, path).conf.items()}
        self.ends = [None if line == "-" else line for line in ends]


class _Commit:
    """An entry of the commit log: the ids of the state's versions, by operator and partition, in format 2."""

    def __init__(self, data: bytes, path: Path) -> None:
        version, record, *_ = _lines(data, path)
        _require_version("commit log", path, version, ("v1", "v2", "v3"))
        self.ids = _record(record, _States, path).stateUniqueIds or {}

    def ids_of(self, store: _Store) -> list[str]:
        """Return the ids that it names for a store, or none."""
        partitions = self.ids.get(store.operator, [])
        return partitions[store.partition] if store.partition < len(partitions) else []


def _lines(data: bytes, path: Path) -> list[str]:
    """Return the lines of a file of Spark's: two at least, the version and a record."""
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise _damaged(path, str(error)) from error
    return lines if len(lines) > 1 else [*lines, ""]


def _record(text: str, kind: type[T], path: Path) -> T:
    try:
        return from_json(text.encode(), kind)
    except Undecodable as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> SparkFileDamaged:
    """Return the error for a file below `streams/<stream>/spark`."""
    stream = next((above.name for above in path.parents if above.parent.name == "streams"), "")
    return SparkFileDamaged(stream=stream, path=str(path), why=why)


def _require_version(what: str, path: Path, found: str, known: tuple[str, ...]) -> None:
    if found not in known:
        number = int(found[1:]) if re.fullmatch(r"v\d{1,9}", found) else 0
        raise UnsupportedVersion(what=f"Spark's {what} {path}", found=number, known=" and ".join(known))


def _listed(data: bytes, path: Path) -> Iterator[str]:
    """Give the files beside a zip that its metadata lists."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            text = archive.read("metadata")
    except _ZIP_DAMAGED as error:
        raise _damaged(path, f"it is not a zip file with its metadata: {error}") from error
    _, record, *_ = _lines(text, path)
    found = _record(record, _Archive, path)
    names = [f"SSTs/{each.dfsSstFileName}" for each in found.sstFiles]
    names += [f"logs/{each.dfsLogFileName}" for each in found.logFiles]
    for name in names:
        if not _BESIDE.fullmatch(name):
            raise _damaged(path, f"it lists the invalid file name {name!r}")
        yield name


def _entries_up_to(last: int, names: Collection[str]) -> Iterator[str]:
    """Yield the entries of a source's log up to `last`: the newest compacted one, and those that follow it."""
    compacts = [int(match[1]) for name in names if (match := _COMPACT.fullmatch(name))]
    base = max((each for each in compacts if each <= last), default=-1)
    if base >= 0:
        yield f"{base}.compact"
    yield from (str(each) for each in range(base + 1, last + 1))


def _names(folder: Path) -> list[str]:
    """Return the names of plain files in a folder, without hidden ones."""
    try:
        with os.scandir(folder) as found:
            return [each.name for each in found if not each.name.startswith(".") and each.is_file()]
    except FileNotFoundError:
        return []


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder that stand for operators, partitions or stores."""
    try:
        with os.scandir(folder) as found:
            inside = [each.name for each in found if each.is_dir() and not each.name.startswith((".", "_"))]
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(inside) if name not in ("SSTs", "logs")]
