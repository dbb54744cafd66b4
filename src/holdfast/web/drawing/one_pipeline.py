"""The view of one pipeline: its problems, its graph, its streams, its last checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast import _figures as figures
from holdfast._html import Markup, h, table
from holdfast.repository import Summary
from holdfast.repository.verdicts import LastVerify
from holdfast.web.drawing.charts import Series, lines
from holdfast.web.drawing.checkpoints import checkpoint_strip
from holdfast.web.drawing.frame import (
    View,
    age,
    badge,
    empty,
    facts,
    pipeline_view,
    place,
    problems,
    rate,
    scroll,
    seconds,
    section,
    state_text,
)
from holdfast.web.drawing.graph import Edge, Graph, Node, graph
from holdfast.web.reading.epochs import ActivityPoint
from holdfast.web.reading.status_lines import PipelineLine, StreamLine


def pipeline_overview(
    slug: str,
    line: PipelineLine,
    activity: Mapping[str, Sequence[ActivityPoint]],
    checkpoints: Sequence[Summary],
    *,
    verdicts: Mapping[str, LastVerify],
    now_ms: int,
) -> View:
    """Return the overview of one pipeline."""
    head = h("<h1>{}</h1><p>{}</p>", line.pipeline, state_text(line, now_ms))
    pairs: list[tuple[str, object]] = [
        ("repository", h("<code>{}</code>", line.where)),
        ("timeline", line.timeline),
        ("last checkpoint", _last_checkpoint(slug, line, now_ms)),
        ("checkpoints", _counts(line)),
        ("restarts in the last run", line.restarts),
        ("epochs in doubt", len(line.doubts)),
        ("gaps", line.gaps),
    ]
    drawn = graph(graph_of(slug, line)) if line.streams else empty("No stream has decided an epoch yet.")
    charts = [activity_chart(name, found) for name, found in activity.items()]
    parts = [
        head,
        problems(line.problems, now_ms),
        section(
            "Graph", drawn, "sources, streams, logs and sinks; with rows per second, and the lag before each stream"
        ),
        section("Streams", _streams(slug, line.streams, now_ms)),
        section(
            "Checkpoints",
            checkpoint_strip(slug, checkpoints, verdicts),
            h('<a href="{}">all</a>', place(slug, "checkpoints")),
        ),
        section("Last hours", Markup("".join(charts))) if any(charts) else "",
        section("Facts", facts(pairs)),
    ]
    return pipeline_view(line.pipeline, slug, "", Markup("".join(map(str, parts))))


def _last_checkpoint(slug: str, line: PipelineLine, now_ms: int) -> Markup | str:
    if line.checkpoint is None:
        return "none"
    address = place(slug, "checkpoints", line.checkpoint)
    took = f", took {seconds(line.checkpoint_s)}" if line.checkpoint_s is not None else ""
    size = figures.size(line.checkpoint_bytes)
    return h(
        '<a href="{}">{}</a>, {} ago, {}{}', address, line.checkpoint, age(line.checkpoint_at_ms, now_ms), size, took
    )


def _counts(line: PipelineLine) -> str:
    text = f"{figures.number(line.checkpoints)} restorable"
    text += f", {line.checkpoints_damaged} damaged or unsound" if line.checkpoints_damaged else ""
    return text + (f", {line.checkpoints_failed} failed" if line.checkpoints_failed else "")


def _streams(slug: str, streams: Sequence[StreamLine], now_ms: int) -> Markup:
    rows = [
        (
            h('<a href="{}">{}</a>', place(slug, "streams", each.stream), each.stream),
            badge(each.state) if each.state else "-",
            each.epoch or "-",
            age(each.decided_at_ms, now_ms),
            figures.number(each.rows),
            rate(each.rows_per_s),
            figures.lag(each.behind, each.unread_files, each.unread_bytes, seconds=each.behind_s),
            age(each.fresh_at_ms, now_ms),
            seconds(each.epoch_s),
            each.restarts,
        )
        for each in streams
    ]
    head = ("stream", "state", "epoch", "decided", "rows", "rate", "lag", "freshness", "last epoch", "restarts")
    right = ("epoch", "rows", "rate", "lag", "last epoch", "restarts")
    return scroll(table(head, rows, right=right)) if rows else empty("No streams yet.")


def graph_of(slug: str, line: PipelineLine) -> Graph:
    """Return the graph of a pipeline: its sources, streams, logs and sinks.

    A log that another stream reads is one node, although it is a sink too.
    """
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []
    for each in line.streams:
        href = place(slug, "streams", each.stream)
        text = (f"epoch {each.epoch}, {each.state or 'state not known'}", f"{figures.number(each.rows)} rows")
        nodes[f"stream {each.stream}"] = Node(f"stream {each.stream}", "stream", each.stream, text, href, each.state)
    logs = {source.reads for each in line.streams for source in each.sources if source.stream}
    for each in line.streams:
        for source in each.sources:
            key = f"log {source.stream}" if source.stream else f"source {source.kind} {source.reads or each.stream}"
            title = source.stream or source.kind
            kind = "log" if source.stream else "source"
            nodes.setdefault(key, Node(key, kind, title, (source.reads or "event log",)))
            late = "late" if each.behind or each.behind_s or each.unread_files else ""
            edges.append(Edge(key, f"stream {each.stream}", _input_texts(each), late))
            writer = next((other for other in line.streams if other.stream == source.stream), None)
            if writer is not None:
                edges.append(Edge(f"stream {writer.stream}", key, _texts(writer.rows_per_s)))
        for name, sink in each.sinks.items():
            key = f"sink {each.stream} {name}"
            where = sink.target.partition(" ")[2] or sink.target
            if where in logs:
                continue
            nodes[key] = Node(key, "sink", name, (sink.kind or "sink", where))
            edges.append(Edge(f"stream {each.stream}", key, _texts(each.rows_per_s)))
    return Graph(tuple(nodes.values()), tuple(dict.fromkeys(edges)))


def _texts(rows_per_s: float | None) -> tuple[str, ...]:
    return () if rows_per_s is None else (rate(rows_per_s),)


def _input_texts(line: StreamLine) -> tuple[str, ...]:
    """Return the rate and the lag of a stream's input. Both are known for all of its sources together."""
    behind = figures.lag(line.behind, line.unread_files, line.unread_bytes, seconds=line.behind_s)
    texts = (*_texts(line.rows_per_s), *(() if behind == "-" else (f"lag {behind}",)))
    return tuple(f"{each} in all" for each in texts) if len(line.sources) > 1 else texts


def activity_chart(stream: str, found: Sequence[ActivityPoint]) -> Markup:
    """Return what a stream did over time: rows per second, seconds per epoch, lag."""
    if len(found) < 2:
        return Markup("")
    rates = [(each.end_ms, each.rows / max((each.end_ms - each.start_ms) / 1000, 0.001)) for each in found]
    spent = [(each.end_ms, each.seconds / each.epochs) for each in found if each.epochs]
    known = [each for each in found if each.behind is not None or each.unread_files is not None]
    behind = [(each.end_ms, float(each.behind or each.unread_files or 0)) for each in known]
    series = [Series("k-rate", "rows per second", rates, rate(max(value for _, value in rates)))]
    if spent:
        slow = [(each.end_ms, each.slowest) for each in found if each.epochs]
        series.append(Series("k-epoch", "seconds per epoch", spent, seconds(max(value for _, value in spent))))
        series.append(Series("k-slow", "slowest epoch", slow, seconds(max(value for _, value in slow))))
    if any(value for _, value in behind):
        most = int(max(value for _, value in behind))
        in_rows = any(each.behind is not None for each in found)
        series.append(Series("k-lag", "lag", behind, figures.lag(*((most, None) if in_rows else (None, most)))))
    return h("<h3>{}</h3>{}", stream, lines(series, f"Activity of stream {stream}"))
