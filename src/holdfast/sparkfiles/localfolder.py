"""Spark's checkpointLocation on a local disk.

Spark does not fsync its files. Before a decision refers to them, `make_durable` does so. A file that lost its bytes in
a power loss is removed if no decision needs it: Spark would fail on it at every start.
"""

from __future__ import annotations

import builtins
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from holdfast.errors import SparkFileDamaged
from holdfast.repository.files import failing_as, hadoop_address, sync_all
from holdfast.sparkfiles.torn_writes import Form, checksum_file, is_torn

_GONE = (FileNotFoundError, NotADirectoryError)
_MANY_FOLDERS = 64  # of state: to search more of them costs more than to sync the file system
_POLL_S = 0.005


class LocalSparkFolder:
    """Spark's files in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._durable: set[str] = set()  # state files that were synced since `begin`
        self._children: set[str] = set()  # names in the folder when it was synced

    def __repr__(self) -> str:
        return f"LocalSparkFolder({str(self.path)!r})"

    @property
    def address(self) -> str:
        """The folder as a Hadoop address."""
        return hadoop_address(self.path)

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.path)

    @property
    def poll_s(self) -> float:
        """How long to wait between two looks at the folder."""
        return _POLL_S

    @property
    def loses_bytes(self) -> bool:
        """Spark does not fsync its files."""
        return True

    def place(self, path: str) -> str:
        """Return the path of a file."""
        return str(self.path / path)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or `None` if it does not exist."""
        with failing_as("read", self.place(path)):
            try:
                return (self.path / path).read_bytes()
            except _GONE:
                return None

    def read_all(self, paths: Iterable[str]) -> dict[str, bytes | None]:
        """Return the content of many files; `None` for those that do not exist."""
        return {path: self.read(path) for path in paths}

    def expect(self, paths: Iterable[str]) -> None:
        """Do nothing: reading one file after another is fast."""

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""
        with failing_as("look at", self.place(path)):
            return (self.path / path).exists()

    def list(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted, without hidden ones; folders end with a slash."""
        with failing_as("list", self.place(folder)):
            try:
                with os.scandir(self.path / folder) as found:
                    shown = [each for each in found if not each.name.startswith(".")]
                    return sorted(f"{each.name}/" if each.is_dir() else each.name for each in shown)
            except _GONE:
                return []

    def listed(self) -> LocalSparkFolder:
        """Return this folder: listing it again is cheap."""
        return self

    def require_whole(self, path: str, is_whole: Form, stream: str) -> bool:
        """Raise `SparkFileDamaged` if a file is not as it was written; return whether it exists."""
        with failing_as("read", self.place(path)):
            if not (self.path / path).exists():
                return False
            if is_torn(self.path / path, is_whole):
                raise SparkFileDamaged(stream=stream, path=self.place(path))
        return True

    def is_torn(self, path: str, is_whole: Form) -> bool:
        """Whether a file lost its bytes. A missing file is torn if its checksum file exists."""
        with failing_as("read", self.place(path)):
            return is_torn(self.path / path, is_whole)

    def drop(self, paths: Iterable[str]) -> None:
        """Remove files with their checksum files, durably."""
        gone = [self.path / path for path in paths]
        with failing_as("clear", self.where):
            for path in gone:
                for each in _with_crc(path):
                    each.unlink(missing_ok=True)
            sync_all({path.parent for path in gone})

    def clear_unbegun(self) -> None:
        """Remove Spark's temporary files and its state: with them, it refuses the folder as that of another query."""
        with failing_as("clear", self.where):
            for log in ("offsets", "commits"):
                for path in self.path.glob(f"{log}/.*"):
                    path.unlink(missing_ok=True)
            shutil.rmtree(self.path / "state", ignore_errors=True)

    def begin(self) -> None:
        """Forget which state files were synced: a batch that runs again replaces those of its first run."""
        self._durable.clear()

    def make_durable(self, logs: Iterable[str], staged: Iterable[Path]) -> None:
        """Sync entries of logs with their checksum files and folders, new state files, and what sinks staged."""
        folder = self.path
        new: list[Path] = []
        for path in (folder / each for each in logs):
            new += [*_with_crc(path), path.parent]
            new += [path.parent.parent] * (path.parent.parent != folder)
        children = {each.name for each in folder.iterdir()}
        if children != self._children:
            new += [*_with_crc(folder / "metadata"), folder, folder.parent]
        state = self._new_state()
        with failing_as("sync", self.where):
            sync_all([*new, *(state or ()), *staged], at_once=state is None)
        self._children = children
        self._durable.update(map(str, state or ()))

    def _new_state(self) -> builtins.list[Path] | None:
        """Return state files that were not synced yet. `None`: too many folders to search.

        As long as a query runs, they never change.
        """
        root = self.path / "state"
        there: set[str] = set()  # as text: there may be thousands, and all but a few were synced before
        for number, (top, _, names) in enumerate(os.walk(root)):
            if number > _MANY_FOLDERS:
                return None
            there.update(f"{top}/{name}" for name in names)
        new = there - self._durable
        self._durable &= there  # Spark has deleted the others
        found = [Path(name) for name in new]
        above = {folder for path in found for folder in path.parents if folder.is_relative_to(root)}
        return [*found, *above]


def _with_crc(path: Path) -> tuple[Path, Path]:
    """Return a file and its checksum file: a stale or missing checksum would break the restart."""
    return path, checksum_file(path)
