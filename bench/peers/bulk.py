"""Rows per second of a backlog of two million rows: four CSV files of five columns, to CSV.

Warm: the program is running and has handled such a backlog several times. The time counts from the arrival of the files
until a reader of the output folder has counted all rows. Cold: the files are there before the program is started for
the first time, and the time counts from the start of its process, so it includes the start of Python and Java.

Holdfast handles the backlog as one epoch, in most cases, and syncs its output before it is visible. Flink shows the
last rows with the first checkpoint after them, so it waits for half of its interval on average; with the short interval
it writes more and smaller files. Outputs are removed after each sample, outside the measured time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from bench.compare import Result, in_turn, timed
from bench.peers.flink import INTERVALS_MS, VERSIONS, flink, named
from bench.scratch import scratch
from bench.visible import OURS
from bench.watched import Program, Watched, watched

__all__ = ["VERSIONS", "run"]

FILES, ROWS, QUICK_ROWS = 4, 500_000, 50_000  # rows per file
WARM_UP, ROUNDS, COLD_ROUNDS = 3, 5, 3


def make_input(folder: Path, rows: int) -> list[Path]:
    """Write the input files."""
    folder.mkdir()
    made = []
    for number in range(FILES):
        ids = range(number * rows, (number + 1) * rows)
        lines = (f"{n},customer-{n * 7919 % 50_000},{n % 10_000 / 100},{1_700_000_000_000 + n},true\n" for n in ids)
        made.append(folder / f"{number}.csv")
        made[-1].write_text("".join(lines))
    return made


def warm(side: Watched, files: Sequence[Path], rows: int) -> float:
    """Return the rows per second of a backlog that a running program handles."""

    def backlog() -> None:
        side.link(files)
        side.wait_for_rows(rows)

    with side.resumed():
        return rows / timed(backlog)


def cold(folder: Path, numbers: Iterator[int], program: Program, files: Sequence[Path], rows: int) -> float:
    """Return the rows per second of a backlog that is there when the program starts."""
    found: list[Watched] = []

    def start() -> None:
        found.append(Watched(folder / f"cold{next(numbers)}", program, files))
        found[0].wait_for_rows(rows)

    try:
        return rows / timed(start)
    finally:
        for each in found:
            each.kill()


def run(quick: bool) -> list[Result]:
    programs = [*map(flink, INTERVALS_MS), OURS]
    rows = (QUICK_ROWS if quick else ROWS) * FILES
    with scratch("peers-bulk") as folder:
        files = make_input(folder / "input", rows // FILES)
        with watched(folder, programs) as running:
            turns = {name: partial(warm, side, files, rows) for name, side in running.items()}
            found = {"warm": in_turn(1 if quick else ROUNDS, turns, warm_up=1 if quick else WARM_UP)}
        numbers = count()
        starts = {each.name: partial(cold, folder, numbers, each, files, rows) for each in programs}
        found["cold"] = in_turn(1 if quick else COLD_ROUNDS, starts, warm_up=0)
    return [
        Result("flink bulk", f"Holdfast, {how}", named(each), samples[OURS.name], samples[named(each)], unit="rows/s")
        for how, samples in found.items()
        for each in INTERVALS_MS
    ]
