"""Charts as SVG: strips of columns, bars of phases, and lines over time.

Rules:
- Each figure has a title for people who cannot see it, and every mark a title with its exact value.
- A strip with links is a group, not an image: what an image contains is not announced. It is one stop of the keyboard,
  at its newest column; the script of the page moves inside with the arrow keys. The table of the same view has the same
  content for readers without a script.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast import _figures as figures
from holdfast._html import Markup, h, joined
from holdfast.web.drawing.frame import iso

_WIDTH, _HEIGHT = 960, 120
_FEWEST = 30  # columns that fill the width of a strip; fewer leave a part of it empty
_LONG, _BREAK = 6, 4  # a pause of so many usual distances is a break, which is so many columns wide
_LABELS, _APART, _EDGE = 4, 0.22, 0.12  # times below a chart, and their distances as shares of its width


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a strip: its parts from the bottom up, with the class of each."""

    parts: Sequence[tuple[str, float]]
    title: str
    href: str = ""
    mark: str = ""  # the class of a mark above the column; empty: none
    at_ms: int = 0  # its moment on the time axis; 0: not known


def strip(columns: Sequence[Column], label: str, *, unit: str, name: str = "", top: float = 0.0) -> Markup:
    """Return columns on a time axis, oldest first.

    `unit` is the height of the tallest one as text. Strips that are compared have the same `top`, and a `name` each.
    """
    if not columns:
        return Markup("")
    top = top or max(sum(size for _, size in each.parts) for each in columns) or 1.0
    axis = _TimeAxis.of([each.at_ms for each in columns])
    stop = max((number for number, each in enumerate(columns) if each.href), default=-1)
    drawn = [
        _column(each, axis.lefts[number], axis.step, top, is_stop=number == stop) for number, each in enumerate(columns)
    ]
    pauses = [
        h("<g><title>nothing for {}</title>{}</g>", figures.span(length / 1000), _rect("pause", left, 0, wide, _HEIGHT))
        for left, wide, length in axis.pauses
    ]
    times = [each.at_ms for each in columns if each.at_ms]
    longest = max((length for _, _, length in axis.pauses), default=0)
    caption = [
        name,
        f"{_range(times[0], times[-1])} UTC" if times and not name else "",
        h('<span class="key pause">longest pause: {}</span>', figures.span(longest / 1000)) if longest else "",
        f"tallest: {unit}",
    ]
    focused = Markup('<span class="at" role="status"></span>') if stop >= 0 else ""
    return h(
        '<figure class="chart{}"><svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="{}" aria-label="{}">{}{}'
        "</svg>{}<figcaption>{}{}</figcaption></figure>",
        " small" if name else "",
        _WIDTH,
        _HEIGHT,
        "group" if stop >= 0 else "img",
        label,
        joined(pauses),
        joined(drawn),
        "" if name else axis.labels([each.at_ms for each in columns]),
        joined(h("<span>{}</span>", each) for each in caption if each),
        focused,
    )


def _column(column: Column, x: float, step: float, top: float, *, is_stop: bool) -> Markup:
    wide, y, marks = max(step - min(step * 0.2, 3.0), 0.6), float(_HEIGHT), []
    for kind, size in column.parts:
        if size > 0:
            high = max(size / top * (_HEIGHT - 14), 0.8)
            y -= high
            marks.append(_rect(kind, x, y, wide, high))
    if column.mark:
        marks.append(_rect(column.mark, x, max(y - 6, 0), wide, 4))
    body = h("<title>{}</title>{}{}", column.title, _rect("hit", x, 0, step, _HEIGHT), joined(marks))
    if not column.href:
        return h("<g>{}</g>", body)
    return h('<a href="{}" tabindex="{}">{}</a>', column.href, 0 if is_stop else -1, body)


@dataclass(frozen=True, slots=True)
class _TimeAxis:
    """Where columns stand. Their distances are those of their times, in units of the usual distance.

    A pause that is much longer than usual is shown as a break, because it would squeeze all columns. Columns that
    follow each other faster than usual are moved apart, because they would cover each other.
    """

    lefts: Sequence[float]
    step: float  # the width of a column
    pauses: Sequence[tuple[float, float, int]]  # left, width and milliseconds of each break

    @classmethod
    def of(cls, times: Sequence[int]) -> _TimeAxis:
        lengths = [max(b - a, 0) if a and b else 0 for a, b in pairwise(times)]
        usual = statistics.median([each for each in lengths if each] or [1])
        units = [0.0]
        for each in lengths:
            share = each / usual
            units.append(units[-1] + (_BREAK if share > _LONG else max(share, 1.0)))
        step = _WIDTH / max(units[-1] + 1, _FEWEST)
        lefts = [each * step for each in units]
        pauses = [
            (lefts[number] + step, (_BREAK - 1) * step, each)
            for number, each in enumerate(lengths)
            if each / usual > _LONG
        ]
        return cls(lefts, step, pauses)

    def labels(self, times: Sequence[int]) -> Markup:
        """Return the times of a few columns below them."""
        last, chosen = self.lefts[-1], dict[int, float]()
        for part in range(_LABELS):
            wanted = last * part / (_LABELS - 1)
            number = min(range(len(times)), key=lambda each: abs(self.lefts[each] - wanted))
            share = (self.lefts[number] + self.step / 2) / _WIDTH
            if times[number] and all(abs(share - each) > _APART for each in chosen.values()):
                chosen[number] = share
        known = [each for each in times if each]
        return _labels(
            [(share, times[number]) for number, share in chosen.items()], known[-1] - known[0] if known else 0
        )


def _labels(marks: Sequence[tuple[float, int]], span_ms: int) -> Markup:
    """Return times below a chart, each at its share of the width."""
    part = slice(11, 19) if span_ms < 900_000 else slice(11, 16) if span_ms < 129_600_000 else slice(5, 16)
    texts = (
        h(
            '<text x="{}%" y="13" class="{}">{}</text>',
            f"{share * 100:.2f}",
            "first" if share < _EDGE else "last" if share > 1 - _EDGE else "",
            iso(at_ms)[part].replace("T", " "),
        )
        for share, at_ms in marks
    )
    return h('<svg class="axis" aria-hidden="true">{}</svg>', joined(texts))


def _range(first_ms: int, last_ms: int) -> str:
    """Return two moments; the date of the second one only if it differs."""
    first, last = (iso(each).removesuffix("Z").replace("T", " ") for each in (first_ms, last_ms))
    return f"{first} to {last.removeprefix(first[:11])}" if first != last else first


def phase_bar(parts: Sequence[tuple[str, float, str]], whole: float) -> Markup:
    """Return one horizontal bar: class, length and title of each part; `whole` is the length of the full width."""
    x, marks = 0.0, []
    for kind, size, title in parts:
        wide = size / whole * 300 if whole else 0.0
        marks.append(h("<g><title>{}</title>{}</g>", title, _rect(kind, x, 2, max(wide, 0.5), 10)))
        x += wide
    return h(
        '<svg class="bar" viewBox="0 0 300 14" preserveAspectRatio="none" aria-hidden="true">{}</svg>', joined(marks)
    )


def spans(rows: Sequence[tuple[str, Sequence[tuple[str, float, float, str]]]], whole: float) -> Markup:
    """Return rows of bars on one axis: name, then class, start, end and title of each bar."""
    height, left = 20 * len(rows) + 4, 150
    marks = []
    for number, (name, bars) in enumerate(rows):
        y = 20 * number + 4
        marks.append(h('<text x="0" y="{}">{}</text>', y + 11, name if len(name) <= 22 else name[:21] + "…"))
        for kind, start, end, title in bars:
            x = left + start / whole * (700 - left) if whole else left
            wide = max((end - start) / whole * (700 - left) if whole else 0.0, 1.0)
            marks.append(h("<g><title>{}</title>{}</g>", title, _rect(kind, x, y, wide, 14)))
    return h('<svg class="spans" viewBox="0 0 700 {}" role="img" aria-label="Phases">{}</svg>', height, joined(marks))


@dataclass(frozen=True, slots=True)
class Series:
    """One line over time: points of (milliseconds, value)."""

    kind: str
    name: str
    points: Sequence[tuple[int, float]]
    text: str = ""  # its greatest value, as text


def lines(series: Sequence[Series], label: str) -> Markup:
    """Return lines over time, each on a scale of its own; the greatest value of each is in the legend."""
    every = [at for each in series for at, _ in each.points]
    if len(every) < 2:
        return Markup("")
    first, last = min(every), max(every)
    wide = max(last - first, 1)
    drawn = []
    for each in series:
        top = max((value for _, value in each.points), default=0.0) or 1.0
        path = " ".join(
            f"{(at - first) / wide * _WIDTH:.1f},{_HEIGHT - 4 - value / top * (_HEIGHT - 14):.1f}"
            for at, value in each.points
        )
        drawn.append(
            h('<polyline class="line {}" points="{}"><title>{}</title></polyline>', each.kind, path, each.name)
        )
    names = joined(
        h('<span class="key {}">{}{}</span>', each.kind, each.name, f", at most {each.text}" if each.text else "")
        for each in series
    )
    shares = [part / (_LABELS - 1) for part in range(_LABELS)]
    return h(
        '<figure class="chart"><svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '{}<figcaption><span class="legend">{}</span><span>{} UTC</span></figcaption></figure>',
        _WIDTH,
        _HEIGHT,
        label,
        joined(drawn),
        _labels([(share, int(first + share * wide)) for share in shares], last - first),
        names,
        _range(first, last),
    )


def _rect(kind: str, x: float, y: float, wide: float, high: float) -> Markup:
    template = '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>'
    return h(template, kind, f"{x:.2f}", f"{y:.2f}", f"{wide:.2f}", f"{high:.2f}")
