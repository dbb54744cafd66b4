"""How figures, goals and verdicts are written, in the terminal, on the page and in the plot."""

from __future__ import annotations

from collections.abc import Sequence

from bench.compare import Result

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}


def shown(value: float, unit: str) -> str:
    """Return a figure with a unit that fits its size."""
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
    """Return the size that a curve has a point at."""
    return f"{size:,.0f}" if size == int(size) else f"{size:g}"


def ratio_of(result: Result) -> str:
    """Return the ratio, with two digits behind the point where that is enough to see it."""
    return f"{result.ratio:.2f}x" if result.ratio >= 0.1 else f"{result.ratio:.2g}x"


def goal_of(result: Result) -> str:
    """Return the goal; nothing where there is none."""
    return "" if result.goal is None else f"{'≤' if result.less_is_better else '≥'} {result.goal:.2f}x"


def verdict_of(result: Result) -> str:
    """Return the verdict; nothing where there is no goal."""
    return {True: "met", False: "missed", None: ""}[result.met]


def total(results: Sequence[Result]) -> str:
    """Return how many goals there are and are met, and name those that are not."""
    verdicts = [each.met for each in results if each.met is not None]
    missed = "; ".join(f"{each.name} ({ratio_of(each)}, {goal_of(each)})" for each in results if each.met is False)
    if not verdicts:
        return "no goals"
    goals = f"{len(verdicts)} goal{'s' * (len(verdicts) != 1)}"
    return f"{goals}, {sum(verdicts)} met{f'. Missed: {missed}' if missed else ''}"


def title_of(result: Result) -> str:
    """Return what grows on the curves of a result: its name, without the size that it ends with."""
    return result.name.rpartition(", ")[0] or result.name
