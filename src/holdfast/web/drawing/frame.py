"""The frame around every view, and the small parts that all views use: times, figures, badges, sections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

from holdfast import _figures as figures
from holdfast._html import Markup, h, joined
from holdfast.web.reading.status_lines import PipelineLine, Problem, RunState

VIEWS = (  # of one pipeline: the last part of the address, and the name
    ("", "Overview"),
    ("checkpoints", "Checkpoints"),
    ("runs", "Runs"),
    ("ledger", "Doubt and gaps"),
    ("timelines", "Timelines"),
)
ACTIONS = ("actions", "Actions")  # only where control is allowed


@dataclass(frozen=True, slots=True)
class View:
    """One view of the page: its title, its address below `/`, its content, and where it stands."""

    title: str
    path: str
    body: Markup
    crumbs: Sequence[tuple[str, str]] = field(default_factory=tuple)  # text and address
    slug: str = ""  # of its pipeline; empty: none
    current: str = ""  # the entry of `VIEWS` that it belongs to
    live: bool = True  # whether its content is replaced when it changes; not while a form is filled in


def document(view: View, *, live: bool = True, control: bool = False) -> str:
    """Return the whole HTML document of a view. With `control`, the actions are among its links."""
    crumbs = joined(h('<li><a href="{}">{}</a></li>', address, text) for text, address in view.crumbs)
    return h(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} - Holdfast</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        'content="light dark"><link rel="icon" href="/static/icon.svg"><link rel="stylesheet" '
        'href="/static/page.css"><script src="/static/page.js" defer></script></head>'
        '<body{live}><a class="skip" href="#main">Skip to content</a><header class="top">'
        '<a class="brand" href="/"><img src="/static/icon.svg" alt="" width="22" height="22"> Holdfast</a>'
        '<nav aria-label="Position"><ol class="crumbs">{crumbs}</ol></nav>'
        '<span id="live" class="live" role="status"></span></header>{tabs}'
        '<main id="main" tabindex="-1">{body}</main></body></html>',
        title=view.title,
        live=h(' data-live="{}"', view.path) if live and view.live else Markup(""),
        crumbs=crumbs,
        tabs=tabs(view.slug, view.current, (*VIEWS, ACTIONS) if control else VIEWS) if view.slug else "",
        body=view.body,
    )


def place(slug: str, *parts: object) -> str:
    """Return the address of a view of a pipeline."""
    return "/p/" + "/".join(quote(str(each), safe="") for each in (slug, *parts))


def tabs(slug: str, current: str, views: Sequence[tuple[str, str]] = VIEWS) -> Markup:
    """Return the navigation between the views of one pipeline."""
    links = (
        h(
            '<a href="{}"{}>{}</a>',
            place(slug, *([part] if part else [])),
            Markup(' aria-current="page"') if part == current else "",
            name,
        )
        for part, name in views
    )
    return h('<nav class="tabs" aria-label="Views">{}</nav>', joined(links))


def pipeline_view(title: str, slug: str, current: str, body: Markup, *more: tuple[str, str], path: str = "") -> View:
    """Return a view of one pipeline."""
    crumbs = [(slug, place(slug)), *more]
    address = path or place(slug, *([current] if current else []))
    return View(title, address, body, crumbs, slug=slug, current=current)


# --- times and figures ---


def iso(at_ms: int) -> str:
    """Return a moment as ISO 8601, or its number if there is no such date."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def moment(at_ms: int) -> Markup:
    """Return a moment as text, in UTC."""
    if not at_ms:
        return Markup('<span class="dim">unknown</span>')
    text = iso(at_ms)
    return h('<time datetime="{}">{}</time>', text, text.replace("T", " ").removesuffix("Z"))


def age(at_ms: int, now_ms: int) -> Markup:
    """Return how long ago a moment is. The page keeps it up to date by itself."""
    if not at_ms:
        return Markup('<span class="dim">-</span>')
    text = figures.span(max(now_ms - at_ms, 0) / 1000)
    return h('<time datetime="{0}" data-at="{1}" title="{0}">{2}</time>', iso(at_ms), at_ms, text)


def seconds(value: float | None) -> str:
    """Return a duration: milliseconds below a second."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.1f} ms"
    return f"{value:.2f} s" if value < 60 else figures.span(value)


def rate(value: float | None) -> str:
    """Return a number of rows per second."""
    if value is None:
        return "-"
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


# --- parts ---


def badge(state: str) -> Markup:
    """Return a state as a coloured word. The word is there for those who do not see the colour."""
    return h('<span class="badge s-{}">{}</span>', state.replace(" ", "-"), state)


def section(title: str, body: object, note: object = "") -> Markup:
    """Return a section with a heading."""
    extra = h('<span class="note">{}</span>', note) if note else ""
    return h("<section><h2>{} {}</h2>{}</section>", title, extra, body)


def scroll(body: object) -> Markup:
    """Return something wide, which scrolls on its own on a narrow screen."""
    return h('<div class="scroll" tabindex="0" role="region" aria-label="Table">{}</div>', body)


def empty(text: str) -> Markup:
    """Return what is shown in place of something that does not exist."""
    return h('<p class="empty">{}</p>', text)


def cut_off(shown: int, total: int, command: str) -> Markup:
    """Return a note that a list is cut off, with the command that shows all of it; nothing if it is not."""
    if total <= shown:
        return Markup("")
    return h("the newest {} of {}: <code>{}</code>", figures.number(shown), figures.number(total), command)


def facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Return names and values."""
    return h('<dl class="facts">{}</dl>', joined(h("<div><dt>{}</dt><dd>{}</dd></div>", *pair) for pair in pairs))


def problems(found: Sequence[Problem], now_ms: int) -> Markup:
    """Return the problems of a pipeline, each with its next step."""
    if not found:
        return Markup("")
    lines = (
        h(
            '<li class="problem {}"><p class="what">{}</p><p class="next"><b>Next:</b> {}</p>{}</li>',
            each.severity,
            each.what,
            each.next,
            h('<p class="dim">{} ago</p>', age(each.at_ms, now_ms)) if each.at_ms else "",
        )
        for each in found
    )
    return h('<ul class="problems" aria-label="Problems">{}</ul>', joined(lines))


def damaged(found: Sequence[str]) -> Markup:
    """Return a note about records that could not be read."""
    if not found:
        return Markup("")
    lines = joined(h("<li>{}</li>", each) for each in found[:20])
    more = h("<li>and {} more</li>", len(found) - 20) if len(found) > 20 else ""
    return h('<div class="problem warning"><p>Records that cannot be read:</p><ul>{}{}</ul></div>', lines, more)


def state_text(line: PipelineLine, now_ms: int) -> Markup:
    """Return the state of a pipeline and since when."""
    holder = line.holder
    if line.state in (RunState.RUNNING, RunState.TROUBLED, RunState.STOPPING) and holder is not None:
        by = f" on request of {holder.stopping}" if holder.stopping else ""
        who = f"process {holder.pid} on {holder.host}, lease {holder.lease}{by}"
        return h("{} for {}: {}", badge(line.state), age(holder.taken_at_ms, now_ms), who)
    since = h(" {} ago", age(line.since_ms, now_ms)) if line.since_ms else ""
    sign = ", last sign of life" if line.state is RunState.KILLED and since else ""
    return h("{}{}{}", badge(line.state), sign, since)
