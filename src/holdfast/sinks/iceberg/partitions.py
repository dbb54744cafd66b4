"""The partitions of an Iceberg table: how Spark separates the rows, and the value that each file has.

Rules:
- A data file holds rows of one partition. Spark separates them by additional columns, `hf_p0` and so on, because
  `partitionBy` leaves its columns out of the files, and Iceberg needs them there.
- The name of a file's folder determines the partition values exactly. Values of strings and binaries are written as
  hexadecimal digits: an empty string is not null, and no character has to be escaped.
- Times are computed from the microseconds since 1970 in UTC, so the time zone of the session does not matter.
- `float` and `double` cannot be partition columns. Nor can columns within a struct.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyiceberg import transforms as tr
from pyiceberg import types as ice
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from holdfast.errors import BadValue, SchemaMismatch
from holdfast.sinks.iceberg.columns import StoredColumn, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

_CALL = re.compile(r"(?P<transform>[a-z]+)\s*\(\s*(?:(?P<width>\d+)\s*,\s*)?(?P<column>[^()]+?)\s*\)")
_EXPECTED = "columns, or year(c), month(c), day(c), hour(c), bucket(16, c), truncate(4, c)"
_TIMES: dict[str, Callable[[], tr.Transform[Any, Any]]] = {
    "year": tr.YearTransform,
    "month": tr.MonthTransform,
    "day": tr.DayTransform,
    "hour": tr.HourTransform,
}
_WIDTHS: dict[str, Callable[[int], tr.Transform[Any, Any]]] = {
    "bucket": tr.BucketTransform,
    "truncate": tr.TruncateTransform,
}
_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000
_FIRST_ID = 1000  # of partition fields, by Iceberg's convention
_HEX = "x"  # begins a value in hexadecimal digits: an empty one would mean null to Spark


@dataclass(frozen=True, slots=True)
class PartitionPart:
    """One part of a partition, as `partition_by` names it."""

    column: str
    transform: tr.Transform[Any, Any]


def parsed_parts(partition_by: str | Sequence[str]) -> list[PartitionPart]:
    """Read the argument `partition_by`."""
    given = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    return [_part(each) for each in given]


def _part(text: object) -> PartitionPart:
    if not isinstance(text, str) or not text.strip():
        raise BadValue(what="partition_by", value=text, expected=_EXPECTED)
    call = _CALL.fullmatch(text.strip())
    if call is None:
        if "(" in text:
            raise BadValue(what="partition_by", value=text, expected=_EXPECTED)
        return PartitionPart(text.strip(), tr.IdentityTransform())
    name, width = call["transform"], call["width"]
    if name in _TIMES and width is None:
        return PartitionPart(call["column"], _TIMES[name]())
    if name in _WIDTHS and width is not None and int(width) > 0:
        return PartitionPart(call["column"], _WIDTHS[name](int(width)))
    raise BadValue(what="partition_by", value=text, expected=_EXPECTED)


def spec_of(parts: Sequence[PartitionPart], schema: Schema, sink: str, table: str) -> PartitionSpec:
    """Return the partition spec of a table with these columns."""
    fields = []
    for number, part in enumerate(parts):
        try:
            source = schema.find_field(part.column)
        except ValueError:
            raise SchemaMismatch(
                sink=sink, table=table, why=f"partition_by names the column {part.column!r}, which it does not have"
            ) from None
        suffix = str(part.transform).partition("[")[0]
        name = part.column if isinstance(part.transform, tr.IdentityTransform) else f"{part.column}_{suffix}"
        fields.append(PartitionField(source.field_id, _FIRST_ID + number, part.transform, name))
    return PartitionSpec(*fields)


def same_parts(one: PartitionSpec, other: PartitionSpec) -> bool:
    """Whether two specs partition in the same way, regardless of the names of their fields."""

    def parts(spec: PartitionSpec) -> list[tuple[int, str]]:
        return [(each.source_id, str(each.transform)) for each in spec.fields if not _is_void(each)]

    return parts(one) == parts(other)


def shown_spec(spec: PartitionSpec, schema: Schema) -> str:
    """Return a spec as `partition_by` writes it, for errors."""
    parts = [(str(each.transform), schema.find_column_name(each.source_id)) for each in spec.fields]
    return ", ".join(f"{transform} of {column}" for transform, column in parts) or "nothing"


class Partitioning:
    """The partitions of one table, for the columns of a stream; raises `SchemaMismatch` if Spark cannot write them."""

    def __init__(self, spec: PartitionSpec, schema: Schema, sink: str, table: str) -> None:
        self._spec = spec
        self._schema = schema
        self._parts = [(number, each) for number, each in enumerate(spec.fields) if not _is_void(each)]
        if taken := {field.name.lower() for field in schema.fields} & set(self.names):
            reserved = f"its column {min(taken)!r} has a name that is needed for its partitions"
            raise SchemaMismatch(sink=sink, table=table, why=reserved, do="rename the column")
        for _, field in self._parts:
            if why := self._unfit(field):
                do = "choose another partition_by, or change the table's partitioning"
                raise SchemaMismatch(sink=sink, table=table, why=f"it is partitioned by {field.name}: {why}", do=do)

    def _unfit(self, field: PartitionField) -> str | None:
        source = self._schema.find_field(field.source_id)
        if source not in self._schema.fields:
            return "its column is within another column"
        kind = source.field_type
        if not isinstance(kind, ice.PrimitiveType) or isinstance(kind, ice.FloatType | ice.DoubleType):
            return f"Spark cannot separate rows by a column of type {kind}"
        if isinstance(field.transform, tr.UnknownTransform) or not field.transform.can_transform(kind):
            return f"{field.transform} is not possible for a column of type {kind}"
        return None

    @property
    def names(self) -> list[str]:
        """The additional columns by which Spark separates the rows."""
        return [f"hf_p{number}" for number, _ in self._parts]

    def columns(self, stored: Sequence[StoredColumn]) -> list[Column]:
        """Return these columns as Spark computes them, from the columns of the table."""
        from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

        present = {each.field.field_id for each in stored}
        return [
            (self._expression(field) if field.source_id in present else f.lit(None).cast("int")).alias(name)
            for name, (_, field) in zip(self.names, self._parts, strict=True)
        ]

    def _expression(self, field: PartitionField) -> Column:
        source = self._schema.find_field(field.source_id)
        return _expression(quoted(source.name), source.field_type, field.transform)

    def record(self, values: Mapping[str, str | None]) -> Record:
        """Return the partition of a file, from the values in its folder's name."""
        found: list[Any] = [None] * len(self._spec.fields)
        for name, (number, field) in zip(self.names, self._parts, strict=True):
            kind = field.transform.result_type(self._schema.find_field(field.source_id).field_type)
            text = values[name]
            found[number] = None if text is None else _value(kind, text)
        return Record(*found)


def _is_void(field: PartitionField) -> bool:
    return isinstance(field.transform, tr.VoidTransform)


def _value(kind: ice.IcebergType, text: str) -> Any:
    """Return the value of a partition from its text. Dates and times are numbers, as in Iceberg's files."""
    match kind:
        case ice.BooleanType():
            return text == "true"
        case ice.DecimalType():
            return Decimal(text)
        case ice.StringType():
            return bytes.fromhex(text.removeprefix(_HEX)).decode()
        case ice.BinaryType():
            return bytes.fromhex(text.removeprefix(_HEX))
        case _:
            return int(text)


def _expression(name: str, kind: ice.IcebergType, transform: tr.Transform[Any, Any]) -> Column:
    """Return a column whose text determines the partition value."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    match transform:
        case tr.BucketTransform():
            return _bucket(name, kind, transform)
        case tr.YearTransform():
            text = f"year({_date(name, kind)}) - 1970"
        case tr.MonthTransform():
            text = f"(year({_date(name, kind)}) - 1970) * 12 + month({_date(name, kind)}) - 1"
        case tr.DayTransform():
            text = f"unix_date({_date(name, kind)})"
        case tr.HourTransform():
            micros = _micros(name, kind)
            text = f"({micros} - pmod({micros}, {_HOUR_US})) div {_HOUR_US}"
        case tr.TruncateTransform():
            text = _text(_truncated(name, kind, transform.width), kind)
        case _:
            text = _text(name, kind)
    return f.expr(text)


def _text(value: str, kind: ice.IcebergType) -> str:
    match kind:
        case ice.StringType() | ice.BinaryType():
            return f"concat('{_HEX}', hex({value}))"
        case ice.DateType():
            return f"unix_date({value})"
        case ice.TimestamptzType() | ice.TimestampType():
            return _micros(value, kind)
        case ice.DecimalType():
            return f"cast({value} as string)"
        case _:
            return value


def _truncated(name: str, kind: ice.IcebergType, width: int) -> str:
    match kind:
        case ice.StringType() | ice.BinaryType():
            return f"substring({name}, 1, {width})"
        case ice.DecimalType():
            precision, scale = kind.precision, kind.scale
            unit = Decimal(width).scaleb(-scale)
            wide = f"cast({name} as decimal(38,{scale}))"
            rest = f"pmod({wide}, cast({unit:f} as decimal(38,{scale})))"
            return f"cast({wide} - {rest} as decimal({precision},{scale}))"
        case _:
            return f"({name} - pmod({name}, {width}))"


def _micros(name: str, kind: ice.IcebergType) -> str:
    if isinstance(kind, ice.TimestamptzType):
        return f"unix_micros({name})"
    days, seconds = f"cast(unix_date(cast({name} as date)) as bigint)", f"extract(SECOND FROM {name})"
    rest = f"hour({name}) * {_HOUR_US} + minute({name}) * 60000000L + cast({seconds} * 1000000 as bigint)"
    return f"({days} * {_DAY_US} + {rest})"  # timestampdiff() would use the time zone of the session


def _date(name: str, kind: ice.IcebergType) -> str:
    if isinstance(kind, ice.DateType):
        return name
    micros = _micros(name, kind)
    return f"date_from_unix_date(cast(({micros} - pmod({micros}, {_DAY_US})) div {_DAY_US} as int))"


def _bucket(name: str, kind: ice.IcebergType, transform: tr.BucketTransform[Any]) -> Column:
    """Spark does not have Iceberg's hash function, so PyIceberg computes it, in Python on the executors."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    source: ice.IcebergType = kind
    column = f.col(name)
    if isinstance(kind, ice.TimestamptzType | ice.TimestampType):
        source, column = ice.LongType(), f.expr(_micros(name, kind))  # the same hash, without a time zone
    elif isinstance(kind, ice.DateType):
        source, column = ice.IntegerType(), f.expr(f"unix_date({name})")
    width = transform.num_buckets

    def bucket(value: Any) -> int | None:
        made = tr.BucketTransform(width).transform(source)
        return made(bytes(value) if isinstance(value, bytearray) else value)

    return f.udf(bucket, "int", useArrow=False)(column)
