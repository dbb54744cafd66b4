"""Rows that are written by hand as Spark would write them into a lake table: its sinks can be tested without a JVM."""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from holdfast.repository import ObjectRepository


class AnyConf:
    """The settings of a session."""

    def __init__(self) -> None:
        self.set_ones: dict[str, str] = {}

    def set(self, name: str, value: str) -> None:
        self.set_ones[name] = value

    def get(self, name: str, otherwise: str = "UTC") -> str:
        return otherwise


class AnySession:
    """A Spark session, as far as a sink of a lake table needs one."""

    def __init__(self) -> None:
        self.conf = AnyConf()


class LakeFrame:
    """A DataFrame that writes itself as Parquet: in two files, each partition apart."""

    def __init__(self, table: pa.Table, schema: StructType) -> None:
        self.table = table
        self.schema = schema
        self.sparkSession = AnySession()
        self._by: tuple[str, ...] = ()

    @property
    def write(self) -> LakeFrame:
        return self

    def format(self, name: str) -> LakeFrame:
        assert name == "parquet"
        return self

    def options(self, **_: str) -> LakeFrame:
        return self

    def option(self, *_: str) -> LakeFrame:
        return self

    def mode(self, name: str) -> LakeFrame:
        assert name == "append"
        return self

    def partitionBy(self, *columns: str) -> LakeFrame:  # noqa: N802 - Spark's name
        self._by = columns
        return self

    def save(self, address: str) -> None:
        """Write the rows, the first one into a file of its own."""
        for part in (self.table.slice(0, 1), self.table.slice(1)):
            for folder, rows in self._partitions(part):
                if rows.num_rows:
                    name = f"part-{uuid.uuid4().hex}.snappy.parquet"
                    _write(rows, "/".join([address, *folder, name]))

    def _partitions(self, rows: pa.Table) -> list[tuple[list[str], pa.Table]]:
        found: list[tuple[list[str], pa.Table]] = [([], rows)]
        for column in self._by:
            found = [
                (
                    [*folder, f"{column}={_folder_value(value)}"],
                    part.filter(pc.equal(part[column], value)).drop_columns([column]),
                )
                for folder, part in found
                for value in part[column].unique().to_pylist()
            ]
        return found


def _folder_value(value: Any) -> str:
    return quote(str(value), safe=" ü")


def _write(rows: pa.Table, address: str) -> None:
    if address.startswith("s3a://"):
        folder, _, name = address.replace("s3a://", "s3://", 1).rpartition("/")
        sink = io.BytesIO()
        pq.write_table(rows, sink)
        bucket, _, key = folder.removeprefix("s3://").partition("/")
        ObjectRepository(f"s3://{bucket}").bucket.put(f"{key}/{name}", sink.getvalue())
        return
    path = Path(address.removeprefix("file:"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
