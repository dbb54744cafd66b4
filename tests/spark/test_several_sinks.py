"""Several sinks of one stream: they prepare at the same time, and all of them get the same rows.

`SAME_ROWS` epochs (40) of a query that is not deterministic go into two sinks; set it to 500 for a long run.
"""

import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast import FileSink, RestartPolicy, SqliteSink
from holdfast.errors import FrozenRowsLost, SinkFailed, StreamFailed
from holdfast.spark import adapter, preparing
from holdfast.spark.context import StreamCallbacks
from rig import FilesTarget, Rig, SqliteTarget, Target

SAME_ROWS = int(os.environ.get("SAME_ROWS", "40"))


class Kept(hf.Sink):
    """Keeps its rows in memory, staged and visible, and calls a hook in `prepare`."""

    one_action = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.staged: dict[str, list[str]] = {}
        self.visible: dict[int, list[str]] = {}

    def rows(self, df: DataFrame) -> list[str]:
        return sorted(row.text for row in df.collect())

    def prepare(self, df: DataFrame, key: hf.EpochKey) -> hf.Staged:
        self.staged[str(key.attempt)] = found = self.rows(df)
        return hf.Staged({"attempt": str(key.attempt)}, len(found))

    def commit(self, key: hf.EpochKey, handle: dict[str, Any]) -> None:
        self.visible[key.epoch] = self.staged[handle["attempt"]]

    def abort(self, key: hf.EpochKey) -> None:
        pass

    def inspect(self, owner: hf.StreamIdentity, timeline: int) -> hf.SinkPosition:
        return hf.SinkPosition(max(self.visible, default=0))


def rig_of(spark: SparkSession, folder: Path, *sinks: hf.Sink, query: Any = None, **options: Any) -> Rig:
    return Rig(spark, folder, [Target(lambda sink=sink: sink) for sink in sinks], query, **options)  # type: ignore[misc]


def with_uuid(df: DataFrame) -> DataFrame:
    """Each computation gives other rows: `rand` would not, its seed is in the plan."""
    made = f.udf(lambda n: f"{n} {uuid.uuid4()}", "string").asNondeterministic()
    return df.repartition(3).select("n", made("n").alias("text"))


@pytest.fixture
def froze(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way rows were frozen, for each epoch."""
    found: list[str] = []
    for name in ("frozen", "frozen_on_use"):
        real = getattr(adapter, name)

        def noted(df: DataFrame, real: Any = real, name: str = name) -> Any:
            found.append(name)
            return real(df)

        monkeypatch.setattr(adapter, name, noted)
    return found


def cached(spark: SparkSession) -> list[int]:
    """The RDDs that have blocks."""
    return [each.id() for each in spark.sparkContext._jsc.sc().getRDDStorageInfo()]


def test_rows_of_a_query_that_is_not_deterministic_are_the_same_in_all_sinks(
    spark: SparkSession, tmp_path: Path, froze: list[str]
) -> None:
    targets = [FilesTarget(tmp_path / "one"), SqliteTarget(tmp_path / "two.db")]
    rig = Rig(spark, tmp_path, targets, with_uuid)
    before = len(cached(spark))
    for _ in range(SAME_ROWS):
        rig.add_more(7)
    rig.run()
    one, two = (each.visible(spark, columns="n text") for each in targets)
    assert [n for n, _ in one] == sorted(rig.rows)
    assert one == two
    assert froze == ["frozen_on_use"] * SAME_ROWS
    time.sleep(0.2)  # blocks are freed in the background
    assert len(cached(spark)) <= before


def test_a_stateful_query_is_computed_before_its_sinks(spark: SparkSession, tmp_path: Path, froze: list[str]) -> None:
    def totals(df: DataFrame) -> DataFrame:
        tagged = f.udf(lambda n: f"{n} {uuid.uuid4()}", "string").asNondeterministic()
        counted = df.groupBy((f.col("n") % 3).alias("n")).agg(f.count("*").alias("c"))
        return counted.select("n", f.concat_ws(" ", "c", tagged("n")).alias("text"))

    targets = [FilesTarget(tmp_path / name, changelog=True) for name in ("one", "two")]
    rig = Rig(spark, tmp_path, targets, totals, output_mode="update")
    for _ in range(4):
        rig.add_more(6)
    rig.run()
    one, two = (each.visible(spark, columns="n text") for each in targets)
    assert one == two
    assert sorted(int(text.split()[0]) for _, text in one) == sorted([2, 4, 6, 8] * 3)  # the state advanced once
    assert froze == ["frozen"] * 4


def test_a_user_written_sink_that_may_run_two_actions_gets_rows_that_were_computed_before(
    spark: SparkSession, tmp_path: Path, froze: list[str]
) -> None:
    class Twice(Kept):
        one_action = False

        def rows(self, df: DataFrame) -> list[str]:
            found = super().rows(df)
            assert found == super().rows(df)
            return found

    one, two = Kept("one"), Twice("two")
    rig = rig_of(spark, tmp_path, one, two, query=with_uuid)
    rig.add(1, 2, 3)
    rig.run()
    assert one.visible == two.visible
    assert froze == ["frozen"]


class Blocks:
    """The blocks of the frozen rows are lost while a sink uses them, and computed again for the other one."""

    def __init__(self, spark: SparkSession, go: Path) -> None:
        self.context: Any = spark.sparkContext._jsc.sc()
        self.go = go
        self.before = {each.id() for each in self.context.getRDDStorageInfo()}

    def lose(self) -> None:
        deadline = time.monotonic() + 60
        while not (new := [each for each in self.context.getRDDStorageInfo() if each.id() not in self.before]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for each in new:
            self.context.unpersistRDD(each.id(), True)


def test_rows_that_were_computed_again_between_two_sinks_fail_the_attempt(
    spark: SparkSession, tmp_path: Path, froze: list[str]
) -> None:
    """Equal counts prove nothing: each sink has one row, and they differ. The next attempt computes the rows first."""
    go = tmp_path / "go"
    blocks = Blocks(spark, go)

    class Slow(Kept):
        """Its job does not end before the other sink has had its turn."""

        def rows(self, df: DataFrame) -> list[str]:
            path = str(go)

            def wait(text: str) -> str:
                for _ in range(600):
                    if os.path.exists(path):  # noqa: PTH110 - in a worker
                        break
                    time.sleep(0.1)
                return text

            return super().rows(df.select(f.udf(wait, "string", useArrow=False)("text").alias("text")))

    class Loses(Kept):
        def rows(self, df: DataFrame) -> list[str]:
            if not go.exists():
                blocks.lose()
            try:
                return super().rows(df)
            finally:
                go.touch()

    one, two = Slow("one"), Loses("two")
    rig = rig_of(spark, tmp_path, one, two, query=lambda df: with_uuid(df).coalesce(1))
    rig.add(1)
    errors: list[Exception] = []
    callbacks = StreamCallbacks(on_restart=lambda _, error, __: errors.append(error))
    rig.run(restart=RestartPolicy.bounded(1, 60), callbacks=callbacks)
    (error,) = errors
    assert isinstance(error, FrozenRowsLost)
    assert (error.computed, error.given) == (2, 1)
    first = "rows timeline 1 epoch 1 attempt 1"
    assert one.staged[first] != two.staged[first], "this is what must never be decided"
    assert one.visible == two.visible
    assert len(one.visible[1]) == 1
    assert froze == ["frozen_on_use", "frozen"]


@pytest.mark.parametrize(
    ("master", "safe"),
    [
        ("local", True),
        ("local[4]", True),
        ("local[*]", True),
        ("local[2,3]", False),  # repeats failed tasks, whose rows are not counted
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
    ],
)
def test_rows_are_frozen_on_use_only_in_one_jvm_that_repeats_no_task(master: str, safe: bool) -> None:
    class Context:
        def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
            return {}

    class Session:
        sparkContext = Context()  # noqa: N815

    Session.sparkContext.master = master  # type: ignore[attr-defined]
    assert adapter.can_freeze_on_use(Session()) is safe  # type: ignore[arg-type]


class Noted(Kept):
    """Notes what its thread is, as Spark sees it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seen: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()

    def prepare(self, df: DataFrame, key: hf.EpochKey) -> hf.Staged:
        context, names = df.sparkSession.sparkContext, ("spark.jobGroup.id", "streaming.sql.batchId")
        own = df.sparkSession._jsparkSession.equals(df._jdf.sparkSession())
        self.seen.append((own, *(context.getLocalProperty(name) for name in names)))
        self.threads.add(threading.get_ident())
        return super().prepare(df, key)


def test_every_sink_runs_its_jobs_as_the_query(spark: SparkSession, tmp_path: Path) -> None:
    sinks = [Noted(name) for name in ("one", "two", "three")]
    rig = rig_of(spark, tmp_path, *sinks)
    for n in (1, 2, 3):
        rig.add(n)
    rig.run()
    first = sinks[0].seen
    assert [each.seen for each in sinks] == [first] * 3
    assert [own for own, _, _ in first] == [True] * 3, "the session of the first batch is that of all batches"
    assert [batch for _, _, batch in first] == ["0", "1", "2"]
    assert len({group for _, group, _ in first}) == 1
    assert first[0][1]
    deadline = time.monotonic() + 30
    while any(each.name == "holdfast-sinks-rows" for each in threading.enumerate()):
        assert time.monotonic() < deadline, "the threads end with the query"
        time.sleep(0.02)


def test_a_kill_cancels_the_jobs_of_all_sinks(spark: SparkSession, tmp_path: Path) -> None:
    """They are in the job group of the query; otherwise the kill would wait for ten minutes."""
    started = tmp_path / "started"
    mark = str(started)

    def forever(n: int) -> int:
        open(mark, "w").close()  # noqa: PTH123 - in a worker
        time.sleep(600)
        return n

    def slow(df: DataFrame) -> DataFrame:
        return df.select(f.udf(forever, "long", useArrow=False)("n").alias("n"), "text")

    rig = rig_of(spark, tmp_path, FileSink(tmp_path / "one"), SqliteSink(tmp_path / "o.db", "rows"), query=slow)
    rig.add(1)
    handle = rig.pipeline().start(spark, checkpoint_every=None)
    deadline = time.monotonic() + 120
    while not started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    began = time.monotonic()
    handle.kill()
    while spark.sparkContext.statusTracker().getActiveJobsIds():
        assert time.monotonic() - began < 120
        time.sleep(0.05)
    rig.query = lambda df: df
    rig.targets = [FilesTarget(tmp_path / "one"), SqliteTarget(tmp_path / "o.db")]
    rig.run()
    assert rig.visible() == [[1], [1]]


def test_a_stop_from_within_any_sink_ends_the_stream_after_its_epoch(spark: SparkSession, tmp_path: Path) -> None:
    class Stops(Kept):
        def prepare(self, df: DataFrame, key: hf.EpochKey) -> hf.Staged:
            pipeline.handle.stop()
            return super().prepare(df, key)

    one, two = Kept("one"), Stops("two")  # the second one is in a thread of its own
    rig = rig_of(spark, tmp_path, one, two)
    rig.add(1)
    pipeline = rig.pipeline()
    handle = pipeline.start(spark, checkpoint_every=None)
    handle.await_termination(120)
    assert one.visible == two.visible == {1: ["row 1"]}


def test_the_sink_that_failed_is_blamed_and_another_failure_is_logged(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Kept):
        def prepare(self, df: DataFrame, key: hf.EpochKey) -> hf.Staged:
            raise SinkFailed(sink=self.name, action="prepare", why=f"{self.name} is out of order")

    rig = rig_of(spark, tmp_path, Kept("one"), Fails("two"), Fails("three"))
    rig.add(1)
    with pytest.raises(StreamFailed) as caught:
        rig.run()
    assert (caught.value.failure, caught.value.sink) == ("sink", "two")
    assert "sink three could not prepare" in caplog.text
    assert preparing.__name__ in {record.name for record in caplog.records}
