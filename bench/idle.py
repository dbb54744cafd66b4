"""The CPU time of idle streams: of Python, the JVM and their children, in a period without input.

Each side runs a number of queries in one process, each with its own input folder of JSON files. Every query has
processed one file; then it only polls for new ones. Both sides have the same number of input files
and the same session settings. Holdfast runs one pipeline with one `FileSink` per stream, without checkpoints, and
chooses the delay between two polls by the number of streams. Plain Spark has its default of 10 ms, and writes
Parquet in `foreachBatch`. A longer delay means that new input is noticed later, by that delay at most. The
third side is plain Spark with the delay of Holdfast: it uses the same CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped] # it has no types
from pyspark.sql import DataFrame, SparkSession

from bench.compare import Result, in_turn
from bench.rival import rivals
from bench.scratch import scratch
from bench.spark import QUICK_FILES, session
from holdfast import FileSink, Pipeline
from holdfast.spark.adapter import FAST_FILES, POLLING_DELAY
from holdfast.spark.polling import chosen_delay_ms

SIZES, QUICK_SIZES = (1, 8, 32), (8,)
ROUNDS, QUICK_ROUNDS = 5, 2
PERIOD_S, QUICK_PERIOD_S = 10.0, 4.0
SETTLE_S, QUICK_SETTLE_S = 15.0, 3.0  # until Java has compiled the code of an idle query
GOALS = {32: 0.35}


def side(ours: bool, folder: str, streams: int, settle_s: float, settings: dict[str, str]) -> Callable[[float], float]:
    """Start idle queries; return a function that measures their CPU time in a period of some seconds."""
    spark = session({**FAST_FILES, **QUICK_FILES, **settings})
    top = Path(folder)
    for number in range(streams):
        (top / f"in{number}").mkdir(parents=True)
        (top / f"in{number}" / "1.json").write_text('{"n": 1}\n')
    (_start_ours if ours else _start_plain)(spark, top, streams)
    time.sleep(settle_s)

    def sample(period_s: float) -> float:
        before = _cpu_s()
        time.sleep(period_s)
        return _cpu_s() - before

    return sample


def _read(spark: SparkSession, top: Path, number: int) -> DataFrame:
    return spark.readStream.schema("n long").json(str(top / f"in{number}"))


def _start_ours(spark: SparkSession, top: Path, streams: int) -> None:
    pipeline = Pipeline("idle", top / "root")
    for number in range(streams):
        pipeline.stream(partial(_read, top=top, number=number), name=f"s{number}", sinks=FileSink(top / f"out{number}"))
    handle = pipeline.start(spark, checkpoint_every=None)
    while any(each.epoch < 1 for each in handle.status().streams.values()):
        time.sleep(0.1)


def _start_plain(spark: SparkSession, top: Path, streams: int) -> None:
    queries = []
    for number in range(streams):

        def write(df: DataFrame, _: int, number: int = number) -> None:
            df.write.mode("append").parquet(str(top / f"out{number}"))

        writer = _read(spark, top, number).writeStream.foreachBatch(write)
        queries.append(writer.option("checkpointLocation", str(top / f"checkpoint{number}")).start())
    for query in queries:
        query.processAllAvailable()


def _cpu_s() -> float:
    """Return the CPU time of this process and of its descendants so far."""
    this = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in [this, *this.children(recursive=True)])


def run(quick: bool) -> list[Result]:
    found = []
    period_s, settle_s = (QUICK_PERIOD_S, QUICK_SETTLE_S) if quick else (PERIOD_S, SETTLE_S)
    for streams in QUICK_SIZES if quick else SIZES:
        same = {POLLING_DELAY: f"{chosen_delay_ms(streams)}ms"}
        with scratch(__name__) as top:
            made = {
                "ours": (side, True, str(top / "ours"), streams, settle_s, {}),
                "plain": (side, False, str(top / "plain"), streams, settle_s, {}),
                "same": (side, False, str(top / "same"), streams, settle_s, same),
            }
            with rivals(made) as both:
                sides = {name: partial(rival, period_s) for name, rival in both.items()}
                cpu = in_turn(QUICK_ROUNDS if quick else ROUNDS, sides)
        what = f"CPU time of {streams} idle stream{'s' * (streams > 1)} in {period_s:.0f} s"
        found += [
            Result("idle", what, "plain Spark", cpu["ours"], cpu["plain"], GOALS.get(streams)),
            Result("idle", what, "plain Spark with the same delay", cpu["ours"], cpu["same"], alike=True),
        ]
    return found
