"""The harness: sides in turn, what each took, and the ratio of the two.

Rules:
- Both sides are measured in one run, in turn, so that a machine that slows down slows both. Every other round the order
  is turned round.
- A side is warmed up before anything counts.
- A result keeps every sample. The ratio is that of the medians, or of the best where the text says so.
- What cannot be measured here says so by `CannotMeasure`: it counts as a failure, and the others go on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from bench.questions import QUESTIONS

Unit = Literal["s", "rows/s"]
ENOUGH = 20  # samples, for their p99 to be worth a look
ENOUGH_TO_SPREAD = 5
DIGITS = 5  # of a figure, as it is kept: more than any clock is good for


class CannotMeasure(Exception):
    """A machine lacks what a benchmark needs. The text's first line says what, without paths; the next, what to do."""


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
    alike: bool = False  # both sides have the same settings: what differs is the price of what we promise
    best: bool = False  # compare the best of each, not the medians: for what is too short to be disturbed twice
    # What else was measured, by name. Names that differ by one number are a curve: "100 epochs", "1,000 epochs". A
    # value is of the result's own unit, unless its name ends with another in brackets: "1,000 epochs, state (B)".
    told: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.question not in QUESTIONS:
            raise ValueError(f"no such question: {self.question!r}; bench/questions.py has {', '.join(QUESTIONS)}")

    @property
    def ratio(self) -> float:
        """How many times theirs ours is."""
        return self.figure(self.ours) / self.figure(self.theirs)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; `None` where there is none."""
        if self.goal is None:
            return None
        return self.ratio <= self.goal if self.less_is_better else self.ratio >= self.goal

    @property
    def less_is_better(self) -> bool:
        """Whether a small ratio is a good one."""
        return self.unit == "s"

    @property
    def behind(self) -> bool:
        """Whether ours is worse than theirs, goal or no goal."""
        return self.ratio > 1 if self.less_is_better else self.ratio < 1

    def figure(self, samples: Sequence[float]) -> float:
        """The one figure that stands for all samples."""
        if self.best:
            return min(samples) if self.less_is_better else max(samples)
        return statistics.median(samples)

    def p99(self, samples: Sequence[float]) -> float | None:
        """What all but a hundredth of the samples are as good as; `None` where there are too few to say."""
        if len(samples) < ENOUGH:
            return None
        return p99(samples) if self.less_is_better else -p99([-each for each in samples])

    def spread(self, samples: Sequence[float]) -> float | None:
        """How far apart the quartiles of the samples are, in parts of their median; `None` where they are too few."""
        if len(samples) < ENOUGH_TO_SPREAD:
            return None
        low, middle, high = statistics.quantiles(samples, n=4)
        return (high - low) / middle

    def rounded(self) -> Result:
        """Return it with as many digits as are kept: whatever is shown or decided follows from these."""
        ours, theirs = ([rounded(each) for each in side] for side in (self.ours, self.theirs))
        told = {name: rounded(value) for name, value in self.told.items()}
        return replace(self, ours=ours, theirs=theirs, told=told)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON takes it, with what follows from it."""
        sides = {"ours": self.ours, "theirs": self.theirs}
        figures = {
            f"{name}_{what}": None if value is None else rounded(value)
            for name, samples in sides.items()
            for what, value in {"figure": self.figure(samples), "p99": self.p99(samples)}.items()
        }
        return {**asdict(self), **figures, "ratio": rounded(self.ratio), "met": self.met}


def p99(samples: Sequence[float]) -> float:
    """Return the sample that a hundredth of all exceed; the largest where there are fewer than a hundred."""
    return sorted(samples)[-(-99 * len(samples) // 100) - 1]


def rounded(value: float) -> float:
    """Return a figure with as many digits as are kept."""
    return float(f"{value:.{DIGITS}g}")


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
        for name in list(sides)[:: 1 if number % 2 else -1]:
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
