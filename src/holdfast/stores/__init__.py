"""Bounded stores of checkpoint states, and the checkpointer that fills them.

Public: `CheckpointState` with its `CheckpointId`, the contract `CheckpointStore`, the stores `DurableCheckpointStore`
and `MemoryCheckpointStore`, and `Checkpointer` with its result `Recovered`. The modules of this package are internal.
"""

from holdfast.formats.state import CheckpointId, CheckpointState
from holdfast.stores.base import CheckpointStore
from holdfast.stores.checkpointer import Checkpointer, Recovered
from holdfast.stores.durable import DurableCheckpointStore
from holdfast.stores.memory import MemoryCheckpointStore

__all__ = [
    "CheckpointId",
    "CheckpointState",
    "CheckpointStore",
    "Checkpointer",
    "DurableCheckpointStore",
    "MemoryCheckpointStore",
    "Recovered",
]
