"""A function as a sink: called for every decided epoch at least once, with the same rows and key each time."""

import dataclasses
import functools
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast.errors import BadValue, InDoubt, NotSupported, SinkAhead, SinkForeign, StreamFailed
from holdfast.sinks.base import Link
from holdfast.testing import CrashAt
from rig import FilesTarget, ForeachTarget, Rig, Target


def by_chance(df: DataFrame) -> DataFrame:
    """Give other rows each time it is computed."""
    return df.withColumn("text", f.udf(lambda _: uuid.uuid4().hex, "string", useArrow=False)("n"))


@pytest.fixture
def calls(tmp_path: Path) -> ForeachTarget:
    return ForeachTarget(tmp_path / "calls")


def test_it_is_called_for_every_epoch_in_order(calls: ForeachTarget, spark: SparkSession, tmp_path: Path) -> None:
    """Also for one without rows, as `foreachBatch` is."""
    rig = Rig(spark, tmp_path, [calls])
    for numbers in ([1, 2], [], [3]):
        rig.add(*numbers)
        rig.run()
    assert [[n for n, _ in call["rows"]] for call in calls.calls()] == [[1, 2], [], [3]]
    assert [call["epoch"] for call in calls.calls()] == [1, 2, 3]
    assert len({call["key"] for call in calls.calls()}) == 3


@pytest.mark.parametrize(
    ("point", "called"),
    [("staging", 0), ("all prepared", 0), ("durable", 0), ("decided", 0), ("committing", 1), ("all committed", 1)],
)
def test_a_crash_repeats_a_call_with_the_same_rows_and_key(
    point: str, called: int, calls: ForeachTarget, spark: SparkSession, tmp_path: Path
) -> None:
    """A query that gives other rows each time it runs; the other sink of the stream is exact."""
    files = FilesTarget(tmp_path / "out")
    rig = Rig(spark, tmp_path, [calls, files], by_chance)
    rig.add(1, 2, 3)
    rig.crash(CrashAt(point))
    assert len(calls.calls()) == called  # nothing that is not decided reaches the function
    rig.run()
    assert len(calls.calls()) == (2 if point == "committing" else 1)
    assert len({call["key"] for call in calls.calls()}) == 1
    assert calls.visible(spark, "n text") == files.visible(spark, "n text")
    rig.add(4)
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4], [1, 2, 3, 4]]


def test_an_empty_epoch_that_was_only_decided_is_called_for(
    calls: ForeachTarget, spark: SparkSession, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, [calls])
    rig.add()
    rig.crash(CrashAt("decided"))
    assert calls.calls() == []
    rig.run()
    assert [call["rows"] for call in calls.calls()] == [[]]


def test_a_function_that_fails_is_called_again_with_an_equal_key(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[hf.sinks.ForeachKey, list[Any]]] = []

    def flaky(df: DataFrame, key: hf.sinks.ForeachKey) -> None:
        seen.append((key, sorted(tuple(row) for row in df.collect())))
        if len(seen) < 3:
            raise OSError("the other side is down")

    rig = Rig(spark, tmp_path, [Target(lambda: hf.ForeachSink(flaky))], by_chance)
    rig.add(1, 2)
    with pytest.raises(StreamFailed) as caught:
        rig.run()
    assert isinstance(caught.value.__cause__, InDoubt)
    assert "foreach.flaky" in str(caught.value) and "the other side is down" in str(caught.value)
    with pytest.raises(InDoubt, match=r"foreach\.flaky"):
        rig.run()
    rig.run()
    assert len(seen) == 3 and all(each == seen[0] for each in seen)


def test_the_function_may_read_its_rows_as_often_as_it_likes(spark: SparkSession, tmp_path: Path) -> None:
    """They are read from what was staged, not computed again; and it may use SQL on them."""
    found: list[Any] = []

    def thorough(df: DataFrame, key: hf.sinks.ForeachKey) -> None:
        df.createOrReplaceTempView("epoch_rows")
        both = df.sparkSession.sql("SELECT text FROM epoch_rows ORDER BY n").collect()
        found.append((df.orderBy("n").select("text").collect(), both, df.schema.simpleString(), df.isStreaming))

    rig = Rig(spark, tmp_path, [Target(lambda: hf.ForeachSink(thorough))], by_chance)
    rig.add(*range(20))
    rig.run()
    ((once, twice, schema, streaming),) = found
    assert once == twice and len(once) == 20
    assert (schema, streaming) == ("struct<n:bigint,text:string>", False)


def test_its_key_is_a_value_that_a_table_can_keep() -> None:
    key = hf.sinks.ForeachKey("shop", "a" * 32, "orders", 1, 41)
    assert str(key) == f"{'a' * 32}/orders/t1-0000000041"
    assert key.batch_id == 40
    assert key == hf.sinks.ForeachKey("shop", "a" * 32, "orders", 1, 41) and len({key, dataclasses.replace(key)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        key.epoch = 1  # type: ignore[misc]


def test_its_name_is_made_of_the_functions() -> None:
    def write(df: DataFrame, key: hf.sinks.ForeachKey) -> None:
        pass

    assert hf.ForeachSink(write).name == "foreach.write"
    assert hf.ForeachSink(lambda *_: None).name == "foreach"
    assert hf.ForeachSink(functools.partial(write)).name == "foreach"
    assert hf.ForeachSink(write, name="mine").name == "mine"
    with pytest.raises(BadValue, match="function"):
        hf.ForeachSink("write")  # type: ignore[arg-type]


def test_what_it_keeps_is_in_the_repository_and_is_cleared(
    calls: ForeachTarget, spark: SparkSession, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, [calls])
    for n in range(1, 6):
        rig.add(n)
    rig.run()
    folder = rig.repository / "sinks" / "rows" / "calls"
    assert [each.name for each in (folder / "staging").iterdir() if ".e0000000005." not in each.name] == []
    assert sorted(each.name for each in folder.glob("t*.key")) == ["t1-0000000004.key", "t1-0000000005.key"]


def test_two_streams_may_not_share_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    first = Rig(spark, tmp_path / "1", [ForeachTarget(tmp_path / "calls", tmp_path / "kept")])
    first.add(1)
    first.run()
    second = Rig(spark, tmp_path / "2", [ForeachTarget(tmp_path / "calls", tmp_path / "kept")])
    second.add(2)
    with pytest.raises(SinkForeign, match="uid"):
        second.run()


def test_a_copied_repository_is_noticed_where_its_folder_is_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    target = ForeachTarget(tmp_path / "calls", tmp_path / "kept")
    rig = Rig(spark, tmp_path, [target])
    rig.add(1)
    rig.run()
    shutil.copytree(rig.repository, tmp_path / "copy")
    for n in (2, 3, 4):
        rig.add(n)
    rig.run()
    shutil.rmtree(rig.repository)
    shutil.move(tmp_path / "copy", rig.repository)
    with pytest.raises(SinkAhead):
        rig.run()
    sink = target.make()
    owner = hf.StreamIdentity("torment", str(target.calls()[0]["key"]).partition("/")[0], "rows")
    sink.open(hf.SinkContext(owner, spark.createDataFrame([], "n long, text string").schema, "append", spark))
    tried = hf.epoch.Attempt(stream="rows", timeline=1, epoch=2, attempt=1)
    key = hf.EpochKey(owner, tried, 1, Link(1, None))
    staged = sink.prepare(spark.createDataFrame([(2, "other")], "n long, text string"), key)
    with pytest.raises(SinkForeign, match="another copy"):
        sink.commit(key, staged.handle)
    assert len(target.calls()) == 4


def test_a_local_folder_on_a_cluster_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.ForeachSink(lambda *_: None, path=tmp_path / "kept")
    schema = spark.createDataFrame([], "n long").schema
    with pytest.raises(NotSupported, match="shared=True"):
        sink.open(hf.SinkContext(hf.StreamIdentity("p", "u", "s"), schema, "append", spark, local=False))
