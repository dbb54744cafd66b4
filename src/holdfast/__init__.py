"""Checkpoints that hold, for PySpark streaming pipelines.

The public names. Each is loaded at its first use: what only looks at a repository starts fast, and what needs an
optional package says so when it is used.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast._extras import is_supported, missing_extra, pyspark_version

__version__ = "0.1.0"
if sys.platform != "linux":
    raise ImportError("Holdfast runs on Linux only: use a Linux container, or WSL 2 on Windows")
_HOMES = {
    "barriers": ["BarrierFlags", "BarrierHandle", "BarrierInjector", "CheckpointBarrier", "StreamMessage"],
    "formats.blocks": ["BlockDevice", "MemoryBlocks"],
    "eventlog.cursor": ["Cursor", "DurableCursor", "Gap"],
    "difference": ["Difference", "KeyCounts", "diff"],
    "epoch": ["Attempt", "Decision", "Verdict"],
    "errors": ["HoldfastError"],
    "eventlog.log": ["EventLog"],
    "eventlog.writer": ["LogWriter"],
    "formats.manifest": ["Manifest", "StreamCut", "pipeline_hash"],
    "policy": ["Backoff", "CheckpointPolicy", "IntervalPolicy", "RestartPolicy", "Retention"],
    "pruning": ["Pruned", "PrunePlan", "apply_prune", "plan_prune"],
    "recovery": ["RecoveryPlan"],
    "eventlog.region": ["KindFilter", "Region"],
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
    "control": ["answer_requests", "request_prune"],
    "restore": ["RestorePlan", "plan_restore", "restore_stream", "stage_states"],
    "eventlog.segment": ["LogEvent", "NewEvent"],
    "formats.sidecar": ["pack_states"],
    "sinks.base": ["EpochKey", "Link", "StreamIdentity", "SinkContext", "Sink", "Staged", "SinkPosition"],
    "sinks.compaction.apply": ["Compacted", "apply_compact"],
    "sinks.compaction.plan": ["CompactPlan", "plan_compact"],
    "sinks.files.sink": ["FileSink"],
    "sinks.foreach": ["ForeachKey", "ForeachSink"],
    "sinks.log": ["LogSink"],
    "sinks.places": ["FilePlace", "file_sinks"],
    "sinks.postgres.sink": ["PostgresSink"],
    "sinks.sqlite": ["SqliteSink"],
    "spark.logsource": ["read_log", "read_log_stream"],
    "spark.outages": ["Outage"],
    "spark.pipeline": ["Pipeline", "exactly_once"],
    "spark.handle": ["PipelineHandle"],
    "spark.pipeline_status": ["CheckpointStatus", "PipelineStatus"],
    "spark.context": ["StreamCallbacks"],
    "spark.status": ["StreamStatus"],
    "spark.statereader": ["diff_keys", "read_data"],
    "stages": ["CheckpointedStage", "EdgeCheckpoint", "FlushObserver", "MsgpackCodec", "Stage", "StageView"],
    "formats.state": ["CheckpointId", "CheckpointState"],
    "stores": ["CheckpointStore", "Checkpointer", "DurableCheckpointStore", "MemoryCheckpointStore"],
    "verification": ["Finding", "Grade", "Verification", "verify", "verify_all"],
    "eventlog.worker": [
        "Action",
        "AtLeastOnce",
        "Batch",
        "WorkerCallbacks",
        "CursorWorker",
        "Quarantined",
        "read_quarantine",
        "WorkerHandle",
    ],
}
_MODULES = ("errors", "testing")
_ON_SPARK = tuple(home for home in _HOMES if home.startswith("spark."))
_WITH_SPARK = ("sinks.files.sink", "sinks.foreach", "sinks.log", "sinks.postgres.sink", "sinks.sqlite", *_ON_SPARK)
_NEEDS = {  # package -> the modules that cannot be loaded without it
    "pyarrow": (
        "eventlog.cursor",
        "eventlog.log",
        "eventlog.writer",
        "eventlog.segment",
        "eventlog.worker",
        "sinks.log",
        "sinks.postgres.sink",
        *_ON_SPARK,
    ),
    "pyspark": _WITH_SPARK,
    "py4j": _WITH_SPARK,
    "psycopg": ("sinks.postgres.sink",),
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
    from holdfast.barriers import BarrierFlags as BarrierFlags
    from holdfast.barriers import BarrierHandle as BarrierHandle
    from holdfast.barriers import BarrierInjector as BarrierInjector
    from holdfast.barriers import CheckpointBarrier as CheckpointBarrier
    from holdfast.barriers import StreamMessage as StreamMessage
    from holdfast.control import answer_requests as answer_requests
    from holdfast.control import request_prune as request_prune
    from holdfast.difference import Difference as Difference
    from holdfast.difference import KeyCounts as KeyCounts
    from holdfast.difference import diff as diff
    from holdfast.epoch import Attempt as Attempt
    from holdfast.epoch import Decision as Decision
    from holdfast.epoch import Verdict as Verdict
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.eventlog.cursor import Cursor as Cursor
    from holdfast.eventlog.cursor import DurableCursor as DurableCursor
    from holdfast.eventlog.cursor import Gap as Gap
    from holdfast.eventlog.log import EventLog as EventLog
    from holdfast.eventlog.region import KindFilter as KindFilter
    from holdfast.eventlog.region import Region as Region
    from holdfast.eventlog.segment import LogEvent as LogEvent
    from holdfast.eventlog.segment import NewEvent as NewEvent
    from holdfast.eventlog.worker import Action as Action
    from holdfast.eventlog.worker import AtLeastOnce as AtLeastOnce
    from holdfast.eventlog.worker import Batch as Batch
    from holdfast.eventlog.worker import CursorWorker as CursorWorker
    from holdfast.eventlog.worker import Quarantined as Quarantined
    from holdfast.eventlog.worker import WorkerCallbacks as WorkerCallbacks
    from holdfast.eventlog.worker import WorkerHandle as WorkerHandle
    from holdfast.eventlog.worker import read_quarantine as read_quarantine
    from holdfast.eventlog.writer import LogWriter as LogWriter
    from holdfast.formats.blocks import BlockDevice as BlockDevice
    from holdfast.formats.blocks import MemoryBlocks as MemoryBlocks
    from holdfast.formats.manifest import Manifest as Manifest
    from holdfast.formats.manifest import StreamCut as StreamCut
    from holdfast.formats.manifest import pipeline_hash as pipeline_hash
    from holdfast.formats.sidecar import pack_states as pack_states
    from holdfast.formats.state import CheckpointId as CheckpointId
    from holdfast.formats.state import CheckpointState as CheckpointState
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
    from holdfast.restore import RestorePlan as RestorePlan
    from holdfast.restore import plan_restore as plan_restore
    from holdfast.restore import restore_stream as restore_stream
    from holdfast.restore import stage_states as stage_states
    from holdfast.sinks.base import EpochKey as EpochKey
    from holdfast.sinks.base import Link as Link
    from holdfast.sinks.base import Sink as Sink
    from holdfast.sinks.base import SinkContext as SinkContext
    from holdfast.sinks.base import SinkPosition as SinkPosition
    from holdfast.sinks.base import Staged as Staged
    from holdfast.sinks.base import StreamIdentity as StreamIdentity
    from holdfast.sinks.compaction.apply import Compacted as Compacted
    from holdfast.sinks.compaction.apply import apply_compact as apply_compact
    from holdfast.sinks.compaction.plan import CompactPlan as CompactPlan
    from holdfast.sinks.compaction.plan import plan_compact as plan_compact
    from holdfast.sinks.files.sink import FileSink as FileSink
    from holdfast.sinks.foreach import ForeachKey as ForeachKey
    from holdfast.sinks.foreach import ForeachSink as ForeachSink
    from holdfast.sinks.log import LogSink as LogSink
    from holdfast.sinks.places import FilePlace as FilePlace
    from holdfast.sinks.places import file_sinks as file_sinks
    from holdfast.sinks.postgres.sink import PostgresSink as PostgresSink
    from holdfast.sinks.sqlite import SqliteSink as SqliteSink
    from holdfast.spark.context import StreamCallbacks as StreamCallbacks
    from holdfast.spark.handle import PipelineHandle as PipelineHandle
    from holdfast.spark.logsource import read_log as read_log
    from holdfast.spark.logsource import read_log_stream as read_log_stream
    from holdfast.spark.outages import Outage as Outage
    from holdfast.spark.pipeline import Pipeline as Pipeline
    from holdfast.spark.pipeline import exactly_once as exactly_once
    from holdfast.spark.pipeline_status import CheckpointStatus as CheckpointStatus
    from holdfast.spark.pipeline_status import PipelineStatus as PipelineStatus
    from holdfast.spark.statereader import diff_keys as diff_keys
    from holdfast.spark.statereader import read_data as read_data
    from holdfast.spark.status import StreamStatus as StreamStatus
    from holdfast.stages import CheckpointedStage as CheckpointedStage
    from holdfast.stages import EdgeCheckpoint as EdgeCheckpoint
    from holdfast.stages import FlushObserver as FlushObserver
    from holdfast.stages import MsgpackCodec as MsgpackCodec
    from holdfast.stages import Stage as Stage
    from holdfast.stages import StageView as StageView
    from holdfast.stores import Checkpointer as Checkpointer
    from holdfast.stores import CheckpointStore as CheckpointStore
    from holdfast.stores import DurableCheckpointStore as DurableCheckpointStore
    from holdfast.stores import MemoryCheckpointStore as MemoryCheckpointStore
    from holdfast.verification import Finding as Finding
    from holdfast.verification import Grade as Grade
    from holdfast.verification import Verification as Verification
    from holdfast.verification import verify as verify
    from holdfast.verification import verify_all as verify_all

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
