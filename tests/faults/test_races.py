"""Two processes at the same moment: one winner, and the loser knows what the winner did."""

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the racing processes import their part by name

from racers import race_for_leases, race_for_slots

ROUNDS = 1_000


def race(racer: Callable[..., None], root: Path) -> tuple[list[Any], list[Any]]:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    racers = [
        context.Process(target=racer, args=(str(root), name, ROUNDS, barrier, results)) for name in ("left", "right")
    ]
    for process in racers:
        process.start()
    outcomes = dict(results.get(timeout=600) for _ in racers)
    for process in racers:
        process.join(30)
        assert process.exitcode == 0
    return outcomes["left"], outcomes["right"]


def test_put_if_absent_has_one_winner_in_each_of_1_000_rounds(tmp_path: Path) -> None:
    left, right = race(race_for_slots, tmp_path)
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        assert one[0] is not other[0]
        assert one[1] == other[1] == f"{'left' if one[0] else 'right'} {number}"
    wins = sum(won for won, _ in left)
    print(f"left won {wins} of {ROUNDS}")
    assert 0 < wins < ROUNDS, "a race that one side always wins is none"
    assert not list(tmp_path.rglob(".tmp-*"))


def test_the_lease_has_one_winner_in_each_of_1_000_rounds(tmp_path: Path) -> None:
    left, right = race(race_for_leases, tmp_path)
    tokens, unnamed = set(), 0  # a winner that is preempted between its lock and its name is unnamed
    for one, other in zip(left, right, strict=True):
        assert sorted((one[0], other[0])) == ["lost", "won"]
        won, lost = (one, other) if one[0] == "won" else (other, one)
        assert lost[1] in (won[1], 0), "the loser is told the winner's pid"
        unnamed += not lost[1]
        assert one[2] == other[2], "the loser reads the winner's record"
        tokens.add(one[2])
    assert len(tokens) == ROUNDS
    assert unnamed < ROUNDS // 20
    wins = sum(each[0] == "won" for each in left)
    print(f"left won {wins} of {ROUNDS}")
    assert 0 < wins < ROUNDS, "a race that one side always wins is none"
