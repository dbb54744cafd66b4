"""Metrics as OpenMetrics text, from the same values as the page. Every metric has one row in `METRICS`.

Rules:
- A value that is not known is left out, never reported as 0.
- A counter begins again only with a run of the pipeline or a rewind. What a restart of the server could change is a
  gauge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.web.reading.status_lines import PipelineLine, RunState, StreamLine

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family: its name without the suffix of its type, its type, its unit and its meaning."""

    name: str
    kind: str  # gauge, counter or stateset
    help: str
    unit: str = ""

    @property
    def sample(self) -> str:
        """The name of its values."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


METRICS = (
    Metric("holdfast_pipeline_state", "stateset", "What the pipeline does; 1 for the current state."),
    Metric("holdfast_pipeline_problems", "gauge", "Problems that the page lists, by severity."),
    Metric("holdfast_pipeline_timeline", "gauge", "The number of the current timeline; a rewind begins a new one."),
    Metric(
        "holdfast_checkpoint_age_seconds", "gauge", "Since the newest restorable checkpoint was started.", "seconds"
    ),
    Metric("holdfast_checkpoint_duration_seconds", "gauge", "How long the newest checkpoint took.", "seconds"),
    Metric("holdfast_checkpoint_size_bytes", "gauge", "Size of the files that the newest checkpoint needs.", "bytes"),
    Metric("holdfast_checkpoint_last_id", "gauge", "The id of the newest restorable checkpoint."),
    Metric("holdfast_checkpoints_restorable", "gauge", "Checkpoints and savepoints that the pipeline can go back to."),
    Metric("holdfast_checkpoints_damaged", "gauge", "Checkpoints that cannot be read or were found unsound."),
    Metric("holdfast_checkpoints_failed", "counter", "Checkpoints that failed in the last run."),
    Metric("holdfast_stream_epochs", "counter", "Epochs that the stream has decided since its beginning."),
    Metric("holdfast_stream_rows", "counter", "Rows given to each sink since the beginning of the stream."),
    Metric(
        "holdfast_stream_dead_rows", "gauge", "Rows given to the dead letter since the first epoch or the last rewind."
    ),
    Metric("holdfast_stream_rows_per_second", "gauge", "Rows given to each sink per second, over the last epochs."),
    Metric(
        "holdfast_stream_phase_duration_seconds",
        "gauge",
        "Duration of each phase of the last epoch that has all of them recorded.",
        "seconds",
    ),
    Metric("holdfast_stream_lag_records", "gauge", "Events or records of the sources that no sink has yet."),
    Metric(
        "holdfast_stream_lag_seconds", "gauge", "Age of the oldest record of Kafka that no sink has yet.", "seconds"
    ),
    Metric("holdfast_stream_lag_files", "gauge", "Files of the sources that no sink has yet."),
    Metric("holdfast_stream_lag_bytes", "gauge", "Size of the files that no sink has yet.", "bytes"),
    Metric("holdfast_stream_last_epoch_age_seconds", "gauge", "Since the last epoch was decided.", "seconds"),
    Metric("holdfast_stream_restarts", "counter", "Restarts after failures in the last run."),
    Metric("holdfast_stream_in_doubt", "gauge", "1 if an epoch is decided, but perhaps not committed in every sink."),
    Metric("holdfast_stream_gaps", "gauge", "Entries of the gap ledger that belong to the current history."),
    Metric(
        "holdfast_sink_freshness_seconds",
        "gauge",
        "Since the start of the last non-empty epoch that is known to be committed to the sink.",
        "seconds",
    ),
    Metric("holdfast_sink_last_epoch", "gauge", "The last epoch that is known to be committed to the sink."),
)

Sample = tuple[str, Mapping[str, str], float]


def exposition(
    lines: Iterable[PipelineLine], phases: Mapping[tuple[str, str], Mapping[str, float]], now_ms: int
) -> str:
    """Return the metrics of all pipelines as text. `phases` has the last measured epoch by repository and stream."""
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {each.name: [] for each in METRICS}
    for line in lines:
        for name, labels, value in [*_pipeline(line, now_ms), *_streams(line, phases, now_ms)]:
            samples[name].append((labels, value))
    parts: list[str] = []
    for metric in METRICS:
        found = samples[metric.name]
        if found:
            parts += [f"# TYPE {metric.name} {metric.kind}"]
            parts += [f"# UNIT {metric.name} {metric.unit}"] if metric.unit else []
            parts += [f"# HELP {metric.name} {metric.help}"]
            parts += [f"{metric.sample}{{{_labels(labels)}}} {_number(value)}" for labels, value in found]
    return "\n".join([*parts, "# EOF", ""])


def _pipeline(line: PipelineLine, now_ms: int) -> Iterable[Sample]:
    own = {"pipeline": line.pipeline, "repository": line.where}
    for state in RunState:
        yield "holdfast_pipeline_state", {**own, "holdfast_pipeline_state": str(state)}, float(line.state is state)
    for severity in ("error", "warning"):
        count = sum(each.severity == severity for each in line.problems)
        yield "holdfast_pipeline_problems", {**own, "severity": severity}, count
    if line.state is RunState.DAMAGED:
        return
    yield "holdfast_pipeline_timeline", own, line.timeline
    yield "holdfast_checkpoints_restorable", own, line.checkpoints
    yield "holdfast_checkpoints_damaged", own, line.checkpoints_damaged
    yield "holdfast_checkpoints_failed", own, line.checkpoints_failed
    if line.checkpoint is not None:
        yield "holdfast_checkpoint_last_id", own, line.checkpoint
        yield "holdfast_checkpoint_size_bytes", own, line.checkpoint_bytes
        yield "holdfast_checkpoint_age_seconds", own, _since(line.checkpoint_at_ms, now_ms)
        if line.checkpoint_s is not None:
            yield "holdfast_checkpoint_duration_seconds", own, line.checkpoint_s


def _streams(
    line: PipelineLine, phases: Mapping[tuple[str, str], Mapping[str, float]], now_ms: int
) -> Iterable[Sample]:
    for each in line.streams:
        own = {"pipeline": line.pipeline, "repository": line.where, "stream": each.stream}
        yield "holdfast_stream_epochs", own, each.epoch
        yield "holdfast_stream_rows", own, each.rows
        yield "holdfast_stream_dead_rows", own, each.dead_rows
        yield "holdfast_stream_restarts", own, each.restarts
        yield "holdfast_stream_in_doubt", own, float(each.in_doubt is not None)
        yield "holdfast_stream_gaps", own, each.gaps
        for phase, seconds in phases.get((line.where, each.stream), {}).items():
            yield "holdfast_stream_phase_duration_seconds", {**own, "phase": phase}, seconds
        for name, value in _known(each).items():
            if value is not None:
                yield name, own, value
        if each.decided_at_ms:
            yield "holdfast_stream_last_epoch_age_seconds", own, _since(each.decided_at_ms, now_ms)
        for sink, found in each.sinks.items():
            yield "holdfast_sink_last_epoch", {**own, "sink": sink}, found.epoch
            if found.fresh_at_ms:
                yield "holdfast_sink_freshness_seconds", {**own, "sink": sink}, _since(found.fresh_at_ms, now_ms)


def _known(each: StreamLine) -> dict[str, float | None]:
    return {
        "holdfast_stream_rows_per_second": each.rows_per_s,
        "holdfast_stream_lag_records": each.behind,
        "holdfast_stream_lag_seconds": each.behind_s,
        "holdfast_stream_lag_files": each.unread_files,
        "holdfast_stream_lag_bytes": each.unread_bytes,
    }


def _since(at_ms: int, now_ms: int) -> float:
    return max(now_ms - at_ms, 0) / 1000


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
