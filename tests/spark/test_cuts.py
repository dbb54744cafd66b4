"""A chain of three streams under load, a checkpoint a second: each one restored is a consistent cut, to the last row.

`CUTS` checkpoints are taken (8), and `RESTORED` of them restored (3); `make soak` takes more and restores them all.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.eventlog.log import EventLog
from holdfast.policy import CheckpointPolicy, Retention
from holdfast.repository import LocalRepository
from holdfast.restore import RestorePlan, plan_restore, restore_stream, stage_states
from holdfast.sinks.log import LogSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.spark import adapter
from holdfast.spark.logsource import read_log_stream
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.statereader import StateFolder, read_data
from holdfast.stages import MsgpackCodec, Stage
from holdfast.verification import Grade, verify

CUTS = int(os.environ.get("CUTS", "8"))
ROWS = 20  # of a file
RESTORED = int(os.environ.get("RESTORED", "3"))


class Feeder:
    """Writes input as fast as it is taken, in files of a few rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken: Callable[[], int] = lambda: 0  # how many rows of it were
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        folder.mkdir(parents=True)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _feed(self) -> None:
        chance = random.Random(5)
        while not self._ending.wait(0.05):
            if len(self.rows) * ROWS > self.taken() + 100 * ROWS:
                continue
            name = f"{len(self.rows):06}.json"
            rows = [{"n": chance.randrange(10**9), "text": f"t{chance.randrange(40)}"} for _ in range(ROWS)]
            self.rows[name] = rows
            hidden = self.folder / f".{name}"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            hidden.rename(self.folder / name)


@contextmanager
def busy_state(spark: SparkSession) -> Iterator[None]:
    """Let Spark keep its state in order every 200 ms, and take a snapshot of it every third epoch.

    One thread a JVM does so, at the pace that the first query asked for: it is stopped before and after.
    """
    store = getattr(spark._jvm, "org.apache.spark.sql.execution.streaming.state.StateStore$")  # type: ignore[arg-type]
    settings = {
        f"{adapter.STATE_STORE}.maintenanceInterval": "200ms",
        f"{adapter.STATE_STORE}.minDeltasForSnapshot": "3",
    }
    getattr(store, "MODULE$").stop()
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
        getattr(store, "MODULE$").stop()


def counted(df: DataFrame, stage: Any) -> DataFrame:
    stage.state += df.count()
    return df


def pipeline(folder: Path) -> Pipeline:
    made = Pipeline("cuts", folder / "root")
    rows = folder / "in"

    @made.stream(
        sinks=[LogSink(folder / "logs" / "a", name="log")], stage=Stage(0, MsgpackCodec(int)), on_epoch=counted
    )
    def a(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n long, text string").option("maxFilesPerTrigger", 10).json(str(rows))

    @made.stream(output_mode="update", sinks=[LogSink(folder / "logs" / "b", changelog=True, name="log")])
    def b(_: SparkSession) -> DataFrame:
        return made.read("a").groupBy("text").agg(f.count("*").alias("c"))

    @made.stream(output_mode="update", sinks=[SqliteSink(folder / "often.db", "often", key=["even"])])
    def c(_: SparkSession) -> DataFrame:
        return made.read("b").groupBy((f.col("c") % 2 == 0).alias("even")).agg(f.sum("c").alias("total"))

    return made


def test_checkpoints_of_a_chain_under_load_are_consistent_cuts(spark: SparkSession, tmp_path: Path) -> None:
    policy = CheckpointPolicy(every="1s", retention=Retention(last=CUTS + 1))
    with busy_state(spark), Feeder(tmp_path / "in") as feeder:
        with pipeline(tmp_path).start(spark, checkpoint_every=policy) as handle:
            feeder.taken = lambda: handle.status().streams["a"].rows
            while handle.status().checkpoints.taken < CUTS:
                assert not handle.wait(0.1), handle.await_termination()
    assert handle.status().checkpoints.failed == 0
    repository = LocalRepository(tmp_path / "root" / "cuts")
    taken = range(1, CUTS + 1)
    chosen = taken if RESTORED >= CUTS else [2, *sorted(random.Random(7).sample(taken[2:-1], RESTORED - 2)), CUTS]
    began = time.monotonic()
    for number in chosen:
        check_cut(spark, repository, plan_restore(repository, number), feeder, tmp_path)
    started = [each for each in chosen if plan_restore(repository, each).manifest.streams["b"].epoch]
    goes_on_from(spark, tmp_path, str(started[len(started) // 2]))
    print(f"{len(chosen)} of {CUTS} restored in {time.monotonic() - began:.1f} s")


def check_cut(
    spark: SparkSession, repository: LocalRepository, plan: RestorePlan, feeder: Feeder, folder: Path
) -> None:
    """Hold a checkpoint to what the offsets in its manifest say it must be."""
    number, cuts = plan.checkpoint, plan.manifest.streams
    found = verify(repository, number, grade=Grade.READ_DATA, read_data=read_data(spark, repository))
    assert found.ok, found.summary()
    target = folder / "restored" / str(number)
    logs = {name: EventLog.open(folder / "logs" / name) for name in "ab"}
    for name, cut in cuts.items():
        if cut.epoch:
            restore_stream(repository, plan, name, target / name)
    read = [row for name in input_files(target / "a") for row in feeder.rows[name]] if cuts["a"].epoch else []
    tails = {name: cuts[name].sinks["log"]["tail"] for name in "ab"}
    given = [event.payload for event in logs["a"].read(end=tails["a"])]
    assert sorted(map(key, given)) == sorted(map(key, read)), number  # what the upstream has given is what it has read
    assert len(read) == cuts["a"].rows
    if cuts["a"].epoch:
        assert MsgpackCodec(int).decode(stage_states(repository, plan)["a/stage"]) == len(read)
    expected: dict[str, dict[Any, Any]] = {
        "b": dict(Counter(row["text"] for row in given[: sequence(cuts["b"])])),
        "c": {},
    }
    for event in logs["b"].read(end=sequence(cuts["c"])):
        even = event.payload["c"] % 2 == 0
        expected["c"][even] = expected["c"].get(even, 0) + event.payload["c"]
    for name, above in {"b": "a", "c": "b"}.items():
        assert sequence(cuts[name]) <= tails[above], (number, name)  # nobody holds what its upstream has not
        if cuts[name].epoch:
            assert state_of(spark, target / name, cuts[name]) == expected[name], (number, name)


def goes_on_from(spark: SparkSession, folder: Path, number: str) -> None:
    """Start plain Spark from a restored cut of the second stream: it comes to the exact end."""
    log = EventLog.open(folder / "logs" / "a")
    found: dict[str, int] = {}

    def take(df: DataFrame, _: int) -> None:
        found.update({row.text: row.c for row in df.collect()})

    counts = read_log_stream(spark, log.path).select("payload.*").groupBy("text").agg(f.count("*").alias("c"))
    settings = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
    with adapter.with_settings(spark, settings):
        writer = counts.writeStream.outputMode("update").foreachBatch(take)
        query = (
            writer.option("checkpointLocation", str(folder / "restored" / number / "b"))
            .trigger(availableNow=True)
            .start()
        )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    expected = Counter(event.payload["text"] for event in log.read())
    assert found == {text: expected[text] for text in found}
    assert found


def key(row: dict[str, Any]) -> tuple[int, str]:
    return row["n"], row["text"]


def sequence(cut: Any) -> int:
    return int(json.loads(cut.offsets[0])["sequence"]) if cut.epoch else 0


def input_files(folder: Path) -> list[str]:
    """Return the names of the files that a file source has read, as its own log tells it."""
    names = []
    for entry in (folder / "sources" / "0").iterdir():
        lines = entry.read_text().split("\n")[1:]
        names += [Path(unquote(urlsplit(json.loads(line)["path"]).path)).name for line in lines]
    return names


def state_of(spark: SparkSession, folder: Path, cut: Any) -> dict[Any, Any]:
    state = StateFolder(spark, folder, cut.state_format, cut.confs)
    with state.reading():
        rows = state._store("0/default").select("key.*", "value.*").collect()
    return {row[0]: row[1] for row in rows}
