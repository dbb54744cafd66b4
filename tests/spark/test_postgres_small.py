"""Small epochs into PostgreSQL, which the driver copies, and the choice between it and the executors.

An epoch without rows makes the sink expect that the next one is small. A copy by the driver has one part, one by the
executors has a part for each of the two partitions.
"""

from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from holdfast.errors import BadValue, SinkFailed, SinkUnavailable
from holdfast.sinks.base import Sink, Staged
from holdfast.sinks.postgres import driver_copy
from holdfast.sinks.postgres.driver_copy import MOST_BYTES
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.spark.adapter import few_rows
from holdfast.testing.sinks import SinkContract, VisibleRows
from pgfixture import server
from pgsupport import METHODS, OWNER, Crash, Table, key
from rig import PostgresTarget, Rig
from support import eventually


@pytest.fixture
def table(spark: SparkSession) -> Table:
    return Table(server(), spark)


def expecting_few(table: Table, **options: Any) -> PostgresSink:
    """Return a sink that expects the next epoch to be small."""
    sink = table.opened(**options)
    sink._ready.forecast.record([], collected=False)
    return sink


def parts(staged: Staged) -> int:
    return len(staged.handle["gids" if staged.handle["method"] == "prepared" else "parts"])


# --- the contract of all sinks ---------------------------------------------------------------------------------------


class _ByDriver(SinkContract):
    options: dict[str, Any] = {"method": "prepared"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.dsn = server().dsn(server().fresh_database())

    def make(self, folder: Path) -> Sink:
        return PostgresSink(self.dsn, "rows", create=True, **self.options)

    def _open(self, spark: Any, folder: Path, dies_at: str | None = None) -> Sink:
        sink = super()._open(spark, folder, dies_at)
        assert isinstance(sink, PostgresSink)
        sink._ready.forecast.record([], collected=False)
        return sink

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        with psycopg.connect(self.dsn) as conn:
            return conn.execute("SELECT n, text FROM rows").fetchall()


class TestPreparedByDriver(_ByDriver):
    pass


class TestStagedByDriver(_ByDriver):
    options = {"method": "staged"}  # noqa: RUF012


class TestUpsertByDriver(_ByDriver):
    options = {"key": "n"}  # noqa: RUF012


# --- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_epoch_before_decides_who_copies_and_the_ledger_after_a_restart(table: Table, method: str) -> None:
    sink = table.opened(method=method, driver_rows=20)
    assert parts(table.epoch(sink, 1, table.rows(*range(12)))) == 2  # nothing is known before the first epoch
    assert parts(table.epoch(sink, 2, table.rows(*range(12, 40)))) == 1  # it may be larger than expected
    assert parts(table.epoch(sink, 3, table.rows(*range(40, 52)))) == 2
    assert parts(table.epoch(sink, 4, table.rows(*range(52, 64)))) == 1
    again = table.opened(method=method, driver_rows=20)
    assert parts(table.epoch(again, 5, table.rows(*range(64, 76)))) == 1
    never = table.opened(method=method, driver_rows=0)
    assert parts(table.epoch(never, 6, table.rows(*range(76, 88)))) == 2
    assert table.visible() == list(range(88))
    with pytest.raises(BadValue, match="driver_rows"):
        table.made(driver_rows=-1)


def test_without_a_way_to_collect_rows_the_executors_copy(table: Table) -> None:
    from holdfast.sinks.base import SinkContext

    sink = table.made(create=True)
    schema = table.rows(1).schema
    sink.open(SinkContext(OWNER, schema, "append", table.spark))
    for epoch in (1, 2):
        assert parts(table.epoch(sink, epoch, table.rows(*range(12 * epoch, 12 * epoch + 12)))) == 2


@pytest.mark.parametrize("method", METHODS)
def test_the_phases_of_a_small_epoch(table: Table, method: str) -> None:
    sink = expecting_few(table, method=method, epoch_column="e")
    staged = sink.prepare(table.rows(1, 2, 3), key(1))
    assert (staged.rows, parts(staged), table.left()) == (3, 1, 1)
    assert (table.visible(), table.ledger(), sink.inspect(OWNER, 1).epoch) == ([], [], 0)
    for _ in range(2):
        sink.commit(key(1), staged.handle)
        assert table.visible("SELECT n, text, e FROM orders ORDER BY n") == [(n, f"row {n}", 1) for n in (1, 2, 3)]
    with pytest.raises(Crash):
        expecting_few(table, method=method, epoch_column="e", dies_at="staging").prepare(table.rows(9), key(2))
    left = table.left()
    sink.abort(key(2, lease=None))
    assert table.left() == left - 1
    empty = sink.prepare(table.rows(), key(2, attempt=2))
    sink.commit(key(2, attempt=2), empty.handle)
    assert (table.visible(), sink.inspect(OWNER, 1).epoch) == ([1, 2, 3], 2)


# --- the bounds ------------------------------------------------------------------------------------------------------


def collected(df: DataFrame, tasks: int, most: int) -> Any:
    collect = few_rows(df.sparkSession, freezes=False)
    assert collect is not None
    with collect(df, tasks, most) as (_, batches):
        return batches


def test_the_driver_collects_up_to_its_limit_and_not_a_byte_more(table: Table) -> None:
    df = table.spark.range(0, 100, 1, 1).selectExpr("id AS n", "repeat('x', 64) AS text")
    size = 100 * (8 + 2 * 8 + 64)  # which values are null, a word for each column, and the text
    found = collected(df, 4, size)
    assert sum(batch.num_rows for batch in found) == 100
    assert collected(df, 4, size - 1) is None
    assert collected(df, 4, size) == found


def test_the_limit_applies_to_each_task(table: Table) -> None:
    df = table.spark.range(0, 100, 1, 2).selectExpr("id AS n")
    assert collected(df, 2, 50 * 16) is not None
    assert collected(df, 2, 50 * 16 - 1) is None
    assert collected(df, 1, 100 * 16 - 1) is None


@pytest.mark.parametrize("text", ["", "repeat('x', 100)"])
def test_however_large_an_epoch_is_little_of_it_reaches_the_driver(
    table: Table, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    classic = type(table.spark.range(1))
    arrow = classic.toArrow

    def measured(df: DataFrame) -> Any:
        found = arrow(df)
        sizes.append(found.nbytes)
        return found

    monkeypatch.setattr(classic, "toArrow", measured)
    columns = ["id AS n", *([f"{text} AS text"] if text else [])]
    df = table.spark.range(0, 4_000_000, 1, 8).selectExpr(*columns)
    assert collected(df, 2, MOST_BYTES) is None
    (size,) = sizes
    assert size < 2 * MOST_BYTES, "what two tasks return"


WIDE = MOST_BYTES - 8 - 3 * 8  # of a row of three columns


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        (f"repeat('x', {WIDE}) AS a, CAST(NULL AS binary) AS b", True),
        (f"repeat('x', {WIDE}) AS a, CAST('y' AS binary) AS b", False),
        (f"repeat('\N{EURO SIGN}', {WIDE // 2}) AS a, CAST(NULL AS binary) AS b", False),
        (f"CAST(repeat('x', {WIDE + 1}) AS binary) AS a, 1 AS b", False),
        (f"array_repeat(1L, {WIDE // 8 - 9000}) AS a, CAST(NULL AS array<int>) AS b", True),
        (f"array_repeat(1L, {WIDE // 8}) AS a, array(1) AS b", False),
    ],
)
def test_one_row_that_is_too_wide_sends_the_epoch_to_the_executors(table: Table, values: str, fits: bool) -> None:
    df = table.spark.sql(f"SELECT id AS n, {values} FROM range(0, 2, 1, 2)")  # noqa: S608
    sink = table.made(create=True)
    types = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in df.schema)
    table.opened(sink, schema=types)
    sink._ready.forecast.record([], collected=False)
    staged = table.epoch(sink, 1, df)
    assert (staged.rows, parts(staged)) == (2, 1 if fits else 2)
    first, second = df.columns[1], df.columns[2]
    expected = [tuple(row) for row in df.orderBy("n").collect()]
    found = table.run(f"SELECT n, {first}, {second} FROM orders ORDER BY n")  # noqa: S608
    assert [(n, _plain(a), _plain(b)) for n, a, b in found] == [(n, _plain(a), _plain(b)) for n, a, b in expected]


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else value


@pytest.mark.parametrize("fixed", [True, False])
def test_a_large_epoch_after_a_small_one_is_copied_by_the_executors(
    table: Table, fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_copy, "MOST_BYTES", 5000)
    schema = "n long" if fixed else "n long, text string"
    sink = expecting_few(table, schema=schema, method="prepared")
    df = table.spark.range(0, 1000, 1, 2).selectExpr("id AS n", *([] if fixed else ["CAST(id AS string) AS text"]))
    assert parts(table.epoch(sink, 1, df)) == 2
    assert parts(table.epoch(sink, 2, df.limit(0))) == 0
    assert table.run("SELECT count(*), count(DISTINCT n), sum(n) FROM orders") == [(1000, 1000, 499500)]


# --- rows are computed once ------------------------------------------------------------------------------------------


def counting(folder: Path, df: DataFrame) -> DataFrame:
    """Add a column that is different at each computation, and a line to a file for each."""

    def note(n: int) -> str:
        import os
        import uuid

        text = uuid.uuid4().hex
        descriptor = os.open(folder / "calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{n} {text}\n".encode())
        os.close(descriptor)
        return text

    return df.withColumn("text", f.udf(note, "string", useArrow=False)("n"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("large", [True, False])
def test_rows_that_differ_at_each_computation_are_all_from_one(
    table: Table, method: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(driver_copy, "MOST_BYTES", 1)
    sink = expecting_few(table, method=method)
    staged = table.epoch(sink, 1, counting(tmp_path, table.rows(*range(20))))
    assert parts(staged) == (2 if large else 1)
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert len(calls) > 20 if large else len(calls) == 20
    last = {int(n): (n, text) for n, text in calls}  # if it was called again, the second computation counts
    assert table.visible("SELECT n::text, text FROM orders ORDER BY orders.n") == [last[n] for n in range(20)]


@pytest.mark.parametrize("how", ["observed", "on_epoch"])
def test_where_a_second_computation_would_be_visible_rows_are_computed_once(
    spark: SparkSession, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_copy, "MOST_BYTES", 1)
    seen: list[Observation] = []

    def on_epoch(df: DataFrame, stage: Any) -> DataFrame:
        del stage
        seen.append(Observation())
        return counting(tmp_path, df).observe(seen[-1], f.count(f.lit(1)).alias("rows"))

    def query(df: DataFrame) -> DataFrame:
        return counting(tmp_path, df).observe("seen", f.count(f.lit(1)).alias("rows")) if how == "observed" else df

    pg = server()
    target = PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True)
    options: dict[str, Any] = {"on_epoch": on_epoch, "stage": {}} if how == "on_epoch" else {}
    rig = Rig(spark, tmp_path, [target], query, **options)
    for epoch in range(3):
        rig.add(2 * epoch, 2 * epoch + 1)
        rig.run()
    assert target.visible(spark, "n") == [*range(6)]
    assert len((tmp_path / "calls").read_text().splitlines()) == 6
    assert [each.get["rows"] for each in seen] == ([2, 2, 2] if how == "on_epoch" else [])


@pytest.mark.parametrize("large", [True, False])
def test_the_state_of_a_stream_advances_once_per_epoch(
    spark: SparkSession, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(driver_copy, "MOST_BYTES", 1)

    def query(df: DataFrame) -> DataFrame:
        totals = df.groupBy((f.col("n") % 2).alias("n")).agg(f.count(f.lit(1)).alias("count"))
        return counting(tmp_path, totals)

    pg = server()
    target = PostgresTarget(pg.dsn(pg.fresh_database()), "totals", create=True, key="n")
    rig = Rig(spark, tmp_path, [target], query, output_mode="update")
    for epoch in range(4):
        rig.add(2 * epoch, 2 * epoch + 1)
    rig.run()
    rig.add(8, 9)
    rig.run()
    assert target.visible(spark, "n count") == [(0, 5), (1, 5)]
    assert len((tmp_path / "calls").read_text().splitlines()) == 2 * 5


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["terminated", "restarted", "killed"])
@pytest.mark.parametrize("method", METHODS)
def test_a_server_that_was_away_between_two_epochs_fails_none(table: Table, method: str, how: str) -> None:
    sink = expecting_few(table, method=method)
    table.epoch(sink, 1, table.rows(1))
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
    assert len(table.visible(query)) == 3
    if how == "terminated":
        for pid in table.visible(query):
            table.run(f"SELECT pg_terminate_backend({pid}, 10000)")
    elif how == "restarted":
        table.pg.restart()
    else:
        table.pg.kill()
        table.pg.start()
    staged = sink.prepare(table.rows(2, 3), key(2))
    if how == "terminated":
        for pid in table.visible(query):
            table.run(f"SELECT pg_terminate_backend({pid}, 10000)")
    sink.commit(key(2), staged.handle)
    assert (table.visible(), parts(staged)) == ([1, 2, 3], 1)
    sink.close()
    eventually(lambda: table.visible(query) == [])  # a server process ends a moment after its connection


@pytest.mark.parametrize("method", METHODS)
def test_an_outage_and_a_refused_value_are_told_apart(table: Table, method: str) -> None:
    table.run("CREATE TABLE orders (n int8 CHECK (n < 100), text varchar(5))")
    sink = expecting_few(table, method=method)
    with pytest.raises(SinkFailed, match="value too long") as caught:
        sink.prepare(table.spark.sql("SELECT 1L AS n, 'too long' AS text"), key(1))
    assert not isinstance(caught.value, SinkUnavailable)
    sink.abort(key(1))
    table.pg.stop()
    try:
        with pytest.raises(SinkUnavailable):
            sink.prepare(table.rows(1), key(1, attempt=2))
    finally:
        table.pg.start()
    table.epoch(sink, 1, table.spark.sql("SELECT 2L AS n, 'short' AS text"))
    assert table.visible() == [2]


@pytest.mark.parametrize("change", ["float8", "timestamptz USING to_timestamp(n)", "money"])
def test_a_type_that_changed_while_the_stream_runs_is_noticed(table: Table, change: str) -> None:
    sink = expecting_few(table, method="prepared")
    table.epoch(sink, 1, table.rows(1))
    table.run(f"ALTER TABLE orders ALTER n TYPE {change}")
    with pytest.raises(SinkFailed, match="column 'n' of the table was bigint when the stream started"):
        sink.prepare(table.rows(2), key(2))
    assert (table.prepared(), table.run("SELECT count(*) FROM orders")) == ([], [(1,)])
    table.run("ALTER TABLE orders DROP n", "ALTER TABLE orders ADD n int8")
    table.epoch(sink, 2, table.rows(2))
    assert table.visible("SELECT n FROM orders WHERE n IS NOT NULL") == [2]


def test_the_users_own_failure_passes_unchanged(table: Table) -> None:
    sink = expecting_few(table, schema="n double")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        sink.prepare(table.spark.range(3).selectExpr("1 / id AS n"), key(1))


def test_frozen_rows_are_freed(table: Table) -> None:
    sink = expecting_few(table)
    context: Any = table.spark.sparkContext._jsc.sc()
    before = len(list(context.getRDDStorageInfo()))
    for epoch in (1, 2, 3):
        table.epoch(sink, epoch, table.rows(epoch))
    assert len(list(context.getRDDStorageInfo())) <= before
