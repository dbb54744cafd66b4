"""The parts of a repository on this machine that are made of its values: records that change, the lock, journals."""

from __future__ import annotations

from holdfast.repository.base import FileRepository
from holdfast.repository.guards import FileGuard
from holdfast.repository.heads import FileHeads
from holdfast.repository.journals import FileJournal


class FileParts:
    """A base for classes that fulfil the contract of a `FileRepository`."""

    @property
    def heads(self: FileRepository) -> FileHeads:
        """The records that change: one value each."""
        return FileHeads(self)

    @property
    def guard(self: FileRepository) -> FileGuard:
        """The lock of the lease."""
        return FileGuard(self)

    def journal(self: FileRepository, name: str) -> FileJournal:
        """Return the journal of this name: one value."""
        return FileJournal(self, name)
