"""The first view: every pipeline under the roots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast import _figures as figures
from holdfast._html import Markup, h, joined
from holdfast.web.drawing.frame import View, age, badge, empty, place, problems, rate
from holdfast.web.reading.status_lines import PipelineLine, Problem


def pipelines_view(
    found: Mapping[str, PipelineLine], roots: Sequence[str], unreadable: Sequence[Problem], now_ms: int
) -> View:
    """Return the view of all pipelines, by slug: those with errors first. `unreadable` are roots."""
    order = sorted(found.items(), key=lambda each: (not _has_error(each[1]), each[0]))
    cards = joined(_card(slug, line, now_ms) for slug, line in order)
    where = joined((h("<code>{}</code>", each) for each in roots), " ")
    head = h("<h1>Pipelines</h1><p class=dim>{} below {}</p>", figures.counted(len(found), "pipeline"), where)
    none = empty("There is no pipeline here yet. Run one with a root below these folders: it appears here by itself.")
    body = cards or ("" if unreadable else none)
    return View("Pipelines", "/", h('{}{}<div class="cards">{}</div>', head, problems(unreadable, now_ms), body))


def _has_error(line: PipelineLine) -> bool:
    return any(each.severity == "error" for each in line.problems)


def _card(slug: str, line: PipelineLine, now_ms: int) -> Markup:
    fresh = [each.fresh_at_ms for each in line.streams if each.fresh_at_ms]
    rates = [each.rows_per_s for each in line.streams if each.rows_per_s is not None]
    pairs = [
        ("freshness", age(min(fresh, default=0), now_ms)),
        ("rows", rate(sum(rates)) if rates else "-"),
        ("lag", _lag(line)),
        ("checkpoint", age(line.checkpoint_at_ms, now_ms) if line.checkpoint else "none"),
        ("in doubt", len(line.doubts)),
        ("gaps", line.gaps),
    ]
    cells = joined(
        h('<div class="{}"><dt>{}</dt><dd>{}</dd></div>', "bad" if _is_bad(name, value) else "", name, value)
        for name, value in pairs
    )
    worst = line.problems[0] if line.problems else None
    note = (
        h(
            '<p class="worst {}">{} <span class="next"><b>Next:</b> {}</span></p>',
            worst.severity,
            worst.what,
            worst.next,
        )
        if worst
        else ""
    )
    streams = figures.counted(len(line.streams), "stream")
    return h(
        '<article class="card s-{} {}"><h2><a href="{}">{}</a> {}</h2><p class="dim">{}, timeline {}</p>'
        '<dl class="tiles">{}</dl>{}</article>',
        line.state,
        f"has-{worst.severity}" if worst else "",
        place(slug),
        line.pipeline,
        badge(line.state),
        streams,
        line.timeline,
        cells,
        note,
    )


def _is_bad(name: str, value: object) -> bool:
    return name in ("in doubt", "gaps") and bool(value)


def _lag(line: PipelineLine) -> str:
    behind = [each.behind for each in line.streams if each.behind is not None]
    files = [each.unread_files for each in line.streams if each.unread_files is not None]
    oldest = max((each.behind_s for each in line.streams if each.behind_s is not None), default=None)
    return figures.lag(sum(behind) if behind else None, sum(files) if files else None, seconds=oldest)
