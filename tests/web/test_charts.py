"""The charts of the page: where the columns of a strip stand, and what is drawn for epochs and checkpoints."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from holdfast import _figures as figures
from holdfast.cli.verbs.status import stream_rows
from holdfast.web.book import Book
from holdfast.web.drawing.charts import Column, Series, lines, strip
from holdfast.web.drawing.graph import Edge, graph
from holdfast.web.drawing.one_pipeline import graph_of
from holdfast.web.places import Places
from holdfast.web.reading.status_lines import PipelineLine, RunState, SinkLine, SourceLine, StreamLine
from webfixture import Sample

NOON = 1_800_014_400_000  # 2027-01-15 12:00:00 UTC


def drawn(*seconds: float) -> str:
    columns = [Column([("ph-open", 1.0)], f"at {each}", at_ms=int(NOON + each * 1000)) for each in seconds]
    return strip(columns, "Epochs", unit="1 s")


def lefts(text: str) -> list[float]:
    return [float(each) for each in re.findall(r'<rect class="ph-open" x="([\d.]+)"', text)]


def labels(text: str) -> dict[str, float]:
    found = re.findall(r'<text x="([\d.]+)%"[^>]*>([^<]*)</text>', text)
    return {name: float(share) for share, name in found}


def rendered(root: Path, address: str) -> str:
    found = Book(Places([str(root)])).look(address)
    assert found is not None
    assert found.status == 200
    return found.view.body


def test_columns_stand_at_their_time() -> None:
    found = lefts(drawn(0, 1, 2, 4, 5, 6))
    steps = [round(b - a, 1) for a, b in pairwise(found)]
    assert steps == [32.0, 32.0, 64.0, 32.0, 32.0]


def test_a_long_pause_is_a_break_with_its_length() -> None:
    text = drawn(0, 1, 2, 3602, 3603)
    assert text.count('class="pause"') == 1
    assert "nothing for 1h" in text
    found = lefts(text)
    assert 3 * 32 < found[3] - found[2] < 8 * 32, "it does not squeeze the rest"
    assert 'class="pause"' not in drawn(0, 1, 2, 3, 4)


def test_columns_that_follow_fast_do_not_cover_each_other() -> None:
    found = lefts(drawn(0, 1, 2, 3, 3.01, 3.02, 4))
    assert min(b - a for a, b in pairwise(found)) >= 32.0


@pytest.mark.parametrize("count", [2, 29, 30, 120])
def test_a_label_stands_at_the_column_whose_time_it_names(count: int) -> None:
    text = drawn(*range(count))
    named, found = labels(text), lefts(text)
    assert "12:00:00" in named
    assert len(named) >= (1 if count == 2 else 3)
    for name, share in named.items():
        second = int(name[3:5]) * 60 + int(name[6:8])
        assert abs(share - found[second] / 9.6) < 3.5, "within a column"
    assert "2027-01-15 12:00:00 to 12:" in text or count == 2


def test_columns_without_a_time_and_impossible_times_are_drawn() -> None:
    columns = [Column([("ph-open", 1.0)], "x", at_ms=each) for each in (0, NOON, 0, 10**30, -5, NOON)]
    assert len(lefts(strip(columns, "Epochs", unit="1 s"))) == 6


def test_lines_have_the_times_of_their_axis() -> None:
    points = [(NOON + minute * 60_000, float(minute)) for minute in range(61)]
    assert list(labels(lines([Series("k-rate", "rate", points)], "Activity"))) == ["12:00", "12:20", "12:40", "13:00"]


def test_a_stream_shows_each_sink_as_bars_and_the_slowest_epochs_of_its_span(tmp_path: Path) -> None:
    sample = Sample(tmp_path, streams=("orders",)).healthy(80, 1)
    text = rendered(sample.root, "/p/orders/streams/orders")
    row = re.findall(r'<tr><td><span id="epoch-74">.*?</tr>', text)[0]
    assert re.findall(r"<title>(table, (?:prepare|commit): [^<]*)</title>", row) == [
        "table, prepare: 300 ms",
        "table, commit: 15 ms",
    ]
    assert "files: prepare 40 ms, commit 6.0 ms" in re.findall(r"<title>(epoch 74:.*?)</title>", text, re.DOTALL)[0]
    slow = text[text.index("Slowest epochs of this span") :]
    epochs = re.findall(r'href="[^"]*&amp;epoch=(\d+)#epoch-\1"|href="#epoch-(\d+)"', slow[: slow.index("</section>")])
    assert len(epochs) == 10
    assert "slowest epoch, at most 400 ms" in text
    assert "lag, at most 160 rows" in text


def test_the_strips_of_checkpoints_have_times_a_mark_for_savepoints_and_each_stream(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 12)
    sample.checkpoint(13, savepoint="before-sale")
    text = rendered(sample.root, "/p/orders/checkpoints")
    size, duration = (text[text.index(f"<h2>{each} ") :].partition("</section>")[0] for each in ("Size", "Duration"))
    for each in (size, duration):
        assert len(labels(each)) >= 2
    assert '<span class="key m-save">savepoint</span>' in size
    assert '<rect class="m-save"' in size
    assert re.findall(r"<figcaption><span>(orders|totals)</span>", duration) == ["orders", "totals"]
    assert "checkpoint 3, stream totals: acknowledged after 150 ms" in duration
    one = rendered(sample.root, "/p/orders/checkpoints/3")
    assert re.search(
        r"<td>totals</td><td[^>]*>4.0 ms</td><td[^>]*>146 ms</td><td[^>]*>40 ms</td><td[^>]*>80 ms</td>", one
    )


# --- the graph ---


def line_of(**changes: object) -> StreamLine:
    line = StreamLine(
        stream="orders",
        timeline=1,
        state="running",
        epoch=5,
        decided_at_ms=NOON,
        rows=500,
        rows_per_s=120.0,
        epoch_s=0.1,
        behind=1200,
        unread_files=None,
        unread_bytes=None,
        lag_at_ms=NOON,
        watermark_ms=0,
        in_doubt=None,
        gaps=0,
        restarts=0,
        fresh_at_ms=NOON,
        sinks={"table": SinkLine(kind="SqliteSink", target="sqlite out.db")},
        sources=[SourceLine(kind="kafka", reads="topic")],
    )
    return msgspec.structs.replace(line, **changes)


def edges_of(*streams: StreamLine) -> dict[str, Edge]:
    line = PipelineLine(pipeline="shop", where="x", state=RunState.RUNNING, streams=list(streams))
    return {f"{each.start} > {each.end}": each for each in graph_of("shop", line).edges}


def test_every_arrow_has_its_rate_and_the_lag_before_a_stream() -> None:
    log = SourceLine(kind="holdfast_log", reads="logs/orders/log", stream="orders")
    reader = line_of(stream="totals", rows_per_s=0.0, behind=None, unread_files=3, unread_bytes=5000, sources=[log])
    sinks = line_of().sinks | {"log": SinkLine(kind="LogSink", target="log logs/orders/log")}  # drawn once
    found = edges_of(line_of(sinks=sinks), reader)
    assert {name: each.texts for name, each in found.items()} == {
        "source kafka topic > stream orders": ("120/s", "lag 1,200 rows"),
        "stream orders > sink orders table": ("120/s",),
        "stream orders > log orders": ("120/s",),
        "log orders > stream totals": ("0/s", "lag 3 files, 5.0 kB"),
        "stream totals > sink totals table": ("0/s",),
    }
    late = {name for name, each in found.items() if each.kind == "late"}
    assert late == {"source kafka topic > stream orders", "log orders > stream totals"}


def test_each_of_several_sources_has_a_label_that_names_the_whole() -> None:
    sources = [SourceLine(kind="kafka", reads="a"), SourceLine(kind="kafka", reads="b")]
    found = edges_of(line_of(sources=sources, behind=0, rows_per_s=None))
    assert [each.texts for name, each in found.items() if "source" in name] == [("lag 0 rows in all",)] * 2
    assert {each.kind for each in found.values()} == {""}


def test_the_texts_of_an_arrow_are_drawn_one_below_the_other() -> None:
    line = PipelineLine(pipeline="shop", where="x", state=RunState.RUNNING, streams=[line_of()])
    text = graph(graph_of("shop", line))
    (first, second) = re.findall(
        r'<text class="small edge-text" x="\d+" y="(\d+)">(?:120/s|lag 1,200 rows)</text>', text
    )[:2]
    assert int(second) - int(first) >= 12


@pytest.mark.parametrize(
    ("behind", "files", "size", "seconds", "text"),
    [
        (1, None, None, None, "1 row"),
        (1200, 4, 9, None, "1,200 rows"),
        (None, 2, 3_000_000, None, "2 files, 3.0 MB"),
        (None, None, 1, None, "-"),
        (160, None, None, 12.04, "160 rows, 12 s"),
        (160, None, None, 3700.0, "160 rows, 1h 1m"),
        (0, None, None, 0.0, "0 rows"),
        (None, None, None, 0.25, "0.2 s"),
    ],
)
def test_the_page_and_the_command_give_the_lag_the_same_unit(
    behind: int | None, files: int | None, size: int | None, seconds: float | None, text: str
) -> None:
    assert figures.lag(behind, files, size, seconds=seconds) == text
    line = line_of(behind=behind, unread_files=files, unread_bytes=size, behind_s=seconds)
    console = Console(file=io.StringIO(), width=200, record=True)
    stream_rows(PipelineLine(pipeline="shop", where="x", state=RunState.RUNNING, streams=[line])).print(console)
    assert f" {figures.lag(behind, files, seconds=seconds)} " in console.export_text()


def test_a_new_pipeline_and_an_outage_are_not_called_an_earlier_version(tmp_path: Path) -> None:
    new = Sample(tmp_path, "new", streams=("orders",))
    new.write("timelines/1/streams/orders/stream.json", b"")
    text = rendered(tmp_path, "/p/new/streams/orders")
    assert "earlier version" not in text
    assert text.count("No epoch is decided yet.") == 2
    text = rendered(tmp_path, "/p/new/checkpoints")
    assert "earlier version" not in text
    assert "No checkpoint is restorable." in text
    out = Sample(tmp_path, "outage", streams=("orders",)).healthy(3, 1)
    out.aborts("orders", 4, 130)
    text = rendered(tmp_path, "/p/outage/streams/orders")
    assert "earlier version" not in text
    assert "The newest attempts were all aborted." in text
