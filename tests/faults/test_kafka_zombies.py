"""A driver that writes to a topic is stopped, a rewind takes over, and the driver resumes: its rows are there once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fakespark import install
from holdfast.rewind import finish_rewind
from kafkafixture import broker
from kafkazombies import KafkaZombieBench
from zombies import Zombie

POINTS = {"opened": False, "durable": False, "decided": True, "committing": True}  # whether its epoch is decided then
BASE, LATER, ZOMBIE, NEW = [[1], [2]], [[3], [4]], [5, 6], [[30, 31], [40]]


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_into_a_topic_resumes_after_a_rewind(point: str, tmp_path: Path) -> None:
    """A topic keeps its records. The rewind fences the producer of the old driver, and completes a decided epoch."""
    made = partial(KafkaZombieBench, tmp_path, broker().address, broker().topic(partitions=2))
    bench = made()
    bench.add(*BASE)
    bench.take()
    bench.add(*LATER)
    zombie = Zombie(made, [*BASE, *LATER, ZOMBIE], point, spawned=True)  # the threads of a client survive no fork

    finish_rewind(bench, take_over=True)
    bench.rewind(1, leave=["out"])
    old = [*BASE, *LATER, *([ZOMBIE] if POINTS[point] else [])]
    assert bench.seen() == bench.expected(*old)
    errors = zombie.resume()
    assert {"Fenced", "TimelineEnded"} & set(errors), errors
    assert bench.seen() == bench.expected(*old)
    bench.source[:] = [*BASE, *NEW]
    bench.run()
    assert bench.seen() == bench.expected(*old, *NEW)
