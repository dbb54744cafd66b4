"""What a person reads of the results."""

from __future__ import annotations

from collections.abc import Sequence

from bench.compare import Result
from bench.questions import QUESTIONS


def shown(value: float, unit: str) -> str:
    """Return a figure with a unit that fits its size."""
    if unit != "s":
        return f"{value:,.0f} {unit}"
    for size, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value * 1e9:.3g} ns"


def table(results: Sequence[Result]) -> str:
    """Return the table, question by question."""
    lines = []
    for question, title in QUESTIONS.items():
        found = [each for each in results if each.question == question]
        if found:
            lines += ["", title]
        for each in found:
            ours, theirs = (shown(each.figure(side), each.unit) for side in (each.ours, each.theirs))
            goal = "" if each.goal is None else f"{'≤' if each.unit == 's' else '≥'} {each.goal:.2f}x"
            verdict = {True: "met", False: "MISSED", None: ""}[each.met]
            lines.append(
                f"  {each.name:44}{each.against:40}{ours:>16}{theirs:>16}{each.ratio:>7.2f}x {goal:>8} {verdict}"
            )
    return "\n".join(lines)
