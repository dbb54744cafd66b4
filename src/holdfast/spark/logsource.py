"""An event log as a Spark source: streams are chained through it, and a batch query reads its current content.

An offset is `{"log": uid, "sequence": the next one to read, "chain": 16 hex digits}`. The chain is a digest of the
whole history before that sequence, so a log that was rolled back and continued differently is detected. If the log is
on an object store, the offset also has `"record"`: the first sequence of the record that contains the last event before
it. The records from that one on are listed. A position may lie inside a record.

Rules:
- A new stream begins with the first event that is kept. One that needs events that were removed gets `LogTrimmed`.
- Only events that the head counts are read. Cancelled ranges are skipped, and so are those that a rewind abandoned. If
  the stream has read such a range before the rewind, `LogRewound` is raised.
- Each segment is checked against its digest before any of its events is returned.
- Another log at the same path, one that ends before the offset, or one with another history is refused: `LogDiverged`.
- A partition is a run of whole segments, or of parts at the ends of an epoch, and contains their facts: executors read
  segments and `log.json`, and no index. Only the address of the log travels to them.
- A batch query reads the segments of a folder with Spark itself, and those on a store by the index.

Not done: a segment is never split between partitions, because each reader of a part must check the whole segment.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from holdfast._validation import checked_positive, checked_u64
from holdfast.errors import BadValue, LogDiverged, LogRewound, LogTrimmed
from holdfast.eventlog._files import read_schema
from holdfast.eventlog.home import LogHome
from holdfast.eventlog.homes import home_of
from holdfast.eventlog.index import Segment
from holdfast.eventlog.log import EventLog
from holdfast.formats.decoding import Undecodable, converted
from holdfast.sinks.log_types import arrow_of, spark_of
from holdfast.spark import adapter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming import DataStreamReader

FORMAT = "holdfast_log"
SEQUENCE = "sequence"
_PATH = "path"
_MAX_ROWS = "maxRowsPerTrigger"
_PARTITIONS = "partitions"
_START = "start"
_END = "end"
_DEFAULT_PARTITIONS = 8
_CHAIN_DIGITS = 16
_BATCH_ROWS = 32_768

_loading = threading.Lock()


def read_log_stream(
    spark: SparkSession, path: str | os.PathLike[str], *, rows_per_epoch: int | None = None
) -> DataFrame:
    """Return an event log as a streaming DataFrame, from the first event on that is kept.

    Columns: sequence, scope, entity, category, type, clock if the log has one, payload. `rows_per_epoch` is the most
    rows that one epoch reads. The log must exist. Not guaranteed on Spark 4.1: that a plain query with the trigger
    availableNow reads all available events; it ends after one epoch. A pipeline reads all of them.
    """
    home = home_of(path)
    spark_schema(home)  # an error here is clearer than Spark's own
    reader = spark.readStream.format(FORMAT).option(_PATH, str(home.address))
    reader = reader.option(_PARTITIONS, str(spark.sparkContext.defaultParallelism))
    if rows_per_epoch is not None:
        reader = reader.option(_MAX_ROWS, str(checked_positive("rows per epoch", rows_per_epoch)))
    return _loaded(spark, reader)


def _loaded(spark: SparkSession, reader: DataStreamReader | DataFrameReader) -> DataFrame:
    """Load the source. Each reader registers it again.

    Two queries with the same registration share a map in the JVM, which one of them may change while the tasks of the
    other are serialised.
    """
    with _loading:
        adapter.let_replace_sources(spark)
        spark.dataSource.register(LogSource)
        return reader.load()


def read_log(
    spark: SparkSession, path: str | os.PathLike[str], *, start: int | None = None, end: int | None = None
) -> DataFrame:
    """Return the events from `start`, or from the first one that is kept, to before `end`, or to the current tail.

    The result is a batch DataFrame. Raises `LogTrimmed` if the events at `start` were removed. Events that a rewind has
    taken back are left out. In a folder, Spark reads the segments itself, and only the requested columns and rows;
    therefore digests are not checked. On an object store, whole segments are read and checked.
    """
    log = EventLog.open(path)
    floor = log.home.floor()
    if start is not None and checked_u64("start", start) < floor:
        raise LogTrimmed(path=str(log.path), sequence=start, floor=floor)
    start = floor if start is None else start
    end = log.tail if end is None else min(checked_u64("end", end), log.tail)
    columns = spark_schema(log.home)
    segments = log.home.parquet
    if segments is None:
        reader = (
            spark.read.format(FORMAT).option(_PATH, str(log.path)).option(_START, str(start)).option(_END, str(end))
        )
        return _loaded(spark, reader.option(_PARTITIONS, str(spark.sparkContext.defaultParallelism)))
    lowest = next((each.first for each in log.segments(start, end)), end)
    first = StructField("first", LongType())
    files = spark.read.schema(StructType([*columns.fields[1:], first])).parquet(segments)
    sequence = (f.col("first") + f.col("_metadata.row_index")).alias(SEQUENCE)
    events = files.where(f.col("first").between(lowest, end - 1)).select(sequence, "first", *columns.names[1:])
    events = events.where((f.col(SEQUENCE) >= start) & (f.col(SEQUENCE) < end))
    for first, after in abandoned_in(log, start, end):
        events = events.where(~f.col("first").between(first, after - 1))
    return events.drop("first")


def abandoned_in(log: EventLog, start: int, end: int) -> list[tuple[int, int]]:
    """Return the half-open ranges that a rewind has abandoned, between two sequences; adjacent ranges are merged."""
    found: list[tuple[int, int]] = []
    for each in log.ranges() if log.rewinds else ():
        if log.is_abandoned(each) and each.first < end and each.first + each.count > start:
            adjacent = found and found[-1][1] == each.first
            found.append((found.pop()[0] if adjacent else each.first, each.first + each.count))
    return found


def uid_of(path: str | os.PathLike[str]) -> str:
    """Return the uid of an event log."""
    return home_of(path).about().uid


def spark_schema(home: LogHome) -> StructType:
    """Return the columns of a log as Spark types; raise if the log cannot be read."""
    schema = read_schema(home.about(), home.address)
    columns = [StructField(each.name, spark_of(each.type), each.nullable) for each in schema]
    return StructType([StructField(SEQUENCE, LongType(), nullable=False), *columns])


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a segment: its rows from `start` to before `stop`."""

    segment: Segment
    start: int
    stop: int


class SegmentRun(InputPartition):  # type: ignore[misc] # pyspark's classes are skipped by the type checker
    """Consecutive pieces: the input of one task."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = list(pieces)


class LogSource(DataSource):  # type: ignore[misc]
    """The format `holdfast_log`. Options: path, maxRowsPerTrigger, partitions (the most per epoch)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the log's columns."""
        return spark_schema(_home(self.options))

    def streamReader(self, schema: StructType) -> LogReader:  # noqa: N802 - Spark's name
        """Return the reader; it opens the log on first use."""
        limit = _integer(self.options, _MAX_ROWS, None)
        partitions = _integer(self.options, _PARTITIONS, _DEFAULT_PARTITIONS)
        return LogReader(_home(self.options), schema, limit, partitions or _DEFAULT_PARTITIONS)

    def reader(self, schema: StructType) -> LogBatchReader:
        """Return the reader of a batch query. Further options: start, end."""
        partitions = _integer(self.options, _PARTITIONS, _DEFAULT_PARTITIONS)
        start, end = (_integer(self.options, name, None, least=0) for name in (_START, _END))
        return LogBatchReader(_home(self.options), schema, start, end, partitions or _DEFAULT_PARTITIONS)


class _Offset(msgspec.Struct):
    """An offset as this source passes it to Spark."""

    log: str
    sequence: int
    chain: str
    record: int | None = None


class LogReader(adapter.LimitedReader):  # type: ignore[misc]
    """Reports the end of the log to Spark, and reads it. The methods that Spark calls are those of its base class."""

    def __init__(self, home: LogHome, schema: StructType, limit: int | None, partitions: int) -> None:
        self._home = home
        self._schema = schema
        self.rows_per_batch = limit
        self._partitions = partitions
        self._target: int | None = None
        self._opened: EventLog | None = None
        self._looked_s = float("-inf")

    # --- on the driver ---

    def first_offset(self) -> dict[str, Any]:
        """Return the offset at which a new stream begins: the first event that is kept."""
        return self._offset(self._home.floor())

    def last_offset(self) -> dict[str, Any]:
        """Return the tail."""
        return self._offset(self._look())

    def end_here(self) -> None:
        """Read up to the current tail, and no further."""
        self._target = self._log.refresh()

    def end_after(self, start: dict[str, Any], rows: int | None) -> dict[str, Any]:
        """Return the end of the next epoch: the tail, or the offset at which the limit is reached."""
        begin = self.position(start)
        end = self._log.tail if self._target is None else min(self._target, self._log.tail)
        if rows is not None:
            end = self._limited(begin, end, rows)
        return start if end <= begin else self._offset(end)

    def inputs_between(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divide the segments between two offsets into runs of about equal numbers of rows."""
        pieces = list(self._pieces(self.position(start), self.position(end)))
        return [SegmentRun(run) for run in in_runs(pieces, self._partitions)]

    def _limited(self, begin: int, end: int, rows: int) -> int:
        for piece in self._pieces(begin, end):
            count = piece.stop - piece.start
            if count >= rows:
                return piece.segment.first + piece.start + rows
            rows -= count
        return end

    def _pieces(self, begin: int, end: int) -> Iterator[Piece]:
        return pieces_between(self._log, begin, end)

    @property
    def _log(self) -> EventLog:
        if self._opened is None:
            self._opened = EventLog.open_end(self._home.address)
        return self._opened

    def _look(self) -> int:
        """Return the tail. Spark asks every few milliseconds; where a look is a request, it is not made so often."""
        now = time.monotonic()
        if now - self._looked_s < self._home.poll_every:
            return self._log.tail
        self._looked_s = now
        return self._log.refresh()

    def _offset(self, sequence: int) -> dict[str, Any]:
        offset = {"log": self._log.identity, SEQUENCE: sequence, "chain": self._chain(sequence)}
        record = self._log.record_of(sequence - 1) if sequence else None
        return offset if record is None else {**offset, "record": record}

    def _chain(self, sequence: int) -> str:
        chain = self._log.chain_at(sequence - 1) if sequence else None
        return "" if chain is None else chain.hex()[:_CHAIN_DIGITS]

    def position(self, offset: dict[str, Any]) -> int:
        """Return the sequence of an offset; raise if this log does not have the history of the offset."""
        try:
            at = converted(offset, _Offset)
        except Undecodable as error:
            raise LogDiverged(
                path=str(self._home.address), sequence=0, why=f"its offset cannot be read: {error}"
            ) from error
        sequence, tail = at.sequence, self._look()
        if sequence > tail:
            tail = self._log.refresh()
        if sequence:
            self._log.seek(sequence - 1, at.record)
        if at.log != self._log.identity:
            why = f"the offset is of log {at.log}, and this is log {self._log.identity}"
        elif sequence > tail:
            why = f"the log ends before sequence {tail}"
        elif at.chain != self._chain(sequence):
            why = "the log was rolled back since then and has other events"
        else:
            self._refuse_rewound(sequence)
            return sequence
        raise LogDiverged(path=str(self._home.address), sequence=sequence, why=why)

    def _refuse_rewound(self, sequence: int) -> None:
        """Raise if a rewind of the log's writer has changed events before this sequence, which the stream has read."""
        changed = self._log.changed_before(sequence)
        if changed is not None:
            raise LogRewound(
                path=str(self._home.address),
                reader="the stream",
                position=sequence - 1,
                changed=changed,
                do="rewind its pipeline to a checkpoint before that, or read the log with a stream of another name",
            )

    # --- on the executors ---

    def read(self, partition: SegmentRun) -> Iterator[pa.RecordBatch]:
        """Yield the events of a run, checked."""
        return read_run(self._home, self._schema, partition)


class LogBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads a range of a log by its index."""

    def __init__(self, home: LogHome, schema: StructType, start: int | None, end: int | None, partitions: int) -> None:
        self._home = home
        self._schema = schema
        self._start = start
        self._end = end
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        """Divide the segments into runs of about equal numbers of rows."""
        log = EventLog.open(self._home.address)
        start = self._home.floor() if self._start is None else self._start
        end = log.tail if self._end is None else min(self._end, log.tail)
        pieces = list(pieces_between(log, start, end))
        return [SegmentRun(run) for run in in_runs(pieces, self._partitions)]

    def read(self, partition: SegmentRun) -> Iterator[pa.RecordBatch]:
        """Yield the events of a run, checked."""
        return read_run(self._home, self._schema, partition)


def pieces_between(log: EventLog, begin: int, end: int) -> Iterator[Piece]:
    """Yield the parts of segments between two sequences."""
    for each in log.segments(begin, end):
        yield Piece(each, max(begin - each.first, 0), min(end - each.first, each.count))


def read_run(home: LogHome, columns: StructType, run: SegmentRun) -> Iterator[pa.RecordBatch]:
    """Yield the events of a run on an executor; each segment is checked."""
    schema = read_schema(home.about(), home.address)
    target = pa.schema([_field(each) for each in columns.fields])
    for piece in run.pieces:
        table = home.segment(piece.segment, schema).slice(piece.start, piece.stop - piece.start)
        first = piece.segment.first + piece.start
        table = table.add_column(0, SEQUENCE, _numbers(first, table.num_rows)).cast(target)
        yield from table.to_batches(_BATCH_ROWS)


def in_runs(pieces: Sequence[Piece], most: int) -> list[list[Piece]]:
    """Divide pieces into at most `most` runs of about equal numbers of rows."""
    rows = sum(piece.stop - piece.start for piece in pieces)
    runs: list[list[Piece]] = []
    done = 0
    for piece in pieces:
        if not runs or done * most >= len(runs) * rows:
            runs.append([])
        runs[-1].append(piece)
        done += piece.stop - piece.start
    return runs


def _numbers(first: int, count: int) -> pa.Array:
    """Return consecutive integers. `pa.array` would import pandas first, which takes a worker some time."""
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", range(first, first + count)))])


def _field(column: StructField) -> pa.Field:
    return pa.field(column.name, arrow_of(column.dataType, column.name), column.nullable)


def _home(options: dict[str, str]) -> LogHome:
    if _PATH not in options:
        raise BadValue(what="option", value=_PATH, why="it is missing", do='set it: .option("path", ...)')
    return home_of(options[_PATH])


def _integer(options: dict[str, str], name: str, otherwise: int | None, *, least: int = 1) -> int | None:
    if name not in options:
        return otherwise
    text = options[name]
    value = int(text) if text.isdecimal() else text
    return checked_positive(f"option {name}", value) if least else checked_u64(f"option {name}", value)
