"""The curves in the details of a result: names that differ only in a number, like "100 epochs" and "1,000 epochs"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.compare import Result

_NAME = re.compile(
    r"(?P<before>.*?)(?<![\w.])(?P<number>\d[\d,_]*(?:\.\d+)?)(?![\w%])"
    r"(?P<by>[^,(]*)(?P<after>.*?)(?: \((?P<unit>[^)]+)\))?"
)
_UNIT = re.compile(r"(?P<name>.+?)(?: \((?P<unit>[^)]+)\))?")


@dataclass(frozen=True)
class Curve:
    """One figure at several sizes."""

    label: str  # distinguishes it from the other curves of its result; may be empty
    by: str  # the quantity that grows
    unit: str
    points: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Fact:
    """One figure by itself."""

    name: str
    unit: str
    value: float


def curves(result: Result) -> list[Curve]:
    """Return the curves that have at least two points, each sorted by size."""
    return [curve for curve in _curves(result) if len(curve.points) > 1]


def facts(result: Result) -> list[Fact]:
    """Return the figures that are not on a curve."""
    alone = {(curve.label, curve.by, curve.unit) for curve in _curves(result) if len(curve.points) == 1}
    found = []
    for name, value in result.details.items():
        place = _place(name, result.unit)
        if place is None or place[1] in alone:
            split = _UNIT.fullmatch(name)
            assert split
            found.append(Fact(split["name"], split["unit"] or result.unit, value))
    return found


def sizes(found: Sequence[Curve]) -> list[float]:
    """Return all sizes at which the curves have points."""
    return sorted({size for curve in found for size in curve.points})


def _curves(result: Result) -> list[Curve]:
    found: dict[tuple[str, str, str], Curve] = {}
    for name, value in result.details.items():
        place = _place(name, result.unit)
        if place:
            found.setdefault(place[1], Curve(*place[1])).points[place[0]] = value
    return [Curve(each.label, each.by, each.unit, dict(sorted(each.points.items()))) for each in found.values()]


def _place(name: str, unit: str) -> tuple[float, tuple[str, str, str]] | None:
    """Return the size in a name, and its curve: label, the quantity that grows, unit."""
    found = _NAME.fullmatch(name)
    if not found:
        return None
    before = re.sub(r"\b(at|after|with|by|of)$", "", found["before"].strip(" ,:"))
    label = ", ".join(filter(None, (part.strip(" ,:") for part in (before, found["after"]))))
    return float(re.sub(r"[,_]", "", found["number"])), (label, found["by"].strip(), found["unit"] or unit)
