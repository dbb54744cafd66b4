"""The demo: run and kill both jobs side by side with a progress bar for each, then compare their outputs."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from holdfast.demo import needs
from holdfast.demo.orders import generate
from holdfast.demo.outcome import JOBS, Outcome
from holdfast.demo.place import DEFAULT, DemoFolder
from holdfast.demo.proof import Proof
from holdfast.demo.report import introduce, relative, report
from holdfast.demo.trial import MOST_SIGHTINGS, Kill, Strike, Trial, draw
from holdfast.errors import BadValue

KILLS, FAST_KILLS = 4, 2
_EVENTS_PER_FILE = 300
_POLL_S = 0.01
_DRAW_S = 0.1
_MOST_KILLS = 50
_INTERRUPTED = 130


def demo(folder: Path | None, *, fast: bool, seed: int | None, kills: int | None, console: Console) -> Outcome:
    """Run the demo in a folder (default `./holdfast-demo`), which is created, or replaced if it is of an earlier demo.

    The seed determines the input and the times of the kills; where a kill hits inside an epoch depends on the machine.
    On Ctrl-C or SIGTERM, the demo ends its workers and exits with 130. A worker that fails raises `DemoFailed`.
    """
    seed = random.randrange(10_000) if seed is None else seed
    most = 1 if fast else MOST_SIGHTINGS
    strikes = draw(seed, _checked_kills(kills, fast=fast), most)
    needs.require()
    place = DemoFolder((folder or DEFAULT).absolute())
    with place.locked():
        return _show(place, strikes, seed, most, console)


def _show(place: DemoFolder, strikes: tuple[Strike, ...], seed: int, most: int, console: Console) -> Outcome:
    began = time.monotonic()
    files = most * (len(strikes) + 1) + 2  # more than a run processes before its kill: the next one needs input too
    orders = generate(seed, files, _EVENTS_PER_FILE)
    place.clear(seed=seed, kills=len(strikes))
    orders.write(place.input, place.products)
    trials = [Trial(job, place, strikes) for job in JOBS]
    shown = relative(place.folder)
    introduce(console, orders, strikes, seed, shown)
    try:
        with _deferred() as interrupted, _Screen(console, orders.rows().total(), trials) as screen:
            _run(trials, screen, interrupted)
    except KeyboardInterrupt:
        console.print(
            f"\nInterrupted: the workers have been ended. The outputs so far are in [bold]{escape(shown)}[/]."
        )
        sys.exit(_INTERRUPTED)
    rows, totals = orders.rows(), orders.totals()
    outcome = Outcome(
        folder=place.folder,
        seed=seed,
        seconds=time.monotonic() - began,
        events=sum(1 for _ in orders.events),
        late=orders.late,
        twice=orders.twice,
        kills=tuple(kill for trial in trials for kill in trial.kills),
        proofs={trial.job: Proof.of(trial.outputs, rows, totals) for trial in trials},
    )
    report(console, outcome, len(strikes), shown)
    return outcome


def _run(trials: list[Trial], screen: _Screen, interrupted: threading.Event) -> None:
    """Run and kill both jobs side by side until both are done, or until a signal arrives.

    In every case, no worker is left running.
    """
    try:
        for trial in trials:
            trial.start()
        while not all(trial.done for trial in trials):
            if interrupted.is_set():
                raise KeyboardInterrupt
            for trial in trials:
                if not trial.done and (kill := trial.step()):
                    screen.report(kill)
                    trial.start()
            screen.draw()
            time.sleep(_POLL_S)
        screen.draw(now=True)
    finally:
        for trial in trials:
            trial.end()


class _Screen:
    """Progress bars on a terminal; otherwise one line per event."""

    def __init__(self, console: Console, rows: int, trials: list[Trial]) -> None:
        self._console = console
        self._trials = trials
        self._next = 0.0
        self._printed: dict[str, str] = {}
        self._progress = Progress(
            TextColumn("{task.fields[name]:<11}", style="bold"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[rows]:>6,}/{task.total:,} rows"),
            TextColumn("[red]{task.fields[kills]}[/]"),
            TextColumn("{task.fields[state]:<15}"),
            console=console,
            expand=True,
            disable=not console.is_terminal or console.quiet,
        )
        self._tasks: dict[str, TaskID] = {
            trial.job: self._progress.add_task("", total=rows, name=JOBS[trial.job], rows=0, kills="", state="")
            for trial in trials
        }

    def __enter__(self) -> _Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, kill: Kill) -> None:
        """Print that a worker was killed, and how many rows were visible then."""
        sqlite = "?" if kill.sqlite is None else f"{kill.sqlite:,}"
        when = f"{kill.delay_ms:>2} ms after {kill.place} grew;"
        self._console.print(
            f"[red]kill {kill.number}[/]  {JOBS[kill.job]:<11}  {when:<25} "
            f"rows now: Parquet {kill.parquet:,}, SQLite {sqlite}",
            highlight=False,
        )

    def draw(self, *, now: bool = False) -> None:
        """Update the bars, at most ten times a second unless `now`."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _DRAW_S
        for trial in self._trials:
            state = {"starting": "starting Spark", "recovering": "restarting"}.get(trial.state, trial.state)
            if self._progress.disable:
                self._print(trial, state)
                continue
            rows = trial.outputs.sqlite_shown()
            if rows is not None:
                self._progress.update(self._tasks[trial.job], completed=rows, rows=rows)
            self._progress.update(self._tasks[trial.job], kills="✗" * len(trial.kills), state=state)

    def _print(self, trial: Trial, state: str) -> None:
        if self._printed.get(trial.job) != state:
            self._printed[trial.job] = state
            self._console.print(f"        {JOBS[trial.job]:<11}  {state} (run {trial.life})", highlight=False)


def _checked_kills(kills: int | None, *, fast: bool) -> int:
    if kills is None:
        return FAST_KILLS if fast else KILLS
    if not 1 <= kills <= _MOST_KILLS:
        raise BadValue(what="kills", value=kills, expected=f"a number from 1 to {_MOST_KILLS}")
    return kills


@contextlib.contextmanager
def _deferred() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set instead of raising. Only in the main thread.

    An exception could be raised after a worker was started and before its process was stored, and leave it running.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def note(_: int, frame: FrameType | None) -> None:
        del frame
        interrupted.set()

    handled = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, note) for each in handled}
    try:
        yield interrupted
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
