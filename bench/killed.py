"""The time from a kill to the first new row in the output, with a new process.

The program runs and rows arrive, four per second on average. At a random moment, its Python process and its JVM are
killed (SIGKILL), and the program is started again at once, in the same way as the first time. Then the first row is
written, and more follow at the same rate. The time counts from the kill until a reader of the output folder has read
one of the rows that were written after the kill. It includes the start of Python, of Java and of Spark, and the
recovery.

The programs and the reader are those of `bench/visible.py`. Holdfast may find an epoch in doubt, and completes it
first. At the end every row must be in the output; for Holdfast, every row must be there once. Plain Spark may write a
batch twice. Files that are needed at the start are in the page cache, because the program has just run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.compare import Result, in_turn, timed
from bench.scratch import scratch
from bench.spark import PLAIN
from bench.visible import OURS, plain_program
from bench.watched import Program, Watched, watched

GOAL = 1.0
ROUNDS, QUICK_ROUNDS = 4, 1
RUNS_S = (1.5, 2.5)  # how long it runs before a kill


def killed(side: Watched, moment: Callable[[float, float], float]) -> float:
    """Kill a side in mid-run, start it again, and return the time until the first new row was visible."""
    with side.resumed():
        side.warm_up(3)
        side.run_for(moment(*RUNS_S))

        def restart() -> None:
            side.kill_and_start()
            side.first_new()

        seconds = timed(restart)
        side.settle()
    return seconds


def measured(folder: Path, programs: Sequence[Program], quick: bool) -> dict[str, list[float]]:
    """Return the samples of each program."""
    chance = random.Random(1)  # noqa: S311 - the same moments in every run
    with watched(folder, programs) as running:
        for side in running.values():
            with side.resumed():
                side.warm_up(1)
        sides = {name: partial(killed, side, chance.uniform) for name, side in running.items()}
        return in_turn(QUICK_ROUNDS if quick else ROUNDS, sides, warm_up=0)


def run(quick: bool) -> list[Result]:
    with scratch(__name__) as folder:
        found = measured(folder, [plain_program(PLAIN), OURS], quick)
    return [Result("killed", "kill to the first new row", PLAIN.name, found[OURS.name], found[PLAIN.name], GOAL)]
