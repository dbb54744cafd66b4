"""How long a trigger takes, by what Spark itself says (`triggerExecution`), when batches are small.

One job on both sides: JSON files of a hundred rows, a file a batch, to Parquet; as they are, or counted by key in
update mode. Plain Spark appends in `foreachBatch`: at least once, nothing synced. Holdfast writes the same Parquet
exactly once: staged, synced, decided, renamed. Each side is a process with a JVM of its own, two cores, two shuffle
partitions, and stands still while the other one works.

Holdfast runs as in an embedded session: with Spark's own file manager that does without `FileContext`, its file system
without processes of `chmod`, and, where there is state, RocksDB with a changelog. To tell what is won by these and what
exactly-once costs, plain Spark runs with the same file manager too, and with all of these settings; and Holdfast in a
session as Spark has it.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench.compare import Result, in_turn
from bench.rival import Rival
from bench.spark import OURS, OURS_OWN, PLAIN, PLAIN_ALL, PLAIN_MANAGER, Job, Side, as_it_is

SCHEMA = "k long, v string"
ROWS = 100
GOAL = 0.6
ROUNDS, EPOCHS, WARM_UP = 8, 12, 3


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("k").agg(f.count("*").alias("n"))


class Small:
    """A side: each call takes so many epochs and returns their times."""

    def __init__(self, folder: Path, side: Side, stateful: bool) -> None:
        query, mode = (counted, "update") if stateful else (as_it_is, "append")
        self._job = Job(folder, side, SCHEMA, "json", query, output_mode=mode)

    def __call__(self, epochs: int) -> list[float]:
        """Take them."""
        for _ in range(epochs):
            first = self._job.given
            rows = ({"k": (first * 7 + n) % 1000, "v": "x" * 20} for n in range(ROWS))
            self._job.add(["\n".join(map(json.dumps, rows))])
        found = self._job.triggers(epochs)
        assert self._job.rows() == self._job.ended * ROWS  # every key is new to its file, so counts have as many rows
        return found


def compared(question: str, stateful: bool, quick: bool) -> list[Result]:
    sides = [PLAIN, OURS] if quick else [PLAIN, PLAIN_MANAGER, PLAIN_ALL, OURS, OURS_OWN]
    rounds = 3 if quick else ROUNDS
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).absolute()
        rivals = {side.name: Rival(Small, folder / str(n), side, stateful) for n, side in enumerate(sides)}
        try:
            turns = {name: partial(rival, EPOCHS) for name, rival in rivals.items()}
            found = in_turn(rounds, turns, warm_up=WARM_UP)
        finally:
            for rival in rivals.values():
                rival.close()
    what = "with state" if stateful else "stateless"

    def result(ours: Side, theirs: Side, goal: float | None = None) -> Result:
        return Result(question, f"{ours.name}, {what}", theirs.name, found[ours.name], found[theirs.name], goal=goal)

    told = [result(OURS, PLAIN, GOAL)]
    if not quick:
        told += [result(OURS, PLAIN_MANAGER), result(OURS, PLAIN_ALL), result(OURS_OWN, PLAIN)]
        told += [result(PLAIN_MANAGER, PLAIN)]
    return told


def run(quick: bool) -> list[Result]:
    return [*compared("stateless", False, quick), *compared("stateful", True, quick)]
