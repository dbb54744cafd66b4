import struct
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.barriers import Barrier, BarrierFlags, BarrierInjector, CheckpointBarrier, Event, StreamMessage, Watermark
from support import rounds

TRIGGERS = rounds(10_000, 100_000)
u64 = st.integers(0, 2**64 - 1)


@given(u64, u64, st.integers(0, 7))
def test_wire_form_is_three_u64_and_comes_back(checkpoint_id: int, epoch: int, flags: int) -> None:
    barrier = CheckpointBarrier(checkpoint_id, epoch, BarrierFlags(flags))
    assert barrier.to_bytes() == struct.pack("<QQQ", checkpoint_id, epoch, flags)
    assert CheckpointBarrier.from_bytes(barrier.to_bytes()) == barrier


@pytest.mark.parametrize("length", [0, 8, 23, 25, 48])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="24 bytes"):
        CheckpointBarrier.from_bytes(bytes(length))


@pytest.mark.parametrize("flags", [8, 9, 1 << 32, 1 << 63])
def test_unknown_flags_are_refused(flags: int) -> None:
    with pytest.raises(ValueError, match="flags"):
        CheckpointBarrier.from_bytes(struct.pack("<QQQ", 1, 1, flags))
    with pytest.raises(ValueError, match="flags"):
        BarrierInjector().trigger(1, flags)
    with pytest.raises(ValueError, match="flags"):
        CheckpointBarrier(1, 1, flags)


def test_each_flag_has_its_property() -> None:
    assert CheckpointBarrier(1, 1, BarrierFlags.FULL_SNAPSHOT).is_full_snapshot
    assert CheckpointBarrier(1, 1, BarrierFlags.DRAIN).is_drain
    assert CheckpointBarrier(1, 1, BarrierFlags.CANCEL).is_cancel
    plain = CheckpointBarrier(1, 1)
    assert not (plain.is_full_snapshot or plain.is_drain or plain.is_cancel)


@pytest.mark.parametrize("checkpoint_id", [0, -1, 2**32, 2**40, True, 1.0, "1"])
def test_ids_that_do_not_fit_the_word_are_refused_and_change_nothing(checkpoint_id: object) -> None:
    injector = BarrierInjector()
    injector.trigger(7)
    with pytest.raises(ValueError, match="checkpoint id"):
        injector.trigger(checkpoint_id)
    assert injector.epoch == 1
    claimed = injector.handle().poll(1)
    assert claimed is not None
    assert claimed.checkpoint_id == 7


def test_the_largest_id_with_all_flags_goes_through_whole() -> None:
    injector = BarrierInjector()
    injector.trigger(2**32 - 1, 7)
    assert injector.handle().poll(5) == CheckpointBarrier(2**32 - 1, 5, BarrierFlags(7))


def test_a_newer_trigger_supersedes_an_unclaimed_one_and_says_which() -> None:
    injector = BarrierInjector()
    handle = injector.handle()
    assert injector.trigger(1) is None
    assert injector.trigger(2) == 1
    assert injector.epoch == 2
    barrier = handle.poll(9)
    assert barrier == CheckpointBarrier(2, 9)
    assert handle.poll(9) is None
    assert injector.trigger(3) is None


def test_one_caller_among_all_handles_gets_it() -> None:
    injector = BarrierInjector()
    handles = [injector.handle() for _ in range(3)]
    injector.trigger(1)
    assert [handle.poll(1) is not None for handle in handles] == [True, False, False]


def test_a_caller_with_a_bad_epoch_does_not_lose_the_barrier() -> None:
    injector = BarrierInjector()
    injector.trigger(1)
    with pytest.raises(ValueError, match="epoch"):
        injector.handle().poll(-1)
    assert injector.handle().poll(1) is not None


def test_every_change_of_the_word_happens_under_the_lock() -> None:
    """The claim is exclusive by construction, with or without a global interpreter lock."""
    injector = BarrierInjector()
    slot = injector._slot
    held: list[bool] = []

    class Watched:
        def __enter__(self) -> None:
            held.append(True)

        def __exit__(self, *_: object) -> None:
            held.append(False)

    slot.lock = Watched()
    handle = injector.handle()
    assert handle.poll(1) is None
    assert held == []  # nothing pending: no lock
    injector.trigger(1)
    assert held == [True, False]
    assert handle.poll(1) is not None
    assert held == [True, False] * 2


def test_a_cancel_for_a_barrier_never_seen_is_an_ordinary_barrier() -> None:
    injector = BarrierInjector()
    injector.trigger(1)
    injector.trigger(1, BarrierFlags.CANCEL)
    barrier = injector.handle().poll(1)
    assert barrier is not None
    assert barrier.is_cancel


def test_messages_are_told_apart_by_match() -> None:
    def name(message: StreamMessage) -> str:
        match message:
            case Event(payload):
                return f"event {payload}"
            case Watermark(ms):
                return f"watermark {ms}"
            case Barrier(barrier):
                return f"barrier {barrier.checkpoint_id}"

    messages: list[StreamMessage] = [Event("rows"), Watermark(5), Barrier(CheckpointBarrier(3, 1))]
    assert [name(message) for message in messages] == ["event rows", "watermark 5", "barrier 3"]


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Let threads take turns a hundred times as often as usual."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 100)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_switching")
@pytest.mark.parametrize("patient", [False, True])
def test_eight_threads_claim_each_trigger_at_most_once_and_miss_none(patient: bool) -> None:
    """Every trigger is claimed by exactly one thread, or superseded; patient triggers wait until they are claimed."""
    injector = BarrierInjector()
    count = TRIGGERS
    claimed: list[list[int]] = [[] for _ in range(8)]
    done = threading.Event()

    def poll(mine: list[int]) -> None:
        handle = injector.handle()
        while True:
            last = done.is_set()
            barrier = handle.poll(len(mine))
            if barrier is not None:
                assert barrier.epoch == len(mine)
                mine.append(barrier.checkpoint_id)
            elif last:
                return

    threads = [threading.Thread(target=poll, args=(mine,)) for mine in claimed]
    for thread in threads:
        thread.start()
    superseded = []
    for checkpoint_id in range(1, count + 1):
        old = injector.trigger(checkpoint_id)
        if old is not None:
            superseded.append(old)
        while patient and checkpoint_id % 100 == 0 and injector._slot.word:
            time.sleep(0)
    done.set()
    for thread in threads:
        thread.join()
    everything = sorted([each for mine in claimed for each in mine] + superseded)
    assert everything == list(range(1, count + 1))
    assert injector.epoch == count
    if patient:
        assert sum(map(len, claimed)) >= count // 100
