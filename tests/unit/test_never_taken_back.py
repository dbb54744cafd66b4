"""What a sink answers before its first epoch: whether its settings ever allow a rewind to take rows back."""

from pathlib import Path

import pytest

from handstaged import SCHEMA, NoSession
from holdfast.sinks.base import EpochKey, OutputMode, Sink, SinkContext, SinkPosition, Staged, StreamIdentity
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.foreach import ForeachSink
from holdfast.sinks.log import LogSink
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sqlite import SqliteSink

SERVER = "host=db dbname=shop"
POSSIBLE = [
    (FileSink("out"), "append"),
    (SqliteSink("out.db", "rows", epoch_column="epoch"), "append"),
    (SqliteSink("out.db", "rows", key="n", undo=True), "update"),
    (SqliteSink("out.db", "rows"), "complete"),
    (PostgresSink(SERVER, "rows", epoch_column="epoch"), "append"),
    (PostgresSink(SERVER, "rows", epoch_column="epoch", changelog=True), "update"),
    (PostgresSink(SERVER, "rows"), "complete"),
    (LogSink("log", entity="n"), "append"),
]


class OwnSink(Sink):
    """A sink of a user that implements only what it must."""

    def prepare(self, df: object, key: EpochKey) -> Staged:
        raise NotImplementedError

    def commit(self, key: EpochKey, handle: object) -> None:
        raise NotImplementedError

    def abort(self, key: EpochKey) -> None:
        raise NotImplementedError

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        raise NotImplementedError


IMPOSSIBLE = [
    (FileSink("out", layout="flat"), "append", "layout='epochs'"),
    (SqliteSink("out.db", "rows"), "append", "epoch_column="),
    (SqliteSink("out.db", "rows", key="n"), "update", "undo=True"),
    (SqliteSink("out.db", "rows", epoch_column="epoch", share=True), "append", "without share=True"),
    (PostgresSink(SERVER, "rows"), "append", "epoch_column="),
    (PostgresSink(SERVER, "rows", key="n"), "update", "changelog=True"),
    (PostgresSink(SERVER, "rows", epoch_column="epoch", share=True), "append", "without share=True"),
    (ForeachSink(print, path="calls"), "append", "--leave"),
    (OwnSink("own"), "append", "--leave own"),
]


def opened(sink: Sink, mode: OutputMode) -> Sink:
    """As far as the answer needs it: no folder is made, and no server is asked."""
    owner = StreamIdentity("shop", "0" * 32, "orders")
    Sink.open(sink, SinkContext(owner, SCHEMA, mode, NoSession(), folder=Path("own")))  # type: ignore[arg-type]
    return sink


def named(value: object) -> str:
    """A name that is the same in every process."""
    return type(value).__name__ if isinstance(value, Sink) else str(value)


@pytest.mark.parametrize(("sink", "mode"), POSSIBLE, ids=named)
def test_a_sink_that_can_go_back_reports_nothing(sink: Sink, mode: OutputMode) -> None:
    assert opened(sink, mode).cannot_be_taken_back() is None


@pytest.mark.parametrize(("sink", "mode", "setting"), IMPOSSIBLE, ids=named)
def test_a_sink_that_never_can_names_the_setting(sink: Sink, mode: OutputMode, setting: str) -> None:
    found = opened(sink, mode).cannot_be_taken_back()
    assert found is not None
    assert setting in found.do
