"""An Iceberg table as a sink, written by Spark: the contract, partitions, types, and a pipeline that goes back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyspark.sql import SparkSession

from holdfast.epoch import Attempt
from holdfast.sinks.base import EpochKey, Sink, SinkContext
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.testing.sinks import SinkContract, VisibleRows
from icebergstaged import OWNER, rows_of, sqlite_catalog, table_of_sink
from s3fixture import S3Place
from s3spark import connect


class _Iceberg(SinkContract):
    options: ClassVar[dict[str, Any]] = {}

    def make(self, folder: Path) -> Sink:
        folder.mkdir(exist_ok=True)
        return IcebergSink("shop.rows", catalog=self.catalog(folder), **self.options)

    def catalog(self, folder: Path) -> dict[str, str]:
        return sqlite_catalog(folder)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, IcebergSink)
        return rows_of(sink)


class TestIceberg(_Iceberg):
    pass


class TestIcebergPartitioned(_Iceberg):
    options: ClassVar[dict[str, Any]] = {"partition_by": ["bucket(3, n)", "text"]}


class TestIcebergOnS3(_Iceberg):
    options: ClassVar[dict[str, Any]] = {"partition_by": "truncate(2, n)"}

    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Place, spark: Any) -> None:
        connect(spark, s3)
        self.place = s3

    def catalog(self, folder: Path) -> dict[str, str]:
        return sqlite_catalog(folder, self.place.url(f"tables/{folder.name}"))


# --- partitions and types ---

UTC = dt.timezone.utc  # noqa: UP017 - Python 3.11
ROWS: list[tuple[Any, ...]] = [
    (
        1,
        "",
        b"",
        dt.date(1969, 12, 31),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        Decimal("-1.05"),
        True,
        dt.datetime(2024, 7, 1, 0, 30),
    ),
    (
        -17,
        "ü/=%?#",
        b"\x00\xff",
        dt.date(2024, 2, 29),
        dt.datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        Decimal("10.65"),
        False,
        dt.datetime(2024, 10, 27, 2, 30),
    ),
    (
        2**40,
        "abcdef",
        b"abc",
        dt.date(1900, 1, 1),
        dt.datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
        Decimal("0.00"),
        True,
        dt.datetime(1969, 1, 1, 23, 59, 59, 1),
    ),
    (None, None, None, None, None, None, None, None),
]
COLUMNS = "n long, s string, b binary, d date, at timestamp, money decimal(9,2), ok boolean, local timestamp_ntz"
PARTITIONS = [
    *("n", "s", "b", "d", "at", "money", "ok", "local"),
    *("year(d)", "month(d)", "day(d)", "year(at)", "month(at)", "day(at)", "hour(at)", "hour(local)", "day(local)"),
    *(
        "bucket(5, n)",
        "bucket(5, s)",
        "bucket(5, b)",
        "bucket(5, d)",
        "bucket(5, at)",
        "bucket(5, money)",
        "bucket(5, local)",
    ),
    *("truncate(7, n)", "truncate(2, s)", "truncate(1, b)", "truncate(25, money)"),
]


def written(
    spark: SparkSession, folder: Path, rows: list[tuple[Any, ...]], columns: str, **options: Any
) -> IcebergSink:
    """Write rows as the first epoch of a table."""
    sink = IcebergSink("shop.rows", catalog=sqlite_catalog(folder), **options)
    df = spark.createDataFrame(rows, columns)
    sink.open(SinkContext(OWNER, df.schema, "append", spark))
    key = EpochKey(OWNER, Attempt(stream="rows", timeline=1, epoch=1, attempt=1), 1)
    staged = sink.prepare(df, key)
    assert staged.rows == len(rows)
    sink.commit(key, staged.handle)
    return sink


def internal(value: Any) -> Any:
    """Return a value as PyIceberg's transforms take it."""
    match value:
        case dt.datetime():
            return (value - dt.datetime(1970, 1, 1, tzinfo=value.tzinfo)) // dt.timedelta(microseconds=1)
        case dt.date():
            return (value - dt.date(1970, 1, 1)).days
        case _:
            return value


@pytest.mark.parametrize("partition_by", PARTITIONS)
def test_every_row_is_in_the_partition_that_pyiceberg_computes(
    partition_by: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The time zone of the session, whose clocks go back in these rows, does not matter."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        sink = written(spark, tmp_path, ROWS, COLUMNS, partition_by=partition_by)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    table = table_of_sink(sink)
    (field,) = table.spec().fields
    source = table.schema().find_field(field.source_id)
    transform = parse_transform(str(field.transform)).transform(source.field_type)
    found = 0
    for task in table.scan().plan_files():
        for row in read(task.file.file_path):
            found += 1
            value = internal(row[source.name])
            assert task.file.partition[0] == (None if value is None else transform(value)), (row, task.file.partition)
    assert found == len(ROWS)
    values = [row[COLUMNS.replace(",", "").split()[::2].index(source.name)] for row in ROWS]
    for value in values:  # readers skip files by these values
        wanted = table.scan(row_filter=_equal(source.name, value)).to_arrow()
        assert wanted.num_rows == values.count(value), value


def _equal(name: str, value: Any) -> Any:
    from pyiceberg.expressions import EqualTo, IsNull

    if value is None:
        return IsNull(name)
    return EqualTo(name, value.isoformat() if isinstance(value, dt.date) else value)


def read(path: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = pq.read_table(path.removeprefix("file://"), partitioning=None).to_pylist()
    return found


NESTED = (
    "n long, b byte, sh short, i int, f float, x double, s string, bin binary, d date, at timestamp, "
    "local timestamp_ntz, small decimal(5,2), big decimal(38,10), tags array<string>, "
    "counts map<string, bigint>, place struct<x: double, names: array<struct<lang: string, name: string>>>"
)
VALUES: list[tuple[Any, ...]] = [
    (
        *(1, 2, 3, 4, 1.5, float("nan"), "text", b"\x00", dt.date(2024, 2, 29)),
        dt.datetime(2024, 2, 29, 12, 0, 0, 123456),
        dt.datetime(2024, 2, 29, 12, 0, 0, 654321),
        *(Decimal("123.45"), Decimal("1234567890.0123456789"), ["a", None], {"k": 1, "none": None}),
        (1.5, [("de", "Köln"), ("en", None)]),
    ),
    (*(None,) * 9, None, None, None, None, [], {}, None),
]


def test_every_type_is_read_back(spark: SparkSession, tmp_path: Path) -> None:
    import duckdb

    sink = written(spark, tmp_path, VALUES, NESTED)
    table = table_of_sink(sink)
    full, empty = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["n"] is None)
    assert (full["b"], full["sh"], full["i"], full["s"], full["bin"]) == (2, 3, 4, "text", b"\x00")
    assert full["local"] == VALUES[0][10]
    assert full["at"].tzinfo is not None
    assert (full["small"], full["big"]) == (VALUES[0][11], VALUES[0][12])
    assert full["tags"] == ["a", None]
    assert dict(full["counts"]) == {"k": 1, "none": None}
    assert full["place"] == {"x": 1.5, "names": [{"lang": "de", "name": "Köln"}, {"lang": "en", "name": None}]}
    assert (empty["tags"], empty["counts"], empty["place"], empty["n"]) == ([], [], None, None)
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    with duckdb.connect() as connection:
        query = "SELECT s, place.names[1].name, counts['k'], big FROM read_parquet(?) WHERE n = 1"
        assert connection.execute(query, [files]).fetchall() == [("text", "Köln", 1, VALUES[0][12])]
    again = IcebergSink("shop.rows", catalog=sqlite_catalog(tmp_path))
    again.open(SinkContext(OWNER, spark.createDataFrame(VALUES, NESTED).schema, "append", spark))


def test_narrower_columns_are_widened_and_names_may_differ_in_case(spark: SparkSession, tmp_path: Path) -> None:
    catalog = load_catalog("default", **sqlite_catalog(tmp_path))
    catalog.create_namespace("shop")
    import pyarrow as pa

    schema = pa.schema([("N", pa.int64()), ("money", pa.decimal128(20, 2)), ("x", pa.float64()), ("more", pa.string())])
    table: Table = catalog.create_table("shop.rows", schema)
    sink = written(spark, tmp_path, [(1, Decimal("1.25"), 0.5)], "n int, money decimal(9,2), X float")
    assert table.refresh().scan().to_arrow().to_pylist() == [{"N": 1, "money": Decimal("1.25"), "x": 0.5, "more": None}]
    sink.close()
