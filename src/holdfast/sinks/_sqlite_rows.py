"""The staged rows of a SQLite sink: Parquet files, checked before the decision and read back at commit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import SinkFailed

_BATCH = 10_000
_CYCLE = 146_097  # days in 400 years: then the calendar repeats
_MICROSECONDS = 86_400_000_000  # in a day
# by the beginning of the name of an Arrow type
_AS_TEXT: dict[str, Callable[[Any], str]] = {
    "decimal": str,
    "date": lambda value: str(value.isoformat()),
    "timestamp": lambda value: str(value.isoformat(sep=" ", timespec="microseconds")),
}


def check_nulls(sink: str, folder: Path, not_null: Collection[str]) -> None:
    """Refuse nulls in columns, given in lower case, that are NOT NULL: after the decision it would be too late."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    for path in _files(folder):
        with pq.ParquetFile(path) as staged:
            names = [name for name in staged.schema_arrow.names if name.lower() in not_null]
            found = staged.read(columns=names) if names else None
        nulls = [name for name in names if found is not None and _has_nulls(found[name])]
        if nulls:
            why = f"column {', '.join(nulls)} is null or NaN in some rows, and the table declares it NOT NULL"
            do = "give every row a value there (coalesce, filter), then run again"
            raise SinkFailed(sink=sink, action="accept the rows", why=why, do=do)


def check_keys(sink: str, folder: Path, key: Sequence[str]) -> None:
    """Refuse keys that are null, or that occur twice in one epoch: rows have no order, so neither is the last."""
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.parquet as pq  # noqa: PLC0415

    names = list(key)
    keys = pa.concat_tables([pq.ParquetFile(path).read(columns=names) for path in _files(folder)])
    nulls = [name for name in names if _has_nulls(keys[name])]
    if nulls:
        raise _bad_key(sink, f"its key {', '.join(nulls)} is null in some rows")
    if keys.group_by(names).aggregate([]).num_rows != keys.num_rows:
        raise _bad_key(sink, "several rows of one epoch have the same key, and rows have no order")


def _bad_key(sink: str, why: str) -> SinkFailed:
    do = "emit each key at most once per epoch and never null (aggregate by it, dropDuplicates, filter), then run again"
    return SinkFailed(sink=sink, action="accept the rows", why=why, do=do)


def staged_rows(folder: Path) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
    """Yield the staged rows in batches, as values for SQLite, with the names of their columns."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    for path in _files(folder):
        with pq.ParquetFile(path) as staged:
            for batch in staged.iter_batches(_BATCH):
                if batch.num_rows:
                    columns = [_values(column) for column in batch.columns]
                    yield batch.schema.names, list(zip(*columns, strict=True))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


def _has_nulls(column: Any) -> bool:
    """Whether an Arrow column contains values that become NULL in SQLite."""
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.compute as pc  # noqa: PLC0415

    return bool(column.null_count or (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py()))


def _values(column: Any) -> list[Any]:
    kind = str(column.type)
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:  # Python has dates from year 1 to year 9999, Spark has others too
        return _beyond_python(column)
    for name, convert in _AS_TEXT.items():
        if kind.startswith(name):
            return [None if value is None else convert(value) for value in values]
    return values


def _beyond_python(column: Any) -> list[str | None]:
    """Return dates or timestamps of any year as text. Those that Python has get the same text as from `_AS_TEXT`."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if pa.types.is_date(column.type):
        days = column.cast(pa.int32()).to_pylist()
        return [None if day is None else _in_cycle(day, _AS_TEXT["date"], dt.date(1970, 1, 1)) for day in days]
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    first = dt.datetime(1970, 1, 1, tzinfo=None if column.type.tz is None else dt.UTC)
    parts = [None if each is None else divmod(each, _MICROSECONDS) for each in micros]
    return [
        None if each is None else _in_cycle(each[0], _AS_TEXT["timestamp"], first + dt.timedelta(microseconds=each[1]))
        for each in parts
    ]


def _in_cycle(days: int, convert: Callable[[Any], str], first: dt.date) -> str:
    """Return the text of a day, counted from 1970, with the year as in ISO 8601: `+10000`, `-0001`."""
    cycles, rest = divmod(days, _CYCLE)
    found = first + dt.timedelta(days=rest)
    year = found.year + 400 * cycles
    return (f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}") + convert(found)[4:]
