"""What a start finds after others were at work: a lost file, a restored copy, another pipeline, a changed program."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import (
    HoldfastError,
    InDoubt,
    OffsetsDiverged,
    OffsetsGap,
    ReplayDiverged,
    SinkAhead,
    SinkBehind,
    SinkFailed,
    SinkForeign,
    SinksChanged,
    SparkLogMismatch,
    StreamFailed,
)
from holdfast.repository import Decisions, Gaps, History, Identity, LocalRepository
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.spark.pipeline import Pipeline
from holdfast.testing import CrashAt
from rig import SCHEMA, FilesTarget, Rig, SqliteTarget


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> Rig:
    return Rig(spark, tmp_path, [FilesTarget(tmp_path / "out"), SqliteTarget(tmp_path / "out.db")])


def three_epochs(rig: Rig) -> None:
    for n in (1, 2, 3):
        rig.add(n, 10 * n)
        rig.run()


def remove(folder: Path, number: int) -> None:
    """Remove an entry of one of Spark's logs, with its checksum file."""
    (folder / str(number)).unlink()
    (folder / f".{number}.crc").unlink(missing_ok=True)


def cause_of(failed: StreamFailed) -> BaseException | None:
    return failed.__cause__


def test_the_last_of_sparks_commits_deleted_changes_no_sink(rig: Rig) -> None:
    three_epochs(rig)
    before = rig.visible()
    remove(rig.checkpoint / "commits", 2)
    assert rig.run().streams["rows"].epoch == 3
    assert rig.visible() == before
    rig.add(4)
    rig.run()
    assert rig.visible() == [sorted(rig.rows)] * 2


@pytest.mark.parametrize("lost", ["commits", "offsets", "spark", "all"])
def test_a_spark_folder_that_does_not_fit_the_decisions_is_refused(rig: Rig, lost: str) -> None:
    """Two commits, the last offsets, everything of Spark's, or every decision: nothing starts, nothing changes."""
    three_epochs(rig)
    before = rig.visible()
    if lost == "commits":
        remove(rig.checkpoint / "commits", 1)
        remove(rig.checkpoint / "commits", 2)
    elif lost == "offsets":
        remove(rig.checkpoint / "offsets", 2)
    elif lost == "spark":
        shutil.rmtree(rig.checkpoint)
    else:
        shutil.rmtree(rig.checkpoint.parent / "epochs")
    rig.add(4)
    with pytest.raises((SparkLogMismatch, SinkAhead)):
        rig.run()
    assert rig.visible() == before


def test_a_new_repository_over_old_output_is_refused(rig: Rig) -> None:
    three_epochs(rig)
    before = rig.visible()
    shutil.rmtree(rig.repository)
    with pytest.raises(SinkForeign, match="uid"):
        rig.run()
    assert rig.visible() == before


def test_a_new_repository_over_an_old_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")])
    three_epochs(rig)
    shutil.rmtree(rig.repository)
    with pytest.raises(SinkForeign, match="uid"):
        rig.run()


def test_a_sink_restored_from_an_older_copy_is_behind(rig: Rig, tmp_path: Path) -> None:
    """Further behind than the last epoch: what was staged for it is gone."""
    rig.add(1)
    rig.run()
    shutil.copy(tmp_path / "out.db", tmp_path / "copy.db")
    for n in (2, 3):
        rig.add(n)
        rig.run()
    shutil.copy(tmp_path / "copy.db", tmp_path / "out.db")
    with pytest.raises(SinkBehind, match="holds epoch 1") as caught:
        rig.run()
    assert caught.value.sink == "sqlite.rows"
    assert rig.targets[1].visible(rig.spark) == [1]


def test_a_sink_that_lost_just_the_last_epoch_gets_it_again_from_what_is_staged(rig: Rig, tmp_path: Path) -> None:
    rig.add(1)
    rig.run()
    shutil.copy(tmp_path / "out.db", tmp_path / "copy.db")
    rig.add(2)
    rig.run()
    shutil.copy(tmp_path / "copy.db", tmp_path / "out.db")
    pipeline = rig.pipeline()
    handle = pipeline.start(rig.spark, available_now=True)
    assert handle.recovery["rows"].finish == ("sqlite.rows",)
    assert "committed now" in handle.recovery["rows"].summary()
    handle.await_termination()
    assert rig.visible() == [[1, 2], [1, 2]]


def test_output_that_was_deleted_is_missed(rig: Rig, tmp_path: Path) -> None:
    three_epochs(rig)
    shutil.rmtree(tmp_path / "out" / "hf_epoch=t1-0000000003")
    with pytest.raises(SinkBehind):
        rig.run()


def test_a_repository_restored_from_an_older_copy_finds_its_sinks_ahead(rig: Rig, tmp_path: Path) -> None:
    three_epochs(rig)
    shutil.copytree(rig.repository, tmp_path / "copy")
    rig.add(4)
    rig.run()
    before = rig.visible()
    shutil.rmtree(rig.repository)
    shutil.copytree(tmp_path / "copy", rig.repository)
    with pytest.raises(SinkAhead, match="holds epoch 4"):
        rig.run()
    assert rig.visible() == before


def test_other_sinks_need_a_word(rig: Rig, tmp_path: Path) -> None:
    three_epochs(rig)
    before = rig.visible()[1]
    removed = rig.targets.pop()
    rig.targets.append(FilesTarget(tmp_path / "late"))
    rig.add(4)
    with pytest.raises(SinksChanged, match=r"sqlite\.rows") as caught:
        rig.run()
    assert "accept=['sinks']" in str(caught.value)
    rig.run(accept=("sinks",))
    (told,) = History(LocalRepository(rig.repository)).entries()
    assert (told.what, told.facts["removed"]) == ("accept", ["sqlite.rows"])
    assert rig.visible() == [sorted(rig.rows), [4]]
    assert removed.visible(rig.spark) == before
    rig.add(5)
    rig.run()  # they are the last decision's now
    assert rig.visible()[1] == [4, 5]
    assert len(History(LocalRepository(rig.repository)).entries()) == 1


def test_a_sink_cannot_be_removed_while_it_may_lack_the_last_epoch(rig: Rig) -> None:
    rig.add(1)
    rig.crash(CrashAt("decided"))
    rig.targets.pop()
    with pytest.raises(SinksChanged, match="run once with the same sinks: the removed ones may not hold epoch 1"):
        rig.run(accept=("sinks",))


def test_a_decided_epoch_that_comes_back_with_other_input_is_refused(rig: Rig) -> None:
    rig.add(1)
    rig.run()
    rig.add(2)
    rig.crash(CrashAt("decided"))
    before = rig.visible()
    path = rig.checkpoint / "offsets/1"
    path.with_name(f".{path.name}.crc").unlink()
    path.write_text(path.read_text().replace('batchTimestampMs":1', 'batchTimestampMs":2'))
    with pytest.raises(StreamFailed) as caught:
        rig.run()
    assert isinstance(cause_of(caught.value), OffsetsDiverged)
    assert rig.visible() == before or rig.visible() == [sorted(rig.rows)] * 2  # recovery may have finished it before


def test_an_epoch_that_begins_elsewhere_is_a_gap(rig: Rig) -> None:
    """Somebody moved Spark's last offsets on: what lies between would be skipped in silence."""
    three_epochs(rig)
    path = rig.checkpoint / "offsets/2"
    path.with_name(".2.crc").unlink()
    path.write_text(path.read_text().replace('{"logOffset":2}', '{"logOffset":1}'))
    rig.add(4)
    with pytest.raises(StreamFailed) as caught:
        rig.run()
    error = cause_of(caught.value)
    assert isinstance(error, OffsetsGap)
    assert (error.partition, error.ended, error.begins) == ("logOffset", "2", "1")
    rig.run(accept=("gaps",))
    (gap,) = Gaps(LocalRepository(rig.repository)).all("rows", 1)
    assert (gap.kind, gap.epoch, gap.facts["begins"]) == ("offsets", 4, "1")


def test_every_gap_of_an_epoch_is_recorded(rig: Rig) -> None:
    """A topic has many partitions, and an epoch one record of a kind."""
    three_epochs(rig)
    path = rig.checkpoint / "offsets/2"
    path.with_name(".2.crc").unlink()
    path.write_text(path.read_text().replace('{"logOffset":2}', '{"logOffset":1,"of":{"a":7,"b":8}}'))
    rig.add(4)
    rig.run(accept=("gaps",))
    (gap,) = Gaps(LocalRepository(rig.repository)).all("rows", 1)
    assert gap.facts["differences"] == [
        {"source": 0, "partition": "logOffset", "ended": "2", "begins": "1"},
        {"source": 0, "partition": "of/a", "ended": "nothing", "begins": "7"},
        {"source": 0, "partition": "of/b", "ended": "nothing", "begins": "8"},
    ]
    assert (gap.facts["partition"], gap.facts["begins"]) == ("logOffset", "1")
    assert gap.why.endswith("ended at 2; and 2 more")


def drifting_totals(df: DataFrame) -> DataFrame:
    """State that depends on the moment it was computed."""
    now = f.udf(lambda _: time.time_ns() % 1_000_000_007, "long", useArrow=False)
    return df.withColumn("n", now("n")).groupBy("text").agg(f.sum("n").alias("n"))


def test_state_that_would_be_rebuilt_otherwise_is_said(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out", changelog=True)], drifting_totals, output_mode="update")
    rig.add(1)
    rig.run()
    rig.add(2)
    rig.crash(CrashAt("decided"))
    with pytest.raises(StreamFailed) as caught:
        rig.run()
    assert isinstance(cause_of(caught.value), ReplayDiverged)
    assert "accept=['replay']" in str(caught.value)
    rig.run(accept=("replay",))
    (gap,) = Gaps(LocalRepository(rig.repository)).all("rows", 1)
    assert (gap.kind, gap.epoch) == ("replay", 2)
    rig.add(3)
    rig.run()


def test_a_sum_of_doubles_raises_no_false_alarm(spark: SparkSession, tmp_path: Path) -> None:
    """Its last bit depends on the order of its parts, and that differs from run to run."""

    def sums(df: DataFrame) -> DataFrame:
        shuffled = df.withColumn("n", f.explode(f.sequence(f.lit(1), f.lit(2000)))).repartition(2, f.rand())
        return shuffled.groupBy((f.col("n") % 3).alias("k")).agg(f.sum(1 / f.col("n")).alias("n"))

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out", changelog=True)], sums, output_mode="update")
    for n in range(4):
        rig.add(n)
        rig.crash(CrashAt("decided"))
        rig.run()
    assert len(rig.visible()[0]) == 12


class DownSink(FileSink):
    """A sink whose server is down when the test says so."""

    down = False

    def commit(self, key: object, handle: object) -> None:
        if DownSink.down:
            raise SinkFailed(sink=self.name, action="commit", why="connection refused")
        super().commit(key, handle)


def test_a_sink_that_stays_down_keeps_its_epoch_in_doubt(spark: SparkSession, tmp_path: Path) -> None:
    """Several restarts find it down; nothing is lost, nothing twice, and the error says so each time."""
    down = FilesTarget(tmp_path / "down")
    down.make = lambda: DownSink(tmp_path / "down")
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out"), down])
    rig.add(1)
    rig.run()
    rig.add(2)
    DownSink.down = True
    try:
        with pytest.raises(StreamFailed) as caught:
            rig.run()
        assert isinstance(cause_of(caught.value), InDoubt)
        for _ in range(3):
            with pytest.raises(InDoubt, match=r"epoch 2 .* nothing is lost") as doubt:
                rig.run()
            assert doubt.value.sinks == ("files.down",)
        assert rig.visible() == [[1, 2], [1]]
    finally:
        DownSink.down = False
    rig.add(3)
    rig.run()
    assert rig.visible() == [[1, 2, 3], [1, 2, 3]]


def test_what_recovery_did_is_told_as_data_and_in_words(rig: Rig) -> None:
    rig.add(1)
    rig.crash(CrashAt("committed"))
    handle = rig.pipeline().start(rig.spark, available_now=True)
    plan = handle.recovery["rows"]
    status = handle.await_termination()
    assert (plan.decided, plan.replays, plan.finish) == (1, True, ("sqlite.rows",))
    assert "continues after epoch 1" in plan.summary()
    assert json.loads(json.dumps(status.to_dict()))["streams"]["rows"]["epoch"] == 1


def test_damage_to_a_decision_is_an_error(rig: Rig) -> None:
    three_epochs(rig)
    path = rig.checkpoint.parent / "epochs/3.1.json"
    found = next(each for each in path.parent.iterdir() if each.name.startswith("3."))
    found.write_bytes(found.read_bytes().replace(b'"rows"', b'"sowr"', 1))
    with pytest.raises(HoldfastError, match="damaged"):
        rig.run()


def test_a_renamed_stream_does_not_write_everything_again(spark: SparkSession, tmp_path: Path) -> None:
    """The name is the identity: under another one, a table that has an owner is refused, unless all share it."""
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")])
    three_epochs(rig)
    before = rig.visible()
    renamed = Pipeline("torment", tmp_path / "root")
    renamed.stream(rig.build, name="renamed", sinks=SqliteSink(tmp_path / "out.db", "rows"))
    with pytest.raises(SinkForeign, match="stream 'rows' of pipeline 'torment'"):
        renamed.run(spark, available_now=True)
    assert rig.visible() == before
    shared = Pipeline("torment", tmp_path / "root")
    shared.stream(rig.build, name="beside", sinks=SqliteSink(tmp_path / "out.db", "rows", share=True))
    shared.run(spark, available_now=True)
    assert len(rig.visible()[0]) == 2 * len(before[0])


def test_a_kill_in_the_very_first_write_of_spark_does_not_shut_a_stateful_stream_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark leaves a temporary file there, and takes its folder for another query's ever after."""
    rig = Rig(
        spark,
        tmp_path,
        [SqliteTarget(tmp_path / "out.db", key=["text"])],
        lambda df: df.groupBy("text").agg(f.sum("n").alias("n")),
        output_mode="update",
    )
    Identity.create(LocalRepository(rig.repository), rig.repository.name)
    (rig.checkpoint / "offsets").mkdir(parents=True)
    (rig.checkpoint / "offsets/.0.6fa4e6d3-7a0e-4f5c-9d55-0f2a3c6b1a11.tmp").write_bytes(b"v1\n{")
    rig.add(1, 10)
    assert rig.run().streams["rows"].epoch == 1


def tear(path: Path, left: str, crc: str) -> None:
    """Leave of a file what the loss of power may: its name, with no bytes or the first ones."""
    data, beside = path.read_bytes(), path.with_name(f".{path.name}.crc")
    path.write_bytes(
        {"nothing": b"", "half": data[: len(data) // 2], "but its end": data[:-1], "zeros": bytes(len(data))}[left]
    )
    if crc != "whole":
        beside.unlink(missing_ok=True)
    if crc == "empty":
        beside.touch()


TORN = [
    ("nothing", "gone"),
    ("nothing", "empty"),
    ("nothing", "whole"),
    ("half", "gone"),
    ("zeros", "gone"),
    ("but its end", "whole"),
]


@pytest.mark.parametrize(("left", "crc"), TORN)
@pytest.mark.parametrize("entry", ["offsets/1", "sources/0/1"])
def test_what_the_power_tore_of_an_undecided_epoch_is_run_anew(rig: Rig, entry: str, left: str, crc: str) -> None:
    """Spark syncs none of its files: a name may stay without its bytes."""
    rig.add(1)
    rig.run()
    rig.add(2)
    rig.crash(CrashAt("opened"))
    tear(rig.checkpoint / entry, left, crc)
    rig.add(3)
    rig.run()
    assert rig.visible() == [[1, 2, 3]] * 2


@pytest.mark.parametrize(("left", "crc"), TORN)
def test_a_commit_of_sparks_that_the_power_tore_is_made_again(rig: Rig, left: str, crc: str) -> None:
    three_epochs(rig)
    tear(rig.checkpoint / "commits/2", left, crc)
    rig.add(4)
    rig.run()
    assert rig.visible() == [sorted(rig.rows)] * 2


def totals(df: DataFrame) -> DataFrame:
    return df.groupBy((f.col("n") % 3).alias("k")).agg(f.sum("n").alias("total"))


@pytest.mark.parametrize("left", ["nothing", "not even its name"])
def test_a_lost_commit_of_sparks_is_made_again_though_the_next_epoch_was_begun(
    spark: SparkSession, tmp_path: Path, left: str
) -> None:
    """Spark begins at its last offsets: the replay was left out, and with it the state that the next epoch needs."""
    target = SqliteTarget(tmp_path / "out.db", key=["k"])
    rig = Rig(spark, tmp_path, [target], totals, output_mode="update")
    for number in (1, 2, 3):
        rig.add(number)
    rig.run()
    rig.add(4)
    rig.crash(CrashAt("opened"))
    if left == "nothing":
        tear(rig.checkpoint / "commits/2", left, "gone")
    else:
        remove(rig.checkpoint / "commits", 2)
    rig.crash(CrashAt("decided"))  # the replay is done, and the next one is in doubt
    rig.run()
    assert target.visible(spark, "k total") == [(0, 3), (1, 5), (2, 2)]


def test_of_two_sources_each_is_asked_for_its_own_entries(spark: SparkSession, tmp_path: Path) -> None:
    class Two(Rig):
        def build(self, spark: SparkSession) -> DataFrame:
            other = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "other"))
            return super().build(spark).union(other)

    def add_two(*numbers: int) -> None:
        rig.add(numbers[0])
        (tmp_path / "other" / f"{numbers[1]}.json").write_text(json.dumps({"n": numbers[1], "text": "other"}))
        rig.rows.append(numbers[1])

    rig = Two(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    (tmp_path / "other").mkdir()
    add_two(1, 101)
    rig.run()
    add_two(2, 102)
    rig.crash(CrashAt("opened"))
    tear(rig.checkpoint / "sources/0/1", "nothing", "gone")
    rig.run()
    assert rig.visible() == [[1, 2, 101, 102]]


def test_an_entry_of_a_source_that_the_power_took_is_made_again(rig: Rig) -> None:
    """The offsets that name it stayed: its files would never have been read."""
    rig.add(1)
    rig.run()
    rig.add(2)
    rig.crash(CrashAt("opened"))
    remove(rig.checkpoint / "sources/0", 1)
    rig.run()
    rig.add(3)
    rig.run()
    assert rig.visible() == [[1, 2, 3]] * 2


@pytest.mark.parametrize("entry", ["metadata", "offsets/0", "sources/0/0"])
def test_what_the_power_tore_of_the_first_start_is_made_again(rig: Rig, entry: str) -> None:
    rig.add(1)
    rig.crash(CrashAt("opened"))
    tear(rig.checkpoint / entry, "nothing", "gone")
    rig.add(2)
    rig.run()
    assert rig.visible() == [[1, 2]] * 2


@pytest.mark.parametrize("entry", ["offsets/2", "offsets/1", "commits/1"])
def test_a_torn_file_that_a_decision_needs_is_an_error(rig: Rig, entry: str) -> None:
    """It was synced before the decision: something else is wrong with the disk."""
    three_epochs(rig)
    before = rig.visible()
    tear(rig.checkpoint / entry, "nothing", "gone")
    rig.add(4)
    if entry == "commits/1":
        remove(rig.checkpoint / "commits", 2)
    with pytest.raises((StreamFailed, HoldfastError)):
        rig.run()
    assert rig.visible() == before
    assert (rig.checkpoint / entry).read_bytes() == b""


@pytest.mark.parametrize("entry", ["2", "1"])
def test_a_missing_entry_of_a_sources_log_is_refused(rig: Rig, entry: str) -> None:
    """Spark would write the last one again with files that it has not read, and skip them as done."""
    three_epochs(rig)
    before = rig.visible()
    remove(rig.checkpoint / "sources/0", int(entry))
    rig.add(4)
    with pytest.raises(SparkLogMismatch, match=f"sources/0/{entry} is missing"):
        rig.run()
    assert rig.visible() == before
    assert not (rig.checkpoint / "sources/0" / entry).exists()


def test_a_missing_entry_is_refused_also_where_the_last_epoch_took_no_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A watermark advances in an epoch without input, whose decision has no new entries of a source's log."""

    def windows(df: DataFrame) -> DataFrame:
        timed = df.withColumn("at", f.timestamp_seconds("n")).withWatermark("at", "0 seconds")
        return timed.groupBy(f.window("at", "1 second")).agg(f.max("n").alias("n"))

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")], windows)
    for n in (10, 20, 30):
        rig.add(n)
    rig.run()
    epochs = len(list((rig.checkpoint / "offsets").glob("[0-9]*")))
    last = max(int(each.name) for each in (rig.checkpoint / "sources/0").glob("[0-9]*"))
    assert epochs > last + 1  # the last one took no files
    remove(rig.checkpoint / "sources/0", last)
    for n in (40, 50, 60):
        rig.add(n)
    with pytest.raises(SparkLogMismatch, match=f"sources/0/{last} is missing"):
        rig.run()


def aborted(epoch: int, attempt: int) -> Decision:
    address = Attempt(stream="rows", timeline=1, epoch=epoch, attempt=attempt)
    return Decision(attempt=address, verdict=Verdict.ABORT, lease=1)


class Counting(FileSink):
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
    target = FilesTarget(sink.path)
    target.make = lambda: sink
    rig = Rig(spark, tmp_path, [target])
    rig.add(1)
    Identity.create(LocalRepository(rig.repository), rig.repository.name)
    decisions = Decisions(LocalRepository(rig.repository))
    for tries, oldest in ((70, 22), (99, 1)):  # and each start closes one more
        for attempt in range(1, tries + 1):
            decisions.close(aborted(1, attempt))
        sink.aborted.clear()
        rig.crash(CrashAt("opened"))
        assert sink.aborted == list(range(oldest, tries + 2))
    rig.run()
    assert rig.visible() == [[1]]
