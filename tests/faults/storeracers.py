"""What the processes do that race for slots on a store. Each is long-lived and takes part in every round."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier
from typing import Any

from holdfast.repository import ObjectRepository


def race_for_slots(url: str, name: int, rounds: int, barrier: Barrier, results: Any) -> None:
    """Put a value into the slot of each round at the same moment as the others; every other round, all put the same."""
    repository = ObjectRepository(url)
    outcome = []
    for number in range(rounds):
        value = f"{number}" if number % 2 else f"{number} by {name}"
        barrier.wait(120)
        put = repository.put_if_absent(f"epochs/{number}.1.json", value.encode())
        outcome.append((put.won, put.data.decode()))
    results.put((name, outcome))


def race_to_change(url: str, name: int, rounds: int, barrier: Barrier, results: Any) -> None:
    """Add one's name to a record in each round, at the same moment as the others."""
    heads = ObjectRepository(url).heads
    for number in range(rounds):
        mark = f"<{name}.{number}>".encode()
        barrier.wait(120)
        heads.change("record.json", lambda old, mark=mark: old if old and mark in old else (old or b"") + mark)
    results.put((name, []))
