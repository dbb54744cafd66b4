"""Rows that are written by hand as Spark would write them into a lake table: its sinks can be tested without a JVM."""

from __future__ import annotations

import io
import re
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from holdfast.repository import ObjectRepository

_NO_MAXIMUM = re.compile(  # Thrift's compact form of statistics: a null count, and perhaps an exact minimum
    rb"\x1c\x36[\x00-\x7f](?:\x38(?:\x00|\x01.)\x21)?\x00\x19", re.DOTALL
)


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
        for part in self.parts():
            for folder, rows in self._partitions(part):
                if rows.num_rows:
                    name = f"part-{uuid.uuid4().hex}.snappy.parquet"
                    _write(self.encoded(rows), "/".join([address, *folder, name]))

    def parts(self) -> list[pa.Table]:
        return [self.table.slice(0, 1), self.table.slice(1)]

    def encoded(self, rows: pa.Table) -> bytes:
        return parquet_bytes(rows)

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


class LongFrame(LakeFrame):
    """Rows with long values, in one file with a row group for every two rows, as Spark writes it."""

    def parts(self) -> list[pa.Table]:
        return [self.table]

    def encoded(self, rows: pa.Table) -> bytes:
        return as_java(parquet_bytes(rows, row_group_size=2))


def parquet_bytes(rows: pa.Table, **options: Any) -> bytes:
    """Return rows as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(rows, sink, **options)
    return sink.getvalue()


def as_java(file: bytes) -> bytes:
    """Return a file of PyArrow with the statistics that parquet-java writes, if no short value has more than one byte.

    If minimum and maximum together have more than 4,096 bytes, parquet-java writes empty statistics, without a null
    count. PyArrow leaves out only a bound that is too long by itself.
    """
    length = int.from_bytes(file[-8:-4], "little")
    footer = _NO_MAXIMUM.sub(b"\x1c\x00\x19", file[-8 - length : -8])
    return file[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def _folder_value(value: Any) -> str:
    return quote(str(value), safe=" ü")


def _write(data: bytes, address: str) -> None:
    if address.startswith("s3a://"):
        folder, _, name = address.replace("s3a://", "s3://", 1).rpartition("/")
        bucket, _, key = folder.removeprefix("s3://").partition("/")
        ObjectRepository(f"s3://{bucket}").bucket.put(f"{key}/{name}", data)
        return
    path = Path(address.removeprefix("file:"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
