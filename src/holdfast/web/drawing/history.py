"""The views of what happened: runs and recoveries, the ledger of doubt and gaps, the timelines and the history."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast import _figures as figures
from holdfast._html import Markup, h, joined, table
from holdfast.cli.timelines import TimelineLine
from holdfast.cli.verbs.doubt import DoubtsFound
from holdfast.cli.verbs.gaps import GapsFound
from holdfast.cli.verbs.log import Log
from holdfast.repository.activity import KEPT_EVENTS
from holdfast.web.drawing.charts import phase_bar
from holdfast.web.drawing.frame import (
    View,
    age,
    badge,
    cut_off,
    damaged,
    empty,
    facts,
    moment,
    pipeline_view,
    place,
    scroll,
    seconds,
    section,
)
from holdfast.web.reading.runs import EventLine, RunLine, RunsFound

_ROWS = 200
_STEPS = {"build": "st-barrier", "open sinks": "st-acknowledged", "compare": "st-linked", "complete": "st-held"}


def runs_view(slug: str, found: RunsFound, held: int, now_ms: int) -> View:
    """Return the runs of a pipeline: what each start found, what happened, and how each ended.

    `held` is the lease of the process that runs it now; 0: none.
    """
    runs = joined(
        _run(each, now_ms, newest=number == 0, running=each.lease == held) for number, each in enumerate(found.runs)
    )
    errors = [each for each in found.events if each.error or each.next]
    command = f"holdfast runs --last {max(KEPT_EVENTS, len(found.events))}"  # without a number, it shows fewer
    parts = [
        Markup("<h1>Runs</h1>"),
        damaged(found.damaged),
        section("Errors", _errors(errors, now_ms), cut_off(_ROWS, len(errors), command)),
        section("Starts and recoveries", runs or empty("No run is recorded yet.")),
        section("All events", _events(found.events), cut_off(_ROWS, len(found.events), command)),
    ]
    return pipeline_view("Runs", slug, "runs", joined(parts), ("runs", place(slug, "runs")))


def _run(run: RunLine, now_ms: int, *, newest: bool, running: bool) -> Markup:
    if run.ended_ms is not None:
        end = h("{} {} ago: {}", badge("failed" if run.failed else "ended"), age(run.ended_ms, now_ms), run.end)
    elif running:
        end = h("{} it runs", badge("running"))
    elif run.failed:
        end = h("{}", badge("failed"))
    elif newest:
        end = h("{}", badge("no end recorded"))
    else:
        end = h("{} it ended without a trace: it was killed", badge("killed"))
    pairs = [
        ("began", h("{}, {} ago", moment(run.began_ms), age(run.began_ms, now_ms))),
        ("by", run.who or "unknown"),
        ("end", end),
        ("restarts", run.restarts),
    ]
    rows = [_recovery(each) for each in run.recoveries]
    head = ("stream", "found", "took", "steps", "in numbers")
    body = scroll(table(head, rows, right=("took",))) if rows else h('<p class="dim">No recovery is recorded.</p>')
    return h('<article class="run"><h3>Lease {}</h3>{}{}</article>', run.lease, facts(pairs), body)


def _recovery(event: EventLine) -> tuple[object, ...]:
    whole = sum(event.steps.values())
    bars = [(_STEPS.get(step, "st-manifest"), size, f"{step}: {seconds(size)}") for step, size in event.steps.items()]
    numbers = joined((h("<span class=nowrap>{}: {}</span>", n, seconds(s)) for n, s in event.steps.items()), ", ")
    return event.stream, event.text, seconds(event.seconds), phase_bar(bars, whole), numbers


def _errors(events: Sequence[EventLine], now_ms: int) -> Markup:
    if not events:
        return empty("No errors are recorded.")
    lines = (
        h(
            '<li class="problem {}"><p class="what"><b>{}</b> {} {}</p><p>{}</p>{}<p class="dim">{} ago, lease {}</p>'
            "</li>",
            "error" if each.kind in ("failed", "start failed") else "warning",
            each.kind,
            h("stream {}", each.stream) if each.stream else "",
            h("<code>{}</code>", each.error) if each.error else "",
            each.text,
            h('<p class="next"><b>Next:</b> {}</p>', each.next) if each.next else "",
            age(each.at_ms, now_ms),
            each.lease,
        )
        for each in events[:_ROWS]
    )
    return h('<ul class="problems">{}</ul>', joined(lines))


def _events(events: Sequence[EventLine]) -> Markup:
    rows = [
        (moment(each.at_ms), each.lease, badge(each.kind), each.stream, each.text, seconds(each.seconds or None))
        for each in events[:_ROWS]
    ]
    head = ("when (UTC)", "lease", "what", "stream", "text", "took")
    return scroll(table(head, rows, right=("lease", "took"))) if rows else empty("Nothing is recorded yet.")


def ledger_view(slug: str, doubts: DoubtsFound, gaps: GapsFound, now_ms: int, *, advice: str) -> View:
    """Return the ledger: epochs in doubt, and input that did not reach the sinks. `advice`: what to do about them."""
    doubt_rows = [
        (
            each.stream,
            each.epoch,
            each.attempt,
            ", ".join(f"{sink}: {figures.counted(rows, 'row')}" for sink, rows in each.sinks.items()) or "none",
            h("{} ago", age(each.decided_at_ms, now_ms)),
        )
        for each in doubts.doubts
    ]
    doubt_head = ("stream", "epoch", "attempt", "sinks", "decided")
    note = advice if doubts.settling else ""
    do = "" if doubts.settling else h('<p class="next"><b>Next:</b> {}</p>', advice.removeprefix("next: "))
    gap_rows = [
        (
            each.stream,
            each.timeline,
            each.epoch,
            badge(each.kind),
            moment(each.at_ms),
            each.why,
            h("<details><summary>facts</summary><pre>{}</pre></details>", _short_json(each.facts))
            if each.facts
            else "",
        )
        for each in sorted(gaps.gaps, key=lambda each: -each.at_ms)[:_ROWS]
    ]
    gap_head = ("stream", "timeline", "epoch", "kind", "recorded (UTC)", "why", "facts")
    parts = [
        Markup("<h1>Doubt and gaps</h1>"),
        damaged([*doubts.damaged, *gaps.damaged]),
        section(
            "In doubt",
            h("{}{}", scroll(table(doubt_head, doubt_rows, right=("epoch", "attempt"))), do)
            if doubt_rows
            else empty("No epoch is in doubt: every decided epoch is in every sink."),
            note,
        ),
        section(
            "Gaps",
            scroll(table(gap_head, gap_rows, right=("timeline", "epoch")))
            if gap_rows
            else empty("No gaps: all input has reached the sinks."),
            cut_off(_ROWS, len(gaps.gaps), "holdfast gaps"),
        ),
    ]
    return pipeline_view("Doubt and gaps", slug, "ledger", joined(parts), ("ledger", place(slug, "ledger")))


def _short_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)[:20_000]


def timelines_view(slug: str, lines: Sequence[TimelineLine], log: Log, unfinished: str | None) -> View:
    """Return the timelines as a tree, and the history: who did what, when and why."""
    rows = [
        (each.at[:19].replace("T", " "), each.who, each.what, each.why or _short_facts(each.facts))
        for each in reversed(log.entries[-_ROWS:])
    ]
    warning = h('<div class="problem error"><p>{}</p></div>', unfinished) if unfinished else ""
    parts = [
        Markup("<h1>Timelines</h1>"),
        warning,
        section("Tree", _tree(lines, None), "a rewind begins a new timeline; nothing of the old one is changed"),
        section(
            "History",
            scroll(table(("when (UTC)", "who", "what", "why"), rows)) if rows else empty("No history yet."),
            cut_off(_ROWS, len(log.entries), "holdfast log"),
        ),
        damaged(log.damaged),
    ]
    return pipeline_view("Timelines", slug, "timelines", joined(parts), ("timelines", place(slug, "timelines")))


def _short_facts(found: dict[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in found.items() if isinstance(value, str | int))


def _tree(lines: Sequence[TimelineLine], parent: int | None, depth: int = 0) -> Markup:
    if depth > 50:
        return Markup("")
    own = [each for each in lines if each.parent == parent]
    if not own:
        return Markup("")
    items = joined(h("<li>{}{}</li>", _timeline(each), _tree(lines, each.timeline, depth + 1)) for each in own)
    return h('<ul class="tree">{}</ul>', items)


def _timeline(line: TimelineLine) -> Markup:
    word = badge("current") if line.current else badge("abandoned") if line.abandoned else ""
    if line.parent is None:
        return h('<div class="branch"><b>Timeline {}</b> {}</div>', line.timeline, word)
    begun = f"checkpoint {line.checkpoint}" if line.checkpoint else f"the end of timeline {line.parent}"
    bases = ", ".join(f"{stream} after epoch {epoch}" for stream, epoch in line.bases.items())
    return h(
        '<div class="branch"><b>Timeline {}</b> {} <span>from {}: {}</span><p class="dim">{}{}{}</p></div>',
        line.timeline,
        word,
        begun,
        bases,
        moment(line.at_ms),
        f", {line.who}" if line.who else "",
        f": {line.why}" if line.why else "",
    )
