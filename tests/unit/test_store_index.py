"""The index of a log on a store, over a list of objects in memory: what it asks for, and what it refuses."""

import hashlib
from bisect import bisect_right
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import NotFound
from holdfast.eventlog import store_index as module
from holdfast.eventlog.index import Cancelled, Committed, IndexHead, Range, RangeDamaged, Rewound, Segment, encode
from holdfast.eventlog.store_index import StoreIndex
from holdfast.eventlog.store_record import IndexRecord, record_key
from holdfast.repository.base import StoredObject
from support import flips

UID = "uid"
PAGE = 4
shapes = st.lists(st.tuples(st.sampled_from("cxr"), st.integers(1, 30)), max_size=40)


class Objects:
    """As much of a repository on a store as an index uses. It counts requests."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.pages = self.reads = 0

    def page(self, folder: str, after: str | None = None) -> list[StoredObject]:
        self.pages += 1
        names = sorted(name for name in self.data if name.startswith(f"{folder}/"))
        first = bisect_right(names, after) if after is not None else 0
        return [StoredObject(name, 1, "", 0.0) for name in names[first : first + PAGE]]

    def read(self, key: str) -> bytes:
        self.reads += 1
        try:
            return self.data[key]
        except KeyError:
            raise NotFound(key=key, where="here") from None

    def read_all(self, keys: list[str]) -> dict[str, bytes | None]:
        self.reads += len(keys)
        return {key: self.data.get(key) for key in keys}


def made(kind: str, first: int, count: int) -> Range:
    if kind == "x":
        return Cancelled(first, count, "why")
    if kind == "r":
        return Rewound(first, 1, f"r{first}", ((0, 1),) if first else ())
    segment = Segment(f"segments/s/{first}", first, count, 7, hashlib.sha256(b"x").digest())
    return Committed(first, count, (segment,), f"k{first}")


def filled(shape: list[tuple[str, int]], objects: Objects | None = None) -> tuple[Objects, list[IndexRecord]]:
    objects = objects or Objects()
    records: list[IndexRecord] = []
    for kind, count in shape:
        before = records[-1] if records else None
        first = before.head.tail if before else 0
        record = IndexRecord.after(before, UID, made(kind, first, count), {"m": f"k{first}"})
        objects.data[record_key(first)] = record.sealed(one_line=True)
        records.append(record)
    return objects, records


def opened(objects: Objects) -> StoreIndex:
    index = StoreIndex(objects, UID)  # type: ignore[arg-type]
    index.refresh()
    return index


@pytest.fixture(autouse=True)
def small_pages() -> object:
    with mock.patch.object(module, "PAGE", PAGE):
        yield


@given(shapes, st.data())
def test_it_answers_as_an_index_on_a_disk_does(shape: list[tuple[str, int]], drawn: st.DataObject) -> None:
    objects, records = filled(shape)
    index, head = opened(objects), IndexHead.first(UID)
    chains = []
    for record in records:
        _, head = encode(record.range, head)
        chains.append(head.chain)
    assert (index.head.tail, index.head.records, index.head.chain) == (head.tail, head.records, head.chain)
    for sequence in drawn.draw(st.lists(st.integers(0, max(head.tail - 1, 0)), max_size=6)):
        at = next((n for n, each in enumerate(records) if sequence < each.head.tail), None)
        if at is None:
            assert index.holding(sequence) is None
            continue
        assert index.holding(sequence) == records[at].range
        assert index.chain_at(sequence) == chains[at]
        assert index.record_of(sequence) == records[at].first
    assert list(index.ranges()) == [each.range for each in records]
    assert list(index.keys(0)) == [each.key for each in records if each.key]
    assert [each.first for each in index.newest_first()] == [each.first for each in reversed(records)]


@given(shapes, st.integers(0, 39))
def test_a_seek_reads_from_the_named_record_on_and_nothing_before(shape: list[tuple[str, int]], at: int) -> None:
    objects, records = filled(shape)
    if at >= len(records):
        return
    index, record = opened(objects), records[at]
    for before in records[:at]:
        del objects.data[record_key(before.first)]  # it would be noticed
    index.seek(record.head.tail - 1, record.first)
    assert index.begins <= at
    for each in records[at:]:
        assert index.holding(each.first) == each.range
    with pytest.raises(RangeDamaged):
        index.seek(record.head.tail - 1, record.first + 10_000)


def test_a_first_record_with_another_name_is_damage() -> None:
    objects, records = filled([("c", 3)] * 10)
    for name in (1, 4):
        with pytest.raises(RangeDamaged, match=r"is missing|does not contain"):
            opened(objects).seek(5, name)
    del objects.data[record_key(records[4].first)]
    with pytest.raises(RangeDamaged, match="does not follow"):
        opened(objects).seek(3, records[1].first)
    with pytest.raises(RangeDamaged):
        list(opened(objects).ranges())


def test_the_end_is_found_with_few_requests() -> None:
    objects, records = filled([("c", 1 + number % 50) for number in range(3000)])
    index = opened(objects)
    assert index.head.tail == records[-1].head.tail
    assert objects.pages < 40
    assert objects.reads == 2  # the last one, and the one after it, which does not exist
    objects.reads = objects.pages = 0
    index.refresh()
    assert (objects.reads, objects.pages) == (1, 0)
    for record in records[100:200:10]:
        objects.pages = 0
        found = opened(objects)
        assert found.record_of(record.first + record.count - 1) == record.first


def test_new_records_are_followed_and_a_broken_chain_is_refused() -> None:
    objects, _ = filled([("c", 2)])
    index = opened(objects)
    more, records = filled([("c", 2), *[("c", 5)] * 20])
    objects.data = more.data
    index.refresh()
    assert index.head.tail == records[-1].head.tail
    other, _ = filled([("x", 2), ("c", 5)])
    objects, _ = filled([("c", 2)])
    index = opened(objects)
    objects.data[record_key(2)] = other.data[record_key(2)]
    with pytest.raises(RangeDamaged, match="does not follow"):
        index.refresh()
    assert index.head.tail == 2, "a failure changes nothing"


def test_only_the_last_records_are_kept_and_one_that_changed_is_noticed() -> None:
    objects, records = filled([("c", 1)] * 50)
    with mock.patch.object(module, "_KEPT", 5):
        index = opened(objects)
        assert len(list(index.ranges())) == 50
        assert len(index._kept) == 5
        assert index.holding(0) == records[0].range
        other, _ = filled([("x", 1)] * 50)
        objects.data[record_key(20)] = other.data[record_key(20)]
        with pytest.raises(RangeDamaged, match="has changed"):
            index.holding(20)


def test_marks_stand_for_all_records_before() -> None:
    objects, _ = filled([("c", 1)] * 50)
    index = opened(objects)
    objects.reads = 0
    assert index.first_known == 0
    assert set(index.known_keys(0)) == {"k49"}
    assert objects.reads == 0
    assert list(index.known_keys(50)) == []


def test_every_bit_of_a_record_is_protected() -> None:
    objects, records = filled([("c", 2), ("c", 3)])
    name = record_key(2)
    for bit, changed in flips(objects.data[name]):
        with pytest.raises(RangeDamaged):
            IndexRecord.read(changed, name, UID)
            raise AssertionError(f"bit {bit} can be changed")
    with pytest.raises(RangeDamaged, match="contains the record of sequence 2"):
        IndexRecord.read(objects.data[name], record_key(3), UID)
    with pytest.raises(RangeDamaged, match="belongs to log"):
        IndexRecord.read(objects.data[name], name, "another")
    for wrong in (
        {"count": 4},
        {"before": "0" * 64},
        {"kind": "other"},
        {"number": 7},
        {"segments": []},
        {"key": "another"},
    ):
        forged = msgspec.structs.replace(records[1], **wrong).sealed(one_line=True)
        if wrong == {"number": 7}:
            with pytest.raises(RangeDamaged):
                objects.data[name] = forged
                list(opened(objects).ranges())
            continue
        with pytest.raises(RangeDamaged):
            IndexRecord.read(forged, name, UID)
