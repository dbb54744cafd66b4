"""What checkpoints cost a running pipeline: inside an epoch, to its triggers, and by partitions and size of state."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.compare import Result
from bench.spark import session
from holdfast import CheckpointPolicy, Pipeline, Retention, SqliteSink, StreamCallbacks
from holdfast.spark.epochs import EpochRunner

P99_LIMIT_S = 0.005
WINDOW_S = 4.0
WINDOWS = 5
KEYS = 10_000


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
    """Measure each call of a method of the epoch runner for which `counts` holds beforehand."""
    real = getattr(EpochRunner, method)

    def measured(self: EpochRunner, *args: Any) -> Any:
        pending = counts(self)
        start = time.perf_counter()
        try:
            return real(self, *args)
        finally:
            if pending:
                into.append(time.perf_counter() - start)

    setattr(EpochRunner, method, measured)
    try:
        yield
    finally:
        setattr(EpochRunner, method, real)


def inside(spark: SparkSession, folder: Path) -> list[Result]:
    """Measure barriers that are claimed inside an epoch, and epochs with and without checkpoints, in turn."""
    job = Job(spark, folder)
    taken: list[float] = []
    epochs: dict[bool, list[float]] = {True: [], False: []}
    pending = timed("_heed_barrier", taken, lambda runner: runner._barrier._slot.word != 0)
    policy = CheckpointPolicy(retention=Retention(last=20))
    with pending, feeding(job), job.pipeline().start(spark, checkpoint_every=policy) as handle:
        job.wait(20)  # warm
        for window in range(2 * WINDOWS):
            with_checkpoints = window % 2 == 0
            first, end = len(job.ends), time.perf_counter() + WINDOW_S
            while time.perf_counter() < end:
                if with_checkpoints:
                    handle.checkpoint(timeout=60)
                time.sleep(1.0)
            ends = job.ends[first:]
            epochs[with_checkpoints] += [b - a for a, b in pairwise(ends)]
        busy = handle._streams[0]
        busy.acknowledge_idle = lambda: False  # type: ignore[method-assign] # so that all are claimed by the stream
        until = time.perf_counter() + 60
        while len(taken) < 100 and time.perf_counter() < until:
            handle.checkpoint(timeout=60)
    p99 = sorted(taken)[int(len(taken) * 0.99) - 1]
    spread = {each: statistics.quantiles(epochs[each], n=4) for each in (True, False)}
    for each, name in ((True, "a checkpoint a second"), (False, "none")):
        low, _, high = spread[each]
        print(f"  epochs with {name}: {len(epochs[each])}, quartiles {low * 1e3:.0f} to {high * 1e3:.0f} ms")
    return [
        Result(
            "path", f"barrier in an epoch, p99 of {len(taken)}", "five milliseconds", [p99], [P99_LIMIT_S], goal=1.0
        ),
        Result("path", "epoch with a checkpoint a second", "without, in turn", epochs[True], epochs[False], goal=1.1),
    ]


def by_partitions(spark: SparkSession, folder: Path) -> Iterator[tuple[str, int, int, float]]:
    """A checkpoint after one small epoch more, at 2, 20 and 200 shuffle partitions."""
    for partitions in (2, 20, 200):
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        yield from grown(spark, folder / str(partitions), f"{partitions} partitions", [KEYS])
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def grown(spark: SparkSession, folder: Path, name: str, sizes: list[int]) -> Iterator[tuple[str, int, int, float]]:
    """Grow a state to each size; then take a checkpoint after one small epoch more."""
    job = Job(spark, folder)
    known = 0
    with job.pipeline().start(spark) as handle:
        for size in sizes:
            job.add(range(known, size))
            known = size
            job.wait(job.files)
            handle.checkpoint(timeout=120)
            job.add(range(100))
            job.wait(job.files)
            start = time.perf_counter()
            manifest = handle.checkpoint(timeout=120)
            seconds = time.perf_counter() - start
            kept = handle._streams[0].snapshots._last
            assert kept is not None
            yield f"{name}, {size:,} keys", manifest.streams["counts"].file_bytes, kept.new_files, seconds
    shutil.rmtree(folder)


def run(quick: bool) -> list[Result]:
    spark = session()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).absolute()
        results = inside(spark, folder / "inside")
        if quick:
            spark.stop()
            return results
        rows = [*by_partitions(spark, folder), *grown(spark, folder / "grown", "2 partitions", [10**4, 10**5, 10**6])]
    spark.stop()
    print(f"  {'a checkpoint after a small epoch':40}{'state':>14}{'new files':>11}{'time':>10}")
    for what, size, new, seconds in rows:
        print(f"  {what:40}{size:>12,} B{new:>11}{seconds * 1e3:>7.0f} ms")
    small, large = rows[-3], rows[-1]
    results.append(
        Result("path", "checkpoint at 100 times the state", "at once the state", [large[3]], [small[3]], goal=2.0)
    )
    return results
