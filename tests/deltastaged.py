"""Delta tables as tests see them: epochs that are staged by hand, and rows read by delta-rs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import duckdb
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from handstaged import HandStaged, table_of
from holdfast.epoch import Attempt, Reach, unwatched
from holdfast.sinks.base import EpochKey, Sink, SinkContext, Staged, StreamIdentity
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.testing.take_back import VisibleRows
from lakeframe import AnySession, LakeFrame
from rig import Target

SCHEMA = StructType([StructField("n", LongType()), StructField("text", StringType())])
OWNER = StreamIdentity("contract", "0" * 31 + "1", "rows")


class DeltaByHand(HandStaged):
    """The contract, with rows that are staged by hand."""

    is_spawned = True
    options: ClassVar[dict[str, Any]] = {}

    def make(self, folder: Path) -> Sink:
        return DeltaSink(self.place(folder), **self.options)

    def place(self, folder: Path) -> str | Path:
        return folder / "table"

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, DeltaSink)
        return rows_of(sink)

    def _open(self, spark: Any, folder: Path, *, reach: Reach = unwatched) -> Sink:
        sink = self.make(folder)
        sink.open(context_for(self.owner, self.output_mode, reach=reach))
        return sink

    def _stage(self, spark: Any, sink: Sink, key: EpochKey, *numbers: int) -> Staged:
        return sink.prepare(frame_of(*numbers), key)


class HandDeltaSink(DeltaSink):
    """A real DeltaSink, for a driver with a fake query: each epoch is a list of numbers."""

    def open(self, context: SinkContext) -> None:
        session: Any = AnySession()
        super().open(replace(context, spark=session, schema=SCHEMA))

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        return super().prepare(frame_of(*df), key)


class DeltaTarget(Target):
    """A table of a pipeline with Spark."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(lambda: DeltaSink(path, **options))
        self.path = path

    def visible(self, spark: Any = None, columns: str = "n") -> list[Any]:
        if not (self.path / "_delta_log").exists():
            return []
        found = DeltaTable(self.path).to_pyarrow_table(columns=columns.split()).to_pylist()
        rows = [tuple(row.values()) for row in found]
        return sorted(row[0] if len(row) == 1 else row for row in rows)

    def visible_to_duckdb(self) -> list[tuple[Any, ...]]:
        """Return n and text of all rows, as DuckDB reads them from the files that the table's log names."""
        return sorted(
            duckdb_rows([unquote(each.removeprefix("file://")) for each in DeltaTable(self.path).file_uris()])
        )

    def staged(self) -> int:
        """Attempts whose files are not part of the table."""
        if not (self.path / "_delta_log").exists():
            return 0
        named = {Path(unquote(each.removeprefix("file://"))) for each in DeltaTable(self.path).file_uris()}
        attempts = {each for each in self.path.glob("hf/*/*/*") if list(each.rglob("*.parquet"))}
        return len([each for each in attempts if not {*each.rglob("*.parquet")} & named])


def context_for(
    owner: StreamIdentity = OWNER,
    output_mode: str = "append",
    *,
    schema: StructType = SCHEMA,
    reach: Reach = unwatched,
) -> SinkContext:
    session: Any = AnySession()
    return SinkContext(owner, schema, output_mode, session, reach=reach, tell=lambda _: None)


def frame_of(*numbers: int) -> Any:
    """Return rows as a DataFrame that a sink can write."""
    return LakeFrame(table_of(*numbers), SCHEMA)


def key_of(epoch: int, *, timeline: int = 1, attempt: int = 1, lease: int = 1) -> EpochKey:
    return EpochKey(OWNER, Attempt(stream=OWNER.stream, timeline=timeline, epoch=epoch, attempt=attempt), lease)


def rows_of(sink: DeltaSink) -> VisibleRows:
    """Return the rows that delta-rs reads, after comparing them with what DuckDB reads from the table's files."""
    if not sink._log.exists():
        return []
    table = DeltaTable(sink.path, storage_options=sink._log._options())
    found = sorted(tuple(row[name] for name in ("n", "text")) for row in table.to_pyarrow_table().to_pylist())
    assert table.count() == len(found)
    if sink.folder.bucket is None and not table.metadata().partition_columns:
        files = [unquote(each.removeprefix("file://")) for each in table.file_uris()]
        assert sorted(duckdb_rows(files)) == found
    return found


def duckdb_rows(files: list[str]) -> list[tuple[Any, ...]]:
    """Read Parquet files with DuckDB: its extension for Delta is not in every registry."""
    if not files:
        return []
    with duckdb.connect() as connection:
        return connection.execute("SELECT n, text FROM read_parquet(?)", [files]).fetchall()
