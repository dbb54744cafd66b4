"""Epochs that are staged by hand, as Spark would stage them: sinks can be tested without a JVM."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.epoch import Reach, unwatched
from holdfast.eventlog import EventLog, NewEvent
from holdfast.eventlog.segment import to_table
from holdfast.formats.sealed_json import digest_of
from holdfast.sinks._log_local import SEGMENTS_FILE, LocalPlace, SegmentsRecord, listed_files
from holdfast.sinks._log_store import StorePlace
from holdfast.sinks._log_task import RESULT_SCHEMA
from holdfast.sinks.base import EpochKey, Sink, SinkContext, Staged, StreamIdentity
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.log import LogSink
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.sinks.staged_files import key_record
from holdfast.sinks.staging import Staging
from holdfast.testing.take_back import TakeBackContract, VisibleRows

SCHEMA = StructType([StructField("n", LongType()), StructField("text", StringType())])


class NoConf:
    """The settings of a session that has none."""

    def get(self, name: str, otherwise: str = "") -> str:
        return otherwise


class NoSession:
    """A Spark session, as far as `open` needs one."""

    conf = NoConf()


class ArrowFrame:
    """A DataFrame, as far as a PostgresSink needs one. The copy runs in this process."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.columns = table.column_names

    def toDF(self, *names: str) -> ArrowFrame:  # noqa: N802 - Spark's name
        return ArrowFrame(self.table.rename_columns(list(names)))

    def coalesce(self, _: int) -> ArrowFrame:
        return self

    def mapInArrow(self, copier: Any, _: str) -> ArrowFrame:  # noqa: N802 - Spark's name
        """Two tasks: one copies the first row, the other one the rest."""
        parts = [self.table.slice(0, 1), self.table.slice(1)]
        found = [made for part in parts for made in copier(iter(part.to_batches()))]
        return ArrowFrame(
            pa.Table.from_batches(
                found, pa.schema([("part", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
            )
        )

    def collect(self) -> list[dict[str, Any]]:
        return self.table.to_pylist()


class HandStaged(TakeBackContract):
    """The contract, with rows that are staged by hand."""

    is_spawned: ClassVar[bool] = False  # a process for it must not be forked

    def _open(self, spark: Any, folder: Path, *, reach: Reach = unwatched) -> Sink:
        sink = self.make(folder)
        context = SinkContext(
            self.owner,
            SCHEMA,
            self.output_mode,
            NoSession(),
            reach=reach,
            tell=lambda _: None,  # type: ignore[arg-type]
        )
        sink.open(context)
        return sink

    def _stage(self, spark: Any, sink: Sink, key: EpochKey, *numbers: int) -> Staged:
        if isinstance(sink, PostgresSink):
            return sink.prepare(ArrowFrame(table_of(*numbers)), key)  # type: ignore[arg-type]
        if isinstance(sink, LogSink):
            return Staged(staged_events(sink, key, *numbers), len(numbers))
        assert isinstance(sink, FileSink | SqliteSink)
        handle = staged_files(sink._staging, key, table_of(*numbers))
        if isinstance(sink, SqliteSink):
            effect = "replace" if sink._replaces else "upsert" if sink.key else "append"
            handle |= {"effect": effect, "key": sink.key}
        return Staged(handle, len(numbers))


class FilesByEpoch(HandStaged):
    layout = "epochs"

    def make(self, folder: Path) -> Sink:
        return FileSink(folder / "out", layout=self.layout)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, FileSink)
        if not list(sink.path.rglob("*part-*")):
            return []
        found = ds.dataset(sink.path, format="parquet", partitioning="hive").to_table(columns=["n", "text"])
        return [tuple(row.values()) for row in found.to_pylist()]


class SqliteAppend(HandStaged):
    options: ClassVar[dict[str, Any]] = {"epoch_column": "epoch"}

    def make(self, folder: Path) -> Sink:
        return SqliteSink(folder / "out.db", "rows", **self.options)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, SqliteSink)
        return query(sink.path, "SELECT n, text FROM rows")


class SqliteUndo(SqliteAppend):
    options: ClassVar[dict[str, Any]] = {"key": "n", "undo": True}


class Log(HandStaged):
    def make(self, folder: Path) -> Sink:
        return LogSink(folder / "log", entity="text")

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, LogSink)
        return [(event.payload["n"], event.payload["text"]) for event in EventLog.open(sink.path).read()]


class StoreLog(Log):
    """The same log on a store. A folder stands for an address below `root`."""

    root: str

    def make(self, folder: Path) -> Sink:
        return LogSink(f"{self.root}/{folder.name}/log", entity="text")


def staged_events(sink: LogSink, key: EpochKey, *numbers: int) -> dict[str, Any]:
    """Stage events as one future segment, and return the handle."""
    rows = [NewEvent(f"row {n}", {"n": n, "text": f"row {n}"}) for n in numbers]
    table = to_table(rows, EventLog.open(sink.path).schema)
    if isinstance(sink._place, StorePlace):
        return sink._place.stage(TaskFrame(table), key, sink.context, sink._view()).handle  # type: ignore[arg-type]
    staging = staging_of(sink)
    handle = staged_files(staging, key, table)
    folder = staging.folder(key)
    record = SegmentsRecord(segments=listed_files(folder, key_record(folder, key, handle, sink.name))).sealed()
    (folder / SEGMENTS_FILE).write_bytes(record)
    return handle | {"segments": digest_of(record)}


class TaskFrame:
    """A DataFrame of one partition, as far as a LogSink on a store needs one. The task runs in this process."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def mapInArrow(self, task: Any, _: str) -> TaskFrame:  # noqa: N802 - Spark's name
        return TaskFrame(pa.Table.from_batches(list(task(iter(self.table.to_batches()))), RESULT_SCHEMA))

    def collect(self) -> list[dict[str, Any]]:
        return self.table.to_pylist()


def staging_of(sink: LogSink) -> Staging:
    """The staging folder of a log on this machine."""
    assert isinstance(sink._place, LocalPlace)
    return sink._place.staging


def query(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def table_of(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})


def _write_parquet(table: pa.Table, folder: Path) -> str:
    name = "part-00000-c000.snappy.parquet"
    pq.write_table(table, folder / name)
    return name


def staged_files(
    staging: Staging, key: EpochKey, table: pa.Table, *, write: Callable[[pa.Table, Path], str] = _write_parquet
) -> dict[str, Any]:
    """Stage a table as one file, and return the handle. `write` makes the file and returns its name."""
    folder = staging.folder(key)
    folder.mkdir(parents=True)
    name = write(table, folder)
    owner: StreamIdentity = key.owner
    record = KeyRecord(
        pipeline=owner.pipeline,
        uid=owner.uid,
        stream=owner.stream,
        timeline=key.timeline,
        epoch=key.epoch,
        attempt=key.attempt.attempt,
        lease=key.lease or 0,
        rows=table.num_rows,
        files={name: (folder / name).stat().st_size},
        shape="x",
        options={},
    ).sealed()
    (folder / KEY_FILE).write_bytes(record)
    return {"rows": table.num_rows, "files": 1, "digest": digest_of(record)}
