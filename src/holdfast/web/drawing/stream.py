"""The view of one stream: its epochs as a strip of phases, what it did over time, its slowest epochs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import _figures as figures
from holdfast._html import Markup, h, joined, table
from holdfast.web.drawing.charts import Column, phase_bar, strip
from holdfast.web.drawing.frame import (
    View,
    age,
    badge,
    damaged,
    empty,
    facts,
    iso,
    lag,
    moment,
    pipeline_view,
    place,
    rate,
    scroll,
    seconds,
    section,
)
from holdfast.web.drawing.one_pipeline import activity_chart
from holdfast.web.reading.epochs import PHASES, EpochLine, EpochsFound, slowest_first
from holdfast.web.reading.status import StreamLine

SPANS = {"1h": 3600, "1d": 86_400, "7d": 7 * 86_400}
_ROWS = 100


def stream_view(slug: str, line: StreamLine, found: EpochsFound, *, span: str, slowest: bool, now_ms: int) -> View:
    """Return the view of one stream."""
    here = place(slug, "streams", line.stream)
    epochs = [each for each in found.epochs if each.verdict == "commit"]
    order = slowest_first(epochs) if slowest else list(found.epochs)
    head = h("<h1>{} {}</h1>", line.stream, badge(line.state) if line.state else "")
    pairs: list[tuple[str, object]] = [
        ("epoch", h("{}, {} ago", line.epoch, age(line.decided_at_ms, now_ms)) if line.epoch else "none yet"),
        ("rows", f"{figures.number(line.rows)}, {rate(line.rows_per_s)}"),
        *([("dead letters", figures.counted(line.dead_rows, "row"))] if line.dead_rows else []),
        ("lag", _lag(line, now_ms)),
        ("freshness", age(line.fresh_at_ms, now_ms)),
        ("watermark", moment(line.watermark_ms) if line.watermark_ms else "none"),
        ("timeline", line.timeline),
        ("gaps", line.gaps),
    ]
    sort = _choice(here, span, slowest=slowest)
    chart = activity_chart(line.stream, found.activity)
    note = f"the last {len(epochs)}; " if epochs else ""
    parts = [
        head,
        facts(pairs),
        damaged(found.damaged),
        section("Epochs", epoch_strip(epochs, here), h("{}{}", note, legend())),
        section(
            "Over time", chart or empty("Nothing is recorded for this span yet."), _spans(here, span, slowest=slowest)
        ),
        section("Slowest first" if slowest else "Newest first", _table(order[:_ROWS]), sort),
        section("Sinks", _sinks(line, now_ms)),
    ]
    path = f"{here}?span={span}" + ("&sort=slowest" if slowest else "")
    return pipeline_view(line.stream, slug, "", joined(parts), (line.stream, here), path=path)


def _lag(line: StreamLine, now_ms: int) -> Markup:
    text = lag(line.behind, line.unread_files, line.unread_bytes)
    return h("{}, counted {} ago", text, age(line.lag_at_ms, now_ms)) if line.lag_at_ms else h("not known")


def legend() -> Markup:
    """Return the colours of the phases."""
    return h(
        '<span class="legend">{}</span>', joined(h('<span class="key ph-{}">{}</span>', each, each) for each in PHASES)
    )


def epoch_strip(epochs: Sequence[EpochLine], here: str) -> Markup:
    """Return epochs, given newest first, as columns on a time axis: the oldest is on the left."""
    timed = [each for each in epochs if each.seconds is not None][::-1]
    if not timed:
        return empty("The phases of these epochs are not recorded: an earlier version of Holdfast ran them.")
    columns = [
        Column(
            [(f"ph-{name}", each.phases.get(name, 0.0)) for name in PHASES],
            f"epoch {each.epoch}: {seconds(each.seconds)}, {figures.counted(each.rows, 'row')}"
            + (f"; quarantined: {each.quarantined}" if each.quarantined else ""),
            f"{here}#epoch-{each.epoch}",
            "m-bad" if each.quarantined else "",
        )
        for each in timed
    ]
    tallest = seconds(max(each.seconds or 0.0 for each in timed))
    ends = (iso(timed[0].decided_at_ms)[5:19].replace("T", " "), iso(timed[-1].decided_at_ms)[5:19].replace("T", " "))
    return strip(columns, "Duration of epochs by phase", unit=tallest, ends=ends)


def _table(epochs: Sequence[EpochLine]) -> Markup:
    if not epochs:
        return empty("No epoch is decided yet.")
    whole = max((each.seconds or 0.0 for each in epochs), default=0.0)
    rows = [
        (
            h('<span id="epoch-{0}">{0}</span>', each.epoch)
            if each.attempt == 1
            else h('<span id="epoch-{0}">{0}</span> <span class="dim">attempt {1}</span>', each.epoch, each.attempt),
            _verdict(each),
            moment(each.decided_at_ms) if each.decided_at_ms else "-",
            _rows(each),
            seconds(each.seconds),
            phase_bar([(f"ph-{n}", s, f"{n}: {seconds(s)}") for n, s in each.phases.items()], whole),
            joined((h("<span class=nowrap>{}: {}</span>", n, seconds(s)) for n, s in each.phases.items()), ", "),
            _by_sink(each),
        )
        for each in epochs
    ]
    head = ("epoch", "verdict", "decided (UTC)", "rows", "took", "phases", "in numbers", "by sink")
    return scroll(table(head, rows, right=("rows", "took")))


def _rows(each: EpochLine) -> str:
    dead = f" + {figures.number(each.dead_rows)} dead" if each.dead_rows else ""
    return f"{figures.number(each.rows)}{dead}"


def _verdict(each: EpochLine) -> Markup:
    if each.quarantined:
        return h('{} <span class="dim">{}</span>', badge("quarantined"), each.quarantined)
    return badge("committed" if each.verdict == "commit" else "aborted")


def _by_sink(each: EpochLine) -> Markup:
    names = dict.fromkeys([*each.prepare, *each.commit])
    return joined(
        (
            h(
                "<span class=nowrap>{}: {} + {}</span>",
                name,
                seconds(each.prepare.get(name)),
                seconds(each.commit.get(name)),
            )
            for name in names
        ),
        ", ",
    )


def _sinks(line: StreamLine, now_ms: int) -> Markup:
    rows = [
        (name, each.kind or "-", h("<code>{}</code>", each.target), each.epoch or "-", age(each.fresh_at_ms, now_ms))
        for name, each in line.sinks.items()
    ]
    head = ("sink", "kind", "target", "epoch", "freshness")
    return scroll(table(head, rows, right=("epoch",))) if rows else empty("The sinks are not recorded yet.")


def _choice(here: str, span: str, *, slowest: bool) -> Markup:
    address = f"{here}?span={span}" + ("" if slowest else "&sort=slowest")
    return h('<a href="{}">{}</a>', address, "newest first" if slowest else "slowest first")


def _spans(here: str, span: str, *, slowest: bool) -> Markup:
    more = "&sort=slowest" if slowest else ""
    return joined(
        (
            h(
                '<a href="{}?span={}{}"{}>{}</a>',
                here,
                each,
                more,
                Markup(" aria-current=true") if each == span else "",
                each,
            )
            for each in SPANS
        ),
        " ",
    )
