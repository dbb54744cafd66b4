"""`holdfast run`: the options, the choice of a reporter, and signals. The run itself is in `holdfast.cli.running`."""

from __future__ import annotations

import contextlib
import difflib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

from holdfast.cli import runresults
from holdfast.cli.answers import Answer, Exit, RunInterrupted, console
from holdfast.cli.options import Arguments, TargetName
from holdfast.cli.outlets import into_file, into_stderr
from holdfast.cli.programs import Target, find_target, trace_of
from holdfast.cli.reports import JsonLines, LiveView, PlainLines, RunReporter
from holdfast.cli.running import PipelineRun
from holdfast.errors import BadValue, ProgramFailed
from holdfast.policy import CHECKPOINT_EVERY, DEFAULT_RETENTION, CheckpointPolicy, Retention, seconds_of

if TYPE_CHECKING:
    from holdfast.spark.spec import Accept

ACCEPT = {  # changes that a user may accept
    "sinks": "the sinks of a stream changed",
    "gaps": "an epoch does not begin where the last one ended, or a Kafka topic or Delta table has lost input",
    "replay": "a state was rebuilt differently",
}
SHAPES, STEPS = runresults.SHAPES, runresults.STEPS

CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-every",
        metavar="DURATION",
        help=f"Interval between checkpoints: 30s, 5m. Default: {CHECKPOINT_EVERY}.",
        show_default=False,
    ),
]
NoCheckpoints = Annotated[
    bool, typer.Option("--no-checkpoints", help="Take no checkpoints, not even when the run ends.")
]
KeepLast = Annotated[int, typer.Option("--keep-last", metavar="N", min=1, help="Keep the last N checkpoints.")]
KeepHourly = Annotated[
    int,
    typer.Option(
        "--keep-hourly", metavar="N", min=0, help="Also keep the newest checkpoint of each of the last N hours."
    ),
]
KeepDaily = Annotated[
    int,
    typer.Option(
        "--keep-daily", metavar="N", min=0, help="Also keep the newest checkpoint of each of the last N days."
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Process all available input, then stop.")]
Accepted = Annotated[
    list[str] | None,
    typer.Option(
        "--accept",
        metavar="|".join(ACCEPT),
        help=f"Accept a problem: {'; '.join(f'{name}: {what}' for name, what in ACCEPT.items())}. Repeatable.",
        autocompletion=lambda incomplete: [each for each in ACCEPT.items() if each[0].startswith(incomplete)],
    ),
]
OutageLimit = Annotated[
    list[str] | None,
    typer.Option(
        "--outage",
        metavar="[KIND=]DURATION",
        help="Wait at most this long for an outage to end: 1h, or sink=2h for one kind of failure (source, sink, "
        "state, user code, repository, executors). 0 treats outages as failures. Default: the program's limit, "
        "or 1h. Repeatable.",
    ),
]
PollEvery = Annotated[
    str | None,
    typer.Option(
        "--poll-every",
        metavar="DURATION",
        help="How often an idle stream polls for new input: 50ms, 1s. Default: 10ms times the number of streams, "
        "at most 200ms; at least 50ms with a root on S3, and 200ms with an input path on an object store.",
        show_default=False,
    ),
]
TakeOverNow = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="With a root on S3: start at once, even if the last driver did not end cleanly. Without it, the start "
        "waits until that driver has been silent for 30 s.",
    ),
]
Interval = Annotated[
    str,
    typer.Option("--interval", metavar="DURATION", help="Interval between two progress reports, without a live view."),
]
Page = Annotated[
    int | None,
    typer.Option("--page", metavar="PORT", help="Serve the page of this pipeline at this port while it runs."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Print plain lines even in a terminal.")]
LogFile = Annotated[
    str | None,
    typer.Option(
        "--log-file",
        metavar="PATH",
        help="Where the log goes while the live view is shown. Default: a temporary file.",
    ),
]
JsonStream = Annotated[
    bool, typer.Option("--json", help="Print one JSON document per line. The last one is the result.")
]


def run(
    target: TargetName,
    arguments: Arguments = None,
    checkpoint_every: CheckpointEvery = None,
    no_checkpoints: NoCheckpoints = False,
    keep_last: KeepLast = DEFAULT_RETENTION.last,
    keep_hourly: KeepHourly = DEFAULT_RETENTION.hourly,
    keep_daily: KeepDaily = DEFAULT_RETENTION.daily,
    once: Once = False,
    accept: Accepted = None,
    outage: OutageLimit = None,
    poll_every: PollEvery = None,
    take_over: TakeOverNow = False,
    interval: Interval = "10s",
    page: Page = None,
    plain: Plain = False,
    log_file: LogFile = None,
    as_json: JsonStream = False,
) -> Answer:
    """Run a pipeline until it is stopped or, with --once, until its input is processed.

    In a terminal, shows a live view. Elsewhere, prints one line per stream every 10 s. The first Ctrl-C or SIGTERM is a
    graceful stop: each stream finishes its current epoch, and a last checkpoint is taken. A second signal ends the run
    at once. In both cases the next run continues where this one ended.

    Uses the Spark session that the program creates, or else one on this machine. To use a cluster, create the session
    in the program, or set PYSPARK_SUBMIT_ARGS="--master spark://host:7077 pyspark-shell".

    Exits with 0 if the run ended or was stopped; with 1 if it recorded gaps (see holdfast gaps); with 2 if it failed;
    with 130 or 143 after a second signal, or a first one while Spark is starting.

    [bold]Examples[/]

        holdfast run app.py:pipeline --checkpoint-every 30s
        holdfast run app.py --keep-hourly 48 --keep-daily 30
        holdfast run app.py --once
        holdfast run app.py --page 8321
        holdfast run app.py --outage 4h --outage repository=10m
        holdfast run jobs.orders:make --json -- --day 2025-01-31
    """
    every = _interval_s(checkpoint_every, off=no_checkpoints)
    policy = CheckpointPolicy(every=every, retention=Retention(keep_last, keep_hourly, keep_daily))
    interval_s = seconds_of("--interval", interval)
    found = find_target(target)
    from holdfast.spark.polling import checked_delay_ms  # PySpark may not be installed
    from holdfast.spark.session import require_java, silence_spark

    limits = _outage_limits(outage or [])
    _check_accepted(accept or [])
    checked_delay_ms(poll_every, "--poll-every")
    require_java()
    silence_spark()
    live = sys.stdout.isatty() and not (plain or as_json or console().is_dumb_terminal)
    current: PipelineRun | None = None
    try:
        with _terminable(), _reporter(found, live, as_json, log_file, checkpoints=every is not None) as (reporter, log):
            current = PipelineRun(found, reporter, interval_s=interval_s, live=live, log=log)
            current.load(arguments or [])
            current.execute(
                policy, once, cast("list[Accept]", accept or []), limits, poll_every, page, take_over=take_over
            )
    except Exception as error:
        if current is not None and not as_json:
            current.print_context(error)
        raise
    return current.answer()


def _interval_s(duration: str | None, *, off: bool) -> float | None:
    """Return the interval between checkpoints in seconds; `None` if they are turned off."""
    if off and duration is not None:
        why, do = "--no-checkpoints turns checkpoints off", "remove one of the two options"
        raise BadValue(what="--checkpoint-every", value=duration, why=why, do=do)
    return None if off else seconds_of("--checkpoint-every", duration or CHECKPOINT_EVERY)


def _check_accepted(given: list[str]) -> None:
    """Reject an unknown word before the program is loaded."""
    for word in given:
        if word not in ACCEPT:
            near = difflib.get_close_matches(word, ACCEPT, n=1)
            do = f"did you mean --accept {near[0]}?" if near else "correct the option"
            raise BadValue(what="--accept", value=word, expected=f"one of {', '.join(ACCEPT)}", do=do)


def _outage_limits(given: list[str]) -> dict[str, str]:
    """Return the outage limit of each kind. A limit without a kind applies to all other kinds."""
    from holdfast.spark.failures import BUDGETED
    from holdfast.spark.spec import checked_outage

    general = [each for each in given if "=" not in each]
    limits = {str(kind): general[-1] for kind in BUDGETED} if general else {}
    limits |= dict(each.split("=", 1) for each in given if "=" in each)
    checked_outage(limits)
    return limits


@contextlib.contextmanager
def _reporter(
    target: Target, live: bool, as_json: bool, log_file: str | None, *, checkpoints: bool
) -> Iterator[tuple[RunReporter, str | None]]:
    """Yield the reporter and the path of the log, if one is written. Restore stdout and stderr at the end."""
    with contextlib.ExitStack() as outlets:
        if live:
            terminal, log = outlets.enter_context(into_file(log_file))
            view = LiveView(terminal, title=target.text, checkpoints=checkpoints, log=log)
            yield outlets.enter_context(view), log
        elif as_json:
            yield JsonLines(outlets.enter_context(into_stderr())), None
        else:
            yield PlainLines(sys.stdout), None


class _Terminated(KeyboardInterrupt):
    """SIGTERM, before there is a pipeline to stop."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Treat a SIGTERM while Spark starts like Ctrl-C, so that the terminal is restored."""

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and ended.code != Exit.TERMINATED:
            why = f"one of its functions called sys.exit({_argument(ended)})"
            raise ProgramFailed(program="the program", why=why, trace=trace_of(ended)) from ended
        terminated = isinstance(ended, _Terminated | SystemExit)
        code = Exit.TERMINATED if terminated else Exit.INTERRUPTED
        message, next_step = "the run was ended at once", "run it again: it first completes the epochs in doubt"
        raise RunInterrupted(code, message, next_step) from ended
    finally:
        signal.signal(signal.SIGTERM, before)


def _argument(ended: SystemExit) -> str:
    try:
        return "" if ended.code is None else repr(ended.code)
    except Exception:  # the repr of a user's object may raise
        return "..."
