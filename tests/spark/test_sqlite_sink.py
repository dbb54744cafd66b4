"""The SQLite sink: whose a table is, and which rows it refuses before they are decided."""

import math
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.epoch import Attempt
from holdfast.errors import SchemaMismatch, SinkFailed, SinkForeign, StreamFailed
from holdfast.policy import RestartPolicy
from holdfast.sinks.base import EpochKey, SinkContext, StreamIdentity
from holdfast.sinks.sqlite import SqliteSink
from holdfast.spark.pipeline import Pipeline
from holdfast.testing import CrashAt
from rig import Rig, SqliteTarget

OWNER, OTHER = StreamIdentity("shop", "uid-1", "orders"), StreamIdentity("bakery", "uid-2", "bread")
SCHEMA = "n long, text string"


def key(epoch: int, *, attempt: int = 1, lease: int = 1, owner: StreamIdentity = OWNER) -> EpochKey:
    return EpochKey(owner, Attempt(stream=owner.stream, timeline=1, epoch=epoch, attempt=attempt), lease)


class Table:
    """A table in a database of its own: sinks for it, and what can be seen of it."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.path = folder / "out.db"
        self.spark = spark

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return [connection.execute(statement).fetchall() for statement in statements][-1]
        finally:
            connection.close()

    def opened(
        self, owner: StreamIdentity = OWNER, *, mode: str = "append", schema: str = SCHEMA, **options: Any
    ) -> SqliteSink:
        sink = SqliteSink(self.path, "rows", **options)
        sink.open(SinkContext(owner, self.spark.createDataFrame([], schema).schema, mode, self.spark))
        return sink

    def rows(self, *values: Any, schema: str = SCHEMA) -> DataFrame:
        return self.spark.createDataFrame(
            [each if isinstance(each, tuple) else (each, f"row {each}") for each in values], schema
        )


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    return Table(tmp_path, spark)


# --- owners ---


def test_a_table_is_its_owners_from_the_first_open_on(table: Table) -> None:
    sink = table.opened()
    ours = "stream 'orders' of pipeline 'shop' with the uid uid-1"
    for _ in range(2):
        assert (sink.inspect(OWNER, 1).epoch, sink.inspect(OWNER, 1).foreign) == (0, None)
        assert table.opened(OTHER).inspect(OTHER, 1).foreign == ours
        assert table.opened().inspect(OWNER, 1).foreign is None  # who was refused has claimed nothing
    assert table.opened(OTHER, mode="complete", share=True).inspect(OTHER, 1).foreign == ours
    sink.commit(key(1), sink.prepare(table.rows(1), key(1)).handle)
    assert table.opened(OTHER).inspect(OTHER, 1).foreign == ours
    assert table.opened().inspect(OWNER, 1).epoch == 1


def test_a_table_without_epochs_may_be_dropped_and_made_again(table: Table) -> None:
    table.opened()
    table.run("DROP TABLE rows")
    table.opened()
    assert table.run("SELECT count(*) FROM rows") == [(0,)]


def test_a_pipeline_is_refused_while_the_first_epoch_of_another_is_on_its_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")])
    rig.add(1)
    later = Pipeline("later", tmp_path / "root")
    later.stream(rig.build, name="rows", sinks=SqliteSink(tmp_path / "out.db", "rows"))
    refused: list[str] = []

    def reach(point: str) -> None:
        if point == "staging":
            with pytest.raises(SinkForeign, match="stream 'rows' of pipeline 'torment'") as caught:
                later.run(spark, available_now=True)
            refused.append(str(caught.value))

    rig.run(reach)
    assert (len(refused), rig.visible()) == (1, [[1]])


# --- rows that the table does not take ---


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_a_null_that_the_table_does_not_take_is_refused_before_the_decision(table: Table, mode: str) -> None:
    schema = "n long, text string, x double"
    table.run("CREATE TABLE rows (n INTEGER, Text TEXT NOT NULL, x REAL NOT NULL DEFAULT 0)")
    sink = table.opened(mode=mode, schema=schema)
    unfit = [((1, None, 1.0), "text"), ((1, "a", None), "x"), ((1, "a", math.nan), "x")]
    for attempt, (row, named) in enumerate(unfit, start=1):
        df = table.rows((0, "fit", 0.5), row, schema=schema)
        with pytest.raises(SinkFailed, match=f"column {named} .*NOT NULL.*filter"):
            sink.prepare(df, key(1, attempt=attempt))
    fit = table.rows((None, "a", 1.0), (2, "", math.inf), schema=schema)
    staged = sink.prepare(fit, key(1, attempt=9))
    sink.commit(key(1, attempt=9), staged.handle)
    assert table.run("SELECT n, text, x FROM rows ORDER BY n") == [(None, "a", 1.0), (2, "", math.inf)]


def test_a_key_that_is_not_a_number_is_refused(table: Table) -> None:
    """It would become NULL, of which a table holds many."""
    table.run("CREATE TABLE rows (x REAL UNIQUE)")
    sink = table.opened(schema="x double", key="x")
    with pytest.raises(SinkFailed, match="its key x is null"):
        sink.prepare(table.rows((math.nan,), schema="x double"), key(1))


def test_a_null_becomes_a_row_number_where_sqlite_makes_one(table: Table) -> None:
    table.run("CREATE TABLE rows (n INTEGER PRIMARY KEY NOT NULL, text TEXT)")
    sink = table.opened()
    staged = sink.prepare(table.rows((None, "a"), (None, "b")), key(1))
    sink.commit(key(1), staged.handle)
    assert table.run("SELECT n, text FROM rows ORDER BY n") == [(1, "a"), (2, "b")]


def test_an_epoch_with_such_a_null_can_be_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    Table(tmp_path, spark).run("CREATE TABLE rows (n INTEGER NOT NULL, text TEXT)")
    rig = Rig(
        spark,
        tmp_path,
        [SqliteTarget(tmp_path / "out.db")],
        lambda df: df.selectExpr("nullif(n, 2) AS n", "text"),
        quarantine_after=2,
    )
    for n in (1, 2, 3):
        rig.add(n)
    rig.run(restart=RestartPolicy.bounded(5, 60))
    assert rig.visible() == [[1, 3]]


@pytest.mark.parametrize("keys", [(None, 2), (2, 2)], ids=["null", "twice"])
def test_a_key_that_cannot_be_one_is_refused_before_the_decision(
    keys: tuple[int | None, int], spark: SparkSession, tmp_path: Path
) -> None:
    """SQLite would have made up a key for NULL, and taken any of two rows for the last."""
    first, second = keys
    rig = Rig(
        spark,
        tmp_path,
        [SqliteTarget(tmp_path / "out.db", key="n")],
        lambda df: df.withColumn("n", f.when(f.col("n") == 1, f.lit(first)).otherwise(f.lit(second))),
    )
    rig.add(1, 3)
    with pytest.raises(StreamFailed) as caught:
        rig.run()
    assert isinstance(caught.value.__cause__, SinkFailed)
    assert "never null" in str(caught.value)
    assert rig.visible() == [[]]


def test_a_dropped_table_is_missed(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")])
    rig.add(1)
    rig.run()
    connection = sqlite3.connect(tmp_path / "out.db")
    connection.execute("DROP TABLE rows")
    connection.close()
    rig.add(2)
    with pytest.raises(SchemaMismatch, match="records that it holds epochs"):
        rig.run()


def test_an_epoch_in_doubt_is_committed_into_its_own_columns(spark: SparkSession, tmp_path: Path) -> None:
    """The program gives them in another order when it comes back."""
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")], lambda df: df.selectExpr("text a", "text || '!' b"))
    rig.add(1)
    rig.crash(CrashAt("decided"))
    rig.query = lambda df: df.selectExpr("text || '!' b", "text a")
    rig.run()
    assert rig.targets[0].visible(spark, "a b") == [("row 1", "row 1!")]


def test_a_tables_name_is_the_same_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db", "rows")])
    rig.add(1)
    rig.run()
    shutil.rmtree(rig.repository)
    rig.targets = [SqliteTarget(tmp_path / "out.db", "Rows")]
    with pytest.raises(SinkForeign):
        rig.run()
