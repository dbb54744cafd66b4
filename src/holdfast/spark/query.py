"""The Spark query of one stream: started, awaited, and stopped at the end of an epoch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast._error_text import one_line
from holdfast.errors import HoldfastError, QueryFailed
from holdfast.spark import adapter
from holdfast.spark.epochs import EpochRunner
from holdfast.spark.gate import EpochGate, Stopping
from holdfast.spark.parts import StreamParts
from holdfast.spark.recovering import RecoveredStream

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_log = logging.getLogger(__name__)
_COMMIT_S = 5.0  # for Spark to write a commit, before a stream is stopped
_LOOK_S = 0.2  # between two looks at a query that was restarted after a failure
_MOMENT_S = 0.5  # for an epoch to begin that Spark may be about to begin


class StreamQuery:
    """Runs the queries of one stream, one after another."""

    def __init__(self, parts: StreamParts, gate: EpochGate) -> None:
        self._parts = parts
        self._gate = gate
        self._started = threading.Event()  # the query has started and not ended
        self._running: StreamingQuery | None = None
        self._runner: EpochRunner | None = None
        self._progress: dict[str, Any] = {}

    @property
    def running(self) -> StreamingQuery | None:
        """Spark's query, if there is one."""
        return self._running

    @property
    def trigger(self) -> Mapping[str, Any]:
        """The trigger of its queries; empty for Spark's default."""
        return {"availableNow": True} if self._parts.run.available_now else self._parts.spec.trigger

    def run(
        self,
        recovered: RecoveredStream,
        runner: EpochRunner,
        *,
        is_troubled: Callable[[], bool],
        healthy: Callable[[], None],
    ) -> None:
        """Start a query and wait until it ends; raise its error, or `Stopping` if it was stopped.

        While `is_troubled`, `healthy` is called once the query has completed a trigger and waits for the next one.
        """
        batches = adapter.Batches(runner, self._parts.run.spark)
        self._running = query = self._start(recovered, batches)
        self._runner = runner
        self._started.set()
        if self._gate.stopping.is_set():
            self.stop()  # it was asked for while the query started
        try:
            while is_troubled():
                if adapter.ends_within(query, _LOOK_S):
                    return
                if adapter.is_idle(query):
                    healthy()
            query.awaitTermination()
        except Exception as error:
            cause = self._cause(error, runner)
            raise cause from cause.__cause__ or error
        finally:
            self._started.clear()
            self.progress()
            self._running = self._runner = None  # a reference cycle through the JVM, which no garbage collector sees
            batches.release()
            runner.close()
            adapter.end_idle_monitors(self._parts.run.spark)

    def _start(self, recovered: RecoveredStream, batches: adapter.Batches) -> StreamingQuery:
        spec = self._parts.spec
        return adapter.start_query(
            recovered.df,
            batches,
            name=f"{self._parts.owner.pipeline}.{spec.name}",
            output_mode=spec.output_mode,
            trigger=self.trigger,
            options=spec.options,
            checkpoint=self._parts.log.folder.address,
            settings=recovered.settings,
        )

    def _cause(self, error: Exception, runner: EpochRunner) -> Exception:
        """Return the error of the epoch that ended the query, or Spark's own in one line."""
        name = self._parts.name
        if runner.failure is not None:
            cause = runner.failure.error
            if isinstance(cause, HoldfastError | Stopping):
                return cause
            found = QueryFailed(stream=name, why=one_line(cause))
            found.__cause__ = cause
            return found
        if self._gate.stopping.is_set() and (adapter.is_interrupt(error) or self._gate.has_refused):
            return Stopping()
        if self._gate.stopping.is_set() and self._gate.is_shut:  # no epoch was in progress: nothing is lost
            if not adapter.is_gone(error):
                _log.warning("stream %s: its query failed after it was stopped: %s", name, one_line(error))
            return Stopping()
        if self._gate.stopping.is_set() and adapter.is_gone(error):
            _log.warning("stream %s: its JVM has ended too; the next start completes what was in flight", name)
            return Stopping()
        return QueryFailed(stream=name, why=one_line(error))

    def stop(self) -> None:
        """Stop at the end of an epoch.

        1. The epoch in progress, or one that begins within a moment, stops its query itself at its end.  2. If there is
        none, no other may begin; Spark writes its commit of the last one, and the query is stopped.
        """
        self._gate.stopping.set()  # 1
        quiet = time.monotonic()
        while (query := self._running) is not None and self._started.is_set():
            if self._gate.is_busy:
                quiet = time.monotonic()
            elif time.monotonic() - quiet > _MOMENT_S and self._gate.shut():
                break
            time.sleep(0.01)
        else:
            return
        runner, end = self._runner, time.monotonic() + _COMMIT_S  # 2
        returned = runner.returned if runner is not None else None
        while returned is not None and not self._parts.log.is_committed(returned):
            if time.monotonic() > end or not self._started.is_set():
                break
            time.sleep(self._parts.log.folder.poll_s)
        adapter.stop_from_within(query)

    def stop_from_within(self) -> None:
        """Stop the query at the end of its own epoch: Spark commits the batch and ends."""
        query = self._running
        if query is not None and self._started.is_set():
            adapter.stop_from_within(query)

    def kill(self) -> None:
        """Stop at once, even within an epoch: as safe as a kill of the process."""
        self._gate.stopping.set()
        self._gate.shut()
        if (query := self._running) is not None:
            adapter.stop_from_within(query)

    def finish_available(self, is_live: Callable[[], bool]) -> None:
        """Return when the input that is available now has been processed, or the stream has ended."""
        while is_live():
            started = self._started.wait(_MOMENT_S)
            query = self._running  # after the wait: before it, a restart would still show the query that failed
            if started and query is not None and adapter.finish_available(query):
                return

    def progress(self) -> dict[str, Any]:
        """Return Spark's report of the last trigger, also after the query has ended; empty before the first trigger."""
        query = self._running
        try:
            self._progress = (adapter.progress_of(query) if query is not None else None) or self._progress
        except Exception:  # a session that is ending
            _log.debug("stream %s: Spark reports no progress", self._parts.name, exc_info=True)
        return self._progress
