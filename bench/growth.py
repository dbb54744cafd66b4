"""Growth of Holdfast's own cost per epoch: with the number of streams, with the history, and with the state.

Holdfast's own cost is the duration of an epoch from Spark's call to its return, without Spark's own job: lease, slots,
fsyncs, the decision, and the commit of the sink. Each figure is for one epoch of one stream, so it stays constant
unless the cost is super-linear. Each goal of 1.5 tolerates the noise of fsyncs of a few milliseconds; a cost that grew
with the size would be 32, 100 or 1,000 times as high.

- Streams: one stream is fed at a time, and each polls for input ten times a second, so that no stream waits for a core.
  The wall time still includes the polling of the other streams, so the goal applies to the CPU time of the thread only.
  The sizes are measured upwards and downwards. The start of a pipeline is also divided by the number of its streams.
- Epochs: the histories are those of `bench/restart.py`, generated, not run. A figure is the mean of ten epochs, because
  every tenth epoch syncs a list of all files that Spark's source has seen.
- State: counted keys in RocksDB, added by one large epoch; then epochs of a hundred keys each.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.compare import Result, in_turn
from bench.history import OurJob, wait_for
from bench.rival import apart
from bench.spark import QUICK_FILES, session
from holdfast import FileSink, Pipeline
from holdfast.repository.decisions import stream_folder
from holdfast.sinks.base import OutputMode
from holdfast.spark.epochs import EpochRunner

STREAMS = (1, 2, 4, 8, 16, 32)
EPOCHS = (10, 1_000, 10_000)
KEYS = (10**4, 10**5, 10**6)
FED = 8  # maximum number of streams that are fed
A_SAMPLE = 10  # epochs per sample: they include one compaction of the source's log
GOAL = 1.5
START_GOAL = 1.2  # all streams have the same amount to recover; one-time costs are shared by more of them


Points = Mapping[int, Sequence[float]]
"""Samples by size."""


class Meter:
    """Records Holdfast's own cost of each epoch, one epoch at a time."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._open = threading.local()

    def reach(self, point: str) -> None:
        """Exclude Spark's part: from the opened attempt until its job has written the sink's files."""
        if point == "opened":
            self._open.since = _clocks()
        elif point == "staging":
            self._open.spark = _since(self._open.since)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure all epochs within the context."""
        real = EpochRunner.__call__

        def measured(runner: EpochRunner, df: DataFrame, batch: int) -> None:
            self._open.spark, start = None, _clocks()
            real(runner, df, batch)
            wall, cpu = _since(start)
            if self._open.spark is not None:  # otherwise the epoch is not measured
                self.wall.append(wall - self._open.spark[0])
                self.cpu.append(cpu - self._open.spark[1])

        EpochRunner.__call__ = measured  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            EpochRunner.__call__ = real  # type: ignore[method-assign]


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def _since(start: tuple[float, float]) -> tuple[float, float]:
    now = _clocks()
    return now[0] - start[0], now[1] - start[1]


class Fed(Protocol):
    """A running job that can process an epoch."""

    def epoch(self) -> None:
        """Add the input of an epoch and wait until Spark has committed it."""


class Stream:
    """A stream of a pipeline: rows unchanged, or counted by key."""

    def __init__(self, folder: Path, pipeline: str, name: str, *, counting: bool = False) -> None:
        self.name = name
        self.inputs, self.out = folder / f"in-{name}", folder / f"out-{name}"
        self.commits = folder / "root" / pipeline / stream_folder(name, 1) / "spark" / "commits"
        self.counting = counting
        self.epochs = 0
        self.inputs.mkdir(parents=True)

    def add_to(self, pipeline: Pipeline) -> None:
        """Add the stream to a pipeline."""
        mode: OutputMode = "update" if self.counting else "append"
        sink = FileSink(self.out, changelog=self.counting)
        pipeline.stream(self._read, name=self.name, sinks=[sink], output_mode=mode)

    def _read(self, spark: SparkSession) -> DataFrame:
        rows = spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).json(str(self.inputs))
        return rows.groupBy("k").agg(f.count("*").alias("n")) if self.counting else rows

    def feed(self, keys: int) -> None:
        """Add the input of an epoch."""
        hidden = self.inputs / f".{self.epochs:06}.json"
        hidden.write_text("".join(json.dumps({"k": key}) + "\n" for key in range(keys)))
        hidden.rename(self.inputs / f"{self.epochs:06}.json")
        self.epochs += 1

    def wait(self) -> None:
        """Wait until Spark has committed all input."""
        wait_for(self.commits / str(self.epochs - 1))

    def epoch(self) -> None:
        """Run a small epoch."""
        self.feed(100)
        self.wait()


def by_streams(spark: SparkSession, folder: Path, sizes: Sequence[int], epochs: int, meter: Meter) -> list[Result]:
    """Measure pipelines with these numbers of streams, upwards and downwards."""
    points: dict[str, dict[int, list[float]]] = {what: {n: [] for n in sizes} for what in ("cpu", "wall", "start")}
    made = {n: [Stream(folder / str(n), "bench", f"s{number:02}") for number in range(n)] for n in sizes}
    for count in (sizes[0], *sizes, *reversed(sizes)):  # the first is the warm-up
        streams = made[count]
        pipeline = Pipeline("bench", folder / str(count) / "root")
        for stream in streams:
            stream.add_to(pipeline)
        start = time.perf_counter()
        with pipeline.start(spark, checkpoint_every=None, reach=meter.reach):
            points["start"][count].append((time.perf_counter() - start) / count)
            for stream in streams:
                stream.feed(1)
            for stream in streams:
                stream.wait()
            cpu, wall = _fed(streams[:: max(1, count // FED)], epochs, meter)
            points["cpu"][count] += cpu
            points["wall"][count] += wall
    del points["start"][sizes[0]][0]
    most, least = f"{sizes[-1]} streams", "one stream"
    return [
        *_both("streams", most, least, (points["cpu"], points["wall"]), None),
        _result("streams", f"start of a stream, {most}", least, points["start"], START_GOAL),
    ]


def _fed(streams: Sequence[Stream], epochs: int, meter: Meter) -> tuple[list[float], list[float]]:
    """Feed one stream at a time; return our CPU time and our wall time of each epoch."""
    first = len(meter.wall)
    for number in range(epochs):
        streams[number % len(streams)].epoch()
    return meter.cpu[first:], meter.wall[first:]


def by_epochs(spark: SparkSession, folder: Path, sizes: Sequence[int], rounds: int, meter: Meter) -> list[Result]:
    """Measure epochs after histories of these lengths."""
    jobs = {size: OurJob(spark, folder / str(size), size) for size in sizes}
    with ExitStack() as running:
        for job in jobs.values():
            running.enter_context(job.pipeline().start(spark, checkpoint_every=None, reach=meter.reach))
        points = _in_turn(jobs, rounds, meter)
    for job in jobs.values():
        job.check()
    return _both("epochs", f"after {sizes[-1]:,} epochs", f"after {sizes[0]}", points, GOAL)


def by_state(spark: SparkSession, folder: Path, sizes: Sequence[int], rounds: int, meter: Meter) -> list[Result]:
    """Measure small epochs of streams with these numbers of keys."""
    streams = {size: Stream(folder / str(size), f"keys-{size}", "counts", counting=True) for size in sizes}
    with ExitStack() as running:
        for size, stream in streams.items():
            pipeline = Pipeline(f"keys-{size}", folder / str(size) / "root")
            stream.add_to(pipeline)
            running.enter_context(pipeline.start(spark, checkpoint_every=None, reach=meter.reach))
            stream.feed(size)
            stream.wait()
        os.sync()
        points = _in_turn(streams, rounds, meter)
    return _both("keys", f"{sizes[-1]:,} keys", f"{sizes[0]:,} keys", points, GOAL)


def _in_turn(jobs: Mapping[int, Fed], rounds: int, meter: Meter) -> tuple[Points, Points]:
    """Return our CPU time and our wall time per epoch for each job, measured in turn: means of several epochs."""
    spent: dict[int, list[float]] = {size: [] for size in jobs}

    def sample(size: int) -> float:
        first = len(meter.wall)
        for _ in range(A_SAMPLE):
            jobs[size].epoch()
        spent[size].append(statistics.mean(meter.cpu[first:]))
        return statistics.mean(meter.wall[first:])

    passed = in_turn(rounds, {str(size): partial(sample, size) for size in jobs})
    return {size: each[-rounds:] for size, each in spent.items()}, {size: passed[str(size)] for size in jobs}


def _both(by: str, most: str, least: str, points: tuple[Points, Points], goal: float | None) -> list[Result]:
    """Return the comparison of our CPU time, and that of our wall time."""
    cpu, wall = points
    return [
        _result(by, f"our own CPU time per epoch, {most}", least, cpu, GOAL),
        _result(by, f"our own time per epoch, {most}", least, wall, goal),
    ]


def _result(by: str, name: str, against: str, points: Points, goal: float | None) -> Result:
    sizes = sorted(points)
    details = {f"{size} {by}": statistics.median(points[size]) for size in sizes}
    return Result("growth", name, against, points[sizes[-1]], points[sizes[0]], goal, details=details)


def measured(folder: Path, quick: bool) -> list[Result]:
    spark, meter = session({**QUICK_FILES, "spark.sql.streaming.pollingDelay": "100ms"}), Meter()
    streams, epochs = (STREAMS[::3], EPOCHS[:2]) if quick else (STREAMS, EPOCHS)
    rounds = 1 if quick else 5
    with meter.running():
        return [
            *by_streams(spark, folder / "streams", streams, 8 if quick else 16, meter),
            *by_epochs(spark, folder / "epochs", epochs, rounds, meter),
            *([] if quick else by_state(spark, folder / "state", KEYS, rounds, meter)),
        ]


def run(quick: bool) -> list[Result]:
    return apart(__name__, measured, quick)
