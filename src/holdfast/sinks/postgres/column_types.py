"""How Spark's types become PostgreSQL's, and which columns of a table take them.

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

A column that exists may be of another type, as long as no value changes on its way in silence:

- *same*: the bytes of a binary COPY are the same, so the server checks lengths and precision as it reads them;
- *wider*: every value fits, and the server converts it;
- *checked*: text that the server has to parse (jsonb, uuid, inet), or a domain with its constraints. A value may be
  refused, and that must show before the epoch is decided, so `prepare` tries these conversions.

Everything else is refused before the first epoch. `timestamp(3)` and its like do round: the table asks for it.
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
    # by the name of Spark's type class: PostgreSQL's own short name
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
_UNLIMITED = (131072 + 16383, 16383)  # digits that PostgreSQL takes
_SAME_BYTES = {"text": {"text", "varchar", "bpchar", "citext", "json"}}
_WIDER = {
    "int2": {"int4", "int8", "numeric"},
    "int4": {"int8", "numeric"},
    "int8": {"numeric"},
    "float4": {"float8"},
}
_PARSED = {"jsonb", "uuid", "inet", "cidr", "macaddr"}


class Fit(StrEnum):
    """How a table's column takes a stream's column; see the top of this file."""

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
    digits: int = 0  # of a number: all of them
    scale: int = 0  # of a number: those after the point

    @property
    def sql(self) -> str:
        """The type of a column that is made for it."""
        precision = f"({self.digits},{self.scale})" if self.base == "numeric" else ""
        return f"{self.base}{precision}{'[]' if self.array else ''}"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, as the catalog tells it."""

    name: str
    type: str  # as SQL writes it, with its length or precision
    bare: str  # without
    base: str  # the short name of the type, of its elements, or of what a domain is made of
    kind: str  # `b` a base type, `e` an enumeration, `d` a domain
    modifier: int
    array: bool
    required: bool  # neither NULL nor left out
    generated: bool  # takes no value of ours
    collation: list[str] | None = None  # schema and name, where it is not the type's own


def stream_columns(sink: str, schema: StructType) -> tuple[StreamColumn, ...]:
    """Return a stream's columns, or raise `NotSupported` naming the first that PostgreSQL has no type for."""
    return tuple(_columns(sink, schema))


def _columns(sink: str, schema: StructType) -> Iterator[StreamColumn]:
    seen: set[str] = set()
    for field in schema.fields:
        if field.name in seen:
            raise NotSupported(
                what=f"column {field.name!r} in sink {sink!r}",
                why="there are two of that name",
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
            why="it has no PostgreSQL type here",
            do=f"turn it into text: to_json({name}), which a json or jsonb column takes, or cast it",
        )
    column = StreamColumn(name, data_type.simpleString(), base, array, _DIGITS.get(base, 0))
    return replace(column, digits=inner.precision, scale=inner.scale) if base == "numeric" else column


def staged_column(found: TableColumn) -> StreamColumn:
    """Return a staging table's column as that of a stream."""
    base = "text" if found.base in _SAME_BYTES["text"] else found.base
    column = StreamColumn(found.name, found.type, base, found.array, _DIGITS.get(base, 0))
    digits, scale = _limits(found)
    return replace(column, digits=digits, scale=scale) if base == "numeric" else column


def fit(column: StreamColumn, found: TableColumn) -> Fit:
    """Say how a table's column takes a stream's column."""
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
    """Whether every number fits: as many digits before the point, and as many after it."""
    if found.base != "numeric" or found.modifier < 0:
        return True
    precision, scale = _limits(found)
    return scale >= column.scale and precision - scale >= column.digits - column.scale


def _limits(found: TableColumn) -> tuple[int, int]:
    """Return the digits of a numeric column: all of them, and those after the point."""
    if found.modifier < 0:
        return _UNLIMITED
    return (found.modifier - 4) >> 16 & 0xFFFF, ((found.modifier - 4 & 0x7FF) ^ 0x400) - 0x400
