"""The handle of a running pipeline."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial

from holdfast._error_text import one_line
from holdfast.barriers import BarrierFlags
from holdfast.control import PipelineStopped
from holdfast.control.channel import ControlChannel
from holdfast.coordinator import CheckpointRequest
from holdfast.errors import Fenced, SessionLost
from holdfast.formats.manifest import Manifest
from holdfast.policy import seconds_of
from holdfast.recovery import RecoveryPlan
from holdfast.spark.checkpoints import Checkpointing
from holdfast.spark.context import RunContext
from holdfast.spark.control_thread import ControlThread, StopRequest
from holdfast.spark.pipeline_status import PipelineStatus
from holdfast.spark.stream_threads import StreamThreads
from holdfast.spark.watching import watch

_log = logging.getLogger(__name__)
_KILL_S = 5.0  # how long a kill waits for the threads


class PipelineHandle:
    """A running pipeline. Leaving a `with` block stops it, and raises the error that ended the run, if there is one."""

    def __init__(
        self,
        run: RunContext,
        threads: StreamThreads,
        checkpointing: Checkpointing,
        channel: ControlChannel,
        undo: contextlib.ExitStack,
    ) -> None:
        self.name = run.identity.pipeline
        self._run = run
        self._threads = threads
        self._streams = threads.streams
        self._checkpointing = checkpointing
        self._stop_request: StopRequest | None = None
        self._control = ControlThread(run, channel, checkpointing, self)
        self._killed = False
        self._undo = undo  # releases everything that the run holds
        self._over = threading.Event()
        self._closer = threading.Thread(target=self._close, name="holdfast-closer", daemon=True)

    def __repr__(self) -> str:
        streams = ", ".join(f"{each.name} {each.state} at epoch {each.progress[1]}" for each in self._streams)
        last = self._checkpointing.status().last
        end = "ended" if self._over.is_set() else "stopping" if self.stopping else "running"
        return f"<PipelineHandle of {self.name!r}, {end}: {streams}; checkpoint {last}>"

    def _repr_html_(self) -> str:
        """Return the status as a table, for notebooks."""
        return self.status()._repr_html_()

    def watch(self, every: float | str | timedelta = 1.0, seconds: float | str | timedelta | None = None) -> None:
        """Show the status, up to date, in the cell of a notebook; elsewhere as a line of text whenever it changes.

        Returns when the pipeline has ended, or after `seconds`. Ctrl-C, or the stop button of the notebook, ends the
        view; the pipeline continues.
        """
        pause = max(seconds_of("every", every), 0.05)
        watch(self, every=pause, seconds=None if seconds is None else seconds_of("seconds", seconds))

    @property
    def stopping(self) -> bool:
        """Whether the pipeline was stopped, or ends after a failure."""
        return self._threads.stopping

    @property
    def stop_request(self) -> StopRequest | None:
        """The request of another process that stopped the pipeline, or `None`."""
        return self._stop_request

    def status(self) -> PipelineStatus:
        """Return the status of every stream and of the checkpoints."""
        lineage = self._run.lineage
        streams = {stream.name: stream.status() for stream in self._streams}
        checkpoints = self._checkpointing.status()
        uid, lease = lineage.identity.uid, self._run.lease.number
        return PipelineStatus(self.name, uid, lineage.current, lease, streams, checkpoints)

    @property
    def recovery(self) -> dict[str, RecoveryPlan]:
        """What recovery found and did, by stream."""
        return {stream.name: stream.plan for stream in self._streams if stream.plan is not None}

    # --- checkpoints ---

    def checkpoint(self, timeout: float | str | timedelta | None = None) -> Manifest:
        """Take a checkpoint of all streams now; return its manifest, or raise `CheckpointFailed`.

        It begins when the checkpoint that is under way has ended. If it takes longer than `timeout`, `TimeoutError` is
        raised and the checkpoint continues. Refused inside a callback, whose thread the checkpoint needs.
        """
        return self._request(CheckpointRequest(), timeout)

    def savepoint(self, name: str, timeout: float | str | timedelta | None = None) -> Manifest:
        """Take a named checkpoint that is kept until it is deleted, with copies of all files that it needs."""
        return self._request(CheckpointRequest(BarrierFlags.FULL_SNAPSHOT, name), timeout)

    def _request(self, request: CheckpointRequest, timeout: float | str | timedelta | None) -> Manifest:
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        ticket = self._checkpointing.request(request)
        try:
            return ticket.result(seconds)
        except TimeoutError:
            if ticket.done():
                raise
            raise TimeoutError(f"the checkpoint was not taken within {seconds:g} s; it continues") from None

    def cancel_checkpoint(self) -> None:
        """Abort the checkpoint that is being taken, if there is one."""
        self._checkpointing.cancel()

    # --- the end ---

    def drain(self, savepoint: str | None = None, timeout: float | str | timedelta = 60.0) -> Manifest:
        """Process the available input, stop every stream, and take a last checkpoint; return its manifest.

        Streams end upstream first: when a stream has ended, the streams that read from it process all of its output.
        Input that never pauses is processed for at most `timeout` seconds; the rest is left for the next start. With
        `savepoint`, the last checkpoint is a savepoint of that name. If the checkpoint fails, the streams are stopped
        nevertheless, and its error is raised.
        """
        deadline = time.monotonic() + seconds_of("timeout", timeout)
        ticket = self._checkpointing.request_at_end(_final_checkpoint(drain=True, savepoint=savepoint))
        self._threads.drain(deadline)
        self._over.wait()
        return ticket.result()

    def stop(self) -> None:
        """Stop gracefully: end every stream at the end of its epoch, take a last checkpoint, release everything.

        The last checkpoint is taken where checkpoints are on and a stream has advanced since the previous one. If it
        fails, it is logged and reported to `on_checkpoint_failed`; the stop continues. Called from inside a
        callback, this returns at once and the stop follows.
        """
        if self._threads.is_inside or self._checkpointing.is_inside:
            self._threads.request_stop()
            threading.Thread(target=self.stop, name="holdfast-stop", daemon=True).start()
            return
        self._threads.stop()
        self._over.wait()

    def stop_on_request(self, stop: StopRequest) -> Future[Manifest] | None:
        """Begin to stop for another process; return the ticket of the last checkpoint if one was requested.

        Used by the control thread. Refused, with nothing stopped, if the name of the savepoint is taken.
        """
        ticket = None
        if stop.drain or stop.savepoint:
            final = _final_checkpoint(drain=stop.drain, savepoint=stop.savepoint, request=stop.request)
            ticket = self._checkpointing.request_at_end(final)
        self._stop_request = self._stop_request or stop
        _log.warning("pipeline %s is stopped %s", self.name, stop.summary)
        work: Callable[[], None] = self.stop
        if stop.drain:
            work = partial(self._threads.drain, time.monotonic() + stop.drain_timeout_s)
        threading.Thread(target=work, name="holdfast-stop", daemon=True).start()
        return ticket

    def outcome(self) -> PipelineStopped:
        """Return how the run has ended, as the answer to a request to stop contains it."""
        return PipelineStopped(
            epochs={stream.name: stream.progress[1] for stream in self._streams},
            last_checkpoint=self._checkpointing.status().last,
            error=self._failure(),
        )

    def _failure(self) -> str | None:
        failures = [*filter(None, [self._checkpointing.error]), *self._threads.failures]
        return one_line(failures[0]) if failures else None

    def kill(self) -> None:
        """Stop at once, without a last checkpoint: as safe as a kill. The next start completes what was in flight."""
        self._killed = True
        self._checkpointing.kill()
        self._threads.kill()
        self._over.wait(_KILL_S)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the pipeline has ended, at most for this time; return whether it has ended."""
        return self._over.wait(seconds)

    def await_termination(self, timeout: float | None = None) -> PipelineStatus:
        """Wait until all streams have ended; raise `StreamFailed` if one failed, `TimeoutError` after `timeout`.

        A driver that was replaced by a newer one ends with `Fenced`. A stream that fails ends the pipeline: the others
        stop at the end of their epochs.
        """
        if not self._over.wait(timeout):
            raise TimeoutError(f"pipeline {self.name!r} still runs after {timeout} s")
        if self._checkpointing.error is not None:
            raise self._checkpointing.error
        failures = self._threads.failures
        for failure in failures:
            if isinstance(failure.__cause__, Fenced | SessionLost):
                raise failure.__cause__  # it concerns the whole pipeline, not one stream
        if failures:
            raise failures[0]
        return self.status()

    def __enter__(self) -> PipelineHandle:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop()
        self._over.wait()
        if error is None:
            self.await_termination()

    # --- its threads ---

    def _start(self) -> None:
        """Start the threads of the run; called once, by `start_threads`. If one cannot start, end and release all."""
        try:
            self._checkpointing.start()
            self._threads.start()
            self._control.start()
            self._closer.start()
        except BaseException:
            self._killed = True
            self._checkpointing.kill()
            self._threads.kill_here()
            self._close()
            raise

    def _close(self) -> None:
        """Wait for the streams, take the last checkpoint, then release everything that the run holds."""
        self._threads.join()
        self._checkpointing.finish()
        self._record_end()
        self._control.finish()
        try:
            self._undo.close()
        except Exception:
            _log.exception("pipeline %s: a resource could not be released", self.name)
        self._over.set()

    def _record_end(self) -> None:
        """Record how the run has ended, for people. A failure here must not keep the lease."""
        try:
            self._checkpointing.record_end(self._failure() or ("ended at once" if self._killed else None))
        except Exception:
            _log.exception("pipeline %s: the end of its run was not recorded", self.name)


def _final_checkpoint(*, drain: bool, savepoint: str | None, request: str | None = None) -> CheckpointRequest:
    """Return the request for the last checkpoint of a run."""
    flags = BarrierFlags.DRAIN if drain else BarrierFlags.NONE
    return CheckpointRequest(flags | (BarrierFlags.FULL_SNAPSHOT if savepoint else flags), savepoint, request=request)


_running: weakref.WeakValueDictionary[str, PipelineHandle] = weakref.WeakValueDictionary()
"""Handles by repository, in this process: the threads of a handle keep it alive while it runs."""


def start_threads(handle: PipelineHandle, repository: str) -> None:
    """Start a pipeline whose streams are recovered, and register its handle."""
    handle._start()
    _running[repository] = handle


def running_handle(repository: str) -> PipelineHandle | None:
    """Return the handle of the pipeline that runs in this process on a repository, or `None`."""
    found = _running.get(repository)
    return None if found is None or found.wait(0) else found
