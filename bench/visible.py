"""The time until a row is visible at a low rate: four rows per second on average, each in its own file.

The time counts from the rename of the input file until a reader of the output folder has read the row. The reader
polls about a thousand times per second and skips hidden names. The moments of the rows are random, the same in every
run. All sides run the same program, CSV files to CSV files, with Spark's default trigger, which starts the next batch
as soon as there is input. Each side has its own process, which is suspended while another one runs.

Holdfast is a pipeline with an embedded session and all defaults: every row is synced and decided before it is visible.
Its checkpoints are triggered by the clock, which continues during the suspensions, so it takes more of them per row.
Plain Spark appends in `foreachBatch`: at least once, without fsync. It runs with its defaults, and with all settings of
the embedded session. Its UI is off, like in the embedded session. Each side first writes a number of rows that do not
count, one after the other. Java continues to compile, so all sides would become still faster.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.compare import Result, in_turn
from bench.scratch import scratch
from bench.spark import PLAIN, PLAIN_ALL, Side
from bench.watched import Program, Watched, watched

GOAL = 0.6  # the same as that of a small trigger
WARM_UP, ROWS, ROUNDS = 40, 16, 5
QUICK_WARM_UP, QUICK_ROWS, QUICK_ROUNDS = 10, 10, 2
_COMMAND = (sys.executable, "-m", "bench.program")
_EMBEDDED = {  # what an embedded session sets too, apart from what makes it fast
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def plain_program(side: Side) -> Program:
    """Return the program of plain Spark with the settings of a side."""
    settings = json.dumps({**_EMBEDDED, **dict(side.settings)})
    return Program(side.name, _COMMAND, (settings,), exactly_once=False)


OURS = Program("Holdfast", _COMMAND)


class Turn:
    """A side: each call writes rows at the rate, and returns the time until each was visible.

    Each call also adds a sample to `cpu`: the CPU time of the program per second.
    """

    def __init__(self, side: Watched, rows: int) -> None:
        self._side, self._rows = side, rows
        self.cpu: list[float] = []

    def __call__(self) -> Sequence[float]:
        """Run one turn."""
        with self._side.resumed():
            self._side.warm_up(1)  # the first one is slower, after the suspension
            used, start = self._side.group.cpu_s(), time.perf_counter()
            found = self._side.visible(self._rows)
            self.cpu.append((self._side.group.cpu_s() - used) / (time.perf_counter() - start))
            return found


def measured(folder: Path, programs: Sequence[Program], quick: bool) -> dict[str, tuple[list[float], list[float]]]:
    """Return the times until rows were visible, and the CPU time per second of each turn, for each program."""
    warm_up, rows, rounds = (QUICK_WARM_UP, QUICK_ROWS, QUICK_ROUNDS) if quick else (WARM_UP, ROWS, ROUNDS)
    with watched(folder, programs) as running:
        for side in running.values():
            with side.resumed():
                side.warm_up(warm_up)
        turns = {name: Turn(side, rows) for name, side in running.items()}
        found = in_turn(rounds, turns)
        for side in running.values():
            with side.resumed():
                side.settle()
    return {name: (samples, turns[name].cpu[-rounds:]) for name, samples in found.items()}


def run(quick: bool) -> list[Result]:
    sides = [PLAIN] if quick else [PLAIN, PLAIN_ALL]
    with scratch(__name__) as folder:
        found = measured(folder, [*map(plain_program, sides), OURS], quick)
    ours, _ = found[OURS.name]
    name, goals = "a row is visible, 4 rows/s", {PLAIN.name: GOAL}
    return [
        Result("visible", name, side.name, ours, found[side.name][0], goals.get(side.name), alike=side is PLAIN_ALL)
        for side in sides
    ]
