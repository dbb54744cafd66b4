"""Whose failure it is, and what helps: a restart, waiting, or neither; the cause is named."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.epoch import State
from holdfast.errors import BadValue, MissingExtra, QueryFailed, SparkFileDamaged, StorageFailed, StreamFailed
from holdfast.policy import Backoff, RestartPolicy
from holdfast.repository import Decisions, LocalRepository
from holdfast.sinks.files.sink import FileSink
from holdfast.spark.context import StreamCallbacks
from holdfast.spark.failures import EpochFailure, Kind, Remedy, damaged_file, diagnose
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.testing import CrashAt
from rig import FilesTarget, Rig, SqliteTarget

QUICK = Backoff(first=0.01, longest=0.02)
OFTEN = RestartPolicy.bounded(9, 60)


def totals(df: DataFrame) -> DataFrame:
    return df.groupBy((f.col("n") % 3).alias("k")).agg(f.sum("n").alias("n"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("damage", [flip, remove])
@pytest.mark.parametrize("provider", ["RocksDB", "HDFSBacked"])
def test_state_that_is_damaged_or_missing_is_the_fault_of_the_state(
    provider: str, damage: Callable[[Path], None], spark: SparkSession, tmp_path: Path
) -> None:
    """It was blamed on the sink, whose action reads the state, and tried again and again."""
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "o.db", key=["k"])], totals, output_mode="update")
    setting = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(setting, f"org.apache.spark.sql.execution.streaming.state.{provider}StateStoreProvider")
    try:
        for n in (1, 2, 3):
            rig.add(n)
        rig.run()
    finally:
        spark.conf.unset(setting)
    names = "3_*.changelog" if provider == "RocksDB" else "3.delta"
    damaged = [each for each in (rig.checkpoint / "state").rglob(names) if not each.name.startswith(".")]
    for each in damaged:
        damage(each)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # it keeps what it has loaded
    rig.add(4)
    with pytest.raises(StreamFailed) as caught:
        rig.run(restart=OFTEN, backoff=QUICK)
    error, cause = caught.value, caught.value.__cause__
    assert (error.failure, error.sink, error.restarts) == ("state", None, 0)
    assert isinstance(cause, SparkFileDamaged)
    assert Path(cause.path) in damaged
    assert "restore" in str(error)


@pytest.mark.parametrize("damage", [flip, remove])
@pytest.mark.parametrize("name", ["metadata", "offsets/2", "sources/0/2"])
def test_a_damaged_log_of_sparks_is_named_before_anything_starts(
    name: str, damage: Callable[[Path], None], spark: SparkSession, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    for n in (1, 2, 3):
        rig.add(n)
    rig.run()
    damage(rig.checkpoint / name)
    rig.add(4)
    with pytest.raises(Exception, match=name.replace("/2", "")) as caught:
        rig.run(restart=OFTEN, backoff=QUICK)
    assert type(caught.value).__name__ in ("SparkFileDamaged", "SparkLogMismatch")
    assert rig.visible() == [[1, 2, 3]]


def test_offsets_of_the_epoch_before_the_last_are_required(spark: SparkSession, tmp_path: Path) -> None:
    """Spark needs the last two; every restart was spent on it, and the source was blamed."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    rig.run()  # the first epoch has none before it
    for n in (2, 3):
        rig.add(n)
    rig.run()
    path = rig.checkpoint / "offsets/1"
    whole = path.read_bytes()
    remove(path)
    rig.add(4)
    with pytest.raises(SparkFileDamaged, match="it is missing") as caught:
        rig.run(restart=OFTEN, backoff=QUICK)
    assert caught.value.path == str(path)
    assert rig.visible() == [[1, 2, 3]]
    path.write_bytes(whole)
    remove(rig.checkpoint / "offsets/0")  # Spark deletes it itself in time
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4]]


@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_folder_of_state_is_named(empty: bool, spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "o.db", key=["k"])], totals, output_mode="update")
    rig.add(1)
    rig.run()
    state = rig.checkpoint / "state"
    whole = state.rename(tmp_path / "state")
    if empty:
        state.mkdir()
    rig.add(4)
    with pytest.raises(StreamFailed) as caught:
        rig.run(restart=OFTEN, backoff=QUICK)
    error, cause = caught.value, caught.value.__cause__
    assert (error.failure, error.sink, error.restarts) == ("state", None, 0)
    assert isinstance(cause, SparkFileDamaged)
    assert (cause.path, "it is missing or empty" in cause.why) == (str(state), True)
    shutil.rmtree(state, ignore_errors=True)
    whole.rename(state)
    rig.run()
    assert rig.targets[0].visible(spark, "k n") == [(1, 5)]


def name_another_file(entry: Path) -> None:
    """Change one bit in the name of a file that an entry of a source's log lists; there are no checksums."""
    text = entry.read_text()
    digit = text.index(".json") - 1
    entry.write_text(text[:digit] + chr(ord(text[digit]) ^ 4) + text[digit + 1 :])


def remove_checksums(rig: Rig) -> None:
    """Leave the folder as `restore_stream` writes it."""
    for path in (rig.checkpoint / "sources").rglob(".*.crc"):
        path.unlink()


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("name", ["3.compact", "4", "6"])
def test_a_changed_entry_of_a_sources_log_is_refused_without_checksums(
    name: str, crash: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """One file was read twice and another one never, in silence."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    setting = "spark.sql.streaming.fileSource.log.compactInterval"
    spark.conf.set(setting, "4")
    try:
        for n in range(1, 7):
            rig.add(n)
        rig.run()
        rig.add(7)
        if crash:
            rig.crash(CrashAt("decided"))
        else:
            rig.run()
        remove_checksums(rig)
        entry = rig.checkpoint / "sources/0" / name
        before, whole = rig.visible(), entry.read_bytes()
        name_another_file(entry)
        damaged = entry.read_bytes()
        rig.add(8)
        with pytest.raises(SparkFileDamaged, match="decided with") as caught:
            rig.run(restart=OFTEN, backoff=QUICK)
        assert caught.value.path == str(entry)
        assert (rig.visible(), entry.read_bytes()) == (before, damaged)
        entry.write_bytes(whole)
        rig.run()
        assert rig.visible() == [list(range(1, 9))]
    finally:
        spark.conf.unset(setting)


@pytest.mark.parametrize("loss", ["pruned", "damaged"])
def test_an_entry_whose_decision_is_gone_is_not_refused(loss: str, spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    for n in (1, 2, 3):
        rig.add(n)
    rig.run()
    remove_checksums(rig)
    decisions = Decisions(LocalRepository(rig.repository))
    if loss == "pruned":
        assert decisions.prune("rows", 1, 3) == 2
    else:
        flip(rig.repository / "timelines/1/streams/rows/epochs/2.1.json")
    rig.add(4)
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4]]


def test_a_damaged_log_is_named_by_a_restart_too(spark: SparkSession, tmp_path: Path) -> None:
    """Damaged while it runs, between two epochs."""

    def reach(point: str) -> None:
        if point == "all committed" and not damaged:
            damaged.append(rig.checkpoint / "metadata")
            flip(damaged[0])
            raise QueryFailed(stream="rows", why="something else")

    damaged: list[Path] = []
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    with pytest.raises(StreamFailed) as caught:
        rig.run(reach, restart=OFTEN, backoff=QUICK)
    assert (caught.value.failure, caught.value.restarts) == ("repository", 1)
    assert str(damaged[0]) in str(caught.value)


def test_a_missing_module_of_user_code_fails_at_once_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    def asks(df: DataFrame) -> DataFrame:
        def ask(n: int) -> int:
            import nonexistent_module  # type: ignore[import-not-found]  # noqa: F401

            return n

        return df.withColumn("n", f.udf(ask, "long", useArrow=False)("n"))

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")], asks)
    rig.add(1)
    with pytest.raises(StreamFailed, match="nonexistent_module") as caught:
        rig.run(restart=OFTEN, backoff=QUICK)
    error = caught.value
    assert (error.failure, error.sink, error.restarts) == ("user code", None, 0)
    assert "install the Python package that provides 'nonexistent_module'" in error.do


def test_a_function_that_cannot_import_at_a_restart_is_user_code(spark: SparkSession, tmp_path: Path) -> None:
    rig, built = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")]), []

    def fails(df: DataFrame) -> DataFrame:
        built.append(df)
        if len(built) > 1:
            raise ModuleNotFoundError("No module named 'gone'", name="gone")
        return df

    def once(point: str) -> None:
        if point == "opened" and len(built) == 1:
            raise StorageFailed(action="write", key="x", why="once")

    rig.query = fails
    rig.add(1)
    with pytest.raises(StreamFailed) as caught:
        rig.run(once, restart=OFTEN, backoff=QUICK)
    assert (caught.value.failure, caught.value.restarts) == ("user code", 1)
    assert "'gone'" in caught.value.do


@pytest.mark.parametrize("trigger", ["10 bananas", {"processingTime": "soon"}])
def test_a_trigger_that_spark_cannot_read_is_refused_before_the_start(
    trigger: Any, spark: SparkSession, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")], trigger=trigger)
    rig.add(1)
    with pytest.raises(BadValue, match="trigger"):
        rig.pipeline(restart=OFTEN, backoff=QUICK).start(spark)


def test_a_missing_package_of_a_stateful_processor_is_named_before_the_start(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python worker would crash without saying why."""
    from pyspark.sql.streaming import StatefulProcessor

    class Counts(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            return iter(())

        def close(self) -> None:
            pass

    def counted(df: DataFrame) -> DataFrame:
        return df.groupBy("text").transformWithStateInPandas(Counts(), "n long", "Append", "None")

    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")], counted)
    rig.add(1)
    with pytest.raises(MissingExtra, match=r"google\.protobuf"):
        rig.run()


def test_a_failing_sink_of_the_users_is_blamed_for_its_open(spark: SparkSession, tmp_path: Path) -> None:
    class Shut(FileSink):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.opened = 0

        def open(self, context: Any) -> None:
            self.opened += 1
            if self.opened > 1:
                raise ValueError("no such warehouse")
            super().open(context)

    def once(point: str) -> None:
        if point == "opened":
            raise StorageFailed(action="write", key="x", why="once")

    sink, target = Shut(tmp_path / "out"), FilesTarget(tmp_path / "out")
    target.make = lambda: sink
    rig = Rig(spark, tmp_path, [target])
    rig.add(1)
    with pytest.raises(StreamFailed, match="no such warehouse") as caught:
        rig.run(once, restart=RestartPolicy.once(), backoff=QUICK)
    assert caught.value.failure == "sink" or caught.value.restarts == 1


def test_the_repositorys_trouble_is_its_own(spark: SparkSession, tmp_path: Path) -> None:
    def full(point: str) -> None:
        if point == "all prepared":
            raise StorageFailed(action="write", key="epochs/1.1.json", why="Permission denied")

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    with pytest.raises(StreamFailed) as caught:
        rig.run(full)
    assert (caught.value.failure, caught.value.sink) == ("repository", None)


def test_a_restart_does_not_ask_for_another_run(spark: SparkSession, tmp_path: Path) -> None:
    """The text that `on_restart` is given said to run the pipeline again."""
    texts: list[str] = []

    def once(point: str) -> None:
        if point in ("opened", "committed") and len(texts) < 2:
            raise QueryFailed(stream="rows", why="once")

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    callbacks = StreamCallbacks(on_restart=lambda _, error, __: texts.append(str(error)))
    rig.run(once, restart=OFTEN, backoff=QUICK, callbacks=callbacks)
    assert len(texts) == 2
    for text in texts:
        assert "Next: no action is needed: the stream restarts by itself in " in text
        assert "run the pipeline again" not in text


# --- by what Spark says ----------------------------------------------------------------------------------------------

TASK = "org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:906)"
STATE = "org.apache.spark.sql.execution.streaming.state.StateStoreRDD.compute(StateStoreRDD.scala:9)"
FULL = "Caused by: java.io.IOException: No space left on device\n\tat java.base/java.io.FileOutputStream.writeBytes(N)"
SAID: list[tuple[str, str | None, Kind, Remedy]] = [
    # the text, the sink that was at it, whose failure it is, what helps
    (f"[TASK_WRITE_FAILED] x\n\tat {STATE}\n{FULL}\n\tat org.apache.spark.sql.execution.datasources.Writer.write(W:1)",
     "out", Kind.SINK, Remedy.WAIT),
    (f"x\n\tat {TASK}\n{FULL}\n\tat org.apache.spark.sql.execution.streaming.state.RocksDBFileManager.save(R:1)",
     "out", Kind.REPOSITORY, Remedy.WAIT),
    (f"x\n\tat org.apache.spark.sql.execution.streaming.checkpointing.HDFSMetadataLog.write(H:1)\n{FULL}",
     None, Kind.REPOSITORY, Remedy.WAIT),
    (f"x\n\tat {TASK}\n{FULL}\n\tat org.apache.spark.storage.DiskBlockObjectWriter.write(D:1)",
     "out", Kind.EXECUTORS, Remedy.WAIT),
    ("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)", "out", Kind.EXECUTORS, Remedy.WAIT),
    ("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_3_0 not found!", "out", Kind.EXECUTORS, Remedy.WAIT),
    ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment",
     None, Kind.SOURCE, Remedy.WAIT),
    ("PythonException: Python worker exited unexpectedly (crashed)\nCaused by: SocketException: Connection reset",
     "out", Kind.USER, Remedy.RESTART),
    ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.",
     "out", Kind.STATE, Remedy.RESTART),
    (f"ZeroDivisionError\n\tat {STATE}", "out", Kind.SINK, Remedy.RESTART),
    ("something", None, Kind.SOURCE, Remedy.RESTART),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sink", "kind", "remedy"), SAID)
def test_sparks_text_says_whose_failure_it_is(text: str, sink: str | None, kind: Kind, remedy: Remedy) -> None:
    error = QueryFailed(stream="s", why="in one line")
    error.__cause__ = RuntimeError(text)
    failure = None if sink is None else EpochFailure(error.__cause__, 1, State.OPEN, sink)
    found = diagnose(error, failure)
    assert (found.kind, found.remedy) == (kind, remedy)


def test_a_query_that_is_quoted_blames_nobody() -> None:
    """Spark's error quotes the plan, in which every source of files has its name."""
    quoted = "=== Streaming Query ===\nLogical Plan:\nFileStreamSource[file:/in] StateStore RocksDB\n"
    error = RuntimeError(f"[STREAM_FAILED] x\n{quoted}\n\tat a.b(C:1)\nCaused by: PythonException: y")
    assert diagnose(error, None).kind is Kind.USER


def test_only_files_below_the_streams_own_folder_are_damage(tmp_path: Path) -> None:
    text = "java.io.FileNotFoundException: File file:{} does not exist"
    folder, inside = LocalSparkFolder(tmp_path / "spark"), "state/0/0/3_a-b.changelog"
    assert damaged_file(RuntimeError(text.format(tmp_path / "spark" / inside)), folder) == inside
    assert damaged_file(RuntimeError(text.format(tmp_path / "in/1.json")), folder) is None


# --- the session -----------------------------------------------------------------------------------------------------

LOSES = """
import json, os, signal, sys, threading, time
import holdfast as hf
from pyspark.sql import SparkSession
from pyspark import SparkContext

folder, how = sys.argv[1:]
restarts = []
pipeline = hf.Pipeline("p", folder + "/root", callbacks=hf.StreamCallbacks(on_restart=lambda *_: restarts.append(1)))
for name in ("a", "b"):
    sink = hf.FileSink(f"{folder}/{name}")
    pipeline.stream(lambda spark: spark.readStream.format("rate").load(), name=name, sinks=sink)

lost = []

def lose(handle):
    if not lost and all(each.epoch >= 1 for each in handle.status().streams.values()):
        lost.append(how)
        if how == "kill":
            os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        else:
            SparkSession.getActiveSession().stop()

try:
    pipeline.run(watch=lose)
except Exception as error:
    print(json.dumps([type(error).__module__, type(error).__name__, str(error), len(restarts)]), flush=True)
"""


@pytest.mark.parametrize(("how", "word"), [("kill", "killed by signal 9"), ("stop", "it was stopped")])
def test_a_session_that_is_lost_ends_the_run_at_once(how: str, word: str, tmp_path: Path) -> None:
    """The JVM killed alone: restarts cannot help, and the error is one of ours."""
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    found = subprocess.run(
        [sys.executable, "-c", LOSES, str(tmp_path), how],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=env,
    )
    module, kind, text, restarts = json.loads(found.stdout.splitlines()[-1])
    assert (module, kind, restarts) == ("holdfast.errors", "SessionLost", 0), found.stderr
    assert word in text
    assert "Next: start the program again" in text
    assert found.stderr.count("Traceback") == 0, found.stderr
