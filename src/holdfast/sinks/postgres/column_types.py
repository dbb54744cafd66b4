"""The PostgreSQL types for Spark's types, and which columns of a table accept them.

| Spark | PostgreSQL |
|---|---|
| boolean | boolean |
| tinyint, smallint | smallint |
| int, bigint | integer, bigint |
| float, double | real, double precision |
| decimal(p, s) | numeric(p, s) |
| string | text |
| binary | bytea |
| date | date |
| timestamp | timestamp with time zone: the same instant |
| timestamp_ntz | timestamp without time zone |
| array of one of these | array |

A column of an existing table may have another type, if no value is silently changed:

- *same*: the bytes of a binary COPY are the same, so the server checks lengths and precision as it reads them;
- *wider*: every value fits, and the server converts it;
- *checked*: text that the server has to parse (jsonb, uuid, inet), or a domain with constraints. The server may reject
  a value, which must be known before the epoch is decided. So `prepare` tries these conversions.

All other types are refused before the first epoch. Types such as `timestamp(3)` do round: the table defines that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast.errors import NotSupported

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_BASE = {
    # Spark's type name: PostgreSQL's internal name
    "boolean": "bool",
    "byte": "int2",
    "short": "int2",
    "integer": "int4",
    "long": "int8",
    "float": "float4",
    "double": "float8",
    "decimal": "numeric",
    "string": "text",
    "char": "text",
    "varchar": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_DIGITS = {"int2": 5, "int4": 10, "int8": 19}
_UNLIMITED = (131072 + 16383, 16383)  # the most digits that PostgreSQL accepts
_SAME_BYTES = {"text": {"text", "varchar", "bpchar", "citext", "json"}}
_WIDER = {
    "int2": {"int4", "int8", "numeric"},
    "int4": {"int8", "numeric"},
    "int8": {"numeric"},
    "float4": {"float8"},
}
_PARSED = {"jsonb", "uuid", "inet", "cidr", "macaddr"}


class Fit(StrEnum):
    """How a table's column accepts a stream's column; see the top of this file."""

    SAME = "same"
    WIDER = "wider"
    CHECKED = "checked"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class StreamColumn:
    """A column of a stream, and the PostgreSQL type that its COPY writes."""

    name: str
    spark: str
    base: str
    array: bool = False
    digits: int = 0  # of a number: its precision
    scale: int = 0  # of a number: the digits after the decimal point

    @property
    def sql(self) -> str:
        """The type of the column in a new table."""
        precision = f"({self.digits},{self.scale})" if self.base == "numeric" else ""
        return f"{self.base}{precision}{'[]' if self.array else ''}"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, as described in the catalog."""

    name: str
    type: str  # in SQL, with its length or precision
    bare: str  # in SQL, without them
    base: str  # the internal name of the type, of its elements, or of the type that a domain is based on
    kind: str  # `b` a base type, `e` an enumeration, `d` a domain
    modifier: int
    array: bool
    required: bool  # NOT NULL without a default
    generated: bool  # cannot be written
    collation: list[str] | None = None  # schema and name, if it is not the default of the type


def stream_columns(sink: str, schema: StructType) -> tuple[StreamColumn, ...]:
    """Return a stream's columns; raise `NotSupported` for the first one without a PostgreSQL type."""
    return tuple(_columns(sink, schema))


def _columns(sink: str, schema: StructType) -> Iterator[StreamColumn]:
    seen: set[str] = set()
    for field in schema.fields:
        if field.name in seen:
            raise NotSupported(
                what=f"a duplicate column {field.name!r} in sink {sink!r}",
                why="a table cannot have two columns with the same name",
                do="rename one of them",
            )
        seen.add(field.name)
        yield _column(sink, field.name, field.dataType)


def _column(sink: str, name: str, data_type: Any) -> StreamColumn:
    array = data_type.typeName() == "array"
    inner = data_type.elementType if array else data_type
    base = _BASE.get(inner.typeName())
    if base is None:
        raise NotSupported(
            what=f"column {name!r} of type {data_type.simpleString()} in sink {sink!r}",
            why="this type has no PostgreSQL equivalent",
            do=f"convert it to text: to_json({name}), which a json or jsonb column accepts, or cast it",
        )
    column = StreamColumn(name, data_type.simpleString(), base, array, _DIGITS.get(base, 0))
    return replace(column, digits=inner.precision, scale=inner.scale) if base == "numeric" else column


def staged_column(found: TableColumn) -> StreamColumn:
    """Return the column of a staging table as a stream's column."""
    base = "text" if found.base in _SAME_BYTES["text"] else found.base
    column = StreamColumn(found.name, found.type, base, found.array, _DIGITS.get(base, 0))
    digits, scale = _limits(found)
    return replace(column, digits=digits, scale=scale) if base == "numeric" else column


def fit(column: StreamColumn, found: TableColumn) -> Fit:
    """Return how a table's column accepts a stream's column."""
    if column.array != found.array or found.generated:
        return Fit.NONE
    if found.kind == "d":
        inner = fit(column, replace(found, kind="b"))
        return inner if inner is Fit.NONE else Fit.CHECKED
    if found.base == column.base or found.base in _SAME_BYTES.get(column.base, ()):
        return Fit.SAME if _holds(column, found) else Fit.NONE
    if column.base == "text" and (found.kind == "e" or found.base in _PARSED):
        return Fit.CHECKED
    if found.base in _WIDER.get(column.base, ()):
        return Fit.WIDER if _holds(column, found) else Fit.NONE
    return Fit.NONE


def _holds(column: StreamColumn, found: TableColumn) -> bool:
    """Whether every number fits: enough digits before and after the decimal point."""
    if found.base != "numeric" or found.modifier < 0:
        return True
    precision, scale = _limits(found)
    return scale >= column.scale and precision - scale >= column.digits - column.scale


def _limits(found: TableColumn) -> tuple[int, int]:
    """Return precision and scale of a numeric column."""
    if found.modifier < 0:
        return _UNLIMITED
    return (found.modifier - 4) >> 16 & 0xFFFF, ((found.modifier - 4 & 0x7FF) ^ 0x400) - 0x400
