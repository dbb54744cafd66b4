"""Logical plans: what a streaming DataFrame reads, and what state it keeps."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import BadValue, MissingExtra
from holdfast.spark.unread import FileInput

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "GlobalLimit",
    "LocalLimit",
    "TransformWithState",
    "TransformWithStateInPySpark",
}
_STATEFUL_PROCESSORS_NEED = ("google.protobuf", "pandas")
_FILE_SOURCE = re.compile(r"FileStreamSource\[(?:file:)?(/.*)\]")


def _nodes(df: DataFrame) -> Iterator[Any]:
    pending = [df._jdf.queryExecution().analyzed()]
    while pending:
        node = pending.pop()
        yield node
        children = node.children()
        pending += [children.apply(number) for number in range(children.size())]


def is_stateful(df: DataFrame) -> bool:
    """Whether a streaming DataFrame keeps state from batch to batch."""
    for node in _nodes(df):
        kind = node.getClass().getSimpleName()
        if kind in _STATEFUL and node.isStreaming():
            return True
        if kind == "Join" and node.left().isStreaming() and node.right().isStreaming():
            return True
    return False


def state_schemas(df: DataFrame) -> list[str]:
    """Describe the state that a streaming DataFrame keeps: the kind and the columns of each operator."""
    nodes = ((node.getClass().getSimpleName(), node) for node in _nodes(df))
    return [f"{kind} {node.schema().json()}" for kind, node in nodes if kind in _STATEFUL and node.isStreaming()]


def source_names(df: DataFrame) -> list[str]:
    """Return the names of the streaming sources that a DataFrame reads."""
    return [
        str(node.sourceName())
        for node in _nodes(df)
        if node.getClass().getSimpleName() in ("StreamingRelation", "StreamingRelationV2")
    ]


def source_paths(df: DataFrame, name: str) -> list[Path]:
    """Return the distinct paths that sources with this name read."""
    nodes = (node for node in _nodes(df) if node.getClass().getSimpleName() == "StreamingRelationV2")
    found = (node.extraOptions().get("path") for node in nodes if node.sourceName() == name)
    return [Path(each) for each in dict.fromkeys(found) if each is not None]


def file_inputs(df: DataFrame, query: StreamingQuery) -> list[FileInput]:
    """Return what each file source of a running query reads from the local disk."""
    options: dict[str, dict[str, str]] = {}
    for node in _nodes(df):
        if node.getClass().getSimpleName() == "StreamingRelation":
            found, given = node.dataSource().options().iterator(), {}
            while found.hasNext():
                pair = found.next()
                given[str(pair._1()).lower()] = str(pair._2())
            options[_plain_path(given.get("path", ""))] = given
    sources = query._jsq.streamingQuery().sources()
    named = [_FILE_SOURCE.fullmatch(str(sources.apply(number).toString())) for number in range(sources.size())]
    places = {number: _plain_path(match[1]) for number, match in enumerate(named) if match}
    return [FileInput(number, path, options[path]) for number, path in places.items() if path in options]


def _plain_path(path: str) -> str:
    """Return the path of a local file or folder as Spark lists it: absolute, without a scheme."""
    plain = re.sub(r"^file:(//(?=/))?", "", path)
    return os.path.abspath(plain)  # noqa: PTH100 - Spark does not resolve symbolic links either


def require_trigger(spark: SparkSession, trigger: Mapping[str, Any]) -> None:
    """Refuse a processing time that Spark cannot parse: Spark reports it only when the query starts."""
    text = trigger.get("processingTime")
    if text is None:
        return
    jvm: Any = spark._jvm
    try:
        jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(text)
    except (PySparkException, Py4JError) as error:
        why = str(error).split(" SQLSTATE: ", maxsplit=1)[0].splitlines()[0]
        do = 'pass a processing time such as "10 seconds" or "1 minute"'
        raise BadValue(what="trigger", value=text, why=why, do=do) from error


def require_packages(df: DataFrame) -> None:
    """Refuse a query whose Python worker would crash without a message because a package is missing."""
    kinds = {node.getClass().getSimpleName() for node in _nodes(df)}
    if not any(kind.startswith("TransformWithStateInPySpark") for kind in kinds):
        return
    for module in _STATEFUL_PROCESSORS_NEED:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingExtra(extra="spark", module=module) from error


@contextlib.contextmanager
def frozen(df: DataFrame) -> Iterator[DataFrame]:
    """Compute the rows once and keep them for several actions.

    This is an eager local checkpoint, not `persist`. A persisted partition that is lost with its executor would be
    computed again, into different rows if the query is not deterministic. A lost checkpoint block fails the attempt.
    """
    kept = df.localCheckpoint(eager=True)
    try:
        yield kept
    finally:
        with contextlib.suppress(Exception):  # the session may have ended
            # `df.unpersist()` would keep the blocks; `rdd.unpersist()` would log a warning at every epoch.
            number = kept._jdf.queryExecution().logical().rdd().id()
            kept.sparkSession.sparkContext._jsc.sc().unpersistRDD(number, False)


def run_for_nothing(df: DataFrame) -> None:
    """Run a DataFrame and discard its rows, so that Spark rebuilds the state that it keeps."""
    df.write.format("noop").mode("overwrite").save()
