"""A pipeline to torment: rows go in as files, and each kind of sink can tell what is staged and what is visible."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from holdfast.epoch import Reach, unwatched
from holdfast.errors import LogMissing, StreamFailed
from holdfast.eventlog.log import EventLog
from holdfast.policy import Backoff, RestartPolicy
from holdfast.sinks.base import Sink
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.foreach import ForeachKey, ForeachSink
from holdfast.sinks.log import LogSink
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.spark.handle import PipelineHandle
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.pipeline_status import PipelineStatus
from holdfast.spark.spec import Build
from holdfast.testing import Crashed
from markersink import SqliteMarkerSink
from ownsinks import duckdb_rows, sink_of_page

SCHEMA = "n long, text string"


def polling_delays_ms(handle: PipelineHandle) -> set[int]:
    """Return the delay between two polls for input of each query, in milliseconds, from Spark's own object."""
    found: set[int] = set()
    for stream in handle._streams:
        while (query := stream._query.running) is None:
            handle.wait(0.01)
        java: Any = query._jsq.streamingQuery()  # type: ignore[attr-defined]
        found.add(int(java.sparkSessionForStream().sessionState().conf().streamingPollingDelay()))
    return found


class Target:
    """A sink as a test sees it, from outside."""

    def __init__(self, make: Callable[[], Sink]) -> None:
        self.make = make

    def visible(self, spark: SparkSession) -> list[Any]:
        raise NotImplementedError

    def staged(self) -> int:
        raise NotImplementedError


class FilesTarget(Target):
    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(lambda: FileSink(path, **options))
        self.path = path
        self.format = options.get("format", "parquet")

    def visible(self, spark: SparkSession, columns: str = "n") -> list[Any]:
        if not list(self.path.rglob("*part-*")):
            return []
        if self.format == "parquet":  # without a Spark job
            found = ds.dataset(self.path, format="parquet", partitioning="hive").to_table(columns=columns.split())
            rows: list[Any] = [tuple(row.values()) for row in found.to_pylist()]
        else:
            rows = spark.read.format(self.format).load(str(self.path)).select(*columns.split()).collect()
        return sorted(row[0] if len(row) == 1 else tuple(row) for row in rows)

    def staged(self) -> int:
        folder = self.path.with_name(self.path.name + ".staging")
        return len([each for each in folder.iterdir() if list(each.iterdir())]) if folder.exists() else 0


class SqliteTarget(Target):
    def __init__(self, path: Path, table: str = "rows", **options: Any) -> None:
        super().__init__(lambda: SqliteSink(path, table, **options))
        self.path = path
        self.table = table

    def visible(self, spark: SparkSession | None = None, columns: str = "n") -> list[Any]:
        if not self.path.exists():
            return []
        connection = sqlite3.connect(self.path)
        try:
            rows = connection.execute(f'SELECT {",".join(columns.split())} FROM "{self.table}"').fetchall()  # noqa: S608
        except sqlite3.OperationalError:
            rows = []
        finally:
            connection.close()
        return sorted(row[0] if len(row) == 1 else tuple(row) for row in rows)

    def staged(self) -> int:
        folder = self.path.with_name(self.path.name + ".staging")
        return len([each for each in folder.glob("*/*") if list(each.iterdir())]) if folder.exists() else 0


class LogTarget(Target):
    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(lambda: LogSink(path, **options))
        self.path = path

    def visible(self, spark: SparkSession | None = None, columns: str = "n") -> list[Any]:
        try:
            events = list(EventLog.open(self.path).read())
        except LogMissing:
            return []
        assert [event.sequence for event in events] == list(range(len(events)))  # an abort leaves no hole
        rows = [tuple(event.payload[name] for name in columns.split()) for event in events]
        return sorted(row[0] if len(row) == 1 else row for row in rows)

    def staged(self) -> int:
        folder = self.path.with_name(self.path.name + ".staging")
        return len([each for each in folder.iterdir() if list(each.iterdir())]) if folder.exists() else 0


class PostgresTarget(Target):
    def __init__(self, dsn: str, table: str, **options: Any) -> None:
        super().__init__(lambda: PostgresSink(dsn, table, **options))
        self.dsn = dsn
        self.table = table

    def _ask(self, question: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(question).fetchall()

    def visible(self, spark: SparkSession | None = None, columns: str = "n") -> list[Any]:
        try:
            rows = self._ask(f'SELECT {",".join(columns.split())} FROM "{self.table}"')  # noqa: S608
        except psycopg.errors.UndefinedTable:
            rows = []
        return sorted(row[0] if len(row) == 1 else tuple(row) for row in rows)

    def staged(self) -> int:
        """Prepared transactions and staging tables of this database."""
        prepared = self._ask("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
        tables = self._ask("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'holdfast_stage%'")
        return int(prepared[0][0]) + int(tables[0][0])


class ForeachTarget(Target):
    """A function that appends a line for each call: its key, and the rows that it was given."""

    def __init__(self, lines: Path, folder: Path | None = None) -> None:
        super().__init__(lambda: ForeachSink(self.call, name="calls", path=folder))
        self.lines = lines
        self.folder = folder

    def call(self, df: DataFrame, key: ForeachKey) -> None:
        rows = sorted([row.n, row.text] for row in df.collect())
        line = json.dumps({"key": str(key), "timeline": key.timeline, "epoch": key.epoch, "rows": rows}) + "\n"
        descriptor = os.open(self.lines, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line.encode())  # in one piece, or not at all
        os.close(descriptor)

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.read_text().splitlines()] if self.lines.exists() else []

    def visible(self, spark: SparkSession | None = None, columns: str = "n") -> list[Any]:
        """Return the rows of each key once; a repetition has the same rows, and epochs come in their order."""
        found: dict[str, Any] = {}
        calls = self.calls()
        for call in calls:
            assert found.setdefault(call["key"], call["rows"]) == call["rows"]
        assert len(found) == len({(call["timeline"], call["epoch"]) for call in calls})  # one key an epoch
        rows = [tuple(row) for rows in found.values() for row in rows]
        return sorted(row[0] if columns == "n" else row for row in rows)

    def staged(self) -> int:
        folder = self.folder / "staging" if self.folder else None
        return len([each for each in folder.iterdir() if list(each.iterdir())]) if folder and folder.exists() else 0


class MarkerTarget(Target):
    """A marker sink: that of the page into DuckDB, or one into SQLite, which several processes can open."""

    def __init__(self, path: Path, *, duckdb: bool = False) -> None:
        folder = path.with_name(path.name + ".staging")
        made = sink_of_page("DuckDbSink") if duckdb else None
        super().__init__(
            lambda: SqliteMarkerSink(path, staging=folder) if made is None else made(str(path), "rows", staging=folder)  # type: ignore[call-arg,arg-type]
        )
        self.path = path
        self.folder = folder
        self.duckdb = duckdb

    def visible(self, spark: SparkSession | None = None, columns: str = "n") -> list[Any]:
        if self.duckdb:
            return duckdb_rows(self.path, "rows", columns)
        rows = SqliteMarkerSink(self.path).seen()
        return [n for n, _ in rows] if columns == "n" else rows

    def staged(self) -> int:
        return len([each for each in self.folder.glob("staging/*") if list(each.iterdir())])


class Rig:
    """A pipeline of one stream whose input a test gives file by file: a file is an epoch."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        targets: list[Target],
        query: Callable[[DataFrame], DataFrame] | None = None,
        output_mode: str = "append",
        *,
        dead: Target | None = None,
        **options: Any,
    ) -> None:
        self.spark = spark
        self.dead = dead  # the dead letter
        self.folder = folder
        self.targets = targets
        self.query = query or (lambda df: df)
        self.output_mode = output_mode
        self.options = options
        self.root: str | Path = folder / "root"
        self.inputs = 0
        self.rows: list[int] = []
        self.epochs: list[list[int]] = []
        (folder / "in").mkdir(parents=True, exist_ok=True)

    @property
    def repository(self) -> Path:
        return self.folder / "root" / "torment"

    @property
    def checkpoint(self) -> Path:
        return self.repository / "timelines/1/streams/rows/spark"

    def add(self, *numbers: int) -> None:
        """Give one epoch's input. The file appears whole, and later than the ones before it."""
        self.inputs += 1
        path = self.folder / "in" / f"{self.inputs:06}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(json.dumps({"n": n, "text": f"row {n}"}) + "\n" for n in numbers))
        os.utime(hidden, (1_700_000_000 + self.inputs,) * 2)  # Spark takes older files first
        hidden.rename(path)
        self.rows += numbers
        self.epochs.append(list(numbers))

    def add_more(self, count: int) -> None:
        """Give one epoch's input, of numbers that were never given."""
        first = max(self.rows, default=-1) + 1
        self.add(*range(first, first + count))

    def build(self, spark: SparkSession) -> DataFrame:
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).option("latestFirst", "false")
        return self.query(source.json(str(self.folder / "in")))

    def pipeline(self, **options: Any) -> Pipeline:
        settings = {
            "restart": RestartPolicy.never(),
            "outage": 0,
            "backoff": Backoff(first=0.01, longest=0.05),
        } | options
        made = Pipeline("torment", self.root, **settings)
        build: Build = self.build
        sinks = [target.make() for target in self.targets]
        dead = self.dead.make() if self.dead else None
        made.stream(build, name="rows", sinks=sinks, output_mode=self.output_mode, dead_letter=dead, **self.options)
        return made

    def run(
        self, reach: Reach = unwatched, accept: tuple[str, ...] = (), *, take_over: bool = False, **options: Any
    ) -> PipelineStatus:
        made = self.pipeline(**options)
        return made.run(
            self.spark, available_now=True, checkpoint_every=None, accept=accept, reach=reach, take_over=take_over
        )

    def crash(self, reach: Reach) -> str:
        """Run until the crash; return where it was."""
        try:
            self.run(reach)
        except Crashed as crash:
            return str(crash)
        except StreamFailed as failed:
            error: BaseException | None = failed
            while error is not None and not isinstance(error, Crashed):
                error = error.__cause__
            if error is None:
                raise
            return str(error)
        raise AssertionError("it did not crash")

    def visible(self) -> list[list[Any]]:
        return [target.visible(self.spark) for target in self.targets]

    def staged(self) -> list[int]:
        return [target.staged() for target in self.targets]
