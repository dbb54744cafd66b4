"""Traces for OpenTelemetry: a span for each epoch and each checkpoint, with their phases as children.

Rules:
- Traces are made where the package `opentelemetry` is installed and the program has set a tracer provider. Where it is
  not installed, nothing is imported and nothing is called.
- Spans are made from the recorded times when an epoch or a checkpoint has ended, in the callbacks that any program can
  use. A failure to make them is logged, as for any callback, and the stream continues.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast._error_text import one_line
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import StreamTimes
from holdfast.spark.context import StreamCallbacks
from holdfast.spark.epoch_times import EpochTimes

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

NAME = "holdfast"  # of the tracer
PHASES = ("open", "prepare", "harden", "decide", "commit")  # of an epoch, one after another
_STEPS = {"barrier": "barrier", "acknowledged": "acknowledge", "linked": "link", "held": "keep"}
_NS = 1_000_000_000
Facts = dict[str, str | int]  # the attributes of a span


def tracing_callbacks(pipeline: str) -> StreamCallbacks | None:
    """Return callbacks that make the traces of a pipeline, or `None` if OpenTelemetry is not installed."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return None
    from opentelemetry import trace

    traces = PipelineTraces(pipeline, trace.get_tracer(NAME))
    return StreamCallbacks(
        on_epoch_times=traces.epoch, on_checkpoint=traces.checkpoint, on_checkpoint_failed=traces.checkpoint_failed
    )


class PipelineTraces:
    """Makes the spans of one pipeline."""

    def __init__(self, pipeline: str, tracer: Tracer) -> None:
        self._pipeline = pipeline
        self._tracer = tracer

    def epoch(self, stream: str, times: EpochTimes) -> None:
        """Make the span of an epoch: its phases, and the part of each sink in preparing and committing."""
        end = times.ended_at_ms * 1_000_000
        begin = end - _ns(times.seconds)
        facts: Facts = {"holdfast.stream": stream, "holdfast.epoch": times.epoch, "holdfast.rows": times.rows}
        span = self._begun(f"epoch {stream}", begin, facts)
        if span.is_recording():
            at = begin
            for phase in PHASES:
                if phase in times.phases:
                    until = at + _ns(times.phases[phase])
                    self._phase(span, phase, at, until, times)
                    at = until
        span.end(end)

    def _phase(self, parent: Span, phase: str, begin: int, end: int, times: EpochTimes) -> None:
        span = self._begun(phase, begin, {}, parent)
        at = begin
        for sink, seconds in (times.prepares if phase == "prepare" else {}).items():  # they prepare at the same time
            self._begun(f"prepare {sink}", begin, {"holdfast.sink": sink}, span).end(begin + _ns(seconds))
        for sink, seconds in (times.commits if phase == "commit" else {}).items():  # they commit one after another
            self._begun(f"commit {sink}", at, {"holdfast.sink": sink}, span).end(at + _ns(seconds))
            at += _ns(seconds)
        span.end(end)

    def checkpoint(self, pipeline: str, manifest: Manifest) -> None:
        """Make the span of a checkpoint: the steps of each stream, and the manifest."""
        del pipeline
        begin, times = manifest.timestamp_ms * 1_000_000, manifest.times
        facts: Facts = {"holdfast.checkpoint": manifest.checkpoint_id}
        facts |= {"holdfast.savepoint": manifest.savepoint} if manifest.savepoint else {}
        span = self._begun("savepoint" if manifest.savepoint else "checkpoint", begin, facts)
        if times is not None and span.is_recording():
            for name, each in times.streams.items():
                self._steps(span, name, each, begin)
            held = max((each.held for each in times.streams.values()), default=0.0)
            self._begun("manifest", begin + _ns(held), {}, span).end(begin + _ns(times.seconds))
        span.end(begin + _ns(times.seconds if times else 0.0))

    def _steps(self, parent: Span, stream: str, times: StreamTimes, begin: int) -> None:
        facts: Facts = {"holdfast.stream": stream}
        facts |= {"holdfast.new_files": times.new_files, "holdfast.new_bytes": times.new_bytes}
        span, last = self._begun(f"checkpoint {stream}", begin, facts, parent), 0.0
        for step, word in _STEPS.items():
            reached = max(getattr(times, step), last)
            self._begun(word, begin + _ns(last), {}, span).end(begin + _ns(reached))
            last = reached
        span.end(begin + _ns(last))

    def checkpoint_failed(self, pipeline: str, error: Exception) -> None:
        """Make a span without a length for a checkpoint that was given up: when it began is not recorded.

        The error is one line without its causes: the traceback of a cause may contain secrets.
        """
        del pipeline
        from opentelemetry.trace import Status, StatusCode

        span = self._begun("checkpoint", None, {})
        text = {"exception.type": type(error).__name__, "exception.message": one_line(error)}
        span.add_event("exception", text)
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        span.end()

    def _begun(self, name: str, begin: int | None, facts: Facts, parent: Span | None = None) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = Context() if parent is None else set_span_in_context(parent, Context())
        own = {"holdfast.pipeline": self._pipeline, **facts}
        return self._tracer.start_span(name, context, attributes=own, start_time=begin)


def _ns(seconds: float) -> int:
    return int(seconds * _NS)
