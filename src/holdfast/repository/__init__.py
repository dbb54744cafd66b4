"""Where everything that must last is kept: the contract, its backends, and what every repository holds."""

from holdfast.repository.base import Data, Lock, Put, Repository, checked_repository
from holdfast.repository.blockfile import FileBlocks
from holdfast.repository.decisions import Decisions, Slots
from holdfast.repository.gaps import GapRecord, Gaps
from holdfast.repository.history import Entry, History
from holdfast.repository.identity import Identity
from holdfast.repository.lease import Lease, LeaseRecord, newest_lease
from holdfast.repository.local import LocalRepository
from holdfast.repository.memory import MemoryRepository
from holdfast.repository.opening import open_repository
from holdfast.repository.oslock import OsLock

__all__ = [
    "Data",
    "Decisions",
    "Entry",
    "FileBlocks",
    "GapRecord",
    "Gaps",
    "History",
    "Identity",
    "Lease",
    "LeaseRecord",
    "LocalRepository",
    "Lock",
    "MemoryRepository",
    "OsLock",
    "Put",
    "Repository",
    "Slots",
    "checked_repository",
    "newest_lease",
    "open_repository",
]
