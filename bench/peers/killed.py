"""The time from a kill to the first new row in the output, with a new process.

The method is that of `bench/killed.py`: rows arrive at a low rate, the Python process and its JVM are killed in
mid-run, the program is started again at once, and the time counts until one of the rows that were written after the
kill is visible. Holdfast has been killed before, so that it starts with its archive of classes. Flink continues from
its newest complete checkpoint, which the program finds by itself. It then needs one more checkpoint to make rows
visible. At the end, each row must be in the output once, on both sides.

The floor is plain Spark with the settings and the archive of Holdfast, which may write rows twice: most of the time is
the start of Python, Java and Spark.
"""

from __future__ import annotations

from bench import killed
from bench.compare import Floor, Result
from bench.peers.flink import INTERVALS_MS, VERSIONS, flink, named
from bench.scratch import scratch
from bench.visible import OURS

__all__ = ["VERSIONS", "run"]

GOAL = 0.8


def run(quick: bool) -> list[Result]:
    with scratch("peers-killed") as folder:
        programs = [*map(flink, INTERVALS_MS), killed.floor_program(), killed.ours(folder)]
        found = killed.measured(folder, programs, quick)
    what, ours = "Holdfast, kill to the first new row", found[OURS.name]
    floor = Floor(killed.FLOOR.name, found[killed.FLOOR.name])
    return [
        Result("flink killed", what, named(interval), ours, found[named(interval)], GOAL, floor=floor)
        for interval in INTERVALS_MS
    ]
