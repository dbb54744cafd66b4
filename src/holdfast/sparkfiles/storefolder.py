"""Spark's checkpointLocation on an object store.

- Spark's files are written once, by one PUT each, and are never changed: what was read once stays true. A file that was
  read is kept in memory for a while, so that it is requested once.
- A PUT that has returned is durable, so nothing has to be made durable. Before a decision refers to a file, it is read.
- There are no torn files: one that cannot be read is damaged, and nothing is removed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from holdfast.errors import NotFound, SparkFileDamaged
from holdfast.repository.objectstore import ObjectRepository
from holdfast.sparkfiles.records import damaged
from holdfast.sparkfiles.torn_writes import Form

_ENTRY = re.compile(r"metadata|(?:offsets|commits|sources/[^/]+)/\d+(?:\.compact)?")  # files of the logs
_POLL_S = 0.05
_KEPT = 256  # files in memory: those of the last epochs
_LARGEST_KEPT = 1 << 16  # bytes


class StoreSparkFolder:
    """Spark's files below a key of a repository on an object store."""

    def __init__(self, repository: ObjectRepository, key: str) -> None:
        self.key = key
        self._repository = repository
        self._read: dict[str, bytes] = {}  # oldest first

    def __repr__(self) -> str:
        return f"StoreSparkFolder({self.where!r})"

    @property
    def address(self) -> str:
        """The folder as Hadoop's connector for S3 knows it."""
        return f"{hadoop_root(self._repository)}/{self.key}"

    @property
    def where(self) -> str:
        """The address of the folder."""
        return f"{self._repository.where}/{self.key}"

    @property
    def poll_s(self) -> float:
        """How long to wait between two looks: each is a request."""
        return _POLL_S

    @property
    def loses_bytes(self) -> bool:
        """A PUT is complete, or there is no object."""
        return False

    def place(self, path: str) -> str:
        """Return the address of a file."""
        return f"{self.where}/{path}"

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or `None` if it does not exist."""
        return self.read_all([path])[path]

    def read_all(self, paths: Iterable[str]) -> dict[str, bytes | None]:
        """Return the content of many files, which are requested at the same time; `None` for those that are missing."""
        wanted = list(dict.fromkeys(paths))
        found: dict[str, bytes | None] = {path: self._read.get(path) for path in wanted}
        missing = [path for path, data in found.items() if data is None]
        if missing:
            read = self._repository.read_all(self._key(path) for path in missing)
            for path in missing:
                data = found[path] = read[self._key(path)]
                if data is not None:
                    self._keep(path, data)
        return found

    def _keep(self, path: str, data: bytes) -> None:
        if len(data) > _LARGEST_KEPT:
            return
        self._read[path] = data
        while len(self._read) > _KEPT:
            self._read.pop(next(iter(self._read)), None)

    def expect(self, paths: Iterable[str]) -> None:
        """Read files at once, and keep them in memory."""
        self.read_all(paths)

    def exists(self, path: str) -> bool:
        """Whether a file or a folder with a file exists."""
        if _ENTRY.fullmatch(path):
            return self.read(path) is not None  # one request, also if it is read later
        key = self._key(path)
        return self._repository.sizes([key])[key] is not None or bool(self._repository.list(key))

    def list(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted, without hidden ones; folders end with a slash."""
        return [name for name in self._repository.list(self._key(folder)) if not name.startswith(".")]

    def listed(self) -> ListedSparkFolder:
        """Return this folder with the names that it has now: one flat LIST, a request per thousand files."""
        inside = len(self.key) + 1
        return ListedSparkFolder(self, [each.key[inside:] for each in self._repository.flat(self.key)])

    def require_whole(self, path: str, is_whole: Form, stream: str) -> bool:
        """Raise `SparkFileDamaged` if a file is not complete by its form; return whether it exists."""
        data = self.read(path)
        if data is None:
            return False
        if not data.strip(b"\0") or not is_whole(data.decode("utf-8", "replace")):
            raise SparkFileDamaged(stream=stream, path=self.place(path))
        return True

    def is_torn(self, path: str, is_whole: Form) -> bool:
        """Return that no file is torn. One that cannot be read is damage, which its reader reports."""
        del path, is_whole
        return False

    def drop(self, paths: Iterable[str]) -> None:
        """Refuse: a file whose predecessor is gone shows that files were removed."""
        for path in paths:
            raise damaged(self.place(path), "a file that it builds upon is missing")

    def clear_unbegun(self) -> None:
        """Do nothing: a start that was killed leaves no partial files."""

    def begin(self) -> None:
        """Do nothing: a file that exists is durable."""

    def make_durable(self, logs: Iterable[str], staged: Iterable[Path]) -> None:
        """Read the entries of logs that were not read yet: what can be read is durable."""
        del staged
        for path, data in self.read_all(logs).items():
            if data is None:
                raise NotFound(key=self._key(path), where=self._repository.where)

    def _key(self, path: str) -> str:
        return f"{self.key}/{path}" if path else self.key


class ListedSparkFolder(StoreSparkFolder):
    """A folder whose names were listed once. Files are read as they are now."""

    def __init__(self, folder: StoreSparkFolder, paths: Iterable[str]) -> None:
        super().__init__(folder._repository, folder.key)
        self._read = folder._read
        self._names: dict[str, set[str]] = {}
        for path in paths:
            parts = path.split("/")
            if any(part.startswith(".") for part in parts):
                continue
            for depth in range(len(parts) - 1):
                self._names.setdefault("/".join(parts[:depth]), set()).add(f"{parts[depth]}/")
            self._names.setdefault("/".join(parts[:-1]), set()).add(parts[-1])

    def exists(self, path: str) -> bool:
        """Whether a file or a folder was listed."""
        folder, _, name = path.rpartition("/")
        return path in self._names or name in self._names.get(folder, ())

    def list(self, folder: str = "") -> list[str]:
        """Return the names in a folder that were listed."""
        return sorted(self._names.get(folder, ()))

    def listed(self) -> ListedSparkFolder:
        """Return this folder."""
        return self


def hadoop_root(repository: ObjectRepository) -> str:
    """Return the address of a repository as Hadoop's connector for S3 knows it."""
    return f"s3a:{repository.where.partition(':')[2]}"
