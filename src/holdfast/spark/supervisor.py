"""The supervisor of one stream: it runs the query, and after a failure restarts, waits, quarantines or gives up.

Rules:
- Every restart begins with a recovery. The first recovery is done before the supervisor's thread starts.
- Exhaustion is an error in `failed`; a stream never ends silently.
- A callback that fails is logged; the stream continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from holdfast._error_text import one_line
from holdfast.epoch import State
from holdfast.errors import HoldfastError, InDoubt, QueryFailed, StreamFailed
from holdfast.repository import activity
from holdfast.spark.acknowledging import Acknowledger
from holdfast.spark.activity import noted
from holdfast.spark.backlog import Backlog
from holdfast.spark.epoch_times import EpochTimes
from holdfast.spark.epochs import EpochListener, EpochRunner
from holdfast.spark.explaining import explained, final_error
from holdfast.spark.failures import Diagnosis, EpochFailure, Kind, Remedy, diagnose
from holdfast.spark.gate import EpochGate, Stopping
from holdfast.spark.outages import Outages
from holdfast.spark.parts import StreamParts
from holdfast.spark.query import StreamQuery
from holdfast.spark.recovering import RecoveredStream, StreamRecovery
from holdfast.spark.retrying import Retries
from holdfast.spark.slots import AttemptSlots
from holdfast.spark.sources import ComparedSources

_log = logging.getLogger(__name__)


class Supervisor:
    """Keeps one stream running. Its public attributes are for a status."""

    def __init__(
        self,
        parts: StreamParts,
        *,
        gate: EpochGate,
        acknowledger: Acknowledger,
        query: StreamQuery,
        sources: ComparedSources,
        epoch_ended: Callable[[EpochTimes], None],
        oldest_kept: Callable[[], int | None],
    ) -> None:
        run = parts.run
        self.state = "starting"  # as in `StreamStatus`
        self.restarts = 0
        self.error: Exception | None = None  # of the last failure
        self.in_doubt: int | None = None  # the epoch that a failure left decided; until a recovery completes it
        self.failed: StreamFailed | None = None  # why the stream gave up
        self.recovered: RecoveredStream | None = None  # by the last recovery
        self.outages = Outages({**parts.spec.outage, **run.outage}, run.backoff, run.clock)
        self._parts = parts
        self._gate = gate
        self._acknowledger = acknowledger
        self._query = query
        self._epoch_ended = epoch_ended
        self._slots = AttemptSlots(parts)
        self._sources = sources
        self._recovery = StreamRecovery(parts, self._slots, acknowledger, sources)
        self._retries = Retries(parts)
        self._runner: EpochRunner | None = None  # of the last query, until the next recovery begins
        self._thread = 0
        self._listener = EpochListener(
            ended=self._on_epoch,
            quarantined=lambda gap: self._notify(run.callbacks.on_quarantine, gap),
            stop_query=query.stop_from_within,
            oldest_kept=oldest_kept,
        )

    @property
    def is_inside(self) -> bool:
        """Whether the caller is in the supervisor's thread."""
        return threading.get_ident() == self._thread

    def recover(self) -> RecoveredStream:
        """Prepare to continue after the last decided epoch."""
        self._runner = None  # a failure from here on is another failure
        self.recovered = self._recovery.recover()
        self.in_doubt = None
        plan = self.recovered.plan
        if self.outages.current is None:  # otherwise each try would leave an event
            self._note_recovery(self.recovered)
        unusual = (plan.finish or plan.replays) and self.outages.current is None
        _log.log(logging.WARNING if unusual else logging.INFO, "%s", plan.summary())
        return self.recovered

    def _note_recovery(self, recovered: RecoveredStream) -> None:
        plan, steps = recovered.plan, recovered.steps
        facts = {"epoch": plan.decided, "replays": plan.replays, "finished": list(plan.finish)}
        event = noted(activity.RECOVERED, self._parts.lease.number, stream=self._parts.name, text=plan.summary())
        seconds = round(sum(steps.values()), 6)
        self._parts.run.activity.event(msgspec.structs.replace(event, steps=steps, seconds=seconds, facts=facts))

    def live(self) -> None:
        """Run until the stream ends, is stopped, or gives up. The first recovery is done."""
        self._thread = threading.get_ident()
        try:
            self._supervise()
        finally:
            self._thread = 0  # the number may be used again for another thread

    def _supervise(self) -> None:
        recovered = True
        while True:
            try:
                if not recovered:
                    self.recover()
                self._run_queries()
            except Exception as raised:  # Spark and user code may raise anything; the budget decides
                recovered = False
                error = explained(self._parts, raised)
                if self._gate.stopping.is_set() and isinstance(error, Stopping):
                    break
                if not self._again(error):
                    return
            except BaseException as raised:  # an exit in user code
                error = QueryFailed(stream=self._parts.name, why=one_line(raised))
                error.__cause__ = raised
                self.error = error
                self._give_up(error, Diagnosis(Kind.REFUSED, Remedy.NONE), None)
                return
            else:
                break
        self.state = "stopped" if self._gate.stopping.is_set() else "ended"

    def _run_queries(self) -> None:
        """Run one query, or as many as the available input takes (see `backlog`).

        A query that begins with a batch in doubt reads nothing else, so another one follows it.
        """
        recovered, trigger = self.recovered, self._query.trigger
        ends = bool(trigger.get("availableNow") or trigger.get("once"))
        backlog = Backlog.of(recovered.df) if recovered and ends else Backlog({})
        spark = self._parts.log.position()
        more = bool(backlog.tails) and spark.offsets > spark.commits
        last = self._run_query(recovered)
        while last is not None and (more or backlog.is_left(self._parts.log.offsets(last).ends)):
            more = False
            last = self._run_query(recovered)

    def _run_query(self, recovered: RecoveredStream | None) -> int | None:
        """Run a query until it ends; return its last batch, or `None` if it had none."""
        if recovered is None or self._gate.stopping.is_set():
            raise Stopping
        self._runner = runner = EpochRunner(
            self._parts,
            gate=self._gate,
            slots=self._slots,
            acknowledger=self._acknowledger,
            listener=self._listener,
            stateful=recovered.stateful,
            poison=self._retries.poison,
            adopted=recovered.adopted,
            sources=self._sources,
        )
        self._parts.log.begin()
        self.state = "running"
        self._query.run(
            recovered,
            runner,
            is_troubled=lambda: self.outages.current is not None or self._retries.pending,
            healthy=self._on_idle,
        )
        return runner.returned

    # --- after a failure ---

    def _again(self, error: Exception) -> bool:
        """Wait for an outage to end, quarantine the epoch, restart, or give up; return whether to try again."""
        failure = self._runner.failure if self._runner else None
        found = diagnose(error, failure, Kind.SOURCE if self._runner else self._recovery.step)
        self.error = error
        self.in_doubt = _in_doubt(error, failure) or self.in_doubt
        if found.remedy is Remedy.WAIT and self.outages.has_limit(found.kind):
            return self._wait_out(error, found, failure)
        if found.remedy is Remedy.AGAIN and self._retries.collide() and not self._gate.stopping.is_set():
            _log.warning("stream %s continues after an entry of the driver that it has replaced", self._parts.name)
            return True
        if found.remedy is Remedy.RESTART and failure is not None and self._is_poison(failure, found.kind):
            return True
        if not self._retries.spend(found):
            self._give_up(error, found, failure)
            return False
        if self._gate.stopping.is_set():
            _log.warning(
                "stream %s was stopped during an attempt that failed (%s): %s",
                self._parts.name,
                found.kind,
                one_line(error),
            )
            self._stopped()
            return False
        self._restart(error, found)
        return True

    def _restart(self, error: Exception, found: Diagnosis) -> None:
        self.state = "restarting"
        self.restarts += 1
        wait, name = self._retries.next_wait(), self._parts.name
        _log.warning("stream %s restarts in %.1f s after a failure (%s): %s", name, wait, found.kind, one_line(error))
        _log.debug("stream %s: the failure in full", name, exc_info=error)
        if isinstance(error, HoldfastError):
            error.retried(f"the stream restarts by itself in {wait:.1f} s")
        self._parts.run.activity.restart(name)
        self._note(activity.RESTART, error)
        self._notify(self._parts.run.callbacks.on_restart, error, self.restarts)
        self._gate.stopping.wait(wait)

    def _wait_out(self, error: Exception, found: Diagnosis, failure: EpochFailure | None) -> bool:
        """Wait until the next try, and return whether there is one: not after a stop, nor after the limit."""
        outage, name = self.outages.failed(found.kind, one_line(error)), self._parts.name
        if outage is None:
            self._give_up(error, found, failure)
            return False
        if not self._gate.stopping.is_set():
            self.state = "waiting"
            _log.warning(
                "stream %s waits for an outage to end (%s, %.0f s so far, at most %.0f s), next try in %.1f s: %s",
                name,
                outage.kind,
                outage.waited_s,
                outage.limit_s,
                outage.next_try_s,
                outage.error,
            )
            _log.debug("stream %s: the failure in full", name, exc_info=error)
            if isinstance(error, HoldfastError):
                error.retried(f"the stream tries again by itself in {outage.next_try_s:.1f} s")
            if outage.tries == 1:
                self._note(activity.OUTAGE, error)
            self._notify(self._parts.run.callbacks.on_outage, outage)
            self._gate.stopping.wait(outage.next_try_s)
        if self._gate.stopping.is_set():
            _log.warning("stream %s was stopped during an outage; the next start completes what was in flight", name)
            self._stopped()
            return False
        return True

    def _stopped(self) -> None:
        """End after a failed attempt. If it was not decided, the stream is at the end of its last epoch."""
        self.state = "stopped"
        self._acknowledger.stop_after_failure()

    def _is_poison(self, failure: EpochFailure, kind: Kind) -> bool:
        stateful = self.recovered is not None and self.recovered.stateful
        after_quarantine = self._acknowledger.last.quarantined
        return self._retries.quarantine(failure, kind, stateful=stateful, after_quarantine=after_quarantine)

    def _give_up(self, error: Exception, found: Diagnosis, failure: EpochFailure | None) -> None:
        self.failed = final_error(
            self._parts,
            error,
            found,
            failure,
            restarts=self.restarts,
            budget=self._retries.budget(found),
            outage=self.outages.current,
            last=self._acknowledger.last,
        )
        self.state = "failed"
        _log.error("%s", self.failed)
        self._note(activity.FAILED, self.failed)
        self._notify(self._parts.run.callbacks.on_exhausted, error)

    # --- while the query runs ---

    def _on_epoch(self, times: EpochTimes) -> None:
        self._epoch_ended(times)
        self._parts.run.activity.epoch(self._parts.name, times)
        self._retries.epoch_succeeded()
        self._end_outage()
        self._notify(self._parts.run.callbacks.on_epoch, times.epoch, times.rows)
        self._notify(self._parts.run.callbacks.on_epoch_times, times)

    def _on_idle(self) -> None:
        self._retries.query_idle()
        self._end_outage()

    def _end_outage(self) -> None:
        if outage := self.outages.end():
            _log.warning(
                "stream %s continues: the outage (%s) is over after %.0f s and %d tries",
                self._parts.name,
                outage.kind,
                outage.waited_s,
                outage.tries,
            )
            over = noted(activity.OUTAGE_OVER, self._parts.lease.number, stream=self._parts.name, text=outage.error)
            self._parts.run.activity.event(msgspec.structs.replace(over, seconds=round(outage.waited_s, 3)))
            self._notify(self._parts.run.callbacks.on_outage_over, outage)

    def _note(self, kind: str, error: Exception) -> None:
        self._parts.run.activity.event(noted(kind, self._parts.lease.number, stream=self._parts.name, error=error))

    def _notify(self, callback: Callable[..., object], *facts: object) -> None:
        try:
            callback(self._parts.name, *facts)
        except Exception:
            _log.exception("a callback of stream %s failed; the stream continues", self._parts.name)


def _in_doubt(error: Exception, failure: EpochFailure | None) -> int | None:
    if isinstance(error, InDoubt):
        return error.epoch
    return failure.epoch if failure is not None and failure.state is State.DECIDED else None
