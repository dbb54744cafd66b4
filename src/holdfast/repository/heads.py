"""Records that change: the identity of a pipeline, the floor of its decisions, the targets of its sinks.

Code that uses such a record does not know how it is stored:

- In a repository on this machine, each record is one file that is replaced.
- On an object store nothing is replaced (`storeheads.py`): each change is an object with the next number.

There are two kinds. A *record* has any value and is changed by a function of its previous value. A *level* is a number
that only rises, together with the record that states it.

Leases and lineage records do not change, but a driver asks for them as often as for the records above. They lie in
`Heads.folder`, so that on a store one listing answers who leads, what was pruned and which timeline is current.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import NotFound
from holdfast.repository.base import FileRepository
from holdfast.repository.contracts import HeadChange, Put


class FileHeads:
    """The records that change in a repository on this machine: one file each."""

    def __init__(self, repository: FileRepository) -> None:
        self._repository = repository

    @property
    def fresh_s(self) -> float:
        """A look costs nothing."""
        return 0.0

    def look(self) -> FileHeadsView:
        """Return a view that reads each file when it is asked for."""
        return FileHeadsView(self._repository)

    def folder(self, name: str) -> str:
        """Return the folder of this name."""
        return name

    def read(self, key: str) -> bytes:
        """Return the content of the file, or raise `NotFound`."""
        return self._repository.read(key)

    def create(self, key: str, data: bytes) -> Put:
        """Write the file if there is none."""
        return self._repository.put_if_absent(key, data)

    def change(self, key: str, change: HeadChange) -> bytes:
        """Replace the file, unless it has the new content already."""
        try:
            old = self._repository.read(key)
        except NotFound:
            old = None
        new = change(old)
        if new != old:
            self._repository.put(key, new)
        return new

    def rise(self, key: str, level: int, data: bytes) -> None:
        """Replace the file."""
        del level  # the record contains it
        self._repository.put(key, data)


class FileHeadsView:
    """Files are read when they are asked for, so this view is never older than the question."""

    def __init__(self, repository: FileRepository) -> None:
        self._repository = repository

    def names(self, folder: str) -> list[str]:
        """List the folder."""
        return self._repository.list(folder)

    def holds(self, key: str, data: bytes) -> bool:
        """Read and compare the file."""
        try:
            return self._repository.read(key) == data
        except NotFound:
            return False

    def level(self, key: str, of: Callable[[bytes], int]) -> int:
        """Read the file; 0 if there is none."""
        try:
            return of(self._repository.read(key))
        except NotFound:
            return 0
