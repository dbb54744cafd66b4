"""What happens when something fails while the pipeline runs: restarts within a budget, quarantine, a gracious stop."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast import PipelineHandle
from holdfast.errors import BadInput, NotSupported, SinkFailed, StorageFailed, StreamFailed
from holdfast.policy import Backoff, RestartPolicy
from holdfast.repository import Decisions, GapRecord, Gaps, LocalRepository
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.spark.context import StreamCallbacks
from holdfast.spark.pipeline import Pipeline, exactly_once
from holdfast.spark.stages import StageKeeper
from rig import FilesTarget, Rig, SqliteTarget
from support import eventually

QUICK = Backoff(first=0.01, longest=0.02)


class Flaky(FileSink):
    """Fails in `prepare` or `commit` as often as it is told."""

    def __init__(self, path: Path, *, prepares: int = 0, commits: int = 0, name: str | None = None) -> None:
        super().__init__(path, name=name)
        self.left = {"prepare": prepares, "commit": commits}

    def _maybe(self, what: str) -> None:
        if self.left[what] > 0:
            self.left[what] -= 1
            raise SinkFailed(sink=self.name, action=what, why="connection refused")

    def prepare(self, df: Any, key: Any) -> Any:
        self._maybe("prepare")
        return super().prepare(df, key)

    def commit(self, key: Any, handle: Any) -> None:
        self._maybe("commit")
        super().commit(key, handle)


def rigged(spark: SparkSession, folder: Path, sink: FileSink, **options: Any) -> tuple[Rig, FilesTarget]:
    target = FilesTarget(sink.path)
    target.make = lambda: sink
    return Rig(spark, folder, [target], **options), target


@pytest.mark.parametrize("what", ["prepares", "commits"])
def test_a_failing_sink_is_tried_again_within_the_budget(what: str, spark: SparkSession, tmp_path: Path) -> None:
    told: list[tuple[str, str, int]] = []
    callbacks = StreamCallbacks(on_restart=lambda stream, error, n: told.append((stream, type(error).__name__, n)))
    rig, target = rigged(spark, tmp_path, Flaky(tmp_path / "out", **{what: 2}))
    rig.add(1)
    rig.add(2)
    status = rig.run(restart=RestartPolicy.bounded(3, 60), backoff=QUICK, callbacks=callbacks)
    assert target.visible(spark) == [1, 2]
    assert (status.streams["rows"].state, status.streams["rows"].restarts) == ("ended", 2)
    kind = "SinkFailed" if what == "prepares" else "InDoubt"
    assert told == [("rows", kind, 1), ("rows", kind, 2)]


def test_an_exhausted_budget_is_an_error_that_says_where_and_what_next(spark: SparkSession, tmp_path: Path) -> None:
    told: list[str] = []
    callbacks = StreamCallbacks(on_exhausted=lambda stream, _: told.append(stream))
    rig, target = rigged(spark, tmp_path, Flaky(tmp_path / "out", prepares=99, name="warehouse"))
    rig.add(1)
    with pytest.raises(StreamFailed) as caught:
        rig.run(restart=RestartPolicy.bounded(2, 60), backoff=QUICK, callbacks=callbacks)
    error = caught.value
    assert (error.stream, error.epoch, error.sink, error.failure, error.restarts) == ("rows", 1, "warehouse", "sink", 2)
    for word in ("'rows'", "epoch 1", "'warehouse'", "at most 2 in 60 s", "Next: ", "run again"):
        assert word in str(error)
    assert told == ["rows"]
    assert target.visible(spark) == []


def test_budgets_are_kept_by_kind_of_failure(spark: SparkSession, tmp_path: Path) -> None:
    """No restart is granted to user code here, and many to sinks."""

    def broken(df: DataFrame) -> DataFrame:
        return df.withColumn("n", f.udf(lambda n: n // 0, "long", useArrow=False)("n"))

    rig, _ = rigged(spark, tmp_path, Flaky(tmp_path / "out"), query=broken)
    rig.add(1)
    policies = {"user code": RestartPolicy.never(), "sink": RestartPolicy.bounded(50, 60)}
    with pytest.raises(StreamFailed, match="ZeroDivisionError") as caught:
        rig.run(restart=policies, backoff=QUICK)
    assert (caught.value.failure, caught.value.restarts) == ("user code", 0)


def test_a_poison_batch_is_passed_over_where_that_was_allowed(spark: SparkSession, tmp_path: Path) -> None:
    told: list[GapRecord] = []

    def poisoned(df: DataFrame) -> DataFrame:
        return df.withColumn("n", f.udf(lambda n: n // (n - 2) * 0 + n, "long", useArrow=False)("n"))

    rig, target = rigged(spark, tmp_path, Flaky(tmp_path / "out"), query=poisoned, quarantine_after=3)
    for n in (1, 2, 3):
        rig.add(n, n + 10)
    callbacks = StreamCallbacks(on_quarantine=lambda _, gap: told.append(gap))
    rig.run(restart=RestartPolicy.bounded(5, 60), backoff=QUICK, callbacks=callbacks)
    assert target.visible(spark) == [1, 3, 11, 13]
    (gap,) = Gaps(LocalRepository(rig.repository)).all("rows", 1)
    assert (gap.kind, gap.epoch, gap.facts["start"], gap.facts["end"]) == (
        "quarantined",
        2,
        ['{"logOffset":0}'],
        ['{"logOffset":1}'],
    )
    assert "ZeroDivisionError" in gap.why
    assert told == [gap]
    rig.add(4)
    rig.run()
    assert target.visible(spark) == [1, 3, 4, 11, 13]


def test_a_stateful_stream_is_quarantined_for_its_sink_only(spark: SparkSession, tmp_path: Path) -> None:
    """Its state goes on with the rows that the sink never got."""

    def totals(df: DataFrame) -> DataFrame:
        return df.groupBy(f.lit(1).alias("k")).agg(f.sum("n").alias("n"))

    sink = Flaky(tmp_path / "out", prepares=2)
    sink.changelog = True
    rig, target = rigged(spark, tmp_path, sink, query=totals, output_mode="update", quarantine_after=2)
    rig.add(1)
    rig.add(2)
    rig.run(restart=RestartPolicy.bounded(5, 60), backoff=QUICK)
    assert target.visible(spark) == [3]  # 1 was passed over; 1 + 2 arrived


def test_an_outage_is_not_passed_over_epoch_after_epoch(spark: SparkSession, tmp_path: Path) -> None:
    """One epoch is: nobody can tell yet. The next one is not, in this process or in another."""
    rig, target = rigged(spark, tmp_path, Flaky(tmp_path / "out", prepares=99), quarantine_after=2)
    for n in (1, 2, 3):
        rig.add(n)
    for _ in range(2):
        with pytest.raises(StreamFailed) as caught:
            rig.run(restart=RestartPolicy.bounded(4, 60), backoff=QUICK)
        assert (caught.value.epoch, caught.value.failure) == (2, "sink")
        assert "epoch 1 was quarantined" in str(caught.value)
    assert [gap.epoch for gap in Gaps(LocalRepository(rig.repository)).all("rows", 1)] == [1]
    rig.targets[0].make = lambda: FileSink(tmp_path / "out")
    rig.run()
    assert target.visible(spark) == [2, 3]


def test_two_poison_epochs_in_a_row_need_a_word(spark: SparkSession, tmp_path: Path) -> None:
    def poisoned(df: DataFrame) -> DataFrame:
        return df.withColumn("n", f.udf(lambda n: n if n > 2 else n // 0, "long", useArrow=False)("n"))

    rig, target = rigged(spark, tmp_path, Flaky(tmp_path / "out"), query=poisoned, quarantine_after=2)
    for n in (1, 2, 3):
        rig.add(n)
    with pytest.raises(StreamFailed, match=r"--accept gaps"):
        rig.run(restart=RestartPolicy.bounded(4, 60), backoff=QUICK)
    rig.run(restart=RestartPolicy.bounded(4, 60), backoff=QUICK, accept=("gaps",))
    assert target.visible(spark) == [3]
    assert [gap.epoch for gap in Gaps(LocalRepository(rig.repository)).all("rows", 1)] == [1, 2]


def test_trouble_of_the_clean_up_is_told_and_fails_no_epoch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every sink has the epoch: a restart would replay it and fail again."""

    def full(*_: object, **__: object) -> None:
        raise StorageFailed(action="clear", key="x", why="Permission denied")

    monkeypatch.setattr("holdfast.spark.epochs.PRUNE_EVERY", 1)
    monkeypatch.setattr(Decisions, "prune", full)
    monkeypatch.setattr(StageKeeper, "settle", full)
    sink = Flaky(tmp_path / "out")
    rig, target = rigged(spark, tmp_path, sink, stage=0, on_epoch=lambda df, _: df)
    for n in (1, 2):
        rig.add(n)
    assert rig.run().streams["rows"].epoch == 2
    assert target.visible(spark) == [1, 2]
    assert len([each for each in caplog.messages if "Permission denied" in each]) == 4


def test_one_streams_failures_do_not_stop_the_others(spark: SparkSession, tmp_path: Path) -> None:
    """Eight streams with two sinks each in one process; one fails now and then."""
    rig = Rig(spark, tmp_path, [])
    for n in range(3):
        rig.add(n)
    pipeline = Pipeline("eight", tmp_path / "root", restart=RestartPolicy.bounded(5, 60), backoff=QUICK)
    for number in range(8):
        folder = tmp_path / f"s{number}"
        first = Flaky(folder / "files", prepares=1 if number == 3 else 0, commits=1 if number == 5 else 0)
        pipeline.stream(rig.build, name=f"s{number}", sinks=[first, SqliteSink(tmp_path / f"{number}.db", "rows")])
    status = pipeline.run(spark, available_now=True)
    assert {name: each.restarts for name, each in status.streams.items() if each.restarts} == {"s3": 1, "s5": 1}
    for number in range(8):
        assert FilesTarget(tmp_path / f"s{number}" / "files").visible(spark) == [0, 1, 2]
        assert SqliteTarget(tmp_path / f"{number}.db").visible() == [0, 1, 2]


def test_a_stream_that_gives_up_ends_the_run_and_the_others_end_at_an_epochs_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, [])
    rig.add(1)
    pipeline = Pipeline("two", tmp_path / "root", restart=RestartPolicy.never())
    pipeline.stream(rig.build, name="good", sinks=[FileSink(tmp_path / "good")])
    pipeline.stream(rig.build, name="bad", sinks=[Flaky(tmp_path / "bad", prepares=99)])
    with pytest.raises(StreamFailed, match="'bad'"):
        pipeline.run(spark)  # for ever, but for the failure
    assert FilesTarget(tmp_path / "good").visible(spark) in ([], [1])


def test_stop_ends_at_an_epochs_end(spark: SparkSession, tmp_path: Path) -> None:
    """The epoch that is under way is finished, Spark's commit included; the next run has nothing to replay."""
    entered, go_on = threading.Event(), threading.Event()

    def slow(point: str) -> None:
        if point == "all prepared":
            entered.set()
            assert go_on.wait(300)

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    for n in range(5):
        rig.add(n)
    handle = rig.pipeline().start(spark, reach=slow)
    assert entered.wait(120)
    stopper = threading.Thread(target=handle.stop)
    stopper.start()
    time.sleep(0.2)
    assert rig.visible() == [[]]
    go_on.set()
    stopper.join(120)
    assert handle.await_termination(120).streams["rows"].state == "stopped"
    assert rig.visible() == [[0]]
    again = rig.pipeline().start(spark, available_now=True)
    assert not again.recovery["rows"].replays
    again.await_termination(60)
    assert rig.visible() == [[0, 1, 2, 3, 4]]


def test_a_time_limit_of_the_users_on_stopping_a_query_is_borne(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark raises when it is reached. The lock is kept until the query has ended all the same."""
    entered, go_on = threading.Event(), threading.Event()

    def slow(point: str) -> None:
        if point == "all prepared":
            entered.set()
            assert go_on.wait(120)

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    spark.conf.set("spark.sql.streaming.stopTimeout", "100ms")
    try:
        handle = rig.pipeline().start(spark, reach=slow)
        assert entered.wait(120)
        cutter = threading.Thread(target=handle.kill)
        cutter.start()
        eventually(lambda: any("has not ended yet" in each for each in caplog.messages), 30)
    finally:
        spark.conf.unset("spark.sql.streaming.stopTimeout")
    assert not handle.wait(0)
    go_on.set()
    cutter.join(120)
    assert handle.wait(120)
    rig.run()
    assert rig.visible() == [[1]]


def test_an_idle_stream_stops_at_once(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    with rig.pipeline().start(spark) as handle:
        eventually(lambda: handle.status().streams["rows"].epoch == 1)
        time.sleep(0.3)
    assert handle.await_termination(1).streams["rows"].state == "stopped"


def test_leaving_the_block_raises_what_made_a_stream_give_up(spark: SparkSession, tmp_path: Path) -> None:
    rig, _ = rigged(spark, tmp_path, Flaky(tmp_path / "out", prepares=9))
    rig.add(1)
    with pytest.raises(StreamFailed, match="connection refused"), rig.pipeline().start(spark) as handle:
        assert handle.wait(120)
    with pytest.raises(KeyError, match="mine"), rig.pipeline().start(spark) as handle:
        assert handle.wait(120)
        raise KeyError("mine")  # nothing else hides it


def test_a_stream_that_is_restarting_is_drained_too(spark: SparkSession, tmp_path: Path) -> None:
    """The query that had failed was taken for the one to wait for."""
    restarting = threading.Event()
    rig, target = rigged(spark, tmp_path, Flaky(tmp_path / "out", prepares=1))
    for n in (1, 2, 3, 4):
        rig.add(n)
    handle = rig.pipeline(
        restart=RestartPolicy.once(),
        backoff=Backoff(first=0.2, longest=0.2),
        callbacks=StreamCallbacks(on_restart=lambda *_: restarting.set()),
    ).start(spark)
    assert restarting.wait(120)
    handle.drain(timeout=120)
    assert target.visible(spark) == [1, 2, 3, 4]


def test_a_stream_that_fails_while_it_is_drained_is_drained_after_its_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Waiting(Flaky):
        def prepare(self, df: Any, key: Any) -> Any:
            if self.left["prepare"]:
                entered.set()
                assert go_on.wait(120)
            return super().prepare(df, key)

    rig, target = rigged(spark, tmp_path, Waiting(tmp_path / "out", prepares=1))
    for n in (1, 2, 3, 4):
        rig.add(n)
    handle = rig.pipeline(restart=RestartPolicy.once(), backoff=QUICK).start(spark)
    assert entered.wait(120)
    drainer = threading.Thread(target=handle.drain, kwargs={"timeout": 120})
    drainer.start()
    time.sleep(0.5)
    go_on.set()
    drainer.join(120)
    assert target.visible(spark) == [1, 2, 3, 4]


def test_an_exit_in_a_streams_function_ends_its_restart_with_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """The thread died of it, and the run ended as if all were well."""
    rig, _ = rigged(spark, tmp_path, Flaky(tmp_path / "out", prepares=1))
    rig.add(1)
    query, built = rig.query, []

    def leaving(df: DataFrame) -> DataFrame:
        built.append(df)
        if len(built) > 1:
            raise SystemExit("no licence")
        return query(df)

    rig.query = leaving
    with pytest.raises(StreamFailed, match="no licence") as caught:
        rig.run(restart=RestartPolicy.bounded(5, 60), backoff=QUICK)
    assert (caught.value.failure, caught.value.restarts) == ("refused", 1)
    rig.query = query
    assert rig.run().streams["rows"].state == "ended"


def test_nobody_acknowledges_for_a_stream_before_its_recovery_is_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that is being replaced may decide the next epoch until its slot is closed."""
    from holdfast.spark.recovering import StreamRecovery
    from holdfast.spark.slots import AttemptSlots

    clear, recover, recoveries, seen = AttemptSlots.clear, StreamRecovery.recover, [], []

    def recovering(self: StreamRecovery) -> Any:
        recoveries.append(self)
        found = recover(self)
        seen.append(self._acknowledger.at_cut)
        return found

    def watched(self: AttemptSlots, *args: Any) -> Any:
        seen.append(recoveries[-1]._acknowledger.at_cut)
        return clear(self, *args)

    monkeypatch.setattr(StreamRecovery, "recover", recovering)
    monkeypatch.setattr(AttemptSlots, "clear", watched)
    rig, target = rigged(spark, tmp_path, Flaky(tmp_path / "out", prepares=1))
    rig.add(1)
    runner = rig.run(restart=RestartPolicy.once(), backoff=QUICK)
    assert runner.streams["rows"].state == "ended"
    assert seen == [False, True, False, True]
    assert target.visible(spark) == [1]


def test_one_line_in_place_of_write_stream(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [])
    rig.add(1, 2)
    df = rig.build(spark)
    handle = exactly_once(
        df, name="one", sinks=[FileSink(tmp_path / "out")], root=tmp_path / "root", trigger={"availableNow": True}
    ).start()
    handle.await_termination(60)
    assert FilesTarget(tmp_path / "out").visible(spark) == [1, 2]


def test_a_second_run_in_the_same_process_is_refused_while_the_first_lasts(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast.errors import Locked

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    with rig.pipeline().start(spark):
        with pytest.raises(Locked, match="this process"):
            rig.run()
    rig.run()


def test_settings_of_the_session_are_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast.spark import adapter

    names = [*adapter.FAST_FILES, *adapter.STATE]
    before = [adapter.setting(spark, name) for name in names]
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    rig.run()
    assert [adapter.setting(spark, name) for name in names] == before == [None] * len(names)


def test_new_streams_keep_their_state_in_rocksdb_unless_the_user_says_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    def totals(df: DataFrame) -> DataFrame:
        return df.groupBy("text").count().withColumnRenamed("count", "n")

    for name, provider in (("ours", None), ("theirs", "HDFSBackedStateStoreProvider")):
        target = FilesTarget(tmp_path / name / "out", changelog=True)
        rig = Rig(spark, tmp_path / name, [target], totals, output_mode="update")
        rig.add(1)
        if provider:
            spark.conf.set(
                "spark.sql.streaming.stateStore.providerClass",
                f"org.apache.spark.sql.execution.streaming.state.{provider}",
            )
        try:
            rig.run()
        finally:
            spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        rig.add(2)
        rig.run()  # as it was first started, whatever the session says now
        found = {each.suffix for each in (rig.checkpoint / "state/0").rglob("*") if not each.name.startswith(".")}
        assert (".changelog" in found) == (provider is None)
        assert (".delta" in found) == (provider is not None)


REFUSED: dict[str, Callable[[Pipeline, Path], object]] = {
    "socket": lambda p, t: p.stream(
        lambda spark: spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 1).load(),
        name="x",
        sinks=FileSink(t / "x"),
    ),
    "continuous": lambda p, t: p.stream(
        lambda spark: spark.readStream.format("rate").load(),
        name="x",
        sinks=FileSink(t / "x"),
        trigger={"continuous": "1 second"},
    ),
    "real time": lambda p, t: p.stream(
        lambda spark: spark.readStream.format("rate").load(),
        name="x",
        sinks=FileSink(t / "x"),
        trigger={"realTime": "1 second"},
    ),
    "asynchronous progress": lambda p, t: p.stream(
        lambda spark: spark.readStream.format("rate").load(),
        name="x",
        sinks=FileSink(t / "x"),
        options={"asyncProgressTrackingEnabled": "true"},
    ),
    "update without key": lambda p, t: p.stream(
        lambda spark: spark.readStream.format("rate").load().groupBy("value").count(),
        name="x",
        sinks=SqliteSink(t / "x.db", "x"),
        output_mode="update",
    ),
    "complete into files": lambda p, t: p.stream(
        lambda spark: spark.readStream.format("rate").load().groupBy("value").count(),
        name="x",
        sinks=FileSink(t / "x"),
        output_mode="complete",
    ),
    "object store": lambda *_: FileSink("s3://bucket/x"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_not_hold_is_refused_with_its_reason(what: str, spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("refused", tmp_path / "root")
    with pytest.raises(NotSupported) as caught:
        REFUSED[what](pipeline, tmp_path)
        pipeline.run(spark, available_now=True)
    assert len(caught.value.why) > 20


def test_too_few_batches_kept_by_spark_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "5")
    try:
        with pytest.raises(NotSupported, match="at least 10"):
            rig.run()
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")


def test_complete_replaces_and_the_old_result_stays_until_then(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast.testing import CrashAt

    def totals(df: DataFrame) -> DataFrame:
        return df.groupBy(f.lit(1).alias("k")).agg(f.sum("n").alias("n"))

    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")], totals, output_mode="complete")
    rig.add(1)
    rig.run()
    rig.add(2)
    rig.crash(CrashAt("committing"))
    assert rig.visible() == [[1]]
    rig.run()
    assert rig.visible() == [[3]]


def test_a_local_folder_on_a_cluster_is_refused_unless_it_is_shared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each machine would have a folder of its own."""
    from holdfast.spark import adapter

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    monkeypatch.setattr(adapter, "is_local", lambda _: False)
    with pytest.raises(NotSupported, match="shared=True"):
        rig.run()
    rig.run(shared=True)
    assert rig.visible() == [[1]]


def test_a_session_of_spark_connect_is_refused(tmp_path: Path) -> None:
    """Its driver is elsewhere."""
    pipeline = Pipeline("remote", tmp_path)
    pipeline.stream(lambda spark: spark, name="x", sinks=FileSink(tmp_path / "x"))
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(NotSupported, match="Spark Connect"):
        pipeline.run(remote)
    with pytest.raises(BadInput, match="expected a SparkSession"):
        pipeline.run("local[2]")


BAD: dict[str, Callable[[Path], object]] = {
    "no stream": lambda t: Pipeline("p", t).run(),
    "no sink": lambda t: Pipeline("p", t).stream(lambda s: s, name="x", sinks=[]),
    "a sink that is none": lambda t: Pipeline("p", t).stream(lambda s: s, name="x", sinks=["out"]),
    "two sinks of one name": lambda t: Pipeline("p", t).stream(
        lambda s: s, name="x", sinks=[FileSink(t / "a/out"), FileSink(t / "b/out")]
    ),
    "a bad name": lambda t: Pipeline("p/q", t),
    "a bad stream name": lambda t: Pipeline("p", t).stream(lambda s: s, name="a b", sinks=FileSink(t / "x")),
    "a bad output mode": lambda t: Pipeline("p", t).stream(
        lambda s: s, name="x", sinks=FileSink(t / "x"), output_mode="replace"
    ),
    "a bad trigger": lambda t: Pipeline("p", t).stream(lambda s: s, name="x", sinks=FileSink(t / "x"), trigger=5),
    "a bad policy": lambda t: Pipeline("p", t, restart={"sinks": RestartPolicy.once()}).stream(
        lambda s: s, name="x", sinks=FileSink(t / "x")
    ),
    "a bad word": lambda t: Pipeline("p", t).start(accept=["everything"]),
    "a bad format": lambda t: FileSink(t / "x", format="avro"),
    "a bad layout": lambda t: FileSink(t / "x", layout="daily"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_before_anything_is_touched(what: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        BAD[what](tmp_path)
    assert "Next: " in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_others_are_told_after_the_pipelines_own_whatever_those_do(spark: SparkSession, tmp_path: Path) -> None:
    told: list[str] = []

    def fail(*_: object) -> None:
        told.append("own")
        raise ValueError("a callback of the user's")

    own, other = StreamCallbacks(on_epoch=fail), StreamCallbacks(on_epoch=lambda *_: told.append("other"))
    rig, target = rigged(spark, tmp_path, Flaky(tmp_path / "out"))
    rig.add(1)
    seen: list[str] = []
    rig.pipeline(callbacks=own).run(
        spark, available_now=True, callbacks=other, watch=lambda handle: seen.append(handle.status().pipeline)
    )
    assert told == ["own", "other"]
    assert seen
    assert target.visible(spark) == [1]


def test_what_a_watcher_raises_ends_the_run_at_once(spark: SparkSession, tmp_path: Path) -> None:
    def give_up(_: object) -> None:
        raise BrokenPipeError

    rig, _ = rigged(spark, tmp_path, Flaky(tmp_path / "out"))
    rig.add(1)
    with pytest.raises(BrokenPipeError):
        rig.pipeline().run(spark, watch=give_up)
    rig.run()  # nothing is held


class Bad(FileSink):
    """Cannot prepare any epoch but the first."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(path)
        self.error = error
        self.failing, self.may_fail = threading.Event(), threading.Event()
        self.may_fail.set()

    def prepare(self, df: Any, key: Any) -> Any:
        if key.attempt.epoch > 1:
            self.failing.set()
            self.may_fail.wait(60)
            raise self.error
        return super().prepare(df, key)


@pytest.mark.parametrize("where", ["on_restart", "on_outage", "on_exhausted"])
def test_a_stop_inside_a_callback_of_the_supervisor_returns_and_waiting_is_refused(
    where: str, spark: SparkSession, tmp_path: Path
) -> None:
    asked: list[str] = []

    def callback(*_: object) -> None:
        if asked:
            return
        try:
            handle.checkpoint()
        except NotSupported:
            asked.append("refused")
        handle.stop()
        asked.append("stopped")

    error = ConnectionRefusedError(111, "Connection refused") if where == "on_outage" else ValueError("bad")
    rig, _ = rigged(spark, tmp_path, Bad(tmp_path / "out", error))
    restart = RestartPolicy.never() if where == "on_exhausted" else RestartPolicy.bounded(9, 60)
    callbacks = StreamCallbacks(**{where: callback})
    pipeline = rig.pipeline(restart=restart, outage="1h", callbacks=callbacks)
    rig.add(1)
    handle = pipeline.start(spark, checkpoint_every="1h")
    eventually(lambda: handle.status().streams["rows"].epoch == 1)
    rig.add(2)
    assert handle.wait(60)
    assert asked == ["refused", "stopped"]
    status = handle.status()
    if where == "on_exhausted":
        assert status.streams["rows"].state == "failed"
    else:
        assert (status.streams["rows"].state, status.checkpoints.taken) == ("stopped", 1)


def test_a_stop_during_an_attempt_that_fails_is_a_stop(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a last checkpoint: the attempt was not decided, so the stream is at the end of its last epoch."""
    sink = Bad(tmp_path / "out", ValueError("bad"))
    sink.may_fail.clear()
    rig, target = rigged(spark, tmp_path, sink)
    rig.add(1)
    handle = rig.pipeline(restart=RestartPolicy.bounded(9, 60)).start(spark, checkpoint_every="1h")
    eventually(lambda: handle.status().streams["rows"].epoch == 1)
    rig.add(2)
    assert sink.failing.wait(60)
    stop = threading.Thread(target=handle.stop)
    stop.start()
    eventually(handle._streams[0]._gate.stopping.is_set)
    sink.may_fail.set()
    stop.join(60)
    status = handle.await_termination(60)
    assert (status.streams["rows"].state, status.streams["rows"].restarts) == ("stopped", 0)
    assert (status.checkpoints.taken, status.checkpoints.failed) == (1, 0)
    assert "was stopped during an attempt that failed (sink): " in caplog.text
    assert target.visible(spark) == [1]


def test_an_error_of_a_batch_is_logged_without_its_secrets(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By py4j too, which logs what it is given with its causes."""
    caplog.set_level(logging.ERROR, logger="py4j")
    cause = ValueError("cannot reach postgresql://me:hunter2@host/db")
    sink = Bad(tmp_path / "out", ValueError("no connection: password=hunter2"))
    sink.error.__cause__ = cause
    rig, _ = rigged(spark, tmp_path, sink)
    rig.add(1)
    rig.add(2)
    with pytest.raises(StreamFailed):
        rig.run(restart=RestartPolicy.never())
    assert any(record.name.startswith("py4j") for record in caplog.records)
    assert "hunter2" not in caplog.text


def test_a_callback_may_stop_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    """It waited for itself."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    handles: list[PipelineHandle] = []
    ready = threading.Event()

    def stop(*_: object) -> None:
        assert ready.wait(120)
        handles[0].stop()

    handles.append(rig.pipeline(callbacks=StreamCallbacks(on_epoch=stop)).start(spark))
    ready.set()
    assert handles[0].await_termination(120).streams["rows"].state == "stopped"
