"""Asks the sinks of one stream what a rewind would do, and compares the answers with the decisions and the base."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from holdfast import _figures as figures
from holdfast.epoch import Decision, Facts
from holdfast.errors import Corrupt
from holdfast.formats.manifest import Manifest
from holdfast.log_needs import LOG
from holdfast.repository import Decisions, Lineage, Repository
from holdfast.repository.backfills import BackfillRecord
from holdfast.rewind.answering import asked
from holdfast.rewind.filled import FilledSinks
from holdfast.rewind.plan import SinkAction, SinkPlan
from holdfast.rewind.program import ProgramStream, aim_of
from holdfast.sinks.base import CannotTakeBack, EpochPlace, Sink, StreamIdentity, TakeBack, checked_position

SinkPlanner: TypeAlias = partial[SinkPlan]
"""The plan of a sink that lacks only what is done with it."""


def held_epoch(sink: Sink, owner: StreamIdentity, timeline: int) -> int:
    """Return the last epoch of a timeline that a sink holds."""
    return asked(sink, "be inspected", lambda: checked_position(sink, sink.inspect(owner, timeline))).epoch


def held_in_lineage(sink: Sink, owner: StreamIdentity, lineage: Lineage) -> int:
    """Return the last epoch of the lineage that a sink holds.

    A sink that was restored from a copy may lack the stamp of the current timeline, and hold epochs of an earlier one.
    Of that timeline, only the epochs up to the base of the next one belong to the lineage.
    """
    for timeline, last in reversed(lineage.places(owner.stream)):
        epoch = held_epoch(sink, owner, timeline)
        if held := epoch if last is None else min(epoch, last):
            return held
    return 0


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """One stream as its sinks are asked about it."""

    owner: StreamIdentity
    lineage: Lineage
    decision: Decision | None  # its last one
    base: EpochPlace
    base_rows: int  # written to each sink up to the base
    base_sinks: Set[str]  # those in the checkpoint
    is_read: bool  # another stream reads it
    is_read_by_declaration: bool  # by a channel that only the program knows: any of its sinks

    @property
    def facts(self) -> Facts | None:
        """The facts of the last decision."""
        return Facts.of(self.decision) if self.decision else None


class SinkQuestions:
    """Asks the sinks of one stream."""

    def __init__(self, about: SinkFacts, repository: Repository, leave: frozenset[str]) -> None:
        self._about = about
        self._decisions = Decisions(repository)
        self._fills = FilledSinks(repository, about.lineage, about.owner)
        self._leave = leave
        self.problems: list[str] = []
        self.untouched: list[str] = []  # sinks without an epoch: the next start asks what to do with them

    def sinks(self, stream: ProgramStream) -> Iterator[SinkPlan]:
        """Yield each sink of the program, then those of the last decision that the program lacks."""
        for sink in stream.sinks:
            if self._is_new(sink):
                self.untouched.append(sink.name)
            else:
                yield self._sink(sink)
        facts = self._about.facts
        for name in sorted(set(facts.sinks if facts else ()) - {sink.name for sink in stream.sinks}):
            yield self._absent(name)

    def _is_unknown(self, sink: str) -> bool:
        """Whether the stream has not written to a sink: the next start refuses it. The base of a fork has no sinks."""
        facts = self._about.facts
        return facts is not None and bool(facts.sinks) and sink not in facts.sinks

    def _is_new(self, sink: Sink) -> bool:
        """Whether a sink has no epoch yet.

        A rewind does not stamp it: an empty sink can still be filled. Nor does the base decision name it: the next
        start refuses the sink until the user accepts that it lacks the rows up to the base.
        """
        about = self._about
        if not self._is_unknown(sink.name) or not about.base[1] or held_in_lineage(sink, about.owner, about.lineage):
            return False
        return self._fills.decided(sink.name, about.decision) is None

    def _check_new(self, name: str, sink: Sink, holds: int) -> None:
        """Report a sink that the next start would refuse, if the rewind hides that from it."""
        about = self._about
        if not self._is_unknown(sink.name):
            return
        if not holds and self._fills.decided(sink.name, about.decision) is not None:
            self.problems.append(f"a backfill of {name} was interrupted (complete it: run the same backfill again)")
        elif 0 < holds < about.base[1] and sink.name not in about.base_sinks:
            why = f"{name} lacks the epochs {holds + 1} to {about.base[1]} of the base: the stream continued without it"
            self.problems.append(f"{why} (remove it from the program, and go back)")

    def _sink(self, sink: Sink) -> SinkPlan:
        about = self._about
        name, aim = f"sink {sink.name!r} of stream {about.owner.stream!r}", aim_of(sink)
        holds = held_in_lineage(sink, about.owner, about.lineage)
        plan = partial(SinkPlan, sink=sink.name, kind=aim.kind, target=aim.target, holds=holds)
        self._compare(name, sink)
        self._check_new(name, sink, holds)
        if sink.name in self._leave:
            return self._left(sink, plan)
        answer = asked(sink, "be asked", lambda: sink.can_take_back(about.owner, about.base))
        if isinstance(answer, CannotTakeBack):
            stay = f"--leave {sink.name}"
            do = answer.do if stay in answer.do else f"{answer.do}; or accept that its rows stay: {stay}"
            self.problems.append(f"{name} cannot be taken back: {answer.why} ({do})")
            return plan(action=SinkAction.CANNOT, why=answer.why, do=answer.do)
        filled = self._fills.taken_back(sink, about.base, answer)
        if filled is not None:
            return self._filled(sink, plan, answer, filled)
        counted = self._counted(sink.name, holds)
        if answer.kept and not self._agree(sink.name, holds, answer.rows, counted):
            self.problems.append(
                f"{name} has {answer.rows} rows after the base, but {counted} were committed: "
                "another program changed them"
            )
        return plan(
            action=SinkAction.TAKE_BACK, epochs=answer.epochs, rows=answer.rows, counted=counted, kept=answer.kept
        )

    def _filled(self, sink: Sink, plan: SinkPlanner, answer: TakeBack, record: BackfillRecord) -> SinkPlan:
        """Refuse to take back what a backfill has written: the rows up to the base would be lost."""
        about, facts = self._about, self._about.facts
        again = facts.total_rows - about.base_rows if facts else 0
        removed = "its rows" if answer.rows is None else figures.counted(answer.rows, "row")
        are = "is" if again == 1 else "are"
        why = (
            f"it was filled by a backfill up to epoch {record.attempt.epoch}, after the base: {removed} would be taken "
            f"back, and only {figures.counted(again, 'row')} {are} processed again"
        )
        later = self._fills.first_checkpoint(record)
        do = (f"go back to checkpoint {later} or later; or " if later else "") + (
            f"accept that its rows stay, and that those after the base are written twice: --leave {sink.name}; or "
            "remove it from the program, go back, then add it with another, empty target and fill it: holdfast backfill"
        )
        self.problems.append(f"sink {sink.name!r} of stream {about.owner.stream!r} cannot be taken back: {why} ({do})")
        return plan(action=SinkAction.CANNOT, epochs=answer.epochs, rows=answer.rows, why=why, do=do)

    def _left(self, sink: Sink, plan: SinkPlanner) -> SinkPlan:
        about, name = self._about, f"sink {sink.name!r} of stream {self._about.owner.stream!r}"
        why: str | None = None
        if about.is_read_by_declaration or (about.is_read and (sink.target or "").startswith(LOG)):
            why = "another stream reads it, and would read the rows twice"
        else:
            why = asked(sink, "be asked", lambda: sink.cannot_be_left(about.owner))
        if why:
            self.problems.append(f"{name} cannot be left: {why}")
        action = SinkAction.CANNOT if why else SinkAction.LEAVE
        text = why or "its rows stay, and the rows after the base are written to it a second time"
        if not why and sink.mark_expires and not plan.keywords["holds"] and about.base[1]:
            text += "; its record of its epochs is lost: check that it holds the rows up to the base"
        return plan(action=action, why=text)

    def _absent(self, sink: str) -> SinkPlan:
        left = sink in self._leave
        if not left:
            self.problems.append(
                f"sink {sink!r} of stream {self._about.owner.stream!r} holds its last epoch, but is not in the program "
                f"(add it again, or accept that its rows stay: --leave {sink})"
            )
        why = "it is not in the program"
        action = SinkAction.LEAVE if left else SinkAction.CANNOT
        return SinkPlan(sink=sink, kind="", target=None, action=action, holds=None, why=why)

    def _compare(self, name: str, sink: Sink) -> None:
        """Report a sink that holds more of the current timeline than was decided."""
        about, facts, decision = self._about, self._about.facts, self._about.decision
        holds = held_epoch(sink, about.owner, about.lineage.timeline_of(about.owner.stream))
        share = facts.sinks.get(sink.name) if facts else None
        decided = share.stands if share else decision.attempt.epoch if decision else 0
        if holds > decided:
            self.problems.append(f"{name} holds epoch {holds}, but epoch {decided} is the last one that was decided")

    def is_behind(self, sink: str, holds: int | None) -> bool:
        """Whether a sink lacks epochs that were decided for it, beyond the last one."""
        facts = self._about.facts
        share = facts.sinks.get(sink) if facts else None
        return share is not None and holds is not None and holds < share.before

    # --- rows ---

    def _agree(self, sink: str, holds: int, rows: int | None, counted: int | None) -> bool:
        """Whether the rows of a sink are those that the decisions count.

        If its last epoch was decided and not completed, some of the rows of that epoch may be there.
        """
        if rows is None or counted is None:
            return True
        facts = self._about.facts
        share = facts.sinks.get(sink) if facts else None
        in_doubt = share.rows if share and share.stands > holds else 0
        return counted <= rows <= counted + in_doubt

    def _counted(self, sink: str, holds: int) -> int | None:
        """Return the rows after the base that were decided for a sink and that it holds; `None` if not known."""
        about, facts = self._about, self._about.facts
        share = facts.sinks.get(sink) if facts else None
        if facts is None or about.decision is None:
            return 0
        if share is None:
            return None
        if share.stands <= holds and about.decision.attempt.epoch == about.base[1]:
            return 0
        return self._sum(sink, min(holds, about.decision.attempt.epoch))

    def _sum(self, sink: str, last: int) -> int | None:
        about, rows = self._about, 0
        for epoch in range(about.base[1] + 1, last + 1):
            decision = self._decision(epoch)
            if decision is None:
                return None  # pruned
            found = Facts.of(decision).sinks.get(sink)
            rows += found.rows if found else 0
        return rows

    def _decision(self, epoch: int) -> Decision | None:
        stream = self._about.owner.stream
        for timeline, _ in self._about.lineage.places(stream):
            if self._about.lineage.holds_epoch(stream, timeline, epoch):
                try:
                    found = self._decisions.committed(stream, timeline, epoch)
                except Corrupt:
                    return None
                if found is not None:
                    return found
        return None


def satisfies(sink: Sink, owner: StreamIdentity, manifest: Manifest, holds: int) -> bool:
    """Whether a sink that holds this epoch of the lineage still has what a checkpoint recorded of it."""
    cut = manifest.streams.get(owner.stream)
    mark = cut.sinks.get(sink.name) if cut else None
    return mark is None or holds >= int(mark.get("epoch", 0))
