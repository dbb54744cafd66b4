"""How the verbs that ask a running pipeline wait: progress on stderr, and a clean end on Ctrl-C and SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, NoReturn, TypedDict

import typer

from holdfast.cli import formatting
from holdfast.cli.answers import Exit, RunInterrupted
from holdfast.control import AskPhase, AskProgress
from holdfast.policy import seconds_of

_AGAIN_S = 10.0  # between two reports of the same phase
_TEXTS = {
    AskPhase.STARTING: "waiting for {e.holder}, which is starting or ending",
    AskPhase.PENDING: "asked {e.holder}",
    AskPhase.TAKEN: "{e.holder} has begun",
    AskPhase.ENDING: "waiting until {e.holder} has released the lease",
    AskPhase.WITHDRAWN: "the request was withdrawn",
}

Why = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="The reason, recorded in the history (see holdfast log).")
]
Timeout = Annotated[
    str,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="How long to wait: 30s, 5m. A request that the pipeline has not begun by then is withdrawn.",
    ),
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="HEX",
        help="The id of the request, 32 hexadecimal digits. A repeated command with the same id returns the result of "
        "the first one. Default: a new id.",
    ),
]


def progress_text(progress: AskProgress) -> str:
    """Return how far a request is, as one line."""
    return formatting.harmless(_TEXTS[progress.phase].format(e=progress))


class AskOptions(TypedDict):
    """The options that all verbs pass to a request."""

    why: str
    timeout_s: float
    request_id: str | None
    watch: Waiting


class Waiting:
    """Reports the progress of a request on stderr, and remembers it for the message of an interrupt."""

    def __init__(self, *, quiet: bool) -> None:
        self.last: AskProgress | None = None
        self._quiet = quiet
        self._began = self._reported = time.monotonic()

    def __call__(self, progress: AskProgress) -> None:
        """Report a new phase, and a phase that lasts every ten seconds."""
        now = time.monotonic()
        same = self.last is not None and self.last.phase is progress.phase
        self.last = progress
        if self._quiet or (same and now - self._reported < _AGAIN_S):
            return
        self._reported = now
        waited = f" ({formatting.span(now - self._began)})" if same else ""
        print(f"{progress_text(progress)}{waited}", file=sys.stderr, flush=True)

    def interrupted(self, code: Exit, ended: KeyboardInterrupt) -> RunInterrupted:
        """Return the error of a signal: whether the request is still carried out."""
        if notes := getattr(ended, "__notes__", []):
            return RunInterrupted(code, f"interrupted; {notes[0]}", "see what was done: holdfast log, holdfast ls")
        if self.last is not None and self.last.phase in (AskPhase.TAKEN, AskPhase.ENDING):
            do = "see its result in holdfast log and holdfast ls"
            return RunInterrupted(code, "interrupted; the pipeline had begun and continues with the request", do)
        return RunInterrupted(code, "interrupted; the request was withdrawn: nothing was done", "")


@contextlib.contextmanager
def waiting(why: str, timeout: str, request_id: str | None, *, as_json: bool) -> Iterator[AskOptions]:
    """Provide the options of a request. A signal in the block withdraws it and ends the command with 130 or 143."""
    progress = Waiting(quiet=as_json)
    timeout_s = seconds_of("--timeout", timeout)
    options: AskOptions = {"why": why, "timeout_s": timeout_s, "request_id": request_id, "watch": progress}
    with _terminable():
        try:
            yield options
        except _AskTerminated as ended:
            raise progress.interrupted(Exit.TERMINATED, ended) from ended
        except KeyboardInterrupt as ended:
            raise progress.interrupted(Exit.INTERRUPTED, ended) from ended


class _AskTerminated(KeyboardInterrupt):
    """SIGTERM."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        raise _AskTerminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
