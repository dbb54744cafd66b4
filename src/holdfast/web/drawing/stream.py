"""The view of one stream: its epochs as a strip of phases, what it did over time, its slowest epochs."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

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
    moment,
    pipeline_view,
    place,
    problems,
    rate,
    scroll,
    seconds,
    section,
)
from holdfast.web.drawing.one_pipeline import activity_chart
from holdfast.web.reading.epochs import PHASES, ActivityPoint, EpochLine, EpochsFound, slowest_first
from holdfast.web.reading.status_lines import Problem, StreamLine

SPANS = {"1h": 3600, "1d": 86_400, "7d": 7 * 86_400}
_SLOWEST = 10  # of a span
ROWS = 120  # of the table, and columns of the strip unless the slowest are looked for


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """What the reader chose to see of a stream: its address has it."""

    span: str = "1h"
    slowest: bool = False
    epoch: int = 0  # shown by itself; 0: none

    def address(self, here: str) -> str:
        """Return the address of this choice."""
        more = "&sort=slowest" if self.slowest else ""
        return f"{here}?span={self.span}{more}" + (f"&epoch={self.epoch}" if self.epoch else "")


def stream_view(
    slug: str, line: StreamLine, found: EpochsFound, choice: StreamChoice, *, chosen: Sequence[EpochLine], now_ms: int
) -> View:
    """Return the view of one stream. `chosen` are the attempts at the chosen epoch."""
    here = place(slug, "streams", line.stream)
    epochs = [each for each in found.epochs if each.verdict == "commit"]
    order = (slowest_first(epochs) if choice.slowest else list(found.epochs))[:ROWS]
    listed = {choice.epoch, *(each.epoch for each in order)}
    head = h("<h1>{} {}</h1>", line.stream, badge(line.state) if line.state else "")
    pairs: list[tuple[str, object]] = [
        ("epoch", h("{}, {} ago", line.epoch, age(line.decided_at_ms, now_ms)) if line.epoch else "none yet"),
        ("rows", f"{figures.number(line.rows)}, {rate(line.rows_per_s)}"),
        *([("dead letters", figures.counted(line.dead_rows, "row"))] if line.dead_rows else []),
        ("lag", _lag(line, now_ms)),
        ("freshness", age(line.fresh_at_ms, now_ms)),
        ("watermark", moment(line.watermark_ms) if line.watermark_ms else "none"),
        ("timeline", line.timeline),
        *([("epoch in doubt", line.in_doubt)] if line.in_doubt else []),
        ("gaps", line.gaps),
    ]
    chart = activity_chart(line.stream, found.activity)
    none = empty("The newest attempts were all aborted." if found.epochs else "No epoch is decided yet.")
    note = f"the last {len(epochs)}; " if epochs else ""
    parts = [
        head,
        facts(pairs),
        damaged(found.damaged),
        _chosen(choice.epoch, chosen, line.in_doubt) if choice.epoch else "",
        section(
            "Epochs",
            epoch_strip(epochs, lambda epoch: _link(here, choice, epoch, listed)) if epochs else none,
            h("{}{}", note, legend()),
        ),
        section("Over time", chart or empty("Nothing is recorded for this span yet."), _spans(here, choice)),
        section(
            "Slowest epochs of this span", _slowest(found.activity, lambda epoch: _link(here, choice, epoch, listed))
        ),
        section(
            "Slowest first" if choice.slowest else "Newest first",
            _table(order, line.in_doubt, choice.epoch),
            _order(here, choice),
        ),
        section("Sinks", _sinks(line, now_ms)),
    ]
    return pipeline_view(line.stream, slug, "", joined(parts), (line.stream, here), path=choice.address(here))


def unreadable_stream_view(slug: str, stream: str, choice: StreamChoice, found: Sequence[Problem], now_ms: int) -> View:
    """Return what is shown of a stream that cannot be read: the problems of its pipeline."""
    here = place(slug, "streams", stream)
    body = h("<h1>{}</h1><p>This stream cannot be read.</p>{}", stream, problems(found, now_ms))
    return pipeline_view(stream, slug, "", body, (stream, here), path=choice.address(here))


def _link(here: str, choice: StreamChoice, epoch: int, listed: Container[int]) -> str:
    """Return the address of an epoch: its row on this view, or a view that shows it by itself."""
    other = "" if epoch in listed else replace(choice, epoch=epoch).address(here)
    return f"{other}#epoch-{epoch}"


def _chosen(epoch: int, attempts: Sequence[EpochLine], in_doubt: int | None) -> Markup:
    text = (
        "The decision of this epoch is not kept: decisions are kept as long as a checkpoint or Spark needs them. "
        'Only the totals per minute remain, under "Over time".'
    )
    body = _table(attempts, in_doubt) if attempts else empty(text)
    return h('<div id="epoch-{}">{}</div>', epoch, section(f"Epoch {epoch}", body))


def _lag(line: StreamLine, now_ms: int) -> Markup:
    text = figures.lag(line.behind, line.unread_files, line.unread_bytes, seconds=line.behind_s)
    return h("{}, counted {} ago", text, age(line.lag_at_ms, now_ms)) if line.lag_at_ms else h("not known")


def legend() -> Markup:
    """Return the colours of the phases."""
    return h(
        '<span class="legend">{}</span>', joined(h('<span class="key ph-{}">{}</span>', each, each) for each in PHASES)
    )


def epoch_strip(epochs: Sequence[EpochLine], link: Callable[[int], str]) -> Markup:
    """Return epochs, given newest first, as columns on a time axis: the oldest is on the left."""
    timed = [each for each in epochs if each.seconds is not None][::-1]
    if not timed:
        return empty("The phases of these epochs are not recorded: an earlier version of Holdfast ran them.")
    columns = [
        Column(
            [(f"ph-{name}", each.phases.get(name, 0.0)) for name in PHASES],
            _told(each),
            link(each.epoch),
            "m-bad" if each.quarantined else "",
            each.decided_at_ms,
        )
        for each in timed
    ]
    tallest = seconds(max(each.seconds or 0.0 for each in timed))
    return strip(columns, "Duration of epochs by phase", unit=tallest)


def _told(each: EpochLine) -> str:
    """Return an epoch in words: its duration by phase, and by sink."""
    words = [
        f"epoch {each.epoch}: {seconds(each.seconds)}, {figures.counted(each.rows, 'row')}",
        ", ".join(f"{name} {seconds(size)}" for name, size in each.phases.items()),
        *(
            f"{sink}: prepare {seconds(each.prepare.get(sink))}, commit {seconds(each.commit.get(sink))}"
            for sink in _sinks_of(each)
        ),
        f"quarantined: {each.quarantined}" if each.quarantined else "",
    ]
    return "\n".join(filter(None, words))


def _sinks_of(each: EpochLine) -> list[str]:
    return list(dict.fromkeys([*each.prepare, *each.commit]))


def _table(epochs: Sequence[EpochLine], in_doubt: int | None, without: int | None = None) -> Markup:
    """Return epochs as a table. A row is the target of the links to its epoch, unless the epoch is shown elsewhere."""
    if not epochs:
        return empty("No epoch is decided yet.")
    whole = max((each.seconds or 0.0 for each in epochs), default=0.0)
    targets = {each.epoch: each for each in reversed(epochs)}  # the first row of each epoch
    rows = [
        (
            _number(each, is_target=without is not None and each.epoch != without and targets.get(each.epoch) is each),
            _verdict(each, in_doubt),
            moment(each.decided_at_ms) if each.decided_at_ms else "-",
            _rows(each),
            seconds(each.seconds),
            phase_bar([(f"ph-{n}", s, f"{n}: {seconds(s)}") for n, s in each.phases.items()], whole),
            joined((h("<span class=nowrap>{}: {}</span>", n, seconds(s)) for n, s in each.phases.items()), ", "),
            joined(_by_sink(each, name, whole) for name in _sinks_of(each)),
        )
        for each in epochs
    ]
    head = ("epoch", "verdict", "decided (UTC)", "rows", "took", "phases", "in numbers", "prepare and commit by sink")
    return scroll(table(head, rows, right=("rows", "took")))


def _number(each: EpochLine, *, is_target: bool) -> Markup:
    number = h('<span id="epoch-{0}">{0}</span>', each.epoch) if is_target else h("{}", each.epoch)
    return h('{} <span class="dim">attempt {}</span>', number, each.attempt) if each.attempt > 1 else number


def _rows(each: EpochLine) -> str:
    dead = f" + {figures.number(each.dead_rows)} dead" if each.dead_rows else ""
    return f"{figures.number(each.rows)}{dead}"


def _verdict(each: EpochLine, in_doubt: int | None) -> Markup:
    """Return the verdict of a decision; an epoch in doubt is decided, but perhaps not in every sink."""
    if each.quarantined:
        return h('{} <span class="dim">{}</span>', badge("quarantined"), each.quarantined)
    if each.verdict != "commit":
        return badge("aborted")
    return badge("in doubt" if each.epoch == in_doubt else "committed")


def _by_sink(each: EpochLine, sink: str, whole: float) -> Markup:
    """Return the part of one sink as a bar and in numbers. Sinks prepare at the same time, so the bars may overlap."""
    sizes = {name: part[sink] for name, part in (("prepare", each.prepare), ("commit", each.commit)) if sink in part}
    bar = phase_bar([(f"ph-{n}", size, f"{sink}, {n}: {seconds(size)}") for n, size in sizes.items()], whole)
    text = " + ".join(map(seconds, sizes.values()))
    return h('<div class="by-sink"><span>{}</span>{}<span class="nowrap">{}</span></div>', sink, bar, text)


def _slowest(activity: Sequence[ActivityPoint], link: Callable[[int], str]) -> Markup:
    """Return the slowest epochs of a span. One is recorded for each minute; long spans have one for several."""
    found = sorted((each for each in activity if each.epochs and each.slowest_epoch), key=lambda each: -each.slowest)
    rows = [
        (
            h('<a href="{}">{}</a>', link(each.slowest_epoch), each.slowest_epoch),
            seconds(each.slowest),
            h("{} to {}", moment(each.start_ms), moment(each.end_ms)),
        )
        for each in found[:_SLOWEST]
    ]
    if not rows:
        return empty("Nothing is recorded for this span yet.")
    return scroll(table(("epoch", "took", "the slowest between (UTC)"), rows, right=("took",)))


def _sinks(line: StreamLine, now_ms: int) -> Markup:
    rows = [
        (name, each.kind or "-", h("<code>{}</code>", each.target), each.epoch or "-", age(each.fresh_at_ms, now_ms))
        for name, each in line.sinks.items()
    ]
    head = ("sink", "kind", "target", "epoch", "freshness")
    return scroll(table(head, rows, right=("epoch",))) if rows else empty("The sinks are not recorded yet.")


def _order(here: str, choice: StreamChoice) -> Markup:
    other = replace(choice, slowest=not choice.slowest)
    return h('<a href="{}">{}</a>', other.address(here), "newest first" if choice.slowest else "slowest first")


def _spans(here: str, choice: StreamChoice) -> Markup:
    links = (
        h(
            '<a href="{}"{}>{}</a>',
            replace(choice, span=each).address(here),
            Markup(" aria-current=true") if each == choice.span else "",
            each,
        )
        for each in SPANS
    )
    return joined(links, " ")
