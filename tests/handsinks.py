"""Real sinks whose rows are staged without Spark, for a driver with a fake query: each epoch is a list of numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from handstaged import ArrowFrame, staged_events, staged_files, table_of
from holdfast.sinks.base import EpochKey, SinkContext, Staged
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.log import LogSink
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sqlite import SqliteSink

KEYS = 5  # the rows of an upsert share so many keys


class HandFileSink(FileSink):
    """A real FileSink of Parquet files."""

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        return Staged(staged_files(self._staging, key, table_of(*df)), len(df))


class HandJsonSink(FileSink):
    """A real FileSink of JSON files, which can be compacted without Spark."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, format="json", name=name)

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        return Staged(staged_files(self._staging, key, table_of(*df), write=_write_json), len(df))


class HandSqliteSink(SqliteSink):
    """A real SqliteSink. The rows of an upsert have one of a few keys, so that epochs overwrite each other."""

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        effect = "replace" if self._replaces else "upsert" if self.key else "append"
        table = upserts_of(*df) if self.key else table_of(*df)
        handle = staged_files(self._staging, key, table)
        return Staged(handle | {"effect": effect, "key": self.key}, len(df))


class HandLogSink(LogSink):
    """A real LogSink."""

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        return Staged(staged_events(self, key, *df), len(df))


class HandPostgresSink(PostgresSink):
    """A real PostgresSink. Tasks copy the rows, so an epoch of two rows is prepared in two transactions."""

    def open(self, context: SinkContext) -> None:
        super().open(replace(context, collect=None))

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        return super().prepare(ArrowFrame(table_of(*df)), key)  # type: ignore[arg-type]


def key_of(number: int) -> int:
    """The key of a number in a table with upserts."""
    return number % KEYS


def upserts_of(*numbers: int) -> pa.Table:
    return table_of(*numbers).set_column(0, "n", pa.array([key_of(n) for n in numbers], pa.int64()))


def _write_json(table: pa.Table, folder: Path) -> str:
    name = "part-00000-c000.json"
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return name
