"""A sink that a user wrote, and wrote wrongly: what is wrong is said of it by its name, before anything is decided."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import BadValue, HoldfastError, StreamFailed
from rig import Rig


class Own(hf.Sink):
    """Answers as a test wants it."""

    def __init__(self, staged: Any = None, standing: Any = None) -> None:
        super().__init__("mine")
        self.staged = staged
        self.standing = hf.SinkPosition() if standing is None else standing

    def prepare(self, df: DataFrame, key: hf.EpochKey) -> hf.Staged:
        self.context.reach("staging")
        found: hf.Staged = self.staged
        return found

    def commit(self, key: hf.EpochKey, handle: dict[str, Any]) -> None:
        raise AssertionError("nothing may be decided")

    def abort(self, key: hf.EpochKey) -> None:
        pass

    def inspect(self, owner: hf.StreamIdentity, timeline: int) -> hf.SinkPosition:
        found: hf.SinkPosition = self.standing
        return found


class Unnamed(Own):
    def __init__(self) -> None:
        self.path = "somewhere"


class Unopened(Own):
    def open(self, context: hf.SinkContext) -> None:
        pass


def refused(spark: SparkSession, folder: Path, sink: hf.Sink) -> str:
    """Run one epoch into a sink and return what is said of it."""
    (folder / "in").mkdir()
    (folder / "in" / "1.json").write_text('{"n": 1}')
    pipeline = hf.Pipeline("p", folder / "root")
    pipeline.stream(lambda s: s.readStream.schema("n long").json(str(folder / "in")), name="rows", sinks=sink)
    with pytest.raises(HoldfastError) as caught:
        pipeline.run(spark, available_now=True)
    if isinstance(caught.value, StreamFailed):
        assert "a restart cannot help" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("staged", [None, {"rows": 1}])
def test_prepare_that_returns_something_else(staged: Any, spark: SparkSession, tmp_path: Path) -> None:
    said = refused(spark, tmp_path, Own(staged))
    assert "prepare() of sink 'mine'" in said and "return hf.Staged(" in said


@pytest.mark.parametrize(
    "value",
    [object(), b"digest", (1, 2), {1: "a"}, float("nan"), {"a"}, Path("x")],
    ids=lambda value: type(value).__name__,
)
def test_a_handle_that_would_not_come_back_as_it_was(value: Any, spark: SparkSession, tmp_path: Path) -> None:
    """A commit in this process would get it as it is, one after a restart as JSON made of it."""
    assert "handle of sink 'mine'" in refused(spark, tmp_path, Own(hf.Staged({"value": value}, rows=1)))


def test_inspect_that_returns_something_else(spark: SparkSession, tmp_path: Path) -> None:
    assert "inspect() of sink 'mine'" in refused(spark, tmp_path, Own(standing=3))


def test_open_that_forgets_the_context(spark: SparkSession, tmp_path: Path) -> None:
    assert "super().open(context)" in refused(spark, tmp_path, Unopened())


def test_a_constructor_that_forgets_the_name(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("p", tmp_path)
    with pytest.raises(BadValue, match=r"call super\(\).__init__\(name\) in Unnamed.__init__"):
        pipeline.stream(lambda s: s, name="rows", sinks=Unnamed())


def test_what_a_streams_function_raises_says_which_stream_it_was(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("p", tmp_path / "root")
    pipeline.stream(
        lambda s: s.readStream.schema("n long").json(str(tmp_path / "nowhere")),
        name="rows",
        sinks=hf.FileSink(tmp_path / "out"),
    )
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND") as caught:
        pipeline.run(spark, available_now=True)
    assert caught.value.__notes__ == ["in the function of stream 'rows'"]


class RddSink(hf.Sink):
    """Goes around Spark's Datasets, as a user may."""

    def prepare(self, df: DataFrame, key: hf.EpochKey) -> hf.Staged:
        rows = df.rdd.collect()
        assert sorted(rows) == sorted(df.rdd.collect())  # twice, and the same
        return hf.Staged({"rows": len(rows)}, len(rows))

    def commit(self, key: hf.EpochKey, handle: dict[str, Any]) -> None:
        self.epoch = key.epoch

    def abort(self, key: hf.EpochKey) -> None:
        pass

    def inspect(self, owner: hf.StreamIdentity, timeline: int) -> hf.SinkPosition:
        return hf.SinkPosition(getattr(self, "epoch", 0))


def test_a_sink_that_goes_around_datasets_does_not_hang_a_stateful_stream(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [], lambda df: df.groupBy("text").count(), output_mode="update")
    rig.add(1, 2)
    pipeline = hf.Pipeline("torment", tmp_path / "root")
    sink = RddSink("rdd")
    pipeline.stream(rig.build, name="rows", sinks=sink, output_mode="update")
    pipeline.start(spark, available_now=True).await_termination(120)
    assert sink.epoch == 1
