"""Statistics of a data file for the log of a Delta table, from the footer of the Parquet file.

Rules:
- The number of rows is always there: without it, some readers count no rows.
- A minimum or maximum that is wrong makes readers skip rows. So a column gets both only if every row group has them and
  its type compares in the same way everywhere: integers, dates, timestamps and short strings.
- Timestamps are written in milliseconds: the minimum rounded down, the maximum rounded up.
- As usual for Delta, only the first 32 columns get statistics. Of later ones, nulls are counted where none is allowed.
- A column has a null count only if every row group has one, or if the table requires it: then it is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from holdfast.sinks.lake.null_counts import nulls_in

_COLUMNS = 32
_LONGEST = 32  # characters of a string
_MILLISECOND = timedelta(milliseconds=1)


def statistics_of(footer: Any, required: Mapping[str, int]) -> str:
    """Return the statistics of a file, as JSON, from its Parquet metadata and the null counts of required columns."""
    found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if column.path != column.name:
            continue  # part of a nested column
        if number >= _COLUMNS and column.name not in required:
            continue
        nulls = required.get(column.name, nulls_in(footer, number))
        if nulls is not None:
            found["nullCount"][column.name] = nulls
        each = [group.column(number).statistics for group in groups if group.num_rows]
        bounds = _bounds(each) if number < _COLUMNS else None
        if bounds is not None:
            found["minValues"][column.name], found["maxValues"][column.name] = bounds
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def null_count(stats: str, column: str) -> int | None:
    """Return how many values of a column are null, or `None` if the footer does not tell."""
    found = json.loads(stats)["nullCount"].get(column)
    return None if found is None else int(found)


def _bounds(each: list[Any]) -> tuple[Any, Any] | None:
    if any(one is None for one in each):  # `None in each` would crash: pyarrow compares without a check
        return None
    each = [one for one in each if one.num_values]
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
