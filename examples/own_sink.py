"""A sink of your own: counters in a database, to which every epoch is added once.

It shows the contract of `hf.Sink` in a case where it matters. Addition is not idempotent: an epoch that is committed
twice would give a wrong stock. So `commit` adds the staged numbers and records the epoch in one transaction, and does
nothing for an epoch that is already recorded. SQLite is used here; any database with transactions will do.

How to run it, from the repository:

    JAVA_HOME=$(cat .venv/java-home) .venv/bin/python examples/own_sink.py --once

Move files of lines like `{"sku": "apple", "quantity": -3}` into `data/movements/`, and query the stock with
`sqlite3 data/out/stock.db 'SELECT * FROM counters'`. Kill it at any moment and run it again: the stock is right.
`tests/spark/test_examples.py` runs the contract tests for sinks on this one: copy those few lines too.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

import holdfast as hf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = os.environ.get("HOLDFAST_DATA", "data")
TABLES = """
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS staged (uid, stream, timeline, epoch, attempt, lease, name TEXT, number INTEGER);
CREATE TABLE IF NOT EXISTS counted (pipeline, uid, stream, timeline, epoch); -- one row: the owner and its last epoch
"""
ATTEMPT = "((uid, stream, timeline, epoch, attempt) = (?, ?, ?, ?, ?) AND lease = coalesce(?, lease))"


class CounterSink(hf.Sink):
    """Adds the numbers of column `add` to a counter for each value of column `key`. One stream owns the counters."""

    one_action = True  # `prepare` runs one action on its rows, so they need not be materialised first

    def __init__(self, path: str | os.PathLike[str], *, key: str, add: str) -> None:
        self.path = Path(path).absolute()
        super().__init__(f"counters.{self.path.stem}")
        self.target = f"counters in {self.path}"  # no two sinks of a pipeline may have the same target
        self.key, self.add = key, add

    def open(self, context: hf.SinkContext) -> None:
        """Refuse an unsupported output mode or missing columns, before the first epoch."""
        super().open(context)
        if context.output_mode != "append":
            why = "counters need new rows, not new totals"
            raise hf.errors.NotSupported(what=f"output mode {context.output_mode!r}", why=why, do="use append")
        if missing := {self.key, self.add} - set(context.schema.names):
            raise hf.errors.BadValue(what="columns", value=context.schema.names, why=f"{missing} are missing")
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def prepare(self, df: DataFrame, key: hf.EpochKey) -> hf.Staged:
        """Write the epoch's sums where no reader looks, under the full key. The handle has the expected counts."""
        sums = df.groupBy(self.key).agg(f.sum(self.add), f.count("*")).collect()
        if any(value is None for row in sums for value in row):
            raise hf.errors.SinkFailed(sink=self.name, action="accept the rows", why="a key or a number is null")
        with self._transaction("prepare") as db:
            staged = [(*_attempt(key), name, number) for name, number, _ in sums]
            db.executemany("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?, ?)", staged)
            self.context.reach("staging")
        rows = sum(row[2] for row in sums)
        return hf.Staged({"rows": rows, "names": len(sums)}, rows=rows)

    def commit(self, key: hf.EpochKey, handle: dict[str, Any]) -> None:
        """Add the staged sums and record the epoch, unless it is recorded; remove older staged rows."""
        with self._transaction(f"commit epoch {key.epoch}") as db:
            owner, place = _counted(db)
            if owner not in (None, key.owner):
                raise hf.errors.SinkForeign(sink=self.name, place=str(self.path), owner=str(owner))
            if place < key.place:
                there = db.execute(f"SELECT count(*) FROM staged WHERE {ATTEMPT}", _attempt(key)).fetchone()[0]
                if there != handle["names"]:
                    raise hf.errors.StagedGone(sink=self.name, epoch=key.epoch)
                db.execute(
                    f"INSERT INTO counters SELECT name, number FROM staged WHERE {ATTEMPT} "
                    "ON CONFLICT (name) DO UPDATE SET number = number + excluded.number",
                    _attempt(key),
                )
                self.context.reach("committing")
                db.execute("DELETE FROM counted")
                db.execute("INSERT INTO counted VALUES (?, ?, ?, ?, ?)", (*dataclasses.astuple(key.owner), *key.place))
            # The rows of this attempt are kept until the next epoch: a database restored from a backup may need them.
            done = f"(uid, stream) = (?, ?) AND (timeline, epoch) <= (?, ?) AND NOT {ATTEMPT}"
            ours = (key.owner.uid, key.owner.stream, *key.place)
            db.execute(f"DELETE FROM staged WHERE {done}", (*ours, *_attempt(key)))

    def abort(self, key: hf.EpochKey) -> None:
        """Delete the staged rows of one attempt: under its lease or, if that is `None`, under any."""
        with self._transaction("abort") as db:
            db.execute(f"DELETE FROM staged WHERE {ATTEMPT}", _attempt(key))

    def inspect(self, owner: hf.StreamIdentity, timeline: int) -> hf.SinkPosition:
        """Return the last epoch in the counters, and their owner if that is another stream."""
        with self._transaction("be inspected") as db:
            found, (last, epoch) = _counted(db)
        return hf.SinkPosition(epoch if last == timeline else 0, str(found) if found not in (None, owner) else None)

    @contextmanager
    def _transaction(self, action: str) -> Iterator[sqlite3.Connection]:
        """Open a connection in a transaction, which is committed at the end of the block or rolled back on an error."""
        try:
            with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as db:
                db.executescript(TABLES)
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise hf.errors.SinkFailed(sink=self.name, action=action, why=f"{error} ({self.path})") from error


def _attempt(key: hf.EpochKey) -> tuple[Any, ...]:
    return key.owner.uid, key.owner.stream, *key.place, key.attempt.attempt, key.lease


def _counted(db: sqlite3.Connection) -> tuple[hf.StreamIdentity | None, tuple[int, int]]:
    row = db.execute("SELECT pipeline, uid, stream, timeline, epoch FROM counted").fetchone()
    return (hf.StreamIdentity(*row[:3]), (row[3], row[4])) if row else (None, (0, 0))


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; `arguments([])` returns all defaults."""
    parser = argparse.ArgumentParser(
        description="Stock movements from files into counters.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--input", default=f"{DATA}/movements", help="folder in which files of JSON lines arrive")
    parser.add_argument("--output", default=f"{DATA}/out", help="folder for stock.db")
    parser.add_argument("--checkpoints", default=f"{DATA}/checkpoints", help="folder of the pipeline's repository")
    parser.add_argument("--checkpoint-every", default="30s", help="how often a checkpoint is taken")
    parser.add_argument("--once", action="store_true", help="process the files that are there, then exit")
    return parser.parse_args(given)


def build(options: argparse.Namespace) -> hf.Pipeline:
    """Describe the pipeline; nothing is started or written."""
    pipeline = hf.Pipeline("stock", root=options.checkpoints)
    folder, counters = Path(options.input).absolute(), Path(options.output, "stock.db")

    @pipeline.stream(trigger="1 second", sinks=[CounterSink(counters, key="sku", add="quantity")])
    def movements(spark: SparkSession) -> DataFrame:
        folder.mkdir(parents=True, exist_ok=True)  # Spark refuses to watch a folder that does not exist
        lines = spark.readStream.schema("sku string, quantity long").json(str(folder))
        return lines.where("sku IS NOT NULL AND quantity IS NOT NULL")

    return pipeline


pipeline = build(arguments([]))  # for `holdfast run own_sink.py:pipeline`


def main() -> None:
    """Run the pipeline with the options of the command line."""
    options = arguments()
    try:
        build(options).run(available_now=options.once, checkpoint_every=options.checkpoint_every)
    except hf.HoldfastError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
