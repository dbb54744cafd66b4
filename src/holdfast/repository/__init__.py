"""The repository: where a pipeline's decisions, checkpoints and leases are stored.

Public:
- the contract `Repository`, with the types `Data`, `Put`, `Held` and `Lock` of its methods;
- the backends `LocalRepository` and `MemoryRepository`, and `open_repository`;
- the contents: `Identity`, `Lineage`, `Lease`, `Decisions`, `Checkpoints`, `Gaps` and `History`, and the values they
  return;
- `FileBlocks`, a block device in a local file.

The modules of this package are internal: other packages of Holdfast use them, users must not.
"""

from holdfast.repository.base import Data, Held, Lock, Put, Repository
from holdfast.repository.blockfile import FileBlocks
from holdfast.repository.checkpoint_keys import CheckpointPlace
from holdfast.repository.checkpoints import Checkpoints
from holdfast.repository.decisions import Decisions, Slots
from holdfast.repository.filelist import FileList, HeldFile
from holdfast.repository.gaps import GapRecord, Gaps
from holdfast.repository.history import Entry, History
from holdfast.repository.identity import Identity
from holdfast.repository.lease import Lease, LeaseRecord
from holdfast.repository.lineage import Lineage, TimelineRecord
from holdfast.repository.local import LocalRepository
from holdfast.repository.memory import MemoryRepository
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
    "Put",
    "Repository",
    "Slots",
    "Status",
    "Summary",
    "TimelineRecord",
    "open_repository",
]
