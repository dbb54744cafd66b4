"""A repository that was copied, and both run: the second to decide an epoch is told, and loses no rows in silence."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from holdfast.epoch import Attempt
from holdfast.errors import SinkForeign, StreamFailed
from holdfast.log import EventLog
from holdfast.sinks import log as logsink
from holdfast.sinks.base import Key, Owner, Setting, Sink
from holdfast.sinks.files import FileSink
from holdfast.sinks.log import LogSink
from holdfast.sinks.postgres import PostgresSink
from holdfast.sinks.sqlite import LEDGER, SqliteSink
from pgfixture import server
from rig import Rig, SqliteTarget

OWNER = Owner("shop", "uid-1", "orders")
SCHEMA = "n long, text string"
KINDS = ("files", "flat", "sqlite", "log", "prepared", "staged")


def key(epoch: int, *, attempt: int = 1, lease: int = 1) -> Key:
    return Key(OWNER, Attempt(stream=OWNER.stream, timeline=1, epoch=epoch, attempt=attempt), lease)


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

    def opened(self, owner: Owner = OWNER) -> Sink:
        sink = self.make()
        sink.open(Setting(owner, self.spark.createDataFrame([], SCHEMA).schema, "append", self.spark))
        return sink

    def staged(self, sink: Sink, of: Key, *numbers: int) -> dict[str, Any]:
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
        before.setattr(logsink, "_key", lambda key, _: f"uid-1/orders/t1-{key.epoch:010}")
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
        owner = Owner("torment", connection.execute(f"SELECT uid FROM {LEDGER}").fetchone()[0], "rows")  # noqa: S608
    connection.close()

    def faster(point: str) -> None:
        if point == "all prepared":
            place = Place("sqlite", tmp_path, spark)
            other = Key(owner, Attempt(stream="rows", timeline=1, epoch=2, attempt=1), 9)
            sink = place.opened(owner)
            sink.commit(other, place.staged(sink, other, 12))

    with pytest.raises(StreamFailed, match="another copy of this repository"):
        rig.run(faster)
    with pytest.raises(StreamFailed, match="another copy of this repository"):
        rig.run()
    assert rig.visible() == [[1, 12]]
