"""Outages: a running stream waits for what is unavailable, says so, and goes on; nothing is lost or doubled."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from holdfast.errors import BadValue, CheckpointFailed, OutageTooLong, SinkFailed, SinkUnavailable, StreamFailed
from holdfast.policy import Backoff, CheckpointPolicy
from holdfast.repository import Gaps, LocalRepository, files
from holdfast.sinks.files.sink import FileSink
from holdfast.spark.context import StreamCallbacks
from holdfast.spark.outages import Outage
from holdfast.spark.pipeline import Pipeline
from pgfixture import Postgres, server
from rig import FilesTarget, PostgresTarget, Rig, SqliteTarget
from support import eventually

QUICK = Backoff(first=0.01, longest=0.05)
OUTAGE_S = float(os.environ.get("OUTAGE_S", "2"))  # `make soak` takes ten minutes


class Seen:
    """What the callbacks were given."""

    def __init__(self) -> None:
        self.outages: list[Outage] = []
        self.over: list[Outage] = []
        self.restarts: list[Exception] = []
        self.callbacks = StreamCallbacks(
            on_outage=lambda _, outage: self.outages.append(outage),
            on_outage_over=lambda _, outage: self.over.append(outage),
            on_restart=lambda _, error, __: self.restarts.append(error),
        )


@pytest.fixture
def pg() -> Iterator[Postgres]:
    found = server()
    yield found
    found.start_again()


@pytest.mark.parametrize("method", ["prepared", "staged"])
def test_a_server_that_is_down_is_waited_for(
    method: str, pg: Postgres, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped and killed under a running pipeline: it waits, says so, and goes on; no restart is used."""
    table = PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True, method=method)
    seen = Seen()
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out"), table])
    rig.add(1)
    handle = rig.pipeline(outage="1h", backoff=QUICK, callbacks=seen.callbacks).start(spark)
    try:
        for number, end in enumerate((pg.stop, pg.kill), 1):
            eventually(lambda: handle.status().streams["rows"].epoch == 2 * number - 1)  # noqa: B023
            end()
            rig.add(2 * number)
            failed = len(seen.outages)
            eventually(lambda: len(seen.outages) >= failed + 5)  # noqa: B023
            status = handle.status().streams["rows"]
            assert status.outage is not None
            assert (status.outage.kind, status.restarts) == ("sink", 0)
            pg.start()
            rig.add(2 * number + 1)
            eventually(lambda: len(seen.over) == number)  # noqa: B023
        eventually(lambda: handle.status().streams["rows"].epoch == 5)
        assert handle.status().streams["rows"].outage is None
    finally:
        handle.stop()
    assert handle.await_termination(60).streams["rows"].state == "stopped"
    assert rig.visible() == [[1, 2, 3, 4, 5]] * 2
    assert seen.restarts == []
    assert [outage.tries for outage in seen.outages[:3]] == [1, 2, 3]
    waits = [record for record in caplog.records if "waits for an outage to end" in record.message]
    warned = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    at_start = [record for record in warned if "cannot be taken back by a rewind" in record.message]
    assert len(waits) == len(seen.outages)  # one line for each try
    assert len(warned) <= len(waits) + len(at_start) + 2 * 2  # each outage's end, and what recovery finished after it


def test_input_that_arrives_during_a_long_outage_is_neither_lost_nor_doubled(
    pg: Postgres, spark: SparkSession, tmp_path: Path
) -> None:
    """`OUTAGE_S` seconds with the default backoff; input arrives all the while."""
    table = PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True)
    seen = Seen()
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out"), table])
    rig.add(0)
    handle = rig.pipeline(outage="1h", backoff=Backoff(), callbacks=seen.callbacks).start(spark)
    eventually(lambda: handle.status().streams["rows"].epoch == 1)
    pg.stop()
    end, number = time.monotonic() + OUTAGE_S, 0
    while time.monotonic() < end:
        number += 1
        rig.add(number)
        time.sleep(min(OUTAGE_S / 20, 5))
    down = handle.status().streams["rows"]
    pg.start()
    eventually(lambda: seen.over, 180)
    eventually(lambda: handle.status().streams["rows"].epoch == number + 1, 60 + number * 5)
    handle.stop()
    tries = [(round(each.waited_s), round(each.next_try_s, 1)) for each in seen.outages]
    print(
        f"down {OUTAGE_S:g} s, {number + 1} rows; state {down.state}, tries (waited, next in) {tries}; {seen.over[0]}"
    )
    assert (down.outage is not None, down.restarts) == (True, 0)
    assert rig.visible() == [list(range(number + 1))] * 2


def test_an_outage_that_lasts_too_long_ends_with_how_long_it_was(
    pg: Postgres, spark: SparkSession, tmp_path: Path
) -> None:
    table = PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True)
    rig = Rig(spark, tmp_path, [table])
    rig.add(1)
    seen = Seen()
    handle = rig.pipeline(outage={"sink": "1s"}, backoff=QUICK, callbacks=seen.callbacks).start(spark)
    eventually(lambda: handle.status().streams["rows"].epoch == 1)
    pg.stop()
    rig.add(2)
    with pytest.raises(OutageTooLong) as caught:
        handle.await_termination(120)
    error = caught.value
    assert isinstance(error, StreamFailed)
    assert (error.failure, error.restarts, error.tries > 5) == ("sink", 0, True)
    assert error.waited >= 1
    assert "an outage (sink) has lasted" in str(error)
    assert isinstance(error.__cause__, SinkUnavailable)


def test_a_first_start_does_not_wait(pg: Postgres, spark: SparkSession, tmp_path: Path) -> None:
    """A typing error in an address looks the same."""
    rig = Rig(spark, tmp_path, [PostgresTarget("host=127.0.0.1 port=1 connect_timeout=2", "rows", create=True)])
    rig.add(1)
    with pytest.raises(SinkUnavailable, match="port=1"):
        rig.run(outage="1h")


def test_what_a_server_refuses_is_not_an_outage(pg: Postgres, spark: SparkSession, tmp_path: Path) -> None:
    """It answers: a database that is missing stays missing."""
    db = pg.fresh_database()
    rig = Rig(spark, tmp_path, [PostgresTarget(pg.dsn(db), "rows", create=True)])
    rig.add(1)
    handle = rig.pipeline(outage="1h", backoff=QUICK).start(spark)
    eventually(lambda: handle.status().streams["rows"].epoch == 1)
    kept = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{db}'"  # noqa: S608 - a name of ours
    pg.execute(kept)  # connections are kept, and a database in use cannot be renamed
    pg.execute(f"ALTER DATABASE {db} RENAME TO {db}_away")
    rig.add(2)
    with pytest.raises(StreamFailed) as caught:
        handle.await_termination(120)
    assert not isinstance(caught.value, OutageTooLong)
    assert (caught.value.failure, type(caught.value.__cause__)) == ("sink", SinkFailed)


def full(where: str, times: int) -> tuple[Callable[..., None], list[str]]:
    """Return a `write_all` that finds no space below a folder, so often."""
    write_all, failed = files.write_all, []

    def write(descriptor: int, data: Any) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if where in path and len(failed) < times:
            failed.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(descriptor, data)

    return write, failed


def test_a_full_disk_under_the_repository_is_its_outage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    for n in (1, 2, 3):
        rig.add(n)
    rig.run()
    rig.add(4)
    handle = rig.pipeline(outage="1h", backoff=QUICK, callbacks=seen.callbacks).start(spark, reach=_once(monkeypatch))
    eventually(lambda: seen.over)
    handle.stop()
    assert rig.visible() == [[1, 2, 3, 4]]
    assert {outage.kind for outage in seen.outages} == {"repository"}
    assert "No space left" in seen.outages[0].error
    assert seen.restarts == []


def _once(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the disk be full from the first epoch on, for four writes."""

    def reach(point: str) -> None:
        if point == "all prepared" and not begun:
            begun.append(point)
            monkeypatch.setattr(files, "write_all", full("/root/torment", 4)[0])

    begun: list[str] = []
    return reach


class Full(FileSink):
    """A sink of the user's on a disk that is full for a while."""

    def __init__(self, path: Path, times: int, error: Callable[[], Exception]) -> None:
        super().__init__(path)
        self.left, self.error = times, error

    def prepare(self, df: DataFrame, key: Any) -> Any:
        if self.left:
            self.left -= 1
            raise self.error()
        return super().prepare(df, key)


OUTAGES: dict[str, Callable[[], Exception]] = {
    "full": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "refused": lambda: ConnectionRefusedError(111, "Connection refused"),
    "typed": lambda: SinkUnavailable(sink="files.out", action="prepare", why="the warehouse is paused"),
}


@pytest.mark.parametrize("what", OUTAGES)
def test_an_outage_of_a_sink_is_never_poison(what: str, spark: SparkSession, tmp_path: Path) -> None:
    """Five equal failures, with quarantine after two: the epoch is not passed over, and no restart is used."""
    seen = Seen()
    sink = Full(tmp_path / "out", 5, OUTAGES[what])
    target = FilesTarget(tmp_path / "out")
    target.make = lambda: sink
    rig = Rig(spark, tmp_path, [target], quarantine_after=2)
    rig.add(1)
    rig.run(outage="1h", backoff=QUICK, callbacks=seen.callbacks)
    assert rig.visible() == [[1]]
    assert [(outage.kind, outage.tries) for outage in seen.outages] == [("sink", n) for n in range(1, 6)]
    assert (len(seen.over), seen.restarts) == (1, [])
    assert Gaps(LocalRepository(rig.repository)).all("rows", 1) == []


def test_a_stream_is_stopped_while_it_waits(spark: SparkSession, tmp_path: Path) -> None:
    waiting = threading.Event()
    sink = Full(tmp_path / "out", 99, OUTAGES["refused"])
    target = FilesTarget(tmp_path / "out")
    target.make = lambda: sink
    rig = Rig(spark, tmp_path, [target])
    rig.add(1)
    callbacks = StreamCallbacks(on_outage=lambda *_: waiting.set())
    handle = rig.pipeline(outage="1h", backoff=Backoff(first=300, longest=300), callbacks=callbacks).start(spark)
    assert waiting.wait(120)
    eventually(lambda: handle.status().streams["rows"].state == "waiting")
    handle.stop()
    assert handle.await_termination(60).streams["rows"].state == "stopped"
    sink.left = 0
    rig.run()
    assert rig.visible() == [[1]]


class Down(FileSink):
    """A sink whose server is down: what was decided cannot be committed."""

    down = True

    def commit(self, key: Any, handle: Any) -> None:
        if self.down:
            raise ConnectionRefusedError(111, "Connection refused")
        super().commit(key, handle)


def test_a_checkpoint_that_fails_during_an_outage_is_tolerable(spark: SparkSession, tmp_path: Path) -> None:
    """A stream with an epoch in doubt cannot acknowledge."""
    waiting = threading.Event()
    sink = Down(tmp_path / "out")
    target = FilesTarget(tmp_path / "out")
    target.make = lambda: sink
    rig = Rig(spark, tmp_path, [target])
    rig.add(1)
    callbacks = StreamCallbacks(on_outage=lambda *_: waiting.set())
    policy = CheckpointPolicy(every=None, timeout=0.2, tolerable_failures=0)
    handle = rig.pipeline(outage="1h", backoff=QUICK, callbacks=callbacks).start(spark, checkpoint_every=policy)
    assert waiting.wait(120)
    with pytest.raises(CheckpointFailed):
        handle.checkpoint(timeout=120)
    sink.down = False
    eventually(lambda: handle.status().streams["rows"].epoch == 1)
    handle.stop()
    assert handle.await_termination(60).streams["rows"].state == "stopped"
    assert rig.visible() == [[1]]


def test_the_limits_of_a_run_replace_those_of_the_program(spark: SparkSession, tmp_path: Path) -> None:
    sink = Full(tmp_path / "out", 2, OUTAGES["refused"])
    target = FilesTarget(tmp_path / "out")
    target.make = lambda: sink
    rig = Rig(spark, tmp_path, [target])
    rig.add(1)
    with pytest.raises(StreamFailed) as caught:
        rig.pipeline(outage="1h", backoff=QUICK).run(spark, available_now=True, outage={"sink": 0})
    assert not isinstance(caught.value, OutageTooLong)
    rig.pipeline(outage=0, backoff=QUICK).run(spark, available_now=True, outage={"sink": "1h"})
    assert rig.visible() == [[1]]


@pytest.mark.parametrize("bad", ["soon", -1, {"sinks": "1h"}, {"sink": "soon"}, True])
def test_limits_that_make_no_sense_are_refused(bad: Any, tmp_path: Path) -> None:
    rig = Rig(None, tmp_path, [FilesTarget(tmp_path / "out")])  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="outage"):
        rig.pipeline(outage=bad)


def test_a_lost_disk_of_sqlite_is_an_outage(tmp_path: Path) -> None:
    import sqlite3

    sink = SqliteTarget(tmp_path / "out.db").make()
    away = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_READONLY", "SQLITE_READONLY_DIRECTORY")
    for name, kind in (*((each, SinkUnavailable) for each in away), ("SQLITE_CONSTRAINT", SinkFailed)):
        with pytest.raises(SinkFailed) as caught, sink._failing("commit"):  # type: ignore[attr-defined]
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = name
            raise error
        assert type(caught.value) is kind


def test_a_database_of_sqlite_that_is_locked_or_gone_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from holdfast.sinks import sqlite

    monkeypatch.setattr(sqlite, "_BUSY_S", 0.01)
    (tmp_path / "disk").mkdir()
    sink: Any = SqliteTarget(tmp_path / "disk" / "out.db").make()
    other = sqlite3.connect(sink.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SinkUnavailable, match="locked"), sink._failing("commit"), sink._connected():
        pass
    other.close()
    (tmp_path / "disk").rename(tmp_path / "elsewhere")
    with pytest.raises(SinkUnavailable, match="unable to open"), sink._failing("commit"), sink._connected():
        pass


def test_a_connection_that_postgresql_closed_as_idle_is_an_outage() -> None:
    """As after the process was suspended inside of a transaction. psycopg does not call this operational."""
    from psycopg import errors

    from holdfast.sinks.postgres.server import _kind

    for error, kind in (
        (errors.IdleInTransactionSessionTimeout, SinkUnavailable),  # 25P03
        (errors.AdminShutdown, SinkUnavailable),
        (errors.InFailedSqlTransaction, SinkFailed),
        (errors.InternalError, SinkFailed),
    ):
        assert _kind(error("FATAL: terminating connection")) is kind


def test_user_code_whose_server_is_down_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    """A function that asks a server: it comes back while the stream waits."""
    seen, flag = Seen(), tmp_path / "up"

    def asks(df: DataFrame) -> DataFrame:
        path = str(flag)

        def ask(n: int) -> int:
            if not os.path.exists(path):  # noqa: PTH110 - it runs in a worker
                raise ConnectionRefusedError(111, "Connection refused")
            return n

        return df.withColumn("n", f.udf(ask, "long", useArrow=False)("n"))

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")], asks)
    rig.add(1)
    handle = rig.pipeline(outage="1h", backoff=QUICK, callbacks=seen.callbacks).start(spark)
    eventually(lambda: len(seen.outages) >= 3)
    flag.touch()
    eventually(lambda: seen.over)
    handle.stop()
    assert rig.visible() == [[1]]
    assert {outage.kind for outage in seen.outages} == {"user code"}


def answering(spark: SparkSession, folder: Path) -> Path:
    """Register a source that has one row, and cannot be reached while the returned file exists."""
    down = str(folder / "down")

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"n": 0}

        def latestOffset(self) -> dict[str, int]:  # noqa: N802
            if os.path.exists(down):  # noqa: PTH110 - it runs in a worker
                raise ConnectionRefusedError(111, "Connection refused")
            return {"n": 1}

        def partitions(self, start: Any, end: Any) -> list[InputPartition]:
            return [InputPartition((start["n"], end["n"]))]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
            for n in range(*partition.value):
                yield n, "row"

        def commit(self, end: Any) -> None:
            pass

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "answering"

        def schema(self) -> str:
            return "n long, text string"

        def streamReader(self, schema: Any) -> Reader:  # noqa: N802
            return Reader()

    spark.dataSource.register(Source)
    return Path(down)


def test_an_outage_of_a_source_is_over_when_it_answers_though_it_has_no_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Else the next one, hours later, would exceed the limit at once."""
    seen, down = Seen(), answering(spark, tmp_path)
    pipeline = Pipeline("idle", tmp_path / "root", outage="1h", backoff=QUICK, callbacks=seen.callbacks)
    source = spark.readStream.format("answering")
    pipeline.stream(lambda _: source.load(), name="rows", sinks=[FileSink(tmp_path / "out")])
    with pipeline.start(spark) as handle:
        eventually(lambda: handle.status().streams["rows"].epoch == 1)
        for number in (1, 2):
            before = len(seen.outages)
            down.touch()
            eventually(lambda: len(seen.outages) >= before + 2)  # noqa: B023
            assert [each.tries for each in seen.outages[before : before + 2]] == [1, 2]
            assert handle.status().streams["rows"].outage is not None
            down.unlink()
            eventually(lambda: len(seen.over) == number)  # noqa: B023
            status = handle.status().streams["rows"]
            assert (status.state, status.epoch, status.outage) == ("running", 1, None)
    assert seen.over[1].since_ms > seen.over[0].since_ms
