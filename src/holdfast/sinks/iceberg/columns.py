"""Which columns of a stream an Iceberg table can store.

Rules:
- A column has the same type in the stream and in the table. A column that is not nested may also be narrower: Spark
  casts it while it writes. `byte` and `short` are stored as `int`, because Iceberg has neither.
- Every column of the stream must be in the table. A column that only the table has is read as null, unless the table
  requires it. Names that differ only in case are the same column.
- Null in a column that the table requires fails the epoch before it is decided. For a nested column that is required,
  and within nested columns, the stream's type must exclude it.
- Iceberg's `uuid`, `fixed`, `time` and the types of format version 3 cannot be written. Nor can Spark's intervals,
  `variant`, `time` and user-defined types.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg import types as ice
from pyiceberg.schema import Schema, index_by_name

from holdfast.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as t

PLAIN: dict[str, ice.PrimitiveType] = {  # by the name of Spark's type
    "boolean": ice.BooleanType(),
    "byte": ice.IntegerType(),
    "short": ice.IntegerType(),
    "integer": ice.IntegerType(),
    "long": ice.LongType(),
    "float": ice.FloatType(),
    "double": ice.DoubleType(),
    "string": ice.StringType(),
    "char": ice.StringType(),
    "varchar": ice.StringType(),
    "binary": ice.BinaryType(),
    "date": ice.DateType(),
    "timestamp": ice.TimestamptzType(),
    "timestamp_ntz": ice.TimestampType(),
}
_WIDER = {("int", "long"): "bigint", ("float", "double"): "double"}  # the stream's type, the table's, and Spark's name
_NARROW = ("byte", "short")


class Unfit(Exception):
    """A column does not fit. It is raised as `SchemaMismatch`."""


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of the stream, and how the table stores it."""

    name: str  # in the stream
    field: ice.NestedField  # of the table
    cast: str | None  # the type to which Spark casts it

    @property
    def is_unchanged(self) -> bool:
        """Whether Spark writes the column as it is."""
        return self.cast is None and self.name == self.field.name

    def selected(self) -> Column:
        """Return the column as Spark writes it."""
        from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

        column = f.col(quoted(self.name))
        return (column.cast(self.cast) if self.cast else column).alias(self.field.name)


def table_schema(schema: t.StructType, sink: str, table: str) -> Schema:
    """Return the columns of a new table. The catalog gives them other ids."""
    ids = itertools.count(1)
    try:
        found = Schema(*_fields(schema, ids, ""))
        index_by_name(found)
    except (Unfit, ValueError) as unfit:  # `ValueError`: a column `a.b` beside a field `b` of a struct `a`
        raise SchemaMismatch(sink=sink, table=table, why=str(unfit)) from None
    return found


def stored_columns(schema: t.StructType, table: Schema, sink: str, name: str) -> list[StoredColumn]:
    """Compare the stream's columns with the table's, and return how each is stored; raise `SchemaMismatch`."""
    try:
        return list(_stored(schema, table))
    except Unfit as unfit:
        raise SchemaMismatch(sink=sink, table=name, why=str(unfit)) from None


def _stored(schema: t.StructType, table: Schema) -> Iterator[StoredColumn]:
    found: dict[str, str] = {}
    for each in schema.fields:
        field = _found(each.name, table.fields)
        if field is None:
            raise Unfit(f"it has no column {each.name!r}")
        if field.name in found:
            raise Unfit(f"the columns {found[field.name]!r} and {each.name!r} of the stream have the same name in it")
        found[field.name] = each.name
        if not field.field_type.is_primitive:
            _require_nulls(each.nullable, field.required, each.name)
        yield StoredColumn(each.name, field, _cast(each.dataType, field, each.name))
    for field in table.fields:
        if field.required and field.name not in found:
            raise Unfit(f"it requires the column {field.name!r}, which the stream does not have")


def quoted(name: str) -> str:
    """Return the name of a column as Spark reads it."""
    return f"`{name.replace('`', '``')}`"


def _found(name: str, fields: tuple[ice.NestedField, ...]) -> ice.NestedField | None:
    exact = [field for field in fields if field.name == name]
    loose = [field for field in fields if field.name.lower() == name.lower()]
    return next(iter(exact or loose), None)


def _cast(kind: t.DataType, field: ice.NestedField, path: str) -> str | None:
    """Return the type to which Spark casts a column, or `None`; raise `Unfit` if it does not fit."""
    name, target = kind.typeName(), field.field_type
    if name in ("array", "map", "struct"):
        _require_same(kind, target, path)
        return None
    own = _primitive(kind, path)
    if own == target:
        return "int" if name in _NARROW else None
    if not can_widen(own, target):
        raise Unfit(f"its column {path!r} is {target}, but the stream's is {own}")
    return _WIDER.get((str(own), str(target))) or str(target).replace(" ", "")  # decimal(10, 2)


def can_widen(own: ice.IcebergType, target: ice.IcebergType) -> bool:
    """Whether each value of a type is also one of the other type."""
    if isinstance(own, ice.DecimalType) and isinstance(target, ice.DecimalType):
        return own.scale == target.scale and own.precision <= target.precision
    return (str(own), str(target)) in _WIDER


def _require_same(kind: Any, target: ice.IcebergType, path: str) -> None:
    """Require the same type, within nested columns."""
    match kind.typeName(), target:
        case "array", ice.ListType():
            _require_nulls(kind.containsNull, target.element_required, f"{path}.element")
            _require_same(kind.elementType, target.element_type, f"{path}.element")
        case "map", ice.MapType():
            _require_nulls(kind.valueContainsNull, target.value_required, f"{path}.value")
            _require_same(kind.keyType, target.key_type, f"{path}.key")
            _require_same(kind.valueType, target.value_type, f"{path}.value")
        case "struct", ice.StructType():
            _require_same_fields(kind, target, path)
        case "array" | "map" | "struct", _:
            raise Unfit(f"its column {path!r} is {target}, but the stream's is {kind.simpleString()}")
        case name, _:
            own = _primitive(kind, path)
            if own != target or name in _NARROW:
                do = "cast it in the query: Spark does not widen values within a nested column"
                raise Unfit(f"its column {path!r} is {target}, but the stream's is {kind.simpleString()}; {do}")


def _require_same_fields(kind: Any, target: ice.StructType, path: str) -> None:
    fields = {field.name: field for field in target.fields}
    for each in kind.fields:
        if each.name not in fields:
            raise Unfit(f"its column {path!r} has no field {each.name!r}")
        field = fields.pop(each.name)
        _require_nulls(each.nullable, field.required, f"{path}.{each.name}")
        _require_same(each.dataType, field.field_type, f"{path}.{each.name}")
    for field in fields.values():
        if field.required:
            raise Unfit(f"its column {path!r} requires the field {field.name!r}, which the stream does not have")


def _require_nulls(may_be_null: bool, required: bool, path: str) -> None:
    if may_be_null and required:
        raise Unfit(f"it requires {path!r}, which may be null in the stream")


def _primitive(kind: t.DataType, path: str) -> ice.PrimitiveType:
    name = kind.typeName()
    if name == "decimal":
        return ice.DecimalType(kind.precision, kind.scale)
    if name not in PLAIN:
        raise Unfit(f"column {path!r} of the stream is {kind.simpleString()}, which Iceberg does not have")
    return PLAIN[name]


def _type(kind: Any, ids: Iterator[int], path: str) -> ice.IcebergType:
    match kind.typeName():
        case "array":
            element = next(ids)
            return ice.ListType(
                element_id=element,
                element_type=_nested(kind.elementType, ids, f"{path}.element"),
                element_required=not kind.containsNull,
            )
        case "map":
            key, value = next(ids), next(ids)
            return ice.MapType(
                key_id=key,
                key_type=_nested(kind.keyType, ids, f"{path}.key"),
                value_id=value,
                value_type=_nested(kind.valueType, ids, f"{path}.value"),
                value_required=not kind.valueContainsNull,
            )
        case "struct":
            if not kind.fields:
                raise Unfit(f"column {path!r} of the stream is a struct without fields")
            return ice.StructType(*_fields(kind, ids, f"{path}."))
        case _:
            return _primitive(kind, path)


def _nested(kind: Any, ids: Iterator[int], path: str) -> ice.IcebergType:
    if kind.typeName() in _NARROW:
        raise Unfit(f"column {path!r} of the stream is {kind.simpleString()}, which Iceberg does not have; cast to int")
    return _type(kind, ids, path)


def _fields(schema: Any, ids: Iterator[int], above: str) -> list[ice.NestedField]:
    of = _nested if above else _type
    return [
        ice.NestedField(
            field_id=next(ids),
            name=each.name,
            field_type=of(each.dataType, ids, f"{above}{each.name}"),
            required=bool(above) and not each.nullable,
        )
        for each in schema.fields
    ]
