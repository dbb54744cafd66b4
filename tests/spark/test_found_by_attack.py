"""Runs in which rows were once lost, doubled or changed, or something hung: each stays here."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import (
    BadInput,
    EpochClosed,
    InDoubt,
    Locked,
    SchemaMismatch,
    SinkFailed,
    SinkForeign,
    StorageFailed,
    StreamChanged,
    StreamFailed,
)
from holdfast.policy import Backoff, RestartPolicy
from holdfast.repository import Decisions, Gaps, Identity, LocalRepository, MemoryRepository
from holdfast.spark import adapter
from holdfast.testing import CrashAt, FaultyRepository
from pgfixture import server
from rig import FilesTarget, PostgresTarget, Rig, SqliteTarget

QUICK = Backoff(first=0.01, longest=0.02)
OFTEN = RestartPolicy.bounded(9, 60)


@pytest.mark.parametrize("keys", [(None, 2), (2, 2)], ids=["null", "twice"])
def test_a_key_that_cannot_be_one_is_refused_before_the_decision(
    keys: tuple[int | None, int], spark: SparkSession, tmp_path: Path
) -> None:
    """SQLite would have made up a key for NULL, and taken any of two rows for the last."""
    first, second = keys
    rig = Rig(
        spark,
        tmp_path,
        [SqliteTarget(tmp_path / "out.db", key="n")],
        lambda df: df.withColumn("n", f.when(f.col("n") == 1, f.lit(first)).otherwise(f.lit(second))),
    )
    rig.add(1, 3)
    with pytest.raises(StreamFailed) as caught:
        rig.run()
    assert isinstance(caught.value.__cause__, SinkFailed)
    assert "never null" in str(caught.value)
    assert rig.visible() == [[]]


def test_a_dropped_table_is_missed(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")])
    rig.add(1)
    rig.run()
    connection = sqlite3.connect(tmp_path / "out.db")
    connection.execute("DROP TABLE rows")
    connection.close()
    rig.add(2)
    with pytest.raises(SchemaMismatch, match="says that it holds epochs"):
        rig.run()


def test_an_epoch_in_doubt_is_committed_into_its_own_columns(spark: SparkSession, tmp_path: Path) -> None:
    """The program gives them in another order when it comes back."""
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")], lambda df: df.selectExpr("text a", "text || '!' b"))
    rig.add(1)
    rig.crash(CrashAt("decided"))
    rig.query = lambda df: df.selectExpr("text || '!' b", "text a")
    rig.run()
    assert rig.targets[0].visible(spark, "a b") == [("row 1", "row 1!")]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_what_an_epoch_does_is_decided_with_it(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """Another output mode is refused; another key or changelog does not change what an epoch in doubt does."""

    def target(**options: Any) -> Any:
        if kind == "sqlite":
            return SqliteTarget(tmp_path / "out.db", **options)
        return PostgresTarget(dsn, "rows", create=True, **options)

    dsn = server().dsn(server().fresh_database())
    rig = Rig(spark, tmp_path, [target(key="n")])
    rig.add(1, 2)
    rig.run()
    rig.add(3)
    rig.crash(CrashAt("decided"))
    rig.output_mode = "complete"
    with pytest.raises(StreamChanged, match="'append' when it began"):
        rig.run()
    rig.output_mode = "append"
    rig.run()
    assert rig.visible() == [[1, 2, 3]]


@pytest.mark.parametrize("change", [{"partition_by": "text"}, {"format": "json"}, {"layout": "flat"}])
def test_the_shape_of_a_folder_of_files_stays(change: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    """Readers could not bear two shapes side by side."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    rig.run()
    rig.targets = [FilesTarget(tmp_path / "out", **change)]
    with pytest.raises(StreamChanged, match="layout epochs, format parquet"):
        rig.run()


class Failing(hf.FileSink):
    """Fails as it is told: a list of what to raise, by method."""

    def __init__(self, path: Path, **plans: list[Exception | None]) -> None:
        super().__init__(path)
        self.plans = plans

    def _next(self, what: str) -> None:
        plan = self.plans.get(what) or [None]
        error = plan.pop(0)
        if error is not None:
            raise error

    def open(self, context: Any) -> None:
        self._next("open")
        super().open(context)

    def prepare(self, df: Any, key: Any) -> Any:
        self._next("prepare")
        return super().prepare(df, key)

    def commit(self, key: Any, handle: Any) -> None:
        self._next("commit")
        super().commit(key, handle)


def rigged(spark: SparkSession, folder: Path, sink: hf.FileSink, **options: Any) -> Rig:
    target = FilesTarget(sink.path)
    target.make = lambda: sink
    return Rig(spark, folder, [target], **options)


def refused(sink: str = "files.out") -> SinkFailed:
    return SinkFailed(sink=sink, action="answer", why="connection refused")


def test_a_quarantine_is_recorded_also_when_the_driver_dies_at_that_moment(spark: SparkSession, tmp_path: Path) -> None:
    rig = rigged(spark, tmp_path, Failing(tmp_path / "out", prepare=[refused(), refused()]), quarantine_after=2)
    rig.add(1)
    with pytest.raises((StreamFailed, BaseException)):
        rig.run(CrashAt("decided"), restart=OFTEN, backoff=QUICK)
    assert Gaps(LocalRepository(rig.repository)).all("rows", 1) == []
    rig.run()
    (gap,) = Gaps(LocalRepository(rig.repository)).all("rows", 1)
    assert (gap.kind, gap.epoch) == ("quarantined", 1)


def test_one_failure_is_not_counted_again_while_the_sink_is_down(spark: SparkSession, tmp_path: Path) -> None:
    """A sound epoch was passed over because recovery failed twice after its first failure."""
    sink = Failing(tmp_path / "out", prepare=[refused()], open=[None, refused(), refused()])
    rig = rigged(spark, tmp_path, sink, quarantine_after=3)
    rig.add(1)
    rig.run(restart=OFTEN, backoff=QUICK)
    assert rig.visible() == [[1]]


def test_trouble_of_the_repository_is_no_poison(spark: SparkSession, tmp_path: Path) -> None:
    full = [StorageFailed(action="write", key="x", why="No space left on device") for _ in range(4)]
    rig = rigged(spark, tmp_path, Failing(tmp_path / "out", prepare=list(full)), quarantine_after=3)
    rig.add(1)
    rig.run(restart=OFTEN, backoff=QUICK)
    assert rig.visible() == [[1]]


def test_whatever_a_users_sink_raises_in_recovery_is_told_as_doubt(spark: SparkSession, tmp_path: Path) -> None:
    sink = Failing(tmp_path / "out", commit=[ConnectionError("boom"), ConnectionError("boom")])
    rig = rigged(spark, tmp_path, sink)
    rig.add(1)
    with pytest.raises(StreamFailed):
        rig.run()
    with pytest.raises(InDoubt, match="boom"):
        rig.run()
    rig.run()
    assert rig.visible() == [[1]]


def test_a_slot_that_was_pruned_is_not_free() -> None:
    """A driver that was paused for long found its old slot empty, and took it."""
    decisions = Decisions(MemoryRepository())

    def slot(epoch: int, attempt: int = 1) -> Decision:
        return Decision(
            attempt=Attempt(stream="s", timeline=1, epoch=epoch, attempt=attempt), verdict=Verdict.COMMIT, lease=1
        )

    for epoch in range(1, 21):
        decisions.close(slot(epoch))
    assert decisions.prune("s", 1, before=15) == 14
    with pytest.raises(EpochClosed):
        decisions.close(slot(3))
    assert decisions.look("s", 1, 3).closed == ()
    assert decisions.close(slot(21)).attempt.epoch == 21


def abort(epoch: int, attempt: int) -> Decision:
    address = Attempt(stream="rows", timeline=1, epoch=epoch, attempt=attempt)
    return Decision(attempt=address, verdict=Verdict.ABORT, lease=1)


def test_only_the_last_of_many_aborted_tries_is_made_durable_again() -> None:
    """A slot is used once the one before it is closed durably: in a crash loop each start synced all of them."""
    memory, puts = MemoryRepository(), []
    for attempt in range(1, 31):
        Decisions(memory).close(abort(1, attempt))

    def note(action: str, key: str) -> None:
        if action == "put_if_absent":
            puts.append(key)

    slots = Decisions(FaultyRepository(memory, note)).look("rows", 1, 1)
    assert (len(slots.closed), slots.open.attempt) == (30, 31)
    assert puts == ["timelines/1/streams/rows/epochs/1.30.json"]


class Counting(hf.FileSink):
    """Counts what it is told to clear."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.aborted: list[int] = []

    def abort(self, key: Any) -> None:
        self.aborted.append(key.attempt.attempt)
        super().abort(key)


def test_a_start_after_many_crashes_does_not_clear_all_of_them_again(spark: SparkSession, tmp_path: Path) -> None:
    """Each is cleared now and then all the same: a task that outlived its try may have left something late."""
    sink = Counting(tmp_path / "out")
    rig = rigged(spark, tmp_path, sink)
    rig.add(1)
    Identity.create(LocalRepository(rig.repository), rig.repository.name)
    decisions = Decisions(LocalRepository(rig.repository))
    for tries, oldest in ((70, 22), (99, 1)):  # and each start closes one more
        for attempt in range(1, tries + 1):
            decisions.close(abort(1, attempt))
        sink.aborted.clear()
        rig.crash(CrashAt("opened"))
        assert sink.aborted == list(range(oldest, tries + 2))
    rig.run()
    assert rig.visible() == [[1]]


def test_a_refused_second_start_does_not_drop_the_lock(spark: SparkSession, tmp_path: Path) -> None:
    """To close any descriptor of the file lets go of all locks that a process has on it."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    lock = rig.repository / "lease" / "os.lock"
    probe = (
        "import sys, pathlib; from holdfast.repository.oslock import OsLock; OsLock.acquire(pathlib.Path(sys.argv[1]))"
    )
    with rig.pipeline().start(spark):
        with pytest.raises(Locked):
            rig.run()
        other = subprocess.run([sys.executable, "-c", probe, str(lock)], capture_output=True, text=True, check=False)
    assert "Locked" in other.stderr


def test_a_lock_file_that_cannot_be_opened_is_a_typed_error(spark: SparkSession, tmp_path: Path) -> None:
    """Another user's, or on a disk that is only to be read: Java's error came as it was."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    lock = rig.repository / "lease" / "os.lock"
    lock.mkdir(parents=True)
    with pytest.raises(StorageFailed, match="Is a directory") as caught:
        rig.run()
    assert caught.value.action == "lock"
    lock.rmdir()
    rig.run()


class Channel:
    """A channel of Java's whose lock fails."""

    def __init__(self, fail: Callable[[], object]) -> None:
        self.tryLock = fail
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_lock_that_fails_leaves_no_channel_open(overlaps: bool, spark: SparkSession, tmp_path: Path) -> None:
    """But one whose file this JVM has locked: closing it would let go of that lock."""
    jvm: Any = spark._jvm
    file = jvm.java.io.RandomAccessFile(str(tmp_path / "lock"), "rw")
    again = jvm.java.io.RandomAccessFile(str(tmp_path / "lock"), "rw")
    file.getChannel().tryLock()
    channel = Channel(again.getChannel().tryLock)
    if not overlaps:
        again.close()  # it cannot be locked any more
    opened = SimpleNamespace(getChannel=lambda: channel)
    io = SimpleNamespace(io=SimpleNamespace(RandomAccessFile=lambda *_: opened), lang=jvm.java.lang)
    session: Any = SimpleNamespace(_jvm=SimpleNamespace(java=io))
    try:
        with pytest.raises(Locked if overlaps else StorageFailed):
            adapter.JvmLock.acquire(session, tmp_path / "lock", "the lease")
    finally:
        file.close()
        again.close()
    assert channel.closed is not overlaps


def test_a_callback_may_stop_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    """It waited for itself."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    handles: list[hf.PipelineHandle] = []
    ready = threading.Event()

    def stop(*_: object) -> None:
        assert ready.wait(120)
        handles[0].stop()

    handles.append(rig.pipeline(callbacks=hf.StreamCallbacks(on_epoch=stop)).start(spark))
    ready.set()
    assert handles[0].await_termination(120).streams["rows"].state == "stopped"


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


@pytest.mark.parametrize("name", ["a b", "a%20b", "é☃", "x#y", "[1]", "{x,y}", "a:b", "a;b&c", "it's"])
def test_paths_may_hold_any_character(name: str, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / name
    rig = Rig(spark, folder, [FilesTarget(folder / "out"), SqliteTarget(folder / "out.db")])
    shutil.rmtree(folder / "in")  # reading a path with a glob in it is Spark's matter
    rig.build = lambda session: session.readStream.schema("n long, text string").json(str(tmp_path / "in"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"n": 1, "text": "row 1"}')
    rig.run()
    files = [path for path in (folder / "out").rglob("*.parquet") if not path.name.startswith(".")]
    assert len(files) == 1
    assert rig.targets[1].visible() == [1]
    assert sorted(each.name for each in folder.iterdir()) == ["out", "out.db", "out.db.staging", "out.staging", "root"]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted({"in", name})


def test_one_place_has_one_sink(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    pipeline = hf.Pipeline("p", tmp_path / "root")
    with pytest.raises(BadInput, match="writes there already"):
        pipeline.stream(
            lambda s: s, name="x", sinks=[hf.FileSink(tmp_path / "out"), hf.FileSink(f"{tmp_path}/link/", name="again")]
        )
    pipeline.stream(lambda s: s, name="x", sinks=hf.SqliteSink(tmp_path / "a.db", "rows"))
    with pytest.raises(BadInput, match="stream 'x' writes there already"):
        pipeline.stream(lambda s: s, name="y", sinks=hf.SqliteSink(tmp_path / "a.db", "Rows"))


def test_a_tables_name_is_the_same_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db", "rows")])
    rig.add(1)
    rig.run()
    shutil.rmtree(rig.repository)
    rig.targets = [SqliteTarget(tmp_path / "out.db", "Rows")]
    with pytest.raises(SinkForeign):
        rig.run()


def test_a_root_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pipeline = hf.Pipeline("p", tmp_path / "file")
    pipeline.stream(lambda s: s, name="x", sinks=hf.FileSink(tmp_path / "out"))
    with pytest.raises(StorageFailed):
        pipeline.run()
    assert not (tmp_path / "out").exists()
