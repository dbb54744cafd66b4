"""The Spark sessions of the benchmarks, and the jobs that both sides run."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from bench.bare import BareCommit
from bench.spent import Spent
from holdfast import FileSink, Pipeline, PipelineHandle
from holdfast.sinks.base import OutputMode, Sink
from holdfast.spark.adapter import FAST_FILES, STATE
from holdfast.spark.localfiles import local_files

HEAP = "2g"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": HEAP,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.numRecentProgressUpdates": "20000",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # so that each measured trigger has rows
}
QUICK_FILES = local_files()  # settings of an embedded session, which other sessions may use too


def session(more: dict[str, str] | None = None) -> SparkSession:
    """Return a session with two cores, two shuffle partitions, the settings of `more`, and otherwise defaults."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark: SparkSession = SparkSession.builder.master("local[2]").config(map={**SETTINGS, **(more or {})}).getOrCreate()
    return spark


def _read(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json)
    return found


@dataclass(frozen=True)
class Side:
    """How one side runs a job: with Holdfast or without it, and with which settings."""

    name: str
    ours: bool
    settings: tuple[tuple[str, str], ...] = ()
    persists: bool = False  # plain Spark persists the rows of a batch for all its writes
    bare: bool = False  # plain Spark with a bare two-phase commit instead of an append
    own_sink: bool = False  # Spark's file sink, which has its own log, instead of `foreachBatch`
    kept: str = ""  # the address below which the checkpoint is kept; empty: in the folder of the job


def _settings(*parts: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(pair for part in parts for pair in part.items())


PLAIN = Side("plain Spark", ours=False)
PLAIN_MANAGER = Side("plain Spark with the same file manager", ours=False, settings=_settings(FAST_FILES))
PLAIN_ALL = Side("plain Spark with all our settings", ours=False, settings=_settings(FAST_FILES, STATE, QUICK_FILES))
PLAIN_PERSISTS = replace(PLAIN_ALL, name="plain Spark with all our settings, persisted", persists=True)
BARE = replace(PLAIN_ALL, name="plain Spark with all our settings and a bare two-phase commit", bare=True)
BARE_MANAGER = replace(PLAIN_MANAGER, name=f"{PLAIN_MANAGER.name} and a bare two-phase commit", bare=True)
OWN_SINK = replace(PLAIN_ALL, name="Spark's own file sink with all our settings", own_sink=True)
OURS = Side("Holdfast", ours=True, settings=_settings(QUICK_FILES))
OURS_OWN = Side("Holdfast without its file system", ours=True)

Query = Callable[[DataFrame], DataFrame]


def as_it_is(df: DataFrame) -> DataFrame:
    """Return the rows unchanged: a stateless query."""
    return df


class Job:
    """A stream from files to Parquet, one input file per epoch, on either side.

    Plain Spark appends to the folders in `foreachBatch`, one write per folder. After a crash, it may write a batch
    twice. It does not fsync. The bare two-phase commit is that of `bench/bare.py`.
    """

    def __init__(
        self,
        folder: Path,
        side: Side,
        schema: str,
        format: str,
        query: Query = as_it_is,
        *,
        output_mode: OutputMode = "append",
        outputs: int = 1,
        files: int = 1,
    ) -> None:
        self.folder = folder
        self._kept = side.kept or str(folder)
        self.input = folder / "in"
        self.input.mkdir(parents=True)
        self.spark = session(dict(side.settings))
        self.outputs = [folder / f"out{number}" for number in range(outputs)]
        self.given = self.ended = 0
        self.handle: PipelineHandle | None = None  # of our side
        self._spent = Spent()

        def read(spark: SparkSession) -> DataFrame:
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files)
            return query(reader.format(format).load(str(self.input)))

        start = self._pipeline if side.ours else self._own if side.own_sink else partial(self._plain, side)
        self._start = partial(start, read, output_mode)
        self._query = self._start()

    def stop(self) -> None:
        """Stop the query between two epochs."""
        if self.handle is None:
            self._query().stop()
        else:
            self.handle.stop()
            self.handle.await_termination()

    def start_again(self) -> None:
        """Start the query, which was stopped."""
        self._query = self._start()

    def _plain(
        self, side: Side, read: Callable[[SparkSession], DataFrame], output_mode: OutputMode
    ) -> Callable[[], Any]:
        def append(df: DataFrame, _: int) -> None:
            if side.persists:
                df.persist()
            for path in self.outputs:
                df.write.mode("append").parquet(str(path))
            if side.persists:
                df.unpersist()

        body = BareCommit(self.folder, self.outputs) if side.bare else append
        writer = read(self.spark).writeStream.foreachBatch(body).outputMode(output_mode)
        started = writer.option("checkpointLocation", f"{self._kept}/checkpoint").start()
        return lambda: started

    def _own(self, read: Callable[[SparkSession], DataFrame], output_mode: OutputMode) -> Callable[[], Any]:
        writer = read(self.spark).writeStream.format("parquet").outputMode(output_mode)
        writer = writer.option("checkpointLocation", f"{self._kept}/checkpoint")
        started = writer.start(str(self.outputs[0]))
        return lambda: started

    def _pipeline(self, read: Callable[[SparkSession], DataFrame], output_mode: OutputMode) -> Callable[[], Any]:
        pipeline = Pipeline("bench", f"{self._kept}/root")
        sinks: list[Sink] = [FileSink(path, changelog=output_mode == "update") for path in self.outputs]
        pipeline.stream(read, name="job", output_mode=output_mode, sinks=sinks)
        handle = self.handle = pipeline.start(self.spark, checkpoint_every=None)
        return lambda: handle._streams[0]._query.running

    def add(self, files: Sequence[str | Path]) -> None:
        """Add the input of one epoch: texts, or files to link."""
        for content in files:
            path = self.input / f"{self.given:06}"
            hidden = path.with_name(f".{path.name}")
            if isinstance(content, Path):
                os.link(content, hidden)
            else:
                hidden.write_text(content)
            hidden.rename(path)
            self.given += 1

    def triggers(self, epochs: int, *, dropped: int = 0) -> list[float]:
        """Wait for further epochs, and return the duration of each trigger as Spark reports it.

        The first of them, as many as `dropped`, are neither returned nor counted in `parts`.
        """
        self.ended += epochs
        while self._reported() < self.ended:
            time.sleep(0.05)
        found = [each for each in map(_read, self._query().recentProgress) if each["numInputRows"]]
        return self._spent.samples(found[-epochs:][dropped:])

    def _reported(self) -> int:
        """Return the number of epochs that Spark has reported as ended."""
        query = self._query()
        if query is None:
            return 0  # not started yet
        if query.exception():
            raise RuntimeError(str(query.exception()))
        last = query.lastProgress
        return 0 if last is None else int(last.batchId) + (last.numInputRows > 0)

    def parts(self, samples: int) -> dict[str, float]:
        """Return how Spark's triggers spent their time: medians over the last durations that `triggers` returned."""
        return self._spent.parts(samples)

    def rows(self) -> int:
        """Return the number of rows in the outputs, from the metadata of the files."""
        files = (file for path in self.outputs for file in path.rglob("*.parquet"))
        return sum(parquet.read_metadata(file).num_rows for file in files)

    def forget(self) -> None:
        """Remove the rows of the earlier outputs, so that the disk does not fill up."""
        for path in self.outputs:
            for each in sorted(path.glob("hf_epoch=*"))[:-1]:  # without the last one, the sink would be behind
                shutil.rmtree(each)
            for each in path.rglob("*part-*"):
                each.unlink()
