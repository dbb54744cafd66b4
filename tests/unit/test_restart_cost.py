"""A restart costs the same after ten times as many epochs: the folders that it lists and the files that it opens."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import fakespark
from holdfast.eventlog import EventLog
from holdfast.eventlog import index as ranges
from holdfast.eventlog import local_home as eventlogs
from holdfast.eventlog.segment import NewEvent, schema_of, to_table
from holdfast.formats.sealed_json import digest_of
from holdfast.sinks import _log_local as logsinks
from holdfast.sinks import sqlite as sqlitesinks
from holdfast.sinks._log_events import EventColumns, payload_type
from holdfast.sinks.base import EpochKey, Sink, Staged, StreamIdentity
from holdfast.sinks.files import sink as filesinks
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.log import LogSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.sinks.staging import Staging
from holdfast.spark.adapter import RETAINED
from holdfast.spark.epochs import PRUNE_EVERY
from holdfast.spark.stream import StreamRun
from support import segment_files

SCHEMA = StructType([StructField("n", LongType())])
FEW, MANY = 50, 500
PRUNED = ("offsets", "commits", "epochs")  # bounded by what Spark and the pruning of decisions retain


def staged(events: bool) -> Any:
    """Return a function that stages rows as `stage` does with Spark."""

    def stage(df: fakespark.Rows, key: EpochKey, staging: Staging, *_: object, **__: object) -> Staged:
        folder = staging.folder(key)
        folder.mkdir()
        payloads = [{"n": row} for row in df]
        rows = to_table([NewEvent("s", each) for each in payloads], schema_of(payload_type(SCHEMA), keep_clock=False))
        pq.write_table(rows if events else pa.Table.from_pylist(payloads), folder / "part-0.parquet")
        record = KeyRecord(
            pipeline=key.owner.pipeline,
            uid=key.owner.uid,
            stream=key.owner.stream,
            timeline=key.timeline,
            epoch=key.epoch,
            attempt=key.attempt.attempt,
            lease=key.lease or 0,
            rows=len(df),
            files={"part-0.parquet": (folder / "part-0.parquet").stat().st_size},
        ).sealed()
        (folder / KEY_FILE).write_bytes(record)
        return Staged({"rows": len(df), "files": 1, "digest": digest_of(record)}, len(df))

    return stage


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    fakespark.install(monkeypatch)
    for module, events in ((filesinks, False), (sqlitesinks, False), (logsinks, True)):
        monkeypatch.setattr(module, "stage", staged(events))
    monkeypatch.setattr(EventColumns, "events", lambda _, df, __: (df, lambda: None))
    monkeypatch.setattr(fakespark.Rows, "schema", SCHEMA)
    for sync in ("fsync", "fdatasync"):  # nothing here dies
        monkeypatch.setattr(os, sync, lambda _: None)


class Watch:
    """Counts the folders that are listed and the files that are opened below a folder. An audit hook stays for good."""

    def __init__(self) -> None:
        self.below: str | None = None
        self.found: list[tuple[str, str]] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if self.below is not None and event in ("open", "os.listdir", "os.scandir", "sqlite3.connect"):
            path = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes, os.PathLike)) else ""
            if path.startswith(self.below):
                self.found.append((event, path))

    def take(self) -> list[tuple[str, str]]:
        self.below, found, self.found = None, self.found, []
        return found


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    made = Watch()
    yield made
    made.below = None


class Pipeline(fakespark.Bench):
    """One stream into a sink that writes files."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder)
        self.folder, self.kind = folder, kind

    def sink(self) -> Sink:
        match self.kind:
            case "log":
                return LogSink(self.folder / "out")
            case "sqlite":
                return SqliteSink(self.folder / "out" / "db", table="rows", create=True)
            case layout:
                return FileSink(self.folder / "out", layout=layout)  # type: ignore[arg-type]

    def driver(self, *args: Any, **options: Any) -> StreamRun:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fakespark, "MemorySink", lambda *_: self.sink())
            return super().driver(*args, **options)

    def grow(self, epochs: int) -> None:
        self.source += [[number] for number in range(len(self.source), epochs)]
        self.run()

    def restart(self, watch: Watch) -> tuple[Counter[str], Counter[str]]:
        """Restart, and run one epoch; return how often each kind of file was used, and the names in listed folders."""
        self.source.append([len(self.source)])
        watch.below = str(self.folder)
        self.run()
        found = watch.take()
        kinds = Counter(f"{event} {Path(path).parent.relative_to(self.folder.parent)}" for event, path in found)
        listed = {path for event, path in found if event != "open" and Path(path).is_dir()}
        return kinds, Counter({Path(path).name: len(os.listdir(path)) for path in listed})  # noqa: PTH208


@pytest.mark.parametrize("kind", ["epochs", "flat", "log", "sqlite"])
def test_a_restart_lists_and_opens_the_same_after_many_epochs(kind: str, tmp_path: Path, watch: Watch) -> None:
    pipeline = Pipeline(tmp_path, kind)
    pipeline.grow(FEW)
    few, few_names = pipeline.restart(watch)
    pipeline.grow(MANY)
    many, many_names = pipeline.restart(watch)
    assert few and many.total() == few.total(), (many - few, few - many)
    for name, count in many_names.items():
        bound = PRUNE_EVERY + RETAINED + 10 if name in PRUNED[2:] else MANY + 10 if name in PRUNED else 10
        assert count <= bound, (name, few_names[name], count)


def test_a_restart_reads_the_end_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(tmp_path, "log")
    pipeline.grow(MANY)
    size = (tmp_path / "out" / "index").stat().st_size
    read: list[int] = []
    real = eventlogs.read_index

    def watched(folder: Path, start: int, end: int) -> bytes:
        read.append(end - start)
        return real(folder, start, end)

    monkeypatch.setattr(eventlogs, "read_index", watched)
    pipeline.source.append([MANY])
    pipeline.run()
    assert sum(read) < 40_000 < size // 2


def test_a_log_shows_the_epochs_of_all_its_timelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its end has keys of later timelines only, or of none: then the whole index is read."""
    monkeypatch.setattr(ranges, "_ANCHOR_EVERY", 500)
    pipeline = Pipeline(tmp_path, "log")
    pipeline.grow(20)
    owner = StreamIdentity("pipeline", pipeline.identity.uid, "rows")
    sink = LogSink(tmp_path / "out")
    assert [sink.inspect(owner, timeline).epoch for timeline in (1, 2)] == [20, 0]
    with EventLog.open(tmp_path / "out").writer() as writer:
        for _ in range(20):
            writer.cancel(1, "by another program")
    assert [LogSink(tmp_path / "out").inspect(owner, timeline).epoch for timeline in (1, 2)] == [20, 0]
    assert [sink.inspect(owner, timeline).epoch for timeline in (1, 2)] == [20, 0]
    with EventLog.open(tmp_path / "out").writer() as writer:
        files = segment_files(tmp_path / "files", EventLog.open(tmp_path / "out"), *[[NewEvent("s", {"n": 1})]] * 20)
        for epoch, file in enumerate(files, 21):
            writer.adopt([file], f"{owner.uid}/rows/t2-{epoch:010}/{'0' * 16}")
    for fresh in (sink, LogSink(tmp_path / "out")):
        assert [fresh.inspect(owner, timeline).epoch for timeline in (3, 2, 1)] == [0, 40, 20]
    assert LogSink(tmp_path / "out").inspect(StreamIdentity("pipeline", "f" * 32, "rows"), 1).foreign
