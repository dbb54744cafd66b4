"""Positions in Kafka topics, compared with what the topics have: by hand, and against a model that loses records."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._topics import (
    LossKind,
    LostInput,
    TopicChoice,
    TopicNow,
    client_settings,
    lost_input,
    positions_of,
    records_between,
    summary,
)
from holdfast.repository import Identity, Lineage, MemoryRepository
from holdfast.repository.lineage import TimelineRecord
from holdfast.repository.topics import StreamTopics, TopicNote

T = TopicChoice(topics=("t",))


def kinds(positions: Any, now: Any, choice: TopicChoice = T, ids: Any = None) -> list[tuple[str, int | None]]:
    topics = {topic: TopicNow(id_, partitions) for topic, (id_, partitions) in now.items()}
    found = lost_input(positions, {"t": "A"} if ids is None else ids, topics, choice)
    return [(str(each.kind), each.partition) for each in found]


CASES = [
    ("nothing new", {"t": {0: 5}}, {"t": ("A", {0: (0, 5)})}, []),
    ("more records", {"t": {0: 5}}, {"t": ("A", {0: (5, 9)})}, []),
    ("one expired", {"t": {0: 5}}, {"t": ("A", {0: (6, 9)})}, [("expired", 0)]),
    ("all expired", {"t": {0: 5}}, {"t": ("A", {0: (9, 9)})}, [("expired", 0)]),
    ("shorter", {"t": {0: 5}}, {"t": ("A", {0: (0, 4)})}, [("truncated", 0)]),
    ("another one", {"t": {0: 5}}, {"t": ("B", {0: (0, 9)})}, [("recreated", None)]),
    ("another one, fewer partitions", {"t": {0: 5, 1: 5}}, {"t": ("B", {0: (0, 9)})}, [("recreated", None)]),
    ("a server without ids", {"t": {0: 5}}, {"t": ("AAAAAAAAAAAAAAAAAAAAAA", {0: (0, 9)})}, []),
    ("a partition less", {"t": {0: 5, 1: 5}}, {"t": ("A", {0: (0, 9)})}, [("partition gone", 1)]),
    ("a partition more", {"t": {0: 5}}, {"t": ("A", {0: (0, 9), 1: (0, 9)})}, []),
    ("a partition more, and late", {"t": {0: 5}}, {"t": ("A", {0: (0, 9), 1: (2, 9)})}, [("late", 1)]),
    ("a topic more, and late", {"u": {0: 5}}, {"t": ("B", {0: (2, 9)})}, [("not read", 0), ("late", 0)]),
    ("gone", {"t": {0: 5}}, {}, [("topic gone", None)]),
    ("not read", {"u": {0: 5}, "t": {0: 5}}, {"t": ("A", {0: (0, 9)})}, [("not read", 0)]),
    ("not begun", {}, {"t": ("A", {0: (7, 9)})}, []),
    ("every topic", {"t": {0: 5}, "u": {0: 1}}, {"t": ("B", {0: (0, 9)}), "u": ("C", {0: (3, 9)})},
     [("recreated", None), ("not read", 0)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("positions", "now", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_does_not_fit_is_found(positions: Any, now: Any, expected: Any) -> None:
    assert kinds(positions, now) == expected


def test_an_id_that_was_never_recorded_is_not_compared() -> None:
    assert kinds({"t": {0: 5}}, {"t": ("B", {0: (0, 9)})}, ids={}) == []


def test_assigned_partitions_are_the_only_ones() -> None:
    two = TopicChoice.of({"assign": '{"t":[0,2]}'})
    now = {"t": ("A", {0: (0, 9), 1: (5, 9), 2: (0, 9), 3: (5, 9)})}
    assert kinds({"t": {0: 5, 2: 5}}, now, two) == []
    assert kinds({"t": {0: 5, 1: 5}}, now, two) == [("not read", 1)]


def test_a_pattern_may_lose_a_topic() -> None:
    assert kinds({"t": {0: 5}}, {}, TopicChoice.of({"subscribepattern": "t.*"})) == [("topic gone", None)]


@pytest.mark.parametrize(
    ("options", "names", "others"),
    [
        ({"subscribe": "a, b"}, ["a", "b"], ["c", "a, b"]),
        ({"subscribepattern": "a-.*"}, ["a-1", "b"], []),
        ({"assign": '{"a":[1]}'}, ["a"], ["b"]),
        ({"assign": "no json"}, [], ["a"]),
        ({"assign": "[1]"}, [], ["a"]),
        ({"assign": '{"a":["x"]}'}, [], ["a"]),
        ({}, [], ["a"]),
    ],
    ids=str,
)
def test_the_options_of_a_reader_choose_topics(options: dict[str, str], names: list[str], others: list[str]) -> None:
    choice = TopicChoice.of(options)
    assert [each for each in [*names, *others] if choice.names(each)] == names


partitions = st.dictionaries(st.integers(0, 4), st.integers(0, 30), min_size=1, max_size=5)
topics = st.dictionaries(st.sampled_from("abc"), partitions, max_size=3)


@given(topics)
def test_positions_are_those_of_the_offset(positions: dict[str, dict[int, int]]) -> None:
    text = json.dumps(positions)
    assert positions_of(text) == positions
    assert positions_of(f"source_1:{text}") == positions


OTHERS = ["", "null", "5", "[]", "{}", '{"t":5}', '{"t":{}}', '{"t":{"x":1}}', '{"t":{"0":"1"}}', '{"t":{"0":true}}',
          '{"log":"u","sequence":1}', '{"logOffset":1}', '{"t":{"0":1},"u":{}}', "no json", "[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("text", [None, *OTHERS], ids=lambda text: str(text)[:20])
def test_offsets_of_other_sources_have_no_positions(text: str | None) -> None:
    assert positions_of(text) == {}


@given(topics, st.data())
def test_a_loss_is_found_exactly_where_a_record_is_lost(
    positions: dict[str, dict[int, int]], data: st.DataObject
) -> None:
    """A topic is a range of records; the stream must read on at its position, in the same topic."""
    now, expected = {}, set()
    for topic, known in positions.items():
        if data.draw(st.booleans(), "recreated"):
            now[topic] = TopicNow("new", {each: (0, data.draw(st.integers(0, 60))) for each in known})
            expected.add((topic, None))
            continue
        bounds = {}
        for partition, position in known.items():
            first = data.draw(st.integers(0, 40), "first")
            end = data.draw(st.integers(first, 60), "end")
            bounds[partition] = (first, end)
            if not first <= position <= end:
                expected.add((topic, partition))
        now[topic] = TopicNow("old", bounds)
    ids = dict.fromkeys(positions, "old")
    found = list(lost_input(positions, ids, now, TopicChoice(topics=tuple(positions))))
    assert {(each.topic, each.partition) for each in found} == expected
    assert len(found) == len(expected)
    assert all(each.text and each.where and json.dumps(each.facts()) for each in found)


@given(topics, st.integers(0, 100))
def test_a_topic_that_only_grows_never_loses(positions: dict[str, dict[int, int]], more: int) -> None:
    now = {
        topic: TopicNow("id", {each: (0, at + more) for each, at in known.items()})
        for topic, known in positions.items()
    }
    choice = TopicChoice(topics=tuple(positions))
    assert not list(lost_input(positions, dict.fromkeys(positions, "id"), now, choice))
    assert records_between(positions, now) == more * sum(map(len, positions.values()))


def test_the_facts_of_a_gap_do_not_change_while_a_topic_grows() -> None:
    one = LostInput(LossKind.EXPIRED, "t", 0, 5, 7, 9)
    assert one.facts() == LostInput(LossKind.EXPIRED, "t", 0, 5, 7, 1000).facts()
    assert summary([one, one]) == "topic 't' partition 0: the records from offset 5 to 6 no longer exist; and 1 more"


def test_settings_of_clients_are_those_with_a_prefix() -> None:
    assert client_settings({"kafka.sasl.mechanism": "PLAIN", "subscribe": "t"}) == {"sasl.mechanism": "PLAIN"}


def test_records_of_topics_follow_the_lineage() -> None:
    """After a rewind, those count that the epochs up to the base have read."""
    repository = MemoryRepository()
    first = Lineage(Identity.create(repository, "p"))
    records = StreamTopics(repository, "s")

    def note(id_: str) -> dict[str, dict[str, TopicNote]]:
        return {"0": {"t": TopicNote(id=id_, partitions=1)}}

    assert records.at(first, 1) is None
    records.add(1, 1, note("a"))
    records.add(1, 6, note("b"))
    found = [records.at(first, epoch) for epoch in (1, 5, 6, 99)]
    assert [each.ids(0)["t"] for each in found if each] == ["a", "a", "b", "b"]
    rewound = Lineage(first.identity, (TimelineRecord(timeline=2, parent=1, bases={"s": 4}, checkpoint=1),))
    at = records.at(rewound, 5)
    assert at is not None and at.ids(0) == {"t": "a"}
    records.add(2, 5, note("c"))
    at = records.at(rewound, 5)
    assert at is not None and (at.ids(0), at.ids(1)) == ({"t": "c"}, {})
