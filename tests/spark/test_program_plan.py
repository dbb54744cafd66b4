"""A changed program is compared with the one that ran: by `plan`, and by each start."""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast.errors import StreamChanged
from holdfast.program.changes import ChangeEffect
from holdfast.program.records import Programs
from holdfast.repository import Lineage
from holdfast.spark.pipeline import Pipeline
from rig import FilesTarget, Rig

QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "count": lambda df: df.groupBy("text").count(),
    "sum": lambda df: df.groupBy("text").agg(f.sum("n").alias("count")),
    "other key": lambda df: df.groupBy((f.col("n") % 3).alias("text")).count().withColumn("text", f.lit("x")),
    "dedup": lambda df: df.dropDuplicates(["text"]).selectExpr("text", "n AS count"),
    "stateless": lambda df: df.selectExpr("text", "n AS count"),
    "udf": lambda df: df.withColumn("n", f.udf(lambda n: n, "long")("n")).groupBy("text").count(),
}


def counting(spark: SparkSession, folder: Path, query: str, more: list[hf.Sink] | None = None) -> Pipeline:
    pipeline = hf.Pipeline("counts", folder / "root", restart=hf.RestartPolicy.never(), outage=0)
    sinks: list[hf.Sink] = [hf.SqliteSink(folder / "out.db", table="counts", key="text"), *(more or [])]

    @pipeline.stream(name="counts", sinks=sinks, output_mode="update")
    def counts(session: SparkSession) -> DataFrame:
        rows = session.readStream.schema("n long, text string").json(str(folder / "in"))
        return QUERIES[query](rows)

    return pipeline


def give(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{number}.json").write_text('{"n": 1, "text": "a"}\n')


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    give(tmp_path, 1)
    counting(spark, tmp_path, "count").run(spark, available_now=True, checkpoint_every=None)
    return tmp_path


def test_the_same_program_has_no_changes_and_is_stored_once(spark: SparkSession, folder: Path) -> None:
    pipeline = counting(spark, folder, "count")
    made = pipeline.plan(spark)
    assert (made.changes, made.since, made.possible) == ((), {"counts": 1}, True)
    give(folder, 2)
    pipeline.run(spark, available_now=True, checkpoint_every=None)
    assert [each.name for each in (folder / "root/counts/programs/counts").iterdir()] == ["0000000001.json"]
    assert msgspec.json.encode(pipeline.plan(spark).to_dict())


@pytest.mark.parametrize("query", ["other key", "dedup", "stateless"])
def test_a_program_that_cannot_continue_the_state_is_refused(query: str, spark: SparkSession, folder: Path) -> None:
    pipeline = counting(spark, folder, query)
    made = pipeline.plan(spark)
    assert [each.effect for each in made.changes][:1] == [ChangeEffect.IMPOSSIBLE]
    assert not made.possible
    give(folder, 2)
    before = sorted((folder / "root").rglob("*"))
    with pytest.raises(StreamChanged, match="state"):
        pipeline.run(spark, available_now=True, checkpoint_every=None)
    new = [each for each in sorted((folder / "root").rglob("*")) if each not in before]
    assert all({"lease", "control", "activity"} & set(each.parts) for each in new)  # nothing of the stream
    counting(spark, folder, "count").run(spark, available_now=True, checkpoint_every=None)  # reverted: it continues


def test_a_change_that_takes_effect_is_reported_once_and_then_stored(
    spark: SparkSession, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = counting(spark, folder, "sum")
    made = pipeline.plan(spark)
    assert made.possible  # count and sum are stored alike: Spark alone can tell
    give(folder, 2)
    with caplog.at_level(logging.WARNING):
        counting(spark, folder, "udf").run(spark, available_now=True, checkpoint_every=None)
    assert "the program has changed" not in caplog.text  # another UDF is not visible in a description
    more: list[hf.Sink] = [hf.FileSink(folder / "files", changelog=True)]
    give(folder, 3)
    with caplog.at_level(logging.WARNING):
        counting(spark, folder, "count", more).run(spark, available_now=True, checkpoint_every=None, accept=["sinks"])
    assert caplog.text.count("the program has changed: stream counts: sink files.files is new") == 1
    caplog.clear()
    give(folder, 4)
    with caplog.at_level(logging.WARNING):
        counting(spark, folder, "count", more).run(spark, available_now=True, checkpoint_every=None)
    assert "the program has changed" not in caplog.text
    repository = pipeline.repository
    record = Programs(repository).newest("counts", Lineage.load(repository))
    assert record is not None and record.epoch == 3
    assert sorted(record.description.sinks) == ["files.files", "sqlite.counts"]


def test_a_plan_writes_nothing_not_even_the_log_of_a_new_reader(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    rig.run()
    pipeline = rig.pipeline()

    @pipeline.stream(sinks=hf.FileSink(tmp_path / "copy"))
    def copy(session: SparkSession) -> DataFrame:
        return pipeline.read("rows")

    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    made = pipeline.plan(spark)
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before
    assert [(each.stream, each.what, each.effect) for each in made.changes] == [
        ("copy", "the stream", ChangeEffect.TAKES_EFFECT),
        ("rows", "sink log", ChangeEffect.TAKES_EFFECT),
    ]


def test_a_pipeline_that_never_ran_has_nothing_to_compare(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    made = rig.pipeline().plan(spark)
    assert (made.changes, made.since, made.possible) == ((), {}, True)
    assert not (tmp_path / "root").exists()
