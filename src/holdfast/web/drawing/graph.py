"""The graph of a pipeline as SVG: boxes from left to right, and arrows between them.

It contains links, so it is a group and not an image: what an image contains is not announced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from holdfast._html import Markup, h, joined


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
    """One arrow of the graph, with texts on it, one below the other."""

    start: str
    end: str
    texts: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes and arrows."""

    nodes: Sequence[Node] = field(default_factory=tuple)
    edges: Sequence[Edge] = field(default_factory=tuple)


_BOX_W, _BOX_H, _GAP_X, _GAP_Y = 178, 66, 124, 16
_NARROW = 760  # a narrower graph is drawn in its size; the style has the same number


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
        '<div class="scroll" tabindex="0" role="region" aria-label="Graph"><svg class="graph{4}" viewBox="0 0 {0} {1}" '
        'width="{0}" height="{1}" role="group" aria-label="Sources, streams and sinks"><defs><marker id="tip" '
        'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tip" '
        'd="M0 0L8 4L0 8z"/></marker></defs>{2}{3}</svg></div>',
        int(width),
        int(height),
        arrows,
        boxes,
        " narrow" if width < _NARROW else "",
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
        h('<text class="small" x="{}" y="{}">{}</text>', round(x + 12), round(y + 40 + 16 * number), _short(each, 25))
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
        _short(node.title, 18),
        lines_,
    )
    return h('<a href="{}">{}</a>', node.href, body) if node.href else body


def _arrow(edge: Edge, places: Mapping[str, tuple[float, float]]) -> Markup:
    (x1, y1), (x2, y2) = places[edge.start], places[edge.end]
    x1, y1, y2 = x1 + _BOX_W, y1 + _BOX_H / 2, y2 + _BOX_H / 2
    middle = (x1 + x2) / 2
    path = f"M{x1:.0f} {y1:.0f}C{middle:.0f} {y1:.0f} {middle:.0f} {y2:.0f} {x2 - 2:.0f} {y2:.0f}"
    x, y = round(middle), round((y1 + y2) / 2)
    texts = joined(
        h('<text class="small edge-text" x="{}" y="{}">{}</text>', x, y - 6 + 20 * number, each)  # above and below it
        for number, each in enumerate(edge.texts)
    )
    return h('<g class="edge {}"><path d="{}" marker-end="url(#tip)"/>{}</g>', edge.kind, path, texts)


def _short(text: str, most: int) -> str:
    """Return a text that is at most about so many Latin letters wide: its beginning and its end."""
    wide = cell_len(text)
    if wide <= most:
        return text
    most = most * len(text) // wide  # other letters are up to twice as wide
    return text[: most // 2 - 1] + "…" + text[-(most - most // 2) :]
