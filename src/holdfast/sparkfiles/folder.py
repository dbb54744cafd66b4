"""Spark's checkpointLocation of one query, wherever it is: on a local disk, or on an object store.

Everything that reads Spark's files does so through this interface. Paths are relative to the folder, with slashes:
`offsets/5`. Hidden files, such as Hadoop's checksums and temporary files, are never listed.

Not guaranteed: that a file that was listed still exists when it is read. Spark deletes old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from holdfast.sparkfiles.torn_writes import Form


class SparkFolder(Protocol):
    """The files of one query's checkpoint."""

    @property
    def address(self) -> str:
        """What Spark is given as `checkpointLocation`."""

    @property
    def where(self) -> str:
        """The place of the folder, for display and errors."""

    @property
    def poll_s(self) -> float:
        """How long to wait between two looks at the folder."""

    @property
    def loses_bytes(self) -> bool:
        """Whether a power loss can leave files without their bytes. On a store, a file that exists is complete."""

    def place(self, path: str) -> str:
        """Return the place of one of its files, for display and errors."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or `None` if it does not exist."""

    def read_all(self, paths: Iterable[str]) -> dict[str, bytes | None]:
        """Return the content of many files; `None` for those that do not exist. On a store, all are read at once."""

    def expect(self, paths: Iterable[str]) -> None:
        """Request files that are about to be read: on a store, all at once. A disk needs no preparation."""

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists. On a store, a folder exists if there is a file in it."""

    def list(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted, without hidden ones; folders end with a slash."""

    def listed(self) -> SparkFolder:
        """Return this folder for many calls of `list` in a row; on a store, they use one LIST, made now."""

    def require_whole(self, path: str, is_whole: Form, stream: str) -> bool:
        """Raise `SparkFileDamaged` if a file is not as it was written; return whether it exists."""

    def is_torn(self, path: str, is_whole: Form) -> bool:
        """Whether a file lost its bytes in a power loss, and may be removed. On a store, no file ever does."""

    def drop(self, paths: Iterable[str]) -> None:
        """Remove files that no decision needs, durably."""

    def clear_unbegun(self) -> None:
        """Remove what a start has left that was killed before Spark recorded its first batch."""

    def begin(self) -> None:
        """Note that a query is about to start: it may write state files again that were made durable."""

    def make_durable(self, logs: Iterable[str], staged: Iterable[Path]) -> None:
        """Make everything durable that a replay needs: entries of logs, new state files, and what sinks staged."""


def files_in(folder: SparkFolder, path: str) -> list[str]:
    """Return the names of the files in a folder."""
    return [name for name in folder.list(path) if not name.endswith("/")]


def folders_in(folder: SparkFolder, path: str) -> list[str]:
    """Return the names of the subfolders of a folder."""
    return [name[:-1] for name in folder.list(path) if name.endswith("/")]


def files_below(folder: SparkFolder, path: str, skipped: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the paths of all files below a folder, except in subfolders with these names."""
    for name in folder.list(path):
        if not name.endswith("/"):
            yield f"{path}/{name}"
        elif name[:-1] not in skipped:
            yield from files_below(folder, f"{path}/{name[:-1]}", skipped)
