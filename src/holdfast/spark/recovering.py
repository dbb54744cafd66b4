"""Recovery of one stream: what a start or a restart does before the first new epoch.

Rules:
- A recovery changes nothing before it has compared decisions, Spark's logs and sinks, except to create what is missing.
- The last decision is completed where a sink lacks it; open attempts are closed and discarded.
- Its result is a value. The next query starts from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast._error_text import one_line
from holdfast.epoch import Decision, EpochProgress, Facts, Move
from holdfast.errors import (
    HoldfastError,
    InDoubt,
    Locked,
    Mismatch,
    NotSupported,
    RecordCorrupt,
    SinkBehind,
    SinkFailed,
    SinkForeign,
    SinksChanged,
    Storage,
    StreamChanged,
)
from holdfast.plainspark.records import AdoptedRecord, adopted
from holdfast.program.changes import ChangeEffect, changes
from holdfast.program.description import StreamDescription
from holdfast.program.records import Programs
from holdfast.recovery import RecoveryPlan, plan
from holdfast.repository import History
from holdfast.repository.backfills import BackfillRecord, Backfills
from holdfast.repository.forks import fork_of
from holdfast.repository.objectstore import ObjectRepository
from holdfast.repository.opening import local_root
from holdfast.repository.stream_records import StreamRecord, stream_record_key
from holdfast.rewind.asking import held_in_lineage
from holdfast.sinks.base import EpochKey, Link, Sink, SinkContext, checked_position
from holdfast.sinks.places import record_places
from holdfast.spark import adapter
from holdfast.spark.acknowledging import Acknowledger
from holdfast.spark.dead_letters import judged, require_sound
from holdfast.spark.delivery import commit_to_sinks
from holdfast.spark.describing import described, movable
from holdfast.spark.failures import Kind
from holdfast.spark.last_decided import LastDecided
from holdfast.spark.opening import sink_context
from holdfast.spark.parts import StreamParts
from holdfast.spark.slots import AttemptSlots
from holdfast.spark.sources import ComparedSources
from holdfast.spark.stages import refuse_lost_stage
from holdfast.sparkfiles.storefolder import hadoop_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)
_COMPARED = 64  # decisions read at a start for the digests of source log entries; Spark compacts every 10 entries
_UNREPLAYABLE = {"socket": "it cannot read the same data twice, so a crash would lose data"}


@dataclass(frozen=True, slots=True)
class RecoveredStream:
    """A stream that is ready to continue after its last decided epoch."""

    plan: RecoveryPlan  # what the recovery found and did
    df: DataFrame
    settings: dict[str, str]  # of the Spark session, for the query
    sources: tuple[str, ...]  # names of the streaming sources that the query reads
    stateful: bool  # the query keeps state from batch to batch
    description: StreamDescription  # of the program
    adopted: AdoptedRecord | None = None  # the plain Spark query that the stream continues
    steps: dict[str, float] = field(default_factory=dict)  # how long each step took, in seconds


@dataclass(slots=True)
class _StepTimes:
    """Measures the steps of a recovery. A step that is repeated is added up."""

    last: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    def end(self, step: str) -> None:
        now = time.monotonic()
        self.seconds[step] = round(self.seconds.get(step, 0.0) + now - self.last, 6)
        self.last = now


class StreamRecovery:
    """Recovers one stream, any number of times."""

    def __init__(
        self, parts: StreamParts, slots: AttemptSlots, acknowledger: Acknowledger, sources: ComparedSources
    ) -> None:
        self._parts = parts
        self._sources = sources
        self._slots = slots
        self._acknowledger = acknowledger
        self._step = Kind.REPOSITORY
        self._reported = False  # whether the changes of the program were logged: once in a run
        self._warned: set[str] = set()  # sinks of which was logged that a rewind cannot take them back

    @property
    def step(self) -> Kind:
        """What the recovery was working on last: a failure is attributed to it."""
        return self._step

    def recover(self) -> RecoveredStream:
        """Prepare to continue after the last decided epoch.

        1. Build the DataFrame and refuse what cannot be exactly-once.  2. Open the sinks.  3. Compare decisions,
        Spark's logs and sinks.  4. Complete the last decision where a sink lacks it.  5. Close and discard open
        attempts.  6. Compare the sources with the last decision.
        """
        parts, steps = self._parts, _StepTimes()
        self._step = Kind.REPOSITORY
        parts.lease.check()
        self._acknowledger.begin_recovery()
        self._step = Kind.USER
        df = self._build()  # 1
        sources = tuple(adapter.source_names(df))
        self._step = Kind.REPOSITORY
        description = self._compared_program(df)
        settings = self._pinned_settings()
        steps.end("build")
        decision = parts.decisions.newest(parts.name, parts.timeline)
        self._step = Kind.SINK
        if decision is not None:
            self._refuse_missing(decision)
        for sink in parts.sinks:  # 2
            sink.open(context_of(parts, df, sink))
        steps.end("open sinks")
        self._step = Kind.REPOSITORY
        record_places(parts.run.repository, parts.name, parts.timeline, parts.sinks)
        stateful = adapter.is_stateful(df)
        while True:
            try:
                made = self._compare(decision)  # 3
            except Mismatch:
                newest = parts.decisions.newest(parts.name, parts.timeline)
                if newest == decision:
                    raise
                decision = newest
                continue  # a driver that this one replaces has decided an epoch meanwhile, and sinks have it already
            self._acknowledger.planned(made)
            steps.end("compare")
            if decision is not None:
                self._note_sinks(decision, made)
                self._complete(decision, made)  # 4
            steps.end("complete")
            last = self._last(decision, made)
            if not isinstance(self._slots.clear(made.decided + 1, EpochProgress()), Decision):  # 5
                break
            # A driver that this one replaces has decided the epoch just now.
            decision = parts.decisions.newest(parts.name, parts.timeline)
        steps.end("discard")
        self._step = Kind.SOURCE
        if self._sources.check(df, last):  # 6
            steps.end("compare sources")
        self._step = Kind.REPOSITORY
        self._acknowledger.recovered(last)
        self._report_new_sinks(decision)
        record = adopted(parts.run.repository, parts.name, parts.timeline)
        if record is not None and record.pending > made.decided:
            self._acknowledger.begin_decision()  # a checkpoint does not record which sinks are not given the epoch
        return RecoveredStream(made, df, settings, sources, stateful, description, record, steps.seconds)

    # --- 1 and 2: the program ---

    def _build(self) -> DataFrame:
        run, spec = self._parts.run, self._parts.spec
        df = run.build(spec)
        for source in adapter.source_names(df):
            if source in _UNREPLAYABLE:
                raise NotSupported(
                    what=f"the source {source!r} of stream {spec.name!r}",
                    why=_UNREPLAYABLE[source],
                    do="put a durable log in front of it (Kafka, or files)",
                )
        if isinstance(run.repository, ObjectRepository):  # the stream may have been built in a session of its own
            adapter.serve_root(df.sparkSession, hadoop_root(run.repository))
        if fork_of(run.repository) is not None:
            _refuse_clean_source(spec.name, df)
        adapter.require_packages(df)
        adapter.require_trigger(run.spark, spec.trigger)
        return df

    def _compared_program(self, df: DataFrame) -> StreamDescription:
        """Return the description of the program; refuse one that cannot continue the state of the stored one."""
        run, name = self._parts.run, self._parts.name
        description = described(self._parts.spec, df, *movable(run.repository))
        stored = Programs(run.repository).newest(name, run.lineage)
        found = changes(name, stored.description, description) if stored else []
        impossible = [each for each in found if each.effect is ChangeEffect.IMPOSSIBLE]
        if impossible:
            first, more = impossible[0], f"; and {len(impossible) - 1} more (holdfast plan)" if impossible[1:] else ""
            what, why = f"{first.what} of stream {name!r}", first.means + more
            raise StreamChanged(what=what, before=repr(first.before), now=repr(first.now), why=why)
        if not self._reported:
            self._reported = True
            for each in found:
                level = logging.WARNING if each.effect is ChangeEffect.TAKES_EFFECT else logging.INFO
                _log.log(level, "the program has changed: %s", each.summary)
        return description

    def _pinned_settings(self) -> dict[str, str]:
        """Return the settings that this stream was first started with, which the first start records, and the run's."""
        run, mode = self._parts.run, self._parts.spec.output_mode
        key = stream_record_key(self._parts.name, self._parts.timeline)
        record = StreamRecord(stream=self._parts.name, output_mode=mode, settings=adapter.state_settings(run.spark))
        first = StreamRecord.unsealed(run.repository.put_if_absent(key, record.sealed()).data, key)
        if first.output_mode != mode:
            what = f"the output mode of stream {self._parts.name!r}"
            raise StreamChanged(what=what, before=repr(first.output_mode), now=repr(mode))
        settings = {**first.settings, adapter.RETAIN: str(run.retain)}
        if isinstance(run.repository, ObjectRepository):
            adapter.require_store_state(self._parts.name, first.settings)
            settings |= adapter.STORE_QUERY
        elif not run.shared:
            settings |= adapter.FAST_FILES  # no other process writes there: this one holds the lock
        if run.poll_ms is not None:
            settings[adapter.POLLING_DELAY] = f"{run.poll_ms}ms"
        return settings

    def _refuse_missing(self, decision: Decision) -> None:
        """Refuse a sink whose target is gone, before `open` creates an empty one: that would hide the cause.

        When Spark has committed the last decided epoch, every sink has it. Before that, only the epochs before it are
        known to be committed. A sink whose first epoch is in doubt may never have had a row, so it may be created.
        """
        parts = self._parts
        shares, epoch = Facts.of(decision).sinks, decision.attempt.epoch
        for sink in parts.sinks:
            share = shares.get(sink.name)
            if share is not None and share.stands and sink.is_missing():
                held = share.stands if epoch <= parts.log.position().commits else share.before
                if held:
                    raise SinkBehind(stream=parts.name, sink=sink.name, holds=0, decided=held)

    # --- 3: decisions, Spark's logs and sinks ---

    def _compare(self, decision: Decision | None) -> RecoveryPlan:
        parts, log = self._parts, self._parts.log
        if decision is not None:
            self._require_log(decision)
        source_log = Facts.of(decision).source_log if decision else {}
        for name in log.drop_torn(decision.attempt.epoch if decision else 0, source_log):
            _log.warning("stream %s: removed Spark's %s: it lost its bytes, and no decision needs it", parts.name, name)
        if decision is None:
            log.clear_unbegun()
        holds = self._holds(decision)
        fills = self._complete_backfills(decision, holds) if decision else {}
        try:
            return plan(
                parts.name,
                decision,
                log.position(),
                holds | dict.fromkeys(fills, decision.attempt.epoch if decision else 0),
                new_sinks=parts.accepts("sinks"),
                filled=fills.keys(),
                replaced={name for record in fills.values() for name in record.replaces},
            )
        except SinkBehind as behind:
            raise self._with_position(behind) from None

    def _with_position(self, behind: SinkBehind) -> SinkBehind:
        """Return the error with the epoch that the sink holds: a restored copy may be older than the timeline."""
        parts = self._parts
        (sink,) = [each for each in parts.sinks if each.name == behind.sink]
        holds = held_in_lineage(sink, parts.owner, parts.run.lineage)
        return SinkBehind(stream=behind.stream, sink=behind.sink, holds=holds, decided=behind.decided)

    def _require_log(self, decision: Decision) -> None:
        """Raise if Spark's logs are not the ones that the last decision builds upon; nothing is changed.

        Each decision has the digests of the entries that were new in its epoch, so those of the epochs before are read
        as well, back to the last compacted entry. Not compared: entries whose decisions were pruned, are damaged, or
        are more than `_COMPARED` epochs old.
        """
        parts, epoch, facts = self._parts, decision.attempt.epoch, Facts.of(decision)
        digests = dict(facts.source_entries)
        missing = set(parts.log.require(epoch, facts.end, facts.source_log)) - digests.keys()
        for each in range(epoch - 1, max(epoch - _COMPARED, 0), -1):
            if not missing:
                break
            try:
                older = parts.decisions.committed(parts.name, parts.timeline, each)
                found = Facts.of(older).source_entries if older else None
            except RecordCorrupt as error:
                _log.warning("stream %s: entries of source logs are not compared: %s", parts.name, one_line(error))
                continue
            if found is None:
                break  # pruned, as are those before it
            digests |= found
            missing -= found.keys()
        parts.log.require_digests(digests)

    def _holds(self, decision: Decision | None) -> dict[str, int]:
        """Return the last epoch that each sink holds."""
        parts = self._parts
        holds: dict[str, int] = {}
        for sink in parts.sinks:
            try:
                standing = checked_position(sink, sink.inspect(parts.owner, parts.timeline))
            except Exception as error:  # a user-defined sink may raise anything
                if isinstance(error, HoldfastError) and (decision is None or not isinstance(error, Storage)):
                    raise
                why = one_line(error)
                if decision is None:
                    raise SinkFailed(sink=sink.name, action="be inspected", why=why) from error
                epoch = decision.attempt.epoch
                raise InDoubt(stream=parts.name, epoch=epoch, sinks=(sink.name,), why=why) from error
            if standing.foreign is not None:
                raise SinkForeign(sink=sink.name, place=repr(sink), owner=standing.foreign)
            holds[sink.name] = standing.epoch
        return holds

    def _complete_backfills(self, decision: Decision, holds: Mapping[str, int]) -> dict[str, BackfillRecord]:
        """Return the backfills that have filled new sinks up to the last epoch; commit what they have decided."""
        parts, epoch = self._parts, decision.attempt.epoch
        known, records = Facts.of(decision).sinks, Backfills(parts.run.repository)
        fills: dict[str, BackfillRecord] = {}
        for sink in parts.sinks:
            if sink.name in known or holds[sink.name] not in (0, epoch):
                continue
            record = records.find(parts.name, parts.timeline, sink.name, epoch)
            if record is not None:
                if not holds[sink.name]:
                    commit_backfill(parts, sink, record)
                fills[sink.name] = record
        return fills

    def _report_new_sinks(self, decision: Decision | None) -> None:
        """Report the sinks that a rewind cannot take back, before they get their first epoch: later it is too late."""
        known = set(Facts.of(decision).sinks) if decision else set()
        for sink in self._parts.sinks:
            if sink.name in known | self._warned:
                continue
            cannot = sink.cannot_be_taken_back()
            if cannot is not None:
                text = "stream %s: sink %r cannot be taken back by a rewind: %s (%s)"
                _log.warning(text, self._parts.name, sink.name, cannot.why, cannot.do)
            self._warned.add(sink.name)

    # --- 4: the last decision ---

    def _note_sinks(self, decision: Decision, made: RecoveryPlan) -> None:
        """Record in the history that the stream continues with other sinks: some of them lack the earlier epochs."""
        before, now = set(Facts.of(decision).sinks), {sink.name for sink in self._parts.sinks} - set(made.filled)
        if before - set(made.replaced) == now or not before:  # the base of a fork has no sinks
            return
        name = self._parts.name
        facts = {"stream": name, "added": sorted(now - before), "removed": sorted(before - now)}
        changed = SinksChanged(stream=name, added=tuple(facts["added"]), removed=tuple(facts["removed"]))
        why = f"{changed.summary}; after epoch {decision.attempt.epoch}"
        try:
            History(self._parts.run.repository).add("accept", why, facts)
        except Locked:
            _log.warning("%s; accepted, but not recorded: another process is writing to the history", changed.summary)

    def _complete(self, decision: Decision, made: RecoveryPlan) -> None:
        """Commit the last decided epoch to the sinks that lack it."""
        if not made.finish:
            return
        parts, progress = self._parts, EpochProgress()
        progress.move(Move.FIND)
        commit_to_sinks(
            parts.owner,
            [sink for sink in parts.sinks if sink.name in made.finish],
            decision,
            Facts.of(decision),
            progress=progress,
            reach=parts.reach,
            spark_committed=not made.replays,
        )
        if not made.replays:
            progress.move(Move.FINISH)

    def _last(self, decision: Decision | None, made: RecoveryPlan) -> LastDecided:
        keeper, facts = self._parts.stage, Facts.of(decision) if decision else None
        stage = None
        if keeper is not None:
            stage = keeper.load(facts.stage if facts else None)
        elif facts is not None:
            refuse_lost_stage(self._parts.name, facts.stage)
        if facts is None:
            return LastDecided(stands=dict(made.stands), stage=stage)
        return LastDecided.after(made.decided, facts, stage, made.stands)


def _refuse_clean_source(stream: str, df: DataFrame) -> None:
    """Refuse a source that removes its input: in a fork, it would remove the input of the original."""
    for name, options in adapter.inputs(df):
        if options.get("cleansource", "off").lower() != "off":
            why = "the pipeline is a fork, and the original reads the same input"
            do = "remove the option cleanSource from the fork"
            raise NotSupported(what=f"cleanSource of source {name} in stream {stream!r}", why=why, do=do)


def context_of(parts: StreamParts, df: DataFrame, sink: Sink) -> SinkContext:
    """Return what a sink of a stream is opened with."""
    run, dead = parts.run, parts.spec.dead_letter
    if dead is not None and sink is dead.sink:
        require_sound(parts.name, df, dead.valid)
        df = judged(df, dead.valid)
    return sink_context(
        df,
        sink,
        parts.owner,
        spark=run.spark,
        output_mode=parts.spec.output_mode,
        root=local_root(run.repository),
        shared=run.shared,
        reach=run.reach,
        freezes=parts.spec.on_epoch is not None,
    )


def commit_backfill(parts: StreamParts, sink: Sink, record: BackfillRecord) -> None:
    """Give a sink the rows that a backfill has decided for it; idempotent."""
    sink.commit(EpochKey(parts.owner, record.attempt, record.lease, Link(0, None)), record.handle)
    parts.reach("backfill committed")
