"""How many values of the columns of a Parquet file are null.

Rules:
- A footer counts the nulls of each row group, unless the statistics there are missing. parquet-java writes none for a
  string or binary column whose minimum and maximum together have more than 4,096 bytes in that row group.
- A count that is missing anywhere makes the count of the file unknown. It is never taken as 0.
- A column that the file itself requires has no null.
- Where a count is needed and the footer lacks it, the column is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

_ROWS_AT_ONCE = 256  # they may have long values
_BUFFER = 1 << 22  # bytes that are read at once


def nulls_in(footer: Any, number: int) -> int | None:
    """Return how many values of a column are null, or `None` if the footer does not count them in every row group."""
    if footer.schema.column(number).max_definition_level == 0:
        return 0
    parts = [_nulls_of_part(footer, group, number) for group in range(footer.num_row_groups)]
    return None if None in parts else sum(each for each in parts if each is not None)


def counted_nulls(footer: Any, names: Collection[str], opened: Callable[[], Any]) -> dict[str, int]:
    """Return how many values of these columns are null, without columns that are nested or not in the file.

    `opened` returns the file as PyArrow takes it. It is called only if the footer lacks a count.
    """
    found = {}
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if column.path == column.name and column.name in names:
            nulls = nulls_in(footer, number)
            found[column.name] = _read(footer, number, opened()) if nulls is None else nulls
    return found


def _nulls_of_part(footer: Any, group: int, number: int) -> int | None:
    part = footer.row_group(group)
    if not part.num_rows:
        return 0
    statistics = part.column(number).statistics
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else None


def _read(footer: Any, number: int, file: Any) -> int:
    from pyarrow import parquet  # noqa: PLC0415 - an extra, slow to import

    name = footer.schema.column(number).name
    counts = [_nulls_of_part(footer, group, number) for group in range(footer.num_row_groups)]
    missing = [group for group, count in enumerate(counts) if count is None]
    with parquet.ParquetFile(file, metadata=footer, buffer_size=_BUFFER) as opened:
        batches = opened.iter_batches(_ROWS_AT_ONCE, row_groups=missing, columns=[name])
        return sum(filter(None, counts)) + sum(int(each.column(name).null_count) for each in batches)
