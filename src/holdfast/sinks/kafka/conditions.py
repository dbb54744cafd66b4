"""Conditions that a row must meet to become a record that the server accepts, in Spark SQL.

Rules:
- They describe the topic of the sink, as `open` found it. A row that names another topic in `topic_column` is checked
  only where all topics agree: that topic is looked up after Spark has staged the rows.
- `check_records` refuses the whole epoch for the same reasons. So a row that meets the conditions may still be refused:
  because of its topic, or because a timestamp was within the limit of the topic when Spark compared it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.sinks.kafka.cluster import TopicFacts
from holdfast.sinks.kafka.records import RecordColumns, bad_headers, header_bytes
from holdfast.sinks.kafka.staged import OVERHEAD
from holdfast.sinks.rows import not_null, quoted

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def record_conditions(columns: RecordColumns, topic: TopicFacts, schema: StructType) -> dict[str, str]:
    """Return the conditions by name."""
    return dict(_conditions(columns, topic, schema))


def _conditions(columns: RecordColumns, topic: TopicFacts, schema: StructType) -> Iterator[tuple[str, str]]:
    elsewhere = _elsewhere(columns, topic)
    headers = _listed_headers(columns, schema)
    yield "the record is too large", f"{elsewhere}{_size(columns, schema)} <= {topic.bytes - OVERHEAD}"
    if isinstance(columns.key, str) and topic.compacted:
        yield f"{columns.key} cannot be the key", f"{elsewhere}{not_null(columns.key)}"
    if columns.partition is not None:
        name = quoted(columns.partition)
        fits = f"{name} >= 0 AND ({elsewhere}{name} < {topic.partitions})"
        yield f"{columns.partition} cannot be the partition", f"{name} IS NULL OR ({fits})"
    if columns.timestamp is not None:
        yield f"{columns.timestamp} cannot be the timestamp", _timestamp(quoted(columns.timestamp), topic, elsewhere)
    if columns.headers is not None and headers is not None:
        yield f"{columns.headers} cannot be the headers", f"NOT {bad_headers(headers)}"


def _elsewhere(columns: RecordColumns, topic: TopicFacts) -> str:
    """Return the beginning of a condition that holds for a row of another topic."""
    return "" if columns.topic is None else f"coalesce({quoted(columns.topic)} <> '{topic.name}', false) OR "


def _timestamp(name: str, topic: TopicFacts, elsewhere: str) -> str:
    millis, now = f"unix_millis({name})", "unix_millis(current_timestamp())"
    limits = [f"{millis} <= {now} + {topic.ahead_ms}"] if topic.ahead_ms is not None else []
    limits += [f"{millis} >= {now} - {topic.behind_ms}"] if topic.behind_ms is not None else []
    within = f" AND ({elsewhere}{' AND '.join(limits)})" if limits else ""
    return f"{name} IS NULL OR ({millis} > 0{within})"


def _size(columns: RecordColumns, schema: StructType) -> str:
    """Return the bytes of key, value and headers. Parts that are null have none."""
    value = columns.other_columns(schema) if columns.value is None else columns.value
    parts = [_bytes(each) for each in (columns.key, value) if each is not None]
    headers = _listed_headers(columns, schema)
    return " + ".join([*parts, *([header_bytes(headers)] if headers is not None else [])])


def _bytes(given: str | tuple[str, ...]) -> str:
    if isinstance(given, str):
        return f"coalesce(octet_length({quoted(given)}), 0)"
    listed = ", ".join(map(quoted, given))
    return f"octet_length(to_json(struct({listed}), map('ignoreNullFields', 'false')))"


def _listed_headers(columns: RecordColumns, schema: StructType) -> str | None:
    """Return the headers as a list of pairs."""
    if columns.headers is None:
        return None
    name = quoted(columns.headers)
    kinds = [each.dataType.typeName() for each in schema.fields if each.name.lower() == columns.headers.lower()]
    return f"map_entries({name})" if kinds == ["map"] else name
