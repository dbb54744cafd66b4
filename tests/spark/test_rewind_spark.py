"""Going back with real queries: files, tables, state, stages, and the command as a process."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from counting import Counting
from holdfast import FileSink, Pipeline, SqliteSink, apply_rewind, plan_rewind, plan_undo
from holdfast.errors import SparkLogMismatch
from holdfast.rewind import Readable
from holdfast.rewind.steps import POINTS
from holdfast.stages import Stage
from holdfast.testing import CrashAt, Crashed
from rig import FilesTarget, Rig, SqliteTarget

DECIDED = [point for point in POINTS if point not in ("rewind planned", "rewind built")]


def rig(spark: SparkSession, folder: Path, **options: Any) -> Rig:
    targets = [FilesTarget(folder / "out"), SqliteTarget(folder / "out.db", epoch_column="epoch")]
    return Rig(spark, folder, targets, **options)


def run(made: Rig) -> None:
    """Run to the end of the input, with a checkpoint at the end."""
    made.pipeline().run(made.spark, available_now=True, checkpoint_every="1h")


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> Rig:
    """Two epochs, checkpoint 1, two more epochs, checkpoint 2."""
    found = rig(spark, tmp_path)
    found.add(1, 2)
    found.add(3)
    run(found)
    found.add(4)
    found.add(5, 6)
    run(found)
    return found


def test_rewind_run_and_undo(made: Rig) -> None:
    """The sinks show the base; a run brings every row again, once; an undo brings the original rows back."""
    pipeline = made.pipeline()
    plan = plan_rewind(pipeline, 1)
    assert plan.problems == ()
    assert [source.readable for source in plan.streams[0].sources] == [Readable.YES]
    assert [sink.rows for sink in plan.streams[0].sinks] == [3, 3]
    assert apply_rewind(pipeline, plan).timeline == 2
    assert made.visible() == [[1, 2, 3]] * 2
    apply_rewind(pipeline, plan_undo(pipeline))
    assert made.visible() == [[1, 2, 3, 4, 5, 6]] * 2
    made.add(7)
    run(made)
    assert made.visible() == [[1, 2, 3, 4, 5, 6, 7]] * 2
    apply_rewind(pipeline, plan_rewind(pipeline, "before:rows:3"))
    assert made.visible() == [[1, 2, 3]] * 2
    run(made)
    assert made.visible() == [[1, 2, 3, 4, 5, 6, 7]] * 2
    made.add(8)
    run(made)
    assert made.visible() == [[1, 2, 3, 4, 5, 6, 7, 8]] * 2


def test_a_fixed_program_gives_what_it_would_have_given_from_the_start(made: Rig, tmp_path: Path) -> None:
    never = rig(made.spark, tmp_path / "never", query=lambda df: df.withColumn("n", df.n * 10))
    for numbers in made.epochs[2:]:
        never.add(*numbers)
    run(never)
    pipeline = made.pipeline()
    apply_rewind(pipeline, plan_rewind(pipeline, 1))
    made.query = never.query
    run(made)
    assert made.visible() == [[1, 2, 3, *rows] for rows in never.visible()]


@pytest.mark.parametrize("point", DECIDED)
def test_a_start_finishes_an_interrupted_rewind(made: Rig, point: str) -> None:
    pipeline = made.pipeline()
    with pytest.raises(Crashed):
        apply_rewind(pipeline, plan_rewind(pipeline, 1), reach=CrashAt(point))
    run(made)
    assert made.visible() == [[1, 2, 3, 4, 5, 6]] * 2
    made.add(7)
    run(made)
    assert made.visible() == [[1, 2, 3, 4, 5, 6, 7]] * 2


@pytest.mark.parametrize("point", ["decided", "committed", "all committed"])
def test_an_epoch_in_doubt(made: Rig, point: str) -> None:
    """It is completed before the sinks go back, and an undo replays it into nothing."""
    made.add(7)
    made.crash(CrashAt(point))
    pipeline = made.pipeline()
    apply_rewind(pipeline, plan_rewind(pipeline, 1))
    assert made.visible() == [[1, 2, 3]] * 2
    apply_rewind(pipeline, plan_undo(pipeline))
    assert made.visible() == [[1, 2, 3, 4, 5, 6, 7]] * 2
    made.add(8)
    run(made)
    assert made.visible() == [[1, 2, 3, 4, 5, 6, 7, 8]] * 2


def test_a_lost_spark_folder(made: Rig) -> None:
    """The start names the newest sound checkpoint; after going back there, nothing is lost or doubled."""
    made.add(7)
    made.run()
    shutil.rmtree(made.checkpoint)
    with pytest.raises(SparkLogMismatch, match=r"holdfast rewind app\.py:pipeline --to 2"):
        run(made)
    pipeline = made.pipeline()
    plan = plan_rewind(pipeline, 2)
    assert plan.no_undo is not None
    apply_rewind(pipeline, plan, accept_input=True)
    assert made.visible() == [[1, 2, 3, 4, 5, 6]] * 2
    run(made)
    assert made.visible() == [[1, 2, 3, 4, 5, 6, 7]] * 2


def test_state_goes_back(spark: SparkSession, tmp_path: Path) -> None:
    """Counts after the rewind continue from the base's, in a table that is replaced, and again after an undo."""

    def counts(df: DataFrame) -> DataFrame:
        return df.groupBy((f.col("n") % 2).alias("n")).agg(f.count("*").cast("string").alias("text"))

    target = SqliteTarget(tmp_path / "out.db")
    made = Rig(spark, tmp_path, [target], query=counts, output_mode="complete")
    made.add(1, 2)
    run(made)
    made.add(3, 5)
    run(made)
    assert target.visible(spark, "n text") == [(0, "1"), (1, "3")]
    pipeline = made.pipeline()
    apply_rewind(pipeline, plan_rewind(pipeline, 1))
    made.add(4)
    run(made)
    assert target.visible(spark, "n text") == [(0, "2"), (1, "3")]
    apply_rewind(pipeline, plan_rewind(pipeline, 1))
    apply_rewind(pipeline, plan_undo(pipeline))
    made.add(6)
    run(made)
    assert target.visible(spark, "n text") == [(0, "3"), (1, "3")]


def test_transform_with_state_goes_back_without_the_old_folder(spark: SparkSession, tmp_path: Path) -> None:
    """Its metadata has absolute paths of schema files: those of the new timeline, after a rewind and after an undo."""
    counting = Counting(tmp_path)
    pipeline = Pipeline("counts", tmp_path / "root")
    sink = FileSink(tmp_path / "out", changelog=True, name="out", format="json")
    pipeline.stream(counting.build, name="rows", sinks=sink, output_mode="update")
    counting.add("1", "aab")
    pipeline.run(spark, available_now=True)
    counting.add("2", "abc")
    pipeline.run(spark, available_now=True)
    first = counts_in(tmp_path / "out")
    apply_rewind(pipeline, plan_rewind(pipeline, 1))
    apply_rewind(pipeline, plan_undo(pipeline))
    assert counts_in(tmp_path / "out") == first
    apply_rewind(pipeline, plan_rewind(pipeline, 1))
    timelines = tmp_path / "root/counts/timelines"
    for old in ("1", "4"):
        shutil.rmtree(timelines / old / "streams/rows/spark")
    (path,) = (timelines / "5/streams/rows/spark/state/0/_metadata/v2").glob("[0-9]*")
    assert str(timelines / "5") in path.read_text()
    assert str(timelines / "1/") not in path.read_text()
    pipeline.run(spark, available_now=True)
    assert counts_in(tmp_path / "out") == first


def counts_in(folder: Path) -> list[str]:
    return sorted(line for path in folder.rglob("part-*.json") for line in path.read_text().splitlines())


class Tally(msgspec.Struct):
    rows: int = 0
    padding: str = ""


@pytest.mark.parametrize("size", [0, 30_000])
def test_the_stage_goes_back(spark: SparkSession, tmp_path: Path, size: int) -> None:
    def counted(df: DataFrame, stage: Any) -> DataFrame:
        stage.state.rows += df.count()
        return df.selectExpr("n", f"'{stage.state.rows}' AS text")

    target = SqliteTarget(tmp_path / "out.db", epoch_column="epoch")
    made = Rig(spark, tmp_path, [target], stage=Stage(Tally(padding="x" * size)), on_epoch=counted)
    made.add(1, 2)
    run(made)
    made.add(3)
    run(made)
    pipeline = made.pipeline()
    apply_rewind(pipeline, plan_rewind(pipeline, 1))
    run(made)
    made.add(4)
    run(made)
    assert target.visible(spark, "n text") == [(1, "2"), (2, "2"), (3, "3"), (4, "4")]
    apply_rewind(pipeline, plan_rewind(pipeline, 1))
    apply_rewind(pipeline, plan_undo(pipeline))
    made.add(5)
    run(made)
    assert target.visible(spark, "n text")[-1] == (5, "5")


def test_only_one_of_two_streams_goes_back(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    pipeline = Pipeline("two", tmp_path / "root")

    def build(session: SparkSession) -> DataFrame:
        return session.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(source))

    for name in ("one", "other"):
        pipeline.stream(build, name=name, sinks=SqliteSink(tmp_path / "out.db", name, epoch_column="epoch"))

    def rows(table: str) -> list[int]:
        connection = sqlite3.connect(tmp_path / "out.db")
        found = [row[0] for row in connection.execute(f"SELECT n FROM {table} ORDER BY n")]  # noqa: S608
        connection.close()
        return found

    for number in (1, 2):
        (source / f"{number}.json").write_text(json.dumps({"n": number}))
        pipeline.run(spark, available_now=True)
    apply_rewind(pipeline, plan_rewind(pipeline, 1, only=["one"]))
    assert (rows("one"), rows("other")) == ([1], [1, 2])
    (source / "3.json").write_text(json.dumps({"n": 3}))
    pipeline.run(spark, available_now=True)
    assert (rows("one"), rows("other")) == ([1, 2, 3], [1, 2, 3])
    apply_rewind(pipeline, plan_rewind(pipeline, "latest"))
    pipeline.run(spark, available_now=True)
    assert (rows("one"), rows("other")) == ([1, 2, 3], [1, 2, 3])


def test_chained_streams_go_back_together(spark: SparkSession, tmp_path: Path) -> None:
    """The log between them is not cut: its readers skip what was taken back."""
    source = tmp_path / "in"
    source.mkdir()
    pipeline = Pipeline("chain", tmp_path / "root")

    @pipeline.stream(sinks=SqliteSink(tmp_path / "out.db", "orders", epoch_column="epoch"))
    def orders(session: SparkSession) -> DataFrame:
        return session.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(source))

    @pipeline.stream(output_mode="complete", sinks=SqliteSink(tmp_path / "out.db", "totals"))
    def totals(session: SparkSession) -> DataFrame:
        return pipeline.read("orders").groupBy().agg(f.sum("n").alias("total"), f.count("*").alias("rows"))

    def rows(query: str) -> list[tuple[int, ...]]:
        connection = sqlite3.connect(tmp_path / "out.db")
        found = connection.execute(query).fetchall()
        connection.close()
        return found

    for number in (1, 2, 3):
        (source / f"{number}.json").write_text(json.dumps({"n": number}))
        pipeline.run(spark, available_now=True)
    assert rows("SELECT total, rows FROM totals") == [(6, 3)]
    assert "'totals' reads from a stream that goes back" in plan_rewind(pipeline, 1, only=["orders"]).problems[0]
    plan = plan_rewind(pipeline, 1)
    assert plan.problems == ()
    assert {sink.sink for each in plan.streams for sink in each.sinks} >= {"log"}
    assert all(source.readable is Readable.YES for each in plan.streams for source in each.sources)
    apply_rewind(pipeline, plan)
    assert rows("SELECT n FROM orders") == [(1,)]
    pipeline.run(spark, available_now=True)
    assert rows("SELECT n FROM orders ORDER BY n") == [(1,), (2,), (3,)]
    assert rows("SELECT total, rows FROM totals") == [(6, 3)]
    apply_rewind(pipeline, plan_rewind(pipeline, 1))
    apply_rewind(pipeline, plan_undo(pipeline))
    (source / "4.json").write_text(json.dumps({"n": 4}))
    pipeline.run(spark, available_now=True)
    assert rows("SELECT n FROM orders ORDER BY n") == [(1,), (2,), (3,), (4,)]
    assert rows("SELECT total, rows FROM totals") == [(10, 4)]
    apply_rewind(pipeline, plan_rewind(pipeline, 1, only=["totals"]))
    pipeline.run(spark, available_now=True)
    assert rows("SELECT total, rows FROM totals") == [(10, 4)]


PROGRAM = """
import sys
from pathlib import Path

import holdfast as hf

here = Path(__file__).parent
pipeline = hf.Pipeline("shop", root=here / "root")


@pipeline.stream(sinks=[hf.FileSink(here / "out", format="json", name="files")])
def rows(spark):
    return spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(here / "in"))
"""


def test_the_command_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    (tmp_path / "in").mkdir()

    def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    def rows() -> list[int]:
        lines = [line for path in (tmp_path / "out").rglob("part-*") for line in path.read_text().splitlines()]
        return sorted(json.loads(line)["n"] for line in lines)

    for number in (1, 2):
        (tmp_path / f"in/{number}.json").write_text(json.dumps({"n": number}))
        done = holdfast("run", "app.py", "--once", "--plain")
        assert done.returncode == 0, done.stderr
    done = holdfast("rewind", "app.py:pipeline", "--to", "1", "--yes", "--why", "a bug")
    assert (done.returncode, done.stderr) == (0, "")
    assert rows() == [1]
    shutil.rmtree(tmp_path / "root/shop/timelines/2/streams/rows/spark")
    done = holdfast("run", "app.py", "--once", "--plain")
    assert (done.returncode, "holdfast rewind app.py --to 1" in done.stderr) == (2, True)
    assert holdfast("rewind", "app.py", "--to", "1", "--yes").returncode == 0
    done = holdfast("run", "app.py", "--once", "--plain")
    assert done.returncode == 0, done.stderr
    assert rows() == [1, 2]
