"""The thread that carries out the requests of other processes to a running pipeline.

Rules:
- It looks for requests every second, during a checkpoint and during a stop too, and never waits for a checkpoint or a
  stream.
- A checkpoint is taken from its asker when it begins, a prune when it is done between two checkpoints, everything else
  when it is found.
- A failure is answered, or logged; only `Fenced` ends the thread. A request never fails a stream.
- A request that was carried out is recorded in the history with its asker and reason. A checkpoint without a reason is
  not: a schedule of them would fill the history.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from holdfast._error_text import one_line
from holdfast._validation import checked_name, checked_seconds, checked_type
from holdfast.barriers import BarrierFlags
from holdfast.control.channel import ControlChannel
from holdfast.control.prune_requests import carry_out_prune
from holdfast.control.records import ControlAnswer, ControlRequest, RequestKind
from holdfast.control.results import CheckpointCancelled, CheckpointTaken, PipelineStopped
from holdfast.coordinator import CheckpointRequest
from holdfast.errors import AlreadyExists, CheckpointFailed, Closed, Fenced, HoldfastError, NotSupported
from holdfast.formats.manifest import Manifest
from holdfast.repository import Checkpoints, History
from holdfast.spark.attempt import CANCELLED, Restorable
from holdfast.spark.checkpoints import Checkpointing
from holdfast.spark.context import RunContext

_log = logging.getLogger(__name__)
LOOK_S = 1.0  # between two looks for requests
_FORGET_S = 3600.0  # between two looks for old files
_JOIN_S = 30.0  # how long the end waits for this thread, which may be writing to a slow disk


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """A request of another process to stop the pipeline."""

    request: str  # its id
    who: str  # user, host and process of the asker
    why: str
    drain: bool = False
    savepoint: str | None = None
    drain_timeout_s: float = 60.0

    @property
    def summary(self) -> str:
        """One line, for display."""
        return f"on request of {self.who}{f': {self.why}' if self.why else ''}"


class Stoppable(Protocol):
    """What the thread needs from the handle of the pipeline."""

    @property
    def stopping(self) -> bool:
        """Whether the pipeline is being stopped already."""

    def stop_on_request(self, stop: StopRequest) -> Future[Manifest] | None:
        """Begin to stop; return the ticket of the checkpoint that was requested with it."""

    def outcome(self) -> PipelineStopped:
        """Return how the run has ended."""


Ended = tuple[ControlRequest, "Future[Any]", "Callable[[ControlRequest, Future[Any]], None]"]


class ControlThread:
    """Carries out requests. `start` begins; `finish` is called when the last checkpoint was taken."""

    def __init__(
        self, run: RunContext, channel: ControlChannel, checkpointing: Checkpointing, handle: Stoppable
    ) -> None:
        self._run = run
        self._channel = channel
        self._checkpointing = checkpointing
        self._handle = handle
        self._wake = threading.Event()
        self._ending = False
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()  # work that has ended and is not reported yet
        self._last_error = ""
        self._thread = threading.Thread(target=self._serve, name="holdfast-control", daemon=True)
        self._actions: dict[str, Callable[[ControlRequest], None]] = {
            RequestKind.CHECKPOINT: self._take_checkpoint,
            RequestKind.SAVEPOINT: self._take_checkpoint,
            RequestKind.STOP: self._stop,
            RequestKind.CANCEL: self._cancel,
            RequestKind.PRUNE: self._prune,
        }

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Report what has ended, and end the thread."""
        self._ending = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    # --- in its own thread ---

    def _serve(self) -> None:
        look_at, forget_at = 0.0, 0.0
        while True:
            ending = self._ending
            try:
                self._report_ended()
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + LOOK_S
                    self._look()
                if time.monotonic() >= forget_at:
                    forget_at = time.monotonic() + _FORGET_S
                    self._channel.forget()
                self._last_error = ""
            except (Fenced, Closed):
                return
            except Exception as error:  # of the storage: the next look tries again
                self._log_once(one_line(error))
            if ending:
                return
            self._wake.wait(max(look_at - time.monotonic(), 0.0))
            self._wake.clear()

    def _look(self) -> None:
        """Carry out what is there. Requests that a failure of the storage leaves undone are found by the next look."""
        self._channel.open()  # the first time; without this announcement no request is sent
        left = self._channel.look()
        try:
            while left:
                self._act(left[0])
                left.pop(0)
        finally:
            self._channel.hand_back(left)

    def _act(self, request: ControlRequest) -> None:
        _log.info("%s request of %s: %s", request.kind, request.asker, request.reason or "no reason given")
        try:
            self._actions[request.kind](request)
        except (Fenced, Closed):
            raise
        except Exception as error:  # arguments that make no sense, or a defect
            self._channel.refuse(request, error)

    def _log_once(self, text: str) -> None:
        if text != self._last_error:
            self._last_error = text
            _log.warning("pipeline %s: requests cannot be read or answered: %s", self._run.identity.pipeline, text)

    def _follow(
        self, request: ControlRequest, work: Future[Any], report: Callable[[ControlRequest, Future[Any]], None]
    ) -> None:
        """Report the outcome of some work in this thread, when it has ended."""

        def note(ended: Future[Any]) -> None:
            self._ended.put((request, ended, report))
            self._wake.set()

        work.add_done_callback(note)

    def _report_ended(self) -> None:
        while not self._ended.empty():
            request, work, report = self._ended.get_nowait()
            report(request, work)

    # --- checkpoints ---

    def _take_checkpoint(self, request: ControlRequest) -> None:
        name = _savepoint_of(request)
        if (request.kind == RequestKind.SAVEPOINT) != (name is not None):
            raise NotSupported(what=f"a {request.kind} with these arguments", why=f"its savepoint is {name!r}")
        flags = BarrierFlags.FULL_SNAPSHOT if name else BarrierFlags.NONE
        wanted = CheckpointRequest(flags, name, request=request.id, admit=partial(self._channel.take, request))
        try:
            ticket = self._checkpointing.request(wanted)
        except AlreadyExists:
            found = Checkpoints(self._run.repository).read(name) if name else None
            if found is None or found.request != request.id:
                raise
            if self._channel.take(request):  # the answer to this request was lost
                self._channel.answer(request, self._answer(CheckpointTaken.of(found).to_dict()))
        except Closed as error:
            self._channel.refuse(request, error)
        else:
            self._follow(request, ticket, self._report_checkpoint)

    def _report_checkpoint(self, request: ControlRequest, ticket: Future[Manifest]) -> None:
        if ticket.cancelled():
            return  # it was withdrawn, or had expired
        error = ticket.exception()
        if error is None:
            taken = CheckpointTaken.of(ticket.result())
            self._record(request, {"checkpoint": taken.checkpoint, "savepoint": taken.savepoint})
            self._channel.answer(request, self._answer(taken.to_dict()))
            return
        self._record(request, {"failed": one_line(error)})
        self._channel.answer(request, self._failure(error))

    def _cancel(self, request: ControlRequest) -> None:
        if not self._channel.take(request):
            return
        attempt = self._checkpointing.cancel()
        if attempt is None:
            result = CheckpointCancelled(checkpoint=None, cancelled=False)
            self._record(request, {"failed": "no checkpoint was being taken"})
            self._channel.answer(request, self._answer(result.to_dict()))
            return
        self._follow(request, attempt.outcome, partial(self._report_cancel, attempt.number))

    def _report_cancel(
        self, number: int, request: ControlRequest, outcome: Future[Restorable | CheckpointFailed]
    ) -> None:
        found = None if outcome.cancelled() else outcome.result()
        cancelled = isinstance(found, CheckpointFailed) and found.why == CANCELLED
        self._record(request, {"checkpoint": number, "cancelled": cancelled})
        result = CheckpointCancelled(checkpoint=number, cancelled=cancelled)
        self._channel.answer(request, self._answer(result.to_dict()))

    def _prune(self, request: ControlRequest) -> None:
        run = self._run
        self._checkpointing.between(
            lambda: carry_out_prune(run.repository, run.lease, self._channel, request, run.reach, run.retain)
        )

    # --- stop ---

    def _stop(self, request: ControlRequest) -> None:
        """Begin to stop. The answer is written when everything has ended, just before the lease is released."""
        stop = _checked_stop(request)
        if not self._channel.take(request):
            return
        if self._handle.stopping and (stop.drain or stop.savepoint):
            busy = AlreadyExists(what="a stop of this pipeline", do="wait until it has ended, then start it again")
            self._channel.answer(request, self._failure(busy))
            return
        try:
            ticket = self._handle.stop_on_request(stop)
        except HoldfastError as error:  # the name is taken, or the pipeline is ending: nothing was stopped
            self._record(request, {"failed": one_line(error)})
            self._channel.answer(request, self._failure(error))
            return
        self._channel.answer_at_end(request, partial(self._stopped, ticket))
        self._record(request, {"drain": stop.drain, "savepoint": stop.savepoint})

    def _stopped(self, ticket: Future[Manifest] | None) -> ControlAnswer:
        """Return the answer to a stop, after the end of the run."""
        outcome = self._handle.outcome()
        if ticket is None:
            return self._answer(outcome.to_dict())
        error = ticket.exception(0) if ticket.done() else Closed(what="the pipeline", do="start it again")
        if error is not None:
            return self._failure(error)
        taken = CheckpointTaken.of(ticket.result())
        return self._answer({**outcome.to_dict(), "taken": taken.to_dict()})

    # --- records ---

    def _record(self, request: ControlRequest, facts: dict[str, Any]) -> None:
        """Record a request in the history. A failure is logged: the request itself was carried out."""
        if request.kind == RequestKind.CHECKPOINT and not request.why:
            return
        kept = {"request": request.id, "lease": request.lease, **facts}
        try:
            History(self._run.repository).add(request.kind, request.reason, kept, who=request.asker)
        except HoldfastError as error:
            _log.warning("the %s request of %s is not in the history: %s", request.kind, request.asker, error.summary)

    def _answer(self, result: dict[str, Any]) -> ControlAnswer:
        return ControlAnswer(at_ms=self._channel.now_ms(), result=result)

    def _failure(self, error: BaseException) -> ControlAnswer:
        return ControlAnswer.of_error(self._channel.now_ms(), error)


def _savepoint_of(request: ControlRequest) -> str | None:
    name = request.arguments.get("savepoint")
    return None if name is None else checked_name("savepoint", name)


def _checked_stop(request: ControlRequest) -> StopRequest:
    return StopRequest(
        request=request.id,
        who=request.asker,
        why=request.reason,
        drain=checked_type("drain", request.arguments.get("drain", False), bool),
        savepoint=_savepoint_of(request),
        drain_timeout_s=checked_seconds("drain_timeout_s", request.arguments.get("drain_timeout_s", 60.0)),
    )
