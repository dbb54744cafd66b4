"""Every built-in sink keeps the contract of sinks; the suite is the one that users run on theirs."""

import re
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import holdfast
from holdfast.eventlog.log import EventLog
from holdfast.sinks.base import Sink
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.foreach import ForeachSink
from holdfast.sinks.log import LogSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.testing.sinks import SinkContract, VisibleRows
from rig import ForeachTarget


class _Files(SinkContract):
    layout = "epochs"
    format = "parquet"

    def make(self, folder: Path) -> Sink:
        return FileSink(folder / "out", layout=self.layout, format=self.format)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, FileSink)
        if not list(sink.path.rglob("*part-*")):
            return []
        found = spark.read.schema("n long, text string").format(self.format).load(str(sink.path))
        return [(row.n, row.text) for row in found.select("n", "text").collect()]


class TestFilesByEpoch(_Files):
    pass


class TestFilesFlat(_Files):
    layout = "flat"


class _Sqlite(SinkContract):
    options: ClassVar[dict[str, Any]] = {}

    def make(self, folder: Path) -> Sink:
        return SqliteSink(folder / "out.db", "rows", **self.options)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, SqliteSink)
        with sqlite3.connect(sink.path) as connection:
            rows = connection.execute("SELECT n, text FROM rows").fetchall()
        connection.close()
        return rows


class TestSqliteAppend(_Sqlite):
    options: ClassVar[dict[str, Any]] = {"epoch_column": "epoch"}


class TestSqliteUpsert(_Sqlite):
    options: ClassVar[dict[str, Any]] = {"key": "n", "undo": True}


class TestSqliteReplace(_Sqlite):
    output_mode = "complete"


class TestLog(SinkContract):
    def make(self, folder: Path) -> Sink:
        return LogSink(folder / "log", entity="text")

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, LogSink)
        log = EventLog.open(sink.path)
        events = list(log.read())
        holes = log.cancelled(0, log.tail)
        assert len(events) + sum(end - start for start, end in holes) == log.tail
        assert log.rewinds or not holes, "no holes"
        assert all(event.entity == event.payload["text"] for event in events)
        return [(event.payload["n"], event.payload["text"]) for event in events]


class TestForeach(SinkContract):
    """At least once: what is visible are the rows of each key once, and every repetition has the same ones."""

    def make(self, folder: Path) -> Sink:
        return ForeachTarget(folder / "calls", folder / "foreach").make()

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, ForeachSink) and sink.path is not None
        return ForeachTarget(sink.path.with_name("calls")).visible(spark, "n text")


def _of_the_docs() -> type[SinkContract]:
    """The sink that the docs show, with its test: it must keep the contract too."""
    page = (Path(__file__).parents[2] / "docs/pipelines.md").read_text()
    names: dict[str, Any] = {"hf": holdfast, "__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if "class ListSink" in block or "class TestListSink" in block:
            exec(block, names)  # noqa: S102 - our own docs
    found: type[SinkContract] = names["TestListSink"]
    return found


TestTheSinkOfTheDocs = _of_the_docs()
