"""Logical plans: what a streaming DataFrame reads, and what state it keeps."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Mapping
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


def is_observed(df: DataFrame) -> bool:
    """Whether a DataFrame contains a call of `observe`."""
    return any(node.getClass().getSimpleName() == "CollectMetrics" for node in _nodes(df))


def state_operators(df: DataFrame) -> list[tuple[str, list[str], list[tuple[str, str]]]]:
    """Return the operators that keep state: the kind of each, the types of its keys, and its columns with their types.

    The keys are empty where the plan does not show them: those of joins and of the program's own state.
    """
    found: list[tuple[str, list[str], list[tuple[str, str]]]] = []
    for node in _nodes(df):
        kind = node.getClass().getSimpleName()
        if kind == "Join" and node.left().isStreaming() and node.right().isStreaming():
            found.append((f"Join {node.joinType()}", [], _typed(node)))
        elif kind in _STATEFUL and node.isStreaming():
            found.append((kind, _key_types(kind, node), _typed(node)))
    return found


def _key_types(kind: str, node: Any) -> list[str]:
    if kind == "Aggregate":
        keys = node.groupingExpressions()
    elif kind.startswith("Deduplicate"):
        keys = node.keys()
    elif kind == "Distinct":
        keys = node.output()
    else:
        return []
    return [str(keys.apply(number).dataType().catalogString()) for number in range(keys.size())]


def _typed(node: Any) -> list[tuple[str, str]]:
    output = node.output()
    attributes = (output.apply(number) for number in range(output.size()))
    return [(str(each.name()), str(each.dataType().catalogString())) for each in attributes]


def source_names(df: DataFrame) -> list[str]:
    """Return the names of the streaming sources that a DataFrame reads."""
    return [
        str(node.sourceName())
        for node in _nodes(df)
        if node.getClass().getSimpleName() in ("StreamingRelation", "StreamingRelationV2")
    ]


def inputs(df: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """Return the streaming sources in the order of Spark's offsets: the name and the options of each.

    A source that the plan contains twice is there twice. The name of a file source is `FileSource[<path>]`.
    """
    return [(str(node.sourceName()), options_of(node)) for node in streaming_relations(df)]


def streaming_relations(df: DataFrame) -> list[Any]:
    """Return the nodes of the streaming sources, in the order of Spark's offsets."""
    found: list[Any] = []
    pending = [df._jdf.queryExecution().analyzed()]
    while pending:
        node = pending.pop()
        kind = node.getClass().getSimpleName()
        if kind in ("StreamingRelation", "StreamingRelationV2"):
            found.append(node)
        children = node.children()
        pending += [children.apply(number) for number in reversed(range(children.size()))]
    return found


def options_of(node: Any) -> dict[str, str]:
    """Return the options of a streaming source, with their names in lower case."""
    if node.getClass().getSimpleName() == "StreamingRelationV2":
        return {str(name).lower(): str(value) for name, value in node.extraOptions().asCaseSensitiveMap().items()}
    pairs, found = node.dataSource().options().iterator(), {}
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair._1()).lower()] = str(pair._2())
    return found


def source_paths(df: DataFrame, name: str) -> list[str]:
    """Return the distinct paths or addresses that sources with this name read."""
    nodes = (node for node in _nodes(df) if node.getClass().getSimpleName() == "StreamingRelationV2")
    found = (node.extraOptions().get("path") for node in nodes if node.sourceName() == name)
    return [str(each) for each in dict.fromkeys(found) if each is not None]


def file_inputs(df: DataFrame, query: StreamingQuery) -> list[FileInput]:
    """Return what each file source of a running query reads from the local disk."""
    options: dict[str, dict[str, str]] = {}
    for node in _nodes(df):
        if node.getClass().getSimpleName() == "StreamingRelation":
            given = options_of(node)
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


def run_for_nothing(df: DataFrame) -> None:
    """Run a DataFrame and discard its rows, so that Spark rebuilds the state that it keeps."""
    df.write.format("noop").mode("overwrite").save()
