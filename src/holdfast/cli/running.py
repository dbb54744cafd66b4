"""`holdfast run`."""

from __future__ import annotations

import contextlib
import logging
import queue
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import msgspec
import typer
from rich.console import Console
from rich.text import Text

import holdfast
from holdfast._error_text import one_line
from holdfast.cli import formatting, runresults
from holdfast.cli.answers import Answer, Exit, OutputClosed, console
from holdfast.cli.looking import holder_of
from holdfast.cli.outlets import into_file, into_stderr
from holdfast.cli.programs import Target, as_theirs, found, is_theirs, pipeline_of, trace_of
from holdfast.cli.reports import JsonLines, LiveView, PlainLines, Report, utc_now
from holdfast.cli.runresults import RunEnded, RunEvent, RunStatus
from holdfast.cli.tables import TableRows
from holdfast.cli.target import shown
from holdfast.errors import BadValue, Locked, ProgramFailed, StreamFailed
from holdfast.policy import CHECKPOINT_EVERY, seconds_of
from holdfast.repository import GapRecord, Gaps

if TYPE_CHECKING:
    from holdfast.formats.manifest import Manifest
    from holdfast.spark.handle import PipelineHandle
    from holdfast.spark.outages import Outage
    from holdfast.spark.pipeline import Pipeline
    from holdfast.spark.spec import Accept
    from holdfast.spark.stream import StreamCallbacks

_SAMPLE_S = 0.5
_STOPPING = "stopping at the end of each stream's epoch; Ctrl-C once more ends it at once"
_ENDING = "a stream gave up: the others end at the end of their epochs"
ACCEPT = {  # changes that a user may accept
    "sinks": "the sinks of a stream changed",
    "gaps": "an epoch does not begin where the last one ended",
    "replay": "a state was rebuilt differently",
}
SHAPES, STEPS = runresults.SHAPES, runresults.STEPS


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="app.py:pipeline or package.module:pipeline; a Pipeline, or a function without arguments that returns "
            "one. Without a name: the only one there is.",
            show_default=False,
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments for the program, as sys.argv.")
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-every",
            metavar="SPAN",
            help=f"Interval between checkpoints: 30s, 5m. Default: {CHECKPOINT_EVERY}.",
            show_default=False,
        ),
    ] = None,
    no_checkpoints: Annotated[
        bool, typer.Option("--no-checkpoints", help="Take no checkpoints, not even when the run ends.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Let what is available go through, then end.")] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="|".join(ACCEPT),
            help="Continue although this has changed. Repeatable.",
            autocompletion=lambda incomplete: [each for each in ACCEPT.items() if each[0].startswith(incomplete)],
        ),
    ] = None,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            "--outage",
            metavar="[KIND=]SPAN",
            help="Wait at most this long for an outage to end: 1h, or sink=2h for one kind of failure (source, sink, "
            "state, user code, repository, executors). 0 handles outages as failures. Default: the program's limit, "
            "or 1h. Repeatable.",
        ),
    ] = None,
    interval: Annotated[str, typer.Option("--interval", metavar="SPAN", help="Between two plain lines.")] = "10s",
    plain: Annotated[bool, typer.Option("--plain", help="Lines, in a terminal too.")] = False,
    log_file: Annotated[
        str | None,
        typer.Option("--log-file", metavar="PATH", help="Where stderr goes under a live view; else a temporary file."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON document a line; the last one is the answer.")
    ] = False,
) -> Answer:
    """Run a program's pipeline until it ends, or Ctrl-C or SIGTERM ends it.

    Shows it live in a terminal, and writes a line a stream every 10 s elsewhere. The first signal ends every stream at
    its epoch's end and takes a last checkpoint; a second one ends the run at once. In both cases the next run continues
    where this one ended.

    The session is the one that the program has made, or one on this machine. For a cluster let the program make it, or
    say it in the environment: PYSPARK_SUBMIT_ARGS="--master spark://host:7077 pyspark-shell".

    Exits with 0 when it has ended or was stopped, with 1 when gaps were recorded meanwhile (see holdfast gaps), with 2
    when it failed, with 130 or 143 after a second signal.

    [bold]Examples[/]

        holdfast run app.py:pipeline --checkpoint-every 30s
        holdfast run app.py --once
        holdfast run app.py --outage 4h --outage repository=10m
        holdfast run jobs.orders:make --json -- --day 2025-01-31
    """
    every = _every(checkpoint_every, off=no_checkpoints)
    interval_s = seconds_of("--interval", interval)
    where = found(target)
    _ = holdfast.Pipeline  # or MissingExtra
    limits = _limits(outage or [])
    from holdfast.spark.session import require_java, silence_spark

    require_java()
    silence_spark()
    live = sys.stdout.isatty() and not (plain or as_json or console().is_dumb_terminal)
    course = RunOutcome(where, interval_s, progress=not live)
    try:
        with _terminable(), _told_by(course, live, as_json, log_file, checkpoints=every is not None):
            course.load(arguments or [])
            course.go(every, once, cast("list[Accept]", accept or []), limits)
    except Exception as error:
        if not as_json:
            course.explain(error, lines=not live)
        raise
    return course.answer(lines=not live)


def _every(span: str | None, *, off: bool) -> float | None:
    """Return the interval between checkpoints in seconds; `None` if they are turned off."""
    if off and span is not None:
        why, do = "--no-checkpoints turns checkpoints off", "leave one of the two options out"
        raise BadValue(what="--checkpoint-every", value=span, why=why, do=do)
    return None if off else seconds_of("--checkpoint-every", span or CHECKPOINT_EVERY)


def _limits(given: list[str]) -> dict[str, str]:
    """Return the limits of outages by kind; one without a kind is for all other kinds."""
    from holdfast.spark.failures import BUDGETED
    from holdfast.spark.spec import checked_outage

    plain = [each for each in given if "=" not in each]
    found = {str(kind): plain[-1] for kind in BUDGETED} if plain else {}
    found |= dict(each.split("=", 1) for each in given if "=" in each)
    checked_outage(found)
    return found


@contextlib.contextmanager
def _told_by(
    course: RunOutcome, live: bool, as_json: bool, log_file: str | None, *, checkpoints: bool
) -> Iterator[None]:
    """Choose how the run is told of; at its end stdout and stderr are what they were."""
    with contextlib.ExitStack() as outlets:
        if live:
            terminal, log = outlets.enter_context(into_file(log_file))
            title = course.target.text
            course.log = log
            course.report = outlets.enter_context(LiveView(terminal, title=title, checkpoints=checkpoints, log=log))
        elif as_json:
            course.report = JsonLines(outlets.enter_context(into_stderr()))
        else:
            course.report = PlainLines(sys.stdout)
        yield


class _Terminated(KeyboardInterrupt):
    """SIGTERM, before there is anything to stop."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let a SIGTERM that comes while Spark starts end us as Ctrl-C does: a terminal is put back in order."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and ended.code != Exit.TERMINATED:
            why = f"a function of it called sys.exit({_code(ended)})"
            raise ProgramFailed(program="the program", why=why, trace=trace_of(ended)) from ended
        terminated = isinstance(ended, _Terminated | SystemExit)
        code = Exit.TERMINATED if terminated else Exit.INTERRUPTED
        raise OutputClosed(
            code, "it was ended at once", "run it again: it first finishes what was under way"
        ) from ended
    finally:
        signal.signal(signal.SIGTERM, before)


def _code(ended: SystemExit) -> str:
    try:
        return "" if ended.code is None else repr(ended.code)
    except Exception:  # an object of the program's may refuse to be shown
        return "..."


@dataclass
class RunOutcome:
    """One run: what is known of it, and whom to tell."""

    target: Target
    interval_s: float
    progress: bool  # whether a status is told every interval
    report: Report = field(default_factory=lambda: PlainLines(sys.stdout))
    log: str | None = None
    _pipeline: Pipeline | None = None
    _handle: PipelineHandle | None = None
    _events: queue.SimpleQueue[RunEvent] = field(default_factory=queue.SimpleQueue)
    _epochs: Counter[str] = field(default_factory=Counter)
    _began: float = field(default_factory=time.monotonic)
    _began_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    _next_sample: float = 0.0
    _next_line: float = 0.0
    _stopping: bool = False

    # --- while it goes on ---

    def load(self, arguments: list[str]) -> None:
        """Load the program; refuse at once a pipeline that somebody else runs."""
        self.report.phase(f"loading {self.target.program}")
        pipeline = self._pipeline = pipeline_of(self.target, arguments)
        if not logging.getLogger().handlers:  # the program has its own way, else
            logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        holder = None if pipeline.shared else holder_of(pipeline.repository)
        if holder is not None:
            raise Locked(what=f"the lease of pipeline {pipeline.name!r}", pid=holder.pid)

    def go(self, every: float | None, once: bool, accept: list[Accept], outage: dict[str, str]) -> None:
        """Run the pipeline to its end. Raises what made it fail, when all is told."""
        pipeline = self._loaded
        self.report.phase("starting Spark, then every stream where it was; this takes a few seconds")
        try:
            pipeline.run(
                available_now=once,
                checkpoint_every=every,
                accept=accept,
                outage=outage or None,
                callbacks=self._callbacks(),
                watch=self._look,
            )
        except Exception as error:
            self._tell_rest()
            if is_theirs(error):
                raise as_theirs(self.target.program, error) from error
            raise
        self._tell_rest()

    @property
    def _loaded(self) -> Pipeline:
        if self._pipeline is None:
            raise RuntimeError("a program is loaded first")
        return self._pipeline

    def _callbacks(self) -> StreamCallbacks:
        def count(stream: str, _: int, __: int) -> None:
            self._epochs[stream] += 1

        def taken(_: str, manifest: Manifest) -> None:
            self._note("checkpoint", checkpoint=manifest.checkpoint_id)

        return holdfast.StreamCallbacks(
            on_epoch=count,
            on_restart=lambda stream, error, so_far: self._note(
                "restart", stream=stream, restarts=so_far, error=one_line(error)
            ),
            on_outage=lambda stream, outage: self._note_outage("outage", stream, outage),
            on_outage_over=lambda stream, outage: self._note_outage("outage_over", stream, outage),
            on_exhausted=lambda stream, error: self._note("failed", stream=stream, error=one_line(error)),
            on_quarantine=lambda stream, gap: self._note("quarantine", stream=stream, epoch=gap.epoch, error=gap.why),
            on_checkpoint=taken,
            on_checkpoint_failed=lambda _, error: self._note("checkpoint_failed", error=one_line(error)),
        )

    def _note(self, event: str, **facts: object) -> None:
        self._events.put(RunEvent(event=event, at=utc_now(), **facts))  # type: ignore[arg-type]

    def _note_outage(self, event: str, stream: str, outage: Outage) -> None:
        over = event == "outage_over"
        self._note(
            event,
            stream=stream,
            kind=outage.kind,
            tries=outage.tries,
            waited_s=round(outage.waited_s, 1),
            next_try_s=None if over else round(outage.next_try_s, 1),
            error=None if over else outage.error,
        )

    def _look(self, handle: PipelineHandle) -> None:
        """Tell what is due. Called a few times a second by the thread that runs the pipeline."""
        now = time.monotonic()
        if self._handle is None:
            self._handle = handle
            self.report.phase("")
            self._note("started", status=self._status())
            self._next_line = now + self.interval_s
        self._note_stop(handle)
        if now >= self._next_sample:
            self._next_sample = now + _SAMPLE_S
            self.report.sampled(self._status())
        self._tell()
        if self.progress and now >= self._next_line:
            self._next_line = now + self.interval_s
            self.report.happened(RunEvent(event="progress", at=utc_now(), status=self._status()))

    def _tell(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.report.happened(self._events.get_nowait())

    def _note_stop(self, handle: PipelineHandle) -> None:
        if handle.stopping and not self._stopping:
            self._stopping = True
            failed = any(each.state == "failed" for each in handle.status().streams.values())
            self.report.phase(_ENDING if failed else _STOPPING)
            self._note("stopping")

    def _tell_rest(self) -> None:
        if self._handle is not None:
            self._note_stop(self._handle)  # it may have ended before anybody looked again
        self._tell()
        if self._handle is not None and self.progress:
            status = self._status()
            self.report.sampled(status)
            self.report.happened(RunEvent(event="progress", at=utc_now(), status=status))
            self.report.happened(RunEvent(event="over", at=utc_now(), status=status))

    def _status(self) -> RunStatus:
        if self._handle is None:
            raise RuntimeError("a status is asked for when it runs")
        return msgspec.convert(self._handle.status().to_dict(), RunStatus)

    # --- when it is over ---

    def answer(self, *, lines: bool) -> Answer:
        """Return how it ended."""
        status, repository = self._status(), self._loaded.repository
        gaps = self._gaps(status)
        ended = RunEnded(
            stopped=any(each.state == "stopped" for each in status.streams.values()),
            seconds=round(time.monotonic() - self._began, 1),
            status=status,
            gaps=gaps,
        )

        def show(out: Console) -> None:
            if not lines:
                self._show_streams(out, status)
            where = shlex.quote(shown(Path(repository.where)))
            look = f"holdfast gaps -r {where}" if gaps else f"holdfast ls -r {where}"
            if gaps:
                count = "1 gap was" if len(gaps) == 1 else f"{formatting.number(len(gaps))} gaps were"
                out.print(Text(f"{count} recorded: epochs that no sink received, or that began elsewhere"))
            out.print(f"next: {look}", soft_wrap=True, markup=False)

        return Answer(ended, show, found=bool(gaps), repository=repository.where)

    def _gaps(self, status: RunStatus) -> list[GapRecord]:
        ledger = Gaps(self._loaded.repository)
        every = (each for name in status.streams for each in ledger.all(name, status.timeline))
        return [each for each in every if each.at_ms >= self._began_ms]

    def _show_streams(self, out: Console, status: RunStatus) -> None:
        out.print(
            Text.assemble(
                (status.pipeline, "bold"),
                f"  timeline {status.timeline}  ran {formatting.span(time.monotonic() - self._began)}",
            )
        )
        rows = TableRows(
            "stream",
            "state",
            "epochs",
            "rows",
            "restarts",
            "last epoch",
            right=("epochs", "rows", "restarts", "last epoch"),
        )
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
            failed = f", {formatting.number(taken.failed)} failed" if taken.failed else ""
            out.print(f"{formatting.number(taken.taken)} checkpoints taken{failed}; the newest is {taken.last}")

    def explain(self, error: Exception, *, lines: bool) -> None:
        """Say, before the error itself is said, how far it came and where to look."""
        out = console(stderr=True)
        if self._handle is not None:
            if not lines:
                self._show_streams(out, self._status())
            where = shlex.quote(shown(Path(self._loaded.repository.where)))
            out.print(f"look:  holdfast doubt -r {where}", soft_wrap=True, markup=False)
            out.print(f"       holdfast log -r {where}", soft_wrap=True, markup=False)
        if self.log is not None and not isinstance(error, ProgramFailed | Locked):
            out.print(f"log:   {self.log}", soft_wrap=True, markup=False)
        if isinstance(error, StreamFailed) and (theirs := _theirs(error)) is not None:
            out.print(trace_of(theirs), soft_wrap=True, markup=False)


def _theirs(error: BaseException | None) -> BaseException | None:
    """Return what the user's own code raised, where that is behind an error."""
    while error is not None and not is_theirs(error):
        error = error.__cause__
    return error
