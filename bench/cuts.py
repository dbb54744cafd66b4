"""The cost of checkpoints in a running pipeline: within an epoch, for its triggers, and by partitions and state size.

A stream that counts keys into SQLite runs all the time, in a session with the settings of an embedded one. Barriers
are timed within the epochs that claim them; their p99 is compared with a fixed limit. For triggers, time windows with
one checkpoint per second alternate with windows without checkpoints on the same running stream, and the times from the
end of one epoch to the end of the next are compared. For growth, the state is grown to a size, and each measured
checkpoint follows one further small epoch. There is no other side, because plain Spark has no such checkpoints.
"""

from __future__ import annotations

import json
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.compare import Result, p99
from bench.rival import apart
from bench.spark import QUICK_FILES, session
from holdfast import CheckpointPolicy, Pipeline, Retention, SqliteSink, StreamCallbacks
from holdfast.spark.acknowledging import Acknowledger
from holdfast.spark.snapshot import Snapshots

P99_LIMIT_S = 0.005
WINDOW_S, WINDOW_EPOCHS = 3.0, 5  # the longer of the two
PATIENCE_S = 60
KEYS = 10_000
SIZES = (10**4, 10**5, 10**6)
PARTITIONS = (2, 20, 200)
TAKEN = 3  # checkpoints at each size


@dataclass(frozen=True)
class Effort:
    """The extent of the measurements."""

    warm: int  # warm-up epochs
    windows: int  # of each kind
    barriers: int


FULL, QUICK = Effort(100, 8, 100), Effort(10, 1, 20)


class Job:
    """A stream that counts keys, with a stage of some kilobytes. Each input file is an epoch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.ends: list[float] = []
        self.files = 0
        (folder / "in").mkdir(parents=True)

    def add(self, keys: range) -> None:
        """Add the input of one epoch."""
        self.files += 1
        hidden = self.folder / "in" / f".{self.files:06}.json"
        hidden.write_text("".join(json.dumps({"k": key}) + "\n" for key in keys))
        hidden.rename(self.folder / "in" / f"{self.files:06}.json")

    def pipeline(self) -> Pipeline:
        """Return the pipeline, not yet started."""
        callbacks = StreamCallbacks(on_epoch=lambda *_: self.ends.append(time.perf_counter()))
        made = Pipeline("bench", self.folder / "root", callbacks=callbacks)
        sink = SqliteSink(self.folder / "out.db", "counts", key=["k"])

        def passed(df: DataFrame, stage: Any) -> DataFrame:
            stage.state["epochs"] += 1
            return df.limit(10)

        stage = {"epochs": 0, "padding": "x" * 4000}

        @made.stream(output_mode="update", sinks=[sink], stage=stage, on_epoch=passed)
        def counts(spark: SparkSession) -> DataFrame:
            rows = spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))
            return rows.groupBy("k").agg(f.count("*").alias("n"))

        return made

    def wait(self, epochs: int) -> None:
        """Wait until this many epochs have ended."""
        while len(self.ends) < epochs:
            time.sleep(0.01)


@contextmanager
def feeding(job: Job) -> Iterator[None]:
    """Keep the input of the next few epochs available."""
    over = threading.Event()

    def feed() -> None:
        while not over.wait(0.02):
            if job.files < len(job.ends) + 5:
                job.add(range(100))

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def timed(method: str, into: list[float], counts: Callable[[Any], bool]) -> Iterator[None]:
    """Measure each call of a method of the acknowledger for which `counts` holds beforehand."""
    real = getattr(Acknowledger, method)

    def measured(self: Acknowledger, *args: Any) -> Any:
        pending = counts(self)
        start = time.perf_counter()
        try:
            return real(self, *args)
        finally:
            if pending:
                into.append(time.perf_counter() - start)

    setattr(Acknowledger, method, measured)
    try:
        yield
    finally:
        setattr(Acknowledger, method, real)


def inside(spark: SparkSession, folder: Path, effort: Effort) -> list[Result]:
    """Measure barriers that are claimed within an epoch, and epochs with and without checkpoints, in turn."""
    job = Job(spark, folder)
    taken: list[float] = []
    epochs: dict[bool, list[float]] = {True: [], False: []}
    pending = timed("advance", taken, lambda acknowledger: acknowledger._barrier._slot.word != 0)
    policy = CheckpointPolicy(every=None, retention=Retention(last=20))
    with pending, feeding(job), job.pipeline().start(spark, checkpoint_every=policy) as handle:
        job.wait(effort.warm)
        for window in range(2 * effort.windows):
            with_checkpoints = window % 4 in (0, 3)  # the order alternates
            first, end = len(job.ends), time.perf_counter() + WINDOW_S
            while time.perf_counter() < end or len(job.ends) <= first + WINDOW_EPOCHS:
                if with_checkpoints:
                    handle.checkpoint(timeout=60)
                time.sleep(1.0)
            ends = job.ends[first:]
            epochs[with_checkpoints] += [b - a for a, b in pairwise(ends)]
        busy = handle._streams[0]
        busy.acknowledge_idle = lambda: False  # type: ignore[method-assign] # so that the stream claims all of them
        until = time.perf_counter() + PATIENCE_S
        while len(taken) < effort.barriers and time.perf_counter() < until:
            handle.checkpoint(timeout=60)
    name = f"barrier in an epoch, p99 of {len(taken)}"
    details = {}
    for how, samples in (("with", epochs[True]), ("without", epochs[False])):
        details[f"lower quartile {how}"], _, details[f"upper quartile {how}"] = statistics.quantiles(samples, n=4)
    claimed = {"median": statistics.median(taken)}
    return [
        Result("path", name, "five milliseconds", [p99(taken)], [P99_LIMIT_S], goal=1.0, details=claimed),
        Result(
            "path",
            "epoch with a checkpoint per second",
            "without, in turn",
            epochs[True],
            epochs[False],
            1.1,
            details=details,
        ),
    ]


@dataclass(frozen=True)
class Sized:
    """Checkpoints after a small epoch, at one size."""

    state_bytes: int
    new_files: int
    seconds: list[float]

    def details(self, size: str) -> dict[str, float]:
        """Return the details for a result."""
        return {
            size: statistics.median(self.seconds),
            f"{size}, state (B)": self.state_bytes,
            f"{size}, new files (files)": self.new_files,
        }


def by_partitions(spark: SparkSession, folder: Path) -> Result:
    """Take checkpoints of one state with few and with many shuffle partitions. No goal: each adds a file."""
    found = {}
    for partitions in PARTITIONS:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        found[partitions] = next(grown(spark, folder / str(partitions), [KEYS]))
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    least, most = found[PARTITIONS[0]], found[PARTITIONS[-1]]
    details = {
        name: value for size, each in found.items() for name, value in each.details(f"{size} partitions").items()
    }
    name, against = f"checkpoint, {PARTITIONS[-1]} partitions", f"{PARTITIONS[0]} partitions"
    return Result("path", name, against, most.seconds, least.seconds, details=details)


def by_state(spark: SparkSession, folder: Path) -> Result:
    """Take checkpoints of a growing state."""
    found = dict(zip(SIZES, grown(spark, folder, SIZES), strict=True))
    least, most = found[SIZES[0]], found[SIZES[-1]]
    details = {name: value for size, each in found.items() for name, value in each.details(f"{size:,} keys").items()}
    name, against = f"checkpoint, {SIZES[-1]:,} keys of state", f"{SIZES[0]:,} keys"
    return Result("path", name, against, most.seconds, least.seconds, goal=2.0, details=details)


def grown(spark: SparkSession, folder: Path, sizes: Sequence[int]) -> Iterator[Sized]:
    """Grow a state to each size, then take checkpoints, each after one further small epoch."""
    job = Job(spark, folder)
    known = 0
    with job.pipeline().start(spark, checkpoint_every=None) as handle:
        for size in sizes:
            job.add(range(known, size))
            known = size
            job.wait(job.files)
            manifest = handle.checkpoint(timeout=120)
            seconds = []
            for _ in range(TAKEN):
                job.add(range(100))
                job.wait(job.files)
                start = time.perf_counter()
                manifest = handle.checkpoint(timeout=120)
                seconds.append(time.perf_counter() - start)
            snapshots = handle._streams[0].snapshots
            assert isinstance(snapshots, Snapshots)
            kept = snapshots._last
            assert kept is not None
            yield Sized(manifest.streams["counts"].file_bytes, kept.new_files, seconds)
    shutil.rmtree(folder)


def measured(folder: Path, quick: bool) -> list[Result]:
    spark = session(QUICK_FILES)
    results = inside(spark, folder / "inside", QUICK if quick else FULL)
    if not quick:
        results += [by_partitions(spark, folder), by_state(spark, folder / "grown")]
    return results


def run(quick: bool) -> list[Result]:
    return apart(__name__, measured, quick)
