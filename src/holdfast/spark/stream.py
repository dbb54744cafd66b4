"""One stream's life in a run: recovered, started, watched, restarted within its budget, stopped at an epoch's end."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast._error_text import one_line
from holdfast._redaction import redacted
from holdfast.barriers import BarrierInjector
from holdfast.coordinator import StreamPosition
from holdfast.epoch import Decision, EpochProgress, Facts, Move, Reach, is_decided, unwatched
from holdfast.errors import (
    HoldfastError,
    InDoubt,
    Locked,
    NotSupported,
    OutageTooLong,
    QueryFailed,
    RecordCorrupt,
    SessionLost,
    SinkFailed,
    SinkForeign,
    SinksChanged,
    SparkFileDamaged,
    Storage,
    StreamChanged,
    StreamFailed,
)
from holdfast.formats.manifest import Manifest
from holdfast.formats.sealed_json import Record
from holdfast.policy import Backoff, RestartBudget
from holdfast.recovery import RecoveryPlan, plan
from holdfast.repository import Decisions, GapRecord, Gaps, History, Identity, Lease, LocalRepository
from holdfast.repository.decisions import stream_folder
from holdfast.sinks.base import Sink, SinkContext, StreamIdentity, checked_standing
from holdfast.sinks.places import record_places
from holdfast.spark import adapter
from holdfast.spark.delivery import commit_to_sinks
from holdfast.spark.epochs import EpochFailure, EpochRunner, EpochTimes, Stopping
from holdfast.spark.failures import BUDGETED, Diagnosis, Kind, Remedy, damaged_file, diagnose, same
from holdfast.spark.lag import RowRate, behind_logs, behind_topics
from holdfast.spark.logsource import FORMAT as LOG_SOURCE
from holdfast.spark.outages import Outage, Outages
from holdfast.spark.snapshot import Snapshots
from holdfast.spark.sparklog import SparkLog
from holdfast.spark.spec import StreamSpec
from holdfast.spark.stages import StageKeeper
from holdfast.spark.unread import Unread, UnreadFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_log = logging.getLogger(__name__)
_PATIENCE_S = 5.0  # for Spark to write a commit, before a stream is stopped
_LOOK_S = 0.2  # between two looks at a query that was restarted after a failure
_MOMENT_S = 0.5  # for an epoch to begin that Spark may be about to begin
_LOOKED_AT = 64  # decisions read at a start for the digests of sources' log entries; Spark compacts every 10 entries
_SECOND = (
    "epoch {before} was passed over just before, so epoch {epoch} is not: both may have failed for the same outage; "
    "mend it, then run again. If the rows themselves are bad, filter them out, or pass over this epoch too by "
    "holdfast run --accept gaps, or pipeline.run(accept=['gaps'])"
)
_TROUBLED = ("restarting", "waiting", "failed")
_UNREPLAYABLE = {"socket": "what it has read once it cannot read again, so a crash would lose it"}


def _nothing(*_: object) -> None:
    """Be told and do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCallbacks:
    """What the user wants to be told. A callback that fails is logged; the stream goes on."""

    on_epoch: Callable[[str, int, int], object] = _nothing  # stream, epoch, rows
    on_restart: Callable[[str, Exception, int], object] = _nothing  # stream, error, how many so far
    on_outage: Callable[[str, Outage], object] = _nothing  # stream, what it waits for; once for each failed try
    on_outage_over: Callable[[str, Outage], object] = _nothing  # stream, what it waited for
    on_exhausted: Callable[[str, Exception], object] = _nothing  # stream, the error that ended it
    on_quarantine: Callable[[str, GapRecord], object] = _nothing  # stream, the gap that was recorded
    on_checkpoint: Callable[[str, Manifest], object] = _nothing  # pipeline, what was taken
    on_checkpoint_failed: Callable[[str, Exception], object] = _nothing  # pipeline, error

    def and_then(self, other: StreamCallbacks) -> StreamCallbacks:
        """Return callbacks that tell these and then others, whatever these do."""

        def both(first: Callable[..., object], second: Callable[..., object]) -> Callable[..., object]:
            def told(*facts: object) -> None:
                try:
                    first(*facts)
                finally:
                    second(*facts)

            return told

        names = [each.name for each in dataclasses.fields(self)]
        return StreamCallbacks(**{name: both(getattr(self, name), getattr(other, name)) for name in names})


def _built_alone(spec: StreamSpec) -> DataFrame:
    raise NotSupported(what=f"stream {spec.name!r}", why="it belongs to no running pipeline")


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all streams of one run share."""

    spark: SparkSession
    repository: LocalRepository
    identity: Identity
    lease: Lease
    retain: int
    shared: bool
    available_now: bool
    accept: frozenset[str]
    backoff: Backoff
    callbacks: StreamCallbacks
    reach: Reach = unwatched
    clock: Callable[[], float] = time.monotonic
    acknowledge: Callable[[int, StreamPosition | Exception], None] = _nothing
    build: Callable[[StreamSpec], DataFrame] = _built_alone
    outage: Mapping[Kind, float | None] = field(default_factory=dict)  # limits in place of those of the streams


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """How a stream is doing. `rows` counts what each sink was given in this run, not what it holds.

    A field that cannot be determined is `None`. `unread` is counted at most every few seconds.
    """

    stream: str  # its name
    state: str  # starting, running, restarting, waiting, ended, stopped, failed
    epoch: int  # the last one that every sink has
    rows: int  # given to each sink in this run
    restarts: int  # in this run
    in_doubt: int | None = None  # an epoch that is decided and not yet in every sink
    last_error: str | None = None  # what the last restart, or the end, was for
    behind: int | None = None  # events or records that its sources have and no sink has yet, where that can be told
    watermark_ms: int | None = None  # of event time, in the last epoch; where the query has one
    unread: Unread | None = None  # files and bytes that its file sources have and no sink has yet
    rows_per_s: float = 0.0  # given to each sink, over the last minute
    input_rows_per_s: float | None = None  # that arrived, in Spark's last trigger
    processed_rows_per_s: float | None = None  # that were processed, in Spark's last trigger
    last_epoch: EpochTimes | None = None  # of this run: its rows, its duration and that of each phase
    last_progress: dict[str, Any] | None = None  # Spark's own report of its last trigger, as `lastProgress` has it
    outage: Outage | None = None  # what it waits for, until the next epoch, or until it runs and has no new input


class StreamRecord(Record, frozen=True, kw_only=True):
    """How a stream was first started: Spark must be told the same ever after."""

    stream: str
    output_mode: str
    settings: dict[str, str]


@dataclass(slots=True)
class _Repeats:
    """How often the same failure came in a row."""

    last: EpochFailure | None = None
    times: int = 0

    def count(self, failure: EpochFailure) -> int:
        self.times = self.times + 1 if self.last is not None and same(self.last, failure) else 1
        self.last = failure
        return self.times


@dataclass(slots=True)
class _Watch:
    """What the outside may see and ask."""

    state: str = "starting"
    restarts: int = 0
    error: Exception | None = None
    plan: RecoveryPlan | None = None
    started: threading.Event = field(default_factory=threading.Event)


class StreamRun:
    """One stream of a running pipeline."""

    def __init__(self, spec: StreamSpec, run: RunContext) -> None:
        self.spec = spec
        self.name = spec.name
        self.failed: StreamFailed | None = None
        self._run = run
        self._owner = StreamIdentity(run.identity.pipeline, run.identity.uid, spec.name)
        self._timeline = run.identity.timeline
        self._decisions = Decisions(run.repository)
        self._gaps = Gaps(run.repository)
        folder = stream_folder(self.name, self._timeline)
        self._record_key = f"{folder}/stream.json"
        self._log = SparkLog(run.repository.root / folder / "spark", self.name)
        self.sources: tuple[str, ...] = ()
        self.injector = BarrierInjector()
        self.snapshots = Snapshots(self._log.folder, run.repository)
        self.oldest_kept: int | None = None  # the first epoch that a checkpoint needs
        self._stage: StageKeeper | None = None
        self._runner: EpochRunner | None = None
        self._df: DataFrame | None = None
        self._query: StreamingQuery | None = None
        self._settings: dict[str, str] = {}
        self._stopping = threading.Event()
        self._watch = _Watch()
        self._repeats = _Repeats()
        self._budgets = {kind: RestartBudget(spec.restart[kind]) for kind in BUDGETED}
        self._outages = Outages({**spec.outage, **run.outage}, run.backoff, run.clock)
        self._step = Kind.REPOSITORY  # what is in progress outside of an epoch
        self._in_a_row = 0
        self._settled = False  # no epoch was decided since the last one, though a recovery has begun and not ended
        self._supervisor = 0  # the thread that the stream is started and restarted in
        self._logs: list[Path] | None = None  # event logs that it reads; looked up when first asked for
        self._unread: UnreadFiles | None = None  # likewise, of its file sources
        self._progress: dict[str, Any] = {}  # Spark's, of the last trigger; kept when the query has ended
        self._rate = RowRate(run.clock)

    # --- recovery ---

    def recover(self) -> RecoveryPlan:
        """Get ready to go on after the last decided epoch.

        1. Build the DataFrame and refuse what cannot hold.  2. Open the sinks.  3. Compare decisions, Spark's logs and
        sinks.  4. Finish the last decision where a sink lacks it.  5. Close and discard what is open.
        """
        self._step = Kind.REPOSITORY
        self._run.lease.check()
        if self._runner is not None:
            self._settled = self._settled or not self._runner.unfinished
            self._runner.unfinished = True  # sinks may be given an epoch here: nobody acknowledges until it is done
            self._runner.failure = None  # what fails from here on is another failure
        self._step = Kind.USER
        self._df = self._built()  # 1
        self.sources = tuple(adapter.source_names(self._df))
        self._step = Kind.REPOSITORY
        self._settings = self._pinned_settings()
        self._step = Kind.SINK
        for sink in self.spec.sinks:  # 2
            sink.open(self._setting(self._df, sink))
        self._step = Kind.REPOSITORY
        record_places(self._run.repository, self.name, self._timeline, self.spec.sinks)
        if self._runner is None:
            self._runner = self._new_runner()
            self._runner.unfinished = True
        self._runner.stateful = adapter.is_stateful(self._df)
        while True:
            decision = self._decisions.newest(self.name, self._timeline)  # 3
            if decision is not None:
                self._require_log(decision)
            self._drop_torn(decision)
            if decision is None:
                self._log.clear_unbegun()
            made = plan(
                self.name, decision, self._log.position(), self._holds(decision), new_sinks=self._accepts("sinks")
            )
            self._settled = self._settled and not made.finish and made.decided == self._runner.course.epoch
            if decision is not None:
                self._note_sinks(decision)
                self._finish(decision, made)  # 4
            self._runner.recovered(decision, dict(made.stands))
            if self._runner.clear(made.decided + 1, EpochProgress())[1] is None:  # 5
                break  # else a driver that we replace has decided it just now
        self._runner.unfinished = self._settled = False
        self._watch.plan = made
        unusual = (made.finish or made.replays) and self._outages.current is None
        _log.log(logging.WARNING if unusual else logging.INFO, "%s", made.summary())
        return made

    def _require_log(self, decision: Decision) -> None:
        """Raise if Spark's logs are not those that the last decision builds upon; nothing is changed.

        Each decision has the digests of the entries that were new in its epoch, so those of the epochs before are read
        as well, back to the last compacted entry. Entries whose decisions were pruned, are damaged, or are more than
        `_LOOKED_AT` epochs old are not compared.
        """
        epoch, facts = decision.attempt.epoch, Facts.of(decision)
        digests = dict(facts.source_entries)
        missing = set(self._log.require(epoch, facts.end, facts.source_log)) - digests.keys()
        for each in range(epoch - 1, max(epoch - _LOOKED_AT, 0), -1):
            if not missing:
                break
            try:
                older = self._decisions.committed(self.name, self._timeline, each)
                found = Facts.of(older).source_entries if older else None
            except RecordCorrupt as error:
                _log.warning("stream %s: entries of sources' logs are not compared: %s", self.name, one_line(error))
                continue
            if found is None:
                break  # pruned, as are those before it
            digests |= found
            missing -= found.keys()
        self._log.require_digests(digests)

    def _drop_torn(self, decision: Decision | None) -> None:
        decided = decision.attempt.epoch if decision else 0
        for name in self._log.drop_torn(decided, Facts.of(decision).source_log if decision else {}):
            _log.warning("stream %s: Spark's %s lost its bytes, which no decision needs: removed", self.name, name)

    def _note_sinks(self, decision: Decision) -> None:
        """Write into the history that the user goes on with other sinks: one of them lacks what came before."""
        before, now = set(Facts.of(decision).sinks), {sink.name for sink in self.spec.sinks}
        if before == now:
            return
        facts = {"stream": self.name, "added": sorted(now - before), "removed": sorted(before - now)}
        changed = SinksChanged(stream=self.name, added=tuple(facts["added"]), removed=tuple(facts["removed"]))
        try:
            History(self._run.repository).add(
                "accept", f"{changed.summary}; after epoch {decision.attempt.epoch}", facts
            )
        except Locked:
            _log.warning("%s; accepted, but somebody else is writing into the history", changed.summary)

    def _built(self) -> DataFrame:
        df = self._run.build(self.spec)
        for source in adapter.source_names(df):
            if source in _UNREPLAYABLE:
                raise NotSupported(
                    what=f"the source {source!r} of stream {self.name!r}",
                    why=_UNREPLAYABLE[source],
                    do="put a log before it (Kafka, or files)",
                )
        adapter.require_packages(df)
        adapter.require_trigger(self._run.spark, self.spec.trigger)
        return df

    def _pinned_settings(self) -> dict[str, str]:
        """Return the settings that this stream was first started with; they are written down at its first start."""
        mode = self.spec.output_mode
        record = StreamRecord(stream=self.name, output_mode=mode, settings=adapter.state_settings(self._run.spark))
        data = self._run.repository.put_if_absent(self._record_key, record.sealed()).data
        first = StreamRecord.unsealed(data, self._record_key)
        if first.output_mode != mode:
            what = f"the output mode of stream {self.name!r}"
            raise StreamChanged(what=what, before=repr(first.output_mode), now=repr(mode))
        settings = {**first.settings, adapter.RETAIN: str(self._run.retain)}
        if not self._run.shared:
            settings |= adapter.FAST_FILES  # under our lock nobody else writes there
        return settings

    def _setting(self, df: DataFrame, sink: Sink) -> SinkContext:
        return SinkContext(
            owner=self._owner,
            schema=df.schema,
            output_mode=self.spec.output_mode,
            spark=self._run.spark,
            local=adapter.is_local(self._run.spark),
            shared=self._run.shared,
            folder=self._run.repository.root / "sinks" / self.name / sink.name,
            folder_mode=adapter.folder_mode(self._run.spark),
            reach=self._run.reach,
            tell=lambda text: _log.warning("stream %s: %s", self.name, text),
        )

    def _new_runner(self) -> EpochRunner:
        if self.spec.stage is not None:
            number = self._run.lease.number
            self._stage = StageKeeper(self.spec.stage, self._run.repository, self.name, self._timeline, number)
        runner = EpochRunner(
            self._owner,
            self._timeline,
            self.spec.sinks,
            decisions=self._decisions,
            gaps=self._gaps,
            lease=self._run.lease,
            log=self._log,
            retain=self._run.retain,
            accept=self._run.accept,
            reach=self._run.reach,
            barrier=self.injector.handle(),
            stage=self._stage,
            on_epoch=self.spec.on_epoch,
        )
        runner.acknowledge = self._run.acknowledge
        runner.drained = self._drained
        runner.oldest_kept = lambda: self.oldest_kept
        runner.at_end = self._end_from_within
        runner.decided = self._epoch_ended
        runner.quarantined = lambda gap: self._tell(self._run.callbacks.on_quarantine, gap)
        return runner

    def _holds(self, decision: Decision | None) -> dict[str, int]:
        """Ask every sink what it holds."""
        holds: dict[str, int] = {}
        for sink in self.spec.sinks:
            try:
                standing = checked_standing(sink, sink.inspect(self._owner, self._timeline))
            except Exception as error:  # a sink of the user's may raise anything
                if isinstance(error, HoldfastError) and not isinstance(error, Storage):
                    raise
                if decision is None:
                    raise self._typed(sink.name, "be inspected", error) from error
                raise self._doubt(decision, [sink.name], error) from error
            if standing.foreign is not None:
                raise SinkForeign(sink=sink.name, place=repr(sink), owner=standing.foreign)
            holds[sink.name] = standing.epoch
        return holds

    def _finish(self, decision: Decision, made: RecoveryPlan) -> None:
        """Commit the last decided epoch to the sinks that lack it."""
        if not made.finish:
            return
        progress = EpochProgress()
        progress.move(Move.FIND)
        commit_to_sinks(
            self._owner,
            [sink for sink in self.spec.sinks if sink.name in made.finish],
            decision,
            Facts.of(decision),
            progress=progress,
            reach=self._run.reach,
            spark_committed=not made.replays,
        )
        if not made.replays:
            progress.move(Move.FINISH)

    def _typed(self, sink: str, action: str, error: Exception) -> Exception:
        return error if isinstance(error, HoldfastError) else SinkFailed(sink=sink, action=action, why=one_line(error))

    def _doubt(self, decision: Decision, sinks: list[str], error: Exception) -> InDoubt:
        return InDoubt(stream=self.name, epoch=decision.attempt.epoch, sinks=tuple(sinks), why=one_line(error))

    def _accepts(self, word: str) -> bool:
        return word in self._run.accept

    # --- the life ---

    def live(self) -> None:
        """Run until the stream ends, is stopped, or may not be restarted any more. The first recovery is done."""
        self._supervisor = threading.get_ident()
        try:
            self._supervise()
        finally:
            self._supervisor = 0  # the number may be given to another thread

    def _supervise(self) -> None:
        recovered = True
        while True:
            try:
                if not recovered:
                    self.recover()
                self._run_query()
            except Exception as raised:  # Spark and users' code may raise anything; the budget decides
                recovered = False
                error = self._explained(raised)
                if self._stopping.is_set() and isinstance(error, Stopping):
                    break
                if not self._again(error):
                    return
            except BaseException as raised:  # an exit in the user's code: nobody wants to go on
                self._exited(raised)
                return
            else:
                break
        self._watch.state = "stopped" if self._stopping.is_set() else "ended"

    def _exited(self, raised: BaseException) -> None:
        error = QueryFailed(stream=self.name, why=one_line(raised))
        error.__cause__ = raised
        self._watch.error = error
        self._give_up(error, Diagnosis(Kind.REFUSED, Remedy.NONE), None)

    def _explained(self, raised: Exception) -> Exception:
        """Return a more specific error for a failure, if one is known."""
        error = self._or_fenced(raised)
        if error is not raised or isinstance(error, Stopping):
            return error
        found: HoldfastError | None = None
        if why := adapter.session_end(self._run.spark):
            found = SessionLost(why=why)
        elif path := damaged_file(error, self._log.folder):
            reason = {} if Path(path).exists() else {"why": "it is missing"}
            if Path(path) == self._log.folder / "state":
                reason = {"why": "it is missing or empty; it was deleted, or the query had no stateful operator before"}
            found = SparkFileDamaged(stream=self.name, path=path, **reason)
        if found is None:
            return error
        found.__cause__ = raised
        return found

    def _or_fenced(self, error: Exception) -> Exception:
        cause = self._runner.cause(error) if self._runner else error
        return cause if isinstance(cause, Exception) else error

    def _run_query(self) -> None:
        runner, df = self._runner, self._df
        if runner is None or df is None or self._stopping.is_set():
            raise Stopping
        runner.failure = runner.returned = None
        self._step = Kind.SOURCE
        self._watch.state = "running"
        batches = adapter.Batches(runner, self._run.spark)
        self._query = query = adapter.start_query(
            df,
            batches,
            name=f"{self._owner.pipeline}.{self.name}",
            output_mode=self.spec.output_mode,
            trigger={"availableNow": True} if self._run.available_now else self.spec.trigger,
            options=self.spec.options,
            checkpoint=self._log.folder,
            settings=self._settings,
        )
        self._watch.started.set()
        if self._stopping.is_set():
            self.stop()  # it was asked for while the query started
        try:
            self._await_end(query)
        except Exception as error:
            cause = self._cause(error)
            raise cause from cause.__cause__ or error
        finally:
            self._watch.started.clear()
            self._note_progress()
            self._query = None  # a reference cycle through the JVM, which no garbage collector sees
            batches.release()
            adapter.end_idle_monitors(self._run.spark)

    def _await_end(self, query: StreamingQuery) -> None:
        """Wait until the query ends. After a failure, an idle trigger shows that it is healthy, as an epoch does."""
        while self._outages.current is not None or self._in_a_row:
            if adapter.ends_within(query, _LOOK_S):
                return
            if adapter.is_idle(query):
                self._in_a_row = 0
                self._end_outage()
        query.awaitTermination()

    def _cause(self, error: Exception) -> Exception:
        """Return what really happened: our own error where there was one, or Spark's in our words."""
        failure = self._runner.failure if self._runner else None
        if failure is not None:
            cause = failure.error
            if isinstance(cause, HoldfastError | Stopping):
                return cause
            why = one_line(cause)
            found = QueryFailed(stream=self.name, why=why)
            found.__cause__ = cause
            return found
        if self._stopping.is_set() and (adapter.is_interrupt(error) or (self._runner and self._runner.was_shut)):
            return Stopping()
        if self._stopping.is_set() and adapter.is_gone(error):
            _log.warning("stream %s: its JVM was ended too; the next start finishes what it was at", self.name)
            return Stopping()
        return QueryFailed(stream=self.name, why=one_line(error))

    def _again(self, error: Exception) -> bool:
        """Wait for an outage to end, quarantine the epoch, restart after a wait, or give up."""
        failure = self._runner.failure if self._runner else None
        found = diagnose(error, failure, self._step)
        self._watch.error = error
        if found.remedy is Remedy.WAIT and self._outages.has_limit(found.kind):
            return self._wait_out(error, found, failure)
        if found.remedy is Remedy.RESTART and failure is not None and self._is_poison(failure, found.kind):
            return True
        budget = None if found.remedy is Remedy.NONE else self._budgets.get(found.kind)
        if budget is None or not budget.spend(self._run.clock()):
            self._give_up(error, found, failure)
            return False
        if self._stopping.is_set():
            _log.warning(
                "stream %s was stopped in an attempt that failed (%s): %s", self.name, found.kind, one_line(error)
            )
            self._stopped()
            return False
        self._in_a_row += 1
        self._watch.state = "restarting"
        self._watch.restarts += 1
        wait = self._run.backoff.seconds(self._in_a_row, random.random())  # noqa: S311 - no secret
        _log.warning(
            "stream %s restarts in %.1f s after a failure (%s): %s",
            self.name,
            wait,
            found.kind,
            one_line(error),
        )
        _log.debug("stream %s: the failure in full", self.name, exc_info=error)
        if isinstance(error, HoldfastError):
            error.retried(f"the stream restarts by itself in {wait:.1f} s")
        self._tell(self._run.callbacks.on_restart, error, self._watch.restarts)
        self._stopping.wait(wait)
        return True

    def _wait_out(self, error: Exception, found: Diagnosis, failure: EpochFailure | None) -> bool:
        """Wait until the next try, and return whether there is one: not after a stop, nor once the limit is reached."""
        outage = self._outages.failed(found.kind, one_line(error))
        if outage is None:
            self._give_up(error, found, failure)
            return False
        if not self._stopping.is_set():
            self._watch.state = "waiting"
            _log.warning(
                "stream %s waits for an outage to end (%s, %.0f s so far, at most %.0f s), next try in %.1f s: %s",
                self.name,
                outage.kind,
                outage.waited_s,
                outage.limit_s,
                outage.next_try_s,
                outage.error,
            )
            _log.debug("stream %s: the failure in full", self.name, exc_info=error)
            if isinstance(error, HoldfastError):
                error.retried(f"the stream tries again by itself in {outage.next_try_s:.1f} s")
            self._tell(self._run.callbacks.on_outage, outage)
            self._stopping.wait(outage.next_try_s)
        if self._stopping.is_set():
            _log.warning("stream %s was stopped in an outage; the next start finishes what was in flight", self.name)
            self._stopped()
            return False
        return True

    def _stopped(self) -> None:
        """End after a failed attempt. If it was not decided, the stream is at the end of its last epoch."""
        self._watch.state = "stopped"
        runner = self._runner
        if runner is not None and (self._settled or not runner.unfinished):
            runner.unfinished, runner.failure = False, None  # a last checkpoint may be taken

    def _is_poison(self, failure: EpochFailure, kind: Kind) -> bool:
        """Whether the next try shall pass the epoch over.

        Only what is not decided, and only where Spark can go on without the batch's plan, or the plan itself is sound.
        Never two in a row, unless the user accepts gaps: the second one looks like an outage, which would cost all
        input that arrives while it lasts.
        """
        times = self._repeats.count(failure)
        runner = self._runner
        if runner is None or times != self.spec.quarantine_after or is_decided(failure.state):
            return False
        if kind not in BUDGETED or (runner.stateful and kind is not Kind.SINK):
            return False
        if isinstance(failure.error, Storage) and not isinstance(failure.error, SinkFailed):
            return False  # the repository's trouble, not the batch's
        if runner.course.quarantined and not self._accepts("gaps"):
            return False
        runner.poison = failure
        self._budgets[kind].give_back(times - 1)  # they led here, which the user asked for
        return True

    def _give_up(self, error: Exception, found: Diagnosis, failure: EpochFailure | None) -> None:
        kind, outage = found.kind, self._outages.current
        blamed = kind in (Kind.SINK, Kind.REFUSED)
        facts: dict[str, Any] = {
            "pipeline": self._owner.pipeline,
            "stream": self.name,
            "epoch": failure.epoch if failure else getattr(error, "epoch", None),
            "sink": ((failure.sink if failure else None) or getattr(error, "sink", None)) if blamed else None,
            "failure": str(kind),
            "restarts": self._watch.restarts,
            "why": one_line(error),
            **self._advice(error, found, failure),
        }
        if outage is not None and found.remedy is Remedy.WAIT:
            limit = f"{outage.limit_s:g} s"
            self.failed = OutageTooLong(waited=outage.waited_s, tries=outage.tries, policy=limit, **facts)
        else:
            budget = None if found.remedy is Remedy.NONE else self._budgets.get(kind)
            self.failed = StreamFailed(policy=str(budget.policy) if budget else "a restart cannot help", **facts)
        self.failed.__cause__ = error
        self._watch.state = "failed"
        _log.error("%s", self.failed)
        self._tell(self._run.callbacks.on_exhausted, error)

    def _advice(self, error: Exception, found: Diagnosis, failure: EpochFailure | None) -> dict[str, str]:
        """Return specific advice, if there is any."""
        if found.do is not None:
            return {"do": found.do}
        course = self._runner.course if self._runner else None
        undecided = failure is not None and not is_decided(failure.state)
        asked = self.spec.quarantine_after and not self._accepts("gaps")
        if asked and undecided and found.kind in BUDGETED and course and course.quarantined:
            return {"do": _SECOND.format(before=course.epoch, epoch=course.epoch + 1)}
        return {"do": error.next_step.format(e=error)} if isinstance(error, HoldfastError) else {}

    def _epoch_ended(self, epoch: int, rows: int) -> None:
        self._rate.add(rows)
        self._in_a_row = 0
        self._repeats = _Repeats()
        self._end_outage()
        self._tell(self._run.callbacks.on_epoch, epoch, rows)

    def _end_outage(self) -> None:
        if outage := self._outages.end():
            _log.warning(
                "stream %s continues: the outage (%s) is over after %.0f s and %d tries",
                self.name,
                outage.kind,
                outage.waited_s,
                outage.tries,
            )
            self._tell(self._run.callbacks.on_outage_over, outage)

    def _tell(self, callback: Callable[..., object], *facts: object) -> None:
        try:
            callback(self.name, *facts)
        except Exception:
            _log.exception("a callback of stream %s failed; the stream goes on", self.name)

    # --- the outside ---

    def stop(self) -> None:
        """End at the end of an epoch.

        1. The epoch that is under way, or begins within a moment, stops its query itself at its end.  2. Where there is
        none, no other may begin; Spark writes its commit of the last one, and the query is stopped.
        """
        self._stopping.set()
        runner = self._runner
        if runner is None:
            return
        runner.stopping.set()  # 1
        quiet = time.monotonic()
        while (query := self._query) is not None and self._watch.started.is_set():
            if runner.busy:
                quiet = time.monotonic()
            elif time.monotonic() - quiet > _MOMENT_S and runner.shut():
                break
            time.sleep(0.01)
        else:
            return
        end = time.monotonic() + _PATIENCE_S  # 2
        while runner.returned is not None and not self._log.is_committed(runner.returned):
            if time.monotonic() > end or not self._watch.started.is_set():
                break
            time.sleep(0.005)
        adapter.stop_from_within(query)

    def acknowledge_idle(self) -> bool:
        """Acknowledge a pending barrier for this stream if it is between two epochs, or has ended."""
        return self._runner is not None and self._runner.acknowledge_idle()

    @property
    def state(self) -> str:
        """Its state, as in `StreamStatus`."""
        return self._watch.state

    @property
    def can_acknowledge(self) -> bool:
        """Whether a stream that has ended stands at a cut: no epoch of it is decided and missing in a sink."""
        return self._runner is not None and not self._runner.unfinished and self._runner.failure is None

    def is_committed(self, epoch: int) -> bool:
        """Whether Spark has committed an epoch."""
        return self._log.is_committed(epoch - 1)

    @property
    def description(self) -> dict[str, Any]:
        """What the program says of this stream: compared from run to run."""
        spec, df = self.spec, self._df
        return {
            "sources": list(self.sources),
            "sinks": {sink.name: type(sink).__name__ for sink in spec.sinks},
            "options": redacted(spec.options),
            "output_mode": spec.output_mode,
            "columns": df.schema.jsonValue() if df is not None else None,
            "state": adapter.state_schemas(df) if df is not None else [],
            "stage": spec.stage.codec.type_name if spec.stage is not None else None,
        }

    @property
    def progress(self) -> tuple[int, int]:
        """How many rows each sink was given, and how many epochs there were, since the first."""
        course = self._runner.course if self._runner else None
        return (course.rows, course.epoch) if course else (0, 0)

    @property
    def waits(self) -> bool:
        """Whether an outage has begun and is not over."""
        return self._outages.current is not None

    def finish_available(self) -> None:
        """Return when what is available now has gone through, or the stream has ended."""
        if self._run.available_now:
            return  # it ends by itself
        while self._watch.state in ("starting", "running", "restarting", "waiting"):
            started = self._watch.started.wait(_MOMENT_S)
            query = self._query  # after the wait: before it, a restart would still show the query that failed
            if started and query is not None and adapter.finish_available(query):
                return

    def _drained(self) -> None:
        """Let the last epoch have been the last one: a barrier said so."""
        self.ask_to_stop()
        if not self.is_inside:
            threading.Thread(target=self.stop, name=f"holdfast-drain-{self.name}", daemon=True).start()

    @property
    def is_inside(self) -> bool:
        """Whether the caller is in an epoch's thread or in the supervisor's, as a callback of this stream is."""
        thread = threading.get_ident()
        return thread == self._supervisor or (self._runner is not None and thread == self._runner.thread)

    def ask_to_stop(self) -> None:
        """Let the epoch at hand be the last one."""
        self._stopping.set()
        if self._runner is not None:
            self._runner.stopping.set()

    def kill(self) -> None:
        """End at once, wherever it is: as safe as a kill."""
        self._stopping.set()
        if self._runner is not None:
            self._runner.stopping.set()
            self._runner.shut()
        if (query := self._query) is not None:
            adapter.stop_from_within(query)

    def _end_from_within(self) -> None:
        query = self._query
        if query is not None and self._watch.started.is_set():
            adapter.stop_from_within(query)

    def status(self) -> StreamStatus:
        """Tell how it is doing."""
        runner, watch = self._runner, self._watch
        doubt = watch.error if isinstance(watch.error, InDoubt) and watch.state in _TROUBLED else None
        live = runner if watch.state in ("running", "restarting", "waiting") else None
        if live is not None:
            self._note_progress()
        progress = self._progress
        return StreamStatus(
            stream=self.name,
            state=watch.state,
            epoch=runner.course.epoch if runner else 0,
            rows=runner.rows if runner else 0,
            restarts=watch.restarts,
            in_doubt=doubt.epoch if doubt else None,
            last_error=one_line(watch.error) if watch.error else None,
            behind=self._behind(live) if live else None,
            watermark_ms=(runner.course.watermark_ms or None) if runner else None,
            unread=self._unread_files(live) if live else None,
            rows_per_s=self._rate.per_second(),
            input_rows_per_s=progress.get("inputRowsPerSecond"),
            processed_rows_per_s=progress.get("processedRowsPerSecond"),
            last_epoch=runner.last_epoch if runner else None,
            last_progress=progress or None,
            outage=self._outages.current,
        )

    def _note_progress(self) -> None:
        """Keep Spark's last progress: a query that has ended is dropped."""
        query = self._query
        try:
            self._progress = (adapter.progress_of(query) if query is not None else None) or self._progress
        except Exception:  # a session that is ending
            _log.debug("stream %s: no progress from Spark", self.name, exc_info=True)

    def _behind(self, runner: EpochRunner) -> int | None:
        df, ends = self._df, runner.course.ends
        try:
            if self._logs is None and df is not None:
                self._logs = adapter.source_paths(df, LOG_SOURCE)
            if self._logs and set(self.sources) == {LOG_SOURCE}:
                return behind_logs(self._logs, ends)
            return behind_topics(self._progress, ends)
        except Exception:  # a session that is ending, a log that is being made: the next status may know
            _log.debug("stream %s: how far it is behind cannot be told now", self.name, exc_info=True)
            return None

    def _unread_files(self, runner: EpochRunner) -> Unread | None:
        df, query = self._df, self._query
        try:
            if self._unread is None and df is not None and query is not None:
                self._unread = UnreadFiles(self._log.folder / "sources", adapter.file_inputs(df, query))
            return self._unread.count(runner.course.ends) if self._unread is not None else None
        except Exception:  # a folder that is gone, a log that Spark is compacting: the next status may know
            _log.debug("stream %s: unread files cannot be counted now", self.name, exc_info=True)
            return None

    @property
    def plan(self) -> RecoveryPlan | None:
        """What the last recovery did."""
        return self._watch.plan

    def close(self) -> None:
        """Let go of the sinks."""
        for sink in self.spec.sinks:
            _closed(sink)
        if self._stage is not None:
            self._stage.close()


def _closed(sink: Sink) -> None:
    try:
        sink.close()
    except Exception:
        _log.exception("sink %s could not be closed", sink.name)


def as_data(value: Any) -> Any:
    """Return a value of this package as plain JSON data."""
    return msgspec.to_builtins(value)
