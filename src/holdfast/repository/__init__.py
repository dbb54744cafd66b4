"""Where everything that must last is kept: the contract, its backends, and what every repository holds."""

from holdfast.repository.base import Data, Held, Lock, Put, Repository, checked_repository, held_key
from holdfast.repository.blockfile import FileBlocks
from holdfast.repository.checkpoint_keys import CheckpointPlace, place_of
from holdfast.repository.checkpoints import Checkpoints
from holdfast.repository.decisions import Decisions, Slots, streams_of
from holdfast.repository.filelist import FileList, HeldFile
from holdfast.repository.gaps import GapRecord, Gaps
from holdfast.repository.history import Entry, History
from holdfast.repository.identity import Identity
from holdfast.repository.lease import Lease, LeaseRecord, held_lease, newest_lease
from holdfast.repository.local import LocalRepository
from holdfast.repository.memory import MemoryRepository
from holdfast.repository.opening import open_repository
from holdfast.repository.oslock import OsLock
from holdfast.repository.summary import Status, Summary

__all__ = [
    "CheckpointPlace",
    "Checkpoints",
    "Data",
    "Decisions",
    "Entry",
    "FileBlocks",
    "FileList",
    "GapRecord",
    "Gaps",
    "Held",
    "HeldFile",
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
    "Status",
    "Summary",
    "checked_repository",
    "held_key",
    "held_lease",
    "newest_lease",
    "open_repository",
    "place_of",
    "streams_of",
]
