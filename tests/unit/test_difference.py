"""What has changed between two checkpoints, and that it is said and can be turned into JSON."""

import json
from typing import Any

import pytest

from fabricated import Fabricated
from holdfast.difference import Change, Difference, FileChanges, KeyCounts, diff
from holdfast.errors import BadValue, CheckpointDamaged, CheckpointMissing
from holdfast.repository import MemoryRepository


@pytest.fixture
def made() -> Fabricated:
    return Fabricated(MemoryRepository())


def take(made: Fabricated, streams: dict[str, list[str]], cuts: dict[str, dict[str, Any]], **fields: Any) -> int:
    return made.finish(made.checkpoints.claim(1, 1), streams, cuts=cuts, **fields).checkpoint_id


@pytest.fixture
def two(made: Fabricated) -> Difference:
    take(
        made,
        {"orders": ["kept", "old"], "totals": ["t"], "gone": ["g"]},
        {
            "orders": {
                "offsets": ['{"topic":{"0":5,"1":7}}'],
                "sources": ["kafka"],
                "sinks": {"log": {"log": "u", "tail": 10}, "old": {}},
            },
            "totals": {
                "epoch": 1,
                "rows": 5,
                "reads": ["orders"],
                "offsets": ['{"log":"u","sequence":9}'],
                "confs": {"x": "1", "same": "1"},
            },
        },
        pipeline_hash=1,
    )
    take(
        made,
        {"orders": ["kept", "newer"], "totals": ["t"], "new": ["n"]},
        {
            "orders": {
                "offsets": ['{"topic":{"0":5,"1":9,"2":0}}', "3"],
                "sources": ["kafka"],
                "watermark_ms": 99,
                "sinks": {"log": {"log": "u", "tail": 30}, "new": {}},
            },
            "totals": {
                "epoch": 1,
                "rows": 5,
                "reads": ["orders"],
                "offsets": ['{"log":"u","sequence":19}'],
                "confs": {"x": "2", "same": "1", "y": "3"},
                "state_format": "rocksdb",
                "output_mode": "update",
            },
        },
        pipeline_hash=2,
    )
    return diff(made.repository, 1, 2)


def test_every_change_is_found(two: Difference) -> None:
    assert (two.a, two.b, two.timestamp_ms, two.timeline.same) == (1, 2, Change(1000, 2000), True)
    assert (two.streams_added, two.streams_removed) == (("new",), ("gone",))
    assert two.pipeline_hash == Change(1, 2)
    orders, totals = two.streams["orders"], two.streams["totals"]
    assert (orders.epoch, orders.rows, orders.watermark_ms) == (Change(1, 2), Change(10, 20), Change(0, 99))
    assert [(each.source, each.where, each.a, each.b) for each in orders.offsets] == [
        ("kafka", "topic/1", "7", "9"),
        ("kafka", "topic/2", "nothing", "0"),
        ("source 1", "", "null", "3"),
    ]
    assert orders.files == FileChanges(added=1, removed=1, kept=2, new_bytes=5)
    assert (orders.sinks_added, orders.sinks_removed) == (("new",), ("old",))
    assert totals.lag == {"orders": Change(1, 11)}
    assert totals.confs == {"x": Change("1", "2"), "y": Change(None, "3")}
    assert (totals.state_format, totals.output_mode) == (Change(None, "rocksdb"), Change("append", "update"))
    assert totals.files == FileChanges(kept=2)
    assert totals.keys is None


def test_it_is_said_in_a_table(two: Difference) -> None:
    assert two.summary().splitlines() == [
        "checkpoint 1 -> 2, 1 s later",
        "the program has changed",
        "stream 'new' is new",
        "stream 'gone' is gone",
        "stream 'orders'",
        "  epoch                     1 -> 2 (+1)",
        "  rows                      10 -> 20 (+10)",
        "  file bytes                49 B -> 51 B (+2 B)",
        "  watermark                 none -> 1970-01-01 00:00:00 UTC",
        "  offset of kafka, topic/1  7 -> 9",
        "  offset of kafka, topic/2  nothing -> 0",
        "  offset of source 1        null -> 3",
        "  files                     1 added, 1 removed, 2 kept; 5 B are new",
        "  sink added                new",
        "  sink removed              old",
        "stream 'totals'",
        "  state format                  none -> rocksdb",
        "  output mode                   append -> update",
        "  offset of source 0, sequence  9 -> 19",
        "  lag behind 'orders'           1 -> 11 (+10)",
        "  conf x                        1 -> 2",
        "  conf y                        none -> 3",
    ]


def test_it_is_json(two: Difference) -> None:
    data = json.loads(json.dumps(two.to_dict()))
    assert data["streams"]["orders"]["epoch"] == {"a": 1, "b": 2}
    assert data["streams"]["orders"]["files"]["new_bytes"] == 5
    assert data["streams"]["totals"]["keys"] is None


def test_keys_are_put_in_by_whoever_has_counted_them(two: Difference) -> None:
    counted = two.with_keys("totals", {"aggregate": KeyCounts(3, 2, 1)})
    assert "keys of aggregate" in counted.summary()
    assert "3 added, 2 changed, 1 removed" in counted.summary()
    assert counted.to_dict()["streams"]["totals"]["keys"] == {"aggregate": {"added": 3, "changed": 2, "removed": 1}}
    assert two.streams["totals"].keys is None
    with pytest.raises(BadValue, match="orders, totals"):
        two.with_keys("gone", {})


def test_backwards_is_told_too_and_nothing_is_nothing(made: Fabricated, two: Difference) -> None:
    back = diff(made.repository, 2, 1)
    assert back.summary().startswith("checkpoint 2 -> 1, 1 s earlier")
    assert back.streams_added == two.streams_removed
    same = diff(made.repository, 1, 1)
    assert same.summary().splitlines()[1:] == [
        f"stream {name!r}: nothing has changed" for name in ("orders", "totals", "gone")
    ]


def test_only_what_is_there_and_sound_is_compared(made: Fabricated, two: Difference) -> None:
    with pytest.raises(CheckpointMissing):
        diff(made.repository, 1, 9)
    made.repository.clear("objects")
    with pytest.raises(CheckpointDamaged, match="file list"):
        diff(made.repository, 1, 2)
