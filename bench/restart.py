"""How long a restart takes: from the start of a query to the end of its first new epoch, by the length of its history.

Compared with plain Spark on the same job: files of JSON, one an epoch, to Parquet; plain Spark appends to a folder in
`foreachBatch`, ours is a pipeline with one `FileSink`. The clock runs from the building of the stream until Spark's
commit of the new epoch is there, on both sides. Each side has its own process and session; a restart is one within a
warm session. In a new process both sides would first wait ten seconds for their JVMs, and the ratio would say nothing.

The history is written, not run (`bench/history.py` says how): ten real epochs, stretched to what 1,000 and 10,000
leave. The products prove it: the pipeline starts from it, and at the end every row that it tells of is counted in the
output. Flat means that the longest history takes no more than a tenth longer than the shortest. It is not free for
plain Spark either, whose source reads a list of all files that it ever saw: its own growth, told beside ours, is the
floor of that. Ours has its settings, as in `bench/triggers.py`; plain Spark runs as it comes, and with the same ones.
Nothing is killed here: the job before was stopped between two epochs, so there is none in doubt to be finished first.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.compare import Result, in_turn
from bench.history import Job, OurJob, PlainJob
from bench.rival import rivals
from bench.scratch import scratch
from bench.spark import PLAIN, PLAIN_ALL, QUICK_FILES, session
from holdfast.spark.adapter import FAST_FILES

SIZES = (10, 1_000, 10_000)
ROUNDS, QUICK_ROUNDS = 10, 3
WARM_UP, QUICK_WARM_UP = 5, 1  # restarts of each: Java compiles what a start needs, too
GOAL = 1.1


def side(kind: type[Job], folder: str, sizes: Sequence[int], settings: dict[str, str]) -> Callable[[int], float]:
    """Make the histories of one side; what is returned restarts the job with that one, or, at 0, checks them all."""
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
    told = {f"{size} epochs, {who}": statistics.median(found[f"{who} {size}"]) for size in sizes for who in made}
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
            told=told,
        ),
        *(
            Result("restart", f"floor: after {most:,}, {name}", f"after {least}", found[most_of], found[least_of])
            for name, most_of, least_of in (
                (PLAIN.name, f"plain {most}", f"plain {least}"),
                (PLAIN_ALL.name, f"plain, all settings {most}", f"plain, all settings {least}"),
            )
            if most_of in found
        ),
    ]
