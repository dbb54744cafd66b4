"""Stages in streams: Python-side state that goes with the decision, whatever happens to an attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.epoch import Facts
from holdfast.errors import BadValue, StageUnserializable, StreamChanged, StreamFailed
from holdfast.repository import Decisions, LocalRepository
from holdfast.spark.stages import INLINE, StageKeeper
from holdfast.stages import MsgpackCodec, Stage, StageView
from holdfast.testing import CrashAt
from rig import Rig, SqliteTarget


class Tally(msgspec.Struct):
    rows: int = 0
    seen: list[int] = []
    padding: str = ""


def counted(df: DataFrame, stage: Any) -> DataFrame:
    numbers = [row.n for row in df.collect()]
    stage.state.rows += len(numbers)
    stage.state.seen.extend(sorted(numbers))  # in place: an attempt that fails must leave no trace of it
    return df.selectExpr("n", f"'{stage.state.rows}' AS text")


def rig(spark: SparkSession, folder: Path, stage: Any = None, on_epoch: Any = counted, **options: Any) -> Rig:
    target = SqliteTarget(folder / "out.db")
    return Rig(spark, folder, [target], stage=Stage(Tally()) if stage is None else stage, on_epoch=on_epoch, **options)


def decided(made: Rig) -> tuple[Tally, dict[str, Any]]:
    decision = Decisions(LocalRepository(made.repository)).newest("rows", 1)
    assert decision is not None
    record = Facts.of(decision).stage
    assert record is not None
    keeper = StageKeeper(Stage(Tally()), LocalRepository(made.repository), "rows", 1, 99)
    return keeper.view(keeper.load(record)).state, record


@pytest.mark.parametrize(
    ("point", "size"), [("durable", 0), ("decided", 0), ("durable", 3 * INLINE), ("decided", 3 * INLINE)]
)
def test_the_stage_counts_every_row_once_wherever_the_driver_dies(
    spark: SparkSession, tmp_path: Path, point: str, size: int
) -> None:
    made = rig(spark, tmp_path, Stage(Tally(padding="x" * size)))
    made.add(1, 2)
    made.run()
    made.add(3)
    made.crash(CrashAt(point))
    made.add(4, 5)
    made.run()
    state, record = decided(made)
    assert (state.rows, state.seen) == (5, [1, 2, 3, 4, 5])
    assert ("inline" in record) is (size == 0)
    assert made.targets[0].visible(spark, "n text") == [(1, "2"), (2, "2"), (3, "3"), (4, "5"), (5, "5")]


def test_a_failed_attempt_leaves_no_trace_in_the_state(spark: SparkSession, tmp_path: Path) -> None:
    failures = [0]

    def fails_once(df: DataFrame, stage: Any) -> DataFrame:
        made = counted(df, stage)
        failures[0] += 1
        if failures[0] == 2:
            raise ZeroDivisionError("on purpose")
        return made

    from holdfast.policy import RestartPolicy

    made = rig(spark, tmp_path, on_epoch=fails_once, restart=RestartPolicy.once())
    made.add(1)
    made.add(2)
    status = made.run()
    assert status.streams["rows"].restarts == 1
    assert decided(made)[0].seen == [1, 2]


def test_a_state_that_grows_moves_to_a_larger_file_and_the_old_one_goes(spark: SparkSession, tmp_path: Path) -> None:
    def grows(df: DataFrame, stage: Any) -> DataFrame:
        stage.state.padding += "x" * 20_000
        return df

    made = rig(spark, tmp_path, on_epoch=grows)
    for number in range(4):
        made.add(number)
    made.run()
    state, record = decided(made)
    assert len(state.padding) == 80_000
    files = {path.name for path in (made.repository / "stages").glob("*.blocks")}
    assert files == {record["blocks"]}


def test_a_stateful_stream_may_have_a_stage(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    def passed(df: DataFrame, stage: Any) -> DataFrame:
        stage.state.rows += df.count()
        return df

    target = SqliteTarget(tmp_path / "out.db", key=("text",))
    made = Rig(
        spark,
        tmp_path,
        [target],
        lambda df: df.groupBy("text").agg(f.count("*").alias("n")),
        "update",
        stage=Stage(Tally()),
        on_epoch=passed,
    )
    made.add(1, 1, 2)
    made.crash(CrashAt("decided"))
    made.add(1)
    made.run()
    assert decided(made)[0].rows == 3
    assert target.visible(spark, "text n") == [("row 1", 3), ("row 2", 1)]


def test_a_paused_driver_removes_no_state_of_a_newer_one_nor_of_a_stream_of_a_like_name(tmp_path: Path) -> None:
    repository, stage = LocalRepository(tmp_path), Stage(b"")
    first, second = (StageKeeper(stage, repository, "s", 1, lease) for lease in (1, 2))
    old = first.seal(StageView(b"a" * 50_000), first.load(None))
    new = second.seal(StageView(b"b" * 50_000), second.load(old.record))
    alike = StageKeeper(stage, repository, "s.t1.l1", 1, 1)
    like = alike.seal(StageView(b"c" * 50_000), alike.load(None))
    second.settle(new)
    first.settle(old)  # it wakes up
    assert StageKeeper(stage, repository, "s", 1, 3).load(new.record).data == new.data
    assert StageKeeper(stage, repository, "s.t1.l1", 1, 3).load(like.record).data == like.data
    for each in (first, second, alike):
        each.close()


@pytest.mark.parametrize("state", [{"seen": {1, 2}}, {"when": (1, 2)}])
def test_a_state_that_would_come_back_as_something_else_is_refused(state: Any) -> None:
    with pytest.raises(StageUnserializable, match="decoded to a different value"):
        Stage(state)


def test_keys_that_are_no_text_and_numbers_that_are_none_are_kept() -> None:
    stage = Stage({1: 2, 3: float("nan")})
    assert repr(stage.codec.decode(stage.initial)) == "{1: 2, 3: nan}"


def test_what_cannot_be_kept_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="belong together"):
        rig(spark, tmp_path, on_epoch=None).pipeline()
    with pytest.raises(BadValue, match="too many positional"):
        rig(spark, tmp_path, on_epoch=lambda df: df).pipeline()
    with pytest.raises(StageUnserializable):
        Stage(object())
    made = rig(spark, tmp_path, on_epoch=lambda *_: None)
    made.add(1)
    with pytest.raises(StreamFailed, match="expected a DataFrame of this epoch"):
        made.run()


def test_a_stage_is_not_dropped_or_changed_in_silence(spark: SparkSession, tmp_path: Path) -> None:
    made = rig(spark, tmp_path)
    made.add(1)
    made.run()
    made.options = {}
    with pytest.raises(StreamChanged, match="stage"):
        made.run()
    made.options = {"stage": Stage({}, MsgpackCodec(dict)), "on_epoch": counted}
    with pytest.raises(Exception, match="stage of stream 'rows' changed from 'Tally'"):
        made.run()
