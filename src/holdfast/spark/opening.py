"""How a sink is opened for a stream."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.epoch import Reach, unwatched
from holdfast.sinks.base import Sink, SinkContext, StreamIdentity
from holdfast.spark import adapter
from holdfast.spark.store_session import connect_bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


def sink_folder(root: Path | None, stream: str, sink: Sink) -> Path | None:
    """Return the folder in the repository for a sink's own files; `None` if the repository is not on a disk."""
    return None if root is None else root / "sinks" / stream / sink.name


def sink_context(
    df: DataFrame,
    sink: Sink,
    owner: StreamIdentity,
    *,
    spark: SparkSession,
    output_mode: str,
    root: Path | None,
    shared: bool,
    reach: Reach = unwatched,
    freezes: bool = False,
) -> SinkContext:
    """Return the context of a sink.

    - `root`: the folder of the repository, if it is one.
    - `freezes`: the rows must not be computed twice, besides the cases that the DataFrame itself shows.
    """
    name = owner.stream
    return SinkContext(
        owner=owner,
        schema=df.schema,
        output_mode=output_mode,
        spark=spark,
        local=adapter.is_local(spark),
        shared=shared,
        folder=sink_folder(root, name, sink),
        folder_mode=adapter.folder_mode(spark),
        reach=reach,
        collect=adapter.few_rows(spark, freezes=freezes or adapter.is_stateful(df) or adapter.is_observed(df)),
        connect=lambda bucket: connect_bucket(spark, bucket),
        tell=lambda text: _log.warning("stream %s: %s", name, text),
    )
