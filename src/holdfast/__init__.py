"""Checkpoints that hold, for PySpark streaming pipelines.

The public names. Each is loaded at its first use: what only looks at a repository starts fast, and what needs an
optional package says so when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_HOMES = {
    "barrier": ["BarrierFlags", "BarrierHandle", "BarrierInjector", "CheckpointBarrier", "StreamMessage"],
    "blocks": ["BlockDevice", "MemoryBlocks"],
    "cursor": ["Cursor", "DurableCursor", "Gap"],
    "errors": ["HoldfastError"],
    "log": ["EventLog"],
    "logwriter": ["LogWriter"],
    "manifest": ["Manifest", "pipeline_hash"],
    "policy": ["IntervalPolicy", "RestartPolicy"],
    "region": ["KindFilter", "Region"],
    "repository": ["FileBlocks", "LocalRepository", "MemoryRepository", "Repository", "open_repository"],
    "segment": ["LogEvent", "NewEvent"],
    "sidecar": ["pack_states"],
    "stage": ["CheckpointedStage", "EdgeCheckpoint", "FlushObserver", "MsgpackCodec"],
    "state": ["CheckpointId", "CheckpointState"],
    "stores": ["CheckpointStore", "Checkpointer", "DurableCheckpointStore", "MemoryCheckpointStore"],
    "worker": ["Action", "AtLeastOnce", "Batch", "Callbacks", "CursorWorker", "WorkerHandle"],
}
_MODULES = ("errors", "testing")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__version__ = "0.1.0"
__all__ = ["__version__", *_MODULES, *sorted(_HOME_OF)]  # noqa: PLE0604 - all of them are str; a test proves that each resolves

if TYPE_CHECKING:
    from holdfast import errors, testing
    from holdfast.barrier import BarrierFlags, BarrierHandle, BarrierInjector, CheckpointBarrier, StreamMessage
    from holdfast.blocks import BlockDevice, MemoryBlocks
    from holdfast.cursor import Cursor, DurableCursor, Gap
    from holdfast.errors import HoldfastError
    from holdfast.log import EventLog
    from holdfast.logwriter import LogWriter
    from holdfast.manifest import Manifest, pipeline_hash
    from holdfast.policy import IntervalPolicy, RestartPolicy
    from holdfast.region import KindFilter, Region
    from holdfast.repository import FileBlocks, LocalRepository, MemoryRepository, Repository, open_repository
    from holdfast.segment import LogEvent, NewEvent
    from holdfast.sidecar import pack_states
    from holdfast.stage import CheckpointedStage, EdgeCheckpoint, FlushObserver, MsgpackCodec
    from holdfast.state import CheckpointId, CheckpointState
    from holdfast.stores import Checkpointer, CheckpointStore, DurableCheckpointStore, MemoryCheckpointStore
    from holdfast.worker import Action, AtLeastOnce, Batch, Callbacks, CursorWorker, WorkerHandle


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"holdfast.{name}")
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}") from None
    return getattr(importlib.import_module(f"holdfast.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
