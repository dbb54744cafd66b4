"""How long a trigger takes, by what Spark itself says (`triggerExecution`), when batches are small.

One job on both sides: JSON files of a hundred rows, a file a batch, to Parquet; as they are, or counted by key in
update mode. Plain Spark appends in `foreachBatch`: at least once, nothing synced. Holdfast writes the same Parquet
exactly once: staged, synced, decided, renamed. Each side is a process with a JVM of its own, two cores, two shuffle
partitions, and stands still while the other one works.

Holdfast runs as in an embedded session: with the other of Spark's two file managers, which does without `FileContext`;
with a file system of ours that starts no processes of `chmod`; and, where there is state, with RocksDB, its changelog
and its checkpoint format 2. Most of what is won is won by these. So plain Spark runs with the same file manager too,
and with all of these settings: against that one, the ratio is the price of exactly-once and nothing else. Holdfast also
runs without its file system, which a session that you bring lacks until you give it; it has the other settings on one
machine; a `shared` pipeline keeps Spark's own file manager. Spark's own sink of files is exactly once too, by a log of
its own, for readers that know it; it syncs nothing either. These two run where there is no state: that sink only
appends.

The first epoch of each turn does not count. Java goes on compiling for hundreds of epochs: all sides get faster yet.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench.compare import Result, in_turn
from bench.rival import rivals
from bench.scratch import scratch
from bench.spark import OURS, OURS_OWN, OWN_SINK, PLAIN, PLAIN_ALL, PLAIN_MANAGER, Job, Side, as_it_is

SCHEMA = "k long, v string"
ROWS = 100
GOAL = 0.6
EPOCHS, QUICK_EPOCHS = 12, 7  # a turn
ROUNDS, WARM_UP = 5, 6  # Java compiles what is called often: dozens of epochs, before their times settle
QUICK_ROUNDS, QUICK_WARM_UP = 2, 2


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("k").agg(f.count("*").alias("n"))


class Small:
    """A side: each call takes so many epochs and returns their times."""

    def __init__(self, folder: Path, side: Side, stateful: bool) -> None:
        query = counted if stateful else as_it_is
        self._job = Job(folder, side, SCHEMA, "json", query, output_mode="update" if stateful else "append")

    def __call__(self, epochs: int) -> list[float] | dict[str, float]:
        """Take them; none means: count what is there, and tell what the time was spent with."""
        if not epochs:
            assert self._job.rows() == self._job.ended * ROWS  # no key comes twice in a file: as many counts as rows
            return self._job.parts(QUICK_EPOCHS * QUICK_ROUNDS)
        for _ in range(epochs + 1):
            first = self._job.given
            rows = ({"k": (first * 7 + n) % 1000, "v": "x" * 20} for n in range(ROWS))
            self._job.add(["\n".join(map(json.dumps, rows))])
        return self._job.triggers(epochs + 1)[1:]  # in the first, what was stopped finds its feet


def compared(question: str, stateful: bool, quick: bool) -> list[Result]:
    others = [PLAIN_MANAGER] if stateful else [OWN_SINK, PLAIN_MANAGER]  # Spark's own sink only appends
    same = [] if quick and stateful else [PLAIN_ALL]
    without = [OURS_OWN] if not quick and not stateful else []
    sides = [PLAIN, *same, *([] if quick else others), *without, OURS]
    rounds, warm_up, epochs = (QUICK_ROUNDS, QUICK_WARM_UP, QUICK_EPOCHS) if quick else (ROUNDS, WARM_UP, EPOCHS)
    with scratch(__name__) as folder:
        made = {side.name: (Small, folder / str(n), side, stateful) for n, side in enumerate(sides)}
        with rivals(made) as running:
            turns = {name: partial(rival, epochs) for name, rival in running.items()}
            found = in_turn(rounds, turns, warm_up=warm_up)
            parts = {name: rival(0) for name, rival in running.items()}
    what = "with state" if stateful else "stateless"

    def result(ours: Side, theirs: Side, goal: float | None = None, **told: float) -> Result:
        samples = found[ours.name], found[theirs.name]
        name, alike = f"{ours.name}, {what}", ours is OURS and theirs in (PLAIN_ALL, OWN_SINK)
        return Result(question, name, theirs.name, *samples, goal=goal, alike=alike, told=told)

    spent = {f"{part}, {side.name}": s for side in (OURS, PLAIN) for part, s in sorted(parts[side.name].items())}
    told = [result(OURS, PLAIN, GOAL, **spent), *(result(OURS, each) for each in same)]
    if not quick:
        told += [*(result(OURS, each) for each in others), result(PLAIN_MANAGER, PLAIN)]
    return told + [result(each, rival) for each in without for rival in (PLAIN, PLAIN_MANAGER)]


def run(quick: bool) -> list[Result]:
    return [*compared("stateless", False, quick), *compared("stateful", True, quick)]
