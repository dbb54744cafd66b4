"""The folders of a new timeline, and the record that decides it. Until then, the folders are garbage."""

from __future__ import annotations

import contextlib
from pathlib import Path

from holdfast.epoch import Facts
from holdfast.errors import CheckpointDamaged, Corrupt, HoldfastError, NotFound
from holdfast.formats.sealed_json import Record
from holdfast.repository import Lineage, LocalRepository, ObjectRepository, Repository
from holdfast.repository.base import now_ms
from holdfast.repository.lineage import FIRST, lineage_key, timelines
from holdfast.repository.opening import local_repository
from holdfast.repository.rewinds import RewindRecord, SinkAim, StreamAim
from holdfast.repository.stream_records import StreamRecord, stream_record_key
from holdfast.restore import link_spark_folder, restore_into, restore_stream
from holdfast.rewind.bases import RewindBase
from holdfast.rewind.plan import SinkAction, StreamPlan
from holdfast.rewind.planning import PlannedRewind
from holdfast.rewind.program import Program
from holdfast.rewind.undo import PlannedUndo
from holdfast.rewind.way_back import newest_sound
from holdfast.sparkfiles.places import spark_key

_STATE_STORE = "spark.sql.streaming.stateStore"  # prefix of the settings that a stream keeps


class BuildingRecord(Record, frozen=True, kw_only=True):
    """The record that reserves a timeline on an object store, where no lock keeps two rewinds apart."""

    timeline: int
    lease: int
    at_ms: int


def next_timeline(repository: Repository) -> int:
    """Return a number that no timeline has, or had: it is higher than any folder."""
    return max([FIRST, *timelines(repository)]) + 1


def claimed_timeline(repository: Repository, lease: int) -> int:
    """Return the number of a new timeline; on an object store, reserve it durably.

    A rewind that was paused and replaced may be building there. Two of them must not write into one folder.
    """
    number = next_timeline(repository)
    while isinstance(repository, ObjectRepository):
        record = BuildingRecord(timeline=number, lease=lease, at_ms=now_ms())
        if repository.put_if_absent(f"timelines/{number}/building.json", record.sealed()).won:
            break
        number += 1
    return number


def next_after_undo(repository: Repository) -> int:
    """Return the number of an undo's timeline. The one before it is not used: see `spare_timeline`."""
    return next_timeline(repository) + 1


def spare_timeline(undo: int) -> int:
    """Return the number into which an undo takes back what the undone timeline has decided at the last moment.

    A sink is stamped once for each timeline, and an undo needs two stamps if a driver that was paused has decided an
    epoch after the plan was made: one to take that epoch back, one to put the old rows back.
    """
    return undo - 1


def drop_garbage(repository: Repository, below: int) -> None:
    """Remove the folders of earlier timelines that never became current.

    Only after a higher one was decided: a process that is paused in one of them must not find its number free.
    """
    for number in timelines(repository):
        if FIRST < number < below and not repository.sizes([key := lineage_key(repository, number)])[key]:
            repository.clear(f"timelines/{number}")


def built_rewind(program: Program, found: PlannedRewind, timeline: int) -> RewindRecord:
    """Write Spark's folders and `stream.json` of a new timeline, from the base; return the record to decide."""
    repository, plan, base = program.repository, found.plan, found.base
    streams: dict[str, StreamAim] = {}
    for each in plan.streams:
        name, stage = each.stream, program.streams[each.stream].stage
        facts = base.facts(name, stage)
        if facts is not None:
            _restore(repository, base, name, timeline)
            repository.put_new(stream_record_key(name, timeline), stream_record_of(repository, name, base))
        streams[name] = _aim(each, facts)
    return RewindRecord(
        timeline=timeline,
        parent=plan.timeline,
        leaves=plan.timeline,
        streams=streams,
        to=plan.base,
        checkpoint=plan.checkpoint,
        plan=plan.id,
    )


def built_undo(program: Program, found: PlannedUndo, timeline: int) -> RewindRecord:
    """Link Spark's folders of the old timeline into a new one; return the record to decide."""
    repository, plan, record = local_repository(program.repository, "an undo"), found.plan, found.record
    streams: dict[str, StreamAim] = {}
    for each in plan.streams:
        name, end = each.stream, found.ends[each.stream]
        old = record.streams[name].ends
        if end is not None:
            link_spark_folder(_spark(repository, name, old), _spark(repository, name, timeline))
            with contextlib.suppress(NotFound):
                data = repository.read(stream_record_key(name, old))
                repository.put(stream_record_key(name, timeline), data)
        streams[name] = _aim(each, Facts.of(end) if end else None)
    return RewindRecord(
        timeline=timeline,
        parent=record.parent,
        leaves=plan.timeline,
        streams=streams,
        to=plan.base,
        undoes=plan.undoes,
        plan=plan.id,
    )


def _aim(each: StreamPlan, facts: Facts | None) -> StreamAim:
    sinks = {
        sink.sink: SinkAim(
            kind=sink.kind,
            target=sink.target,
            left=sink.action is SinkAction.LEAVE,
            absent=sink.holds is None,
            holds=sink.holds or 0,
            rows=(sink.rows or 0) if sink.kept else 0,
        )
        for sink in each.sinks
    }
    return StreamAim(
        ends=each.timeline,
        timeline=each.base_timeline,
        epoch=each.base_epoch,
        facts=None if facts is None else facts.plain(),
        sinks=sinks,
    )


def _restore(repository: Repository, base: RewindBase, stream: str, timeline: int) -> None:
    """Write Spark's folder of a stream. Files that are gone are reported with the newest checkpoint that is sound."""
    try:
        if isinstance(repository, ObjectRepository):
            restore_into(repository, base.restore, stream, repository, spark_key(stream, timeline))
        else:
            local = local_repository(repository, "a rewind")
            restore_stream(local, base.restore, stream, _spark(local, stream, timeline))
    except CheckpointDamaged as error:
        error.offered = other_sound(repository, base) or error.offered
        raise


def other_sound(repository: Repository, base: RewindBase) -> int | None:
    """Return the newest checkpoint that is sound, if it is another one and can be found."""
    found: int | str | None = None
    with contextlib.suppress(HoldfastError):  # the damage of the base is what must be reported
        found = newest_sound(repository, Lineage.load(repository))
    return found if isinstance(found, int) and found != base.manifest.checkpoint_id else None


def _spark(repository: LocalRepository, stream: str, timeline: int) -> Path:
    return repository.root / spark_key(stream, timeline)


def stream_record_of(repository: Repository, stream: str, base: RewindBase) -> bytes:
    """Return the record of how a stream was first started; if it is gone, one that is made from the manifest."""
    cut = base.manifest.streams[stream]
    try:
        data = repository.read(stream_record_key(stream, cut.timeline))
        StreamRecord.unsealed(data, stream_record_key(stream, cut.timeline))
    except (NotFound, Corrupt):
        settings = {name: value for name, value in cut.confs.items() if name.startswith(_STATE_STORE)}
        if cut.state_format:
            settings[f"{_STATE_STORE}.checkpointFormatVersion"] = cut.state_format.rpartition("-")[2]
        return StreamRecord(stream=stream, output_mode=cut.output_mode, settings=settings).sealed()
    return data
