"""Run workers until they are done, and show their progress: bars on a terminal, otherwise one line per event."""

from __future__ import annotations

import threading
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from holdfast.demo.outcome import JOBS
from holdfast.demo.trial import Kill, Trial

_POLL_S = 0.01
_DRAW_S = 0.1
_NAMES = JOBS | {"buggy": "with the bug", "fixed": "fixed"}  # by program


def run(trials: list[Trial], rows: int, console: Console, interrupted: threading.Event) -> None:
    """Run and kill the jobs side by side until all are done, or raise `KeyboardInterrupt` if the event is set.

    `rows` is the expected number of rows of each. In every case, no worker is left running.
    """
    with _Screen(console, rows, trials) as screen:
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
            TextColumn("{task.fields[name]:<12}", style="bold"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[rows]:>6,}/{task.total:,} rows"),
            TextColumn("[red]{task.fields[kills]}[/]"),
            TextColumn("{task.fields[state]:<14}"),
            console=console,
            expand=True,
            disable=not console.is_terminal or console.quiet,
        )
        self._tasks: dict[str, TaskID] = {
            trial.program: self._progress.add_task(
                "", total=rows, name=_NAMES[trial.program], rows=0, kills="", state=""
            )
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
                self._progress.update(self._tasks[trial.program], completed=rows, rows=rows)
            self._progress.update(self._tasks[trial.program], kills="✗" * len(trial.kills), state=state)

    def _print(self, trial: Trial, state: str) -> None:
        if self._printed.get(trial.program) != state:
            self._printed[trial.program] = state
            self._console.print(f"        {_NAMES[trial.program]:<12}  {state} (run {trial.life})", highlight=False)
