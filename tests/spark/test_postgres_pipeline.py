"""Pipelines into a real PostgreSQL server: killed, restarted, refused; nothing is left behind, no password is told."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from holdfast.epoch import POINTS
from holdfast.errors import BadInput, NotSupported, SchemaMismatch, SinkBehind, SinkFailed, SinkForeign, StreamFailed
from holdfast.policy import RestartPolicy
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.spark.pipeline import Pipeline
from holdfast.testing import CrashAt
from pgfixture import GUARDED, Postgres, server
from rig import FilesTarget, PostgresTarget, Rig

METHODS = ("prepared", "staged")
SECRET = "c0rrect-h0rse-battery"  # noqa: S105 - made up


@pytest.fixture
def pg() -> Postgres:
    return server()


def target(pg: Postgres, method: str = "auto", **options: Any) -> PostgresTarget:
    return PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True, method=method, **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("point", ["all prepared", "decided"])
def test_the_server_killed_between_two_steps(
    method: str, point: str, pg: Postgres, spark: SparkSession, tmp_path: Path
) -> None:
    """What is prepared survives the server, and is committed, or dropped, when both are back."""
    rig = Rig(spark, tmp_path, [target(pg, method)])
    rig.add(1, 2)
    rig.run()
    rig.add(3, 4)
    rig.crash(CrashAt(point))
    pg.kill()
    with pytest.raises(SinkFailed):
        rig.run()  # nobody answers
    pg.start()
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4]]


@pytest.mark.parametrize("method", METHODS)
def test_many_crashes_leave_nothing_behind(method: str, pg: Postgres, spark: SparkSession, tmp_path: Path) -> None:
    """No prepared transaction; and no staging table, but that of the last epoch, which the next one drops."""
    table = target(pg, method)
    rig = Rig(spark, tmp_path, [table])
    points = itertools.cycle([point for point in POINTS if point not in ("aborted", "discarded")])
    for number in range(int(os.environ.get("CRASHES", "20"))):
        rig.add(2 * number, 2 * number + 1)
        rig.crash(CrashAt(next(points)))
    rig.add(1000)
    rig.run()
    assert rig.visible() == [sorted(rig.rows)]
    assert table._ask("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()") == [(0,)]
    assert table.staged() == (1 if method == "staged" else 0)


def test_a_table_restored_from_an_older_backup_is_behind(pg: Postgres, spark: SparkSession, tmp_path: Path) -> None:
    table = target(pg, "prepared")
    rig = Rig(spark, tmp_path, [table])
    rig.add(1)
    rig.run()
    backup = [table._ask("SELECT * FROM rows"), table._ask("SELECT * FROM holdfast_epochs")]
    for n in (2, 3):
        rig.add(n)
        rig.run()
    import psycopg

    with psycopg.connect(table.dsn) as connection:
        for name, rows in zip(("rows", "holdfast_epochs"), backup, strict=True):
            connection.execute(f"DELETE FROM {name}")  # noqa: S608
            for row in rows:
                marks = ", ".join(["%s"] * len(row))
                connection.execute(f"INSERT INTO {name} VALUES ({marks})", row)  # noqa: S608
    with pytest.raises(SinkBehind, match="holds epoch 1"):
        rig.run()
    assert rig.visible() == [[1]]


def test_what_cannot_work_is_said_before_the_first_epoch(pg: Postgres, spark: SparkSession, tmp_path: Path) -> None:
    """A wrong password, a missing server, another schema: clear errors, and nothing is decided."""
    db = pg.fresh_database()
    pg.execute("CREATE TABLE narrow (n int)", db)
    wrong = [
        (PostgresTarget(f"{pg.dsn(db, GUARDED)} password=wrong", "rows", create=True), SinkFailed, "password"),
        (PostgresTarget("host=127.0.0.1 port=1 connect_timeout=2", "rows", create=True), SinkFailed, "port=1"),
        (PostgresTarget(pg.dsn("nowhere"), "rows", create=True), SinkFailed, "nowhere"),
        (PostgresTarget(pg.dsn(db), "narrow"), SchemaMismatch, "text"),
        (PostgresTarget(pg.dsn(db), "missing"), SchemaMismatch, "create=True"),
    ]
    for number, (bad, error, word) in enumerate(wrong):
        folder = tmp_path / str(number)
        rig = Rig(spark, folder, [FilesTarget(folder / "out"), bad])
        rig.add(1)
        with pytest.raises(error, match=word) as caught:
            rig.run()
        assert "Next: " in str(caught.value)
        assert not (rig.checkpoint.parent / "epochs").exists()
        assert rig.targets[0].visible(spark) == []
    with pytest.raises(BadInput, match="libpq cannot parse it"):
        PostgresTarget("postgres//user:secret@host", "rows").make()


@pytest.mark.parametrize("why", ["unique", "server", "upsert"])
def test_where_prepared_transactions_cannot_be_used_a_staging_table_is_and_says_so_once(
    why: str, pg: Postgres, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db = pg.fresh_database()
    if why != "server":
        pg.execute("CREATE TABLE rows (n bigint PRIMARY KEY, text text)", db)
    else:
        pg.restart(prepared=0)
    try:
        table = PostgresTarget(pg.dsn(db), "rows", create=True, key="n" if why == "upsert" else None)
        sink = table.make()
        table.make = lambda: sink
        rig = Rig(spark, tmp_path, [table])
        for n in (1, 2, 3):
            rig.add(n)
            rig.run()
        assert rig.visible() == [[1, 2, 3]]
        assert table.staged() == 1
    finally:
        if why == "server":
            pg.restart()
    told = [record.message for record in caplog.records if "staging table" in record.message]
    assert len(told) == (0 if why == "upsert" else 1)  # an upsert has no other way: nothing to tell


def test_a_password_is_told_nowhere(pg: Postgres, tmp_path: Path) -> None:
    """Neither below the repository's root nor in a log line, Spark's included, also when things go wrong."""
    db = pg.fresh_database()
    if not pg.execute(f"SELECT 1 FROM pg_roles WHERE rolname = '{GUARDED}'"):  # noqa: S608
        pg.execute(f"CREATE ROLE {GUARDED} LOGIN")
    pg.execute(f"ALTER ROLE {GUARDED} PASSWORD '{SECRET}'")
    pg.execute(f"GRANT ALL ON SCHEMA public TO {GUARDED}", db)
    spec = {"folder": str(tmp_path), "dsn": f"{pg.dsn(db, GUARDED)} password={SECRET}", "admin": pg.dsn(db)}
    script = Path(__file__).parents[1] / "faults" / "drivers.py"
    done = subprocess.run(
        [sys.executable, str(script), "secret"], input=json.dumps(spec), capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-3000:]
    assert told.count(" INFO ") > 100  # Spark did log
    assert "py4j.clientserver" in told  # and Python, down to the last detail
    assert 'violates check constraint "small"' in told
    assert "password authentication failed" in told
    assert SECRET not in told
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("changes", "back"),
    [
        (["ALTER TABLE rows ALTER n TYPE float8"], "n"),
        (["ALTER TABLE rows ALTER n TYPE timestamptz USING to_timestamp(n)"], "extract(epoch FROM n)"),
        (["ALTER TABLE rows ALTER n TYPE money"], "n::numeric"),
        (["CREATE DOMAIN exact AS numeric", "ALTER TABLE rows ALTER n TYPE exact"], None),
        (["ALTER TABLE rows ALTER n TYPE numeric"], None),
        (["ALTER TABLE rows ADD more int DEFAULT 7"], None),
        (["ALTER TABLE rows RENAME TO before", "CREATE TABLE rows (text text, more int, n int8)"], None),
    ],
)
@pytest.mark.parametrize("driver_rows", [0, 100])
def test_a_table_that_is_changed_between_two_epochs_gets_the_right_values_or_none(
    changes: list[str], back: str | None, pg: Postgres, spark: SparkSession, tmp_path: Path, *, driver_rows: int
) -> None:
    """A binary COPY takes any eight bytes for a value of eight bytes: only who looks at the type knows.

    Where `back` says how the column gets its type again, the change is one that the sink refuses.
    """
    database = pg.fresh_database()
    rig = Rig(spark, tmp_path, [PostgresTarget(pg.dsn(database), "rows", create=True, driver_rows=driver_rows)])
    rig.add(1)
    rig.add(2)
    points: list[str] = []

    def reach(point: str) -> None:
        points.append(point)
        if point == "committed" and points.count(point) == 1:
            for change in changes:
                pg.execute(change, database)

    def run() -> None:
        rig.run(reach, restart=RestartPolicy.bounded(2, 60))

    if back is not None:
        with pytest.raises(StreamFailed) as caught:
            run()
        assert isinstance(caught.value.__cause__, SchemaMismatch | NotSupported)
        pg.execute(f"ALTER TABLE rows ALTER n TYPE int8 USING ({back})::int8", database)
    run()
    assert rig.visible()[0] == ([2] if "RENAME" in changes[0] else [1, 2])
    assert pg.execute("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()", database) == [(0,)]


@pytest.mark.parametrize("point", ["committed", "decided"])
@pytest.mark.parametrize("refused", [True, False])
def test_a_staged_epoch_that_meets_another_type_is_in_doubt_until_the_table_takes_it(
    refused: bool, point: str, pg: Postgres, spark: SparkSession, tmp_path: Path
) -> None:
    """`INSERT` would round what it is given, without a word."""
    database = pg.fresh_database()
    table = PostgresTarget(pg.dsn(database), "rows", create=True, method="staged")
    rig = Rig(spark, tmp_path, [table], lambda df: df.selectExpr("n + 0.5D AS n" if refused else "n", "text"))
    rig.add(1)
    rig.add(2)
    points: list[str] = []

    def reach(reached: str) -> None:
        points.append(reached)
        if reached == point and points.count(point) == 1:
            pg.execute(f"ALTER TABLE rows ALTER n TYPE {'integer' if refused else 'numeric'}", database)

    def run() -> None:
        rig.run(reach, restart=RestartPolicy.bounded(2, 60))

    if refused:
        with pytest.raises(StreamFailed) as caught:
            run()
        assert isinstance(caught.value.__cause__, SchemaMismatch)
        assert table.visible() == ([] if point == "decided" else [2])  # what was there is the table's to round
        pg.execute("ALTER TABLE rows ALTER n TYPE float8", database)
    run()
    first = 1.5 if point == "decided" else 2.0
    assert table.visible() == ([first, 2.5] if refused else [1, 2])


def test_a_table_has_one_stream_from_the_first_start_on(pg: Postgres, spark: SparkSession, tmp_path: Path) -> None:
    """The other one would replace its rows, epoch by epoch."""
    dsn = pg.dsn(pg.fresh_database())
    rig = Rig(spark, tmp_path, [PostgresTarget(dsn, "rows", create=True)])
    rig.add(1)
    pipeline = rig.pipeline()

    def add(table: str) -> None:
        totals = lambda session: rig.build(session).groupBy("text").count()  # noqa: E731
        sink = PostgresSink(dsn, table, create=True, name="totals")
        pipeline.stream(totals, name="totals", sinks=sink, output_mode="complete")

    with pytest.raises(BadInput, match="stream 'rows' writes there already"):
        add("rows")
    pg.execute('CREATE TABLE rows (n bigint, text text, "count" bigint)', dsn.rpartition("=")[2])
    add("public.rows")  # the same by another name
    with pytest.raises(SinkForeign, match="of this pipeline"):
        pipeline.run(spark, available_now=True)
    later = Pipeline("later", tmp_path / "root")
    later.stream(rig.build, name="rows", sinks=PostgresSink(dsn, "rows"))
    with pytest.raises(SinkForeign, match="stream 'rows' of pipeline 'torment'"):
        later.run(spark, available_now=True)
    assert rig.visible() == [[]]
    rig.run()
    assert rig.visible() == [[1]]


@pytest.mark.parametrize("method", METHODS)
def test_a_null_that_the_table_refuses_goes_to_the_dead_letter(
    method: str, pg: Postgres, spark: SparkSession, tmp_path: Path
) -> None:
    table = target(pg, method)
    with psycopg.connect(table.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE rows (n bigint NOT NULL, text text NOT NULL)")
    dead = FilesTarget(tmp_path / "dead", name="dead")
    rig = Rig(spark, tmp_path, [table], lambda df: df.withColumn("text", f.expr("nullif(text, 'row 2')")), dead=dead)
    rig.add(1, 2, 3)
    rig.run()
    assert rig.visible() == [[1, 3]]
    assert dead.visible(spark, "n dead_letter_reason") == [(2, "postgres.rows: text is null")]
