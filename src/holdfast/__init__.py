"""Exactly-once output and checkpoints for PySpark streaming pipelines.

Public are the names below, and those that these submodules list in their `__all__`:

- `holdfast.errors`: all errors.
- `holdfast.sinks`: compaction, and what the author of a sink needs beyond the names here.
- `holdfast.eventlog`: event logs, cursors and workers, without Spark.
- `holdfast.repository`, `holdfast.stores`: where everything durable is kept; bounded stores of checkpoint states.
- `holdfast.barriers`, `holdfast.stages`, `holdfast.epoch`, `holdfast.recovery`, `holdfast.policy`: the protocols.
- `holdfast.formats`: bytes on disk. `holdfast.spark`: what needs a Spark session.
- `holdfast.verification`, `holdfast.difference`, `holdfast.rewind`, `holdfast.control`: the plans, options and
  results of the functions above.
- `holdfast.pruning`, `holdfast.restore`, `holdfast.plainspark`: less common tasks.
- `holdfast.testing`: for tests of your own sinks and pipelines.

Everything else may change at any time. Each name is imported at its first use.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._lazy import attach

__version__ = "0.1.0"
__distribution__ = "holdfast-spark"  # `holdfast_spark` recognises this package by it
if sys.platform != "linux":
    raise ImportError("Holdfast runs on Linux only: use a Linux container, or WSL 2 on Windows")
for _other in Path(__file__).parents[1].glob("holdfast-*.dist-info"):
    import warnings

    warnings.warn(
        f"another distribution named 'holdfast' ({_other.stem}) is installed beside {__distribution__}; both own the "
        f"same files. Next: pip uninstall holdfast, then pip install --force-reinstall --no-deps {__distribution__}",
        stacklevel=2,
    )
_HOMES = {
    "difference": ["diff"],
    "errors": ["HoldfastError"],
    "formats.manifest": ["Manifest"],
    "policy": ["Backoff", "CheckpointPolicy", "RestartPolicy", "Retention"],
    "repository": ["Checkpoints", "open_repository"],
    "rewind.forking": ["fork"],
    "rewind": ["apply_rewind", "plan_rewind", "plan_undo"],
    "sinks.base": ["EpochKey", "Sink", "SinkContext", "SinkPosition", "Staged", "StreamIdentity"],
    "sinks.delta.sink": ["DeltaSink"],
    "sinks.files.sink": ["FileSink"],
    "sinks.foreach": ["ForeachSink"],
    "sinks.iceberg.sink": ["IcebergSink"],
    "sinks.kafka.sink": ["KafkaSink"],
    "sinks.log": ["LogSink"],
    "sinks.marker.sink": ["MarkerSink"],
    "sinks.postgres.sink": ["PostgresSink"],
    "sinks.sqlite": ["SqliteSink"],
    "spark.context": ["StreamCallbacks"],
    "spark.handle": ["PipelineHandle"],
    "spark.kafka_reading": ["read_kafka"],
    "spark.localfiles": ["local_files"],
    "spark.logsource": ["read_log", "read_log_stream"],
    "spark.pipeline": ["Pipeline", "exactly_once"],
    "spark.pipeline_status": ["PipelineStatus"],
    "spark.session": ["embedded"],
    "spark.status": ["StreamStatus"],
    "stages": ["Stage"],
    "verification": ["verify"],
}
_MODULES = (
    "barriers",
    "control",
    "difference",
    "doctor",
    "epoch",
    "errors",
    "eventlog",
    "formats",
    "plainspark",
    "policy",
    "pruning",
    "recovery",
    "repository",
    "restore",
    "rewind",
    "sinks",
    "spark",
    "stages",
    "stores",
    "testing",
    "verification",
)
_ON_SPARK = tuple(home for home in _HOMES if home.startswith("spark."))
_NEEDS = {  # optional package -> the modules that cannot be imported without it
    "pyarrow": ("rewind.forking", "sinks.iceberg.sink", "sinks.log", *_ON_SPARK),
    "pyspark": _ON_SPARK,
    "py4j": _ON_SPARK,
    "psycopg": ("sinks.postgres.sink",),
    "pyiceberg": ("sinks.iceberg.sink",),
    "sqlalchemy": ("sinks.iceberg.sink",),
    "confluent_kafka": ("sinks.kafka.sink",),
}
_getattr, _, _public = attach("holdfast", _HOMES, modules=_MODULES, needs=_NEEDS)
__all__ = ["__version__", *_public]  # noqa: PLE0604 - a list of str

if TYPE_CHECKING:
    from holdfast import barriers as barriers
    from holdfast import control as control
    from holdfast import difference as difference
    from holdfast import doctor as doctor
    from holdfast import epoch as epoch
    from holdfast import errors as errors
    from holdfast import eventlog as eventlog
    from holdfast import formats as formats
    from holdfast import plainspark as plainspark
    from holdfast import policy as policy
    from holdfast import pruning as pruning
    from holdfast import recovery as recovery
    from holdfast import repository as repository
    from holdfast import restore as restore
    from holdfast import rewind as rewind
    from holdfast import sinks as sinks
    from holdfast import spark as spark
    from holdfast import stages as stages
    from holdfast import stores as stores
    from holdfast import testing as testing
    from holdfast import verification as verification
    from holdfast.difference import diff as diff
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.formats.manifest import Manifest as Manifest
    from holdfast.policy import Backoff as Backoff
    from holdfast.policy import CheckpointPolicy as CheckpointPolicy
    from holdfast.policy import RestartPolicy as RestartPolicy
    from holdfast.policy import Retention as Retention
    from holdfast.repository import Checkpoints as Checkpoints
    from holdfast.repository import open_repository as open_repository
    from holdfast.rewind import apply_rewind as apply_rewind
    from holdfast.rewind import plan_rewind as plan_rewind
    from holdfast.rewind import plan_undo as plan_undo
    from holdfast.rewind.forking import fork as fork
    from holdfast.sinks.base import EpochKey as EpochKey
    from holdfast.sinks.base import Sink as Sink
    from holdfast.sinks.base import SinkContext as SinkContext
    from holdfast.sinks.base import SinkPosition as SinkPosition
    from holdfast.sinks.base import Staged as Staged
    from holdfast.sinks.base import StreamIdentity as StreamIdentity
    from holdfast.sinks.delta.sink import DeltaSink as DeltaSink
    from holdfast.sinks.files.sink import FileSink as FileSink
    from holdfast.sinks.foreach import ForeachSink as ForeachSink
    from holdfast.sinks.iceberg.sink import IcebergSink as IcebergSink
    from holdfast.sinks.kafka.sink import KafkaSink as KafkaSink
    from holdfast.sinks.log import LogSink as LogSink
    from holdfast.sinks.marker.sink import MarkerSink as MarkerSink
    from holdfast.sinks.postgres.sink import PostgresSink as PostgresSink
    from holdfast.sinks.sqlite import SqliteSink as SqliteSink
    from holdfast.spark.context import StreamCallbacks as StreamCallbacks
    from holdfast.spark.handle import PipelineHandle as PipelineHandle
    from holdfast.spark.kafka_reading import read_kafka as read_kafka
    from holdfast.spark.localfiles import local_files as local_files
    from holdfast.spark.logsource import read_log as read_log
    from holdfast.spark.logsource import read_log_stream as read_log_stream
    from holdfast.spark.pipeline import Pipeline as Pipeline
    from holdfast.spark.pipeline import exactly_once as exactly_once
    from holdfast.spark.pipeline_status import PipelineStatus as PipelineStatus
    from holdfast.spark.session import embedded as embedded
    from holdfast.spark.status import StreamStatus as StreamStatus
    from holdfast.stages import Stage as Stage
    from holdfast.verification import verify as verify
else:  # a type checker must see misspelt names
    __getattr__ = _getattr


def __dir__() -> list[str]:
    return sorted(__all__)
