"""Epochs into lake tables, compared with Spark's plain Parquet write of the same rows, and their growth.

An epoch is what a sink does with it: Spark writes the files, their footers are read and their digests computed, every
file is synced, and one commit of the table makes the rows visible once. Plain Spark writes the same rows to a folder:
readers may see part of them, a repetition writes them twice, and nothing is synced. Both sides write with the same
session, so its settings are the same.

Growth: a thousand epochs of a few rows into one table. The times of the commits of the last hundred are compared with
those of the first hundred; both include one checkpoint of Delta's log. The floor of Delta's growth is delta-rs alone,
which looks at all files of the table in each commit: the same files are added, without a ledger, a check or a sync.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession

from bench.compare import Floor, Result, in_turn, timed
from bench.rival import apart
from bench.spark import QUICK_FILES, session
from holdfast import DeltaSink, EpochKey, IcebergSink, Sink, SinkContext, StreamIdentity
from holdfast.epoch import Attempt
from holdfast.repository.files import sync_all

SIZES = (100, 1_000_000)
EPOCHS = 1_000
WINDOW = 100
GOAL = 1.5  # of the growth
OWNER = StreamIdentity("bench", "0" * 32, "rows")


def delta(folder: Path) -> Sink:
    return DeltaSink(folder / "delta")


def iceberg(folder: Path) -> Sink:
    folder.mkdir(parents=True, exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return IcebergSink("bench.rows", catalog=catalog)


SINKS: dict[str, Callable[[Path], Sink]] = {"Delta Lake": delta, "Iceberg": iceberg}


class Epochs:
    """Commits one epoch after another to a sink."""

    def __init__(self, spark: SparkSession, sink: Sink, df: DataFrame) -> None:
        sink.open(SinkContext(OWNER, df.schema, "append", spark, tell=lambda _: None))
        self._sink, self._df = sink, df
        self._numbers = itertools.count(1)

    def __call__(self) -> float:
        """Run one epoch, and return the duration of its commit."""
        attempt = Attempt(stream=OWNER.stream, timeline=1, epoch=next(self._numbers), attempt=1)
        key = EpochKey(OWNER, attempt, 1)
        staged = self._sink.prepare(self._df, key)
        sync_all(staged.paths)
        return timed(partial(self._sink.commit, key, staged.handle))


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    columns = ("id", "concat('customer-', id % 5000) AS customer", "id / 100D AS amount", "id % 3 = 0 AS paid")
    df = spark.range(0, rows, 1, 1 if rows < 1_000 else 2).selectExpr(*columns)
    df.cache().count()
    return df


def compared(spark: SparkSession, folder: Path, rows: int, rounds: int, warm_up: int) -> list[Result]:
    df = rows_of(spark, rows)
    epochs = {name: Epochs(spark, make(folder / f"{rows}"), df) for name, make in SINKS.items()}
    turns: dict[str, Callable[[], float]] = {name: partial(timed, each) for name, each in epochs.items()}
    turns["plain"] = partial(timed, partial(_append, df, folder / f"{rows}-plain"))
    found = in_turn(rounds, turns, warm_up=warm_up)
    against = "Spark's plain Parquet write"
    return [
        Result("lake", f"{name}, an epoch of {rows:,} rows", against, found[name], found["plain"]) for name in SINKS
    ]


def _append(df: DataFrame, folder: Path) -> None:
    df.write.mode("append").parquet(str(folder))


def growth(spark: SparkSession, folder: Path, epochs: int, window: int) -> list[Result]:
    df = rows_of(spark, 10)
    found = []
    for name, make in SINKS.items():
        run = Epochs(spark, make(folder / "growth"), df)
        times = [run() for _ in range(epochs)]
        what, against = f"{name}, a commit after {epochs:,} epochs", f"a commit in the first {window}"
        floor = None
        if name == "Delta Lake":
            bare = bare_commits(folder / "growth/delta", folder / "bare", epochs)
            floor = Floor("delta-rs alone", bare[-window:], bare[:window])
        found.append(Result("lake", what, against, times[-window:], times[:window], GOAL, floor=floor))
    return found


def bare_commits(like: Path, folder: Path, epochs: int) -> list[float]:
    """Return the times of commits by delta-rs alone: each adds a file like the last one of a table."""
    written = DeltaTable(like)
    files = written.get_add_actions(flatten=True)
    size, rows = (files.column(name).to_pylist()[0] for name in ("size_bytes", "num_records"))
    stats = json.dumps({"numRecords": rows})
    DeltaTable.create(folder, schema=written.schema())
    table = DeltaTable(folder)

    def commit(epoch: int) -> None:
        table.update_incremental()
        added = AddAction(f"{epoch}.parquet", size, {}, 0, True, stats)
        properties = CommitProperties(app_transactions=[Transaction("bare", epoch)])
        table.create_write_transaction([added], "append", table.schema(), [], commit_properties=properties)

    return [timed(partial(commit, epoch)) for epoch in range(1, epochs + 1)]


def measure(folder: Path, quick: bool) -> list[Result]:
    spark = session(QUICK_FILES)
    sizes, (rounds, warm_up) = (SIZES[:1], (3, 1)) if quick else (SIZES, (12, 4))
    found = [result for rows in sizes for result in compared(spark, folder, rows, rounds, warm_up)]
    epochs, window = (40, 10) if quick else (EPOCHS, WINDOW)
    return [*found, *growth(spark, folder, epochs, window)]


def run(quick: bool) -> list[Result]:
    return apart(__name__, measure, quick)
