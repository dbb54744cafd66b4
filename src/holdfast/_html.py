"""HTML as text. Everything is escaped, except what is marked as HTML already."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """Return a value as HTML text that is also safe in a quoted attribute. Control characters are replaced."""
    if isinstance(value, Markup):
        return value
    text = "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in str(value))
    return Markup(html.escape(text, quote=True))


def h(template: str, *values: object, **named: object) -> Markup:
    """Fill a template as `str.format` does, with each value escaped."""
    safe = {name: escaped(each) for name, each in named.items()}
    return Markup(template.format(*map(escaped, values), **safe))


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Return the parts one after another, each escaped."""
    return Markup(between.join(map(escaped, parts)))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Markup:
    """Return a table. The columns named in `right` contain numbers."""
    kinds = [' class="n"' if name in right else "" for name in head]
    heads = joined(h("<th{} scope=col>{}</th>", Markup(kind), name) for kind, name in zip(kinds, head, strict=True))
    lines = []
    for row in rows:
        cells = joined(h("<td{}>{}</td>", Markup(kind), cell) for kind, cell in zip(kinds, row, strict=True))
        lines.append(h("<tr>{}</tr>", cells))
    return h("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", heads, joined(lines))


def preformatted(text: str) -> Markup:
    """Return lines of text as they are."""
    return h("<pre>{}</pre>", text)
