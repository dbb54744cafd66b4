"""Every single-bit flip and every truncation of every file that we write is found: none decodes to other values, none
is taken for a file that is not there.
"""

from pathlib import Path

import pytest

from holdfast import Manifest
from holdfast.errors import (
    Corrupt,
    CursorCorrupt,
    LogCorrupt,
    ManifestCorrupt,
    OperatorStateCorrupt,
    RecordCorrupt,
    StageBlank,
    StageCorrupt,
    StageMismatch,
    StageStale,
    StateCorrupt,
    UnsupportedVersion,
)
from holdfast.eventlog import EventLog, Region
from holdfast.eventlog import _files as loghead
from holdfast.eventlog._cursor_file import CursorRecord
from holdfast.eventlog.cursor import DurableCursor
from holdfast.formats import pack_states
from holdfast.formats.manifest_parts import ConnectorCheckpoint, SinkStatus
from holdfast.repository import FileBlocks, LocalRepository
from holdfast.repository.targets import SinksRecord
from holdfast.sinks.files.epoch_folders import KeyRecord
from holdfast.sinks.files.position import PositionRecord
from holdfast.stages import CheckpointedStage, MemoryBlocks, MsgpackCodec
from holdfast.stores import CheckpointId, CheckpointState
from support import cuts, events, flips, new_log


def damaged(data: bytes) -> list[tuple[str, bytes]]:
    return [(f"bit {at}", each) for at, each in flips(data)] + [(f"cut at {at}", each) for at, each in cuts(data)]


@pytest.mark.parametrize("stream", ["orders", None])
def test_state_version_2(stream: str | None) -> None:
    """Also where the caller would accept version 1, which has neither magic nor digest."""
    state = CheckpointState(
        CheckpointId("orders", 77, 1_700_000_000_000_000_000),
        {"window_op": b"window_state_data", "empty": b""},
        {"source-0": 8192},
        5,
        77,
        {"offset": '{"logOffset":3}'},
    )
    for what, data in damaged(state.to_bytes()):
        with pytest.raises(StateCorrupt):
            pytest.fail(f"{what}: {CheckpointState.from_bytes(data, stream)}")


def test_manifest_with_its_sidecar() -> None:
    packed = pack_states({"small": b"inline", "large": bytes(range(200))}, threshold=50)
    sidecar = b"".join(packed.sidecar)
    good = Manifest(
        checkpoint_id=42,
        epoch=7,
        timestamp_ms=1_700_000_000_000,
        source_offsets={"kafka": ConnectorCheckpoint({"partition-0": "1234"}, 7)},
        sink_epochs={"out": 7},
        sink_commit_statuses={"out": SinkStatus.failed("boom")},
        operator_states=packed.entries,
        pipeline_hash=2**64 - 3,
        state_checksum=packed.checksum,
        source_names=("kafka",),
        sink_names=("out",),
    ).to_bytes()
    Manifest.from_bytes(good).read_states(sidecar)
    for what, data in damaged(good):
        with pytest.raises(ManifestCorrupt):
            pytest.fail(f"{what}: {Manifest.from_bytes(data)}")
    manifest = Manifest.from_bytes(good)
    for what, data in damaged(sidecar):
        with pytest.raises((ManifestCorrupt, OperatorStateCorrupt)):
            pytest.fail(f"{what}: {manifest.read_states(data)}")


def blocks_of(data: bytes) -> MemoryBlocks:
    blocks = MemoryBlocks(len(data) // 512)
    blocks.data[:] = data
    return blocks


def test_stage_image_is_answered_by_the_older_slot_and_says_so() -> None:
    codec = MsgpackCodec(bytes)
    blocks = MemoryBlocks(6)
    stage = CheckpointedStage(b"", blocks, codec)
    old, new = b"o" * 900, b"n" * 1000
    for state in (old, new):
        stage.state = state
        stage.checkpoint()
    good = bytes(blocks.data)
    whole = CheckpointedStage.restore(blocks_of(good), codec)
    assert (whole.stage.state, whole.generation, whole.fell_back) == (new, 2, False)
    answered = {1: 0, 2: 0}
    for bit, data in flips(good):
        found = CheckpointedStage.restore(blocks_of(data), codec)
        assert found.fell_back, bit
        assert (found.stage.state, found.generation) == ((old, 1) if bit // 8 >= len(good) // 2 else (new, 2))
        answered[found.generation] += 1
        named = CheckpointedStage.restore(blocks_of(data), codec, generation=1) if found.generation == 1 else None
        assert named is None or named.stage.state == old
        if found.generation == 1:
            with pytest.raises(StageStale):
                CheckpointedStage.restore(blocks_of(data), codec, generation=2)
    assert answered[1] == answered[2] == len(good) * 4


def test_stage_image_whose_device_is_cut() -> None:
    codec = MsgpackCodec(bytes)
    blocks = MemoryBlocks(12)
    stage = CheckpointedStage(b"", blocks, codec)
    for state in (b"old", b"new"):
        stage.state = state
        stage.checkpoint()
    good = bytes(blocks.data)
    for length in range(1, 12):
        with pytest.raises((StageMismatch, StageCorrupt, StageBlank)) as caught:
            CheckpointedStage.restore(blocks_of(good[: length * 512]), codec)
        assert not isinstance(caught.value, StageBlank)


def test_stage_image_in_a_file_that_is_cut_anywhere(tmp_path: Path) -> None:
    """Within a block or at its edge, down to nothing: damage, not a wrong argument, and never a missing file."""
    codec, path = MsgpackCodec(bytes), tmp_path / "blocks"
    with FileBlocks.create(path, 4) as blocks:
        stage = CheckpointedStage.resume(b"", blocks, codec).stage
        for state in (b"old", b"new"):
            stage.state = state
            stage.checkpoint()
    for length, data in cuts(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(Corrupt):
            with FileBlocks.open(path) as blocks:
                pytest.fail(f"{length}: {CheckpointedStage.restore(blocks, codec)}")


def test_stage_image_with_its_only_generation_damaged() -> None:
    codec = MsgpackCodec(bytes)
    blocks = MemoryBlocks(4)
    CheckpointedStage(b"only", blocks, codec).checkpoint()
    good = bytes(blocks.data)
    for bit, data in flips(good):
        found = CheckpointedStage.restore(blocks_of(data), codec)  # the first one stands in both slots
        assert (found.stage.state, found.generation, found.fell_back) == (b"only", 1, True), bit
    for bit, data in flips(good[:1024]):
        with pytest.raises((StageCorrupt, UnsupportedVersion)):
            pytest.fail(f"{bit}: {CheckpointedStage.restore(blocks_of(data + data), codec)}")


def test_cursor_file(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events(*"abcdef"))
    repository = LocalRepository(tmp_path / "repository")
    region = Region(entity="c")
    with DurableCursor(repository, "mine", log, region) as cursor:
        cursor.poll()
        cursor.commit()
    path = tmp_path / "repository/cursors/mine.ckpt"
    for what, data in damaged(path.read_bytes()):
        with pytest.raises(CursorCorrupt):
            pytest.fail(f"{what}: {CursorRecord.from_bytes(data, 'mine')}")
    path.write_bytes(b"")
    with pytest.raises(CursorCorrupt):
        DurableCursor(repository, "mine", log, region)


@pytest.mark.parametrize("name", ["index", "head", "log.json"])
def test_log_index_and_head(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loghead, "_HEAD_TRIES", 1)
    log = new_log(tmp_path, events("a", "b"), events("c"))
    with log.writer() as writer:
        writer.cancel(3, "test")
        writer.rewind("key", [(2, 1)])
        writer.append(events("d"))
    assert [event.sequence for event in EventLog.open(tmp_path).read()] == [0, 1, 7]
    path = tmp_path / name
    for what, data in damaged(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(LogCorrupt):
            pytest.fail(f"{what}: {EventLog.open(tmp_path).tail}")
    path.unlink()
    if name != "log.json":
        with pytest.raises(LogCorrupt, match="missing"):
            EventLog.open(tmp_path)


def test_log_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path, events("a", "b"))
    (path,) = tmp_path.glob("segments/*/*.parquet")
    for what, data in damaged(path.read_bytes())[::7]:
        path.write_bytes(data)
        with pytest.raises(LogCorrupt, match="segment"):
            pytest.fail(f"{what}: {list(EventLog.open(tmp_path).read())}")
    path.unlink()
    with pytest.raises(Corrupt, match="missing"):
        list(EventLog.open(log.path).read())


def test_records_of_sinks() -> None:
    """The key of a merged folder, the stamp of a rewind, and where a stream's sinks write to."""
    key = KeyRecord(
        pipeline="p",
        uid="u",
        stream="s",
        timeline=1,
        epoch=9,
        attempt=0,
        lease=0,
        rows=20,
        files={"a=1/part-0.json": 7},
        first=2,
        epochs=7,
        shape="0123456789abcdef",
        options={"header": "false"},
    )
    stamp = PositionRecord(pipeline="p", uid="u", stream="s", timeline=2, epoch=41)
    for record in (key, stamp, SinksRecord(stream="s", targets={"files.out": "files /out"})):
        assert type(record).unsealed(record.sealed(), "") == record
        for what, data in damaged(record.sealed()):
            with pytest.raises((RecordCorrupt, UnsupportedVersion)):
                pytest.fail(f"{what}: {type(record).unsealed(data, '')}")
