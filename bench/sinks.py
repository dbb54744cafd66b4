"""How long a trigger takes when every row goes to two places.

JSON files to two folders of Parquet, small batches and larger ones. Plain Spark writes one after the other in
`foreachBatch`; if it dies between the two, one folder has rows that the other lacks, and the restart writes the first
again. Holdfast freezes the rows, stages both, and decides once for both. It has its settings, as in
`bench/triggers.py`; plain Spark runs as it comes, with the same ones, and with the same ones and the rows kept
(`persist`) for both writes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.compare import Result, in_turn
from bench.rival import rivals
from bench.scratch import scratch
from bench.spark import OURS, PLAIN, PLAIN_ALL, PLAIN_PERSISTS, Job, Side

SCHEMA = "k long, v string"
GOAL = 0.7
EPOCHS = 8


class Both:
    """A side: each call takes so many epochs and returns their times."""

    def __init__(self, folder: Path, side: Side, rows: int) -> None:
        self._job = Job(folder, side, SCHEMA, "json", outputs=2)
        self._rows = rows
        self._text = "\n".join(json.dumps({"k": n, "v": "x" * 20}) for n in range(rows))

    def __call__(self, epochs: int) -> list[float]:
        """Take them; none means: count what is there."""
        if not epochs:
            assert self._job.rows() == 2 * self._job.ended * self._rows
            return []
        for _ in range(epochs + 1):
            self._job.add([self._text])
        return self._job.triggers(epochs + 1)[1:]  # in the first, what was stopped finds its feet


def compared(rows: int, rounds: int, warm_up: int, rivals_: Sequence[Side]) -> list[Result]:
    with scratch(__name__) as folder:
        made = {side.name: (Both, folder / str(n), side, rows) for n, side in enumerate([*rivals_, OURS])}
        with rivals(made) as running:
            turns = {name: partial(rival, EPOCHS) for name, rival in running.items()}
            found = in_turn(rounds, turns, warm_up=warm_up)
            for rival in running.values():
                rival(0)
    name = f"Holdfast, two sinks, {rows:,} rows a batch"
    goals = {PLAIN.name: GOAL}
    return [
        Result(
            "sinks",
            name,
            side.name,
            found[OURS.name],
            found[side.name],
            goals.get(side.name),
            alike=side is not PLAIN,
        )
        for side in rivals_
    ]


def run(quick: bool) -> list[Result]:
    if quick:
        return compared(100, 2, 1, [PLAIN])
    sides = [PLAIN, PLAIN_ALL, PLAIN_PERSISTS]
    return [*compared(100, 5, 6, sides), *compared(50_000, 4, 4, sides)]
