"""Row counts and row digests, observed while Spark runs an action on a DataFrame."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_FORMAT = "v3"
_LOW = 0xFFFFFFFF
_INEXACT = re.compile(r"float|double|map<|variant|interval|geo")


def counted(df: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Return the DataFrame, and a function that returns the number of its rows after one action on it."""
    from pyspark.sql import Observation  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as f  # noqa: PLC0415

    seen = Observation()
    return df.observe(seen, f.count(f.lit(1)).alias("rows")), lambda: int(seen.get["rows"])


class RowDigest:
    """An order-independent digest of rows, for DataFrames with the columns of the one that it was created with.

    Of floating-point columns, and of columns that cannot be hashed, only the non-null values are counted: a sum of
    doubles may differ in its last bit if its parts are added in another order.

    Spark's hash ignores nulls and the bounds of arrays, so both are hashed in addition to the values.

    The hashes are combined by xor; in addition, their lower halves are summed, because equal rows cancel each other out
    in an xor. A sum of whole hashes needs more than 64 bits: a decimal sum, or a second sum for the upper halves, would
    take several percent of a small epoch. The sum holds for two billion rows; beyond that it is left out.
    """

    def __init__(self, df: DataFrame) -> None:
        from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

        fields = df.schema.fields
        others = [field.name for field in fields if not _is_exact(field.dataType)]
        hashed = [
            part
            for field in fields
            if field.name not in others
            for part in _parts(f.col(quoted(field.name)), field.dataType)
        ]
        row = f.xxhash64(*hashed) if hashed else f.lit(0)
        # Built once: each of them takes a dozen calls to the JVM.
        self._columns = [
            f.count(f.lit(1)).alias("rows"),
            f.bit_xor(row).alias("xor"),
            f.try_sum(row.bitwiseAND(f.lit(_LOW))).alias("low"),
            *[f.count(quoted(name)).alias(f"values_{number}") for number, name in enumerate(others)],
        ]
        self._others = len(others)

    def observed(self, df: DataFrame) -> tuple[DataFrame, Callable[[], str]]:
        """Return the DataFrame, and a function that returns the digest of its rows after one action on it."""
        from pyspark.sql import Observation  # noqa: PLC0415 - an extra

        seen = Observation()

        def digest() -> str:
            found = seen.get
            parts = [found["rows"], found["xor"] or 0, found["low"] or 0]
            parts += [found[f"values_{number}"] for number in range(self._others)]
            return ":".join([_FORMAT, *(str(part) for part in parts)])

        return df.observe(seen, *self._columns), digest


def is_comparable(one: str, other: str) -> bool:
    """Whether two digests were computed in the same way: earlier versions of Holdfast used another one."""
    return one.partition(":")[0] == other.partition(":")[0]


def _is_exact(kind: DataType) -> bool:
    """Whether equal values always have equal hashes."""
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 - an extra

    if isinstance(kind, ArrayType):
        return _is_exact(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_exact(field.dataType) for field in kind.fields)
    return not _INEXACT.match(kind.simpleString())


def _parts(value: Column, kind: DataType) -> list[Column]:
    """Return the parts of a value to hash, so that different values have different hashes."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415

    if isinstance(kind, ArrayType):
        element = kind.elementType
        return [f.isnull(value), f.size(value), f.transform(value, lambda each: f.struct(*_parts(each, element)))]
    if isinstance(kind, StructType) and _has_distinct_names(kind):
        inner = [part for field in kind.fields for part in _parts(value.getField(field.name), field.dataType)]
        return [f.isnull(value), *inner]
    return [f.isnull(value), value]


def _has_distinct_names(kind: StructType) -> bool:
    """Whether each field of a struct can be selected by its name."""
    return len({name.lower() for name in kind.names}) == len(kind.names)


def quoted(name: str) -> str:
    """Return a column name quoted for Spark, so that dots in it do not select a field."""
    return "`" + name.replace("`", "``") + "`"


def not_null(name: str, *, floating: bool = False) -> str:
    """Return the condition that a column has a value; with `floating`, NaN is none."""
    column = quoted(name)
    return f"{column} IS NOT NULL AND NOT isnan({column})" if floating else f"{column} IS NOT NULL"
