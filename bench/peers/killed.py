"""The time from a kill to the first new row in the output, with a new process.

The method is that of `bench/killed.py`: rows arrive at a low rate, the Python process and its JVM are killed in
mid-run, the program is started again at once, and the time counts until one of the rows that were written after the
kill is visible. Flink continues from its newest complete checkpoint, which the program finds by itself. It then needs
one more checkpoint to make rows visible. At the end, each row must be in the output once, on both sides.

The floor is plain Spark with its defaults, which may write rows twice: most of the time is the start of Python, Java
and Spark.
"""

from __future__ import annotations

from bench import killed
from bench.compare import Result
from bench.peers.flink import INTERVALS_MS, VERSIONS, flink, named
from bench.scratch import scratch
from bench.spark import PLAIN
from bench.visible import OURS, plain_program

__all__ = ["VERSIONS", "run"]

GOAL = 0.8


def run(quick: bool) -> list[Result]:
    floor = plain_program(PLAIN)
    with scratch("peers-killed") as folder:
        found = killed.measured(folder, [*map(flink, INTERVALS_MS), floor, OURS], quick)
    what = "kill to the first new row"
    results = []
    for interval in INTERVALS_MS:
        theirs = found[named(interval)]
        results.append(Result("flink killed", f"Holdfast, {what}", named(interval), found[OURS.name], theirs, GOAL))
        results.append(
            Result("flink killed", f"floor: {floor.name}, {what}", named(interval), found[PLAIN.name], theirs)
        )
    return results
