"""Traces of epochs and checkpoints, made by the SDK of OpenTelemetry and kept in memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.errors import CheckpointFailed
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import CheckpointTimes, StreamTimes
from holdfast.spark import tracing
from holdfast.spark.epoch_times import EpochTimes
from holdfast.spark.tracing import PipelineTraces, tracing_callbacks

TIMES = EpochTimes(
    epoch=7,
    rows=100,
    ended_at_ms=1_700_000_000_500,
    seconds=0.5,
    phases={"open": 0.01, "prepare": 0.2, "harden": 0.05, "decide": 0.04, "commit": 0.15},
    commits={"files": 0.05, "table": 0.1},
    prepares={"files": 0.2, "table": 0.15},
)


@pytest.fixture
def made() -> tuple[PipelineTraces, InMemorySpanExporter]:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return PipelineTraces("shop", provider.get_tracer("test")), kept


def tree(spans: tuple[ReadableSpan, ...]) -> dict[str, str | None]:
    """Return the name of each span's parent."""
    names = {each.context.span_id: each.name for each in spans}
    return {each.name: names[each.parent.span_id] if each.parent else None for each in spans}


def test_the_phases_of_an_epoch_are_the_children_of_its_span(
    made: tuple[PipelineTraces, InMemorySpanExporter],
) -> None:
    traces, kept = made
    traces.epoch("orders", TIMES)
    spans = kept.get_finished_spans()
    assert tree(spans) == {
        "epoch orders": None,
        **dict.fromkeys(("open", "prepare", "harden", "decide", "commit"), "epoch orders"),
        "prepare files": "prepare",
        "prepare table": "prepare",
        "commit files": "commit",
        "commit table": "commit",
    }
    found: dict[str, Any] = {each.name: each for each in spans}
    root = found["epoch orders"]
    assert dict(root.attributes) == {
        "holdfast.pipeline": "shop",
        "holdfast.stream": "orders",
        "holdfast.epoch": 7,
        "holdfast.rows": 100,
    }
    assert (root.end_time, root.end_time - root.start_time) == (1_700_000_000_500_000_000, 500_000_000)
    assert found["prepare"].start_time == found["open"].end_time == found["prepare table"].start_time
    assert found["commit table"].start_time == found["commit files"].end_time
    assert all(root.start_time <= each.start_time <= each.end_time <= root.end_time for each in spans)
    assert len({each.context.trace_id for each in spans}) == 1


def test_the_steps_of_a_checkpoint_are_the_children_of_its_streams(
    made: tuple[PipelineTraces, InMemorySpanExporter],
) -> None:
    traces, kept = made
    steps = StreamTimes(barrier=0.01, acknowledged=0.1, linked=0.15, held=0.3, new_files=2, new_bytes=90)
    times = CheckpointTimes(seconds=0.35, streams={"orders": steps})
    manifest = Manifest(checkpoint_id=3, epoch=1, timestamp_ms=1_700_000_000_000, savepoint="before", times=times)
    traces.checkpoint("shop", manifest)
    spans = kept.get_finished_spans()
    assert tree(spans) == {
        "savepoint": None,
        "checkpoint orders": "savepoint",
        "manifest": "savepoint",
        **dict.fromkeys(("barrier", "acknowledge", "link", "keep"), "checkpoint orders"),
    }
    root = next(each for each in spans if each.name == "savepoint")
    assert root.attributes is not None
    assert (root.attributes["holdfast.checkpoint"], root.attributes["holdfast.savepoint"]) == (3, "before")
    assert root.end_time is not None
    assert root.start_time is not None
    assert root.end_time - root.start_time == 350_000_000


def test_a_checkpoint_that_was_given_up_has_an_error(made: tuple[PipelineTraces, InMemorySpanExporter]) -> None:
    traces, kept = made
    traces.checkpoint_failed("shop", CheckpointFailed(checkpoint=4, why="a stream failed"))
    (span,) = kept.get_finished_spans()
    assert span.status.description == "CheckpointFailed"
    assert not span.status.is_ok
    assert [each.name for each in span.events] == ["exception"]


def test_the_cause_of_a_failed_checkpoint_with_its_secrets_is_not_exported(
    made: tuple[PipelineTraces, InMemorySpanExporter],
) -> None:
    traces, kept = made
    try:
        try:
            raise OSError("connect to postgresql://me:hunter2@host/db failed")
        except OSError as cause:
            raise CheckpointFailed(checkpoint=4, why="a sink could not be asked") from cause
    except CheckpointFailed as error:
        traces.checkpoint_failed("shop", error)
    (span,) = kept.get_finished_spans()
    assert "hunter2" not in span.to_json()
    assert span.events[0].attributes is not None
    assert "checkpoint 4" in str(span.events[0].attributes["exception.message"])


def test_an_epoch_and_its_span_of_another_pipeline_have_no_common_parent(
    made: tuple[PipelineTraces, InMemorySpanExporter],
) -> None:
    traces, kept = made
    provider = TracerProvider()
    with provider.get_tracer("user").start_as_current_span("the program of the user"):
        traces.epoch("orders", TIMES)
    assert tree(kept.get_finished_spans())["epoch orders"] is None


def test_without_the_package_there_are_no_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing_callbacks("shop") is not None
    monkeypatch.setattr(tracing, "find_spec", lambda _: None)
    assert tracing_callbacks("shop") is None


def test_the_package_is_not_imported_before_a_pipeline_is_started() -> None:
    code = "import holdfast.spark.pipeline, sys; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
