"""Formats figures, goals and verdicts for the terminal, the page and the plots."""

from __future__ import annotations

from collections.abc import Sequence

from bench.compare import Result

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}


def shown(value: float, unit: str) -> str:
    """Format a figure with a suitable unit."""
    scales = _SCALES.get(unit)
    if not scales:
        return (
            f"{value:,.0f} {unit}".strip()
            if value == int(value) or abs(value) >= 100
            else f"{value:.3g} {unit}".strip()
        )
    size, name = next((each for each in scales if abs(value) >= each[0]), scales[-1])
    scaled = value / size
    return f"{scaled:,.0f} {name}" if abs(scaled) >= 100 else f"{scaled:.3g} {name}"


def sized(size: float) -> str:
    """Format the size at a point of a curve."""
    return f"{size:,.0f}" if size == int(size) else f"{size:g}"


def ratio_of(result: Result) -> str:
    """Format a ratio with two decimals, or with more if it is small, or if it misses its goal by less than that."""
    if result.met is False and f"{result.ratio:.2f}" == f"{result.goal:.2f}":
        return f"{result.ratio:.4f}x"
    return f"{result.ratio:.2f}x" if result.ratio >= 0.1 else f"{result.ratio:.2g}x"


def goal_of(result: Result) -> str:
    """Format the goal; an empty string if there is none."""
    return "" if result.goal is None else f"{'≤' if result.less_is_better else '≥'} {result.goal:.2f}x"


def verdict_of(result: Result) -> str:
    """Return the verdict; an empty string if there is no goal."""
    return {True: "met", False: "missed", None: ""}[result.met]


def floor_of(result: Result) -> str:
    """Return the ratio of the floor of a missed goal; an empty string if the goal is met, or has no floor."""
    return f"floor {ratio_of(result.of_floor)}" if result.met is False and result.of_floor else ""


def total(results: Sequence[Result]) -> str:
    """Return how many goals there are and how many are met, and name the missed ones."""
    verdicts = [each.met for each in results if each.met is not None]
    missed = "; ".join(
        f"{each.name} ({', '.join(filter(None, (ratio_of(each), goal_of(each), floor_of(each))))})"
        for each in results
        if each.met is False
    )
    if not verdicts:
        return "no goals"
    goals = f"{len(verdicts)} goal{'s' * (len(verdicts) != 1)}"
    return f"{goals}, {sum(verdicts)} met{f'. Missed: {missed}' if missed else ''}"


def title_of(result: Result) -> str:
    """Return the title of a result's curves: its name without the size at its end."""
    return result.name.rpartition(", ")[0] or result.name
