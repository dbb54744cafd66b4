"""Make the plan of an undo: the next timeline, with the end of the old one as its base.

Rules:
- Only the newest rewind can be undone, and only until the new timeline has decided an epoch.
- Nor can it be undone after a backfill in the new timeline: that sink would lack the epochs that are put back.
- A rewind cannot be undone if it abandoned an epoch that one of the sinks never got: the sink would lack it. Nor can
  one that was completed without a sink whose target was lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.epoch import Decision, Facts
from holdfast.errors import NotSupported, RewindRefused
from holdfast.errors.base import PROGRAM
from holdfast.formats.sealed_json import digest_of
from holdfast.repository import Decisions, Lineage, ObjectRepository
from holdfast.repository.backfills import Backfills
from holdfast.repository.decisions import stream_folder
from holdfast.repository.rewinds import RewindRecord, StreamAim, read_rewind, rewind_key, unfinished_epochs
from holdfast.rewind.answering import asked
from holdfast.rewind.asking import held_epoch
from holdfast.rewind.members import last_decision
from holdfast.rewind.plan import RewindPlan, SinkAction, SinkPlan, StreamPlan
from holdfast.rewind.planning import free_space, loaded_lineage
from holdfast.rewind.program import Program, Rewindable, aim_of
from holdfast.sinks.base import StreamIdentity

UNDO = "undo"
_BEFORE = "the state before the last rewind"  # in errors


def plan_undo(pipeline: Rewindable) -> RewindPlan:
    """Return what undoing the newest rewind would do. Nothing is changed, and no Spark session is needed.

    Raises `RewindRefused` if there is no rewind to undo. A plan that cannot be applied has `problems`.
    """
    return planned_undo(pipeline.program).plan


@dataclass(frozen=True, slots=True)
class PlannedUndo:
    """A plan, the rewind that it undoes, and the last decision of each stream in the old timeline."""

    plan: RewindPlan
    record: RewindRecord
    ends: dict[str, Decision | None]


def planned_undo(program: Program) -> PlannedUndo:
    """Make the plan of an undo, with the facts that it was made from."""
    if isinstance(program.repository, ObjectRepository):
        why = "the folders of the old timeline would have to be copied there, and a clean-up may have changed them"
        do = f"to go back further, name a checkpoint: holdfast rewind {PROGRAM} --to ID"
        raise NotSupported(what="undoing a rewind on an object store", why=why, do=do)
    lineage, repository = loaded_lineage(program), program.repository
    record = read_rewind(repository, lineage.current)
    if record is None:
        problem = "there is no rewind to undo: the current timeline was not started by a rewind"
        do = "to go back to a checkpoint, name it with --to; holdfast ls lists the checkpoints"
        raise RewindRefused(to=_BEFORE, problems=(problem,), do=do)
    if record.undoes is not None:
        problem = f"timeline {record.timeline} is itself an undo; to go back, name a checkpoint with --to"
        raise RewindRefused(to=_BEFORE, problems=(problem,))
    asking = _Undoing(program, lineage, record)
    ends = {name: Decisions(repository).seen(name, aim.ends) for name, aim in record.streams.items()}
    streams = tuple(asking.stream(name, aim, ends[name]) for name, aim in record.streams.items())
    return PlannedUndo(
        RewindPlan(
            pipeline=program.name,
            uid=lineage.identity.uid,
            timeline=lineage.current,
            to=UNDO,
            base=f"the end of timeline {record.leaves}",
            checkpoint=None,
            digest=digest_of(repository.read(rewind_key(record.timeline))),
            undoes=record.timeline,
            only=None,
            leave=(),
            streams=streams,
            problems=tuple(asking.problems),
            bytes_free=free_space(repository),
        ),
        record,
        ends,
    )


class _Undoing:
    """Plans the streams of an undo one by one, and collects what prevents it."""

    def __init__(self, program: Program, lineage: Lineage, record: RewindRecord) -> None:
        self._program = program
        self._lineage = lineage
        self._record = record
        self.problems: list[str] = []

    def stream(self, name: str, aim: StreamAim, end: Decision | None) -> StreamPlan:
        repository, timeline = self._program.repository, self._record.timeline
        decision, digest = last_decision(repository, name, timeline)
        epoch = decision.attempt.epoch if decision else 0
        if epoch > aim.epoch:
            self.problems.append(f"stream {name!r} has decided epoch {epoch} since the rewind: it cannot be undone")
        for sink in Backfills(repository).sinks(name, timeline):
            text = f"a backfill has filled sink {sink!r} of stream {name!r} since the rewind, up to epoch {aim.epoch}"
            self.problems.append(f"{text}: after an undo, it would lack the epochs that are put back")
        last = end.attempt.epoch if end else 0
        if last and str(last - 1) not in repository.list(f"{stream_folder(name, aim.ends)}/spark/offsets"):
            self.problems.append(f"the Spark folder of stream {name!r} in the old timeline lacks epoch {last}")
        for lost in unfinished_epochs(repository, timeline, name):
            text = f"sink {lost.sink!r} of stream {name!r} never got epoch {lost.epoch}: {lost.why}"
            self.problems.append(text)
        facts = Facts.of(end) if end else None
        kept = (aim.facts or {}).get("total_rows", 0)
        return StreamPlan(
            stream=name,
            timeline=timeline,
            epoch=epoch,
            base_timeline=aim.ends,
            base_epoch=last,
            epochs=max(last - aim.epoch, 0),
            rows=facts.total_rows - kept if facts else 0,
            decision=digest,
            sinks=tuple(self._sink(name, sink, aim, last) for sink in aim.sinks),
        )

    def _sink(self, stream: str, name: str, aim: StreamAim, last: int) -> SinkPlan:
        expected, sink = aim.sinks[name], self._program.sink(stream, name)
        owner = StreamIdentity(self._program.name, self._lineage.identity.uid, stream)
        if expected.lost:
            self.problems.append(f"the rewind was completed without sink {name!r} of stream {stream!r}, which was lost")
            return SinkPlan(sink=name, kind=expected.kind, target=expected.target, action=SinkAction.CANNOT, holds=None)
        if sink is None or aim_of(sink) != type(expected)(kind=expected.kind, target=expected.target):
            self.problems.append(
                f"sink {name!r} of stream {stream!r}, which the rewind took back, is not in the program"
            )
            return SinkPlan(sink=name, kind=expected.kind, target=expected.target, action=SinkAction.CANNOT, holds=None)
        why = None
        if not expected.left:
            taken, rows = self._record.timeline, expected.rows
            why = asked(sink, "be asked", lambda: sink.cannot_be_put_back(owner, taken, rows))
        if why:
            self.problems.append(f"sink {name!r} of stream {stream!r} cannot be put back: {why}")
        return SinkPlan(
            sink=name,
            kind=expected.kind,
            target=expected.target,
            action=SinkAction.LEAVE if expected.left else SinkAction.CANNOT if why else SinkAction.PUT_BACK,
            why=why,
            holds=held_epoch(sink, owner, self._record.timeline),
            epochs=max(last - aim.epoch, 0),
        )
