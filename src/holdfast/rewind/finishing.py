"""The steps of a rewind after its decision. Each is idempotent: after a crash, all of them are repeated.

Rules:
- The slot after an epoch is closed only when that epoch is committed in its sinks. So nothing is left to do for a
  timeline that has ended, and a sink that is stamped has every epoch of it.
- An epoch that can never be committed to a sink is recorded. After a temporary failure the rewind stops instead, and
  the next try continues it.
- Only a program with the same sinks may finish a rewind: with other sinks, rows would not be taken back. If the target
  of a sink is lost for good, the user declares that, and the rewind is completed without it.
- A sink must still hold the base. A target that is not there, such as a disk that is not mounted after a restart, would
  be created again, and stamped as if it held the base.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator

import msgspec

from holdfast.epoch import Attempt, Decision, Facts, Reach, Share, Verdict, unwatched
from holdfast.errors import (
    BadValue,
    Corrupt,
    Locked,
    Mismatch,
    NotSupported,
    RewindUnfinished,
    SinkFailed,
    TimelineEnded,
)
from holdfast.errors.base import PROGRAM
from holdfast.formats.decoding import converted
from holdfast.repository import Checkpoints, Decisions, History, Lease, Lineage, TimelineRecord
from holdfast.repository.base import now_ms
from holdfast.repository.history import current_user
from holdfast.repository.lineage import begin_timeline
from holdfast.repository.rewinds import (
    LostSink,
    RewindRecord,
    SinkAim,
    StreamAim,
    UnfinishedEpoch,
    read_rewind,
    record_lost,
    record_unfinished,
    unfinished_rewind,
    without_lost,
)
from holdfast.rewind.answering import asked
from holdfast.rewind.asking import held_epoch, held_in_lineage
from holdfast.rewind.building import drop_garbage, spare_timeline
from holdfast.rewind.program import Program, aim_of
from holdfast.rewind.steps import RewindStep, steps_after
from holdfast.sinks.base import EpochKey, EpochPlace, Link, Sink, StreamIdentity

REWIND, UNDO = "rewind", "undo"  # in the history
_log = logging.getLogger(__name__)


def finish_unfinished(
    program: Program, lease: Lease, reach: Reach = unwatched, lost: Collection[str] = ()
) -> RewindRecord | None:
    """Finish the rewind that was decided and not completed, as the lease holder; return it, or `None`.

    `lost` names sinks whose targets are lost for good. Raises `RewindUnfinished` if the program's sinks are not those
    of the rewind; nothing is changed then.
    """
    lineage = Lineage.load(program.repository)
    record = unfinished_rewind(program.repository, lineage)
    if lost:
        record = _declared_lost(program, record, lost)
    if record is None:
        _complete_history(program, lineage)
        return None
    RewindFinisher(program, record, lease, reach).finish()
    _log.warning("finished %s, which had been interrupted: timeline %d is current", record.title, record.timeline)
    return record


def _declared_lost(program: Program, record: RewindRecord | None, lost: Collection[str]) -> RewindRecord:
    """Record that sinks of an unfinished rewind are lost; return the rewind without them."""
    if record is None:
        do = "omit it; to leave a sink as it is in a new rewind, use --leave"
        raise BadValue(what="lost sink", value=", ".join(lost), why="no rewind was interrupted", do=do)
    named = [(stream, name) for stream, aim in record.streams.items() for name in aim.sinks if name in lost]
    known = sorted({name for aim in record.streams.values() for name in aim.sinks})
    if unknown := sorted(set(lost) - {name for _, name in named}):
        raise BadValue(what="lost sink", value=", ".join(unknown), expected=f"a sink of the rewind: {', '.join(known)}")
    for stream, name in named:
        sink, expected = program.sink(stream, name), record.streams[stream].sinks[name]
        if sink is not None and aim_of(sink) == SinkAim(kind=expected.kind, target=expected.target):
            why = f"the program still writes to it, as a sink of stream {stream!r}"
            do = "remove the sink from the program, or give it another target; then run the same command again"
            raise BadValue(what="lost sink", value=name, why=why, do=do)
    for stream, name in named:
        made = LostSink(stream=stream, sink=name, who=current_user(), at_ms=now_ms())
        record_lost(program.repository, record.timeline, made)
    return without_lost(program.repository, record)


class RewindFinisher:
    """Takes a decided rewind through the steps that follow."""

    def __init__(self, program: Program, record: RewindRecord, lease: Lease, reach: Reach = unwatched) -> None:
        _require_same_sinks(program, record)
        self._program = program
        self._repository = program.repository
        self._record = record
        self._lease = lease
        self._reach = reach
        self._decisions = Decisions(program.repository)
        self._lineage = Lineage.load(program.repository)

    def finish(self) -> None:
        """Do the steps after the decision, in the order of the table."""
        work = {
            RewindStep.END: self._end,
            RewindStep.TAKE_BACK: self._take_back,
            RewindStep.BASES: self._write_bases,
            RewindStep.BEGIN: self._begin,
        }
        for stream, aim, name, _ in self._sinks():
            self._require_there(stream, aim, name)  # of all: a sink that is not there must not lose its last epoch
        for step in steps_after(RewindStep.DECIDE):
            self._lease.check()
            work[step]()

    # --- the old timeline ---

    def _end(self) -> None:
        """Close the next slot of each stream. If a commit won it, complete that epoch and close the next."""
        for name, aim in self._record.streams.items():
            while True:
                newest = self._decisions.newest(name, aim.ends)
                last = newest.attempt.epoch if newest else 0
                if self._decisions.has_ended(name, aim.ends, last):
                    break  # an earlier try has given everything to the sinks, and may have stamped them since
                if newest is not None:
                    self._give(newest)
                if self._decisions.end(name, aim.ends, self._lease.number, last) is None:
                    break
            self._reach("stream ended")
        Checkpoints(self._repository).close_open(self._record.leaves, self._lease.number)

    def _give(self, decision: Decision) -> None:
        """Commit a decided epoch to the sinks that lack it."""
        facts, stream = Facts.of(decision), decision.attempt.stream
        for name, share in facts.sinks.items():
            if share.stands == share.before:
                continue  # it left no trace, was quarantined, or is the base of its timeline
            sink = self._sink(stream, name)
            try:
                why = "the sink is not in the program" if sink is None else self._given(sink, decision, share)
            except TimelineEnded:
                continue  # stamped by another process that finishes this rewind, after it ended the timeline
            except (Corrupt, Mismatch, NotSupported) as error:  # not supported: a commit that needs an open sink
                why = error.summary
            if why is not None:
                _log.warning("stream %s: sink %s never got epoch %d: %s", stream, name, decision.attempt.epoch, why)
                lost = UnfinishedEpoch(stream=stream, sink=name, epoch=decision.attempt.epoch, why=why)
                record_unfinished(self._repository, self._record.timeline, lost)

    def _given(self, sink: Sink, decision: Decision, share: Share) -> str | None:
        """Give an epoch to a sink; return why it cannot get it. Failures that time may fix are raised."""
        owner, attempt = self._owner(decision.attempt.stream), decision.attempt
        holds = held_epoch(sink, owner, attempt.timeline)
        if holds >= share.stands:
            return None
        if holds < share.before:
            return f"it holds epoch {holds}, and lacks the epochs in between"
        key = EpochKey(owner, attempt, decision.lease, Link(share.before, share.before_handle))
        asked(sink, f"commit epoch {attempt.epoch}", lambda: sink.commit(key, share.handle))
        return None

    # --- the sinks ---

    def _require_there(self, stream: str, aim: StreamAim, name: str) -> None:
        """Refuse a sink that holds less than the base, and held it when the rewind was decided."""
        sink, expected, owner = self._sink(stream, name), aim.sinks[name], self._owner(stream)
        least = min(expected.holds, aim.epoch)
        if sink is None or not least:
            return
        into = self._record.timeline
        stamps = [into] if self._record.undoes is None else [into, spare_timeline(into)]  # an undo may have made one
        stamped = (held_epoch(sink, owner, each) for each in stamps)
        holds = max(held_in_lineage(sink, owner, self._lineage), *stamped)
        if holds < least:
            why = f"it holds epoch {holds}, and held epoch {expected.holds} when {self._record.title} was decided"
            do = f"make {sink.target or 'its target'} available again, or restore it from a copy that holds epoch "
            do += (
                f"{least}; then run the same rewind again: it continues. If it is lost for good, remove the sink from "
            )
            do += f"the program, and complete the rewind without it: holdfast rewind {PROGRAM} --lost {name}"
            raise SinkFailed(sink=name, action="be taken back", why=why, do=do)

    def _take_back(self) -> None:
        """Stamp each sink, remove what old timelines staged there, then move the rows."""
        for stream, aim, name, expected in self._sinks():
            sink = self._sink(stream, name)
            if sink is not None:
                self._lease.check()
                self._require_there(stream, aim, name)
                self._move(sink, self._owner(stream), aim, expected)
            self._reach("sink taken back")

    def _move(self, sink: Sink, owner: StreamIdentity, aim: StreamAim, expected: SinkAim) -> None:
        record, into = self._record, self._record.timeline
        if expected.left:
            if type(sink).stamp is not Sink.stamp:
                asked(sink, "be stamped", lambda: sink.stamp(owner, aim.place, into))
            return
        undone = record.undoes
        if undone is None:
            asked(sink, "be taken back", lambda: sink.take_back(owner, aim.place, into))
            return
        begun = self._decided_late(owner.stream, undone)
        if begun is not None:
            with contextlib.suppress(TimelineEnded):  # an earlier try has gone on from there
                asked(sink, "be taken back", lambda: sink.take_back(owner, begun, spare_timeline(into)))
        asked(sink, "be put back", lambda: sink.put_back(owner, aim.place, into, undone))

    def _decided_late(self, stream: str, undone: int) -> EpochPlace | None:
        """Return where the undone timeline began, if it has decided an epoch since the undo was planned."""
        before, newest = read_rewind(self._repository, undone), self._decisions.newest(stream, undone)
        if before is None or newest is None or newest.attempt.epoch <= before.streams[stream].epoch:
            return None
        return undone, before.streams[stream].epoch

    # --- the new timeline ---

    def _write_bases(self) -> None:
        """Ask each sink for its position, and write the base decision of each stream."""
        for name, aim in self._record.streams.items():
            if aim.facts is not None:
                for sink in aim.sinks:
                    self._require_there(name, aim, sink)
                facts = converted(aim.facts, Facts)
                shares = {sink: self._share(name, sink, facts) for sink, at in aim.sinks.items() if not at.absent}
                attempt = Attempt(stream=name, timeline=self._record.timeline, epoch=aim.epoch, attempt=1)
                made = msgspec.structs.replace(facts, sinks=shares)
                lease = self._lease.number
                decision = Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=lease, facts=made.plain())
                self._decisions.close(decision)
            self._reach("base written")

    def _share(self, stream: str, name: str, facts: Facts) -> Share:
        sink, old = self._sink(stream, name), facts.sinks.get(name)
        holds = held_epoch(sink, self._owner(stream), self._record.timeline) if sink else 0
        return Share(handle=old.handle if old else {}, rows=old.rows if old else 0, stands=holds, before=holds)

    def _begin(self) -> None:
        """Make the timeline current, then append to the history."""
        record = self._record
        begin_timeline(
            self._repository,
            TimelineRecord(
                timeline=record.timeline,
                parent=record.parent,
                bases={name: aim.epoch for name, aim in record.streams.items()},
                checkpoint=record.checkpoint,
                who=record.who,
                why=record.why,
                at_ms=now_ms(),
            ),
        )
        self._reach("timeline begun")
        drop_garbage(self._repository, below=record.timeline)
        _add_history(self._program, record)
        self._reach("rewound")

    def _sinks(self) -> Iterator[tuple[str, StreamAim, str, SinkAim]]:
        for stream, aim in self._record.streams.items():
            for name, expected in aim.sinks.items():
                yield stream, aim, name, expected

    def _sink(self, stream: str, name: str) -> Sink | None:
        """Return a sink of the program; `None` if it lacks the sink, or if the target was declared lost."""
        aim = self._record.streams[stream].sinks.get(name)
        return None if aim is not None and aim.lost else self._program.sink(stream, name)

    def _owner(self, stream: str) -> StreamIdentity:
        return StreamIdentity(self._program.name, self._lineage.identity.uid, stream)


def _require_same_sinks(program: Program, record: RewindRecord) -> None:
    for stream, aim in record.streams.items():
        for name, expected in aim.sinks.items():
            if expected.absent:
                continue  # the user has accepted that its rows stay
            sink = program.sink(stream, name)
            found = None if sink is None else aim_of(sink)
            if found != SinkAim(kind=expected.kind, target=expected.target):
                has = (
                    "the program does not have it" if found is None else f"the program has {found.kind} {found.target}"
                )
                why = f"it needs sink {name!r} of stream {stream!r}, {expected.kind} {expected.target}, and {has}"
                raise RewindUnfinished(timeline=record.timeline, to=record.to, why=why)


def _complete_history(program: Program, lineage: Lineage) -> None:
    """Add the newest rewind to the history, if the process that carried it out died before it did."""
    try:
        record = read_rewind(program.repository, lineage.current)
    except Corrupt as error:  # it is finished: only an undo needs its record
        _log.warning("the rewind that began timeline %d can no longer be undone: %s", lineage.current, error.summary)
        return
    if record is None:
        return
    entries, _ = History(program.repository).seen()
    if not any(each.what in (REWIND, UNDO) and each.facts.get("timeline") == record.timeline for each in entries):
        _add_history(program, record)


def _add_history(program: Program, record: RewindRecord) -> None:
    streams = {name: aim.epoch for name, aim in record.streams.items()}
    left = sorted({name for aim in record.streams.values() for name, sink in aim.sinks.items() if sink.left})
    facts = {"timeline": record.timeline, "to": record.to, "epochs": streams, "left": left, "plan": record.plan}
    if lost := sorted({name for aim in record.streams.values() for name, sink in aim.sinks.items() if sink.lost}):
        facts["lost"] = lost
    what, who = (UNDO if record.undoes else REWIND), record.who or current_user()
    try:
        History(program.repository).add(what, record.why or f"to {record.to}", facts, who)
    except Locked:
        _log.warning("%s is complete, but not recorded yet: another process is writing to the history", record.title)
    except Corrupt as error:
        _log.warning("%s is complete, but cannot be added to the history: %s", record.title, error)
