"""Plain Spark jobs that were killed in the middle of a batch go on as streams of a pipeline, and back."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
import plainjobs
from holdfast.errors import (
    AlreadyExists,
    LastBatchUnknown,
    NotSupported,
    SourcesDiffer,
    SparkCheckpointDamaged,
    SparkQueryLive,
)
from holdfast.in_doubt import in_doubt
from plainjobs import FILES, JOBS, LAST, expected, feed, rows_of, table, write
from sparkfolders import Folders

ENDINGS = ("written", "not-written")
QUICK = 0.05  # seconds between two looks
HERE = Path(plainjobs.__file__).parent


def killed(root: Path, ending: str) -> Path:
    """Run all jobs as a program, and kill it once each of them is in the middle of its last batch."""
    feed(root, 0, FILES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(HERE / "plainjobs.py"), str(root), ending]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
    try:
        until = time.monotonic() + 240
        while not all((root / f"{name}.reached").exists() for name in JOBS):
            assert process.poll() is None, (root / "log").read_text()
            assert time.monotonic() < until, sorted(each.name for each in root.iterdir())
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return root


@pytest.fixture(scope="module", params=ENDINGS)
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return killed(tmp_path_factory.mktemp(request.param), request.param), request.param


class Continued:
    """A job as a stream of a pipeline, into the table that the plain job wrote."""

    def __init__(self, spark: SparkSession, root: Path, name: str, where: str = "checkpoints") -> None:
        self.spark = spark
        self.root = root
        self.name = name
        self.old = root / "old" / name
        self.pipeline = hf.Pipeline(name, root=root / where)
        job = JOBS[name]
        sink = hf.SqliteSink(table(root, name), name, key=job.key, name="table")
        self.pipeline.stream(lambda spark: job.build(spark, root), name=name, sinks=[sink], output_mode=job.mode)

    def plan(self, **answers: str) -> Any:
        return hf.spark.plan_adopt(
            self.pipeline, self.name, self.old, last_batch=answers, spark=self.spark, pause=QUICK
        )

    def adopt(self, **answers: str) -> Any:
        return hf.spark.apply_adopt(self.pipeline, self.plan(**answers), spark=self.spark)

    def run(self) -> Any:
        return self.pipeline.run(self.spark, available_now=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", JOBS)
def test_a_killed_job_goes_on_with_exact_totals_and_leaves_with_exact_totals(
    spark: SparkSession, jobs: tuple[Path, str], name: str
) -> None:
    """Adopt, run, look at a checkpoint, run more, eject, and go on in plain Spark."""
    root, ending = jobs
    at = Continued(spark, root, name)
    with pytest.raises(LastBatchUnknown, match="table=written"):
        at.plan()
    done = at.adopt(table=ending)
    assert done.first_epoch == LAST + 1 + (ending == "written")
    doubt = in_doubt(at.pipeline.repository, name, 1)
    assert (doubt is not None) == (ending == "written")
    at.run()
    assert rows_of(root, name) == expected(name, FILES)

    assert hf.verify(at.pipeline.repository).ok  # the checkpoint of the graceful end
    feed(root, FILES, 1)
    at.run()
    assert rows_of(root, name) == expected(name, FILES + 1)

    target = root / "plain" / name
    ejected = hf.plainspark.eject(at.pipeline.repository, name, target)
    assert (ejected.epoch, ejected.batch) == (FILES + 1, FILES + 1)
    feed(root, FILES + 1, 1)
    seen: list[int] = []

    def take(df: Any, batch: int) -> None:
        seen.append(batch)
        write(root, name, df)

    query: Any = plainjobs.start(spark, root, name, target, take)
    query.awaitTermination()
    assert seen == [FILES + 1]
    assert rows_of(root, name) == expected(name, FILES + 2)
    for number in (FILES, FILES + 1):  # for the next job
        for side in ("a", "b"):
            (root / side / f"{number:03}.json").unlink()


def test_the_settings_of_the_old_state_are_kept(spark: SparkSession, jobs: tuple[Path, str]) -> None:
    root, ending = jobs
    settings = {}
    for name in ("files", "totals_hdfs", "totals_rocksdb", "totals_format2"):
        settings[name] = Continued(spark, root, name, "other").plan(table=ending).settings
    version, provider = (
        f"spark.sql.streaming.stateStore.{each}" for each in ("checkpointFormatVersion", "providerClass")
    )
    assert settings["files"] == {}
    assert [settings[name][version] for name in list(settings)[1:]] == ["1", "1", "2"]
    assert ["RocksDB" in settings[name][provider] for name in list(settings)[1:]] == [False, True, True]


def test_two_sinks_of_which_one_has_the_batch_in_doubt(
    spark: SparkSession, jobs: tuple[Path, str], tmp_path: Path
) -> None:
    root, _ = jobs
    made = hf.Pipeline("two", root=tmp_path / "checkpoints")
    sinks = [hf.FileSink(tmp_path / name, name=name) for name in ENDINGS]
    made.stream(lambda spark: JOBS["files"].build(spark, root), name="files", sinks=sinks)
    answers = {name: name for name in ENDINGS}
    plan = hf.spark.plan_adopt(made, "files", root / "old/files", last_batch=answers, spark=spark, pause=QUICK)
    hf.spark.apply_adopt(made, plan, spark=spark)
    made.run(spark, available_now=True)
    for name, first in (("written", LAST + 1), ("not-written", LAST)):
        rows = [tuple(row) for row in spark.read.parquet(str(tmp_path / name)).select("id", "v").collect()]
        assert sorted(rows) == sorted(set(expected("files", FILES)) - set(expected("files", first)))


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(spark: SparkSession, tmp_path: Path) -> Folders:
    found = Folders(spark, tmp_path)
    found.feed("a", 3)
    return found


def pipeline_of(folders: Folders, build: Any, mode: str = "append", **options: Any) -> hf.Pipeline:
    made = hf.Pipeline("p", root=folders.root / "checkpoints")
    sink = hf.SqliteSink(folders.root / "out.db", "t", changelog=True, name="table")
    made.stream(lambda _: build(), name="s", sinks=[sink], output_mode=mode, **options)
    return made


def adopt(folders: Folders, made: hf.Pipeline, checkpoint: Path, **answers: str) -> Any:
    return hf.spark.plan_adopt(made, "s", checkpoint, last_batch=answers, spark=folders.spark, pause=QUICK)


def test_another_path_and_another_source_are_refused(folders: Folders) -> None:
    old = folders.run("old", folders.read("a"))
    folders.feed("b", 1)
    with pytest.raises(SourcesDiffer, match=r"input/a/.*the stream reads"):
        adopt(folders, pipeline_of(folders, lambda: folders.read("b")), old)
    rate = folders.spark.readStream.format("rate")
    with pytest.raises(SourcesDiffer, match="reads rate"):
        adopt(folders, pipeline_of(folders, rate.load), old)
    with pytest.raises(SourcesDiffer, match="has 1 sources, the stream 2"):
        adopt(folders, pipeline_of(folders, lambda: folders.read("a").union(folders.read("b"))), old)
    rates = folders.run("rates", rate.load().select("value"))
    with pytest.raises(SourcesDiffer, match="neither a path nor topics"):
        adopt(folders, pipeline_of(folders, lambda: rate.load().select("value")), rates)


def test_sources_are_compared_in_the_order_in_which_spark_numbers_them(folders: Folders) -> None:
    folders.feed("b", 2)
    both = folders.read("a").union(folders.read("b"))
    old = folders.run("old", both)
    turned = pipeline_of(folders, lambda: folders.read("b").union(folders.read("a")))
    with pytest.raises(SourcesDiffer, match="source 0"):
        adopt(folders, turned, old)
    plan = adopt(folders, pipeline_of(folders, lambda: folders.read("a").union(folders.read("b"))), old)
    assert [Path(each.place).name for each in plan.sources] == ["a", "b"]
    same = folders.read("a")
    twice = folders.run("twice", same.union(same))
    made = pipeline_of(folders, lambda: same.union(same))
    plan = adopt(folders, made, twice)
    assert [Path(each.place).name for each in plan.sources] == ["a", "a"]
    hf.spark.apply_adopt(made, plan, spark=folders.spark)
    folders.feed("a", 1, first=3)
    made.run(folders.spark, available_now=True)
    assert hf.verify(made.repository).ok  # a checkpoint of a query with two offsets and one log
    with sqlite3.connect(folders.root / "out.db") as out:
        assert out.execute("SELECT count(*) FROM t").fetchall() == [(8,)]
    out.close()


def test_a_live_query_is_refused(folders: Folders) -> None:
    folders.feed("a", 40)
    made = pipeline_of(folders, lambda: folders.read("a"))
    query = folders.start("old", folders.read("a"), "append", {"processingTime": "0 seconds"})
    try:
        while not (folders.root / "old/commits/1").exists():
            time.sleep(0.05)
        with pytest.raises(SparkQueryLive):
            hf.spark.plan_adopt(
                made, "s", folders.root / "old", last_batch={"table": "written"}, spark=folders.spark, pause=1
            )
    finally:
        query.stop()


def test_missing_state_is_refused(folders: Folders) -> None:
    build = lambda: folders.read("a").groupBy("k").count()  # noqa: E731
    old = folders.run("old", build(), "update")
    deltas = sorted(old.glob("state/0/*/*.delta"))
    deltas[0].unlink()
    with pytest.raises(SparkCheckpointDamaged, match=deltas[0].name):
        adopt(folders, pipeline_of(folders, build, "update"), old)
    with pytest.raises(NotSupported, match="the stream keeps none"):
        adopt(folders, pipeline_of(folders, lambda: folders.read("a")), folders.run("new", build(), "update"))


def test_a_stream_that_ran_before_is_refused(folders: Folders) -> None:
    old = folders.run("old", folders.read("a"))
    made = pipeline_of(folders, lambda: folders.read("a"))
    made.run(folders.spark, available_now=True)
    with pytest.raises(AlreadyExists, match="stream 's'"):
        adopt(folders, made, old)


def test_a_target_that_the_sink_refuses_leaves_nothing(folders: Folders) -> None:
    old = folders.run("old", folders.read("a"))
    (folders.root / "out").mkdir()
    (folders.root / "out/part-0.parquet").write_text("rows of the plain job")
    made = hf.Pipeline("p", root=folders.root / "checkpoints")
    made.stream(lambda _: folders.read("a"), name="s", sinks=[hf.FileSink(folders.root / "out", name="table")])
    plan = adopt(folders, made, old)
    with pytest.raises(hf.errors.HoldfastError, match="out"):
        hf.spark.apply_adopt(made, plan, spark=folders.spark)
    assert not (made.repository.root / "timelines").exists()
