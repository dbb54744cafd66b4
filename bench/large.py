"""Rows per second of a job with large batches: a million rows from Parquet to Parquet.

A batch is two files of half a million rows with five columns: the same bytes each time, linked under new names. Plain
Spark appends in `foreachBatch`; Holdfast stages, syncs every byte, decides and renames. The rows are divided by the
duration of the trigger as Spark reports it. Outputs are removed between batches, outside the measured time. Holdfast
has the settings of `bench/triggers.py`; plain Spark runs with its defaults, and with the same settings.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.compare import Result, in_turn
from bench.rival import Rival, rivals
from bench.scratch import scratch
from bench.spark import OURS, PLAIN, PLAIN_ALL, Job, Side, session

SCHEMA = "id long, customer string, amount double, at timestamp, paid boolean"
ROWS = 1_000_000
GOAL = 0.95


def make_input(folder: Path) -> None:
    """Write the two files of a batch."""
    rows = session().range(0, ROWS, 1, 2)
    rows.selectExpr(
        "id",
        "concat('customer-', pmod(xxhash64(id), 50000)) AS customer",
        "pmod(xxhash64(id, 1), 100000) / 100D AS amount",
        "timestamp_millis(1700000000000 + id * 10) AS at",
        "pmod(id, 3) = 0 AS paid",
    ).write.parquet(str(folder))


def maker() -> Callable[[Path], None]:
    """Return `make_input`, to be run in another process, so that no session stays in this one."""
    return make_input


class Large:
    """A side: each call runs one batch and returns its rows per second."""

    def __init__(self, folder: Path, side: Side, files: list[Path]) -> None:
        self._files = files
        self._job = Job(folder, side, SCHEMA, "parquet", files=len(files))

    def __call__(self, _: object) -> float:
        """Run one batch."""
        while True:
            self._job.add(self._files)
            (seconds,) = self._job.triggers(1)
            whole = self._job.rows() == ROWS
            if not whole:
                self._job.triggers(1)  # Spark has seen only one of the files: each became a batch, and neither counts
                assert self._job.rows() == ROWS
            self._job.forget()
            if whole:
                return ROWS / seconds


def run(quick: bool) -> list[Result]:
    with scratch(__name__) as folder:
        with Rival(maker) as make:
            make(folder / "input")
        files = sorted((folder / "input").glob("part-*"))
        assert len(files) == 2
        sides = [PLAIN, OURS] if quick else [PLAIN, PLAIN_ALL, OURS]
        made = {side.name: (Large, folder / str(n), side, files) for n, side in enumerate(sides)}
        with rivals(made) as running:
            found = in_turn(2 if quick else 12, running, warm_up=1 if quick else 6)
    name = f"Holdfast, {ROWS:,} rows per batch"
    goals = {PLAIN.name: GOAL}
    return [
        Result(
            "large",
            name,
            side.name,
            found[OURS.name],
            found[side.name],
            goals.get(side.name),
            "rows/s",
            alike=side is PLAIN_ALL,
        )
        for side in sides
        if side is not OURS
    ]
