"""The snapshot of one stream on an object store: files are named in place, by path, size, ETag and SHA-256.

Rules:
- One flat LIST answers which files there are. Each new one is downloaded once, many at a time, to hash it.
- State files stay where they are: Spark deletes nothing there, and a clean-up keeps what a checkpoint names. Entries of
  Spark's logs are copied under the checkpoint, because a clean-up deletes them without asking for names.
- Spark uploads a snapshot of a state store some time after the commit, its SST files first. A snapshot counts only if
  every file that it lists is there; otherwise the one before it is used, with more changelogs.
- The files of a savepoint are copied on the server's side, and each copy is downloaded once, to compare its digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.errors import StorageFailed
from holdfast.repository import HeldFile, StoredObject
from holdfast.repository.checkpoint_keys import CheckpointPlace
from holdfast.repository.objectstore import ObjectRepository
from holdfast.spark.pins import SnapshotFacts, SparkCut
from holdfast.sparkfiles.closure import keep_closure
from holdfast.sparkfiles.statefiles import Vanished, listed_in_zip
from holdfast.sparkfiles.storefolder import ListedSparkFolder, StoreSparkFolder

_STATE = "state/"
_PART_FILES = 256  # that are hashed at a time
_PART_BYTES = 1 << 26
_WRITES = 32  # at a time


@dataclass(frozen=True, slots=True)
class _Hashed:
    """An object that was downloaded, and its ETag then."""

    etag: str
    size: int
    sha256: str


class PlacedSnapshots:
    """Takes snapshots of one stream. It remembers the files that it has hashed: Spark never changes one."""

    def __init__(self, stream: str, folder: StoreSparkFolder, repository: ObjectRepository) -> None:
        self._stream = stream
        self._folder = folder
        self._repository = repository
        self._hashed: dict[str, _Hashed] = {}
        self._read: dict[str, bytes] = {}  # files of the last snapshot whose content is needed for the next one

    @property
    def kept(self) -> Iterator[str]:
        """No keys: on an object store a clean-up does not depend on what is remembered here."""
        return iter(())

    def pin(self, batch: int, place: CheckpointPlace, *, copy: bool = False) -> PlacedPin:
        """List the files that Spark needs to start after a committed batch."""
        inside = len(self._folder.key) + 1
        found = {each.key[inside:]: each for each in self._repository.flat(self._folder.key)}
        files = _Files(self._folder, found, self._read)
        try:
            facts = files.close(batch)
        except Vanished as gone:
            why = f"{gone} is missing: another program has deleted it"
            raise StorageFailed(action=f"keep batch {batch} of", key=self._folder.where, why=why) from None
        self._read = files.content
        self._hashed = {path: each for path, each in self._hashed.items() if path in files.chosen}
        return PlacedPin(self._stream, self._repository, self._folder.key, files, facts, self._hashed, place, copy=copy)

    def keep(self, pinned: PlacedPin) -> SparkCut | None:
        """Hash some of the files; return the snapshot once all are hashed and copied."""
        if pinned.cut is None:
            self._hashed |= pinned.keep_part()
        return pinned.cut

    def release_all(self) -> None:
        """Do nothing: there are no links."""


class _Files:
    """The files of one snapshot, chosen from one listing. Those whose content decides about others are read at once."""

    def __init__(self, folder: StoreSparkFolder, found: Mapping[str, StoredObject], read: Mapping[str, bytes]) -> None:
        self.chosen: dict[str, StoredObject] = {}
        self.content: dict[str, bytes] = {}
        self._folder = folder
        self._found = found
        self._known = read

    def close(self, batch: int) -> SnapshotFacts:
        """Choose the closure of a batch. A snapshot of a state store that is not complete is left out."""
        incomplete: set[str] = set()
        while True:
            self.chosen = {}
            names = ListedSparkFolder(self._folder, (path for path in self._found if path not in incomplete))
            closure = keep_closure(names, batch, _Keeper(self))
            partial = {path for path in self.chosen if path.endswith(".zip") and not self._is_complete(path)}
            if not partial:
                return SnapshotFacts(batch, closure.offsets.confs, ", ".join(closure.formats) or None)
            incomplete |= partial | {f"{path}.crc" for path in partial}

    def add(self, paths: Iterable[str]) -> None:
        """Choose files, and read those whose content is needed. What is beside a snapshot may be missing."""
        wanted = [path for path in dict.fromkeys(paths) if path not in self.chosen]
        for path in wanted:
            if path in self._found:
                self.chosen[path] = self._found[path]
            elif not _is_beside_a_snapshot(path):
                raise Vanished(path)
        self._load([path for path in wanted if path.endswith(".zip") or not path.startswith(_STATE)])

    def read(self, path: str) -> bytes:
        """Return the content of a file that was chosen."""
        self._load([path])
        return self.content[path]

    def commit(self, batch: int) -> bytes | None:
        """Return an older entry of the commit log, or `None` if it was deleted; it is not chosen."""
        path = f"commits/{batch}"
        return self._folder.read(path) if path in self._found else None

    def place(self, path: str) -> str:
        """Return the address of a file, for errors."""
        return self._folder.place(path)

    def _load(self, paths: Iterable[str]) -> None:
        missing = [path for path in paths if path not in self.content]
        self.content |= {path: self._known[path] for path in missing if path in self._known}
        for path, data in self._folder.read_all(path for path in missing if path not in self.content).items():
            if data is None:
                raise Vanished(path)
            self.content[path] = data

    def _is_complete(self, path: str) -> bool:
        folder = path.rpartition("/")[0]
        return all(f"{folder}/{name}" in self._found for name in listed_in_zip(self.read(path), self.place(path)))


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Chooses the files of a closure."""

    files: _Files

    def add(self, paths: Iterable[str]) -> None:
        self.files.add(paths)

    def read(self, path: str) -> bytes:
        return self.files.read(path)

    def changelog(self, path: str) -> bytes:
        self.files.add([path])
        return self.files.read(path)

    def commit(self, batch: int) -> bytes | None:
        return self.files.commit(batch)

    def path_of(self, path: str) -> str:
        return self.files.place(path)


def _is_beside_a_snapshot(path: str) -> bool:
    return path.startswith(_STATE) and path.rpartition("/")[0].rpartition("/")[2] in ("SSTs", "logs")


class PlacedPin:
    """The chosen files of one snapshot, hashed one part at a time, and copied where that is necessary."""

    def __init__(  # noqa: PLR0917 - from where, and to where
        self,
        stream: str,
        repository: ObjectRepository,
        live: str,
        files: _Files,
        facts: SnapshotFacts,
        hashed: Mapping[str, _Hashed],
        place: CheckpointPlace,
        *,
        copy: bool,
    ) -> None:
        self.cut: SparkCut | None = None  # once all files are hashed and copied
        self._repository = repository
        self._live = live
        self._files = files
        self._facts = facts
        self._copy = copy
        self._copies = place.copies(stream)
        self._hashed = {path: each for path, each in hashed.items() if files.chosen[path].etag == each.etag}
        self._new: list[_Hashed] = []
        self._pending = [path for path in files.chosen if path not in self._hashed]

    def keep_part(self) -> dict[str, _Hashed]:
        """Hash some of the files; return them. When all are hashed, copy what must be copied, and set `cut`."""
        part = self._part()
        read = {path: data for path in part if (data := self._files.content.get(path)) is not None}
        found = {path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in read.items()}
        keys = {f"{self._live}/{path}": path for path in part if path not in read}
        for key, held in self._repository.digests(keys).items():
            found |= {keys[key]: (held.size, held.sha256)} if held is not None else {}
        for path in part:
            if path not in found or found[path][0] != self._files.chosen[path].size:
                raise StorageFailed(action="hash", key=self._files.place(path), why="it is not as it was listed")
        now = {path: _Hashed(self._files.chosen[path].etag, *found[path]) for path in part}
        self._hashed |= now
        self._new += now.values()
        if not self._pending:
            self.cut = self._complete()
        return now

    def release(self) -> None:
        """Do nothing: there are no links."""

    def _part(self) -> list[str]:
        part: list[str] = []
        size = 0
        while self._pending and len(part) < _PART_FILES and size < _PART_BYTES:
            part.append(self._pending.pop())
            size += self._files.chosen[part[-1]].size
        return part

    def _complete(self) -> SparkCut:
        in_place = {path for path in self._hashed if path.startswith(_STATE) and not self._copy}
        self._write({path for path in self._hashed if not path.startswith(_STATE)})
        if self._copy:
            self._copy_state([path for path in self._hashed if path.startswith(_STATE)])
        files = (
            HeldFile(path, each.size, each.sha256, each.etag if path in in_place else "")
            for path, each in sorted(self._hashed.items())
        )
        return SparkCut(
            self._facts.batch,
            tuple(files),
            self._facts.confs,
            self._facts.state_format,
            len(self._new),
            sum(each.size for each in self._new),
            live="" if self._copy else self._live,
            copies=self._copies,
        )

    def _write(self, paths: Iterable[str]) -> None:
        """Write copies of files that are in memory."""
        with ThreadPoolExecutor(_WRITES) as pool:
            for done in [
                pool.submit(self._repository.put_new, f"{self._copies}/{path}", self._files.content[path])
                for path in paths
            ]:
                done.result()

    def _copy_state(self, paths: Iterable[str]) -> None:
        """Copy state files on the server's side, and compare the copies with the digests of the originals."""
        copies = {path: f"{self._copies}/{path}" for path in paths}
        self._repository.copy_all((f"{self._live}/{path}", key) for path, key in copies.items())
        found = self._repository.digests(copies.values())
        for path, key in copies.items():
            held = found[key]
            if held is None or (held.size, held.sha256) != (self._hashed[path].size, self._hashed[path].sha256):
                raise StorageFailed(action="copy", key=key, why="the copy differs from the original")
