"""A stream without Spark, with a history of many epochs that is generated: see `bench/recovering.py`."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StructField, StructType

from bench.compare import timed
from holdfast import FileSink, LogSink, RestartPolicy, Sink, SqliteSink, StreamCallbacks, StreamIdentity
from holdfast.epoch import Attempt, Decision, Facts, Share, Verdict
from holdfast.eventlog import EventLog
from holdfast.eventlog._files import HEAD, HEAD_BLOCKS, INDEX, write_head
from holdfast.eventlog.index import Committed, IndexHead, Segment, StoredHead, encode
from holdfast.eventlog.segment import NewEvent, to_table
from holdfast.formats.blocks import MemoryBlocks
from holdfast.formats.sealed_json import digest_of
from holdfast.policy import Backoff
from holdfast.repository import Decisions, Identity, Lease, Lineage, LocalRepository
from holdfast.repository.decisions import stream_folder
from holdfast.sinks._log_local import SEGMENTS_FILE, SegmentsRecord, StagedFile
from holdfast.sinks.base import EpochKey, SinkContext
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord, folder_name
from holdfast.sinks.staged_files import digests
from holdfast.spark.adapter import RETAINED
from holdfast.spark.context import RunContext
from holdfast.spark.epochs import PRUNE_EVERY
from holdfast.spark.spec import checked_spec
from holdfast.spark.stream import StreamRun

STREAM, PART = "rows", "part-00000.parquet"
ROWS = 10  # per epoch
REAL = 10  # the last epochs, which the sink commits itself
SCHEMA = StructType([StructField("n", LongType())])


class History:
    """A stream with a long history. Subclasses write the early epochs into their sink, and stage a late one."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder, self.epochs = folder, epochs
        self.repository = LocalRepository(folder / "root")
        self.repository.root.mkdir(parents=True)
        self.identity = Identity.create(self.repository, "recovering")
        self.owner = StreamIdentity("recovering", self.identity.uid, STREAM)
        self.lease = Lease.take(self.repository)
        sink = self.sink()
        sink.open(SinkContext(self.owner, SCHEMA, "append", None))  # no Spark is needed here
        self.write(epochs - REAL)
        handles = {}
        for epoch in range(epochs - REAL + 1, epochs + 1):
            key = EpochKey(self.owner, Attempt(stream=STREAM, timeline=1, epoch=epoch, attempt=1), self.lease.number)
            staging = sink._place.staging if isinstance(sink, LogSink) else sink._staging  # type: ignore[attr-defined]
            handles[epoch] = self.staged(staging.folder(key), key)
            sink.commit(key, handles[epoch])
        self._write_logs()
        self._decide(sink.name, handles)

    def sink(self) -> Sink:
        """Return the sink, not yet open."""
        raise NotImplementedError

    def write(self, epochs: int) -> None:
        """Write the first epochs into the sink."""
        raise NotImplementedError

    def staged(self, folder: Path, key: EpochKey) -> dict[str, Any]:
        """Stage the rows of an epoch in a folder as Spark would, and return the handle."""
        raise NotImplementedError

    def record(self, epoch: int, **facts: Any) -> KeyRecord:
        """Return the record of an epoch's files."""
        owner = self.owner
        return KeyRecord(
            pipeline=owner.pipeline,
            uid=owner.uid,
            stream=owner.stream,
            timeline=1,
            epoch=epoch,
            attempt=1,
            lease=self.lease.number,
            rows=ROWS,
            **facts,
        )

    def stage(self, folder: Path, key: EpochKey, rows: pa.Table) -> dict[str, Any]:
        """Stage a table, with its key file; return the handle."""
        folder.mkdir(parents=True)
        pq.write_table(rows, folder / PART)
        sizes = {PART: (folder / PART).stat().st_size}
        record = self.record(key.epoch, files=sizes, digests=digests(folder, sizes)).sealed()
        (folder / KEY_FILE).write_bytes(record)
        return {"rows": ROWS, "files": 1, "digest": digest_of(record)}

    def _write_logs(self) -> None:
        """Write Spark's logs: the entries that it retains, and the one entry that a source like Kafka keeps."""
        log = self.repository.root / stream_folder(STREAM, 1) / "spark"
        for name, text in (("offsets", 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":%d}}'), ("commits", "v1\n{}")):
            (log / name).mkdir(parents=True)
            for batch in range(max(self.epochs - RETAINED - 1, 0), self.epochs):
                (log / name / str(batch)).write_text(text % (batch + 1) if "%" in text else text)
        (log / "metadata").write_text(json.dumps({"id": "1"}))
        (log / "sources" / "0").mkdir(parents=True)
        (log / "sources" / "0" / "0").write_text('v1\n{"t":{"0":0}}')

    def _decide(self, sink: str, handles: dict[int, dict[str, Any]]) -> None:
        decisions = Decisions(self.repository)
        kept_from = self.epochs - self.epochs % PRUNE_EVERY - RETAINED
        for epoch in range(max(kept_from, 1), self.epochs + 1):
            share = Share(handle=handles.get(epoch, {"rows": ROWS}), rows=ROWS, stands=epoch, before=epoch - 1)
            facts = Facts(
                start=[f'{{"t":{{"0":{epoch - 1}}}}}'],
                end=[f'{{"t":{{"0":{epoch}}}}}'],
                offsets_digest="0" * 64,
                source_log={"0": 0},
                source_entries={},
                sinks={sink: share},
                rows=ROWS,
                total_rows=epoch * ROWS,
            )
            attempt = Attempt(stream=STREAM, timeline=1, epoch=epoch, attempt=1)
            decisions.close(Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain()))
        decisions.prune(STREAM, 1, kept_from)

    def recover(self) -> float:
        """Return the time of one recovery."""
        df = SimpleNamespace(schema=SCHEMA, sparkSession=None)
        sink = self.sink()
        spec = checked_spec(
            STREAM,
            lambda _: df,
            sinks=[sink],
            output_mode="append",
            trigger=None,
            options=None,
            restart=RestartPolicy.never(),
            quarantine_after=None,
        )
        run = RunContext(
            spark=None,
            repository=self.repository,
            lineage=Lineage(self.identity),
            lease=self.lease,
            retain=RETAINED,
            shared=False,
            available_now=False,
            accept=frozenset(),
            backoff=Backoff(),
            callbacks=StreamCallbacks(),
            build=lambda _: df,
        )
        stream = StreamRun(spec, run)
        seconds = timed(stream.recover)
        plan = stream.plan
        assert plan is not None
        assert (plan.decided, plan.replays, plan.finish) == (self.epochs, False, ())
        assert plan.stands == {sink.name: self.epochs}
        stream.close()
        return seconds


class Files(History):
    """A `FileSink`: one folder per epoch. The files with rows are left out: a recovery reads none of them."""

    def sink(self) -> Sink:
        """Return the sink, not yet open."""
        return FileSink(self.folder / "out")

    def write(self, epochs: int) -> None:
        """Write the first epochs into the sink."""
        for epoch in range(1, epochs + 1):
            folder = f"{self.folder}/out/{folder_name(1, epoch)}"
            os.mkdir(folder)  # noqa: PTH102 - a hundred thousand times
            Path(folder, KEY_FILE).write_bytes(self.record(epoch, files={}).sealed())

    def staged(self, folder: Path, key: EpochKey) -> dict[str, Any]:
        """Stage the rows of an epoch in a folder, and return the handle."""
        return self.stage(folder, key, pa.table({"n": list(range(ROWS))}))


class Log(History):
    """A `LogSink`: one record of the index per epoch. The segments are left out: a recovery reads none of them."""

    def sink(self) -> Sink:
        """Return the sink, not yet open."""
        return LogSink(self.folder / "out")

    def write(self, epochs: int) -> None:
        """Write the first epochs into the sink."""
        path = self.folder / "out"
        head = StoredHead.of(IndexHead.first(EventLog.open(path).identity))
        with (path / INDEX).open("wb") as index:
            for epoch in range(1, epochs + 1):
                segment = Segment(f"segments/first={head.tail:020}/{PART}", head.tail, ROWS, 1000, bytes(32))
                key = f"{self.owner.uid}/{STREAM}/t1-{epoch:010}/{'0' * 16}"
                record, after = encode(Committed(head.tail, ROWS, (segment,), key), head.head)
                index.write(record)
                head = head.followed_by(after)
        blocks = MemoryBlocks(HEAD_BLOCKS)
        write_head(blocks, head, write_head(blocks, head, None))
        (path / HEAD).write_bytes(bytes(blocks.data))

    def staged(self, folder: Path, key: EpochKey) -> dict[str, Any]:
        """Stage the rows of an epoch in a folder, and return the handle."""
        events = to_table(
            [NewEvent(STREAM, {"n": row}) for row in range(ROWS)], EventLog.open(self.folder / "out").schema
        )
        handle = self.stage(folder, key, events)
        sizes = {PART: (folder / PART).stat().st_size}
        listed = StagedFile(PART, ROWS, sizes[PART], digests(folder, sizes)[PART])
        record = SegmentsRecord(segments=[listed]).sealed()
        (folder / SEGMENTS_FILE).write_bytes(record)
        return handle | {"segments": digest_of(record)}


class Sqlite(History):
    """A `SqliteSink`: ten rows per epoch."""

    def sink(self) -> Sink:
        """Return the sink, not yet open."""
        return SqliteSink(self.folder / "out", table="numbers", create=True)

    def write(self, epochs: int) -> None:
        """Write the first epochs into the sink."""
        rows = ((row,) for row in range(epochs * ROWS))
        connection = sqlite3.connect(self.folder / "out")
        with connection:
            connection.executemany("INSERT INTO numbers (n) VALUES (?)", rows)
        connection.close()

    def staged(self, folder: Path, key: EpochKey) -> dict[str, Any]:
        """Stage the rows of an epoch in a folder, and return the handle."""
        handle = self.stage(folder, key, pa.table({"n": list(range(ROWS))}))
        return handle | {"effect": "append", "key": []}
