"""The harness: measures two sides in turn and compares them.

Rules:
- Both sides are measured in one run, in turn, so that a slower machine affects both. The order alternates with each
  round.
- Each side is warmed up before its samples count.
- A result keeps every sample. The ratio is that of the medians, or that of the best samples if the text says so.
- A benchmark that cannot run on this machine raises `CannotMeasure`. This counts as a failure; the others continue.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from bench.questions import QUESTIONS

Unit = Literal["s", "rows/s", "B"]
ENOUGH = 20  # samples that a p99 needs
ENOUGH_TO_SPREAD = 5  # samples that a spread needs
DIGITS = 5  # of a stored figure: more than the precision of any clock


class CannotMeasure(Exception):
    """The machine lacks a requirement of a benchmark. The first line of the text names it; the next says what to do."""


@dataclass(frozen=True)
class Floor:
    """A side of the same run that does nothing but what is unavoidable. It shows whether a goal can be reached."""

    name: str
    ours: Sequence[float]  # its samples, in place of ours
    theirs: Sequence[float] = field(default_factory=list)  # empty: those of the result


@dataclass(frozen=True)
class Result:
    """One comparison. The ratio must be at most the goal, for rows per second at least the goal."""

    question: str  # a key of `QUESTIONS`
    name: str
    against: str
    ours: Sequence[float]
    theirs: Sequence[float]
    goal: float | None = None
    unit: Unit = "s"
    alike: bool = False  # both sides have the same settings, so the ratio is the cost of the guarantees
    best: bool = False  # compare the best samples instead of the medians, for very short measurements
    # Further measurements, by name. Names that differ in one number form a curve: "100 epochs", "1,000 epochs". A
    # value has the unit of the result, unless its name ends with another one in brackets: "1,000 epochs, state (B)".
    details: Mapping[str, float] = field(default_factory=dict)
    floor: Floor | None = None

    def __post_init__(self) -> None:
        if self.question not in QUESTIONS:
            raise ValueError(f"no such question: {self.question!r}; bench/questions.py has {', '.join(QUESTIONS)}")

    @property
    def ratio(self) -> float:
        """Our figure divided by theirs."""
        return self.figure(self.ours) / self.figure(self.theirs)

    @property
    def of_floor(self) -> Result | None:
        """The comparison of the floor with the other side; `None` if there is no floor."""
        if self.floor is None:
            return None
        theirs = self.floor.theirs or self.theirs
        return Result(
            self.question,
            f"floor: {self.floor.name}",
            self.against,
            self.floor.ours,
            theirs,
            unit=self.unit,
            best=self.best,
        )

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; `None` if there is none."""
        if self.goal is None:
            return None
        return self.ratio <= self.goal if self.less_is_better else self.ratio >= self.goal

    @property
    def less_is_better(self) -> bool:
        """Whether a small ratio is good."""
        return self.unit != "rows/s"

    @property
    def behind(self) -> bool:
        """Whether our figure is worse than theirs, regardless of the goal."""
        return self.ratio > 1 if self.less_is_better else self.ratio < 1

    def figure(self, samples: Sequence[float]) -> float:
        """The one figure that represents all samples."""
        if self.best:
            return min(samples) if self.less_is_better else max(samples)
        return statistics.median(samples)

    def p99(self, samples: Sequence[float]) -> float | None:
        """The 99th percentile of the samples, worst last; `None` if there are too few."""
        if len(samples) < ENOUGH:
            return None
        return p99(samples) if self.less_is_better else -p99([-each for each in samples])

    def spread(self, samples: Sequence[float]) -> float | None:
        """The interquartile range divided by the median; `None` if there are too few samples."""
        if len(samples) < ENOUGH_TO_SPREAD:
            return None
        low, middle, high = statistics.quantiles(samples, n=4)
        return (high - low) / middle

    def rounded(self) -> Result:
        """Return the result with rounded figures. Everything that is shown or decided is based on these."""
        details = {name: rounded(value) for name, value in self.details.items()}
        floor = self.floor and replace(self.floor, ours=_all(self.floor.ours), theirs=_all(self.floor.theirs))
        return replace(self, ours=_all(self.ours), theirs=_all(self.theirs), details=details, floor=floor)

    def plain(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict that includes the derived figures."""
        sides = {"ours": self.ours, "theirs": self.theirs}
        figures = {
            f"{name}_{kind}": None if value is None else rounded(value)
            for name, samples in sides.items()
            for kind, value in {"figure": self.figure(samples), "p99": self.p99(samples)}.items()
        }
        floor = {"floor_ratio": rounded(self.of_floor.ratio)} if self.of_floor else {}
        return {**asdict(self), **figures, "ratio": rounded(self.ratio), "met": self.met, **floor}


def p99(samples: Sequence[float]) -> float:
    """Return the 99th percentile; with fewer than a hundred samples, this is the largest one."""
    return sorted(samples)[-(-99 * len(samples) // 100) - 1]


def rounded(value: float) -> float:
    """Round a figure to the digits that are stored."""
    return float(f"{value:.{DIGITS}g}")


def _all(samples: Sequence[float]) -> list[float]:
    return [rounded(each) for each in samples]


def timed(act: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def in_turn(
    rounds: int, sides: Mapping[str, Callable[[], float | Sequence[float]]], *, warm_up: int = 1
) -> dict[str, list[float]]:
    """Call each side in turn, and return the samples of each. The warm-up rounds do not count."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-warm_up, rounds):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            samples = sides[name]()
            if number >= 0:
                found[name] += [samples] if isinstance(samples, float | int) else samples
    return found


def calls_in_turn(
    rounds: int, ours: Callable[[], object], theirs: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Time one call of each side, in turn."""
    found = in_turn(rounds, {"ours": lambda: timed(ours), "theirs": lambda: timed(theirs)})
    return found["ours"], found["theirs"]
