import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import (
    AlreadyExists,
    BadName,
    BadValue,
    BlockFailed,
    BlocksCut,
    BlocksMissing,
    Closed,
    Locked,
    StageBlank,
    StageCorrupt,
    StageHalted,
    StageMismatch,
    StageStale,
    StageTooLarge,
    StageUnserializable,
    StorageFailed,
)
from holdfast.repository import FileBlocks
from holdfast.stages import (
    CallbackObserver,
    CheckpointedStage,
    EdgeCheckpoint,
    MarkerFileObserver,
    MemoryBlocks,
    MetricObserver,
    MsgpackCodec,
)
from holdfast.testing import FaultyBlocks, ManualClock

CODEC = MsgpackCodec(dict[str, int], "counters")


def stage(blocks: Any, state: dict[str, int] | None = None, **options: Any) -> CheckpointedStage[dict[str, int]]:
    return CheckpointedStage(state or {"n": 1}, blocks, CODEC, **options)


def test_state_comes_back_with_its_generation() -> None:
    blocks = MemoryBlocks(8)
    one = stage(blocks)
    assert one.generation == 0
    for n in range(1, 6):
        one.state = {"n": n}
        assert one.checkpoint() == n
        found = CheckpointedStage.restore(blocks, CODEC)
        assert (found.stage.state, found.generation, found.fell_back) == ({"n": n}, n, False)
    assert found.stage.checkpoint() == 6


def test_nothing_is_written_on_construction() -> None:
    blocks = MemoryBlocks(8)
    stage(blocks)
    assert not any(blocks.data)
    with pytest.raises(StageBlank):
        CheckpointedStage.restore(blocks, CODEC)


@given(st.lists(st.binary(max_size=1536), min_size=1, max_size=8))
def test_any_history_of_checkpoints_restores_to_its_last(history: list[bytes]) -> None:
    codec = MsgpackCodec(bytes)
    blocks = MemoryBlocks(10)
    found = CheckpointedStage(b"", blocks, codec)
    for number, state in enumerate(history, 1):
        found.state = state
        assert found.checkpoint() == number
        if number % 3 == 0:
            found = CheckpointedStage.restore(blocks, codec).stage
    assert CheckpointedStage.restore(blocks, codec, generation=len(history)).stage.state == history[-1]


def test_a_stage_made_anew_does_not_start_over_a_state_that_is_there() -> None:
    blocks = MemoryBlocks(8)
    stage(blocks).checkpoint()
    before = bytes(blocks.data)
    with pytest.raises(AlreadyExists, match=r"generation 1 of stage 'stage'.*restore"):
        stage(blocks, {"n": 9}).checkpoint()
    assert bytes(blocks.data) == before


def test_resume_restores_what_is_there_or_begins_with_the_initial_state() -> None:
    blocks = MemoryBlocks(8)
    fresh = CheckpointedStage.resume({"n": 0}, blocks, CODEC)
    assert (fresh.stage.state, fresh.generation, fresh.fell_back) == ({"n": 0}, 0, False)
    fresh.stage.state = {"n": 5}
    fresh.stage.checkpoint()
    again = CheckpointedStage.resume({"n": 0}, blocks, CODEC)
    assert (again.stage.state, again.generation) == ({"n": 5}, 1)
    blocks.data[20] ^= 1
    blocks.data[2068] ^= 1
    with pytest.raises(StageCorrupt):
        CheckpointedStage.resume({"n": 0}, blocks, CODEC)


def test_the_generation_asked_for_is_given_from_either_slot_or_the_device_is_stale() -> None:
    blocks = MemoryBlocks(8)
    one = stage(blocks)
    for n in (1, 2, 3):
        one.state = {"n": n}
        one.checkpoint()
    assert CheckpointedStage.restore(blocks, CODEC, generation=3).stage.state == {"n": 3}
    decided = CheckpointedStage.restore(blocks, CODEC, generation=2)
    assert (decided.stage.state, decided.generation, decided.fell_back) == ({"n": 2}, 2, False)
    for generation in (1, 4):
        with pytest.raises(StageStale) as caught:
            CheckpointedStage.restore(blocks, CODEC, generation=generation)
        assert (caught.value.found, caught.value.asked) == (3, generation)
    # Going on from the decided one writes over the undecided one, and reuses no number.
    assert decided.stage.checkpoint() == 4
    assert CheckpointedStage.restore(blocks, CODEC, generation=2).stage.state == {"n": 2}


def test_the_number_of_a_lost_generation_is_not_used_again() -> None:
    blocks = MemoryBlocks(8)
    one = stage(blocks)
    for _ in range(5):
        one.checkpoint()
    slot = 0 if int.from_bytes(blocks.data[16:24], "little") == 5 else 4
    blocks.data[slot * 512 + 110] ^= 1
    found = CheckpointedStage.restore(blocks, CODEC)
    assert (found.generation, found.fell_back) == (4, True)
    assert found.stage.checkpoint() == 6


def test_a_first_checkpoint_that_was_cut_off_has_never_been() -> None:
    """Nothing was acknowledged, so nothing is lost, and the stage can begin again on the same device."""
    codec = MsgpackCodec(bytes)
    state = bytes(range(256)) * 5
    seen = set()
    for writes in range(10):
        for tear in (0, 3, 200):
            blocks = MemoryBlocks(12)
            one = CheckpointedStage.resume(b"initial", FaultyBlocks(blocks, writes, tear), codec).stage
            one.state = state
            with contextlib.suppress(BlockFailed):
                one.checkpoint()
            if writes == 0 and tear:
                continue  # the very first block: a device that never held anything sound stays refused
            again = CheckpointedStage.resume(b"initial", blocks, codec)
            assert again.stage.state in (b"initial", state)
            seen.add(again.stage.state)
            assert again.stage.checkpoint() >= 1
            assert CheckpointedStage.restore(blocks, codec).stage.state == again.stage.state
    assert seen == {b"initial", state}


def test_a_state_that_was_lost_is_never_passed_over_in_silence() -> None:
    """Whatever became of the newer slot: wiped, or its version turned into an older one; or the device cut or grown."""
    blocks = MemoryBlocks(8)
    one = stage(blocks)
    for n in (1, 2):
        one.state = {"n": n}
        one.checkpoint()
    good = bytes(blocks.data)
    for damage in (bytes(512), b"PCHK\1" + good[2053:2560], b"x" * 512):
        blocks.data[:] = good
        blocks.data[2048:2560] = damage
        found = CheckpointedStage.restore(blocks, CODEC)
        assert (found.stage.state, found.generation, found.fell_back) == ({"n": 1}, 1, True)
    blocks.data[:] = good
    blocks.data[4] = 1  # slot 0 pretends to be version 1, which has no digest
    found = CheckpointedStage.restore(blocks, CODEC)
    assert (found.generation, found.fell_back) == (2, True)
    for size in (4, 6, 10, 16):
        other = MemoryBlocks(size)
        other.data[:] = (good + bytes(9000))[: size * 512]
        with pytest.raises(StageMismatch, match=f"8 blocks', not '{size} blocks"):
            CheckpointedStage.restore(other, CODEC)


def test_a_codec_that_returns_no_bytes_is_refused() -> None:
    class Numbering:
        type_name = "n"

        def encode(self, state: int) -> Any:
            return state

        def decode(self, data: bytes) -> int:
            return len(data)

    with pytest.raises(StageUnserializable, match="expected bytes"):
        CheckpointedStage(5, MemoryBlocks(8), Numbering()).checkpoint()


def test_an_image_of_another_stage_or_type_is_refused_and_not_overwritten() -> None:
    blocks = MemoryBlocks(8)
    stage(blocks, name="one").checkpoint()
    before = bytes(blocks.data)
    with pytest.raises(StageMismatch, match="'one', not 'two'"):
        CheckpointedStage.restore(blocks, CODEC, name="two")
    with pytest.raises(StageMismatch, match="'one', not 'two'"):
        stage(blocks, name="two").checkpoint()
    other = MsgpackCodec(EdgeCheckpoint)
    with pytest.raises(StageMismatch, match="'counters', not 'EdgeCheckpoint'"):
        CheckpointedStage.restore(blocks, other, name="one")
    with pytest.raises(StageMismatch):
        CheckpointedStage(EdgeCheckpoint(1, 2), blocks, other, name="one").checkpoint()
    assert bytes(blocks.data) == before
    for name in ("../x", "", "x" * 65):
        with pytest.raises(BadName):
            stage(blocks, name=name)


def test_an_oversize_state_is_refused_before_anything_is_written() -> None:
    codec = MsgpackCodec(bytes)
    blocks = MemoryBlocks(8)
    one = CheckpointedStage(b"x" * 1500, blocks, codec)
    one.checkpoint()
    before = bytes(blocks.data)
    one.state = b"x" * 1600
    with pytest.raises(StageTooLarge) as caught:
        one.checkpoint()
    assert (caught.value.size, caught.value.capacity, caught.value.step) == (1603, 1536, "too large")
    assert bytes(blocks.data) == before
    assert CheckpointedStage.restore(blocks, codec).stage.state == b"x" * 1500


def test_a_device_too_small_for_two_slots_takes_no_checkpoint() -> None:
    blocks = MemoryBlocks(3)
    with pytest.raises(StageTooLarge):
        stage(blocks).checkpoint()
    assert not any(blocks.data)


def test_fail_closed_until_restored() -> None:
    blocks = MemoryBlocks(8)
    one = stage(blocks)
    one.checkpoint()
    one.state = {"n": object()}
    before = bytes(blocks.data)
    with pytest.raises(StageUnserializable) as caught:
        one.checkpoint()
    assert caught.value.step == "serialize"
    for bad in ("text", {"n": "text"}, {1: 1}):  # what could not be read back is not written
        wrong = CheckpointedStage.restore(blocks, CODEC).stage
        wrong.state = bad
        with pytest.raises(StageUnserializable):
            wrong.checkpoint()
    assert bytes(blocks.data) == before
    one.state = {"n": 2}
    with pytest.raises(StageHalted):
        one.checkpoint()
    restored = CheckpointedStage.restore(one.into_blocks(), CODEC).stage
    assert restored.state == {"n": 1}
    assert restored.checkpoint() == 2


def test_a_stage_whose_device_was_given_back_takes_no_checkpoint() -> None:
    one = stage(MemoryBlocks(8))
    one.into_blocks()
    with pytest.raises(Closed):
        one.checkpoint()


@pytest.mark.parametrize("tear", [0, 1, 3, 4, 150, 160, 184, 256, 511])
def test_power_lost_after_the_kth_write_gives_the_old_state_or_the_new_one(tear: int) -> None:
    """The device stops after k block writes, and tears the block that it was at, for every k."""
    codec = MsgpackCodec(bytes)
    old, new = bytes(range(256)) * 5, bytes(reversed(range(256))) * 6
    outcomes = set()
    for earlier in (1, 2, 3):  # which slot is written next changes with the parity
        for writes in range(6):
            blocks = MemoryBlocks(12)
            one = CheckpointedStage(old, blocks, codec)
            for _ in range(earlier):
                one.checkpoint()
            faulty = FaultyBlocks(blocks, writes, tear)
            two = CheckpointedStage.restore(faulty, codec).stage
            two.state = new
            try:
                generation = two.checkpoint()
            except BlockFailed as failed:
                assert failed.step.startswith("write block") or failed.step == "flush"
                with pytest.raises(StageHalted):
                    two.checkpoint()
                found = CheckpointedStage.restore(blocks, codec)
                assert found.stage.state in (old, new)
                assert found.generation == (earlier if found.stage.state == old else earlier + 1)
            else:
                assert generation == earlier + 1
                found = CheckpointedStage.restore(blocks, codec, generation=generation)
                assert found.stage.state == new
            outcomes.add(found.stage.state == new)
            assert found.stage.checkpoint() > earlier  # life goes on
    assert outcomes == {False, True}


def test_errors_name_the_block() -> None:
    blocks = MemoryBlocks(8)
    stage(blocks).checkpoint()
    failing = CheckpointedStage.restore(FaultyBlocks(blocks, 1), CODEC).stage
    failing.state = {"n" * 600: 1}
    with pytest.raises(BlockFailed, match=r"write block 5: .*lost power") as caught:
        failing.checkpoint()
    assert (caught.value.block, caught.value.action) == (5, "write")

    class Unreadable(MemoryBlocks):
        def read_block(self, index: int) -> bytes:
            if index == 4:
                raise OSError("scratched")
            return super().read_block(index)

    with pytest.raises(BlockFailed, match="read block 4: scratched"):
        CheckpointedStage.restore(Unreadable(8), CODEC)
    half = Unreadable(8)
    half.data[:] = blocks.data
    found = CheckpointedStage.restore(half, CODEC)  # a sound slot is given, whatever the other is
    assert (found.stage.state, found.fell_back) == ({"n": 1}, True)


# --- observers -------------------------------------------------------------------------------------------------------


def test_the_observer_is_told_first_and_on_every_way_out() -> None:
    told: list[Any] = []

    class Recording(MemoryBlocks):
        def write_block(self, index: int, data: bytes) -> None:
            told.append(f"write {index}")
            super().write_block(index, data)

    observer = CallbackObserver(lambda what, lease: told.append((what, lease)))
    blocks = Recording(8)
    one = stage(blocks, observer=observer, lease_id=7)
    one.checkpoint()
    assert told == [("start", 7), "write 4", "write 0", "write 1", "write 4", "write 5", ("complete", 7)]
    told.clear()
    one.state = {"n" * 2000: 1}
    with pytest.raises(StageTooLarge):
        one.checkpoint()
    with pytest.raises(StageHalted):
        one.checkpoint()
    assert told == [("start", 7), ("complete", 7)] * 2


def test_restore_keeps_the_observer() -> None:
    blocks = MemoryBlocks(8)
    stage(blocks).checkpoint()
    metric = MetricObserver(ManualClock())
    restored = CheckpointedStage.restore(blocks, CODEC, metric, 7).stage
    restored.checkpoint()
    assert (metric.started, metric.completed) == (1, 1)


def test_an_observer_cannot_fail_a_flush(caplog: pytest.LogCaptureFixture) -> None:
    def fail(what: str, lease: int | None) -> None:
        raise RuntimeError(f"observer of {what}")

    blocks = MemoryBlocks(8)
    with caplog.at_level(logging.ERROR):
        assert stage(blocks, observer=CallbackObserver(fail)).checkpoint() == 1
    assert "observer of start" in caplog.text
    assert "observer of complete" in caplog.text
    assert CheckpointedStage.restore(blocks, CODEC).generation == 1


def test_shipped_observers(tmp_path: Path) -> None:
    marker = tmp_path / "flushing"
    seen: list[str] = []
    clock = ManualClock()

    class Slow(MemoryBlocks):
        def flush(self) -> None:
            seen.append(marker.read_text() if marker.exists() else "")
            clock.advance(2.5)

    one = stage(Slow(8), observer=MarkerFileObserver(marker), lease_id=12)
    one.checkpoint()
    assert set(seen) == {"12\n"}
    assert not marker.exists()
    metric = MetricObserver(clock)
    stage(Slow(8), observer=metric).checkpoint()
    assert (metric.started, metric.completed, metric.seconds) == (1, 1, 2.5 * 3)  # the first one fills both slots


# --- blocks in a file ------------------------------------------------------------------------------------------------


def test_a_file_of_blocks_lasts_and_has_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "stages" / "edge.blocks"
    with FileBlocks.create(path, 64) as blocks:
        assert path.stat().st_size == 64 * 512
        stage(blocks).checkpoint()
        with pytest.raises(Locked):
            FileBlocks.open(path)
    with FileBlocks.open(path) as blocks:
        assert CheckpointedStage.restore(blocks, CODEC).stage.state == {"n": 1}
    with pytest.raises(AlreadyExists):
        FileBlocks.create(path, 64)
    with FileBlocks.open(path) as blocks:
        assert CheckpointedStage.restore(blocks, CODEC).stage.state == {"n": 1}


def test_a_file_of_blocks_writes_many_blocks_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.repository import blockfile

    calls = []
    pwrite = blockfile.os.pwrite
    with FileBlocks.create(tmp_path / "b", 64) as blocks:
        monkeypatch.setattr(
            blockfile.os, "pwrite", lambda fd, data, at: calls.append(len(data)) or pwrite(fd, data, at)
        )
        CheckpointedStage(b"x" * 9000, blocks, MsgpackCodec(bytes)).checkpoint()
    assert calls == [512, 19 * 512, 19 * 512]  # the other slot made ready, then the whole image into both


def test_files_that_are_no_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BlocksMissing, match=r"FileBlocks\.create"):
        FileBlocks.open(tmp_path / "missing")
    for size in (0, 511, 513):
        (tmp_path / "odd").write_bytes(bytes(size))
        with pytest.raises(BlocksCut, match="not a multiple of the block size"):
            FileBlocks.open(tmp_path / "odd")
        assert not (tmp_path / "odd.lock").exists()
    with pytest.raises(BadValue):
        FileBlocks.create(tmp_path / "none", 0)
    with pytest.raises(StorageFailed):
        FileBlocks.create(tmp_path / "odd" / "below", 4)
    for number in (2**55, 2**60):
        with pytest.raises((BadValue, StorageFailed)):
            FileBlocks.create(tmp_path / "huge", number)
    with FileBlocks.open_or_create(tmp_path / "small", 4) as blocks, pytest.raises(BadValue, match="has 4"):
        blocks.write_block(4, bytes(512))
    with pytest.raises(BadValue, match="the file has 4"):
        FileBlocks.open_or_create(tmp_path / "small", 8)
    with FileBlocks.open_or_create(tmp_path / "small", 4):
        pass
    with FileBlocks.open(tmp_path / "small") as whole, pytest.raises(BadValue, match="whole blocks"):
        whole.write_block(3, bytes(1000))
    for act in (blocks.flush, lambda: blocks.read_block(0), lambda: blocks.write_block(0, bytes(512))):
        with pytest.raises(Closed):
            act()
