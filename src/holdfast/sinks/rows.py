"""What several sinks ask of a DataFrame: how many rows an action saw, and an order-free digest of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, StructType

from holdfast._validation import MAX_LENGTH

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def counted(df: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Return the DataFrame and a function that tells, after one action on it, how many rows that action saw."""
    seen = Observation()
    return df.observe(seen, f.count(f.lit(1)).alias("rows")), lambda: int(seen.get["rows"])


class RowDigest:
    """A digest of rows that knows no order, for DataFrames that all have the columns of the first.

    Floating-point columns, and those that cannot be hashed, count by their values that are not null only: a sum of
    doubles may differ in its last bit when its parts come in another order.

    Spark's hash passes over nulls and over the borders of arrays, so both are hashed beside the values.

    The sum of the hashes needs more than 64 bits, and in decimals it would cost as much as all else: so the upper and
    the lower halves are summed up. They hold two thousand million rows; with more the sum is left out.
    """

    def __init__(self, df: DataFrame) -> None:
        fields = df.schema.fields
        others = [field.name for field in fields if not _is_exact(field.dataType)]
        hashed = [
            part
            for field in fields
            if field.name not in others
            for part in _parts(f.col(quoted(field.name)), field.dataType)
        ]
        row = f.xxhash64(*hashed) if hashed else f.lit(0)
        # Made once: each of them is a dozen calls to the JVM.
        self._columns = [
            f.count(f.lit(1)).alias("rows"),
            f.bit_xor(row).alias("xor"),
            f.try_sum(f.shiftright(row, 32)).alias("high"),
            f.try_sum(row.bitwiseAND(f.lit(_LOW))).alias("low"),
            *[f.count(quoted(name)).alias(f"values_{number}") for number, name in enumerate(others)],
        ]
        self._others = len(others)

    def observed(self, df: DataFrame) -> tuple[DataFrame, Callable[[], str]]:
        """Return the DataFrame and a function that tells, after one action on it, the digest of its rows."""
        seen = Observation()

        def tell() -> str:
            found = seen.get
            halves = (found["high"], found["low"])
            total = 0 if None in halves else (halves[0] << 32) + halves[1]
            parts = [found["rows"], found["xor"] or 0, total]
            parts += [found[f"values_{number}"] for number in range(self._others)]
            return ":".join([_FORMAT, *(str(part) for part in parts)])

        return df.observe(seen, *self._columns), tell


def is_comparable(one: str, other: str) -> bool:
    """Whether two digests were made in the same way: those of an earlier version say nothing about those of today."""
    return one.partition(":")[0] == other.partition(":")[0]


def _is_exact(kind: DataType) -> bool:
    """Whether equal values have equal hashes, always."""
    if isinstance(kind, ArrayType):
        return _is_exact(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_exact(field.dataType) for field in kind.fields)
    return not _INEXACT.match(kind.simpleString())


def _parts(value: Column, kind: DataType) -> list[Column]:
    """Return what of a value is hashed, so that other values have another hash."""
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return [f.isnull(value), f.size(value), f.transform(value, lambda each: f.struct(*_parts(each, element)))]
    if isinstance(kind, StructType) and _are_told_apart(kind):
        inner = [part for field in kind.fields for part in _parts(value.getField(field.name), field.dataType)]
        return [f.isnull(value), *inner]
    return [f.isnull(value), value]


def _are_told_apart(kind: StructType) -> bool:
    """Whether each field of a struct can be named."""
    return len({name.lower() for name in kind.names}) == len(kind.names)


_FORMAT = "v2"
_LOW = 0xFFFFFFFF
_INEXACT = re.compile(r"float|double|map<|variant|interval|geo")


def quoted(name: str) -> str:
    """Return a column's name as Spark takes it for one name, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def default_name(kind: str, target: str) -> str:
    """Return a sink's name made of its kind and its target, for users who give none."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", f"{kind}.{target}")[:MAX_LENGTH]
