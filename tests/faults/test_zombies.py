"""A driver of the old timeline is stopped, a rewind takes over, and the driver resumes: nothing of it becomes visible.

The pipeline is `shared`, so no lock keeps the two apart. Decisions, leases and sinks are real; only the query is a
fake, so no JVM is needed. Each kind of sink is tested with a driver that is stopped before it stages, before its
decision, after it, and inside the commit of the sink.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fakespark import install
from holdfast.rewind import finish_rewind
from pgfixture import server
from zombies import BLOCKED_S, WAIT_S, Zombie, ZombieBench, in_a_thread

KINDS = [
    "files",
    "log",
    "sqlite append",
    "sqlite upsert",
    "sqlite replace",
    "delta append",
    "delta replace",
    "iceberg",
    "postgres prepared",
    "postgres staged",
]
POINTS = {
    # where the driver is stopped, and whether its epoch is decided then
    "opened": False,
    "durable": False,
    "decided": True,
    "committing": True,
}
BASE, LATER, ZOMBIE, NEW = [[1], [2]], [[3], [4]], [5, 6], [[30, 31], [40]]


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_resumes_after_a_rewind(kind: str, point: str, tmp_path: Path) -> None:
    dsn = ""
    if kind.startswith("postgres"):
        server().start_again()
        dsn = server().dsn(server().fresh_database())
    bench = ZombieBench(tmp_path, kind, dsn)
    bench.add(*BASE)
    bench.take()
    bench.add(*LATER)
    old = [*BASE, *LATER, *([ZOMBIE] if POINTS[point] else [])]
    made = partial(ZombieBench, tmp_path, kind, dsn)
    zombie = Zombie(made, [*BASE, *LATER, ZOMBIE], point, spawned=kind.startswith("delta"))

    finish_rewind(bench, take_over=True)  # there is none: this only takes the lease, even if the sink is locked
    rewind, failures = in_a_thread(lambda: bench.rewind(1))
    # A database makes it wait for the commit. An open epoch must be ended first: otherwise the driver could decide it.
    rewind.join(BLOCKED_S if POINTS[point] else WAIT_S)
    if not rewind.is_alive():
        assert failures == []
        assert_taken_back(bench, old)
    errors = zombie.resume()
    rewind.join(WAIT_S)
    assert not rewind.is_alive()
    assert failures == []
    assert {"Fenced", "TimelineEnded"} & set(errors), errors
    assert bench.lineage.current == 2
    assert_taken_back(bench, old)

    bench.undo()
    assert bench.seen() == bench.expected(*old)
    bench.source[:] = old
    bench.run()
    assert bench.seen() == bench.expected(*old)
    bench.rewind(1)
    assert_taken_back(bench, old)
    bench.source[:] = [*BASE, *NEW]
    bench.run()
    assert bench.seen() == bench.expected(*BASE, *NEW)


def assert_taken_back(bench: ZombieBench, old: list[list[int]]) -> None:
    """The rows of the base, or what a table showed last that the next epoch replaces."""
    kept = bench.kind.endswith("replace")
    assert bench.seen() == (bench.expected(*old) if kept else bench.expected(*BASE))


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_into_a_sink_that_a_rewind_leaves(point: str, tmp_path: Path) -> None:
    """A marker sink keeps its rows. The old driver is refused by the key that the rewind has stored."""
    bench = ZombieBench(tmp_path, "marker")
    bench.add(*BASE)
    bench.take()
    bench.add(*LATER)
    zombie = Zombie(lambda: ZombieBench(tmp_path, "marker"), [*BASE, *LATER, ZOMBIE], point)

    finish_rewind(bench, take_over=True)
    bench.rewind(1, leave=["out"])  # completes the epoch of the old driver first, if it is decided
    old = [*BASE, *LATER, *([ZOMBIE] if POINTS[point] else [])]
    assert bench.seen() == bench.expected(*old)
    errors = zombie.resume()
    assert {"Fenced", "TimelineEnded"} & set(errors), errors
    assert bench.seen() == bench.expected(*old)
    bench.source[:] = [*BASE, *NEW]
    bench.run()
    assert bench.seen() == bench.expected(*old, *NEW)
