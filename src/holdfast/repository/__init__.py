"""The repository: where a pipeline's decisions, checkpoints and leases are stored.

Public:
- the contract `Repository`, and `FileRepository` for backends on this machine, with the types `Data`, `Put`, `Held`,
  `StoredObject` and `Lock` of their methods;
- the backends `LocalRepository`, `MemoryRepository` and `ObjectRepository`, and `open_repository`;
- the contents: `Identity`, `Lineage`, `Lease`, `Decisions`, `Checkpoints`, `Gaps` and `History`, and the values they
  return;
- `FileBlocks`, a block device in a local file.

The modules of this package are internal: other packages of Holdfast use them, users must not.
"""

from holdfast.repository.base import Data, FileRepository, Held, Repository, StoredObject
from holdfast.repository.blockfile import FileBlocks
from holdfast.repository.checkpoint_keys import CheckpointPlace
from holdfast.repository.checkpoints import Checkpoints
from holdfast.repository.contracts import Lock, Put
from holdfast.repository.decisions import Decisions, Slots
from holdfast.repository.filelist import FileList, HeldFile
from holdfast.repository.gaps import GapRecord, Gaps
from holdfast.repository.history import Entry, History
from holdfast.repository.identity import Identity
from holdfast.repository.lease import Lease, LeaseRecord
from holdfast.repository.lineage import Lineage, TimelineRecord
from holdfast.repository.local import LocalRepository
from holdfast.repository.memory import MemoryRepository
from holdfast.repository.objectstore import ObjectRepository
from holdfast.repository.opening import open_repository
from holdfast.repository.summary import Status, Summary

__all__ = [
    "CheckpointPlace",
    "Checkpoints",
    "Data",
    "Decisions",
    "Entry",
    "FileBlocks",
    "FileList",
    "FileRepository",
    "GapRecord",
    "Gaps",
    "Held",
    "HeldFile",
    "History",
    "Identity",
    "Lease",
    "LeaseRecord",
    "Lineage",
    "LocalRepository",
    "Lock",
    "MemoryRepository",
    "ObjectRepository",
    "Put",
    "Repository",
    "Slots",
    "Status",
    "StoredObject",
    "Summary",
    "TimelineRecord",
    "open_repository",
]
