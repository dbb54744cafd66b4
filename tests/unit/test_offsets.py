"""What Spark's offsets say, and how far streams that are chained through a log had come."""

from typing import Any

import pytest

from holdfast._offsets import differences, log_edges
from holdfast.formats.manifest_parts import StreamCut


def test_a_difference_is_told_by_partition() -> None:
    ended, begins = '{"topic":{"0":5,"1":7}}', '{"topic":{"0":5,"1":9,"2":0}}'
    assert list(differences(ended, begins)) == [("topic/1", "7", "9"), ("topic/2", "nothing", "0")]
    assert list(differences(ended, ended)) == []
    assert list(differences(None, None)) == []
    assert list(differences("5", "6")) == [("", "5", "6")]
    assert list(differences("no json", "6")) == [("", "no json", "6")]


def cut(**fields: Any) -> StreamCut:
    return StreamCut(timeline=1, epoch=1, **fields)


def test_edges_through_a_log_know_their_lag() -> None:
    streams = {
        "orders": cut(sinks={"log": {"log": "u1", "tail": 10}, "files": {}}),
        "totals": cut(reads=["orders"], offsets=['{"log":"u1","sequence":7}', None, "no json", "[1]"]),
        "ahead": cut(reads=["orders", "gone"], offsets=['{"log":"u1","sequence":11}']),
        "other": cut(reads=["orders"], offsets=['{"log":"u2","sequence":99}']),
        "alone": cut(offsets=['{"log":"u1","sequence":99}']),
    }
    found = {edge.downstream: (edge.upstream, edge.lag) for edge in log_edges(streams)}
    assert found == {"totals": ("orders", 3), "ahead": ("orders", -1)}


LESS = [{}, {"log": "u1"}, {"log": "u1", "tail": "ten"}, {"log": 1, "tail": 1}, {"log": ["u1"]}]


@pytest.mark.parametrize("note", LESS, ids=str)
def test_notes_that_say_less_are_no_edge(note: dict[str, Any]) -> None:
    streams = {"a": cut(sinks={"x": note}), "b": cut(reads=["a"], offsets=['{"log":"u1","sequence":7}'])}
    assert list(log_edges(streams)) == []
