"""A restored folder stands by itself: Spark goes on from it after the live one is gone."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from counting import Counting
from holdfast import FileSink, Pipeline
from holdfast.restore import plan_restore, restore_stream
from holdfast.spark import adapter


@pytest.mark.parametrize("savepoint", [None, "kept"])
def test_transform_with_state_goes_on_without_the_live_folder(
    spark: SparkSession, tmp_path: Path, savepoint: str | None
) -> None:
    counting = Counting(tmp_path)
    pipeline = Pipeline("counts", tmp_path / "root")
    pipeline.stream(counting.build, name="rows", sinks=FileSink(tmp_path / "out", changelog=True), output_mode="update")
    counting.add("1", "aab")
    handle = pipeline.start(spark)
    handle.drain(savepoint)
    handle.await_termination()
    target = tmp_path / "with space" / "100% näu"
    restore_stream(pipeline.repository, plan_restore(pipeline.repository, savepoint or 1), "rows", target)
    live = tmp_path / "root" / "counts" / "timelines" / "1" / "streams" / "rows" / "spark"
    kept = (live / "state/0/_metadata/v2/0").read_bytes()
    shutil.rmtree(live)
    counting.add("2", "abc")
    settings: dict[str, str] = {}
    if not adapter.FACTS.finds_state_format:
        with pytest.raises(Exception, match=r"UnsupportedLogVersion|CANNOT_LOAD_STATE_STORE"):
            counting.run(spark, target)
        settings = adapter.STATE
    with adapter.with_settings(spark, settings):
        assert counting.run(spark, target) == [("a", 3), ("b", 2), ("c", 1)]
    assert str(live).encode() in kept
    assert not [path for path in target.rglob("_metadata/v2/*") if str(live).encode() in path.read_bytes()]
