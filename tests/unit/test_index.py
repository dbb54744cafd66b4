"""The index of an event log, alone: what it refuses, what it answers, and how little of it is held."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.eventlog import index as module
from holdfast.eventlog.index import (
    Cancelled,
    Committed,
    IndexHead,
    LogIndex,
    Range,
    RangeDamaged,
    Segment,
    StoredHead,
    decode,
    encode,
)
from support import flips

FIRST = IndexHead.first("uid")
segment = Segment("segments/x", 0, 1, 1, bytes(32))
shapes = st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=12)


def built(shape: list[tuple[bool, int]]) -> tuple[bytes, IndexHead]:
    data, head = b"", FIRST
    for cancelled, count in shape:
        made = Cancelled(head.tail, count, "why") if cancelled else Committed(head.tail, count, (segment,))
        record, head = encode(made, head)
        data += record
    return data, head


def reading(data: bytes) -> Callable[[int, int], bytes]:
    view = memoryview(data)
    return lambda start, end: bytes(view[start:end])  # a copy, as a file gives one


def taken_in(data: bytes, head: IndexHead, uid: str = "uid") -> LogIndex:
    ranges = LogIndex(uid, reading(data))
    ranges.advance(head)
    return ranges


@contextmanager
def small(block: int, piece: int = 1 << 20, cached: int = 4) -> Iterator[None]:
    """Blocks of so many bytes, read by pieces of so many: what a long index has, for a short one."""
    with mock.patch.multiple(module, _BLOCK=block, _PIECE=piece, _CACHED_BLOCKS=cached):
        yield


@given(shapes, st.integers(0, 60), st.integers(0, 60))
def test_ranges_know_what_holds_each_sequence_and_what_was_cancelled(
    shape: list[tuple[bool, int]], start: int, end: int
) -> None:
    data, head = built(shape)
    ranges = taken_in(data, head)
    holes = [cancelled for cancelled, count in shape for _ in range(count)]
    for sequence, hole in enumerate(holes):
        found = ranges.holding(sequence)
        assert found is not None
        assert found.first <= sequence < found.first + found.count
        assert isinstance(found, Cancelled) is hole
    assert ranges.holding(head.tail) is None
    flat = [sequence for low, high in ranges.cancelled(start, end) for sequence in range(low, high)]
    assert flat == [sequence for sequence, hole in enumerate(holes) if hole and start <= sequence < end]


def test_cancelled_ranges_side_by_side_are_reported_as_one() -> None:
    """As the original system did: script `vxxv`, visible, cancelled twice, visible."""
    with small(1):
        ranges = taken_in(*built([(False, 1), (True, 1), (True, 1), (False, 1)]))
        assert ranges.cancelled(0, 4) == [(1, 3)]
        assert ranges.cancelled(2, 4) == [(2, 3)]
        assert ranges.cancelled(0, 2) == [(1, 2)]
        ranges = taken_in(*built([(True, 1), (True, 2), (False, 1), (True, 1)]))
        assert ranges.cancelled(0, 5) == [(0, 3), (4, 5)]


def test_a_record_out_of_its_place_is_refused_however_sound_its_chain_is() -> None:
    for wrong in (Cancelled(5, 1, "x"), Cancelled(0, 0, "x"), Cancelled(0, -1, "x")):
        record, head = encode(wrong, FIRST)
        with pytest.raises(RangeDamaged, match="does not follow"):
            taken_in(record, head)


def test_a_head_must_agree_in_everything() -> None:
    data, head = built([(False, 2), (True, 1)])
    for wrong in (
        IndexHead(head.records, head.length, bytes(32), head.tail),
        IndexHead(head.records, head.length, head.chain, head.tail + 1),
        IndexHead(head.records, head.length + 1, head.chain, head.tail),
    ):
        with pytest.raises(RangeDamaged):
            taken_in(data, wrong)


@given(shapes, st.data())
def test_records_taken_out_doubled_or_swapped_break_the_chain(
    shape: list[tuple[bool, int]], drawn: st.DataObject
) -> None:
    whole, head = built(shape)
    records, behind, at = [], FIRST, 0
    for _, behind in decode(whole, FIRST):
        records.append(whole[at : behind.length])
        at = behind.length
    assert behind == head
    if len(records) < 2:
        return
    one = drawn.draw(st.integers(0, len(records) - 1))
    other = drawn.draw(st.integers(0, len(records) - 1).filter(lambda index: index != one))
    swapped = list(records)
    swapped[one], swapped[other] = swapped[other], swapped[one]
    for changed in (records[:one] + records[one + 1 :], [*records, records[one]], swapped):
        data = b"".join(changed)
        with pytest.raises(RangeDamaged):
            taken_in(data, msgspec.structs.replace(head, length=len(data)))
    with pytest.raises(RangeDamaged):
        taken_in(whole, head, "another log's uid")


def test_a_range_without_a_key_has_the_bytes_that_it_had_before_there_were_keys() -> None:
    head = IndexHead.first("x")
    segment = Segment("p", 0, 1, 2, b"d")
    old = msgspec.msgpack.encode(["committed", 0, 1, [["p", 0, 1, 2, b"d"]]])
    record, behind = encode(Committed(0, 1, (segment,)), head)
    assert record[4:-32] == old
    keyed, _ = encode(Committed(1, 1, (segment,), "mine"), behind)
    found = [each for each, _ in decode(record + keyed, head)]
    assert found == [Committed(0, 1, (segment,)), Committed(1, 1, (segment,), "mine")]


# --- in blocks: what is not held is read again, and answers as if it were held ---------------------------------------

made = st.one_of(
    st.builds(Cancelled, first=st.just(0), count=st.integers(1, 5), why=st.text(max_size=30)),
    st.builds(
        Committed,
        first=st.just(0),
        count=st.integers(1, 5),
        segments=st.lists(st.just(segment), max_size=4).map(tuple),
        key=st.sampled_from(["", "a", "b/c"]),
    ),
)


def written(shape: list[Range]) -> tuple[bytes, list[tuple[Range, IndexHead]]]:
    """The index of these ranges, put one behind the other, and each of them with the head behind it."""
    data, head, records = [], FIRST, []
    for each in shape:
        placed = msgspec.structs.replace(each, first=head.tail)
        record, head = encode(placed, head)
        data.append(record)
        records.append((placed, head))
    return b"".join(data), records


@given(st.lists(made, max_size=25), st.integers(1, 400), st.integers(1, 400), st.integers(1, 3), st.data())
def test_blocks_answer_as_the_whole_index_would(
    shape: list[Range], block: int, piece: int, cached: int, drawn: st.DataObject
) -> None:
    data, records = written(shape)
    begin = drawn.draw(st.integers(0, len(records)))
    with small(block, piece, cached):
        ranges = LogIndex("uid", reading(data), records[begin - 1][1] if begin else None)
        assert ranges.begins == begin
        for stop in [*sorted(drawn.draw(st.sets(st.integers(begin, len(records))))), len(records)]:
            known = records[:stop]
            head = known[-1][1] if known else FIRST
            ranges.advance(head)
            assert ranges.head == head
            for sequence in drawn.draw(st.permutations(range(head.tail))):
                due = next(each for each in known if sequence < each[1].tail)
                assert ranges.holding(sequence) == due[0]
                assert ranges.chain_at(sequence) == due[1].chain
            for past in (-1, head.tail, head.tail + 1):
                assert (ranges.holding(past), ranges.chain_at(past)) == (None, None)
            for since in range(stop + 2):
                due_keys = [each.key for each, _ in known[since:] if isinstance(each, Committed) and each.key]
                assert list(ranges.keys(since)) == due_keys
            holes = {
                at
                for each, _ in known
                if isinstance(each, Cancelled)
                for at in range(each.first, each.first + each.count)
            }
            start, end = drawn.draw(st.tuples(st.integers(0, 30), st.integers(0, 130)))
            told = [at for low, high in ranges.cancelled(start, end) for at in range(low, high)]
            assert told == sorted(at for at in holes if start <= at < end)


def test_a_block_that_was_changed_since_is_refused_at_every_bit() -> None:
    data, head = built([(False, 2), (True, 1), (False, 3)] * 2)
    with small(block=len(data) // 3):
        for bit, changed in flips(data[: len(data) // 3]):
            ranges = taken_in(data, head)
            ranges._read = reading(changed + data[len(changed) :])
            for ask in (ranges.holding, ranges.chain_at, lambda _, ranges=ranges: list(ranges.keys(0))):
                with pytest.raises(RangeDamaged):
                    pytest.fail(f"bit {bit}: {ask(0)}")


def test_a_block_of_another_course_is_refused_however_sound_it_is() -> None:
    data, records = written([Cancelled(0, 1, "one course")] * 10)
    other, others = written([Cancelled(0, 1, "the others")] * 10)
    assert [head.length for _, head in others] == [head.length for _, head in records]
    with small(block=len(data) // 3):
        ranges = taken_in(data, records[-1][1])
        ranges._read = reading(other)
        with pytest.raises(RangeDamaged, match="has changed since"):
            ranges.holding(0)
        assert ranges.holding(9) == records[9][0], "the newest ones are held"
        ranges._read = reading(data)
        assert ranges.holding(0) == records[0][0]


def test_an_index_that_is_opened_at_an_anchor_is_checked_at_every_bit() -> None:
    """After the anchor at once, before it when a record there is needed."""
    data, records = written([Committed(0, 2, (segment,), "k"), Cancelled(0, 1, "why")] * 3)
    anchor, head = records[2][1], records[-1][1]
    for bit, changed in flips(data):
        ranges = LogIndex("uid", reading(changed), anchor)
        if bit // 8 >= anchor.length:
            with pytest.raises(RangeDamaged):
                pytest.fail(f"bit {bit}: {ranges.advance(head)}")
            continue
        ranges.advance(head)
        assert ranges.holding(head.tail - 1) == records[-1][0]
        for ask in (ranges.holding, ranges.chain_at, lambda _, ranges=ranges: list(ranges.keys(0))):
            with pytest.raises(RangeDamaged):
                pytest.fail(f"bit {bit}: {ask(0)}")
        assert ranges.holding(head.tail - 1) == records[-1][0], "a failure changes nothing"


def test_an_anchor_must_agree_in_everything() -> None:
    data, records = written([Cancelled(0, 1, "one course")] * 6)
    _, others = written([Cancelled(0, 1, "the others")] * 6)
    good, head = records[2][1], records[-1][1]
    change = msgspec.structs.replace
    for wrong in (
        others[2][1],
        change(good, chain=bytes(32)),
        change(good, records=good.records + 1),
        change(good, length=good.length + 1),
        change(good, length=0),
        change(good, tail=good.tail + 1),
        change(head, tail=head.tail - 1),
    ):
        with pytest.raises(RangeDamaged):
            LogIndex("uid", reading(data), wrong).advance(head)


def test_anchors_follow_the_end_of_the_index() -> None:
    """Between one and two distances of it, once it is long enough; the head on disk stays small."""
    _, records = written([Committed(0, 1, (segment,), "k" * 60)] * 600)
    stored, every = StoredHead.of(FIRST), module._ANCHOR_EVERY
    heads = {FIRST, *(head for _, head in records)}
    longest = len(records[0][1].chain) + records[0][1].length
    for _, head in records:
        stored = stored.followed_by(head)
        assert stored.head == head
        assert set(stored.anchors) <= heads and len(stored.anchors) <= 2
        assert len(msgspec.msgpack.encode(stored)) <= 400
        distance = head.length - stored.anchors[0].length
        assert distance <= 2 * every + 2 * longest
        assert distance >= min(every, head.length)
    assert records[-1][1].length > 5 * every


def test_an_advance_that_fails_takes_in_nothing() -> None:
    data, records = written([Committed(0, 1, (segment,), "k")] * 12)
    (_, middle), (_, end) = records[5], records[-1]
    with small(block=1, piece=1):
        ranges = taken_in(data, middle)
        for wrong in (data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
            ranges._read = reading(wrong)
            with pytest.raises(RangeDamaged):
                ranges.advance(end)
            assert (ranges.head, len(list(ranges.keys(0)))) == (middle, 6)
        ranges._read = reading(data)
        ranges.advance(end)
        assert (ranges.head, len(list(ranges.keys(0)))) == (end, 12)


def test_a_long_index_is_not_held_in_memory() -> None:
    """Of each append a few bytes are, however many segments it has; and no more on the way than a few pieces."""
    parts = tuple(Segment(f"segments/first={at:020}/{'x' * 60}.parquet", at, 1, 1, bytes(32)) for at in range(4))
    data, records = written([Committed(0, 4, parts, "k" * 60)] * 5000)
    tracemalloc.start()
    try:
        ranges = taken_in(data, records[2499][1])
        before, _ = tracemalloc.get_traced_memory()
        for _, head in records[2500:]:
            ranges.advance(head)
        assert len(list(ranges.keys(4990))) == 10
        after, _ = tracemalloc.get_traced_memory()
        for sequence in range(0, ranges.head.tail, 100):
            ranges.holding(sequence)
        used, _ = tracemalloc.get_traced_memory()
        del ranges
        tracemalloc.reset_peak()
        taken_in(data, records[-1][1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    block = 4 << 16  # bytes that are decoded take up to four times their room
    assert after - before < 10 * 2500 + block
    assert used < 10 * 5000 + 5 * block
    assert peak < 3 << 20 < len(data)
