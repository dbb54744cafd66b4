"""Opening a repository by its address."""

from __future__ import annotations

import os

from holdfast.repository.base import Repository
from holdfast.repository.local import LocalRepository
from holdfast.repository.memory import MemoryRepository


def open_repository(address: str | os.PathLike[str]) -> Repository:
    """Open a folder (`./checkpoints`, `file:///data/checkpoints`), or a new repository in memory (`memory:`)."""
    return MemoryRepository() if address == "memory:" else LocalRepository(address)
