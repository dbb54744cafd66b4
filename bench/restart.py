"""The duration of a restart, from the start of a query to the end of its first new epoch, by the length of its history.

Both sides run the same job: JSON files, one per epoch, to Parquet. Plain Spark appends to a folder in `foreachBatch`;
Holdfast runs a pipeline with one `FileSink`. The time counts from the construction of the stream until Spark has
committed the new epoch. Each side has its own process and session, and restarts within a warm session. In a new
process, both sides would first wait ten seconds for their JVMs, and the ratio would be meaningless.

The history is generated, not run (see `bench/history.py`): ten real epochs, extended to the files that 1,000 and
10,000 epochs leave. The restart validates it: the pipeline starts from it, and at the end the output must contain every
row of the history. The goal is that the longest history takes at most a tenth longer than the shortest. Plain Spark
grows too, because its source reads a list of all files that it has seen. The floor is the growth of plain Spark with
the same settings. Holdfast has the settings of `bench/triggers.py`; plain Spark runs with its defaults, and with the
same settings. Nothing is killed: the previous job was stopped between two epochs, so no epoch is in doubt.
`bench/recovering.py` measures our own part of a restart, without Spark.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.compare import Floor, Result, in_turn
from bench.history import Job, OurJob, PlainJob
from bench.rival import rivals
from bench.scratch import scratch
from bench.spark import PLAIN, PLAIN_ALL, QUICK_FILES, session
from holdfast.spark.adapter import FAST_FILES

SIZES = (10, 1_000, 10_000)
ROUNDS, QUICK_ROUNDS = 10, 3
WARM_UP, QUICK_WARM_UP = 5, 1  # restarts per side, until Java has compiled the code of a start
GOAL = 1.1


def side(kind: type[Job], folder: str, sizes: Sequence[int], settings: dict[str, str]) -> Callable[[int], float]:
    """Generate the histories of one side. Return a function that restarts the job of a size, or checks all for 0."""
    spark = session(settings)
    jobs = {size: kind(spark, Path(folder) / str(size), size) for size in sizes}

    def sample(size: int) -> float:
        if size:
            return jobs[size].restart()
        for job in jobs.values():
            job.check()
        return 0.0

    return sample


def run(quick: bool) -> list[Result]:
    sizes = SIZES[:2] if quick else SIZES
    with scratch(__name__) as folder:
        made = {
            "ours": (side, OurJob, str(folder / "ours"), sizes, QUICK_FILES),
            "plain": (side, PlainJob, str(folder / "plain"), sizes, {}),
        }
        if not quick:
            made["plain, all settings"] = (side, PlainJob, str(folder / "all"), sizes, {**FAST_FILES, **QUICK_FILES})
        with rivals(made) as both:
            sides = {f"{who} {size}": partial(rival, size) for size in sizes for who, rival in both.items()}
            rounds, warm_up = (QUICK_ROUNDS, QUICK_WARM_UP) if quick else (ROUNDS, WARM_UP)
            found = in_turn(rounds, sides, warm_up=warm_up)
            for rival in both.values():
                rival(0)
    least, most = sizes[0], sizes[-1]
    floor, of_floor = (PLAIN, "plain") if quick else (PLAIN_ALL, "plain, all settings")
    details = {f"{size} epochs, {who}": statistics.median(found[f"{who} {size}"]) for size in sizes for who in made}
    return [
        *(
            Result(
                "restart", f"after {size:,} epochs", "plain Spark", found[f"ours {size}"], found[f"plain {size}"], GOAL
            )
            for size in sizes
        ),
        *(
            Result(
                "restart",
                f"after {size:,} epochs",
                PLAIN_ALL.name,
                found[f"ours {size}"],
                found[f"plain, all settings {size}"],
                alike=True,
            )
            for size in ([] if quick else sizes)
        ),
        Result(
            "restart",
            f"restart, after {most:,} epochs",
            f"after {least}",
            found[f"ours {most}"],
            found[f"ours {least}"],
            GOAL,
            details=details,
            floor=Floor(
                f"{floor.name}, after {most:,} epochs", found[f"{of_floor} {most}"], found[f"{of_floor} {least}"]
            ),
        ),
    ]
