"""The harness: two sides in turn, the best or the median of each, and the ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One comparison: seconds a call of ours and of the floor, and how many times the floor we may take."""

    name: str
    floor_name: str
    ours: float
    floor: float
    goal: float

    @property
    def ratio(self) -> float:
        """How many times the floor we take."""
        return self.ours / self.floor

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.ratio <= self.goal


def best_of(
    rounds: int, calls: int, ours: Callable[[int], object], floor: Callable[[int], object]
) -> tuple[float, float]:
    """Run both sides in turn `rounds` times; each runs its call `calls` times by itself. Returns the best of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, into in zip((ours, floor), times, strict=True):
            start = time.perf_counter()
            side(calls)
            into.append((time.perf_counter() - start) / calls)
    return min(times[0]), min(times[1])


def median_of(rounds: int, ours: Callable[[], object], floor: Callable[[], object]) -> tuple[float, float]:
    """Run both sides in turn, one call each; returns the medians. For what waits on a disk."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, into in zip((ours, floor), times, strict=True):
            start = time.perf_counter()
            side()
            into.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])
