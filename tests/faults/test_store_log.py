"""Logs on a store: eight processes that append at the same moment, and processes that are killed while they do."""

import multiprocessing
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the processes import their part by name

from logracers import killed_in_a_rewind, killed_within, race_to_append, staged

from faultproxy import FaultProxy
from handstaged import StoreLog
from holdfast.errors import StagedGone, TimelineEnded
from holdfast.eventlog import EventLog
from holdfast.sinks.taking_back import POINTS
from s3fixture import S3Place, with_faults

SPAWN = multiprocessing.get_context("spawn")  # a forked child of a process that has used the store would hang
RACERS = 8
ROUNDS = 12


def race(url: str) -> list[Any]:
    barrier, results = SPAWN.Barrier(RACERS), SPAWN.Queue()
    racers = [
        SPAWN.Process(target=race_to_append, args=(url, name, ROUNDS, barrier, results)) for name in range(RACERS)
    ]
    for process in racers:
        process.start()
    outcomes = dict(results.get(timeout=600) for _ in racers)
    for process in racers:
        process.join(60)
        assert process.exitcode == 0
    return [outcomes[name] for name in range(RACERS)]


def check(url: str, outcomes: list[Any]) -> None:
    log = EventLog.open(url)
    keys = list(log.keys())
    expected = [f"{n}" if n % 2 else f"{n} by {name}" for n in range(ROUNDS) for name in range(RACERS)]
    assert sorted(keys) == sorted(set(expected)), "each key once"
    held = {each.key: (each.first, each.first + each.count) for each in log.ranges()}  # type: ignore[union-attr]
    for outcome in outcomes:
        assert [(start, stop) for _, start, stop in outcome] == [held[key] for key, _, _ in outcome]
    found = list(log.read())
    assert [event.sequence for event in found] == list(range(log.tail))
    for n in range(ROUNDS):
        entities = {event.entity for event in found if event.entity.startswith(f"{n}:")}
        assert len(entities) == (1 if n % 2 else RACERS)
    winners = [event.entity.partition(":")[2] for event in found if int(event.entity.partition(":")[0]) % 2]
    assert len(set(winners)) > 1, "a race that one side always wins is none"


def test_eight_processes_append_different_keys_and_the_same_key(s3: S3Place) -> None:
    EventLog.create(s3.url())
    check(s3.url(), race(s3.url()))


def test_they_do_although_requests_fail(s3: S3Place, s3_faults: FaultProxy) -> None:
    EventLog.create(s3.url())
    with_faults(s3_faults, 0.01)
    outcomes = race(s3.url())
    s3_faults.clear()
    check(s3.url(), outcomes)


def run(target: Callable[..., None], *arguments: Any) -> bool:
    """Run a process; return whether it was killed."""
    process = SPAWN.Process(target=target, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["put_new", "put_if_absent"])
def test_a_writer_killed_at_any_request(s3: S3Place, call: str, after: bool) -> None:
    """The append is there or not, never a part of it. Repeated under its key, it is there once."""
    log = EventLog.create(s3.url())
    for number in range(2):
        assert run(killed_within, s3.url(), call, after, f"k{number}")
        there = call == "put_if_absent" and after
        assert list(EventLog.open(s3.url()).keys()) == [f"k{n}" for n in range(number + there)]
        with log.writer() as writer:
            repeated = EventLog.open(s3.url()).tail - 2 if there else writer.tail
            segments = staged(log, f"k{number}", 2)
            before = list(EventLog.open(s3.url()).keys())
            found = writer.adopt_as(lambda: None if f"k{number}" in before else segments, f"k{number}")  # noqa: B023
            assert found == (None if there else range(repeated, repeated + 2))
    assert [event.entity for event in EventLog.open(s3.url()).read()] == ["k0", "k0", "k1", "k1"]


def test_a_late_append_under_the_key_of_another_process_is_that_one(s3: S3Place) -> None:
    """Two processes finish the same append. The second has not seen the first: it loses the name, and reads on."""
    log = EventLog.create(s3.url())
    with log.writer() as one, log.writer() as other, log.writer() as third:
        first = staged(log, "a", 2)
        assert one.adopt(first, "a") == range(2)
        assert third.append([]) == range(0, 0)
        third.cancel(1, "in between")
        assert other.adopt(first, "a") == range(2)
    assert EventLog.open(s3.url()).records == 2


def rewound(root: str) -> StoreLog:
    contract = StoreLog()
    contract.root = root
    return contract


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_in_a_rewind_is_finished_by_the_next(s3: S3Place, tmp_path: Path, point: str) -> None:
    contract = rewound(s3.url("logs"))
    sink = contract._filled(None, tmp_path)
    key = contract._key(5)
    handle = contract._stage(None, sink, key, 5).handle
    run(killed_in_a_rewind, contract.root, tmp_path, point, "take back")
    assert contract._seen(None, contract.make(tmp_path)) in ([1, 2, 3, 4], [1, 2])
    try:
        contract.make(tmp_path).commit(key, handle)  # a driver of the old timeline resumes
    except (TimelineEnded, StagedGone):
        assert 5 not in contract._seen(None, contract.make(tmp_path))
    contract.make(tmp_path).take_back(contract.owner, (1, 2), 2)
    assert contract._seen(None, contract.make(tmp_path)) == [1, 2]
    with pytest.raises(TimelineEnded):
        contract.make(tmp_path).commit(key, handle)
    run(killed_in_a_rewind, contract.root, tmp_path, point, "put back")
    contract.make(tmp_path).put_back(contract.owner, (1, 4), 3, 2)
    assert contract._seen(None, contract.make(tmp_path)) in ([1, 2, 3, 4], [1, 2, 3, 4, 5])
    contract._epoch_of(None, tmp_path, (3, 6), 16)
    assert 16 in contract._seen(None, contract.make(tmp_path))


def test_a_driver_killed_in_a_commit_is_finished_by_the_next(s3: S3Place, tmp_path: Path) -> None:
    contract = rewound(s3.url("logs"))
    contract._filled(None, tmp_path)
    assert run(killed_in_a_rewind, contract.root, tmp_path, "committing", "commit")
    assert contract._seen(None, contract.make(tmp_path)) == [1, 2, 3, 4]
    sink = contract._open(None, tmp_path)
    assert sink.inspect(contract.owner, 1).epoch == 4
    sink.abort(contract._key(5, lease=None))
    contract._epoch_of(None, tmp_path, (1, 5), 5)
    assert contract._seen(None, contract.make(tmp_path)) == [1, 2, 3, 4, 5]
