"""Checkpoints that hold, for PySpark streaming pipelines.

The public names. Each is loaded at its first use: what only looks at a repository starts fast, and what needs an
optional package says so when it is used.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast.extras import is_supported, missing_extra, pyspark_version

__version__ = "0.1.0"
if sys.platform != "linux":
    raise ImportError("Holdfast runs on Linux only: use a Linux container, or WSL 2 on Windows")
_HOMES = {
    "barrier": ["BarrierFlags", "BarrierHandle", "BarrierInjector", "CheckpointBarrier", "StreamMessage"],
    "blocks": ["BlockDevice", "MemoryBlocks"],
    "cursor": ["Cursor", "DurableCursor", "Gap"],
    "difference": ["Difference", "KeyCounts", "diff"],
    "epoch": ["Attempt", "Decision", "Verdict"],
    "errors": ["HoldfastError"],
    "log": ["EventLog"],
    "logwriter": ["LogWriter"],
    "manifest": ["Manifest", "StreamCut", "pipeline_hash"],
    "policy": ["Backoff", "CheckpointPolicy", "IntervalPolicy", "RestartPolicy", "Retention"],
    "pruning": ["Pruned", "PrunePlan", "apply_prune", "plan_prune"],
    "recovery": ["RecoveryPlan"],
    "region": ["KindFilter", "Region"],
    "repository": [
        "Checkpoints",
        "Decisions",
        "FileBlocks",
        "GapRecord",
        "Gaps",
        "History",
        "Identity",
        "Lease",
        "LocalRepository",
        "MemoryRepository",
        "Repository",
        "Summary",
        "open_repository",
    ],
    "requests": ["answer_requests", "request_prune"],
    "restore": ["RestorePlan", "plan_restore", "restore_stream", "stage_states"],
    "segment": ["LogEvent", "NewEvent"],
    "sidecar": ["pack_states"],
    "sinks.base": ["Key", "Link", "Owner", "Setting", "Sink", "Staged", "Standing"],
    "sinks.compaction": ["Compacted", "apply_compact"],
    "sinks.compactplan": ["CompactPlan", "plan_compact"],
    "sinks.files": ["FileSink"],
    "sinks.foreach": ["EpochKey", "ForeachSink"],
    "sinks.log": ["LogSink"],
    "sinks.places": ["FilePlace", "file_sinks"],
    "sinks.postgres": ["PostgresSink"],
    "sinks.sqlite": ["SqliteSink"],
    "spark.logsource": ["load_log", "read_log"],
    "spark.outages": ["Outage"],
    "spark.pipeline": ["Pipeline", "PipelineHandle", "PipelineStatus", "exactly_once"],
    "spark.stream": ["StreamCallbacks", "StreamStatus"],
    "spark.checkpoints": ["CheckpointStatus"],
    "spark.statereader": ["diff_keys", "read_data"],
    "stage": ["CheckpointedStage", "EdgeCheckpoint", "FlushObserver", "MsgpackCodec", "Stage", "StageView"],
    "state": ["CheckpointId", "CheckpointState"],
    "stores": ["CheckpointStore", "Checkpointer", "DurableCheckpointStore", "MemoryCheckpointStore"],
    "verification": ["Finding", "Grade", "Verification", "verify", "verify_all"],
    "worker": [
        "Action",
        "AtLeastOnce",
        "Batch",
        "Callbacks",
        "CursorWorker",
        "Quarantined",
        "read_quarantine",
        "WorkerHandle",
    ],
}
_MODULES = ("errors", "testing")
_ON_SPARK = tuple(home for home in _HOMES if home.startswith("spark."))
_WITH_SPARK = ("sinks.files", "sinks.foreach", "sinks.log", "sinks.postgres", "sinks.sqlite", *_ON_SPARK)
_NEEDS = {  # package -> the modules that cannot be loaded without it
    "pyarrow": ("cursor", "log", "logwriter", "segment", "worker", "sinks.log", "sinks.postgres", *_ON_SPARK),
    "pyspark": _WITH_SPARK,
    "py4j": _WITH_SPARK,
    "psycopg": ("sinks.postgres",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# What cannot be loaded here is not offered, so that help(), tab completion and `import *` work without it.
_missing = {home for package, homes in _NEEDS.items() if not find_spec(package) for home in homes}
if not is_supported(pyspark_version()):
    _missing.update(_WITH_SPARK)
__all__ = ["__version__", *_MODULES, *sorted(name for name, home in _HOME_OF.items() if home not in _missing)]  # noqa: PLE0604

if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast import testing as testing
    from holdfast.barrier import BarrierFlags as BarrierFlags
    from holdfast.barrier import BarrierHandle as BarrierHandle
    from holdfast.barrier import BarrierInjector as BarrierInjector
    from holdfast.barrier import CheckpointBarrier as CheckpointBarrier
    from holdfast.barrier import StreamMessage as StreamMessage
    from holdfast.blocks import BlockDevice as BlockDevice
    from holdfast.blocks import MemoryBlocks as MemoryBlocks
    from holdfast.cursor import Cursor as Cursor
    from holdfast.cursor import DurableCursor as DurableCursor
    from holdfast.cursor import Gap as Gap
    from holdfast.difference import Difference as Difference
    from holdfast.difference import KeyCounts as KeyCounts
    from holdfast.difference import diff as diff
    from holdfast.epoch import Attempt as Attempt
    from holdfast.epoch import Decision as Decision
    from holdfast.epoch import Verdict as Verdict
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.log import EventLog as EventLog
    from holdfast.logwriter import LogWriter as LogWriter
    from holdfast.manifest import Manifest as Manifest
    from holdfast.manifest import StreamCut as StreamCut
    from holdfast.manifest import pipeline_hash as pipeline_hash
    from holdfast.policy import Backoff as Backoff
    from holdfast.policy import CheckpointPolicy as CheckpointPolicy
    from holdfast.policy import IntervalPolicy as IntervalPolicy
    from holdfast.policy import RestartPolicy as RestartPolicy
    from holdfast.policy import Retention as Retention
    from holdfast.pruning import Pruned as Pruned
    from holdfast.pruning import PrunePlan as PrunePlan
    from holdfast.pruning import apply_prune as apply_prune
    from holdfast.pruning import plan_prune as plan_prune
    from holdfast.recovery import RecoveryPlan as RecoveryPlan
    from holdfast.region import KindFilter as KindFilter
    from holdfast.region import Region as Region
    from holdfast.repository import Checkpoints as Checkpoints
    from holdfast.repository import Decisions as Decisions
    from holdfast.repository import FileBlocks as FileBlocks
    from holdfast.repository import GapRecord as GapRecord
    from holdfast.repository import Gaps as Gaps
    from holdfast.repository import History as History
    from holdfast.repository import Identity as Identity
    from holdfast.repository import Lease as Lease
    from holdfast.repository import LocalRepository as LocalRepository
    from holdfast.repository import MemoryRepository as MemoryRepository
    from holdfast.repository import Repository as Repository
    from holdfast.repository import Summary as Summary
    from holdfast.repository import open_repository as open_repository
    from holdfast.requests import answer_requests as answer_requests
    from holdfast.requests import request_prune as request_prune
    from holdfast.restore import RestorePlan as RestorePlan
    from holdfast.restore import plan_restore as plan_restore
    from holdfast.restore import restore_stream as restore_stream
    from holdfast.restore import stage_states as stage_states
    from holdfast.segment import LogEvent as LogEvent
    from holdfast.segment import NewEvent as NewEvent
    from holdfast.sidecar import pack_states as pack_states
    from holdfast.sinks.base import Key as Key
    from holdfast.sinks.base import Link as Link
    from holdfast.sinks.base import Owner as Owner
    from holdfast.sinks.base import Setting as Setting
    from holdfast.sinks.base import Sink as Sink
    from holdfast.sinks.base import Staged as Staged
    from holdfast.sinks.base import Standing as Standing
    from holdfast.sinks.compaction import Compacted as Compacted
    from holdfast.sinks.compaction import apply_compact as apply_compact
    from holdfast.sinks.compactplan import CompactPlan as CompactPlan
    from holdfast.sinks.compactplan import plan_compact as plan_compact
    from holdfast.sinks.files import FileSink as FileSink
    from holdfast.sinks.foreach import EpochKey as EpochKey
    from holdfast.sinks.foreach import ForeachSink as ForeachSink
    from holdfast.sinks.log import LogSink as LogSink
    from holdfast.sinks.places import FilePlace as FilePlace
    from holdfast.sinks.places import file_sinks as file_sinks
    from holdfast.sinks.postgres import PostgresSink as PostgresSink
    from holdfast.sinks.sqlite import SqliteSink as SqliteSink
    from holdfast.spark.checkpoints import CheckpointStatus as CheckpointStatus
    from holdfast.spark.logsource import load_log as load_log
    from holdfast.spark.logsource import read_log as read_log
    from holdfast.spark.outages import Outage as Outage
    from holdfast.spark.pipeline import Pipeline as Pipeline
    from holdfast.spark.pipeline import PipelineHandle as PipelineHandle
    from holdfast.spark.pipeline import PipelineStatus as PipelineStatus
    from holdfast.spark.pipeline import exactly_once as exactly_once
    from holdfast.spark.statereader import diff_keys as diff_keys
    from holdfast.spark.statereader import read_data as read_data
    from holdfast.spark.stream import StreamCallbacks as StreamCallbacks
    from holdfast.spark.stream import StreamStatus as StreamStatus
    from holdfast.stage import CheckpointedStage as CheckpointedStage
    from holdfast.stage import EdgeCheckpoint as EdgeCheckpoint
    from holdfast.stage import FlushObserver as FlushObserver
    from holdfast.stage import MsgpackCodec as MsgpackCodec
    from holdfast.stage import Stage as Stage
    from holdfast.stage import StageView as StageView
    from holdfast.state import CheckpointId as CheckpointId
    from holdfast.state import CheckpointState as CheckpointState
    from holdfast.stores import Checkpointer as Checkpointer
    from holdfast.stores import CheckpointStore as CheckpointStore
    from holdfast.stores import DurableCheckpointStore as DurableCheckpointStore
    from holdfast.stores import MemoryCheckpointStore as MemoryCheckpointStore
    from holdfast.verification import Finding as Finding
    from holdfast.verification import Grade as Grade
    from holdfast.verification import Verification as Verification
    from holdfast.verification import verify as verify
    from holdfast.verification import verify_all as verify_all
    from holdfast.worker import Action as Action
    from holdfast.worker import AtLeastOnce as AtLeastOnce
    from holdfast.worker import Batch as Batch
    from holdfast.worker import Callbacks as Callbacks
    from holdfast.worker import CursorWorker as CursorWorker
    from holdfast.worker import Quarantined as Quarantined
    from holdfast.worker import WorkerHandle as WorkerHandle
    from holdfast.worker import read_quarantine as read_quarantine

if not TYPE_CHECKING:  # a type checker shall see misspelt names

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"holdfast.{name}")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        try:
            return getattr(importlib.import_module(f"holdfast.{_HOME_OF[name]}"), name)
        except ModuleNotFoundError as error:
            raise missing_extra(error) or error from error


def __dir__() -> list[str]:
    return sorted(__all__)
