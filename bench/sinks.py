"""The duration of a trigger that writes every row to two sinks.

JSON files to two Parquet folders, with small and with larger batches. Plain Spark writes one after the other in
`foreachBatch`. If it dies between the two writes, one folder has rows that the other lacks, and the restart writes them
to the first folder a second time. Holdfast computes the rows once, stages both outputs at the same time, and decides
once for both. It has the settings of `bench/triggers.py`. Plain Spark runs with its defaults, with the same settings,
and with the same settings and the rows persisted for both writes.

The floor is plain Spark with the same settings and a bare two-phase commit (see `bench/bare.py`): the rows are frozen
on use, and both writes run at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.compare import Floor, Result, in_turn
from bench.rival import rivals
from bench.scratch import scratch
from bench.spark import BARE, OURS, PLAIN, PLAIN_ALL, PLAIN_PERSISTS, Job, Side

SCHEMA = "k long, v string"
GOALS = {PLAIN.name: 0.7, PLAIN_ALL.name: 0.85}
EPOCHS = 8


class Both:
    """A side: each call runs the given number of epochs and returns their durations."""

    def __init__(self, folder: Path, side: Side, rows: int) -> None:
        self._job = Job(folder, side, SCHEMA, "json", outputs=2)
        self._rows = rows
        self._text = "\n".join(json.dumps({"k": n, "v": "x" * 20}) for n in range(rows))

    def __call__(self, epochs: int) -> list[float]:
        """Run the epochs. With 0, only check the row count."""
        if not epochs:
            assert self._job.rows() == 2 * self._job.ended * self._rows
            return []
        for _ in range(epochs + 1):
            self._job.add([self._text])
        return self._job.triggers(epochs + 1)[1:]  # the first one is slower, after the suspension


def compared(rows: int, rounds: int, warm_up: int, rivals_: Sequence[Side]) -> list[Result]:
    with scratch(__name__) as folder:
        bare = [BARE] if PLAIN_ALL in rivals_ else []
        made = {side.name: (Both, folder / str(n), side, rows) for n, side in enumerate([*rivals_, *bare, OURS])}
        with rivals(made) as running:
            turns = {name: partial(rival, EPOCHS) for name, rival in running.items()}
            found = in_turn(rounds, turns, warm_up=warm_up)
            for rival in running.values():
                rival(0)
    name = f"Holdfast, two sinks, {rows:,} rows per batch"
    return [
        Result(
            "sinks",
            name,
            side.name,
            found[OURS.name],
            found[side.name],
            GOALS.get(side.name),
            alike=side is not PLAIN,
            floor=Floor(BARE.name, found[BARE.name]) if bare and side.name in GOALS else None,
        )
        for side in rivals_
    ]


def run(quick: bool) -> list[Result]:
    if quick:
        return compared(100, 2, 1, [PLAIN])
    sides = [PLAIN, PLAIN_ALL, PLAIN_PERSISTS]
    return [*compared(100, 5, 6, sides), *compared(50_000, 4, 4, sides)]
