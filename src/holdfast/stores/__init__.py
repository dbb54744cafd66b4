"""Stores of checkpoint states, bounded, and the checkpointer that fills them."""

from holdfast.stores.base import CheckpointStore
from holdfast.stores.checkpointer import Checkpointer, Recovered
from holdfast.stores.durable import DurableCheckpointStore
from holdfast.stores.memory import MemoryCheckpointStore

__all__ = ["CheckpointStore", "Checkpointer", "DurableCheckpointStore", "MemoryCheckpointStore", "Recovered"]
