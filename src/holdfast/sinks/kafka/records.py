"""The records of a stream: which columns become key, value, headers, timestamp, partition and topic of a record.

Spark computes them before the rows are staged. So a staged file has only what Kafka stores, under the names below, and
a commit needs no settings of the sink.

Rules:
- `key` and `value` are one column of type string or binary, as it is; or several columns as a JSON object.
- Without `value`, it is a JSON object of all columns, except for those that `topic_column`, `partition` and `headers`
  name. Null fields are included.
- A record without a timestamp gets that of its commit. One without a topic goes to the topic of the sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadValue, SchemaMismatch
from holdfast.sinks.rows import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

TOPIC, PARTITION, TIMESTAMP, KEY, VALUE, HEADERS = "topic", "partition", "timestamp", "key", "value", "headers"
LARGEST, UNKEYED, BAD_HEADERS, EARLIEST, LATEST = "largest", "unkeyed", "bad_headers", "earliest", "latest"
_JSON = {"ignoreNullFields": "false"}


def checked_columns(what: str, given: object) -> str | tuple[str, ...] | None:
    """Return the name of a column, or the names of several, that were passed for a part of a record."""
    if given is None or (isinstance(given, str) and given):
        return given
    listed = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if not listed or len(set(listed)) < len(listed) or not all(isinstance(name, str) and name for name in listed):
        raise BadValue(what=what, value=given, expected="the name of a column, or a list of different names for JSON")
    return listed


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Which columns of a stream form a record."""

    key: str | tuple[str, ...] | None = None
    value: str | tuple[str, ...] | None = None
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    topic: str | None = None

    def check(self, sink: str, topic: str, schema: StructType, spark: SparkSession) -> None:
        """Refuse columns that do not exist, or whose types cannot become a part of a record."""
        try:
            self.of(spark.createDataFrame([], schema), sink, topic).schema  # noqa: B018 - this analyses the expressions
        except SchemaMismatch:
            raise
        except Exception as error:  # AnalysisException, of a type that JSON lacks
            raise _unfit(sink, topic, f"Spark cannot write its columns as JSON: {_first_line(error)}") from None

    def other_columns(self, schema: StructType) -> tuple[str, ...]:
        """Return the columns of a value that is not given."""
        apart = {each.lower() for each in (self.topic, self.partition, self.headers) if each}
        return tuple(name for name in schema.names if name.lower() not in apart)

    def of(self, df: DataFrame, sink: str, topic: str) -> DataFrame:
        """Return the records of a DataFrame."""
        return df.select(*_RecordBuilder(self, sink, topic, df.schema).parts())


@dataclass(frozen=True, slots=True)
class _RecordBuilder:
    columns: RecordColumns
    sink: str
    topic: str
    schema: StructType

    def parts(self) -> list[Column]:
        from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

        wanted, parts = self.columns, []
        if wanted.topic is not None:
            self._field(wanted.topic, "topic_column", "string")
            parts.append(f.col(quoted(wanted.topic)).alias(TOPIC))
        if wanted.partition is not None:
            self._field(wanted.partition, "partition", "int", "smallint", "tinyint")
            parts.append(f.col(quoted(wanted.partition)).cast("int").alias(PARTITION))
        if wanted.timestamp is not None:
            self._field(wanted.timestamp, "timestamp", "timestamp")
            parts.append(f.unix_millis(f.col(quoted(wanted.timestamp))).alias(TIMESTAMP))
        if wanted.key is not None:
            parts.append(self._bytes(KEY, wanted.key))
        parts.append(self._bytes(VALUE, self._value()))
        if wanted.headers is not None:
            parts.append(self._headers(wanted.headers))
        return parts

    def _value(self) -> str | tuple[str, ...]:
        given = self.columns.other_columns(self.schema) if self.columns.value is None else self.columns.value
        if not given:
            raise self._unfit("no column is left for the value")
        return given

    def _bytes(self, part: str, given: str | tuple[str, ...]) -> Column:
        from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

        if isinstance(given, str):
            self._field(given, part, "string", "binary", more=f"; or pass {part}=[{given!r}] for JSON, or cast it")
            return f.col(quoted(given)).cast("binary").alias(part)
        names = [self._field(name, part).name for name in given]
        if len({name.lower() for name in names}) < len(names):
            raise self._unfit(f"several columns of its {part} have the same name")
        return f.to_json(f.struct(*(f.col(quoted(name)) for name in names)), _JSON).cast("binary").alias(part)

    def _headers(self, name: str) -> Column:
        """Return headers as Spark's own writer takes them; a map is turned into that form."""
        from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

        field = self._field(name, "headers")
        column = f.col(quoted(name))
        if not _is_headers(field.dataType):
            expected = "array<struct<key:string,value:binary>> or map<string,string>"
            raise self._unfit(f"headers={name!r} has the type {field.dataType.simpleString()}, expected {expected}")
        listed = f.map_entries(column) if field.dataType.typeName() == "map" else column
        pair = "array<struct<key:string,value:binary>>"
        return listed.cast(pair).alias(HEADERS)

    def _field(self, name: str, what: str, *types: str, more: str = "") -> StructField:
        found = [field for field in self.schema.fields if field.name == name]
        found = found or [field for field in self.schema.fields if field.name.lower() == name.lower()]
        if len(found) != 1:
            why = "is not a column" if not found else "is the name of several columns"
            raise self._unfit(f"{what}={name!r} {why} of the stream; it has {', '.join(self.schema.names)}")
        kind = found[0].dataType.simpleString()
        if types and kind not in types:
            raise self._unfit(f"{what}={name!r} has the type {kind}, expected {' or '.join(types)}{more}")
        return found[0]

    def _unfit(self, why: str) -> SchemaMismatch:
        return _unfit(self.sink, self.topic, why)


def _unfit(sink: str, topic: str, why: str) -> SchemaMismatch:
    do = "change the arguments of the sink or the stream's columns; nothing was written"
    return SchemaMismatch(sink=sink, table=f"topic {topic}", why=why, do=do)


def _is_headers(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - an extra

    if isinstance(kind, MapType):
        return [kind.keyType.typeName(), kind.valueType.typeName()] in (["string", "string"], ["string", "binary"])
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return [field.name for field in fields] == ["key", "value"] and (
        fields[0].dataType.typeName() == "string" and fields[1].dataType.typeName() in ("string", "binary")
    )


def observed(records: DataFrame) -> tuple[DataFrame, Any]:
    """Return the records, and an observation of what a server may refuse, for one action on them."""
    from pyspark.sql import Observation  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as f  # noqa: PLC0415

    names = set(records.columns)
    sizes = [f.coalesce(f.octet_length(each), f.lit(0)) for each in (KEY, VALUE) if each in names]
    seen = []
    if HEADERS in names:
        sizes.append(f.expr(header_bytes(HEADERS)))
        seen.append(f.expr(f"count_if({bad_headers(HEADERS)})").alias(BAD_HEADERS))
    total = sizes[0]
    for each in sizes[1:]:
        total = total + each
    seen.append(f.max(total).alias(LARGEST))
    if KEY in names:
        seen.append(f.expr(f"count_if({KEY} IS NULL)").alias(UNKEYED))
    if TIMESTAMP in names:
        seen += [f.min(TIMESTAMP).alias(EARLIEST), f.max(TIMESTAMP).alias(LATEST)]
    watched = Observation()
    return records.observe(watched, *seen), watched


def header_bytes(headers: str) -> str:
    """Return the bytes that a list of headers needs, in Spark SQL."""
    pair = "coalesce(octet_length(h.key), 0) + coalesce(octet_length(h.value), 0) + 16"
    return f"coalesce(aggregate({headers}, 0, (total, h) -> total + {pair}), 0)"


def bad_headers(headers: str) -> str:
    """Return whether a header in a list has no name, in Spark SQL."""
    return f"coalesce(exists({headers}, h -> h IS NULL OR h.key IS NULL), false)"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
