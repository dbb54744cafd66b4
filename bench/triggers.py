"""The duration of a trigger with small batches, as Spark reports it (`triggerExecution`).

Both sides run the same job: JSON files of a hundred rows, one file per batch, to Parquet; either unchanged, or counted
by key in update mode. Plain Spark appends in `foreachBatch`: at least once, without fsync. Holdfast writes the same
Parquet exactly once: staged, synced, decided, renamed. Each side is a process with its own JVM, two cores and two
shuffle partitions, and is suspended while the other one runs.

Holdfast has the settings of an embedded session: Spark's other file manager, which does not use `FileContext`; a file
system that starts no `chmod` processes; and, for stateful queries, RocksDB with its changelog and checkpoint format 2.
Most of the speed comes from these settings. So plain Spark also runs with the same file manager, and with all of these
settings; in the latter comparison, the ratio is the cost of exactly-once alone. Holdfast also runs without its file
system, as in a session of your own that does not configure it. It then has the other settings on one machine; a
`shared` pipeline keeps Spark's default file manager. Spark's own file sink is exactly-once too, for readers that use
its log; it does not fsync either. These two run only with the stateless query, because that sink only appends.

The floor is plain Spark with the same settings as the side of Holdfast, and a bare two-phase commit: it writes into a
new folder, syncs the file system once, publishes one small file as the decision, and renames the folder (see
`bench/bare.py`). It checks and counts nothing, and could not recover. What Holdfast takes in addition is spent on its
checks and records.

The first epoch of each turn does not count. Java continues to compile for hundreds of epochs, so all sides would
become still faster.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench.compare import Floor, Result, in_turn
from bench.rival import rivals
from bench.scratch import scratch
from bench.spark import (
    BARE,
    BARE_MANAGER,
    OURS,
    OURS_OWN,
    OWN_SINK,
    PLAIN,
    PLAIN_ALL,
    PLAIN_MANAGER,
    Job,
    Side,
    as_it_is,
)

SCHEMA = "k long, v string"
ROWS = 100
GOALS = {False: 0.45, True: 0.5}  # by whether there is state; against plain Spark
ALIKE_GOALS = {False: 1.05, True: 1.1}  # against plain Spark with the same settings
OWN_GOAL = 0.6  # in a session that the user created, against plain Spark
EPOCHS, QUICK_EPOCHS = 12, 7  # per turn
ROUNDS, WARM_UP = 5, 6  # Java compiles frequent calls: times are stable only after dozens of epochs
QUICK_ROUNDS, QUICK_WARM_UP = 2, 2


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("k").agg(f.count("*").alias("n"))


class Small:
    """A side: each call runs the given number of epochs and returns their durations."""

    def __init__(self, folder: Path, side: Side, stateful: bool, samples: int) -> None:
        self._samples = samples  # that count, over all turns
        query = counted if stateful else as_it_is
        self._job = Job(folder, side, SCHEMA, "json", query, output_mode="update" if stateful else "append")

    def __call__(self, epochs: int) -> list[float] | dict[str, float]:
        """Run the epochs. With 0, check the row count and return how the time was spent."""
        if not epochs:
            assert self._job.rows() == self._job.ended * ROWS  # no key occurs twice in a file: as many counts as rows
            return self._job.parts(self._samples)
        for _ in range(epochs + 1):
            first = self._job.given
            rows = ({"k": (first * 7 + n) % 1000, "v": "x" * 20} for n in range(ROWS))
            self._job.add(["\n".join(map(json.dumps, rows))])
        return self._job.triggers(epochs + 1, dropped=1)  # the first one is slower, after the suspension


def compared(question: str, stateful: bool, quick: bool) -> list[Result]:
    others = [PLAIN_MANAGER] if stateful else [OWN_SINK, PLAIN_MANAGER]  # Spark's own sink only appends
    same = [] if quick and stateful else [PLAIN_ALL]
    without = [BARE_MANAGER, OURS_OWN] if not quick and not stateful else []
    sides = [PLAIN, *same, *([] if quick else [BARE, *others]), *without, OURS]
    rounds, warm_up, epochs = (QUICK_ROUNDS, QUICK_WARM_UP, QUICK_EPOCHS) if quick else (ROUNDS, WARM_UP, EPOCHS)
    with scratch(__name__) as folder:
        made = {side.name: (Small, folder / str(n), side, stateful, rounds * epochs) for n, side in enumerate(sides)}
        with rivals(made) as running:
            turns = {name: partial(rival, epochs) for name, rival in running.items()}
            found = in_turn(rounds, turns, warm_up=warm_up)
            parts = {name: rival(0) for name, rival in running.items()}
    what = "with state" if stateful else "stateless"

    def result(ours: Side, theirs: Side, goal: float | None = None, **details: float) -> Result:
        samples = found[ours.name], found[theirs.name]
        name, alike = f"{ours.name}, {what}", ours is OURS and theirs in (PLAIN_ALL, OWN_SINK)
        bare = BARE if ours is OURS else BARE_MANAGER
        floor = Floor(bare.name, found[bare.name]) if goal and bare in sides else None
        return Result(question, name, theirs.name, *samples, goal=goal, alike=alike, details=details, floor=floor)

    spent = {f"{part}, {side.name}": s for side in (OURS, PLAIN) for part, s in sorted(parts[side.name].items())}
    alike = None if quick else ALIKE_GOALS[stateful]  # a short run measures Java's compiler
    results = [result(OURS, PLAIN, GOALS[stateful], **spent), *(result(OURS, each, alike) for each in same)]
    if not quick:
        results += [*(result(OURS, each) for each in others), result(PLAIN_MANAGER, PLAIN)]
    if without:
        results += [result(OURS_OWN, PLAIN, OWN_GOAL), result(OURS_OWN, PLAIN_MANAGER)]
    return results


def run(quick: bool) -> list[Result]:
    return [*compared("stateless", False, quick), *compared("stateful", True, quick)]
