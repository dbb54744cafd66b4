"""Two drivers commit one handle at the same moment, many times: both succeed, and the rows are there once.

`HOLDFAST_SINK_ROUNDS` repeats each race so many times.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

import holdfast.sinks.log
from handstaged import SCHEMA as HAND_SCHEMA
from handstaged import HandStaged, SqliteAppend, SqliteUndo, staging_of
from holdfast.epoch import Attempt
from holdfast.errors import SinkFailed, StagedDamaged
from holdfast.eventlog import EventLog, LogWriter, NewEvent
from holdfast.formats.sealed_json import digest_of
from holdfast.sinks._log_local import SEGMENTS_FILE, SegmentsRecord, listed_files
from holdfast.sinks.base import EpochKey, Sink, SinkContext, StreamIdentity
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.log import LogSink
from markersink import hand_staged
from pgfixture import server
from pgstaged import PostgresPrepared, PostgresStaged
from rig import MarkerTarget
from support import segment_files

OWNER = StreamIdentity("races", "uid", "s")


def rounds_or(default: int) -> int:
    """Return how often a race is repeated."""
    return int(os.environ.get("HOLDFAST_SINK_ROUNDS", default))


def committed_at_once(sinks: Sequence[Sink], key: EpochKey, handle: dict[str, Any]) -> list[str]:
    """Let every sink commit one handle at the same moment; return what went wrong, which must be nothing."""
    start, failures = threading.Barrier(len(sinks)), []

    def commit(sink: Sink) -> None:
        start.wait()
        try:
            sink.commit(key, handle)
        except Exception as error:  # whatever it is, it must not be
            failures.append(f"epoch {key.epoch}: {error!r}")

    threads = [threading.Thread(target=commit, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def staged(sink: FileSink, key: EpochKey) -> dict[str, object]:
    """Stage one file as Spark would."""
    folder = sink._staging.folder(key)
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_text("rows")
    record = KeyRecord(
        pipeline="races",
        uid="uid",
        stream="s",
        timeline=1,
        epoch=key.epoch,
        attempt=1,
        lease=1,
        rows=1,
        files={"part-0.parquet": 4},
    ).sealed()
    (folder / KEY_FILE).write_bytes(record)
    return {"rows": 1, "files": 1, "digest": digest_of(record)}


@pytest.mark.parametrize("layout", ["epochs", "flat"])
def test_two_drivers_at_once(layout: str, tmp_path: Path) -> None:
    schema = SimpleNamespace(fields=[SimpleNamespace(name="n", dataType=SimpleNamespace(typeName=lambda: "long"))])
    sinks = [FileSink(tmp_path / "out", layout=layout) for _ in range(2)]
    for sink in sinks:
        sink.open(SinkContext(OWNER, schema, "append", None))
    failures: list[str] = []
    rounds = rounds_or(500)
    for epoch in range(1, rounds + 1):
        key = EpochKey(OWNER, Attempt(stream="s", timeline=1, epoch=epoch, attempt=1), 1)
        handle = staged(sinks[0], key)
        failures += committed_at_once(sinks, key, handle)
    assert failures == []
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == rounds
    assert sinks[0].inspect(OWNER, 1).epoch == rounds


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_two_drivers_at_once_into_a_marker_sink(kind: str, tmp_path: Path) -> None:
    """SQLite makes one transaction wait for the other; in DuckDB one of them fails, and is tried again."""
    rounds = rounds_or(500 if kind == "sqlite" else 60)
    targets = [MarkerTarget(tmp_path / "out", duckdb=kind == "duckdb") for _ in range(2)]
    sinks = [target.make() for target in targets]
    for sink in sinks:
        sink.open(SinkContext(OWNER, HAND_SCHEMA, "append", None))
    failures: list[str] = []
    for epoch in range(1, rounds + 1):
        handle = hand_staged(sinks[0], key_of(epoch), epoch, -epoch).handle
        failures += committed_at_once(sinks, key_of(epoch), handle)
    assert failures == []
    assert targets[0].visible() == sorted(n for epoch in range(1, rounds + 1) for n in (epoch, -epoch))
    assert [sink.inspect(OWNER, 1).epoch for sink in sinks] == [rounds, rounds]


TABLES: dict[str, tuple[type[HandStaged], int]] = {  # and how often each race is repeated
    "sqlite": (SqliteAppend, 100),
    "sqlite upsert": (SqliteUndo, 100),
    "postgres prepared": (PostgresPrepared, 20),
    "postgres staged": (PostgresStaged, 20),
}


@pytest.mark.parametrize("kind", TABLES)
def test_two_drivers_at_once_into_a_table(kind: str, tmp_path: Path) -> None:
    """Each driver has connections of its own. One of them waits for the other, and then finds the epoch."""
    made, default = TABLES[kind]
    if issubclass(made, PostgresPrepared):
        server().start_again()
    contract, rounds = made(), rounds_or(default)
    sinks = [contract._open(None, tmp_path) for _ in range(2)]
    failures: list[str] = []
    for epoch in range(1, rounds + 1):
        key = contract._key(epoch)
        handle = contract._stage(None, sinks[epoch % 2], key, epoch, -epoch).handle
        failures += committed_at_once(sinks, key, handle)
    assert failures == []
    seen = sorted(n for n, _ in contract.visible(None, sinks[0]))
    assert seen == sorted(n for epoch in range(1, rounds + 1) for n in (epoch, -epoch))
    assert [sink.inspect(contract.owner, 1).epoch for sink in sinks] == [rounds, rounds]


SCHEMA = StructType([StructField("n", LongType())])


def staged_in_log(sink: LogSink, key: EpochKey, *counts: int) -> dict[str, object]:
    """Stage files of so many events each as Spark would."""
    folder = staging_of(sink).folder(key)
    log = EventLog.open(sink.path)
    files = segment_files(folder, log, *[[NewEvent("s", {"n": key.epoch})] * count for count in counts])
    listed = KeyRecord(
        pipeline="races",
        uid="uid",
        stream="s",
        timeline=1,
        epoch=key.epoch,
        attempt=1,
        lease=1,
        rows=sum(counts),
        files={each.path.name: each.size for each in files},
    )
    record = SegmentsRecord(segments=listed_files(folder, listed)).sealed()
    (folder / SEGMENTS_FILE).write_bytes(record)
    (folder / KEY_FILE).write_bytes(listed.sealed())
    return {"rows": sum(counts), "digest": digest_of(listed.sealed()), "segments": digest_of(record)}


def log_sink(path: Path) -> LogSink:
    sink = LogSink(path)
    sink.open(SinkContext(OWNER, SCHEMA, "append", None))
    return sink


def key_of(epoch: int) -> EpochKey:
    return EpochKey(OWNER, Attempt(stream="s", timeline=1, epoch=epoch, attempt=1), 1)


def test_two_drivers_at_once_into_a_log(tmp_path: Path) -> None:
    rounds = rounds_or(150)
    sinks = [log_sink(tmp_path / "log") for _ in range(2)]
    failures: list[str] = []
    for epoch in range(1, rounds + 1):
        key = key_of(epoch)
        handle = staged_in_log(sinks[0], key, 2, 1 + epoch % 3)
        failures += committed_at_once(sinks, key, handle)
    assert failures == []
    found = [event.payload["n"] for event in EventLog.open(tmp_path / "log").read()]
    assert found == [epoch for epoch in range(1, rounds + 1) for _ in range(3 + epoch % 3)]
    assert len(list((tmp_path / "log/segments").iterdir())) == 2 * rounds
    assert [sink.inspect(OWNER, 1).epoch for sink in sinks] == [rounds, rounds]


def test_a_paused_writer_is_waited_for_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, late = log_sink(tmp_path / "log"), log_sink(tmp_path / "log")
    first, second = staged_in_log(sink, key_of(1), 1), staged_in_log(sink, key_of(2), 1)
    sink.commit(key_of(1), first)
    monkeypatch.setattr(holdfast.sinks.log, "_LOCK_WAIT_S", 0.05)
    with LogWriter(tmp_path / "log"):
        late.commit(key_of(1), first)  # done: nobody is in the way
        with pytest.raises(SinkFailed, match=f"held by process {os.getpid()}"):
            late.commit(key_of(2), second)
    late.commit(key_of(2), second)
    assert EventLog.open(tmp_path / "log").tail == 2


def test_what_is_not_what_was_staged_never_enters_a_log(tmp_path: Path) -> None:
    sink = log_sink(tmp_path / "log")
    handle = staged_in_log(sink, key_of(1), 3)
    path = staging_of(sink).folder(key_of(1)) / "part-00000.parquet"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(StagedDamaged, match=r"part-00000\.parquet"):  # its key file has no digests, as earlier ones
        sink.commit(key_of(1), handle)
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(SinkFailed, match="3 rows were staged where 4 were counted"):
        sink.commit(key_of(1), handle | {"rows": 4})
    assert EventLog.open(tmp_path / "log").tail == 0
    sink.commit(key_of(1), handle)
    assert sink.mark() == {"log": EventLog.open(sink.path).identity, "tail": 3, "path": str(sink.path)}
