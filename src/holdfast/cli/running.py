"""One run of a pipeline: loads the program, runs the pipeline, and passes its events to a reporter."""

from __future__ import annotations

import contextlib
import logging
import queue
import shlex
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast._error_text import one_line
from holdfast.cli import formatting
from holdfast.cli.answers import Answer, console
from holdfast.cli.holder import holder_of
from holdfast.cli.programs import Target, as_program_error, is_users_error, pipeline_of, trace_of
from holdfast.cli.reports import RunReporter, utc_now
from holdfast.cli.runresults import RunEnded, RunEvent, RunStatus, RunStopper
from holdfast.cli.tables import TableRows
from holdfast.cli.target import shown
from holdfast.errors import HoldfastError, Locked, ProgramFailed, StreamFailed
from holdfast.repository import GapRecord, Gaps, Lineage
from holdfast.repository.opening import local_root

if TYPE_CHECKING:
    from holdfast.formats.manifest import Manifest
    from holdfast.policy import CheckpointPolicy
    from holdfast.spark.context import StreamCallbacks
    from holdfast.spark.handle import PipelineHandle
    from holdfast.spark.outages import Outage
    from holdfast.spark.pipeline import Pipeline
    from holdfast.spark.spec import Accept

_SAMPLE_S = 0.5
_STARTING = "starting Spark and every stream; this takes a few seconds"
_STOPPING = "stopping: each stream finishes its epoch; press Ctrl-C again to end at once"
_FAILING = "a stream failed: the other streams finish their epochs"


@dataclass
class PipelineRun:
    """One run. Its events come from several threads; only the thread that runs the pipeline reports them."""

    target: Target
    reporter: RunReporter
    interval_s: float  # between two progress reports
    live: bool  # whether a live view is shown: then there are no progress reports
    log: str | None = None  # where the log is written
    _pipeline: Pipeline | None = None
    _handle: PipelineHandle | None = None
    _events: queue.SimpleQueue[RunEvent] = field(default_factory=queue.SimpleQueue)
    _epochs: Counter[str] = field(default_factory=Counter)
    _began: float = field(default_factory=time.monotonic)
    _began_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    _next_sample: float = 0.0
    _next_progress: float = 0.0
    _stopping: bool = False
    _enqueuing: threading.Lock = field(default_factory=threading.Lock)

    # --- during the run ---

    def load(self, arguments: list[str]) -> None:
        """Load the program. Raises `Locked` at once if another process is running the pipeline."""
        self.reporter.show_phase(f"loading {self.target.program}")
        pipeline = self._pipeline = pipeline_of(self.target, arguments)
        if not logging.getLogger().handlers:  # otherwise the program has configured logging itself
            logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        on_disk = local_root(pipeline.repository) is not None  # on a store, the start waits for the last holder
        holder = None if pipeline.shared or not on_disk else holder_of(pipeline.repository)
        if holder is not None:
            raise Locked(what=f"the lease of pipeline {pipeline.name!r}", pid=holder.pid)

    def execute(
        self,
        policy: CheckpointPolicy,
        once: bool,
        accept: list[Accept],
        outage: dict[str, str],
        poll_every: str | None,
        page: int | None,
        *,
        take_over: bool = False,
    ) -> None:
        """Run the pipeline to its end. If it fails, report all events, then raise its error."""
        self.reporter.show_phase(_STARTING)
        try:
            self._loaded.run(
                available_now=once,
                checkpoint_every=policy,
                accept=accept,
                outage=outage or None,
                poll_every=poll_every,
                take_over=take_over,
                callbacks=self._callbacks(),
                page=page,
                program=self.target.recorded,
                watch=self._observe,
            )
        except Exception as error:
            self._report_end()
            if isinstance(error, HoldfastError):
                error.name_program(shlex.quote(self.target.text))
            if is_users_error(error):
                raise as_program_error(self.target.program, error) from error
            raise
        self._report_end()

    @property
    def _loaded(self) -> Pipeline:
        if self._pipeline is None:
            raise RuntimeError("the program is not loaded")
        return self._pipeline

    def _callbacks(self) -> StreamCallbacks:
        from holdfast.spark.context import StreamCallbacks  # PySpark may not be installed

        def count(stream: str, _: int, __: int) -> None:
            self._epochs[stream] += 1

        def taken(_: str, manifest: Manifest) -> None:
            self._enqueue("checkpoint", checkpoint=manifest.checkpoint_id)

        return StreamCallbacks(
            on_epoch=count,
            on_restart=lambda stream, error, so_far: self._enqueue(
                "restart", stream=stream, restarts=so_far, error=one_line(error)
            ),
            on_outage=lambda stream, outage: self._enqueue_outage("outage", stream, outage),
            on_outage_over=lambda stream, outage: self._enqueue_outage("outage_over", stream, outage),
            on_exhausted=lambda stream, error: self._enqueue("failed", stream=stream, error=one_line(error)),
            on_quarantine=lambda stream, gap: self._enqueue(
                "quarantine", stream=stream, epoch=gap.epoch, error=gap.why
            ),
            on_checkpoint=taken,
            on_checkpoint_failed=lambda _, error: self._enqueue("checkpoint_failed", error=one_line(error)),
        )

    def _enqueue(self, event: str, **facts: object) -> None:
        self._check_stopping()  # a stop is reported before what follows from it
        self._events.put(RunEvent(event=event, at=utc_now(), **facts))  # type: ignore[arg-type]

    def _check_stopping(self) -> None:
        handle = self._handle
        with self._enqueuing:
            if handle is not None and handle.stopping and not self._stopping:
                self._stopping = True
                by = handle.stop_request.summary if handle.stop_request else None
                self._events.put(RunEvent(event="stopping", at=utc_now(), by=by))

    def _enqueue_outage(self, event: str, stream: str, outage: Outage) -> None:
        over = event == "outage_over"
        self._enqueue(
            event,
            stream=stream,
            kind=outage.kind,
            tries=outage.tries,
            waited_s=round(outage.waited_s, 1),
            next_try_s=None if over else round(outage.next_try_s, 1),
            error=None if over else outage.error,
        )

    def _observe(self, handle: PipelineHandle) -> None:
        """Report events, samples and progress. The thread that runs the pipeline calls this a few times a second."""
        now = time.monotonic()
        if self._handle is None:
            self._handle = handle
            self.reporter.show_phase("")
            self._enqueue("started", status=self._status())
            for stream, plan in handle.recovery.items():
                if plan.decided:
                    self._enqueue("recovered", stream=stream, epoch=plan.decided, found=plan.summary())
            self._next_progress = now + self.interval_s
        self._check_stopping()
        if now >= self._next_sample:
            self._next_sample = now + _SAMPLE_S
            self.reporter.sample(self._status())
        self._report_events()
        if not self.live and now >= self._next_progress:
            self._next_progress = now + self.interval_s
            self.reporter.report(RunEvent(event="progress", at=utc_now(), status=self._status()))

    def _report_events(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if event.event == "stopping":
                    failed = any(each.state == "failed" for each in self._status().streams.values())
                    stopping = f"{_STOPPING} ({event.by})" if event.by else _STOPPING
                    self.reporter.show_phase(_FAILING if failed else stopping)
                self.reporter.report(event)

    def _report_end(self) -> None:
        self._check_stopping()  # the run may have ended before the next observation
        self._report_events()
        if self._handle is not None and not self.live:
            status = self._status()
            self.reporter.sample(status)
            self.reporter.report(RunEvent(event="progress", at=utc_now(), status=status))
            self.reporter.report(RunEvent(event="over", at=utc_now(), status=status))

    def _status(self) -> RunStatus:
        if self._handle is None:
            raise RuntimeError("the pipeline is not running")
        return msgspec.convert(self._handle.status().to_dict(), RunStatus)

    # --- after the run ---

    def answer(self) -> Answer:
        """Return how the run ended."""
        status, repository = self._status(), self._loaded.repository
        gaps = self._gaps(status)
        ended = RunEnded(
            stopped=any(each.state == "stopped" for each in status.streams.values()),
            seconds=round(time.monotonic() - self._began, 1),
            status=status,
            gaps=gaps,
            stopped_by=self._stopper(),
        )

        def print_it(out: Console) -> None:
            if self.live:
                self._print_streams(out, status)
            where = shlex.quote(shown(Path(repository.where)))
            if self._handle is not None and self._handle.stop_request is not None:
                text = f"stopped {self._handle.stop_request.summary}"
                out.print(formatting.harmless(text), soft_wrap=True, markup=False)
            if gaps:
                count = "1 gap was" if len(gaps) == 1 else f"{formatting.number(len(gaps))} gaps were"
                out.print(Text(f"{count} recorded: epochs that no sink received, or that began at another offset"))
            out.print(f"next: holdfast {'gaps' if gaps else 'ls'} -r {where}", soft_wrap=True, markup=False)

        return Answer(ended, print_it, found=bool(gaps), repository=repository.where)

    def _stopper(self) -> RunStopper | None:
        stop = self._handle.stop_request if self._handle else None
        if stop is None:
            return None
        return RunStopper(request=stop.request, who=stop.who, why=stop.why, drain=stop.drain, savepoint=stop.savepoint)

    def _gaps(self, status: RunStatus) -> list[GapRecord]:
        ledger = Gaps(self._loaded.repository)
        lineage = Lineage.load(self._loaded.repository)
        every = (each for name in status.streams for each in ledger.all(name, lineage.timeline_of(name)))
        return [each for each in every if each.at_ms >= self._began_ms]

    def _print_streams(self, out: Console, status: RunStatus) -> None:
        ran = formatting.span(time.monotonic() - self._began)
        out.print(Text.assemble((status.pipeline, "bold"), f"  timeline {status.timeline}  ran {ran}"))
        numbers = ("epochs", "rows", "restarts", "last epoch")
        rows = TableRows("stream", "state", *numbers, right=numbers)
        for name, each in status.streams.items():
            rows.add(
                name,
                each.state,
                formatting.number(self._epochs[name]),
                formatting.number(each.rows),
                formatting.number(each.restarts) if each.restarts else "",
                str(each.epoch),
            )
        rows.print(out)
        taken = status.checkpoints
        if taken.taken or taken.failed:
            count = "1 checkpoint" if taken.taken == 1 else f"{formatting.number(taken.taken)} checkpoints"
            failed = f", {formatting.number(taken.failed)} failed" if taken.failed else ""
            newest = f"; the newest is {taken.last}" if taken.last is not None else ""
            out.print(f"{count} taken{failed}{newest}")

    def print_context(self, error: Exception) -> None:
        """Print, before the error itself, how far the run got and where to look."""
        out = console(stderr=True)
        if self._handle is not None:
            if self.live:
                self._print_streams(out, self._status())
            where = shlex.quote(shown(Path(self._loaded.repository.where)))
            out.print(f"look:  holdfast doubt -r {where}", soft_wrap=True, markup=False)
            out.print(f"       holdfast log -r {where}", soft_wrap=True, markup=False)
        if self.log is not None and not isinstance(error, ProgramFailed | Locked):
            out.print(f"log:   {self.log}", soft_wrap=True, markup=False)
        if isinstance(error, StreamFailed) and (cause := _users_error(error)) is not None:
            out.print(trace_of(cause), soft_wrap=True, markup=False)


def _users_error(error: BaseException | None) -> BaseException | None:
    """Return the first error in a chain of causes that was raised in user code, if there is one."""
    while error is not None and not is_users_error(error):
        error = error.__cause__
    return error
