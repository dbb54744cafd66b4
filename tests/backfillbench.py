"""A pipeline without a JVM whose stream gets another sink, which a backfill fills. The sinks are real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from fakespark import Rows, install
from handsinks import HandFileSink, HandLogSink, HandPostgresSink, HandSqliteSink, key_of
from handstaged import query
from holdfast.epoch import Reach, unwatched
from holdfast.eventlog import EventLog
from holdfast.sinks.base import Sink
from holdfast.spark import backfilling
from holdfast.spark.backfilling import Backfilled
from rewindbench import RewindBench

NEW = "new"
LOCAL = ["files", "log", "sqlite", "sqlite upsert"]


class BackfillBench(RewindBench):
    """A stream into files; `add_sink` gives it a second sink of one kind."""

    def __init__(self, folder: Path, kind: str, dsn: str = "") -> None:
        super().__init__(folder, sinks=0)
        self.place, self.kind, self.dsn = folder, kind, dsn
        self.names = ["old"]

    def made_sinks(self) -> list[Sink]:
        return [self._made(name) for name in self.names]

    def _made(self, name: str) -> Sink:
        if name == "old":
            return HandFileSink(self.place / "old", name="old")
        database = self.place / f"{name}.db"
        makers: dict[str, Callable[[], Sink]] = {
            "files": lambda: HandFileSink(self.place / name, name=name),
            "log": lambda: HandLogSink(self.place / name, entity="text", name=name),
            "sqlite": lambda: HandSqliteSink(database, "rows", epoch_column="epoch", name=name),
            "sqlite upsert": lambda: HandSqliteSink(database, "rows", key="n", undo=True, name=name),
            "postgres": lambda: HandPostgresSink(self.dsn, "rows", name=name, epoch_column="epoch", create=True),
        }
        return makers[self.kind]()

    def backfill(self, sink: str = NEW, reach: Reach = unwatched, accept: tuple[str, ...] = ()) -> Backfilled:
        stream = self.driver(reach, accept=accept)
        return backfilling.fill_sink(stream._parts.run, stream.spec, sink, None)

    def seen(self, name: str = NEW) -> list[int]:
        """The rows that a reader of a sink sees; of upserts, their keys."""
        if name == "old" or self.kind == "files":
            folder = self.place / name
            if not list(folder.rglob("*part-*")):
                return []
            found = ds.dataset(folder, format="parquet", partitioning="hive").to_table(columns=["n"])
            return sorted(found.column("n").to_pylist())
        if self.kind == "log":
            return sorted(event.payload["n"] for event in EventLog.open(self.place / name).read())
        if self.dsn:
            import psycopg

            with psycopg.connect(self.dsn) as connection:
                return sorted(row[0] for row in connection.execute("SELECT n FROM rows").fetchall())
        return sorted(row[0] for row in query(self.place / f"{name}.db", "SELECT n FROM rows"))

    def expected(self, *rows: int) -> list[int]:
        return sorted({key_of(row) for row in rows}) if self.kind == "sqlite upsert" else sorted(rows)


def install_backfill(patch: pytest.MonkeyPatch) -> None:
    """Replace what needs a JVM; a backfill reads the old files without Spark."""
    install(patch)

    def rows(_: object, source: HandFileSink, df: Any) -> Rows:
        found: Any = Rows()
        if list(source.path.rglob("*part-*")):
            table = ds.dataset(source.path, format="parquet", partitioning="hive").to_table(columns=["n"])
            found = Rows(sorted(table.column("n").to_pylist()))
        found.schema = df.schema
        return found

    patch.setattr(backfilling, "_rows", rows)
