"""Type conversion between Spark and the payload of an event log, which has Arrow types.

Every value inside a payload may be null. An Arrow type that Spark lacks is read as the next larger type that Spark has,
in the same way as Spark reads the Parquet file.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import BadValue

if TYPE_CHECKING:
    from pyspark.sql import types as t

_ARROW = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DIGITS = 38  # the most that a Spark decimal may have


@cache
def _spark_types() -> dict[pa.DataType, t.DataType]:
    from pyspark.sql import types as t  # noqa: PLC0415 - an extra

    return {
        pa.bool_(): t.BooleanType(),
        pa.int8(): t.ByteType(),
        pa.int16(): t.ShortType(),
        pa.int32(): t.IntegerType(),
        pa.int64(): t.LongType(),
        pa.uint8(): t.ShortType(),
        pa.uint16(): t.IntegerType(),
        pa.uint32(): t.LongType(),
        pa.uint64(): t.DecimalType(20, 0),
        pa.float16(): t.FloatType(),
        pa.float32(): t.FloatType(),
        pa.float64(): t.DoubleType(),
        pa.string(): t.StringType(),
        pa.large_string(): t.StringType(),
        pa.binary(): t.BinaryType(),
        pa.large_binary(): t.BinaryType(),
        pa.date32(): t.DateType(),
    }


def arrow_of(kind: t.DataType, column: str) -> pa.DataType:
    """Return the Arrow type for a Spark type, or refuse the column."""
    from pyspark.sql import types as t  # noqa: PLC0415 - an extra

    match kind:
        case t.StructType():
            if not kind.fields:
                raise _unfit(kind, column, "Parquet cannot hold a struct without fields")
            return pa.struct([pa.field(each.name, arrow_of(each.dataType, column)) for each in kind.fields])
        case t.ArrayType():
            return pa.list_(pa.field("element", arrow_of(kind.elementType, column)))
        case t.MapType():
            return pa.map_(arrow_of(kind.keyType, column), arrow_of(kind.valueType, column))
        case t.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    found = _ARROW.get(kind.typeName())
    if found is None or isinstance(kind, t.UserDefinedType):
        raise _unfit(kind, column, "an event log has no such type")
    return found


def _unfit(kind: t.DataType, column: str, why: str) -> BadValue:
    do = f"drop the column or write it as text, such as to_json({column})"
    return BadValue(what="column", value=f"{column} {kind.simpleString()}", why=why, do=do)


def spark_of(kind: pa.DataType) -> t.DataType:
    """Return the Spark type for a type in an event log, or refuse it."""
    from pyspark.sql import types as t  # noqa: PLC0415 - an extra

    if pa.types.is_struct(kind):
        return t.StructType([t.StructField(each.name, spark_of(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return t.ArrayType(spark_of(kind.value_type))
    if pa.types.is_map(kind):
        return t.MapType(spark_of(kind.key_type), spark_of(kind.item_type))
    if pa.types.is_decimal(kind) and kind.precision <= _DIGITS and 0 <= kind.scale <= kind.precision:
        return t.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return t.TimestampNTZType() if kind.tz is None else t.TimestampType()
    found = _spark_types().get(kind)
    if found is None:
        raise BadValue(what="payload type", value=str(kind), why="Spark has no such type", do="read it with a Cursor")
    return found
