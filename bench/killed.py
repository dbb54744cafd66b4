"""The time from a kill to the first new row in the output, with a new process.

The program runs and rows arrive, four per second on average. At a random moment, its Python process and its JVM are
killed (SIGKILL), and the program is started again at once, in the same way as the first time. Then the first row is
written, and more follow at the same rate. The time counts from the kill until a reader of the output folder has read
one of the rows that were written after the kill. It includes the start of Python, of Java and of Spark, and the
recovery.

Holdfast starts Java with an archive of Spark's classes, if there is one. After the first kill on a machine there is
none yet: that start makes it, in the background, from the list of classes that the killed process has left. All later
starts use it. Both cases are measured, each with its own folder of archives. For later kills, the program was killed
once before the measurement. For the first kill, the archive is removed after each sample. Plain Spark has no archive.
The floor is plain Spark with the settings, the class path and the archive of Holdfast. It recovers nothing and syncs
nothing.

The programs and the reader are those of `bench/visible.py`. Holdfast may find an epoch in doubt, and completes it
first. At the end every row must be in the output; for Holdfast, every row must be there once. Plain Spark may write a
batch twice. Files that are needed at the start are in the page cache, because the program has just run.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.compare import CannotMeasure, Floor, Result, in_turn, timed
from bench.scratch import scratch
from bench.spark import PLAIN, Side
from bench.visible import OURS, plain_program
from bench.watched import Program, Watched, watched
from holdfast.spark.adapter import FAST_FILES
from holdfast.spark.class_archive import VARIABLE, ClassArchive, is_intact
from holdfast.spark.java_environment import CLASS_PATH, OPTIONS, with_jar
from holdfast.spark.localfiles import CLASS, SETTING

GOAL = 1.0
ROUNDS, QUICK_ROUNDS = 4, 1
RUNS_S = (1.5, 2.5)  # how long it runs before a kill
FIRST = f"{OURS.name}, first kill"
FLOOR = Side("plain Spark with our settings and archive", ours=False, settings=(*FAST_FILES.items(), (SETTING, CLASS)))
_MAKING_S = 300.0  # it has the lowest priority


def ours(folder: Path, name: str = OURS.name) -> Program:
    """Return the program of Holdfast, with a folder of its own for archives of classes."""
    archives = folder / "classes" / re.sub(r"\W+", "-", name)  # Java accepts no spaces in its path
    return replace(OURS, name=name, variables={VARIABLE: str(archives)})


def floor_program() -> Program:
    """Return the program of plain Spark whose JVM has the class path of Holdfast, so that it can use its archive."""
    with with_jar():
        return replace(plain_program(FLOOR), variables={CLASS_PATH: os.environ[CLASS_PATH]})


def with_archive(program: Program, archive: Path) -> Program:
    """Return the same program with an archive of classes."""
    options = ClassArchive(archive.parent, "", archive).java_options
    return replace(program, variables={**program.variables, OPTIONS: options})


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


def first_killed(side: Watched, moment: Callable[[float, float], float]) -> float:
    """Do the same for the first kill on a machine: the archive that the new process makes is removed afterwards."""
    seconds = killed(side, moment)
    archive_of(side.program).unlink()  # it is made by a process of its own, which is not suspended
    return seconds


def archive_of(program: Program) -> Path:
    """Wait until the archive of a program is complete, and return it."""
    folder, end = Path(program.variables[VARIABLE]), time.monotonic() + _MAKING_S
    while not (found := list(filter(is_intact, folder.glob("*.jsa")))):  # not one that is being written
        if time.monotonic() > end:
            raise CannotMeasure("this Java writes no archive of classes\nuse an OpenJDK of version 17 or newer")
        time.sleep(0.05)
    return found[0]


def measured(folder: Path, programs: Sequence[Program], quick: bool) -> dict[str, list[float]]:
    """Return the samples of each program. They must include that of Holdfast, and the floor."""
    chance = random.Random(1)  # noqa: S311 - the same moments in every run
    with watched(folder, programs) as running:
        for name, side in running.items():
            with side.resumed():
                side.warm_up(1)
            if name == OURS.name:
                killed(side, chance.uniform)
                archive = archive_of(side.program)
                floor = running[FLOOR.name]
                floor.program = with_archive(floor.program, archive)  # from its first kill on
        sides = {
            name: partial(first_killed if name == FIRST else killed, side, chance.uniform)
            for name, side in running.items()
        }
        return in_turn(QUICK_ROUNDS if quick else ROUNDS, sides, warm_up=0)


def run(quick: bool) -> list[Result]:
    with scratch(__name__) as folder:
        found = measured(folder, [plain_program(PLAIN), floor_program(), ours(folder, FIRST), ours(folder)], quick)
    what, plain = "kill to the first new row", found[PLAIN.name]
    floor = Floor(FLOOR.name, found[FLOOR.name])
    return [
        Result("killed", what, PLAIN.name, found[OURS.name], plain, GOAL, floor=floor),
        Result("killed", f"{what}, first kill", PLAIN.name, found[FIRST], plain),
    ]
