"""Charts as SVG: strips of columns, bars of phases, lines over time, and the graph of a pipeline.

Each figure has a title for people who cannot see it, and every mark a title with its exact value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast._html import Markup, h, joined

_WIDTH, _HEIGHT = 960, 120


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a strip: its parts from the bottom up, with the class of each."""

    parts: Sequence[tuple[str, float]]
    title: str
    href: str = ""
    mark: str = ""  # the class of a mark above the column; empty: none


def strip(columns: Sequence[Column], label: str, *, unit: str, ends: tuple[str, str] = ("", "")) -> Markup:
    """Return columns next to each other, oldest first. The height of the tallest one is written at the top."""
    if not columns:
        return Markup("")
    top = max((sum(size for _, size in each.parts) for each in columns), default=0.0) or 1.0
    step = _WIDTH / max(len(columns), 30)
    gap = min(step * 0.2, 3.0)
    bars = []
    for number, each in enumerate(columns):
        x, y, marks = number * step, float(_HEIGHT), []
        for kind, size in each.parts:
            high = size / top * (_HEIGHT - 14)
            if size > 0:
                high = max(high, 0.8)
            y -= high
            if size > 0:
                marks.append(_rect(kind, x, y, max(step - gap, 0.6), high))
        if each.mark:
            marks.append(_rect(each.mark, x, max(y - 6, 0), max(step - gap, 0.6), 4))
        body = h("<g><title>{}</title>{}{}</g>", each.title, _rect("hit", x, 0, step, _HEIGHT), joined(marks))
        bars.append(h('<a href="{}">{}</a>', each.href, body) if each.href else body)
    return h(
        '<figure class="chart"><svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '<figcaption><span>{}</span><span class="max">tallest: {}</span><span>{}</span></figcaption></figure>',
        _WIDTH,
        _HEIGHT,
        label,
        joined(bars),
        ends[0],
        unit,
        ends[1],
    )


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


def lines(series: Sequence[Series], label: str, ends: tuple[str, str] = ("", "")) -> Markup:
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
    return h(
        '<figure class="chart"><svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '<figcaption><span>{}</span><span class="legend">{}</span><span>{}</span></figcaption></figure>',
        _WIDTH,
        _HEIGHT,
        label,
        joined(drawn),
        ends[0],
        names,
        ends[1],
    )


# --- the graph ---


@dataclass(frozen=True, slots=True)
class Node:
    """One box of the graph."""

    key: str
    kind: str  # source, stream, log or sink
    title: str
    lines: Sequence[str] = ()
    href: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """One arrow of the graph, with a text on it."""

    start: str
    end: str
    text: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes and arrows."""

    nodes: Sequence[Node] = field(default_factory=tuple)
    edges: Sequence[Edge] = field(default_factory=tuple)


_BOX_W, _BOX_H, _GAP_X, _GAP_Y = 178, 66, 76, 16


def graph(found: Graph) -> Markup:
    """Return the graph from left to right."""
    depths = _depths(found)
    columns: dict[int, list[Node]] = {}
    for node in found.nodes:
        columns.setdefault(depths[node.key], []).append(node)
    tallest = max((len(each) for each in columns.values()), default=0)
    height = max(tallest * (_BOX_H + _GAP_Y) - _GAP_Y + 8, _BOX_H + 8)
    width = len(columns) * (_BOX_W + _GAP_X) - _GAP_X + 4
    places: dict[str, tuple[float, float]] = {}
    for depth, nodes in columns.items():
        used = len(nodes) * (_BOX_H + _GAP_Y) - _GAP_Y
        for number, node in enumerate(nodes):
            places[node.key] = (depth * (_BOX_W + _GAP_X) + 2, (height - used) / 2 + number * (_BOX_H + _GAP_Y))
    arrows = joined(_arrow(each, places) for each in found.edges if each.start in places and each.end in places)
    boxes = joined(_box(each, *places[each.key]) for each in found.nodes)
    return h(
        '<div class="scroll" tabindex="0" role="region" aria-label="Graph"><svg class="graph" viewBox="0 0 {0} {1}" '
        'width="{0}" height="{1}" role="img" aria-label="Sources, streams and sinks"><defs><marker id="tip" '
        'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tip" '
        'd="M0 0L8 4L0 8z"/></marker></defs>{2}{3}</svg></div>',
        int(width),
        int(height),
        arrows,
        boxes,
    )


def _depths(found: Graph) -> dict[str, int]:
    """Return the column of each box: one more than that of the boxes before it. A cycle, which is damage, ends it."""
    before: Mapping[str, list[str]] = {
        node.key: [each.start for each in found.edges if each.end == node.key] for node in found.nodes
    }
    depths = dict.fromkeys(before, 0)
    for _ in range(len(before)):
        changed = False
        for key, starts in before.items():
            deep = max((depths[each] + 1 for each in starts if each in depths), default=0)
            if deep > depths[key] and deep < len(before):
                depths[key], changed = deep, True
        if not changed:
            break
    order = sorted(set(depths.values()))
    return {key: order.index(depth) for key, depth in depths.items()}


def _box(node: Node, x: float, y: float) -> Markup:
    lines_ = joined(
        h('<text class="small" x="{}" y="{}">{}</text>', round(x + 12), round(y + 40 + 16 * number), _short(each, 27))
        for number, each in enumerate(node.lines[:2])
    )
    body = h(
        '<g class="node {} s-{}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="8"/>'
        '<text x="{}" y="{}">{}</text>{}</g>',
        node.kind,
        node.state or "none",
        "\n".join([node.title, *node.lines]),
        round(x),
        round(y),
        _BOX_W,
        _BOX_H,
        round(x + 12),
        round(y + 22),
        _short(node.title, 21),
        lines_,
    )
    return h('<a href="{}">{}</a>', node.href, body) if node.href else body


def _arrow(edge: Edge, places: Mapping[str, tuple[float, float]]) -> Markup:
    (x1, y1), (x2, y2) = places[edge.start], places[edge.end]
    x1, y1, y2 = x1 + _BOX_W, y1 + _BOX_H / 2, y2 + _BOX_H / 2
    middle = (x1 + x2) / 2
    path = f"M{x1:.0f} {y1:.0f}C{middle:.0f} {y1:.0f} {middle:.0f} {y2:.0f} {x2 - 2:.0f} {y2:.0f}"
    text = (
        h('<text class="small edge-text" x="{}" y="{}">{}</text>', round(middle), round((y1 + y2) / 2 - 6), edge.text)
        if edge.text
        else ""
    )
    return h('<g class="edge {}"><path d="{}" marker-end="url(#tip)"/>{}</g>', edge.kind, path, text)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most // 2 - 1] + "…" + text[-(most - most // 2) :]


def _rect(kind: str, x: float, y: float, wide: float, high: float) -> Markup:
    template = '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>'
    return h(template, kind, f"{x:.2f}", f"{y:.2f}", f"{wide:.2f}", f"{high:.2f}")
