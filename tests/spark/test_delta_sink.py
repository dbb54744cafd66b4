"""A Delta table as a sink, written by Spark: the contract, partitions, types, and other readers and writers."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pytest
from deltalake import DeltaTable

from deltastaged import OWNER, key_of, rows_of
from holdfast.errors import BadValue
from holdfast.sinks.base import Sink, SinkContext
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.testing.sinks import SinkContract, VisibleRows
from s3fixture import S3Place
from s3spark import connect


class _Delta(SinkContract):
    options: ClassVar[dict[str, Any]] = {}

    def make(self, folder: Path) -> Sink:
        return DeltaSink(folder / "table", **self.options)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, DeltaSink)
        return rows_of(sink)


class TestDelta(_Delta):
    pass


class TestDeltaPartitioned(_Delta):
    options: ClassVar[dict[str, Any]] = {"partition_by": ["text"]}


class TestDeltaReplace(_Delta):
    output_mode = "complete"


class TestDeltaUpsert(_Delta):
    options: ClassVar[dict[str, Any]] = {"key": ["n"]}


class TestDeltaOnS3(_Delta):
    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Place, spark: Any) -> None:
        connect(spark, s3)
        self.place = s3

    def make(self, folder: Path) -> Sink:
        return DeltaSink(self.place.url(f"tables/{folder.name}"), partition_by="text")


TYPES = """SELECT * FROM VALUES
  (1L, 'a/b:c=d%?', 1.5D, CAST(12.34 AS DECIMAL(10, 2)), DATE'1969-07-20', TIMESTAMP'2025-01-01 12:00:00.123456Z',
   array(1, NULL), map('k', 1.5F), named_struct('x', 1Y, 'y', array('z')), X'00FF', true, 3S),
  (2L, 'ü ☃', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (3L, NULL, CAST('NaN' AS DOUBLE), CAST(-0.01 AS DECIMAL(10, 2)), DATE'9999-12-31', TIMESTAMP'1600-01-01 00:00:00Z',
   array(), map(), named_struct('x', NULL, 'y', NULL), X'', false, -3S)
  AS t(n, p, real, dec, day, at, list, pairs, inner, bytes, flag, small)"""


def test_types_and_partitions_as_other_readers_see_them(spark: Any, tmp_path: Path) -> None:
    """Values are read back exactly by delta-rs and, from the table's files, by DuckDB."""
    df = spark.sql(TYPES)
    sink = DeltaSink(tmp_path / "table", partition_by="p")
    zone = spark.conf.get("spark.sql.session.timeZone")
    sink.open(SinkContext(OWNER, df.schema, "append", spark))
    staged = sink.prepare(df, key_of(1))
    sink.commit(key_of(1), staged.handle)
    table = DeltaTable(sink.path)
    found = {row["n"]: row for row in table.to_pyarrow_table().to_pylist()}
    assert {n: row["p"] for n, row in found.items()} == {1: "a/b:c=d%?", 2: "ü ☃", 3: None}
    first = found[1]
    assert (first["dec"], first["day"], first["list"]) == (Decimal("12.34"), date(1969, 7, 20), [1, None])
    assert first["at"] == datetime(2025, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    assert (first["pairs"], first["inner"]) == ([("k", 1.5)], {"x": 1, "y": ["z"]})
    assert (first["bytes"], first["flag"], first["small"]) == (b"\x00\xff", True, 3)
    assert all(found[2][name] is None for name in ("real", "dec", "day", "at", "list", "pairs", "inner", "bytes"))
    files = [each.removeprefix("file://") for each in table.file_uris()]
    assert len(files) == 3
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute(
            "SELECT n, dec, day, list FROM read_parquet(?, hive_partitioning=false) ORDER BY n", [files]
        ).fetchall()
    assert rows[0] == (1, Decimal("12.34"), date(1969, 7, 20), [1, None])
    assert [row[0] for row in rows] == [1, 2, 3]
    pruned = table.to_pyarrow_table(filters=[("n", "=", 2)])
    assert pruned.num_rows == 1
    assert zone == spark.conf.get("spark.sql.session.timeZone")


def test_a_timestamp_as_partition_needs_utc(spark: Any, tmp_path: Path) -> None:
    df = spark.sql("SELECT 1L AS n, TIMESTAMP'2025-01-01 12:00:00Z' AS at")
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        sink = DeltaSink(tmp_path / "table", partition_by="at")
        with pytest.raises(BadValue, match="time zone"):
            sink.open(SinkContext(OWNER, df.schema, "append", spark))
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        sink.open(SinkContext(OWNER, df.schema, "append", spark))
        sink.commit(key_of(1), sink.prepare(df, key_of(1)).handle)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    (row,) = DeltaTable(sink.path).to_pyarrow_table().to_pylist()
    assert row["at"] == datetime(2025, 1, 1, 12, tzinfo=UTC)
