"""Eight processes at the same moment, on a store: one winner, no lost update, no false loss, also with faults."""

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the racing processes import their part by name

from storeracers import race_for_slots, race_to_change

from faultproxy import FaultProxy
from holdfast.repository import ObjectRepository
from s3fixture import S3Place, with_faults

RACERS = 8
ROUNDS = [pytest.param(50, id="short"), pytest.param(1_000, id="long")]  # lanes.py leaves the long ones to their lane


def race(racer: Callable[..., None], url: str, rounds: int) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(RACERS), context.Queue()
    racers = [context.Process(target=racer, args=(url, name, rounds, barrier, results)) for name in range(RACERS)]
    for process in racers:
        process.start()
    outcomes = dict(results.get(timeout=800) for _ in racers)
    for process in racers:
        process.join(60)
        assert process.exitcode == 0
    return [outcomes[name] for name in range(RACERS)]


def require_one_winner(outcomes: list[Any], url: str, rounds: int) -> None:
    winners: list[int] = []
    store = ObjectRepository(url)
    for number in range(rounds):
        entries = [outcome[number] for outcome in outcomes]
        won = [name for name, entry in enumerate(entries) if entry[0]]
        assert len(won) == 1, f"round {number}: {won} have won"
        stored = store.read(f"epochs/{number}.1.json").decode()
        assert {entry[1] for entry in entries} == {stored}, "the losers are given the winner's value"
        assert stored in (str(number), f"{number} by {won[0]}")
        winners += won
    print(f"wins by process in {rounds} rounds: {[winners.count(name) for name in range(RACERS)]}")
    assert len(set(winners)) > 1, "a race that one side always wins is none"


@pytest.mark.parametrize("rounds", ROUNDS)
def test_one_of_eight_processes_wins_each_slot(s3: S3Place, rounds: int) -> None:
    require_one_winner(race(race_for_slots, s3.url(), rounds), s3.url(), rounds)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_one_of_eight_processes_wins_each_slot_although_requests_fail(
    s3: S3Place, s3_faults: FaultProxy, rounds: int
) -> None:
    with_faults(s3_faults)
    outcomes = race(race_for_slots, s3.url(), rounds)
    failed = sum(seen.fault is not None for seen in s3_faults.seen)
    print(f"{failed} of {len(s3_faults.seen)} requests failed")
    s3_faults.clear()
    assert failed > rounds
    require_one_winner(outcomes, s3.url(), rounds)


def test_no_change_of_a_record_is_lost_between_eight_processes(s3: S3Place, s3_faults: FaultProxy) -> None:
    with_faults(s3_faults, 0.01)
    rounds = 10
    race(race_to_change, s3.url(), rounds)
    s3_faults.clear()
    text = ObjectRepository(s3.url()).heads.read("record.json").decode()
    assert sorted(text.strip("<>").split("><")) == sorted(f"{a}.{b}" for a in range(RACERS) for b in range(rounds))
