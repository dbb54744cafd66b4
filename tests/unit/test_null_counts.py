"""Null counts of Parquet files: from the footer where it has them, else by reading the column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sinks.lake.null_counts import counted_nulls, nulls_in
from holdfast.sinks.lake.object_file import ObjectFile
from holdfast.sinks.lake.table_folder import DiskFolder
from lakeframe import as_java, parquet_bytes

LONG = "x" * 5000  # too long for the statistics of a file
ROWS = pa.table({"s": ["a", None, LONG, None, LONG, "b"], "n": range(6)})


def footer_of(file: bytes) -> Any:
    return pq.read_metadata(pa.BufferReader(file))


def required(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([each.with_nullable(False) for each in rows.schema]))


def counts(file: bytes, *names: str) -> dict[str, int]:
    return counted_nulls(footer_of(file), names, lambda: pa.BufferReader(file))


FILES: dict[str, bytes] = {
    "empty statistics": as_java(parquet_bytes(ROWS, row_group_size=2)),
    "no statistics of one column": parquet_bytes(ROWS, row_group_size=2, write_statistics=["n"]),
    "no statistics": parquet_bytes(ROWS, row_group_size=4, write_statistics=False),
}


@pytest.mark.parametrize("case", FILES)
def test_a_count_that_the_footer_lacks_is_unknown_until_the_column_is_read(case: str) -> None:
    assert nulls_in(footer_of(FILES[case]), 0) is None
    assert counts(FILES[case], "s", "n") == {"s": 2, "n": 0}


def test_a_file_whose_footer_has_all_counts_is_not_read() -> None:
    file = parquet_bytes(ROWS, row_group_size=2)
    assert counted_nulls(footer_of(file), ("s", "n"), pytest.fail) == {"s": 2, "n": 0}


@pytest.mark.parametrize("statistics", [True, False])
def test_a_column_that_its_file_requires_has_no_null(statistics: bool) -> None:
    rows = required(pa.table({"s": [LONG, "a", LONG]}))
    file = as_java(parquet_bytes(rows, row_group_size=2, write_statistics=statistics))
    assert counted_nulls(footer_of(file), ("s",), pytest.fail) == {"s": 0}


def test_fields_of_a_column_and_columns_that_are_not_in_the_file_are_left_out() -> None:
    rows = pa.table({"x": [{"s": None, "t": "a"}], "s": ["b"], "x.t": pa.array([None], pa.string())})
    file = parquet_bytes(rows, write_statistics=False)
    assert counts(file, "s", "t", "x", "x.t", "other") == {"s": 0, "x.t": 1}


@settings(max_examples=100)
@given(
    values=st.lists(st.none() | st.sampled_from(["a", "", LONG]), min_size=1, max_size=12),
    size=st.integers(1, 5),
)
def test_each_null_is_counted_once(values: list[str | None], size: int) -> None:
    rows = pa.table({"s": pa.array(values, pa.string())})
    assert counts(as_java(parquet_bytes(rows, row_group_size=size)), "s") == {"s": values.count(None)}


def test_a_file_of_a_folder_and_one_that_is_read_in_ranges(tmp_path: Path) -> None:
    file = FILES["empty statistics"]
    folder = DiskFolder(tmp_path)
    folder.write("one/part.parquet", file)
    (footer,) = folder.footers(["one/part.parquet"], [len(file)])
    assert counted_nulls(footer, ["s"], lambda: folder.opened("one/part.parquet", len(file))) == {"s": 2}
    ranges: list[tuple[int, int]] = []

    def read(start: int, end: int) -> bytes:
        ranges.append((start, end))
        return file[start:end]

    assert counted_nulls(footer, ["s"], lambda: ObjectFile(read, len(file))) == {"s": 2}
    assert ranges
    assert all(start < end <= len(file) for start, end in ranges)


def test_an_object_is_a_file() -> None:
    data = bytes(range(10))
    file = ObjectFile(lambda start, end: data[start:end], len(data))
    assert (file.readable(), file.seekable(), file.tell()) == (True, True, 0)
    assert (file.read(3), file.tell()) == (data[:3], 3)
    assert (file.seek(2, 1), file.read(2)) == (5, data[5:7])
    assert (file.seek(-2, 2), file.read(), file.read(1)) == (8, data[8:], b"")
    assert (file.seek(20), file.read(1)) == (20, b"")
    with pytest.raises(ValueError, match="negative"):
        file.seek(-1)
