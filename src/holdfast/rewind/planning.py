"""Make the plan of a rewind. Nothing is changed, no lease is taken, and neither Spark nor opened sinks are needed."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from holdfast.epoch import Facts
from holdfast.errors import BadValue, CheckpointMissing, Corrupt, RewindUnfinished
from holdfast.eventlog._cursor_slot import cursor_names, read_cursor
from holdfast.formats.manifest import Manifest
from holdfast.repository import Checkpoints, Lineage, ObjectRepository, Repository
from holdfast.repository.files import failing_as
from holdfast.repository.opening import local_root
from holdfast.repository.rewinds import unfinished_rewind
from holdfast.repository.verdicts import Verdicts
from holdfast.rewind.asking import SinkFacts, SinkQuestions, satisfies
from holdfast.rewind.bases import RewindBase, find_base, on_lineage
from holdfast.rewind.inputs import EntryDigests, inputs_after
from holdfast.rewind.lake_tables import TableQuestions
from holdfast.rewind.members import last_decision, members_of, readers
from holdfast.rewind.plan import UNLIMITED, Readable, RewindPlan, SinkAction, SinkPlan, StreamPlan
from holdfast.rewind.program import Program, ProgramStream, Rewindable
from holdfast.rewind.topics import TopicQuestions
from holdfast.sinks.base import StreamIdentity
from holdfast.sparkfiles.places import spark_folder, spark_key

_LOST = "is missing or empty, and the base has rows of it: was it deleted?"
_REPLACE_SINK = (
    "no checkpoint fits: restore it from a copy; or replace it: give it another name and an empty target, then run "
    "holdfast backfill with --accept sinks"
)
_NO_UNDO = "undoing is not possible on an object store yet"


def plan_rewind(
    pipeline: Rewindable, to: int | str, *, only: Collection[str] | None = None, leave: Collection[str] = ()
) -> RewindPlan:
    """Return what a rewind would do. Nothing is changed, and no Spark session is needed.

    - `to`: the id of a checkpoint, the name of a savepoint, `latest`, or `before:<stream>:<epoch>` for the newest
      checkpoint without that epoch. It must belong to the current lineage.
    - `only`: the streams to take back. They must include every stream that reads from one of them. By default all.
    - `leave`: names of sinks whose rows stay where they are; the rows after the base are written to them again.

    Raises `CheckpointMissing`, `CheckpointDamaged`, or `RewindUnfinished`. A plan that cannot be applied has
    `problems`.
    """
    program = pipeline.program
    return planned(program, to, only, leave).plan


@dataclass(slots=True)
class PlannedRewind:
    """A plan, and the base that it was made from."""

    plan: RewindPlan
    base: RewindBase


def planned(program: Program, to: int | str, only: Collection[str] | None, leave: Collection[str]) -> PlannedRewind:
    """Make the plan of a rewind, with its base."""
    repository = program.repository
    lineage = loaded_lineage(program)
    base = find_base(repository, lineage, to)
    newest = newest_manifest(repository, lineage)
    members = members_of(program, lineage, base.manifest, newest, only)
    asking = _Planning(program, lineage, base, newest, frozenset(leave))
    streams = tuple(asking.stream(name) for name in members.streams)
    problems = [
        *_unsound(repository, base),
        *members.problems,
        *asking.problems,
        *_unknown_leaves(leave, program, streams),
    ]
    manifest = base.manifest
    return PlannedRewind(
        RewindPlan(
            pipeline=program.name,
            uid=lineage.identity.uid,
            timeline=lineage.current,
            to=str(to),
            base=base.to,
            checkpoint=manifest.checkpoint_id,
            digest=base.digest,
            undoes=None,
            only=None if only is None else tuple(sorted(only)),
            leave=tuple(sorted(leave)),
            streams=streams,
            problems=tuple(problems),
            cursors=tuple(_cursors_past(repository, manifest, newest, streams)),
            bytes_needed=_bytes_needed(base, streams),
            bytes_free=free_space(repository),
            no_undo=_NO_UNDO if isinstance(repository, ObjectRepository) else asking.no_undo,
        ),
        base,
    )


def loaded_lineage(program: Program) -> Lineage:
    """Return the lineage. Refuse the repository of another pipeline, and one with an unfinished rewind."""
    lineage = Lineage.load(program.repository)
    if lineage.identity.pipeline != program.name:
        why = f"it belongs to pipeline {lineage.identity.pipeline!r}"
        raise BadValue(what="repository", value=program.repository.where, why=why, do="choose another root")
    unfinished = unfinished_rewind(program.repository, lineage)
    if unfinished is not None:
        why = f"{unfinished.title} was interrupted"
        raise RewindUnfinished(timeline=unfinished.timeline, to=unfinished.to, why=why)
    return lineage


def newest_manifest(repository: Repository, lineage: Lineage) -> Manifest | None:
    """Return the newest manifest of the lineage that can be read."""
    checkpoints = Checkpoints(repository)
    for each in on_lineage(checkpoints, lineage):
        try:
            return checkpoints.read(each.name)
        except (Corrupt, CheckpointMissing):
            continue
    return None


def free_space(repository: Repository) -> int:
    """Return the free space of the repository's disk in bytes; a store has no limit."""
    root = local_root(repository)
    with failing_as("look at", repository.where):
        return UNLIMITED if root is None else shutil.disk_usage(root).free


# --- one stream ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Planning:
    """Plans the streams one by one, and collects what prevents the rewind or its undo."""

    program: Program
    lineage: Lineage
    base: RewindBase
    newest: Manifest | None
    leave: frozenset[str]
    problems: list[str] = field(default_factory=list)
    no_undo: str | None = None

    def stream(self, name: str) -> StreamPlan:
        stream, repository = self.program.streams[name], self.program.repository
        owner = StreamIdentity(self.program.name, self.lineage.identity.uid, name)
        timeline = self.lineage.timeline_of(name)
        decision, digest = last_decision(repository, name, timeline)
        place, cut = self.base.place(name), self.base.manifest.streams.get(name)
        facts = Facts.of(decision) if decision else None
        epoch = decision.attempt.epoch if decision else 0
        base_rows = cut.rows if cut else 0
        if epoch < place[1]:
            self.problems.append(
                f"stream {name!r}: its last decided epoch is {epoch}, before epoch {place[1]} of the base"
            )
        base_sinks = cut.sinks.keys() if cut else frozenset()
        about = SinkFacts(owner, self.lineage, decision, place, base_rows, base_sinks, *self._is_read(name))
        questions = SinkQuestions(about, repository, self.leave)
        sinks = tuple(questions.sinks(stream))
        self.problems += questions.problems
        self._check_marks(stream, owner, sinks)
        self._check_undo(name, timeline, epoch, sinks, questions)
        spark = spark_folder(repository, name, timeline)
        manifests = [each for each in (self.newest, self.base.manifest) if each]
        ends = tuple(facts.end) if facts else ()
        topics = TopicQuestions(repository, self.lineage, name, place[1])
        tables = TableQuestions(repository, self.lineage, name)
        entries = EntryDigests(repository, name, timeline, place[1], decision)
        sources = tuple(
            inputs_after(
                cut.offsets if cut else (), ends, spark, manifests, entries=entries, topics=topics, tables=tables
            )
        )
        self.problems += [
            f"source {each.source} of stream {name!r} can no longer be read: {each.why}"
            for each in sources
            if each.readable is Readable.NO
        ]
        return StreamPlan(
            stream=name,
            timeline=timeline,
            epoch=epoch,
            base_timeline=place[0],
            base_epoch=place[1],
            epochs=max(epoch - place[1], 0),
            rows=facts.total_rows - base_rows if facts else 0,
            decision=digest,
            sinks=sinks,
            sources=sources,
            notes=tuple(self._notes(stream, questions.untouched)),
        )

    def _is_read(self, name: str) -> tuple[bool, bool]:
        """Return whether another stream reads this one, and whether a `reads=` of the program says so."""
        declared = any(name in each.reads for each in self.program.streams.values())
        return bool(readers(self.program, self.base.manifest, self.newest).get(name)), declared

    def _notes(self, stream: ProgramStream, untouched: Collection[str]) -> Iterable[str]:
        cut = self.base.manifest.streams.get(stream.name)
        if cut is None:
            yield "it is not in the checkpoint: it starts again with its first epoch"
        elif not cut.epoch:
            yield "it had not started at the checkpoint: it starts again with its first epoch"
        else:
            for name in sorted(set(cut.sinks) - {sink.name for sink in stream.sinks}):
                yield f"sink {name!r} of the checkpoint is not in the program"
            for name in sorted({sink.name for sink in stream.sinks} - set(cut.sinks) - set(untouched)):
                yield f"sink {name!r} is not in the checkpoint: it was added later"
            for name in untouched:
                yield (
                    f"sink {name!r} is new: the rewind does not change it; afterwards fill it (holdfast backfill), or "
                    "start it empty (holdfast run --accept sinks)"
                )
            if stream.name in self.base.states and stream.stage is None:
                self.problems.append(f"stream {stream.name!r} had a stage, and the program has none (add it again)")

    def _check_marks(self, stream: ProgramStream, owner: StreamIdentity, sinks: tuple[SinkPlan, ...]) -> None:
        """Report sinks that are behind the base: they were restored from a backup."""
        for plan in sinks:
            sink, holds = stream.sink(plan.sink), plan.holds or 0
            if sink is None or satisfies(sink, owner, self.base.manifest, holds):
                continue
            if plan.action is SinkAction.LEAVE and sink.mark_expires and not holds:
                continue  # the user states with --leave that it holds the rows of the base
            other = next((each for each in self._older() if satisfies(sink, owner, each, holds)), None)
            name = f"sink {sink.name!r} of stream {stream.name!r}"
            use = f"go back to checkpoint {other.savepoint or other.checkpoint_id}" if other else _REPLACE_SINK
            state = f"holds only epoch {holds}, which is before the base: it was restored from an older copy"
            self.problems.append(f"{name} {state if holds else _LOST} ({use})")

    def _older(self) -> Iterable[Manifest]:
        checkpoints = Checkpoints(self.program.repository)
        for each in on_lineage(checkpoints, self.lineage):
            if each.checkpoint < self.base.manifest.checkpoint_id:
                try:
                    yield checkpoints.read(each.name)
                except (Corrupt, CheckpointMissing):
                    continue

    def _check_undo(
        self, name: str, timeline: int, epoch: int, sinks: tuple[SinkPlan, ...], questions: SinkQuestions
    ) -> None:
        offsets = self.program.repository.list(f"{spark_key(name, timeline)}/offsets")
        if epoch and str(epoch - 1) not in offsets:
            self.no_undo = f"the Spark folder of stream {name!r} lacks its last epoch"
        for each in sinks:
            if each.holds is None:
                self.no_undo = f"sink {each.sink!r} is not in the program"
            elif questions.is_behind(each.sink, each.holds):
                self.no_undo = f"sink {each.sink!r} of stream {name!r} lacks decided epochs"


def _unsound(repository: Repository, base: RewindBase) -> Iterable[str]:
    """Yield why the base cannot be restored, if a verification of it was recorded. The plan reads no bytes itself."""
    name = base.restore.name
    verdict = Verdicts(repository).shown().get(str(name))
    if verdict is not None and verdict.is_unsound:
        yield (
            f"checkpoint {name} was verified and is unsound: {verdict.finding}; go back to a sound one (holdfast ls), "
            f"or restore its files from a copy and run {verdict.command}"
        )


def _unknown_leaves(leave: Collection[str], program: Program, streams: tuple[StreamPlan, ...]) -> Iterable[str]:
    known = {sink.sink for each in streams for sink in each.sinks}
    known |= {sink.name for each in streams for sink in program.streams[each.stream].sinks}
    for name in sorted(set(leave) - known):
        yield f"there is no sink {name!r} to leave; the sinks are {', '.join(sorted(known))}"


def _bytes_needed(base: RewindBase, streams: tuple[StreamPlan, ...]) -> int:
    """Return the space for Spark's folders: files are links, except those of a savepoint and on an object store."""
    if base.manifest.savepoint is None and not any(each.files.is_placed for each in base.restore.streams.values()):
        return 0
    return sum(base.restore.streams[each.stream].bytes for each in streams if each.stream in base.restore.streams)


def _cursors_past(
    repository: Repository, base: Manifest, newest: Manifest | None, streams: tuple[StreamPlan, ...]
) -> Iterable[str]:
    """Yield the cursors of this repository that are past the base of an event log. Others are not known here."""
    tails: dict[str, int] = {}
    taken = {(each.stream, sink.sink) for each in streams for sink in each.sinks if sink.action is SinkAction.TAKE_BACK}
    for manifest in (newest, base):
        for stream, cut in (manifest.streams if manifest else {}).items():
            for sink, note in cut.sinks.items():
                if (stream, sink) in taken and "log" in note:
                    tails[str(note["log"])] = int(note.get("tail", 0)) if manifest is base else 0
    for name in cursor_names(repository):
        try:
            cursor = read_cursor(repository, name)
        except Corrupt:
            continue
        tail = tails.get(cursor.log_identity or "") if cursor else None
        if cursor is not None and tail is not None and cursor.started and cursor.position > tail:
            yield f"cursor {name!r} is at sequence {cursor.position}, and the log goes back to {tail}"
