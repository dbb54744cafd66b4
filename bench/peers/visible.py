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
from bench.compare import Floor, Result
from bench.peers.flink import INTERVALS_MS, VERSIONS, flink, named
from bench.scratch import scratch
from bench.spark import PLAIN_ALL
from bench.visible import OURS, plain_program

__all__ = ["VERSIONS", "run"]

GOALS = {1_000: 0.25, 100: 1.2}


def run(quick: bool) -> list[Result]:
    with scratch("peers-visible") as folder:
        programs = [*map(flink, INTERVALS_MS), plain_program(PLAIN_ALL), OURS]
        found = visible.measured(folder, programs, quick)
    (row, cpu), floors = found[OURS.name], [Floor(PLAIN_ALL.name, each) for each in found[PLAIN_ALL.name]]
    results = []
    for interval in INTERVALS_MS:
        flinks = named(interval)
        theirs, their_cpu = found[flinks]
        visible_, used = "Holdfast, a row is visible", "Holdfast, CPU time per second"
        results.append(Result("flink visible", visible_, flinks, row, theirs, GOALS[interval], floor=floors[0]))
        results.append(Result("flink cpu", used, flinks, cpu, their_cpu, floor=floors[1]))
    return results
