"""A Delta table as a sink, written by Spark: the contract, partitions, types, and other readers and writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from deltastaged import rows_of
from holdfast.sinks.base import Sink
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.testing.sinks import SinkContract, VisibleRows
from s3fixture import S3Place
from s3spark import connect


class _Delta(SinkContract):
    options: ClassVar[dict[str, Any]] = {}

    def make(self, folder: Path) -> Sink:
        return DeltaSink(folder / "table", **self.options)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, DeltaSink)
        return rows_of(sink)


class TestDelta(_Delta):
    pass


class TestDeltaPartitioned(_Delta):
    options: ClassVar[dict[str, Any]] = {"partition_by": ["text"]}


class TestDeltaReplace(_Delta):
    output_mode = "complete"


class TestDeltaUpsert(_Delta):
    options: ClassVar[dict[str, Any]] = {"key": ["n"]}


class TestDeltaOnS3(_Delta):
    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Place, spark: Any) -> None:
        connect(spark, s3)
        self.place = s3

    def make(self, folder: Path) -> Sink:
        return DeltaSink(self.place.url(f"tables/{folder.name}"), partition_by="text")
