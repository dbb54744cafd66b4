"""The time until a row is visible at a low rate, and the CPU time that this takes.

The rows, their moments and the reader are those of `bench/visible.py`: four rows per second on average, each in its own
file; the time counts from the rename of the input file until a reader of the output folder has read the row. In
Flink, a row is visible when the checkpoint after it is complete, so on average it waits for half of the interval.
Holdfast runs with Spark's default trigger, which starts the next batch as soon as there is input.

CPU time is that of the Python process, its JVM and all their child processes, divided by the duration of the turn. It
includes what Java still spends on compiling. The floor is plain Spark with all settings of the embedded session: at
least once, without fsync.
"""

from __future__ import annotations

from bench import visible
from bench.compare import Result
from bench.peers.flink import INTERVALS_MS, VERSIONS, flink, named
from bench.scratch import scratch
from bench.spark import PLAIN_ALL
from bench.visible import OURS, plain_program

__all__ = ["VERSIONS", "run"]

GOALS = {1_000: 0.25, 100: 1.2}


def run(quick: bool) -> list[Result]:
    floor = plain_program(PLAIN_ALL)
    with scratch("peers-visible") as folder:
        found = visible.measured(folder, [*map(flink, INTERVALS_MS), floor, OURS], quick)
    results = []
    for interval in INTERVALS_MS:
        theirs, their_cpu = found[named(interval)]
        for side, goal in ((OURS, GOALS[interval]), (floor, None)):
            row, cpu = found[side.name]
            what = "Holdfast" if side is OURS else f"floor: {side.name}"
            results.append(Result("flink visible", f"{what}, a row is visible", named(interval), row, theirs, goal))
            results.append(Result("flink cpu", f"{what}, CPU time per second", named(interval), cpu, their_cpu))
    return results
