"""Streams chain through an event log: what a LogSink appends, read_log_stream reads, once and in order."""

import datetime as dt
import json
import pickle
import shutil
import time
from collections.abc import Callable
from decimal import Decimal
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast import FileSink, LogSink, Pipeline, RestartPolicy, read_log, read_log_stream
from holdfast._error_text import one_line
from holdfast.epoch import Attempt
from holdfast.errors import (
    BadValue,
    HoldfastError,
    LogCorrupt,
    LogDiverged,
    LogMissing,
    QueryFailed,
    SinkFailed,
    SinkForeign,
    StorageFailed,
    StreamChanged,
    StreamFailed,
)
from holdfast.eventlog import Cursor, EventLog, NewEvent, Region
from holdfast.eventlog.homes import home_of
from holdfast.sinks.base import EpochKey, SinkContext, StreamIdentity
from holdfast.spark import adapter
from holdfast.spark.backlog import Backlog
from holdfast.spark.failures import Kind, diagnose
from holdfast.spark.logsource import LogReader, SegmentRun, in_runs, spark_schema
from holdfast.spark.sparklog import SparkLog
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from sparkfixture import session
from support import events, new_log

OWNER = StreamIdentity("chain", "0" * 32, "orders")


def opened(sink: LogSink, df: DataFrame, owner: StreamIdentity = OWNER, output_mode: str = "append") -> LogSink:
    sink.open(SinkContext(owner, df.schema, output_mode, df.sparkSession, tell=lambda _: None))
    return sink


def key(epoch: int) -> EpochKey:
    return EpochKey(OWNER, Attempt(stream=OWNER.stream, timeline=1, epoch=epoch, attempt=1), 1)


def put(sink: LogSink, df: DataFrame, epoch: int) -> None:
    sink.commit(key(epoch), sink.prepare(df, key(epoch)).handle)


class Reading:
    """A stream over a log, run until there is nothing more; it remembers what each epoch gave."""

    def __init__(self, spark: SparkSession, log: Path, checkpoint: Path, rows: int | None = None) -> None:
        self.spark, self.log, self.checkpoint, self.rows = spark, log, checkpoint, rows

    def run(self, during: Callable[[int], object] = lambda _: None) -> list[list[int]]:
        """Run queries as a pipeline does: one, or where Spark passes no limits, one for each epoch."""
        epochs: list[list[int]] = []

        def take(df: DataFrame, batch: int) -> None:
            epochs.append(sorted(row.sequence for row in df.select("sequence").collect()))
            during(batch)

        df = read_log_stream(self.spark, self.log, rows_per_epoch=self.rows)
        backlog, before = Backlog.of(df), -1
        while before < len(epochs):
            before = len(epochs)
            writer = df.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            finally:
                query.stop()
            if not backlog.is_left(self.ends()):
                break
        return epochs

    def ends(self) -> tuple[str | None, ...]:
        last = max(int(path.name) for path in (self.checkpoint / "offsets").glob("[0-9]*"))
        return SparkLog(LocalSparkFolder(self.checkpoint), "s").offsets(last).ends


NOON = dt.datetime(2024, 5, 17, 12, 30, 15, 123456)
TYPES = {
    "truth": ("boolean", "true", True),
    "tiny": ("tinyint", "-128", -128),
    "small": ("smallint", "32767", 32767),
    "whole": ("int", "-7", -7),
    "big": ("bigint", "9223372036854775807", 2**63 - 1),
    "single": ("float", "0.5", 0.5),
    "double": ("double", "-2.25", -2.25),
    "cents": ("decimal(9,2)", "'1234567.89'", Decimal("1234567.89")),
    "exact": ("decimal(38,18)", "'-1.000000000000000001'", Decimal("-1.000000000000000001")),
    "text": ("string", "'grüß'", "grüß"),
    "raw": ("binary", "X'00ff'", b"\x00\xff"),
    "day": ("date", "'1969-12-31'", dt.date(1969, 12, 31)),
    "moment": ("timestamp", "'2024-05-17 12:30:15.123456+00:00'", NOON.replace(tzinfo=dt.UTC)),
    "wall": ("timestamp_ntz", "'2024-05-17 12:30:15.123456'", NOON),
    "list": ("array<decimal(9,2)>", "array(1.5, null)", [Decimal("1.50"), None]),
    "map": ("map<string,array<int>>", "map('a', array(1), 'b', null)", [("a", [1]), ("b", None)]),
    "odd.name": ("struct<at:timestamp_ntz,in:struct<n:int>>", "named_struct('at', null, 'in', named_struct('n', 1))",
                 {"at": None, "in": {"n": 1}}),
}  # fmt: skip


def of_all_types(spark: SparkSession) -> DataFrame:
    full = ", ".join(f"cast({text} AS {kind}) AS `{name}`" for name, (kind, text, _) in TYPES.items())
    empty = ", ".join(f"cast(null AS {kind})" for kind, _, _ in TYPES.values())
    return spark.sql(f"SELECT 'a' AS id, 1L AS clock, {full} UNION ALL SELECT 'b', 2L, {empty}")


def test_every_type_comes_back_through_spark_and_through_a_cursor(spark: SparkSession, tmp_path: Path) -> None:
    df = of_all_types(spark).coalesce(1)
    sink = opened(LogSink(tmp_path / "log", entity="id", scope="truth", category=3, type="small", clock="clock"), df)
    with pytest.raises(SinkFailed, match=r"'truth' cannot be the scope of 1 rows.*'small' cannot be the type of 1"):
        put(sink, df, 1)
    assert list((tmp_path / "log.staging").iterdir()) == []
    sink = opened(LogSink(tmp_path / "log", entity="id", category=3, type="clock", clock="clock"), df)
    put(sink, df, 1)
    assert sink.mark() == {"log": EventLog.open(sink.path).identity, "tail": 2, "path": str(sink.path)}

    full, empty = list(Cursor(EventLog.open(sink.path), Region()).poll_batch(9))
    assert (full.sequence, full.scope, full.entity, full.category, full.type, full.clock) == (
        0,
        "default",
        "a",
        3,
        1,
        1,
    )
    assert full.payload == {"id": "a", "clock": 1} | {name: value for name, (_, _, value) in TYPES.items()}
    assert empty.payload == {"id": "b", "clock": 2} | dict.fromkeys(TYPES)

    rows = [row.asDict() for row in df.collect()]
    batch = read_log(spark, sink.path).orderBy("sequence")
    assert [row.payload.asDict() for row in batch.collect()] == rows
    assert batch.schema["payload"].dataType.simpleString() == df_type(df)
    streamed = read_log_stream(spark, sink.path)
    assert streamed.schema["payload"].dataType == batch.schema["payload"].dataType
    query = streamed.writeStream.format("memory").queryName("types").trigger(availableNow=True).start()
    query.awaitTermination()
    found = spark.sql("SELECT * FROM types ORDER BY sequence").collect()
    assert [(row.sequence, row.entity, row.clock) for row in found] == [(0, "a", 1), (1, "b", 2)]
    assert [row.payload.asDict() for row in found] == rows


def df_type(df: DataFrame) -> str:
    return df.schema.simpleString()


def reader_of(log: Path, limit: int | None = None, partitions: int = 2) -> LogReader:
    return LogReader(home_of(log), spark_schema(home_of(log)), limit, partitions)


def test_types_that_spark_does_not_have_are_read_as_larger_ones(tmp_path: Path) -> None:
    kinds = {"u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(), "half": pa.float16()}
    kinds |= {"text": pa.large_string(), "raw": pa.large_binary(), "wide": pa.decimal256(20, 2)}
    log = EventLog.create(tmp_path / "log", payload=pa.struct(list(kinds.items())))
    said = {"u8": 255, "u16": 65535, "u32": 2**32 - 1, "u64": 2**64 - 1, "half": 0.5, "text": "x", "raw": b"x"}
    with log.writer() as writer:
        writer.append([NewEvent("a", said | {"wide": Decimal("1.25")})])
    reader = reader_of(log.path)
    (run,) = reader.inputs_between(reader.first_offset(), reader.last_offset())
    (batch,) = reader.read(run)
    assert batch.to_pylist()[0]["payload"] == said | {"wide": Decimal("1.25")}
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}  # Spark 4.1 needs none
    assert batch.schema == to_arrow_schema(spark_schema(log.home), **zone), "what Spark asks for"


def test_a_look_at_the_keys_that_fails_passes_over_none(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the sink would take an epoch that another object has committed for a new one."""
    df = spark.sql("SELECT 1 AS n").coalesce(1)
    sink, other = (opened(LogSink(tmp_path / "log"), df) for _ in range(2))
    staged = sink.prepare(df, key(1))
    other.commit(key(1), staged.handle)

    def failing(log: EventLog, since: int = 0) -> None:
        raise StorageFailed(action="read", key="index", why="on purpose")

    with monkeypatch.context() as broken:
        broken.setattr(EventLog, "known_keys", failing)
        with pytest.raises(SinkFailed, match="on purpose"):
            sink.commit(key(1), staged.handle)
    assert sink.inspect(OWNER, 1).epoch == 1
    sink.commit(key(1), staged.handle)
    assert EventLog.open(sink.path).tail == 1


def test_a_stream_over_a_log_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Limits may fall inside a segment, cancelled ranges are passed over, and what comes later is read later."""
    log = EventLog.create(tmp_path / "log")
    reading = Reading(spark, log.path, tmp_path / "checkpoint", rows=2)
    assert reading.run() == [[]]  # Spark begins with an epoch, be there rows or not
    with log.writer() as writer:
        writer.append(events("a", "b", "c"))
        writer.cancel(3, "on purpose")
        writer.append(events("d", "e"))

    def grow(batch: int) -> None:
        if batch == 1:
            with log.writer() as writer:
                writer.append(events("f", "g"))

    if adapter.FACTS.passes_read_limits:  # and tells the source where the available events end
        assert [reading.run(during=grow), reading.run()] == [[[0, 1], [2, 6], [7]], [[8, 9]]]
    else:
        assert [reading.run(during=grow), reading.run()] == [[[0, 1], [2, 6], [7, 8]], [[9]]]
    for start, end, expected in ((0, None, [0, 1, 2, 6, 7, 8, 9]), (2, 7, [2, 6]), (3, 6, []), (99, None, [])):
        found = read_log(spark, log.path, start=start, end=end).select("sequence").collect()
        assert sorted(row.sequence for row in found) == expected
    offsets = (tmp_path / "checkpoint/offsets/4").read_text().splitlines()[-1]
    log.refresh()
    chain = log.chain_at(9)
    assert chain is not None
    assert json.loads(offsets) == {"log": log.identity, "sequence": 10, "chain": chain.hex()[:16]}


def test_a_rewind_of_the_log_is_skipped_or_stops_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a", "b"), events("c"), events("d"))
    ahead, behind = (Reading(spark, log.path, tmp_path / name, rows) for name, rows in (("ahead", None), ("behind", 2)))
    assert ahead.run() == [[0, 1, 2, 3]]
    with log.writer() as writer:
        writer.rewind("key", [(2, 1), (3, 1)])
        writer.append(events("e"))
    assert behind.run() == [[0, 1], [5]]
    for start, end, expected in ((0, None, [0, 1, 5]), (1, 3, [1]), (2, 5, [])):
        found = read_log(spark, log.path, start=start, end=end)
        assert found.columns == ["sequence", *log.schema.names]
        assert sorted(row.sequence for row in found.select("sequence").collect()) == expected
    with pytest.raises(Exception, match=r"LogRewound.*has read up to sequence 3, and a rewind has changed .* 2 on"):
        ahead.run()
    with log.writer() as writer:
        writer.rewind("key", [], [(2, 1), (3, 1)])
    with pytest.raises(Exception, match=r"LogRewound.*from sequence 2 on"):
        behind.run()  # it has passed the events that are back
    assert ahead.run() == [[5]]


def test_a_stream_at_work_sees_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a"))
    writer = read_log_stream(spark, log.path).writeStream.format("memory").queryName("coming")
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        with log.writer() as appending:
            appending.append(events("b", "c"))
            appending.append(events("d"))
        query.processAllAvailable()
        assert [row.entity for row in spark.sql("SELECT entity FROM coming ORDER BY sequence").collect()] == [*"abcd"]
    finally:
        query.stop()


def test_offsets_of_another_history_are_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a"), events("b"))
    reader = reader_of(log.path)
    there = reader.last_offset()
    start = reader.first_offset()
    for wrong, words in (
        ({"log": "another"}, "the offset is of log another"),
        ({"sequence": 3}, "the log ends before sequence 2"),
        ({"chain": "0" * 16}, "was rolled back since then"),
    ):
        for ask in (
            lambda offset: reader.end_after(offset, None),
            lambda offset: reader.inputs_between(start, offset),
        ):
            with pytest.raises(LogDiverged, match=words):
                ask(there | wrong)


def test_an_epoch_is_cut_into_runs_of_about_as_many_rows(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", *[events(*"x" * count) for count in (1, 5, 2, 2, 9, 1)])
    reader = reader_of(log.path, partitions=3)
    start = reader.end_after(reader.first_offset(), 3)
    runs = reader.inputs_between(start, reader.last_offset())
    pieces = [[(piece.segment.first, piece.start, piece.stop) for piece in run.pieces] for run in runs]
    assert pieces == [[(1, 2, 5), (6, 0, 2), (8, 0, 2)], [(10, 0, 9)], [(19, 0, 1)]]
    for run in runs:
        assert isinstance(pickle.loads(pickle.dumps(run)), SegmentRun)  # noqa: S301 - our own bytes
    got = [row["sequence"] for run in runs for batch in reader.read(run) for row in batch.to_pylist()]
    assert got == list(range(3, 20))
    assert reader.inputs_between(start, start) == []
    assert in_runs([], 4) == []


def test_a_damaged_segment_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a"))
    (path,) = log.path.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    reader = reader_of(log.path)
    (run,) = reader.inputs_between(reader.first_offset(), reader.last_offset())
    with pytest.raises(LogCorrupt, match="not those that were committed"):
        list(reader.read(run))


def test_a_pipeline_says_what_is_wrong_with_its_log_and_does_not_try_again(spark: SparkSession, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a"))

    def build(spark: SparkSession) -> DataFrame:
        return read_log_stream(spark, log.path).select("sequence")

    def run() -> None:
        pipeline = Pipeline("p", tmp_path / "root")
        pipeline.stream(build, name="s", sinks=[FileSink(tmp_path / "out")])
        pipeline.run(spark, available_now=True)

    run()
    shutil.rmtree(log.path)
    new_log(log.path, events("b"), events("c"))
    with pytest.raises(
        StreamFailed, match=r"refused.*0 restarts.*LogDiverged: .* has read up to sequence .* Next: restore the"
    ):
        run()


@pytest.mark.parametrize(
    ("name", "kind"), [("LogCorrupt", Kind.REFUSED), ("StorageFailed", Kind.SOURCE), ("Nothing", Kind.USER)]
)
def test_errors_of_ours_in_another_process_keep_their_kind(name: str, kind: Kind) -> None:
    said = f"PythonException: thrown from the worker:\nTraceback:\n  File x\nholdfast.errors.{name}: a b. Next: c.\n\n"
    error = RuntimeError(said)
    assert one_line(error) == f"holdfast.errors.{name}: a b. Next: c."
    assert diagnose(QueryFailed(stream="s", why=said), None).kind is kind


def test_what_cannot_be_read_is_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LogMissing):
        read_log_stream(spark, tmp_path / "none")
    log = EventLog.create(tmp_path / "wide", payload=pa.decimal256(60, 0))
    with pytest.raises(BadValue, match="Spark has no such type"):
        read_log_stream(spark, log.path)
    with pytest.raises(BadValue, match="rows per epoch"):
        read_log_stream(spark, new_log(tmp_path / "log").path, rows_per_epoch=0)


@pytest.mark.parametrize(
    ("columns", "options", "error", "words"),
    [
        ("n int", {"entity": "id"}, BadValue, "expected a column of the stream"),
        ("n int, t string", {"category": "t"}, BadValue, "expected a column of integers"),
        ("n int, d double", {"clock": "d"}, BadValue, "expected a column of integers"),
        ("n int, b binary", {"entity": "b"}, BadValue, "cannot be written as text"),
        ("n int, v variant", {}, BadValue, "no such type"),
        ("n int, i interval day to second", {}, BadValue, "no such type"),
        ("n int, a array<void>", {}, BadValue, "no such type"),
        ("n int, s struct<>", {}, BadValue, "without fields"),
        ("n int, other int", {}, StreamChanged, "payload: struct<n: int32>"),
        ("n int", {"clock": "n"}, StreamChanged, "clock: int64"),
    ],
)
def test_what_cannot_become_events_is_refused_before_the_first_epoch(
    columns: str, options: dict[str, Any], error: type[HoldfastError], words: str, tmp_path: Path
) -> None:
    spark = session()
    first = spark.createDataFrame([], "n int")
    opened(LogSink(tmp_path / "log"), first)
    with pytest.raises(error, match=words):
        opened(LogSink(tmp_path / "log", **options), spark.createDataFrame([], columns))
    assert len(list((tmp_path / "log").rglob("*.parquet"))) == 0


def test_a_log_has_one_owner_and_takes_no_second_version_of_a_row(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([], "n int")
    opened(LogSink(tmp_path / "log"), df)
    other = StreamIdentity("chain", "1" * 32, "orders")
    sink = opened(LogSink(tmp_path / "log"), df, other)
    assert "uid 000" in str(sink.inspect(other, 1).foreign)
    with pytest.raises(SinkForeign):
        opened(LogSink(tmp_path / "log"), spark.createDataFrame([], "m int"), other)
    with pytest.raises(HoldfastError, match="versions of the rows"):
        opened(LogSink(tmp_path / "log"), df, output_mode="update")
    opened(LogSink(tmp_path / "log", changelog=True), df, output_mode="update")
    with pytest.raises(BadValue, match="category"):
        LogSink(tmp_path / "log", category=-1)
    EventLog.create(tmp_path / "bytes")
    with pytest.raises(HoldfastError, match="other columns"):
        opened(LogSink(tmp_path / "bytes"), df)


def test_streams_of_a_pipeline_chain_through_a_log(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for n in range(4):
        (tmp_path / f"in/{n}.json").write_text(json.dumps({"n": n}))

    def orders(spark: SparkSession) -> DataFrame:
        source = spark.readStream.schema("n long").option("maxFilesPerTrigger", 2)
        return source.json(str(tmp_path / "in"))

    def doubled(spark: SparkSession) -> DataFrame:
        return read_log_stream(spark, tmp_path / "first", rows_per_epoch=3).selectExpr("sequence", "2 * payload.n AS n")

    def run(name: str, build: Callable[[SparkSession], DataFrame], sink: LogSink) -> None:
        pipeline = Pipeline(name, tmp_path / "root" / name, restart=RestartPolicy.never())
        pipeline.stream(build, name=name, sinks=[sink])
        pipeline.run(spark, available_now=True)

    for _ in range(2):  # a second run finds nothing to do
        run("orders", orders, LogSink(tmp_path / "first"))
        run("doubled", doubled, LogSink(tmp_path / "second", entity="n", scope="sequence"))
    found = [(event.entity, event.scope, event.payload) for event in EventLog.open(tmp_path / "second").read()]
    assert sorted(payload["n"] for _, _, payload in found) == [0, 2, 4, 6]
    assert [scope for _, scope, _ in found] == ["0", "1", "2", "3"]
    assert all(entity == str(payload["n"]) for entity, _, payload in found)
    assert {event.entity for event in EventLog.open(tmp_path / "first").read()} == {"orders"}


def test_a_status_tells_how_far_a_stream_is_behind_its_log_and_does_not_guess_of_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text("\n".join('{"n": 1}' for _ in range(50)))
    chain = Pipeline("lag", root=tmp_path / "root")

    @chain.stream(sinks=[LogSink(tmp_path / "log")])
    def appended(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n int").json(str(tmp_path / "in"))

    @chain.stream(sinks=[FileSink(tmp_path / "out")], trigger="30 seconds")
    def slowly(spark: SparkSession) -> DataFrame:
        return chain.read("appended", rows_per_epoch=20)

    with chain.start(spark) as handle:
        behind, seen, end = 0, set(), time.monotonic() + 120
        while behind < 30 and time.monotonic() < end:
            time.sleep(0.1)
            behind = handle.status().streams["slowly"].behind or 0
            seen.add(handle.status().streams["appended"].behind)
        assert behind in (30, 50)  # before its first epoch, or after it
        assert seen == {None}
    assert handle.status().streams["slowly"].behind is None  # nobody asks what is over
    assert json.loads(json.dumps(handle.status().to_dict()))["streams"]["slowly"]["watermark_ms"] is None
