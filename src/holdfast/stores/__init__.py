"""Bounded stores of checkpoint states, and the checkpointer that fills them.

Public: the contract `CheckpointStore`, the stores `DurableCheckpointStore` and `MemoryCheckpointStore`, and
`Checkpointer` with its result `Recovered`. The modules of this package are internal.
"""

from holdfast.stores.base import CheckpointStore
from holdfast.stores.checkpointer import Checkpointer, Recovered
from holdfast.stores.durable import DurableCheckpointStore
from holdfast.stores.memory import MemoryCheckpointStore

__all__ = ["CheckpointStore", "Checkpointer", "DurableCheckpointStore", "MemoryCheckpointStore", "Recovered"]
