"""A repository that was copied, and both run: the second to decide an epoch is told, and loses no rows in silence."""

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from holdfast.epoch import Attempt, Facts
from holdfast.errors import SinkAhead, SinkBehind, SinkForeign, StreamFailed
from holdfast.eventlog.log import EventLog
from holdfast.repository import Decisions, Identity, LocalRepository
from holdfast.sinks import apply_compact, plan_compact
from holdfast.sinks import log as logsink
from holdfast.sinks._sqlite_ledger import LEDGER
from holdfast.sinks.base import EpochKey, Link, Sink, SinkContext, StreamIdentity, handle_digest
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.log import LogSink
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.testing import CrashAt
from pgfixture import server
from rig import FilesTarget, LogTarget, PostgresTarget, Rig, SqliteTarget, Target

OWNER = StreamIdentity("shop", "uid-1", "orders")
SCHEMA = "n long, text string"
KINDS = ("files", "flat", "sqlite", "log", "prepared", "staged")


def key(epoch: int, *, attempt: int = 1, lease: int = 1) -> EpochKey:
    return EpochKey(OWNER, Attempt(stream=OWNER.stream, timeline=1, epoch=epoch, attempt=attempt), lease)


class Place:
    """What two copies write to."""

    def __init__(self, kind: str, folder: Path, spark: SparkSession) -> None:
        self.spark = spark
        self.folder = folder
        dsn = server().dsn(server().fresh_database()) if kind in ("prepared", "staged") else ""
        makes: dict[str, Callable[[], Sink]] = {
            "files": lambda: FileSink(folder / "out"),
            "flat": lambda: FileSink(folder / "out", layout="flat"),
            "sqlite": lambda: SqliteSink(folder / "out.db", "rows"),
            "log": lambda: LogSink(folder / "log"),
        }
        self.dsn = dsn
        self.make = makes.get(kind, lambda: PostgresSink(dsn, "rows", create=True, method=kind))

    def opened(self, owner: StreamIdentity = OWNER) -> Sink:
        sink = self.make()
        sink.open(SinkContext(owner, self.spark.createDataFrame([], SCHEMA).schema, "append", self.spark))
        return sink

    def staged(self, sink: Sink, of: EpochKey, *numbers: int) -> dict[str, Any]:
        return sink.prepare(self.spark.createDataFrame([(n, "row") for n in numbers], SCHEMA), of).handle


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_epoch_decided_twice_is_noticed(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    place = Place(kind, tmp_path, spark)
    one, two = place.opened(), place.opened()
    for epoch in (1, 2):
        mine, theirs = key(epoch), key(epoch, lease=2)
        ours = place.staged(one, mine, epoch)
        other = place.staged(two, theirs, epoch + 10)
        one.commit(mine, ours)
        for _ in range(2):
            with pytest.raises(SinkForeign, match=r"another copy|lease 1"):
                two.commit(theirs, other)
        one.commit(mine, ours)
        place.opened().commit(mine, ours)  # the next driver, with the same decision
        assert one.inspect(OWNER, 1).epoch == epoch


@pytest.mark.parametrize("kind", ["sqlite", "log", "prepared"])
def test_ledgers_that_tell_no_more_than_the_epoch_are_read(
    kind: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of versions before this was noticed."""
    place = Place(kind, tmp_path, spark)
    with monkeypatch.context() as before:
        before.setattr(logsink, "append_key", lambda key, _: f"uid-1/orders/t1-{key.epoch:010}")
        sink = place.opened()
        handle = place.staged(sink, key(1), 1)
        sink.commit(key(1), handle)
    if kind == "sqlite":
        with sqlite3.connect(tmp_path / "out.db") as connection:
            connection.execute(f"ALTER TABLE {LEDGER} DROP COLUMN handle")
        connection.close()
    elif kind == "prepared":
        with psycopg.connect(place.dsn) as conn:
            conn.execute("UPDATE holdfast_epochs SET gid = regexp_replace(gid, ':[^:]*$', '') WHERE closed")
    sink = place.opened()
    sink.commit(key(1), handle)
    other = place.staged(sink, key(1, attempt=2), 5)
    sink.commit(key(1, attempt=2), other)
    assert sink.inspect(OWNER, 1).epoch == 1
    second = place.staged(sink, key(2), 2)
    sink.commit(key(2), second)
    sink.commit(key(2), second)
    assert sink.inspect(OWNER, 1).epoch == 2
    if kind == "log":
        assert [event.payload["n"] for event in EventLog.open(tmp_path / "log").read()] == [1, 2]


def test_a_pipeline_whose_copy_was_faster_stands_still(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "out.db")])
    rig.add(1)
    rig.run()
    rig.add(2)
    with sqlite3.connect(tmp_path / "out.db") as connection:
        owner = StreamIdentity("torment", connection.execute(f"SELECT uid FROM {LEDGER}").fetchone()[0], "rows")  # noqa: S608
    connection.close()

    def faster(point: str) -> None:
        if point == "all prepared":
            place = Place("sqlite", tmp_path, spark)
            other = EpochKey(owner, Attempt(stream="rows", timeline=1, epoch=2, attempt=1), 9)
            sink = place.opened(owner)
            sink.commit(other, place.staged(sink, other, 12))

    with pytest.raises(StreamFailed, match="another copy of this repository"):
        rig.run(faster)
    with pytest.raises(StreamFailed, match="another copy of this repository"):
        rig.run()
    assert rig.visible() == [[1, 12]]


TARGETS: dict[str, Callable[[Path, str], Target]] = {
    "files": lambda folder, _: FilesTarget(folder / "out"),
    "flat": lambda folder, _: FilesTarget(folder / "out", layout="flat"),
    "sqlite": lambda folder, _: SqliteTarget(folder / "out.db"),
    "log": lambda folder, _: LogTarget(folder / "log"),
    "prepared": lambda _, dsn: PostgresTarget(dsn, "rows", create=True, method="prepared"),
    "staged": lambda _, dsn: PostgresTarget(dsn, "rows", create=True, method="staged"),
}


class Copied:
    """A pipeline whose repository was copied after its first epoch. What the other copy commits is given by hand.

    Both cannot run in one JVM: Spark refuses a second query with the same id.
    """

    def __init__(self, kind: str, spark: SparkSession, folder: Path) -> None:
        dsn = server().dsn(server().fresh_database()) if kind in ("prepared", "staged") else ""
        self.rig = Rig(spark, folder, [TARGETS[kind](folder, dsn)])
        self.rig.add(1)
        self.rig.run()
        repository = LocalRepository(self.rig.repository)
        self.owner = StreamIdentity("torment", Identity.load(repository).uid, "rows")
        decision = Decisions(repository).newest("rows", 1)
        assert decision is not None
        (share,) = Facts.of(decision).sinks.values()
        self.first = Link(1, handle_digest(share.handle))

    def other(self, epochs: dict[int, int]) -> None:
        """Let the other copy commit these epochs, each with one row."""
        before = self.first
        sink = self.rig.targets[0].make()
        schema = self.rig.spark.createDataFrame([], SCHEMA).schema
        sink.open(SinkContext(self.owner, schema, "append", self.rig.spark, tell=lambda _: None))
        for epoch, n in epochs.items():
            of = EpochKey(self.owner, Attempt(stream="rows", timeline=1, epoch=epoch, attempt=1), 1, before)
            handle = sink.prepare(self.rig.spark.createDataFrame([(n, f"row {n}")], SCHEMA), of).handle
            sink.commit(of, handle)
            before = Link(epoch, handle_digest(handle))

    def overtaken(self, epochs: dict[int, int], at: int = 1, then: Callable[[], object] = lambda: None) -> None:
        """Run on while the other copy commits epochs, at the moment when the `at`-th epoch of this run is prepared."""
        prepared: list[str] = []

        def faster(point: str) -> None:
            if point == "all prepared":
                prepared.append(point)
                if len(prepared) == at:
                    self.other(epochs)
                    then()

        self.rig.run(faster)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        pytest.param({2: 12, 3: 13, 4: 14, 5: 15}, [[2]], id="several epochs behind"),
        pytest.param({3: 13, 4: 14}, [[2]], id="their epoch 2 was empty"),
        pytest.param({2: 12, 3: 13}, [[], [], [], [5]], id="ours were empty until they had stopped"),
        pytest.param({2: 12, 5: 15}, [[], [3]], id="neither has the other's last epoch"),
    ],
)
def test_a_copy_that_runs_behind_another_is_refused(
    kind: str, theirs: dict[int, int], ours: list[list[int]], spark: SparkSession, tmp_path: Path
) -> None:
    copied = Copied(kind, spark, tmp_path)
    for rows in ours:
        copied.rig.add(*rows)
    with pytest.raises(StreamFailed) as caught:
        copied.overtaken(theirs)
    assert isinstance(caught.value.__cause__, SinkForeign)
    assert "another copy of this repository" in str(caught.value)
    assert copied.rig.visible() == [[1, *theirs.values()]]
    with pytest.raises((SinkAhead, StreamFailed), match=r"last decision here is epoch|another copy"):
        copied.rig.run()
    assert copied.rig.visible() == [[1, *theirs.values()]]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [({2: 12, 3: 13, 4: 14}, [[2]]), ({2: 12, 3: 13, 4: 14, 5: 15}, [[], [3]])],
    ids=["at once", "after an empty epoch"],
)
def test_a_copy_whose_epoch_the_other_has_merged_is_refused(
    theirs: dict[int, int], ours: list[list[int]], spark: SparkSession, tmp_path: Path
) -> None:
    copied = Copied("files", spark, tmp_path)
    shutil.copytree(copied.rig.repository, tmp_path / "copy")
    for rows in ours:
        copied.rig.add(*rows)
    merged: list[int] = []

    def compact() -> None:
        copy = LocalRepository(tmp_path / "copy")
        done = apply_compact(copy, plan_compact(copy, tmp_path / "out"), spark, grace_s=0.0, take_over=True)
        merged.append(done.epochs)

    with pytest.raises(StreamFailed, match="another copy of this repository") as caught:
        copied.overtaken(theirs, len(ours), compact)
    assert isinstance(caught.value.__cause__, SinkForeign)
    assert merged == [len(theirs) - 1]
    assert copied.rig.visible() == [[1, *theirs.values()]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_copy_that_is_started_later_is_refused(kind: str, epochs: int, spark: SparkSession, tmp_path: Path) -> None:
    copied = Copied(kind, spark, tmp_path)
    rig = copied.rig
    shutil.copytree(rig.repository, tmp_path / "copy")
    for n in range(2, 2 + epochs):
        rig.add(n)
    rig.run()
    shutil.move(rig.repository, tmp_path / "original")
    shutil.move(tmp_path / "copy", rig.repository)
    with pytest.raises(SinkAhead, match=f"holds epoch {1 + epochs}, but the last decision here is epoch 1"):
        rig.run()
    shutil.move(rig.repository, tmp_path / "copy")
    shutil.move(tmp_path / "original", rig.repository)
    rig.add(9)
    rig.run()
    assert rig.visible() == [[*range(1, 2 + epochs), 9]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_that_went_back_while_the_pipeline_ran_is_refused(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    """It was restored from an older copy: the next epoch would leave a hole."""
    place = Place(kind, tmp_path, spark)
    sink = place.opened()
    of = replace(key(3), before=Link(2, "0" * 16))
    handle = place.staged(sink, of, 3)
    with pytest.raises(SinkBehind, match="is missing or empty, but epoch 2 was committed to it"):
        sink.commit(of, handle)
    assert sink.inspect(OWNER, 1).epoch == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_known_of_the_epoch_before_must_fit(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """A decision of an earlier version knows its number only, a sink that was added later not even that."""
    place = Place(kind, tmp_path, spark)
    sink = place.opened()
    digests = {}
    for epoch, before in ((1, Link(0, None)), (2, None), (4, Link(2, None))):
        of = replace(key(epoch), before=before)
        handle = place.staged(sink, of, epoch)
        sink.commit(of, handle)
        sink.commit(of, handle)
        digests[epoch] = handle_digest(handle)
    wrong = replace(key(5), before=Link(4, "0" * 16))
    other = place.staged(sink, wrong, 15)
    for each in (sink, place.opened()):
        with pytest.raises(SinkForeign, match="another copy"):
            each.commit(wrong, other)
    right = replace(key(5, attempt=2), before=Link(4, digests[4]))
    place.opened().commit(right, place.staged(sink, right, 5))
    assert sink.inspect(OWNER, 1).epoch == 5


def test_a_sink_that_was_added_or_had_been_removed_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    files, table = FilesTarget(tmp_path / "out"), SqliteTarget(tmp_path / "out.db")
    rig = Rig(spark, tmp_path, [files])
    rig.add(1)
    rig.run()
    for targets in ([files, table], [files], [files, table]):
        rig.targets = targets
        rig.add(len(rig.rows) + 1)
        rig.run(accept=("sinks",))
        rig.add(len(rig.rows) + 1)
        rig.run()
    assert rig.visible() == [[1, 2, 3, 4, 5, 6, 7], [2, 3, 6, 7]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["decided", "committing", "committed", "all committed"])
def test_a_crash_is_not_taken_for_a_copy(kind: str, point: str, spark: SparkSession, tmp_path: Path) -> None:
    """Also with epochs without rows before and after it, which leave no trace in most sinks."""
    copied = Copied(kind, spark, tmp_path)
    rig = copied.rig
    for numbers in ([], [2, 3], [], [4]):
        rig.add(*numbers)
        if numbers:
            rig.crash(CrashAt(point))
        rig.run()
    assert rig.visible() == [[1, 2, 3, 4]]
