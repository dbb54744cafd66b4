"""Rows as events: which columns of a stream become the entity, scope, kind and clock of an event, and its payload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import BadValue
from holdfast.eventlog.region import KIND_MAX
from holdfast.sinks.log_types import arrow_of
from holdfast.sinks.rows import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

DEFAULT_SCOPE = "default"
_NOT_AS_TEXT = ("array", "map", "struct", "binary", "variant", "void")
_INTEGERS = ("byte", "short", "integer", "long")
_EXPECTED = {
    "scope": "non-empty text",
    "entity": "non-empty text",
    "category": f"an integer from 0 to {KIND_MAX}",
    "type": f"an integer from 0 to {KIND_MAX}",
    "clock": "an integer of at least 0",
}


def payload_type(schema: StructType) -> pa.DataType:
    """Return the type of an event's payload: a struct of all columns of the stream."""
    return pa.struct([pa.field(each.name, arrow_of(each.dataType, each.name)) for each in schema.fields])


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The columns that an event's fields come from. A category or type that is an integer is a constant."""

    entity: str | None
    scope: str | None
    category: int | str
    type: int | str
    clock: str | None

    def check(self, schema: StructType) -> None:
        """Refuse columns that a stream does not have, or whose types do not fit."""
        kinds = {each.name: each.dataType.typeName() for each in schema.fields}
        if not kinds or len({name.lower() for name in kinds}) < len(schema.fields):
            expected = "one or more names that differ in more than case, because they become the fields of the payload"
            raise BadValue(what="columns", value=[each.name for each in schema.fields], expected=expected)
        for field, column in self._named().items():
            kind = kinds.get(column)
            if kind is None:
                raise BadValue(what=field, value=column, expected=f"a column of the stream: {sorted(kinds)}")
            if field in ("entity", "scope"):
                if kind in _NOT_AS_TEXT:
                    raise BadValue(what=field, value=column, why=f"a column of type {kind} cannot be written as text")
            elif kind not in _INTEGERS:
                raise BadValue(what=field, value=column, expected=f"a column of integers, not of type {kind}")

    def events(self, df: DataFrame, stream: str) -> tuple[DataFrame, Callable[[], str | None]]:
        """Return rows as events, and a function that describes, after one action on them, the rows that do not fit."""
        from pyspark.sql import Observation  # noqa: PLC0415 - an extra
        from pyspark.sql import functions as f  # noqa: PLC0415

        columns = {
            "scope": _text(self.scope, DEFAULT_SCOPE),
            "entity": _text(self.entity, stream),
            "category": _number(self.category, "int"),
            "type": _number(self.type, "int"),
        }
        if self.clock is not None:
            columns["clock"] = _number(self.clock, "long")
        payload = f.struct(*[f.col(quoted(name)) for name in df.columns]).alias("payload")
        events = df.select(*[column.alias(field) for field, column in columns.items()], payload)
        named = self._named()
        if not named:
            return events, lambda: None
        seen = Observation()
        events = events.observe(seen, *[f.count_if(_is_unfit(field)).alias(field) for field in named])

        def misfits() -> str | None:
            found = [
                f"column {column!r} cannot be the {field} of {seen.get[field]} rows: expected {_EXPECTED[field]}"
                for field, column in named.items()
                if seen.get[field]
            ]
            return "; ".join(found) or None

        return events, misfits

    def conditions(self) -> dict[str, str]:
        """Return the conditions that a row must meet to become an event, by name, in Spark SQL."""
        return {
            f"{column} cannot be the {field}": _condition(field, quoted(column))
            for field, column in self._named().items()
        }

    def _named(self) -> dict[str, str]:
        """Return the fields that come from a column, with its name."""
        fields = {
            "scope": self.scope,
            "entity": self.entity,
            "category": self.category,
            "type": self.type,
            "clock": self.clock,
        }
        return {field: column for field, column in fields.items() if isinstance(column, str)}


def _text(column: str | None, otherwise: str) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    return f.lit(otherwise) if column is None else f.col(quoted(column)).cast("string")


def _number(column: int | str, kind: str) -> Column:
    """Return a column as integers. Values that do not fit become null, and are counted."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    return f.lit(column).cast(kind) if isinstance(column, int) else f.col(quoted(column)).try_cast(kind)


def _is_unfit(field: str) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    return ~f.coalesce(f.expr(_condition(field, quoted(field))), f.lit(False))


def _condition(field: str, column: str) -> str:
    """Return the condition that a column, quoted, fits a field of an event; null if the column is null."""
    if field in ("scope", "entity"):
        text = f"CAST({column} AS STRING)"
        return f"{text} <> '' AND is_valid_utf8({text})"
    return f"{column} >= 0" if field == "clock" else f"{column} BETWEEN 0 AND {KIND_MAX}"
