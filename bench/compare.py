"""The harness: sides in turn, what each took, and the ratio of the two.

Rules:
- Both sides are measured in one run, in turn, so that a machine that slows down slows both. Every other round the order
  is turned round.
- A side is warmed up before anything counts.
- A result keeps every sample. The ratio is that of the medians, or of the best where the text says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Unit = Literal["s", "rows/s"]


class CannotMeasure(Exception):
    """Something that a benchmark needs is not on this machine; the text says what to do about it."""


@dataclass(frozen=True)
class Result:
    """One comparison. A goal of seconds is met at or below it, one of rows at or above; without one, it only tells."""

    question: str  # which one it answers, as in `QUESTIONS`
    name: str
    against: str
    ours: Sequence[float]
    theirs: Sequence[float]
    goal: float | None = None
    unit: Unit = "s"
    best: bool = False  # compare the best of each, not the medians: for what is too short to be disturbed twice
    told: Mapping[str, float] = field(default_factory=dict)  # what else was measured, by name

    @property
    def ratio(self) -> float:
        """How many times theirs ours is."""
        return self.figure(self.ours) / self.figure(self.theirs)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; `None` where there is none."""
        if self.goal is None:
            return None
        return self.ratio <= self.goal if self.unit == "s" else self.ratio >= self.goal

    def figure(self, samples: Sequence[float]) -> float:
        """The one figure that stands for all samples."""
        if self.best:
            return min(samples) if self.unit == "s" else max(samples)
        return statistics.median(samples)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON takes it, with what follows from it."""
        sides = {"ours": self.ours, "theirs": self.theirs}
        figures = {
            f"{name}_{what}": value
            for name, samples in sides.items()
            for what, value in {"figure": self.figure(samples), "p99": p99(samples)}.items()
        }
        return {**asdict(self), **figures, "ratio": self.ratio, "met": self.met}


def p99(samples: Sequence[float]) -> float:
    """Return the sample that a hundredth of all exceed; the largest where there are fewer than a hundred."""
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * 0.99))]


def timed(act: Callable[[], object]) -> float:
    """Return how long a call took."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def in_turn(
    rounds: int, sides: Mapping[str, Callable[[], float | Sequence[float]]], *, warm_up: int = 1
) -> dict[str, list[float]]:
    """Let each side measure itself, in turn, and return what each said. The first rounds do not count."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-warm_up, rounds):
        for name in list(sides) if number % 2 else reversed(sides):
            told = sides[name]()
            if number >= 0:
                found[name] += [told] if isinstance(told, float | int) else told
    return found


def calls_in_turn(
    rounds: int, ours: Callable[[], object], theirs: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Time one call of each side, in turn."""
    found = in_turn(rounds, {"ours": lambda: timed(ours), "theirs": lambda: timed(theirs)})
    return found["ours"], found["theirs"]
