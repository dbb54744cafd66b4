"""The values that a SqliteSink stores, without Spark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.sinks._sqlite_rows import staged_rows

DAYS = {"+10000-01-01": 2_932_897, "9999-12-31": 2_932_896, "0000-12-31": -719_163, "-0001-03-01": -719_834}
IN_A_DAY = 86_400_000_000


def stored(folder: Path, column: pa.Array) -> list[Any]:
    pq.write_table(pa.table({"at": column}), folder / "part-0.parquet")
    return [row[0] for _, rows in staged_rows(folder) for row in rows]


def test_dates_that_python_lacks_are_stored(tmp_path: Path) -> None:
    """Spark has years before 1 and after 9999. An epoch with one is decided before its rows are read back."""
    column = pa.array([*DAYS.values(), None], pa.int32()).cast(pa.date32())
    assert stored(tmp_path, column) == [*DAYS, None]


@pytest.mark.parametrize(("zone", "ending"), [("UTC", "+00:00"), (None, "")])
def test_timestamps_that_python_lacks_are_stored(tmp_path: Path, zone: str | None, ending: str) -> None:
    """The last second of the year 9999 in New York is in the year 10000 in UTC."""
    micros = [days * IN_A_DAY + 17_999_000_001 for days in DAYS.values()]
    column = pa.array([*micros, None], pa.int64()).cast(pa.timestamp("us", zone))
    assert stored(tmp_path, column) == [*(f"{day} 04:59:59.000001{ending}" for day in DAYS), None]


def test_a_value_has_the_same_text_beside_one_that_python_lacks(tmp_path: Path) -> None:
    moments = [dt.datetime(2024, 2, 29, 12, 30, 0, 5), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)]
    column = pa.array(moments, pa.timestamp("us"))
    alone = stored(tmp_path, column)
    beyond = pa.array([DAYS["+10000-01-01"] * IN_A_DAY], pa.int64()).cast(pa.timestamp("us"))
    assert stored(tmp_path, pa.concat_arrays([column, beyond]))[:-1] == alone
    assert alone == [each.isoformat(sep=" ", timespec="microseconds") for each in moments]
