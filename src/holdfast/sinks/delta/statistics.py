"""Statistics of a data file for the log of a Delta table, from the footer of the Parquet file.

Rules:
- The number of rows is always there: without it, some readers count no rows.
- A minimum or maximum that is wrong makes readers skip rows. So a column gets both only if every row group has them and
  its type compares in the same way everywhere: integers, dates, timestamps and short strings.
- Timestamps are written in milliseconds: the minimum rounded down, the maximum rounded up.
- As usual for Delta, only the first 32 columns get statistics. Of later ones, nulls are counted where none is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from typing import Any

_COLUMNS = 32
_LONGEST = 32  # characters of a string
_MILLISECOND = timedelta(milliseconds=1)


def statistics_of(footer: Any, required: Collection[str] = ()) -> str:
    """Return the statistics of a file, as JSON, from its Parquet metadata; `required` are columns without nulls."""
    found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if column.path != column.name:
            continue  # part of a nested column
        if number >= _COLUMNS and column.name not in required:
            continue
        each = [group.column(number).statistics for group in groups if group.num_rows]
        if not each or any(one is None for one in each):  # `None in each` would crash: pyarrow compares without a check
            continue
        if all(one.has_null_count for one in each):
            found["nullCount"][column.name] = sum(one.null_count for one in each)
        bounds = _bounds([one for one in each if one.num_values]) if number < _COLUMNS else None
        if bounds is not None:
            found["minValues"][column.name], found["maxValues"][column.name] = bounds
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def null_count(stats: str, column: str) -> int | None:
    """Return how many values of a column are null, or `None` if the footer does not tell."""
    found = json.loads(stats)["nullCount"].get(column)
    return None if found is None else int(found)


def _bounds(each: list[Any]) -> tuple[Any, Any] | None:
    if not each or not all(one.has_min_max for one in each):
        return None
    try:
        low, high = min(one.min for one in each), max(one.max for one in each)
        if isinstance(low, datetime):
            return _moment(low, timedelta(0)), _moment(high, _MILLISECOND - timedelta(microseconds=1))
    except (OverflowError, TypeError, ValueError):  # a date that Python cannot represent, also one that is rounded up
        return None
    if isinstance(low, date):
        return low.isoformat(), high.isoformat()
    plain = isinstance(low, int) and not isinstance(low, bool)
    return (low, high) if plain or (isinstance(low, str) and max(len(low), len(high)) <= _LONGEST) else None


def _moment(value: datetime, more: timedelta) -> str:
    """Return a time with milliseconds, rounded down after adding `more`; in UTC if it has a zone."""
    zone = "" if value.tzinfo is None else "Z"
    shown = value if value.tzinfo is None else value.astimezone(UTC)
    return (shown + more).replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
