"""Iceberg tables as tests see them: epochs that are staged by hand, and rows read by PyIceberg and DuckDB."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import duckdb
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField
from pyspark.sql.types import LongType, StringType, StructField, StructType

from handstaged import table_of
from holdfast.epoch import Attempt, Reach, unwatched
from holdfast.sinks.base import EpochKey, Sink, SinkContext, Staged, StreamIdentity
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.testing.take_back import TakeBackContract, VisibleRows
from lakeframe import AnySession, LakeFrame
from rig import Target

SCHEMA = StructType([StructField("n", LongType()), StructField("text", StringType())])
OWNER = StreamIdentity("contract", "0" * 31 + "1", "rows")


class IcebergByHand(TakeBackContract):
    """The contract, with rows that are staged by hand. The catalog is a SQLite file."""

    is_spawned = False

    options: ClassVar[dict[str, Any]] = {}

    def make(self, folder: Path) -> Sink:
        folder.mkdir(exist_ok=True)
        return IcebergSink("shop.rows", catalog=self.catalog(folder), **self.options)

    def catalog(self, folder: Path) -> dict[str, str]:
        return sqlite_catalog(folder)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, IcebergSink)
        return rows_of(sink)

    def _open(self, spark: Any, folder: Path, *, reach: Reach = unwatched) -> Sink:
        sink = self.make(folder)
        sink.open(context_for(self.owner, self.output_mode, reach=reach))
        return sink

    def _stage(self, spark: Any, sink: Sink, key: EpochKey, *numbers: int) -> Staged:
        return sink.prepare(frame_of(*numbers), key)


class HandIcebergSink(IcebergSink):
    """A real IcebergSink, for a driver with a fake query: each epoch is a list of numbers."""

    def open(self, context: SinkContext) -> None:
        session: Any = AnySession()
        super().open(replace(context, spark=session, schema=SCHEMA))

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        return super().prepare(frame_of(*df), key)


class IcebergTarget(Target):
    """A table of a pipeline with Spark. Its catalog is a SQLite file in a folder."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.catalog = sqlite_catalog(folder)
        super().__init__(lambda: IcebergSink("shop.rows", catalog=self.catalog, **options))
        self.folder = folder

    def _table(self) -> Table | None:
        sink = IcebergSink("shop.rows", catalog=self.catalog)
        try:
            return sink._at.load()
        finally:
            sink.close()

    def visible(self, spark: Any = None, columns: str = "n") -> list[Any]:
        table = self._table()
        if table is None:
            return []
        found = table.scan(selected_fields=tuple(columns.split())).to_arrow().to_pylist()
        rows = [tuple(row[name] for name in columns.split()) for row in found]
        return sorted(row[0] if len(row) == 1 else row for row in rows)

    def visible_to_duckdb(self) -> list[tuple[Any, ...]]:
        """Return n and text of all rows, as DuckDB reads them from the files that the current snapshot names."""
        table = self._table()
        assert table is not None
        files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
        return sorted(duckdb_rows(files, ("n", "text")))

    def staged(self) -> int:
        """Attempts whose files are not part of the table."""
        table = self._table()
        if table is None:
            return 0
        named = {Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()}
        attempts = {each for each in self.folder.glob("warehouse/*/*/data/hf/*/*/*") if list(each.rglob("*.parquet"))}
        return len([each for each in attempts if not {*each.rglob("*.parquet")} & named])


def sqlite_catalog(folder: Path, warehouse: str | None = None) -> dict[str, str]:
    """Return the properties of a catalog in a folder."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": warehouse or f"file://{folder / 'warehouse'}",
    }


def created_iceberg(
    folder: Path, *fields: NestedField, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC, **properties: str
) -> Table:
    """Create the table before the sink does."""
    folder.mkdir(exist_ok=True)
    catalog = load_catalog("default", **sqlite_catalog(folder))
    catalog.create_namespace_if_not_exists("shop")
    return catalog.create_table("shop.rows", Schema(*fields), partition_spec=spec, properties=properties)


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


def key_of(epoch: int, *, timeline: int = 1, attempt: int = 1, lease: int | None = 1) -> EpochKey:
    return EpochKey(OWNER, Attempt(stream=OWNER.stream, timeline=timeline, epoch=epoch, attempt=attempt), lease)


def table_of_sink(sink: IcebergSink) -> Table:
    """Return the table as it is now."""
    found = sink._at.load()
    assert found is not None
    return found


def rows_of(sink: IcebergSink, *columns: str) -> VisibleRows:
    """Return the rows that PyIceberg reads, after comparing them with what DuckDB reads from the same files."""
    table = sink._at.load()
    if table is None:
        return []
    names = columns or ("n", "text")
    found = [tuple(row[name] for name in names) for row in table.scan().to_arrow().to_pylist()]
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    assert sum(task.file.record_count for task in table.scan().plan_files()) == len(found)
    if not any(each.startswith("s3:") for each in files):
        assert sorted(map(repr, duckdb_rows(files, names))) == sorted(map(repr, found))
    return found


def duckdb_rows(files: list[str], columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Read the files of a snapshot with DuckDB: its extension for Iceberg cannot be had from every registry."""
    if not files:
        return []
    with duckdb.connect() as connection:
        query = f"SELECT {', '.join(columns)} FROM read_parquet(?, hive_partitioning = false)"  # noqa: S608
        return connection.execute(query, [files]).fetchall()
