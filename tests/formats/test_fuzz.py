"""Every reader of bytes, fed with random, damaged and hostile ones: a value comes back, or a typed error.

The inputs are random bytes, files that are cut, flipped, spliced or doubled, and files of the right form with wrong
values in them, under digests that are right. `mutations` says how to repeat a run and how to make it longer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

import holdfast as hf
from fabricated import Fabricated
from holdfast._offsets import differences, log_edges, log_position
from holdfast._topics import TopicChoice, positions_of
from holdfast.barriers import CheckpointBarrier
from holdfast.control import answer_requests, running_driver
from holdfast.control.asking import Asking
from holdfast.control.channel import ControlChannel
from holdfast.control.protocol import RequestState
from holdfast.control.records import (
    ChannelRecord,
    ControlAnswer,
    ControlRequest,
    RequestClaim,
    RequestKind,
    read_channel,
    read_state,
)
from holdfast.control.results import result_of
from holdfast.doctor import examine
from holdfast.doctor.offsets import described, goes_back
from holdfast.epoch import Attempt, Decision, Facts, Share, Verdict
from holdfast.errors import CheckpointDamaged, HoldfastError, LogCorrupt
from holdfast.eventlog import _files as loghead
from holdfast.eventlog import repair
from holdfast.eventlog._cursor_file import CursorRecord
from holdfast.eventlog._cursor_slot import cursor_key, cursor_names, read_cursor
from holdfast.eventlog.index import Cancelled, Committed, IndexHead, RangeDamaged, Rewound, Segment, StoredHead, encode
from holdfast.eventlog.keeping import LogFloor, LogKeep
from holdfast.eventlog.store_record import IndexRecord, record_key
from holdfast.eventlog.worker import Quarantined, read_quarantine
from holdfast.eventlog.writer import LogWriter
from holdfast.formats import envelope, state
from holdfast.formats.blocks import BLOCK_SIZE, MemoryBlocks
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import (
    CheckpointTimes,
    ConnectorCheckpoint,
    GapNote,
    GapNotes,
    SinkStatus,
    StreamCut,
    StreamTimes,
)
from holdfast.formats.sealed_json import Record
from holdfast.in_doubt import in_doubt
from holdfast.plainspark.records import AdoptedRecord, LastBatch, adopted
from holdfast.program.description import (
    ColumnDescription,
    SinkDescription,
    SourceDescription,
    StateDescription,
    StreamDescription,
)
from holdfast.program.records import ProgramRecord
from holdfast.repository import (
    Checkpoints,
    Decisions,
    Gaps,
    History,
    Identity,
    Lineage,
    LocalRepository,
    Repository,
    TimelineRecord,
)
from holdfast.repository.activity import ActivityEvent, HourRecord, Period, PeriodRecord, StreamActivity
from holdfast.repository.backfills import BackfillRecord
from holdfast.repository.checkpoint_keys import AbortRecord, AttemptRecord, place_of
from holdfast.repository.decisions import Floor
from holdfast.repository.filelist import FileList, HeldFile
from holdfast.repository.forks import ForkRecord
from holdfast.repository.gaps import GapRecord
from holdfast.repository.history import Entry
from holdfast.repository.lease import LeaseRecord, held_lease, newest_lease, seen_leases
from holdfast.repository.lineage import branches
from holdfast.repository.rewinds import (
    LostSink,
    RewindRecord,
    SinkAim,
    StreamAim,
    UnfinishedEpoch,
    read_rewind,
    unfinished_epochs,
    unfinished_rewind,
)
from holdfast.repository.stream_records import StreamRecord
from holdfast.repository.targets import SinksRecord
from holdfast.repository.topics import StreamTopics, TopicNote, TopicsRecord
from holdfast.repository.verdicts import LastVerify, VerdictsRecord
from holdfast.rewind.building import BuildingRecord
from holdfast.sinks._log_local import SegmentsRecord, StagedFile
from holdfast.sinks._sqlite_undo import decoded
from holdfast.sinks.base import Link, StreamIdentity
from holdfast.sinks.delta.rewind import AsideFiles
from holdfast.sinks.files.epoch_folders import KeyRecord, folder_of
from holdfast.sinks.files.position import POSITION_FILE, PositionRecord, PositionStamp
from holdfast.sinks.foreach import CalledRecord
from holdfast.sinks.iceberg.ledger import HeldEpoch, TableLedger, TakenBack
from holdfast.sinks.kafka.marker import EpochMarker
from holdfast.sinks.lake.epoch_files import EpochFiles, LakeFile
from holdfast.sinks.owners import OwnerRecord, owner_of
from holdfast.sinks.places import file_sinks
from holdfast.spark.lag import behind_topics
from holdfast.spark.snapshot import Snapshots
from holdfast.spark.sparklog import SparkLog
from holdfast.spark.stages import StageKeeper
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.sparkfiles.sourcelog import log_offset
from holdfast.stages import CheckpointedStage, MsgpackCodec, Stage
from holdfast.stores import DurableCheckpointStore
from mutations import FACTOR, Mutator, Untyped
from support import events, new_log

UID = "0123456789abcdef0123456789abcdef"
DIGEST = "ab" * 32
Redo = Callable[[Mutator, bytes], bytes]
"""Changes a sample and makes its digests right again."""


@dataclass(frozen=True)
class Format:
    """Bytes that the package reads: examples of them, and how they are read."""

    name: str
    samples: list[bytes]
    read: Callable[[bytes], object]
    redo: Redo | None = None
    names: str = ""  # must be in the text of every error
    inputs: int = 150


def fuzzed(formats: list[Format]) -> None:
    """Read many damaged inputs of each format."""
    untyped = Untyped()
    for each in formats:
        mutator = Mutator(each.name)
        for sample in each.samples:
            each.read(sample)  # sound, or the test would prove nothing
        for number in range(int(each.inputs * FACTOR)):
            if each.redo is not None and number % 2:
                data = each.redo(mutator, mutator.random.choice(each.samples))
            else:
                data = mutator.damaged(each.samples)
            untyped.call(each.name, each.read, data, names=each.names)
    untyped.check()


def in_json(mutator: Mutator, data: bytes) -> bytes:
    return mutator.json(data)


def resealed(mutator: Mutator, data: bytes) -> bytes:
    return mutator.resealed(data)


def in_msgpack(mutator: Mutator, data: bytes) -> bytes:
    """Change MessagePack: one value of it, or bytes within a text."""
    if mutator.random.random() < 0.3:
        at = mutator.random.randrange(len(data))
        return data[:at] + b"\xff" + data[at + 1 :]
    value = mutator.changed(msgspec.msgpack.decode(data))
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        return msgspec.msgpack.encode(str(value))


# --- values ----------------------------------------------------------------------------------------------------------

STATE = hf.stores.CheckpointState(
    hf.stores.CheckpointId("orders", 7, 99),
    operator_states={"sum": b"\0" * 20, "é": b""},
    source_offsets={"kafka": 12},
    watermark_ns=5,
    event_count=3,
    metadata={"why": "é"},
)


def framed(magic: bytes, version: int, change: Redo) -> Redo:
    return lambda mutator, data: envelope.pack(magic, version, change(mutator, envelope.unpack(magic, data)[1]))


def in_bytes(mutator: Mutator, data: bytes) -> bytes:
    return mutator.damaged([data])


def test_barriers_and_states() -> None:
    memory = hf.repository.MemoryRepository()
    store = DurableCheckpointStore(memory, 5)
    key = f"states/orders/{7:020}.state"

    def stored(data: bytes) -> object:
        memory.put(key, data)
        return store.latest("orders"), store.list("orders"), store.load("orders", 7)

    v1, v2 = STATE.to_v1_bytes(), STATE.to_bytes()
    body = framed(state.MAGIC, 2, in_bytes)
    fuzzed(
        [
            Format("barrier", [CheckpointBarrier(1, 2).to_bytes()], CheckpointBarrier.from_bytes),
            Format("state v1", [v1], lambda data: hf.stores.CheckpointState.from_v1_bytes(data, "orders"), inputs=400),
            Format("state v2", [v2], hf.stores.CheckpointState.from_bytes, body, inputs=400),
            Format("stored state", [v1, v2], stored, lambda m, _: body(m, v2), key, inputs=400),
        ]
    )


MANIFEST = Manifest(
    checkpoint_id=3,
    epoch=3,
    timestamp_ms=1,
    source_offsets={"k": ConnectorCheckpoint(offsets={"partition-0": "1"}, epoch=2, metadata={"a": "b"})},
    sink_epochs={"files": 3},
    sink_commit_statuses={"files": SinkStatus("Committed"), "pg": SinkStatus.failed("no")},
    operator_states=hf.formats.pack_states({"a": b"small", "b": b"x" * 40}, threshold=16).entries,
    watermark=5,
    source_watermarks={"k": -5},
    source_names=("k",),
    sink_names=("files", "pg"),
    pipeline_hash=5,
    state_checksum=hashlib.sha256(b"x" * 40).hexdigest(),
    pipeline="orders",
    uid=UID,
    timeline=1,
    lease=1,
    parent=DIGEST,
    streams={
        "up": StreamCut(timeline=1, epoch=3, sinks={"log": {"log": UID, "tail": 5}}, files=DIGEST),
        "down": StreamCut(timeline=1, epoch=3, offsets=[json.dumps({"log": UID, "sequence": 3})], reads=["up"]),
    },
    times=CheckpointTimes(seconds=0.5, streams={"orders": StreamTimes(acknowledged=0.25, new_files=1, new_bytes=7)}),
    gaps=GapNotes(
        total=2,
        newest=(GapNote(stream="up", timeline=1, epoch=2, kind="offsets", why="w", at_ms=5, facts={"a": [1]}),),
    ),
    extra={"later": '{"a":1}'},
)
V1_MANIFEST = json.dumps(
    {
        "version": 1,
        "checkpoint_id": 1,
        "epoch": 2,
        "timestamp_ms": 3,
        "source_offsets": {"k": {"offsets": {"partition-0": "1"}, "epoch": 2}},
        "sink_commit_statuses": {"a": "Pending", "b": {"Failed": "why"}},
        "operator_states": {"a": {"state_b64": "AAAA"}, "b": {"external": True, "external_length": 40}},
        "watermark": -1,
        "vnode_count": 256,
    }
).encode()


def test_manifests() -> None:
    def read(data: bytes) -> object:
        found = Manifest.from_bytes(data)
        found.validate(sidecar_length=40)
        list(log_edges(found.streams))
        found.to_bytes()
        return found.read_states(b"x" * 40)

    def redo(mutator: Mutator, data: bytes) -> bytes:
        return mutator.resealed(data) if b'"digest"' in data else mutator.json(data)

    fuzzed([Format("manifest", [MANIFEST.to_bytes(), V1_MANIFEST], read, redo, inputs=1500)])


def test_file_lists() -> None:
    checkpoints = Checkpoints(hf.repository.MemoryRepository())
    place = place_of(1, 1)

    def read(data: bytes) -> object:
        digest = hashlib.sha256(data).hexdigest()
        checkpoints.repository.put(place.object(digest), data)
        assert isinstance(checkpoints.file_list(place, digest), FileList | str)
        return checkpoints.files(place, StreamCut(timeline=1, epoch=1, files=digest), 1)

    sample = FileList([HeldFile("offsets/1", 5, DIGEST), HeldFile("metadata", 5, DIGEST)]).to_bytes()
    fuzzed([Format("file list", [sample], read, in_json, "checkpoint 1", inputs=500)])


V1_CURSOR = msgspec.msgpack.encode(
    {"position": 5, "started": True, "process_boot_ns": None, "region_identity": "entity=*|scope=*|fact=any|clock=*"}
)
CURSOR = CursorRecord(position=5, started=True, region_identity="entity=*", log_identity=UID, log_chain=b"\0" * 32)


def test_cursors() -> None:
    repository = hf.repository.MemoryRepository()
    key = cursor_key("c")

    def read(data: bytes) -> object:
        repository.put(key, data)
        assert cursor_names(repository) == ["c"]
        return read_cursor(repository, "c")

    v2 = framed(b"HFCURSOR", 2, in_msgpack)
    fuzzed(
        [
            Format("cursor v1", [V1_CURSOR], read, in_msgpack, key, inputs=400),
            Format("cursor v2", [CURSOR.to_bytes()], read, v2, key, inputs=400),
        ]
    )


def test_records_of_an_index_on_a_store() -> None:
    """As the log reads them: damage is translated there."""
    segment = Segment("segments/s/t1-0000000001/1.1/00000-0.parquet", 0, 3, 99, b"\0" * 32)
    first = IndexRecord.after(None, UID, Committed(0, 3, (segment,), "key"), {"mark": "key"})
    second = IndexRecord.after(first, UID, Rewound(3, 1, "stamp", ((0, 3),)), {"mark": "stamp"})
    name = record_key(3)

    def read(data: bytes) -> object:
        try:
            return IndexRecord.read(data, name, UID).range
        except RangeDamaged as damage:
            raise LogCorrupt(path="log", part="index", why=str(damage)) from damage

    cancelled = IndexRecord.after(first, UID, Cancelled(3, 1, "why"), {})
    samples = [each.sealed(one_line=True) for each in (second, cancelled)]
    fuzzed([Format("index record", samples, read, resealed, "index", inputs=600)])


# --- stages ----------------------------------------------------------------------------------------------------------

CODEC = MsgpackCodec(dict[str, int], "dict")


def image() -> bytes:
    device = MemoryBlocks(8)
    stage = CheckpointedStage({"seen": 1}, device, CODEC)
    for number in (1, 2):
        stage.state = {"seen": number}
        stage.checkpoint()
    return bytes(device.data)


def v1_image() -> bytes:
    payload = CODEC.encode({"seen": 1})
    return struct.pack("<4sIQ", b"PCHK", 1, len(payload)).ljust(512, b"\0") + payload.ljust(7 * 512, b"\0")


def with_digests(mutator: Mutator, data: bytes) -> bytes:
    """Change headers or payload of a stage image, and make both digests right again."""
    changed = bytearray(data)
    for _ in range(mutator.random.randrange(1, 4)):
        start = mutator.random.choice((0, 2048))
        at = mutator.random.choice((4, 8, 9, 16, 24, 32, 40, 96, 192, 512, 513, 600))
        changed[start + at] = mutator.random.choice((0, 1, 2, 3, 0x80, 0xC3, 0xFF))
    for start in (0, 2048):
        changed[start + 160 : start + 192] = bytes(32)
        length = int.from_bytes(changed[start + 8 : start + 16], "little")
        end = start + BLOCK_SIZE * (1 + -(-length // BLOCK_SIZE)) if length < 2048 else start + 512
        changed[start + 160 : start + 192] = hashlib.sha256(changed[start:end]).digest()
    return bytes(changed)


def test_stages(tmp_path: Path) -> None:
    path = tmp_path / "blocks"

    def read(data: bytes) -> object:
        blocks = MemoryBlocks(len(data) // BLOCK_SIZE)
        blocks.data[:] = data[: len(blocks.data)]
        found = CheckpointedStage.resume({"seen": 0}, blocks, CODEC)
        found.stage.checkpoint()
        return found

    def read_file(data: bytes) -> object:
        path.write_bytes(data)
        with hf.repository.FileBlocks.open(path) as blocks:
            return CheckpointedStage.restore(blocks, CODEC)

    repository = LocalRepository(tmp_path / "repository")
    (repository.root / "stages").mkdir(parents=True)
    keeper = StageKeeper(Stage({"seen": 0}, CODEC), repository, "orders", 1, 2)
    payload = CODEC.encode({"seen": 1})
    record = {"type": "dict", "size": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    inline = json.dumps({**record, "inline": base64.b64encode(payload).decode()}).encode()
    named = json.dumps({**record, "blocks": "orders.t1.l1.8.blocks", "generation": 1}).encode()
    device = MemoryBlocks(8)
    CheckpointedStage(payload, device, keeper._images._codec, name="orders").checkpoint()
    blocks = repository.root / "stages/orders.t1.l1.8.blocks"
    blocks.write_bytes(device.data)

    def load(data: bytes) -> object:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return None  # a decision holds JSON, and is checked as such
        return keeper.view(keeper.load(found)) if isinstance(found, dict) else None

    def load_blocks(data: bytes) -> object:
        blocks.write_bytes(data)
        return load(named)

    fuzzed(
        [
            Format("stage image", [image()], read, with_digests, inputs=400),
            Format("stage image v1", [v1_image()], read, inputs=400),
            Format("stage file", [image(), v1_image()], read_file, with_digests),
            Format("stage in a decision", [inline, named], load, in_json, "stage", inputs=400),
            Format("stage blocks", [bytes(device.data)], load_blocks, with_digests, "stage"),
        ]
    )


# --- event logs ------------------------------------------------------------------------------------------------------


class FuzzedLog:
    """An event log whose files are replaced, one at a time or with all digests made right."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        log = new_log(folder, events("a", "b"), events("c"))
        with log.writer() as writer:
            writer.cancel(2, "why")
        self.start = IndexHead.first(log.identity)
        self.segment, second = log.segments(0, 3)
        names = ["log.json", "head", "index", self.segment.path, second.path]
        self.sound = {name: (folder / name).read_bytes() for name in names}

    def look(self) -> object:
        list(hf.eventlog.EventLog.open_end(self.folder).keys())
        found = hf.eventlog.EventLog.open(self.folder)
        list(found.read())
        list(found.read(hf.eventlog.Region(entity="a", kind=hf.eventlog.KindFilter(0))))
        list(found.keys())
        found.cancelled(0, found.tail)
        LogWriter(self.folder).close()
        return found

    def fill(self, **changed: bytes) -> None:
        for name, data in (self.sound | changed).items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)

    def with_file(self, name: str) -> Callable[[bytes], object]:
        def read(data: bytes) -> object:
            self.fill(**{name: data})
            try:
                return self.look()
            except HoldfastError:
                repair(self.folder)
                return self.look()

        return read

    def with_head(self, data: bytes) -> object:
        """Put any bytes into the head, under a digest that is right."""
        device = MemoryBlocks(loghead.HEAD_BLOCKS)
        loghead.Device(device, "log-head").write(loghead.Image(1, "log-head", "Head", data[:400]), None)
        self.fill(head=bytes(device.data))
        return self.look()

    def with_index(self, data: bytes, head: IndexHead, **changed: bytes) -> object:
        device = MemoryBlocks(loghead.HEAD_BLOCKS)
        first = loghead.write_head(device, StoredHead.of(self.start), None)
        loghead.write_head(device, StoredHead.of(head, (self.start,)), first)
        self.fill(index=data, head=bytes(device.data), **changed)
        return self.look()

    def with_record(self, data: bytes) -> object:
        """Put any bytes into the only record of the index, under a chain that is right."""
        framed_body = len(data).to_bytes(4, "little") + data
        chain = hashlib.sha256(self.start.chain + framed_body).digest()
        return self.with_index(framed_body + chain, IndexHead(1, len(framed_body) + 32, chain, 2))

    def with_rewind(self, data: bytes) -> object:
        """Put any bytes into the second record of the index, after two events."""
        first, head = encode(Committed(0, 2, (self.segment,)), self.start)
        framed_body = len(data).to_bytes(4, "little") + data
        chain = hashlib.sha256(head.chain + framed_body).digest()
        end = IndexHead(2, len(first) + len(framed_body) + 32, chain, 3)
        return self.with_index(first + framed_body + chain, end)

    def with_segment(self, data: bytes) -> object:
        """Put any bytes into a segment, under a digest that is right."""
        segment = Segment(self.segment.path, 0, 2, len(data), hashlib.sha256(data).digest())
        return self.with_index(*encode(Committed(0, 2, (segment,)), self.start), **{segment.path: data})

    def with_schema(self, data: bytes) -> object:
        about = loghead.About.unsealed(self.sound["log.json"], "log.json")
        changed = msgspec.structs.replace(about, schema=base64.b64encode(data).decode())
        self.fill(**{"log.json": changed.sealed()})
        return self.look()


def test_event_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loghead, "_HEAD_PAUSE_S", 0)
    log = FuzzedLog(tmp_path / "log")
    record = msgspec.msgpack.encode(("committed", 0, 2, (log.segment,)))
    rewind = msgspec.msgpack.encode(("rewound", 2, 1, "key", ((0, 2),), ()))
    payload = msgspec.msgpack.encode(loghead.read_stored(log.folder))
    schema = base64.b64decode(loghead.read_about(log.folder).schema)
    where, sound, segment = str(log.folder), log.sound, log.segment.path
    fuzzed(
        [
            Format("log record", [sound["log.json"]], log.with_file("log.json"), resealed, where, inputs=80),
            Format("log schema", [schema], log.with_schema, None, where, inputs=60),
            Format("log head", [sound["head"]], log.with_file("head"), None, where, inputs=60),
            Format("log index", [sound["index"]], log.with_file("index"), None, where, inputs=60),
            Format("log segment file", [sound[segment]], log.with_file(segment), None, where, inputs=60),
            Format("log head payload", [payload], log.with_head, in_msgpack, where, inputs=100),
            Format("log index record", [record], log.with_record, in_msgpack, where, inputs=150),
            Format("log rewind", [rewind], log.with_rewind, in_msgpack, where, inputs=150),
            Format("log segment", [sound[segment]], log.with_segment, None, where, inputs=60),
        ]
    )


# --- sealed records --------------------------------------------------------------------------------------------------

ATTEMPT = Attempt(stream="orders", timeline=1, epoch=2, attempt=1)
FACTS = Facts(
    start=[None],
    end=['{"logOffset":1}'],
    offsets_digest=DIGEST,
    source_log={"0": 1},
    source_entries={"0/1": DIGEST},
    sinks={"files": Share(handle={"digest": DIGEST, "rows": 2}, rows=2, stands=2, before=1)},
    rows=2,
)
DECISION = Decision(attempt=ATTEMPT, verdict=Verdict.COMMIT, lease=1, facts=FACTS.plain())
POSITION = PositionRecord(pipeline="orders", uid=UID, stream="orders", timeline=2, epoch=41)
PERIOD = Period(
    start_ms=1, end_ms=2, lease=1, streams={"orders": StreamActivity(epochs=2, phases={"open": 0.5}, behind=3)}
)
LAKE_FILE = LakeFile("hf/a.parquet", 5, 2, DIGEST, '{"numRecords":2}', {"day": None})
RECORDS: list[Record] = [
    Identity(pipeline="orders", uid=UID),
    LeaseRecord(number=1, host="h", pid=1, token="", taken_at_ms=5),
    DECISION,
    Floor(epoch=3),
    TopicsRecord(stream="orders", timeline=1, epoch=2, sources={"0": {"t": TopicNote(id="A", partitions=3)}}, at_ms=5),
    GapRecord(stream="orders", timeline=1, epoch=2, kind="offsets", why="w", at_ms=5, facts={"a": [1]}),
    PeriodRecord(period=PERIOD),
    HourRecord(start_ms=0, periods=[PERIOD]),
    ActivityEvent(at_ms=5, lease=1, kind="failed", stream="orders", text="t", steps={"build": 0.5}, facts={"a": 1}),
    VerdictsRecord(
        verdicts=[LastVerify(checkpoint="3", ok=False, grade="digests", at_ms=5, text="e", conclusive=False)]
    ),
    Entry(at="2026-01-01T00:00:00.000+00:00", who="me", what="prune", facts={"a": 1}),
    AttemptRecord(checkpoint_id=1, lease=1, begun_at_ms=5),
    AbortRecord(checkpoint_id=1, lease=1, at_ms=5, why="w", late=["orders"]),
    Quarantined(cursor="c", first=1, last=2, events=2, failures=3, error="e", at_ms=5),
    ControlRequest(
        id="a" * 32,
        kind="prune",
        lease=1,
        who="me",
        pid=1,
        asked_at_ms=1,
        until_ms=1 << 60,
        arguments={"last": 1, "hourly": 0, "daily": 0, "within": 5.5},
    ),
    ControlAnswer(at_ms=5, result={"a": 1}),
    OwnerRecord(pipeline="orders", uid=UID, stream="orders", shape="layout epochs, format json, partitioned by []"),
    SegmentsRecord(segments=[StagedFile("a.parquet", 1, 2, DIGEST)]),
    KeyRecord(
        pipeline="orders", uid=UID, stream="s", timeline=1, epoch=2, attempt=1, lease=1, rows=2, files={"a.json": 5}
    ),
    SinksRecord(stream="orders", targets={"files": "files /tmp/out"}),
    CalledRecord(pipeline="orders", uid=UID, stream="s", timeline=1, epoch=2, rows=2, handle=DIGEST),
    loghead.About(uid=UID, keep_clock=False, columns="", schema=""),
    ForkRecord(pipeline="orders", uid=UID, base="checkpoint 1", manifest=DIGEST),
    LogKeep(seconds=5.5),
    LogFloor(first=7),
    BackfillRecord(
        attempt=Attempt(stream="orders", timeline=1, epoch=2, attempt=2),
        sink="table",
        source="files",
        handle={"a": 1},
        rows=3,
        lease=1,
    ),
    ProgramRecord(
        stream="orders",
        timeline=1,
        epoch=2,
        description=StreamDescription(
            sources=[SourceDescription(kind="FileSource", reads="/in", options={"a": "b"})],
            sinks={"files": SinkDescription(kind="FileSink", target="files /out", settings={"format": "json"})},
            columns=[ColumnDescription(name="n", type="bigint")],
            state=[StateDescription(kind="Aggregate", keys=["bigint"], columns=[])],
            output_mode="append",
        ),
        at_ms=5,
    ),
    StreamRecord(stream="orders", output_mode="append", settings={"a": "b"}),
    RequestClaim(verdict=RequestState.TAKEN, who="me", token="", at_ms=5),
    ChannelRecord(lease=1, at_ms=5, kinds=["prune"]),
    AdoptedRecord(
        stream="orders", checkpoint="/old", query="q", committed=1, in_doubt=2, last_batch={"a": LastBatch.WRITTEN}
    ),
    POSITION,
    RewindRecord(
        timeline=2,
        parent=1,
        leaves=1,
        streams={
            "orders": StreamAim(
                ends=1, timeline=1, epoch=2, facts=FACTS.plain(), sinks={"files": SinkAim(kind="FileSink", target="t")}
            )
        },
        to="checkpoint 1",
        checkpoint=1,
    ),
    LostSink(stream="orders", sink="files", who="ada@worker-1", at_ms=5),
    UnfinishedEpoch(stream="orders", sink="files", epoch=3, why="w"),
    BuildingRecord(timeline=2, lease=1, at_ms=5),
    TimelineRecord(timeline=2, parent=1, bases={"orders": 3}, checkpoint=1, who="me", why="w", at_ms=5),
    EpochFiles(
        pipeline="orders",
        uid=UID,
        stream="s",
        timeline=1,
        epoch=2,
        attempt=1,
        lease=1,
        rows=2,
        written_ms=5,
        columns="{}",
        files=[LAKE_FILE],
    ),
    TableLedger(
        pipeline="orders",
        timeline=2,
        held=[HeldEpoch(3, None), HeldEpoch(4, "0" * 16)],
        ended=[1, 5],
        aside={"2": TakenBack([1, 3], 2, 20)},
    ),
    AsideFiles(timeline=2, rows=2, epochs=[[1, 2, 1, 1]], files=[LAKE_FILE], written_ms=5),
    IndexRecord.after(None, UID, Committed(0, 3, (Segment("segments/s/x", 0, 3, 99, bytes(32)),), "k"), {"m": "k"}),
]


def sample(kind: type[Record]) -> Record:
    return next(each for each in RECORDS if type(each) is kind)


def test_every_kind_of_record_is_here() -> None:
    source = Path(hf.__file__).parent
    package = {name for path in source.rglob("*.py") for name in re.findall(r"class (\w+)\(Record, ", path.read_text())}
    assert package == {type(each).__name__ for each in RECORDS}


def test_records() -> None:
    def reading(record: Record) -> Callable[[bytes], object]:
        kind = type(record)
        return lambda data: kind.unsealed(data, "its/key.json")

    fuzzed(
        [
            Format(type(each).__name__, [each.sealed()], reading(each), resealed, "its/key.json", inputs=100)
            for each in RECORDS
        ]
    )


@dataclass
class Kept:
    """A record where a repository keeps it, and all that read it."""

    key: str
    sample: bytes
    readers: list[Callable[[Repository], object]] = field(default_factory=list)


def kept_records(lease: hf.repository.Lease) -> list[Kept]:
    folder = "timelines/1/streams/orders"
    asked = "ab" * 16
    entry = Entry(at="2026-01-01T00:00:00.000+00:00", who="me", what="prune")
    pruned = {"dropped": [1], "closed": [], "objects": 1, "bytes": 2}
    checkpoint = "timelines/1/checkpoints/1"
    box = f"requests/{lease.number:08}"
    claim = RequestClaim(verdict=RequestState.TAKEN, who="me", token="", at_ms=5)

    def looks(repository: Repository) -> object:
        found = Checkpoints(repository)
        with_all = found.all(), found.standing(), found.open_attempts(1), found.highest(), found.newest()
        return with_all, hf.pruning.plan_prune(repository, hf.Retention(1))

    def answered(repository: Repository) -> object:
        request = Asking(repository=repository, kind=RequestKind.PRUNE, request_id=asked, sent_to=lease.record)
        found = request.look()
        return found and result_of(hf.pruning.Pruned, found.result, asked)

    def looked(repository: Repository) -> object:
        channel = ControlChannel(repository, lease, RequestKind)
        channel.forget()
        return [channel.take(each) for each in channel.look()]

    def looked_again(repository: Repository) -> object:
        repository.delete_all([f"{box}/{asked}.claim.json", f"{box}/{asked}.done.json"])
        return looked(repository)

    def answered_again(repository: Repository) -> object:
        repository.delete_all([f"{box}/{asked}.claim.json", f"{box}/{asked}.done.json"])
        return answer_requests(repository, lease)

    return [
        Kept("holdfast.json", sample(Identity).sealed(), [Identity.load]),
        Kept("timelines/2/lineage.json", sample(TimelineRecord).sealed(), [Lineage.load, branches, looks]),
        Kept(
            "timelines/2/rewind.json",
            sample(RewindRecord).sealed(),
            [lambda r: unfinished_rewind(r, Lineage.load(r)), lambda r: read_rewind(r, 2)],
        ),
        Kept(
            "timelines/2/streams/orders/unfinished/files.json",
            sample(UnfinishedEpoch).sealed(),
            [lambda r: unfinished_epochs(r, 2, "orders")],
        ),
        Kept("timelines/2/streams/orders/lost/files.json", sample(LostSink).sealed(), [lambda r: read_rewind(r, 2)]),
        Kept("lease/00000009.json", sample(LeaseRecord).sealed(), [newest_lease, seen_leases, held_lease]),
        Kept(
            f"{folder}/epochs/2.1.json",
            DECISION.sealed(),
            [
                lambda r: Decisions(r).seen("orders", 1),
                lambda r: Decisions(r).look("orders", 1, 2),
                lambda r: Decisions(r).newest("orders", 1),
                lambda r: in_doubt(r, "orders", 1),
                lambda r: (found := Decisions(r).seen("orders", 1)) and Facts.of(found),
                lambda r: hf.verify(r, 1),
            ],
        ),
        Kept(f"{folder}/floor.json", Floor(epoch=1).sealed(), [lambda r: Decisions(r).close(DECISION)]),
        Kept(
            f"{folder}/gaps/0000000002.offsets.json", sample(GapRecord).sealed(), [lambda r: Gaps(r).all("orders", 1)]
        ),
        Kept(
            "topics/orders/0000000001.json",
            sample(TopicsRecord).sealed(),
            [lambda r: StreamTopics(r, "orders").at(Lineage.load(r), 9)],
        ),
        Kept(f"{folder}/sinks.json", sample(SinksRecord).sealed(), [file_sinks]),
        Kept(f"{folder}/adopted.json", sample(AdoptedRecord).sealed(), [lambda r: adopted(r, "orders", 1)]),
        Kept("history.jsonl", entry.sealed(one_line=True) + b"\n", [lambda r: History(r).entries()]),
        Kept(f"{checkpoint}/attempt.json", sample(AttemptRecord).sealed(), [looks]),
        Kept("timelines/1/checkpoints/aborted/9.json", sample(AbortRecord).sealed(), [looks]),
        Kept("cursors/c.quarantine/1.json", sample(Quarantined).sealed(), [lambda r: read_quarantine(r, "c")]),
        Kept(f"{box}/{asked}.json", sample(ControlRequest).sealed(), [looked_again, answered_again]),
        Kept(f"{box}/{asked}.claim.json", claim.sealed(), [looked, lambda r: read_state(r, lease.number, asked)]),
        Kept(f"{box}/{asked}.done.json", ControlAnswer(at_ms=5, result=pruned).sealed(), [answered, looked]),
        Kept(
            f"{box}/open.json",
            ChannelRecord(lease=1, at_ms=1, kinds=["prune"]).sealed(),
            [lambda r: read_channel(r, lease.number), running_driver],
        ),
    ]


def test_records_where_a_repository_keeps_them() -> None:
    repository = hf.repository.MemoryRepository()
    Fabricated(repository).take("a")
    repository.put("timelines/1/streams/orders/spark/commits/0", b"v1\n{}")
    with hf.repository.Lease.take(repository) as lease:
        for kept in kept_records(lease):
            before = repository.read(kept.key) if repository.sizes([kept.key])[kept.key] is not None else None

            def read(data: bytes, kept: Kept = kept) -> object:
                repository.put(kept.key, data)
                return [reader(repository) for reader in kept.readers]

            fuzzed([Format(kept.key, [kept.sample], read, resealed, inputs=100)])
            if before is None:
                repository.delete(kept.key)
            else:
                repository.put(kept.key, before)


def test_manifests_where_a_repository_keeps_them() -> None:
    repository = hf.repository.MemoryRepository()
    made = Fabricated(repository)
    for text in "ab":
        made.take(text)
    made.finish(made.checkpoints.claim(1, 1), {"orders": ["d"]}, savepoint="s", states={"orders/stage": b"x" * 40})
    checkpoints = made.checkpoints

    def looks(_: bytes = b"") -> object:
        checkpoints.all(), checkpoints.standing(), checkpoints.savepoints(), checkpoints.restorable()
        (
            checkpoints.highest(),
            hf.pruning.plan_prune(repository, hf.Retention(1)),
            hf.verification.verify_all(repository),
        )
        for name in (2, "s"):
            manifest = checkpoints.read(name)
            hf.diff(repository, 1, name)
            hf.restore.plan_restore(repository, name)
            hf.verify(repository, name)
            made.checkpoints.sidecar(checkpoints.find(name)[0], manifest)
        return checkpoints.latest()

    formats = []
    for key in ("timelines/1/checkpoints/2/manifest.json", "savepoints/s/manifest.json", "savepoints/s/state.bin"):
        sample = repository.read(key)

        def read(data: bytes, key: str = key, sample: bytes = sample) -> object:
            repository.put(key, data)
            try:
                return looks()
            finally:
                repository.put(key, sample)

        formats.append(Format(key, [sample], read, resealed if key.endswith(".json") else None, inputs=100))
    fuzzed(formats)


def test_records_in_the_folders_of_sinks(tmp_path: Path) -> None:
    folder = tmp_path / "hf_epoch=t1-0000000002"
    folder.mkdir()

    def epoch(data: bytes) -> object:
        (folder / "_holdfast.key").write_bytes(data)
        return folder_of(tmp_path, 1, 2)

    def owner(data: bytes) -> object:
        (tmp_path / "owner.key").write_bytes(data)
        return owner_of(tmp_path)

    def stamp(data: bytes) -> object:
        (tmp_path / POSITION_FILE).write_bytes(data)
        return PositionStamp(tmp_path).read()

    stored = msgspec.msgpack.encode({"n": 1, "text": "a", "raw": b"b", "none": None, "half": 0.5})
    fuzzed(
        [
            Format(
                "row of a journal", [stored], lambda data: decoded(data, "holdfast_undo_1"), in_msgpack, "holdfast_undo"
            ),
            Format("position", [POSITION.sealed()], stamp, resealed, str(tmp_path)),
            Format("epoch folder", [sample(KeyRecord).sealed()], epoch, resealed, str(folder)),
            Format("owner", [sample(OwnerRecord).sealed()], owner, resealed, str(tmp_path)),
        ]
    )


# --- Spark's files ---------------------------------------------------------------------------------------------------


def zipped(text: bytes) -> bytes:
    target = BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("metadata", text)
    return target.getvalue()


def changelog(lineage: bytes) -> bytes:
    text = struct.pack(">H", 2) + b"v2" + struct.pack(">H", len(lineage)) + lineage
    return struct.pack("<8sBIII", b"LZ4Block", 0x10, len(text), len(text), 0) + text


OFFSETS = b'v1\n{"batchWatermarkMs":5,"conf":{"a":"b"}}\n{"logOffset":1}'
COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
COMMIT_V3 = b'v3\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["cc"]]}}'
ZIP_TEXT = b'v1\n{"sstFiles":[{"localFileName":"1.sst","dfsSstFileName":"1-a.sst","sizeBytes":5}],"numKeys":1}'
LINEAGE = b'[{"version":1,"checkpointUniqueId":"bb"}]'
HDFS = {
    "metadata": b'{"id":"x"}',
    "offsets/0": OFFSETS,
    "offsets/1": OFFSETS,
    "commits/0": COMMIT,
    "commits/1": COMMIT,
    "sources/0/0": b'v1\n{"path":"a","timestamp":1,"batchId":0}',
    "sources/0/1": b'v1\n{"path":"b","timestamp":1,"batchId":1}',
    "state/0/0/1.delta": b"x",
    "state/0/0/2.delta": b"x",
    "state/0/_metadata/metadata": b"v1\n{}",
}
ROCKSDB = {
    **{name: data for name, data in HDFS.items() if not name.startswith("state")},
    "commits/1": COMMIT_V3,
    "state/0/0/1_aa.changelog": changelog(LINEAGE),
    "state/0/0/1_bb.changelog": changelog(LINEAGE),
    "state/0/0/2_cc.changelog": changelog(LINEAGE),
}
ZIPPED = {
    **{name: data for name, data in HDFS.items() if not name.startswith("state")},
    "state/0/0/2.zip": zipped(ZIP_TEXT),
    "state/0/0/SSTs/1-a.sst": b"x",
}


def in_lines(mutator: Mutator, data: bytes) -> bytes:
    """Change one line of a file of Spark's: its version, or the JSON after it."""
    lines = data.split(b"\n")
    at = mutator.random.randrange(len(lines))
    try:
        lines[at] = mutator.json(lines[at])
    except ValueError:
        lines[at] = mutator.random.choice((b"", b"v9", b"v" + b"9" * 5000, b"-", b"v2"))
    return b"\n".join(lines)


def test_the_checkpoint_folder_of_spark(tmp_path: Path) -> None:
    folder = tmp_path / "timelines/1/streams/orders/spark"
    repository = hf.repository.MemoryRepository()

    def fill(files: dict[str, bytes]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    def reading(files: dict[str, bytes], name: str) -> Callable[[bytes], object]:
        def read(data: bytes) -> object:
            fill(files | {name: data})
            snapshots = Snapshots(folder, repository)
            try:
                pinned = snapshots.pin(1, place_of(1, 1))
                try:
                    snapshots.keep(pinned)
                finally:
                    pinned.release()
            finally:
                assert not list(folder.parent.glob(".pinned/*"))
            return look()

        return read

    def look() -> object:
        spark = SparkLog(LocalSparkFolder(folder), "orders")
        for batch in (0, 1):
            spark.offsets(batch)
        spark.source_entries({})
        spark.source_entries({"0": 0})
        spark.entry_digest("0/1")
        spark.require(2, [None, '{"logOffset":1}'], {"0": 1})
        spark.drop_torn(1, {"0": 0})
        spark.drop_torn(0, {})
        return spark.position()

    def looking(name: str) -> Callable[[bytes], object]:
        def read(data: bytes) -> object:
            fill(HDFS | {name: data})
            return look()

        return read

    def redo_zip(mutator: Mutator, _: bytes) -> bytes:
        return zipped(in_lines(mutator, ZIP_TEXT))

    def redo_changelog(mutator: Mutator, _: bytes) -> bytes:
        return changelog(mutator.json(LINEAGE)[:60_000])

    formats = [
        Format(f"Spark's {name}", [HDFS[name]], looking(name), in_lines, inputs=40)
        for name in ("offsets/1", "commits/1", "metadata", "sources/0/1", "sources/0/0")
    ]
    formats += [
        Format(f"snapshot of {name}", [files[name]], reading(files, name), redo, inputs=count)
        for files, name, redo, count in [
            (HDFS, "offsets/1", in_lines, 60),
            (HDFS, "commits/1", in_lines, 60),
            (ROCKSDB, "commits/1", in_lines, 80),
            (ROCKSDB, "commits/0", in_lines, 60),
            (ROCKSDB, "state/0/0/2_cc.changelog", redo_changelog, 100),
            (ZIPPED, "state/0/0/2.zip", redo_zip, 100),
        ]
    ]
    fuzzed(formats)


def test_the_doctor_reads_any_folder(tmp_path: Path) -> None:
    """Every file that it reads, damaged: an examination comes back, never an error."""

    def examining(files: dict[str, bytes], name: str) -> Callable[[bytes], object]:
        def read(data: bytes) -> object:
            for each, content in (files | {name: data}).items():
                (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / each).write_bytes(content)
            found = examine(tmp_path, pause=0)
            json.dumps(found.to_dict())
            return found.summary()

        return read

    whole = {"state/0/_metadata/v2/0": OPERATOR, ".metadata.crc": b"crc\0\0\0\2\0abcd", "state/0/0/2.delta": COMPRESSED}
    for number, files in enumerate((HDFS | whole, ROCKSDB | {"commits/0": COMMIT_V3}, ZIPPED)):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        fuzzed(
            [
                Format(f"examined {name} {number}", [data], examining(files, name), in_lines, inputs=25)
                for name, data in files.items()
            ]
        )


OPERATOR = b'v2\n{"operatorInfo":{"operatorName":"x"},"stateStoreInfo":[{"storeName":"default","numPartitions":1}]}'
COMPRESSED = changelog(LINEAGE)


def test_offsets() -> None:
    kafka = b'{"topic":{"0":5,"1":7}}'
    log = b'{"log":"abc","sequence":5,"chain":""}'
    files = b'{"logOffset":5}'

    def read(data: bytes) -> object:
        text = data.decode("utf-8", "surrogateescape")
        list(differences(text, kafka.decode())), list(differences(None, text))
        progress = {"sources": [{"description": "KafkaV2[x]", "latestOffset": text}]}
        described(text), goes_back(text, kafka.decode()), goes_back(files.decode(), text), goes_back(text, text)
        positions_of(text), TopicChoice.of({"assign": text}), TopicChoice.of({"subscribepattern": text}).names("t")
        return log_position(text), log_offset(text), behind_topics(progress, [kafka.decode()])

    fuzzed([Format("offset", [kafka, log, files], read, in_json, inputs=400)])


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    """An object that names a file list by its digest may hold bytes that are not UTF-8."""
    checkpoints = Checkpoints(LocalRepository(tmp_path))
    data = b'{"files":[["\xff",1,"x"]]}'
    digest = hashlib.sha256(data).hexdigest()
    checkpoints.repository.put(place_of(1, 1).object(digest), data)
    with pytest.raises(CheckpointDamaged, match="checkpoint 1 is damaged: its file list objects/"):
        checkpoints.files(place_of(1, 1), StreamCut(timeline=1, epoch=1, files=digest), 1)


def test_the_marker_of_a_kafka_topic() -> None:
    owner = StreamIdentity("orders", UID, "s")
    markers = [EpochMarker.claim(owner), EpochMarker(owner, 2, Link(7, DIGEST), Link(6, None))]

    def read(data: bytes) -> object:
        return EpochMarker.read(7, data.decode(errors="replace"), "offset")

    fuzzed([Format("kafka marker", [each.metadata().encode() for each in markers], read, in_json, inputs=400)])
