"""Statistics of a data file for the log of a Delta table, from the footer of the Parquet file.

Rules:
- The number of rows is always there: without it, some readers count no rows.
- A minimum or maximum that is wrong makes readers skip rows. So a column gets both only if every row group has them and
  its type compares in the same way everywhere: integers, decimals, booleans, dates, timestamps and strings.
- Timestamps are written in milliseconds: the minimum rounded down, the maximum rounded up. Strings are cut after 32
  characters, and the last character of a maximum that was cut is replaced by the next one.
- The PyArrow datasets of delta-rs (1.6.6) skip every file in which a column that is searched lacks its bounds, if the
  statistics have an entry for bounds at all. So a file gets this entry only if every column with values gets bounds.
- As usual for Delta, only the first 32 columns get statistics, not counting nested ones. Of later ones, nulls are
  counted where none is allowed. Binary columns have no bounds in Delta, and nested ones get none here.
- A column has a null count only if every row group has one, or if the table requires it: then it is counted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.sinks.lake.null_counts import nulls_in

_COLUMNS = 32
_LONGEST = 32  # characters of a string
_SURROGATES, _AFTER_SURROGATES = 0xD800, 0xE000  # no character has a number from the first up to the second
_MILLISECOND = timedelta(milliseconds=1)


def statistics_of(footer: Any, required: Mapping[str, int]) -> str:
    """Return the statistics of a file, as JSON, from its Parquet metadata and the null counts of required columns."""
    lows, highs, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [(number, footer.schema.column(number)) for number in range(footer.num_columns)]
    flat = [(number, column) for number, column in columns if column.path == column.name]  # no part of a nested column
    is_whole = True
    for position, (number, column) in enumerate(flat):
        name = column.name
        if position >= _COLUMNS and name not in required:
            continue
        count = required.get(name, nulls_in(footer, number))
        if count is not None:
            nulls[name] = count
        if position >= _COLUMNS or _is_binary(column) or count == footer.num_rows:
            continue
        bounds = _bounds([group.column(number).statistics for group in groups if group.num_rows])
        if bounds is None:
            is_whole = False
        else:
            lows[name], highs[name] = bounds
    found = {"numRecords": footer.num_rows, "nullCount": nulls}
    if is_whole and lows:
        found |= {"minValues": lows, "maxValues": highs}
    return msgspec.json.encode(found).decode()


def _is_binary(column: Any) -> bool:
    return bool(column.physical_type.endswith("BYTE_ARRAY") and column.logical_type.type == "NONE")


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
        return _shown(min(one.min for one in each), max(one.max for one in each))
    except (OverflowError, TypeError, ValueError):  # a date that Python cannot represent, also one that is rounded up
        return None
    except NotImplementedError:  # of a decimal that is stored as an integer, in earlier versions of PyArrow
        return None


def _shown(low: Any, high: Any) -> tuple[Any, Any] | None:
    """Return bounds as the log has them; `None` if it must not have them."""
    found: tuple[Any, Any] | None = None
    match low:
        case datetime():
            found = _moment(low, timedelta(0)), _moment(high, _MILLISECOND - timedelta(microseconds=1))
        case date():
            found = low.isoformat(), high.isoformat()
        case Decimal():
            found = msgspec.Raw(f"{low:f}".encode()), msgspec.Raw(f"{high:f}".encode())
        case int():  # also a boolean
            found = low, high
        case str() if (above := _above(high)) is not None:
            found = low[:_LONGEST], above
    return found


def _above(text: str) -> str | None:
    """Return a text that is not too long, and not less than the given one; `None` if there is none."""
    if len(text) <= _LONGEST:
        return text
    kept = text[:_LONGEST].rstrip(chr(sys.maxunicode))
    following = ord(kept[-1]) + 1 if kept else 0
    return kept[:-1] + chr(_AFTER_SURROGATES if following == _SURROGATES else following) if kept else None


def _moment(value: datetime, more: timedelta) -> str:
    """Return a time with milliseconds, rounded down after adding `more`; in UTC if it has a zone."""
    zone = "" if value.tzinfo is None else "Z"
    shown = value if value.tzinfo is None else value.astimezone(UTC)
    return (shown + more).replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
