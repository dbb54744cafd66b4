"""Make the manifest of a checkpoint from the positions of its streams. Pure: nothing is read or written here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.coordinator import StreamPosition
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import (
    CheckpointTimes,
    ConnectorCheckpoint,
    GapNote,
    GapNotes,
    SinkStatus,
    StreamCut,
)
from holdfast.formats.sidecar import PackedStates
from holdfast.repository import GapRecord, Identity
from holdfast.spark.pins import SparkCut

STAGE = "stage"  # suffix of the stream's name: the name of a stage's state in a manifest
NOTED_GAPS = 20  # gaps that a manifest lists, over all streams; the others are only counted
_NOTED_FACTS = 2000  # characters of one gap's facts; longer facts are in the ledger alone


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """One stream of a checkpoint: its position, its kept files, and its definition."""

    position: StreamPosition
    output_mode: str
    reads: tuple[str, ...]
    sources: tuple[str, ...]
    kept: SparkCut | None  # `None` before the first epoch
    file_list: str | None  # the digest of the list of those files


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """One checkpoint: its id, its owner, and its place in the history."""

    checkpoint: int
    began_ms: int
    barriers: int  # the highest number of barriers that a stream was sent
    program: int  # the hash of the pipeline's definition
    identity: Identity
    timeline: int  # in which the checkpoint is recorded
    lease: int
    savepoint: str | None
    parent: str | None  # the digest of the manifest before
    request: str | None = None  # the id of the request that it was taken for
    times: CheckpointTimes | None = None  # how long it took


def stage_states(positions: Iterable[StreamPosition]) -> dict[str, bytes]:
    """Return the state of each stage by its name in a manifest."""
    return {f"{each.stream}/{STAGE}": each.stage for each in positions if each.stage is not None}


def stream_cut(timeline: int, facts: StreamFacts) -> StreamCut:
    """Return the part of a manifest that describes one stream."""
    position, kept = facts.position, facts.kept
    return StreamCut(
        timeline=timeline,
        epoch=position.epoch,
        offsets=position.offsets,
        watermark_ms=position.watermark_ms,
        rows=position.rows,
        output_mode=facts.output_mode,
        reads=facts.reads,
        sources=facts.sources,
        state_format=kept.state_format if kept else None,
        confs=kept.confs if kept else {},
        sinks=position.sinks,
        files=facts.file_list,
        file_count=len(kept.files) if kept else 0,
        file_bytes=sum(each.size for each in kept.files) if kept else 0,
    )


def gap_notes(total: int, records: Iterable[GapRecord]) -> GapNotes:
    """Return the gaps up to the cut: the total number, and the newest records in full."""
    newest = sorted(records, key=lambda each: each.at_ms)[-NOTED_GAPS:]
    return GapNotes(total=total, newest=tuple(_noted(each) for each in newest))


def _noted(gap: GapRecord) -> GapNote:
    facts = gap.facts if len(json.dumps(gap.facts)) <= _NOTED_FACTS else {}
    return GapNote(
        stream=gap.stream,
        timeline=gap.timeline,
        epoch=gap.epoch,
        kind=gap.kind,
        why=gap.why,
        at_ms=gap.at_ms,
        facts=facts,
    )


def manifest_of(
    facts: CheckpointFacts, cuts: Mapping[str, StreamCut], states: PackedStates, gaps: GapNotes
) -> Manifest:
    """Return the manifest of a checkpoint."""
    sources = {
        f"{name}/{number}": ConnectorCheckpoint({"offset": offset}, cut.epoch)
        for name, cut in cuts.items()
        for number, offset in enumerate(cut.offsets)
        if offset is not None
    }
    sinks = {f"{name}/{sink}": int(note["epoch"]) for name, cut in cuts.items() for sink, note in cut.sinks.items()}
    return Manifest(
        checkpoint_id=facts.checkpoint,
        epoch=facts.barriers,
        timestamp_ms=facts.began_ms,
        source_offsets=sources,
        sink_epochs=sinks,
        sink_commit_statuses=dict.fromkeys(sinks, SinkStatus.committed()),
        operator_states=states.entries,
        state_checksum=states.checksum,
        watermark=min((cut.watermark_ms for cut in cuts.values() if cut.watermark_ms), default=None),
        source_names=tuple(sources),
        sink_names=tuple(sinks),
        pipeline_hash=facts.program,
        pipeline=facts.identity.pipeline,
        uid=facts.identity.uid,
        timeline=facts.timeline,
        lease=facts.lease,
        savepoint=facts.savepoint,
        request=facts.request,
        parent=facts.parent,
        streams=cuts,
        gaps=gaps,
        times=facts.times,
    )
