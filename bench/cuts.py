"""What checkpoints cost a running pipeline: inside an epoch, to its triggers, and by partitions and size of state.

A stream that counts keys into SQLite runs all the time, in a session as an embedded one is. Barriers are timed inside
its epochs, where they are claimed; their p99 stands against a limit of our own. For triggers, windows with a checkpoint
a second and windows without one take turns on the same running stream, and the time from one epoch's end to the next is
compared. For growth, a state is grown to a size, and each checkpoint that is timed comes after one small epoch more.
Nobody else is compared with here: plain Spark has no such checkpoints.
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

P99_LIMIT_S = 0.005
WINDOW_S, WINDOW_EPOCHS = 3.0, 5  # whichever is longer
PATIENCE_S = 60
KEYS = 10_000
SIZES = (10**4, 10**5, 10**6)
PARTITIONS = (2, 20, 200)
TAKEN = 3  # checkpoints at each size


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    warm: int  # epochs that do not count
    windows: int  # of either kind
    barriers: int


FULL, QUICK = Effort(100, 8, 100), Effort(10, 1, 20)


class Job:
    """A stream that counts keys, with a stage of some kilobytes; each file of input is an epoch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.ends: list[float] = []
        self.files = 0
        (folder / "in").mkdir(parents=True)

    def add(self, keys: range) -> None:
        """Give one epoch's input."""
        self.files += 1
        hidden = self.folder / "in" / f".{self.files:06}.json"
        hidden.write_text("".join(json.dumps({"k": key}) + "\n" for key in keys))
        hidden.rename(self.folder / "in" / f"{self.files:06}.json")

    def pipeline(self) -> Pipeline:
        """Return the pipeline, to be started."""
        told = StreamCallbacks(on_epoch=lambda *_: self.ends.append(time.perf_counter()))
        made = Pipeline("bench", self.folder / "root", callbacks=told)
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
        """Wait until so many epochs have ended."""
        while len(self.ends) < epochs:
            time.sleep(0.01)


@contextmanager
def feeding(job: Job) -> Iterator[None]:
    """Keep the next few epochs' input ready."""
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
    """Measure barriers that are claimed inside an epoch, and epochs with and without checkpoints, in turn."""
    job = Job(spark, folder)
    taken: list[float] = []
    epochs: dict[bool, list[float]] = {True: [], False: []}
    pending = timed("advance", taken, lambda acknowledger: acknowledger._barrier._slot.word != 0)
    policy = CheckpointPolicy(every=None, retention=Retention(last=20))
    with pending, feeding(job), job.pipeline().start(spark, checkpoint_every=policy) as handle:
        job.wait(effort.warm)
        for window in range(2 * effort.windows):
            with_checkpoints = window % 4 in (0, 3)  # the order is turned round every other time
            first, end = len(job.ends), time.perf_counter() + WINDOW_S
            while time.perf_counter() < end or len(job.ends) <= first + WINDOW_EPOCHS:
                if with_checkpoints:
                    handle.checkpoint(timeout=60)
                time.sleep(1.0)
            ends = job.ends[first:]
            epochs[with_checkpoints] += [b - a for a, b in pairwise(ends)]
        busy = handle._streams[0]
        busy.acknowledge_idle = lambda: False  # type: ignore[method-assign] # so that all are claimed by the stream
        until = time.perf_counter() + PATIENCE_S
        while len(taken) < effort.barriers and time.perf_counter() < until:
            handle.checkpoint(timeout=60)
    name = f"barrier in an epoch, p99 of {len(taken)}"
    told = {}
    for how, samples in (("with", epochs[True]), ("without", epochs[False])):
        told[f"lower quartile {how}"], _, told[f"upper quartile {how}"] = statistics.quantiles(samples, n=4)
    claimed = {"median": statistics.median(taken)}
    return [
        Result("path", name, "five milliseconds", [p99(taken)], [P99_LIMIT_S], goal=1.0, told=claimed),
        Result(
            "path", "epoch with a checkpoint a second", "without, in turn", epochs[True], epochs[False], 1.1, told=told
        ),
    ]


@dataclass(frozen=True)
class Sized:
    """Checkpoints after a small epoch, at one size."""

    state_bytes: int
    new_files: int
    seconds: list[float]

    def told(self, size: str) -> dict[str, float]:
        """Return it as a result tells it."""
        return {
            size: statistics.median(self.seconds),
            f"{size}, state (B)": self.state_bytes,
            f"{size}, new files (files)": self.new_files,
        }


def by_partitions(spark: SparkSession, folder: Path) -> Result:
    """Take checkpoints of one state at few and at many shuffle partitions; without a goal, for each is a file more."""
    found = {}
    for partitions in PARTITIONS:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        found[partitions] = next(grown(spark, folder / str(partitions), [KEYS]))
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    least, most = found[PARTITIONS[0]], found[PARTITIONS[-1]]
    told = {name: value for size, each in found.items() for name, value in each.told(f"{size} partitions").items()}
    name, against = f"checkpoint, {PARTITIONS[-1]} partitions", f"{PARTITIONS[0]} partitions"
    return Result("path", name, against, most.seconds, least.seconds, told=told)


def by_state(spark: SparkSession, folder: Path) -> Result:
    """Take checkpoints of a state that grows."""
    found = dict(zip(SIZES, grown(spark, folder, SIZES), strict=True))
    least, most = found[SIZES[0]], found[SIZES[-1]]
    told = {name: value for size, each in found.items() for name, value in each.told(f"{size:,} keys").items()}
    name, against = f"checkpoint, {SIZES[-1]:,} keys of state", f"{SIZES[0]:,} keys"
    return Result("path", name, against, most.seconds, least.seconds, goal=2.0, told=told)


def grown(spark: SparkSession, folder: Path, sizes: Sequence[int]) -> Iterator[Sized]:
    """Grow a state to each size; then take checkpoints, each after one small epoch more."""
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
            kept = handle._streams[0].snapshots._last
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
