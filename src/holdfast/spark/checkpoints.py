"""The checkpoints of a running pipeline: one thread takes them, one after the other, and cleans up between them.

Rules:
- No stream waits for this thread; `attempt` describes how one checkpoint is taken.
- A failed checkpoint never fails a stream. The pipeline ends when more checkpoints in a row fail than are tolerable,
  and when an error that is not an `Exception` ends this thread.
- Nothing is deleted while a checkpoint is being taken, because this thread does both.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from holdfast._error_text import one_line
from holdfast.coordinator import CheckpointRequest, FinalCheckpoint, Schedule
from holdfast.errors import CheckpointFailed, Fenced, NotSupported
from holdfast.formats.manifest import Manifest
from holdfast.spark.attempt import Restorable, RunningAttempt
from holdfast.spark.checkpoint_results import CheckpointResults
from holdfast.spark.checkpoint_setup import CheckpointSetup, Inbox, LoopControl
from holdfast.spark.housekeeping import Housekeeping
from holdfast.spark.pipeline_status import CheckpointStatus
from holdfast.spark.tickets import Tickets

_log = logging.getLogger(__name__)
_ALIGNING_S = 0.005  # the longest pause of the loop while a checkpoint is being taken
_RESTING_S = 0.05  # the longest pause of the loop otherwise
_UNDER_WAY_S = 10.0  # for a checkpoint that is under way when the streams have ended, if no caller waits for it


class Checkpointing:
    """Takes the checkpoints of one run. `on_fatal` is called with an error that must end the pipeline."""

    def __init__(self, setup: CheckpointSetup, inbox: Inbox, *, on_fatal: Callable[[BaseException], object]) -> None:
        self.error: BaseException | None = None  # the error that `on_fatal` was called with
        self._setup = setup
        self._inbox = inbox
        self._on_fatal = on_fatal
        self._loop = LoopControl()
        self._tickets = Tickets(setup.run.identity.pipeline)
        self._schedule = Schedule(setup.policy)
        self._final = FinalCheckpoint()
        self._results = CheckpointResults(setup, self._loop, self._schedule, self._final, self._tickets)
        self._housekeeping = Housekeeping(setup)
        self._attempt: RunningAttempt | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-checkpoints", daemon=True)

    def prepare(self) -> None:
        """Abort the attempts that an earlier driver left open, and find the newest checkpoint."""
        left = self._setup.checkpoints.close_open(self._setup.timeline, self._setup.run.lease.number)
        for each in left:
            _log.warning("checkpoint %d was begun by a driver that has ended; it was aborted", each)
        for stream in self._setup.streams.values():
            stream.snapshots.release_all()
        self._results.find_last()
        last, program = self._results.last, self._setup.program
        if last is not None and last.pipeline_hash not in (None, program):
            _log.info("the program has changed since checkpoint %d (see holdfast plan)", last.checkpoint_id)
        self._housekeeping.note_oldest()
        self._housekeeping.note_start()
        self._schedule.begin_with(self._setup.progress)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # --- from any thread ---

    def request(self, request: CheckpointRequest) -> Future[Manifest]:
        """Request a checkpoint as soon as possible; the future returns its manifest, or raises `CheckpointFailed`."""
        return self._issue(request, self._schedule.add)

    def request_at_end(self, request: CheckpointRequest) -> Future[Manifest]:
        """Request a checkpoint that is taken when every stream has ended."""
        return self._issue(request, self._final.add)

    def _issue(self, request: CheckpointRequest, add: Callable[[CheckpointRequest], None]) -> Future[Manifest]:
        """Refuse a request that cannot succeed; otherwise return a ticket, which is answered in every case."""
        self.require_outside()
        if request.savepoint is not None:
            self._setup.checkpoints.require_free(request.savepoint)
        with self._tickets.issue() as ticket:
            add(dataclasses.replace(request, ticket=ticket))
        self._loop.wake.set()
        return ticket

    @property
    def is_inside(self) -> bool:
        """Whether the caller is in the thread that takes checkpoints, as a callback is."""
        return self._thread is threading.current_thread()

    def require_outside(self) -> None:
        """Refuse to wait for a checkpoint in a thread that is needed to take it."""
        if self.is_inside or any(each.is_inside for each in self._setup.streams.values()):
            why = "the checkpoint needs the thread that would wait for it"
            do = "request it from another thread: callbacks run in threads of the stream or of the checkpoints"
            raise NotSupported(what="waiting for a checkpoint inside a callback", why=why, do=do)

    def cancel(self) -> RunningAttempt | None:
        """Abort the checkpoint that is being taken; return it, or `None`. It may be completed before that."""
        attempt = self._attempt
        if attempt is not None:
            attempt.cancelled.set()
            self._loop.wake.set()
        return attempt

    def between(self, job: Callable[[], object]) -> None:
        """Run a job in the thread that takes checkpoints, between two of them. It is not run after the end."""
        self._housekeeping.add(job)
        self._loop.wake.set()

    def finish(self) -> None:
        """Complete the checkpoint that is under way and take a last one, now that every stream has ended."""
        waits = bool(self._tickets) or self._schedule.is_periodic
        self._loop.end_within(_UNDER_WAY_S + (self._setup.policy.timeout_s if waits else 0.0))
        if self._thread.ident is not None:  # otherwise it could not be started
            self._thread.join()

    def record_end(self, why: str | None) -> None:
        """Record how the run has ended, for people; `why` is the error, if there is one. Called after `finish`."""
        self._housekeeping.note_end(why)

    def kill(self) -> None:
        """End at once, as safely as if the process were killed."""
        self._loop.end_now()

    def status(self) -> CheckpointStatus:
        """Return the status of the checkpoints."""
        attempt = self._attempt
        return self._results.status(attempt.number if attempt else None)

    # --- in its own thread ---

    def _run(self) -> None:
        try:
            while self._turn():
                self._loop.wake.wait(_ALIGNING_S if self._attempt else _RESTING_S)
                self._loop.wake.clear()
        except Fenced as fenced:
            _log.warning("no more checkpoints: %s", fenced.summary)  # each stream detects this by itself
        except BaseException as error:
            self._report_fatal(error)
        finally:
            if self._attempt is not None:
                self._attempt.release()
                self._attempt.outcome.cancel()
            self._tickets.close()

    def _turn(self) -> bool:
        """Do the work that can be done now; return whether there may be more."""
        attempt = self._attempt
        if self._loop.time_is_up:
            if attempt is not None:
                self._end(attempt, attempt.abort("the pipeline was ended"))
            return False
        if attempt is not None:
            self._advance(attempt)
            return True
        self._housekeeping.write_activity()
        self._housekeeping.work(ending=self._loop.is_ending)  # first: the next checkpoint may be due at once
        request = self._next_request()
        if request is None:
            return not self._loop.is_ending
        self._begin(request)
        return True

    def _next_request(self) -> CheckpointRequest | None:
        """Return the checkpoint to begin now, if there is one.

        One without a waiting caller is skipped if no stream has advanced. It would equal the last one, and retention
        would drop an older one for it.
        """
        request = self._schedule.next(self._setup.progress)
        if self._is_needed(request):
            return request
        if self._loop.is_ending:
            failed = any(stream.failed for stream in self._setup.streams.values())
            request = self._final.next(wanted=self._schedule.is_periodic and not failed)
        return request if self._is_needed(request) else None

    def _is_needed(self, request: CheckpointRequest | None) -> bool:
        return request is not None and (request.ticket is not None or self._results.is_outdated)

    def _begin(self, request: CheckpointRequest) -> None:
        if not request.admit():
            if request.ticket is not None:
                self._tickets.discard(request.ticket)
            return
        try:
            number = self._setup.claim(request)
        except Fenced:
            raise
        except Exception as error:  # the name is taken, or the storage failed: the streams continue
            fatal = self._results.failed(request, CheckpointFailed(checkpoint=0, why=one_line(error)))
            self._report_fatal(fatal)
            return
        parent = self._results.parent
        attempt = RunningAttempt(self._setup, request, number, parent=parent, inbox=self._inbox, loop=self._loop)
        self._attempt = attempt
        self._setup.run.reach("checkpoint claimed")
        self._advance(attempt)

    def _advance(self, attempt: RunningAttempt) -> None:
        outcome = attempt.advance()
        if outcome is not None:
            self._end(attempt, outcome)

    def _end(self, attempt: RunningAttempt, outcome: Restorable | CheckpointFailed) -> None:
        self._attempt = None
        attempt.outcome.set_result(outcome)
        self._housekeeping.note_change()
        if isinstance(outcome, CheckpointFailed):
            cancelled = attempt.cancelled.is_set()
            self._report_fatal(self._results.failed(attempt.request, outcome, cancelled=cancelled))
        else:
            self._results.succeeded(attempt.request, outcome)

    def _report_fatal(self, error: BaseException | None) -> None:
        if error is not None:
            self.error = error
            self._on_fatal(error)
