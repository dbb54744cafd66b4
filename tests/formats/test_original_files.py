"""Files of the system that Holdfast grew out of load as they are. (States and manifests: see their unit tests.)"""

import contextlib
import struct
from pathlib import Path

import pytest

from holdfast.errors import (
    BlockFailed,
    CursorCorrupt,
    CursorRegionMismatch,
    StageCorrupt,
    StageTooLarge,
    UnsupportedVersion,
)
from holdfast.eventlog import Region
from holdfast.eventlog._cursor_file import CursorRecord
from holdfast.eventlog._cursor_slot import read_cursor
from holdfast.eventlog.cursor import DurableCursor
from holdfast.repository import LocalRepository
from holdfast.stages import CheckpointedStage, EdgeCheckpoint, MemoryBlocks, MsgpackCodec
from holdfast.testing import FaultyBlocks
from support import events, new_log

IDENTITY = b"entity=entity:roundtrip|scope=*|fact=none|clock=*"
V1_CURSOR = (
    b"\x84"
    b"\xa8position\x2a"
    b"\xa7started\xc3"
    b"\xafprocess_boot_ns\xc0"
    b"\xafregion_identity\xd9" + bytes([len(IDENTITY)]) + IDENTITY
)


def test_a_version_1_cursor_loads() -> None:
    record = CursorRecord.from_bytes(V1_CURSOR, "c")
    assert (record.position, record.started, record.process_boot_ns) == (42, True, None)
    assert record.region_identity == IDENTITY.decode()
    assert (record.version, record.log_identity) == (1, None)
    booted = V1_CURSOR.replace(b"boot_ns\xc0", b"boot_ns\xcf" + (2**64 - 1).to_bytes(8, "big"))
    assert CursorRecord.from_bytes(booted, "c").process_boot_ns == 2**64 - 1


def test_a_version_1_cursor_is_rewritten_as_version_2_at_the_next_commit(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events(*["entity:roundtrip"] * 50))
    repository = LocalRepository(tmp_path / "r")
    repository.put("cursors/c.ckpt", V1_CURSOR)
    with DurableCursor(repository, "c", log, Region(entity="entity:roundtrip")) as cursor:
        event = cursor.poll()
        assert event is not None
        assert event.sequence == 43
        assert repository.read("cursors/c.ckpt") == V1_CURSOR  # looking changes nothing
        cursor.commit()
    record = read_cursor(repository, "c")
    assert record is not None
    assert (record.version, record.position, record.log_identity) == (2, 43, log.identity)


def test_a_version_1_cursor_without_a_region_is_a_mismatch(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a"))
    repository = LocalRepository(tmp_path / "r")
    absent = b"\x83" + V1_CURSOR[1:].split(b"\xafregion_identity")[0]
    for data in (absent, b"\x84" + absent[1:] + b"\xafregion_identity\xc0"):
        repository.put("cursors/c.ckpt", data)
        with pytest.raises(CursorRegionMismatch) as caught:
            DurableCursor(repository, "c", log, Region())
        assert (caught.value.saved, caught.value.asked) == (None, Region().identity)


def test_a_position_that_was_not_started_is_not_used(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a"))
    repository = LocalRepository(tmp_path / "r")
    identity = Region().identity.encode()
    data = (
        V1_CURSOR.split(b"\xd9")[0].replace(b"started\xc3", b"started\xc2")
        + b"\xd9"
        + bytes([len(identity)])
        + identity
    )
    repository.put("cursors/c.ckpt", data)
    with DurableCursor(repository, "c", log, Region()) as cursor:
        assert not cursor.started
        event = cursor.poll()
        assert event is not None
        assert event.sequence == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        V1_CURSOR[:-1],
        V1_CURSOR + b"\0",
        b"\x80",
        b"\xc0",
        V1_CURSOR.replace(b"position\x2a", b"position\xff"),
        V1_CURSOR.replace(b"started\xc3", b"started\x01"),
        b"\x81" * 5000,
        V1_CURSOR.replace(b"entity=", b"ent\xffty="),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_an_undecodable_cursor_is_corrupt(data: bytes) -> None:
    with pytest.raises(CursorCorrupt, match=r"cursors/c\.ckpt"):
        CursorRecord.from_bytes(data, "c")


# --- stage images ----------------------------------------------------------------------------------------------------

CODEC = MsgpackCodec(EdgeCheckpoint)
OLD, NEW = EdgeCheckpoint(1, 2), EdgeCheckpoint(3, 4)


def v1_image(payload: bytes, blocks: int = 16, length: int | None = None, version: int = 1) -> MemoryBlocks:
    device = MemoryBlocks(blocks)
    header = struct.pack("<4sIQ", b"PCHK", version, len(payload) if length is None else length).ljust(512, b"\0")
    device.data[: 512 + len(payload)] = header + payload
    return device


def test_a_version_1_image_loads_as_generation_0() -> None:
    found = CheckpointedStage.restore(v1_image(CODEC.encode(OLD)), CODEC)
    assert (found.stage.state, found.generation, found.fell_back) == (OLD, 0, False)


@pytest.mark.parametrize("tear", [0, 100])
def test_a_version_1_image_survives_until_version_2_stands_beside_it(tear: int) -> None:
    """The new state goes into the free half, then the old half is made ready; power may fail at any write."""
    outcomes = []
    for writes in range(6):
        device = v1_image(CODEC.encode(OLD))
        stage = CheckpointedStage.restore(FaultyBlocks(device, writes, tear), CODEC).stage
        stage.state = NEW
        try:
            assert stage.checkpoint() == 1
        except BlockFailed:
            assert writes < 5
        found = CheckpointedStage.restore(device, CODEC)
        assert (found.stage.state, found.generation) in ((OLD, 0), (NEW, 1))
        outcomes.append(found.stage.state == NEW)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}
    whole = CheckpointedStage.restore(device, CODEC)
    assert (whole.stage.state, whole.generation, whole.fell_back) == (NEW, 1, False)
    device.data[8 * 512 + 200] ^= 1
    found = CheckpointedStage.restore(device, CODEC)  # version 1 is gone: nothing old is given for it
    assert (found.stage.state, found.generation, found.fell_back) == (NEW, 1, True)


def test_a_version_1_image_on_the_smallest_device_loads() -> None:
    found = CheckpointedStage.restore(v1_image(CODEC.encode(OLD), blocks=2), CODEC)
    assert (found.stage.state, found.fell_back) == (OLD, False)


def test_what_version_1_left_behind_its_image_is_no_damage() -> None:
    device = v1_image(CODEC.encode(OLD))
    device.data[8 * 512 :] = b"stale" * 819 + b"."
    found = CheckpointedStage.restore(device, CODEC)
    assert (found.stage.state, found.fell_back) == (OLD, False)
    found.stage.state = NEW
    found.stage.checkpoint()
    assert CheckpointedStage.restore(device, CODEC).stage.state == NEW


def test_a_version_1_image_larger_than_a_slot_loads_and_is_not_overwritten() -> None:
    codec = MsgpackCodec(bytes)
    state = b"x" * 5000
    device = v1_image(codec.encode(state))
    before = bytes(device.data)
    found = CheckpointedStage.restore(device, codec)
    assert (found.stage.state, found.fell_back) == (state, False)
    found.stage.state = b"small"
    with pytest.raises(StageTooLarge):
        found.stage.checkpoint()
    assert bytes(device.data) == before
    moved = CheckpointedStage(found.stage.state, MemoryBlocks(64), codec)
    assert moved.checkpoint() == 1


def test_a_large_version_1_image_may_hold_anything_where_a_slot_would_begin() -> None:
    codec = MsgpackCodec(bytes)
    state = b"x" * (7 * 512 - 3) + b"PCHK\2\0\0\0" + b"x" * 600
    found = CheckpointedStage.restore(v1_image(codec.encode(state)), codec)
    assert (found.stage.state, found.fell_back) == (state, False)


def test_a_version_1_image_beside_a_slot_that_is_only_ready_is_not_taken_for_blank() -> None:
    fresh = MemoryBlocks(16)
    with contextlib.suppress(BlockFailed):
        CheckpointedStage(NEW, FaultyBlocks(fresh, 1), CODEC).checkpoint()
    device = v1_image(CODEC.encode(OLD))
    device.data[8 * 512 :] = fresh.data[8 * 512 :]
    found = CheckpointedStage.resume(NEW, device, CODEC)
    assert found.stage.state == OLD
    found.stage.checkpoint()
    assert CheckpointedStage.restore(device, CODEC).stage.state == OLD


def test_a_version_1_length_past_the_device_and_an_unknown_version_are_refused() -> None:
    with pytest.raises(StageCorrupt, match="more than") as caught:
        CheckpointedStage.restore(v1_image(b"", length=2**63), CODEC)
    assert caught.value.step == "too large"
    with pytest.raises(UnsupportedVersion, match="version 9"):
        CheckpointedStage.restore(v1_image(b"x", version=9), CODEC)
    device = v1_image(b"x")
    device.data[0] = 0x51
    with pytest.raises(StageCorrupt, match="bad magic"):
        CheckpointedStage.restore(device, CODEC)
    with pytest.raises(StageCorrupt, match="decode"):
        CheckpointedStage.restore(v1_image(b"\xc1"), CODEC)


@pytest.mark.parametrize("byte", [16, 100, 511])
def test_a_version_1_header_whose_padding_is_not_zero_is_refused_by_its_byte(byte: int) -> None:
    """A version 1 image has no digest, so the error must not mention one."""
    device = v1_image(CODEC.encode(OLD))
    device.data[byte] = 7
    with pytest.raises(StageCorrupt, match=f"byte {byte} of the version 1 header is 0x07") as caught:
        CheckpointedStage.restore(device, CODEC)
    assert caught.value.step == "bad padding"
    assert "digest" not in str(caught.value)
