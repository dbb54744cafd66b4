"""The metrics: what they count, valid text for any name, the page that documents them, the dashboard and the alerts."""

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import strictyaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from holdfast.repository.activity import Activity, Period, StreamActivity
from holdfast.spark.activity import ActivityTally, ActivityWriter, Lag
from holdfast.web.metrics import METRICS, exposition
from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import PipelineLine, RunState, SinkLine, StreamLine
from webfixture import Sample

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bholdfast_\w+")
SAMPLES = {each.sample for each in METRICS}
HOSTILE = 'a"b\\c\nd\\n{e}=,"} 1\n# EOF\r\t\u2028<img src=x onerror=alert(1)>&\u202e\x00é'


def stream(name: str, **more: Any) -> StreamLine:
    nothing: dict[str, Any] = dict.fromkeys(
        ("rows_per_s", "epoch_s", "behind", "unread_files", "unread_bytes", "in_doubt"), None
    )
    counts = dict.fromkeys(
        ("timeline", "epoch", "decided_at_ms", "rows", "lag_at_ms", "watermark_ms", "gaps", "restarts"), 1
    )
    return StreamLine(stream=name, state="running", fresh_at_ms=1, **{**nothing, **counts, **more})


def parsed(*lines: PipelineLine) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the samples by name, as Prometheus would read them."""
    text = exposition(lines, {}, now_ms=10_000)
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found.setdefault(each.name, []).append((dict(each.labels), float(each.value)))
    return found


# --- the text ---


def test_the_lag_is_reported_in_the_units_that_are_known_for_a_source() -> None:
    files, records = stream("files", unread_files=3, unread_bytes=4096), stream("records", behind=7)
    kafka = stream("kafka", behind=0, behind_s=0.0)
    late = stream("late", behind_s=1.5)
    streams = [files, records, kafka, late]
    found = parsed(PipelineLine(pipeline="p", where="w", state=RunState.RUNNING, streams=streams))
    lags = {
        name: [(labels["stream"], value) for labels, value in samples]
        for name, samples in found.items()
        if "_lag_" in name
    }
    assert lags == {
        "holdfast_stream_lag_files": [("files", 3)],
        "holdfast_stream_lag_bytes": [("files", 4096)],
        "holdfast_stream_lag_records": [("records", 7), ("kafka", 0)],
        "holdfast_stream_lag_seconds": [("kafka", 0), ("late", 1.5)],
    }


def test_any_name_is_read_back_as_it_is() -> None:
    line = stream(HOSTILE, sinks={HOSTILE: SinkLine(epoch=4, fresh_at_ms=4_000)})
    found = parsed(PipelineLine(pipeline=HOSTILE, where=HOSTILE, state=RunState.RUNNING, streams=[line]))
    own = {"pipeline": HOSTILE, "repository": HOSTILE, "stream": HOSTILE, "sink": HOSTILE}
    assert found["holdfast_sink_last_epoch"] == [(own, 4)]
    assert found["holdfast_sink_freshness_seconds"] == [(own, 6)]
    assert found.keys() <= SAMPLES


def test_a_name_that_is_not_unicode_is_still_valid_text() -> None:
    found = parsed(PipelineLine(pipeline="p", where="bad \udcff name", state=RunState.DAMAGED))
    assert found["holdfast_pipeline_problems"][0][0]["repository"] == "bad \\udcff name"


# --- what is counted ---


def test_restarts_and_failed_checkpoints_of_a_run_are_counted_beyond_the_events_that_are_kept(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    sample.lease(2, ago_s=9_000)
    tally = ActivityTally()
    writer = ActivityWriter(sample.repository, tally, lease=2)
    for _ in range(2):
        for _ in range(300):
            tally.restart("orders")
            tally.checkpoint(restorable=False)
        time.sleep(0.01)  # a period is named by the millisecond of its start
        writer.work({"orders": Lag("running"), "totals": Lag("running")})
    sample.event("restart", "again", stream="totals", lease=2, ago_s=4)
    sample.event("ended", "stopped gracefully", lease=2, ago_s=3)
    line = status_of(sample.repository)
    assert {each.stream: each.restarts for each in line.streams} == {"orders": 600, "totals": 1}
    assert (line.restarts, line.checkpoints_failed) == (601, 600)
    days = status_of(sample.repository, clock=lambda: sample.now_ms / 1000 + 5 * 86_400)
    assert days.checkpoints_failed == 600, "a counter does not go down while nothing happens"


def test_a_new_run_begins_again(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    streams = {"orders": StreamActivity(run_restarts=5)}
    period = Period(start_ms=sample.now_ms, end_ms=sample.now_ms, lease=1, streams=streams, run_checkpoints_failed=9)
    Activity(sample.repository).add_period(period)
    assert (status_of(sample.repository).restarts, status_of(sample.repository).checkpoints_failed) == (5, 9)
    sample.lease(2, ago_s=1)
    sample.event("started", "2 streams were recovered", lease=2)
    line = status_of(sample.repository)
    assert (line.restarts, line.checkpoints_failed) == (0, 0)


def test_a_period_of_an_earlier_version_counts_nothing(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy(3, 1)
    for path in (sample.folder / "activity/periods").iterdir():
        assert b"run_" in path.read_bytes()
    found = Activity(sample.repository).last_period(1)
    assert found is not None
    old = msgspec.to_builtins(found)
    del old["run_checkpoints_failed"], old["streams"]["orders"]["run_restarts"], old["streams"]["orders"]["behind_s"]
    assert msgspec.convert(old, Period) == found


# --- what people read ---


def test_every_metric_is_documented_and_every_documented_metric_exists() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(holdfast_\w+)`(?: \(family `(holdfast_\w+)`\))? \| ([a-z ]+) \|", text, re.MULTILINE)
    kinds = {name: (family or name, kind.replace(" ", "")) for name, family, kind in rows}
    assert kinds == {each.sample: (each.name, each.kind) for each in METRICS}
    assert set(NAME.findall(text)) <= SAMPLES | {each.name for each in METRICS}


def test_every_metric_of_the_dashboard_exists() -> None:
    dashboard = json.loads((ROOT / "examples/monitoring/grafana.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown += [each["query"] for each in dashboard["templating"]["list"]]
    names = {name for each in shown for name in NAME.findall(each)}
    assert len(names) > 10
    assert names <= SAMPLES


def test_every_metric_of_the_alerts_exists_and_stale_output_is_reported_for_every_kind_of_source() -> None:
    text = (ROOT / "examples/monitoring/alerts.yml").read_text()
    (group,) = strictyaml.dirty_load(text, allow_flow_style=True).data["groups"]
    rules = {each["alert"]: each for each in group["rules"]}
    assert {name for each in rules.values() for name in NAME.findall(each["expr"])} <= SAMPLES
    assert all(each["annotations"].keys() == {"summary", "next"} for each in rules.values())
    assert "holdfast_checkpoints_failed_total" in rules["CheckpointsFail"]["expr"]
    lags = {"holdfast_stream_lag_records", "holdfast_stream_lag_files"}
    assert lags <= set(NAME.findall(rules["OutputStale"]["expr"]))
