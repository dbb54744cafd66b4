"""The plots of a run, as SVG: a bar for each result with a goal, and a small chart for each curve.

The plots have their own background, so that they are readable on light and dark pages. Everything that is shown by
colour is also shown by text.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from html import escape

from bench.compare import Result
from bench.curves import Curve, curves, sizes
from bench.document import Document
from bench.formatting import floor_of, goal_of, ratio_of, shown, sized, title_of, total, verdict_of
from bench.questions import QUESTIONS

WIDTH, MARGIN = 960, 24
LEFT, RIGHT = 360, 700  # left and right end of the bars
CHART_WIDTH, CHART_HEIGHT, LEGEND = 444, 190, 16  # of one chart, of the box in it, of one line of its legend
FARTHEST = 2.0  # powers of two from 1.0: a longer bar is cut off there and has a gap; its figure gives the true ratio
INK, FAINT, LINE, GROUND = "#1f2933", "#5f6c7b", "#d3dae2", "#ffffff"
COLOURS = {True: "#2a6f97", False: "#c2410c"}
SERIES = (("#2a6f97", ""), ("#7e22ce", "6 3"), ("#4d7c0f", "2 3"), ("#a16207", "8 3 2 3"))
STYLE = (
    "text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; "
    f"font-size: 12px; fill: {INK} }} .small {{ font-size: 11px; fill: {FAINT} }} "
    ".head { font-size: 14px; font-weight: 600 } .title { font-size: 17px; font-weight: 600 }"
)


def plot(document: Document) -> str:
    """Return the plot of the ratios."""
    parts: list[str] = []
    below = 34.0
    parts.append(_text(MARGIN, below, "Ours against theirs, measured in turn", "title"))
    for line in textwrap.wrap(total(document.results), 135):
        below += 19
        parts.append(_text(MARGIN, below, line, "small"))
    drawn, below = _bars(document.results, below + 28)
    return _picture([*parts, *drawn], below, "Ratios of ours to theirs")


def charts(document: Document) -> str:
    """Return the charts of the curves."""
    drawn, below = _charts(document.results, 26)
    return _picture(drawn, below, "How it grows")


def _picture(parts: Sequence[str], below: float, label: str) -> str:
    height = f"{below + MARGIN:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" aria-label="{label}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{GROUND}" stroke="{LINE}"/>',
            *parts,
            "</svg>\n",
        ]
    )


# --- bars ------------------------------------------------------------------------------------------------------------


def _bars(results: Sequence[Result], top: float) -> tuple[list[str], float]:
    """Draw a bar from 1.0 to each ratio, on a scale of powers of two, grouped by question."""
    shown = [each for each in results if each.goal is not None or each.alike]
    if not shown:
        return [], top
    reach = _reach(shown)
    rows: list[str] = []
    below = top + 20
    for question, title in QUESTIONS.items():
        found = [each for each in shown if each.question == question]
        if found:
            rows.append(f'<rect x="{MARGIN}" y="{below:.1f}" width="{RIGHT}" height="20" fill="{GROUND}"/>')
            rows.append(_text(MARGIN, below + 14, title, "head"))
            below += 24
        for each in found:
            drawn, below = _bar(each, below, reach)
            rows += drawn
        below += 10 if found else 0
    return [*_scale(top, below, reach), *rows], below


def _bar(result: Result, top: float, reach: float) -> tuple[list[str], float]:
    names = textwrap.wrap(result.name, 48) or [""]
    better = "" if result.less_is_better else "; rows per second, more is better"
    others = textwrap.wrap(f"against {result.against}{better}", 54)
    one, end = (_across(each, reach) for each in (1.0, result.ratio))
    middle = top + 18
    label = f"{ratio_of(result)}   goal {goal_of(result)}   {verdict_of(result)}"
    if result.goal is None:
        label = f"{ratio_of(result)}   same settings"
    colour = LINE if result.goal is None else COLOURS[bool(result.met)]
    drawn = [
        *(_text(MARGIN, top + 14 + 15 * at, line) for at, line in enumerate(names)),
        *(_text(MARGIN, top + 14 + 15 * len(names) + 14 * at, line, "small") for at, line in enumerate(others)),
        f'<rect x="{min(one, end):.1f}" y="{middle - 7:.1f}" width="{max(abs(end - one), 1.5):.1f}" height="14" '
        f'fill="{colour}"/>',
        *_gap(result.ratio, end, middle, reach),
        *_mark(result, middle, reach),
        f'<text x="{RIGHT + 16}" y="{middle + 4:.1f}" xml:space="preserve">{escape(label)}</text>',
        *([_text(RIGHT + 16, middle + 19, floor_of(result), "small")] if floor_of(result) else []),
    ]
    return drawn, top + 14 + 15 * len(names) + 14 * len(others)


def _mark(result: Result, middle: float, reach: float) -> Iterator[str]:
    """Draw the goal, if there is one."""
    if result.goal is not None:
        goal = _across(result.goal, reach)
        yield (
            f'<path d="M{goal:.1f} {middle - 12:.1f}v24m-4 0h8m0 -24h-8" stroke="{INK}" stroke-width="1.6" '
            'fill="none"/>'
        )


def _gap(ratio: float, end: float, middle: float, reach: float) -> Iterator[str]:
    """Draw a slanted gap near the end of a bar that is longer than the scale."""
    if abs(math.log2(ratio)) > reach:
        near = end + (10 if ratio < 1 else -10)
        yield f'<path d="M{near - 3:.1f} {middle + 9:.1f}l6 -18" stroke="{GROUND}" stroke-width="4"/>'


def _scale(top: float, below: float, reach: float) -> Iterator[str]:
    """Draw the grid lines with their ratios; the line of 1.0 is the strongest."""
    steps = range(-math.ceil(reach), math.ceil(reach) + 1)
    for power in steps:
        at, strong = _across(2.0**power, reach), power == 0
        yield (
            f'<path d="M{at:.1f} {top + 6:.1f}V{below:.1f}" stroke="{INK if strong else LINE}" '
            f'stroke-width="{1.4 if strong else 1}"/>'
        )
        name = "1.0x" if strong else f"{2**power:g}x" if power > 0 else f"1/{2**-power}x"
        yield _text(at, top, name, "small", "middle")
    yield _text(RIGHT + 16, top, "I marks the goal; ≤ less is better, ≥ more is", "small")


def _reach(results: Sequence[Result]) -> float:
    """Return how many powers of two the scale extends to either side."""
    farthest = max(abs(math.log2(value)) for each in results for value in (each.ratio, each.goal or 1.0))
    return float(min(max(math.ceil(farthest), 1), FARTHEST))


def _across(ratio: float, reach: float) -> float:
    """Return the position of a ratio; a ratio beyond the scale is at the edge."""
    power = max(-reach, min(reach, math.log2(ratio)))
    return LEFT + (RIGHT - LEFT) * (power + reach) / (2 * reach)


# --- curves ----------------------------------------------------------------------------------------------------------


def _charts(results: Sequence[Result], top: float) -> tuple[list[str], float]:
    """Draw two charts per row, one for each unit of each result that has curves."""
    found = [(each, group) for each in results for group in _groups(each)]
    if not found:
        return [], top
    parts = [
        _text(MARGIN, top + 8, "How it grows", "title"),
        _text(MARGIN, top + 26, "Both scales are logarithmic; the faint line is linear growth.", "small"),
    ]
    below = top + 44
    for first in range(0, len(found), 2):
        pair = found[first : first + 2]
        for at, (result, group) in enumerate(pair):
            parts += _chart(result, group, MARGIN + at * (WIDTH - 2 * MARGIN - CHART_WIDTH), below)
        below += max(_height(result, group) for result, group in pair)
    return parts, below


def _groups(result: Result) -> list[list[Curve]]:
    """Return the curves of a result that can be drawn, grouped by unit and by the quantity that grows.

    If some have the unit of the result, the others only explain these, and are shown on the page but not drawn.
    """
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves(result):
        points = {size: value for size, value in curve.points.items() if size > 0 and value > 0}
        if len(points) > 1:
            groups.setdefault((curve.unit, curve.by), []).append(Curve(curve.label, curve.by, curve.unit, points))
    own = [group for (unit, _), group in groups.items() if unit == result.unit]
    return own or list(groups.values())


def _headings(result: Result) -> list[str]:
    return textwrap.wrap(title_of(result), 62)


def _height(result: Result, group: Sequence[Curve]) -> float:
    return 16 * len(_headings(result)) + CHART_HEIGHT + 52 + LEGEND * len(group) + 16


def _chart(result: Result, group: Sequence[Curve], left: float, top: float) -> Iterator[str]:
    headings = _headings(result)
    for at, line in enumerate(headings):
        yield _text(left, top + 14 + 16 * at, line, "head" if not at else "")
    box = _Box(group, left + 62, top + 16 * len(headings) + 10)
    yield from box.drawn()
    for at, curve in enumerate(group):
        colour, dashes = SERIES[at % len(SERIES)]
        ends = [box.at(size, value) for size, value in curve.points.items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>' for x, y in ends)
        below = box.top + CHART_HEIGHT + 52 + LEGEND * at
        yield f'<path d="M{box.left:.1f} {below:.1f}h26" stroke="{colour}" stroke-width="2"{dashed}/>'
        last = next(reversed(curve.points.items()))
        name = f"{curve.label or 'ours'}: {shown(last[1], curve.unit)} at {sized(last[0])} {curve.by}".rstrip()
        yield _text(box.left + 34, below + 4, name, "small")


class _Box:
    """The box of a chart: its scales and the positions of points."""

    def __init__(self, group: Sequence[Curve], left: float, top: float) -> None:
        values = [value for curve in group for value in curve.points.values()]
        self.left, self.top = left, top
        self.width = CHART_WIDTH - 62 - 14
        self.sizes = sizes(group)
        self.unit, self.by = group[0].unit, group[0].by
        self.low, self.high = self.sizes[0], self.sizes[-1]
        self.begin = group[0].points[min(group[0].points)]
        self.least, self.most = _decades(min(values), max(*values, self.begin * 10))  # so that the slope is visible

    def at(self, size: float, value: float) -> tuple[float, float]:
        """Return the position of a point."""
        across = math.log(size / self.low) / math.log(self.high / self.low)
        up = math.log(value / self.least) / math.log(self.most / self.least)
        return self.left + self.width * (0.03 + 0.94 * across), self.top + CHART_HEIGHT * (1 - up)

    def drawn(self) -> Iterator[str]:
        """Draw the frame, the scales, and the line of slope one through the first point."""
        yield (
            f'<rect x="{self.left:.1f}" y="{self.top:.1f}" width="{self.width:.1f}" height="{CHART_HEIGHT}" '
            f'fill="none" stroke="{LINE}"/>'
        )
        for power in range(round(math.log10(self.least)), round(math.log10(self.most)) + 1):
            _, y = self.at(self.low, 10.0**power)
            yield f'<path d="M{self.left:.1f} {y:.1f}h{self.width:.1f}" stroke="{LINE}"/>'
            yield _text(self.left - 6, y + 4, shown(10.0**power, self.unit), "small", "end")
        for size in self._named():
            x, _ = self.at(size, self.least)
            yield f'<path d="M{x:.1f} {self.top + CHART_HEIGHT:.1f}v4" stroke="{FAINT}"/>'
            yield _text(x, self.top + CHART_HEIGHT + 17, sized(size), "small", "middle")
        yield _text(self.left + self.width / 2, self.top + CHART_HEIGHT + 33, self.by, "small", "middle")
        yield self._slope()

    def _named(self) -> Iterator[float]:
        """Yield the sizes whose labels fit, from the right, because the last one matters most."""
        free = math.inf
        for size in reversed(self.sizes):
            x, _ = self.at(size, self.least)
            half = 3.4 * len(sized(size)) + 3
            if x + half <= free:
                free = x - half
                yield size

    def _slope(self) -> str:
        """Draw a line of linear growth up to the edge of the box."""
        top = min(self.high, self.low * self.most / self.begin)
        (x, y), (to_x, to_y) = self.at(self.low, self.begin), self.at(top, self.begin * top / self.low)
        return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="{FAINT}" stroke-width="1" opacity="0.6"/>'


def _decades(least: float, most: float) -> tuple[float, float]:
    """Return the powers of ten around some values; at least two."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{anchor}>{escape(text.replace("`", ""))}</text>'
