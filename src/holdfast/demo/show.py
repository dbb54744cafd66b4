"""The demo as a person sees it: both jobs on trial at once, a bar for each, and what their outputs hold at the end."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from holdfast.demo import needs
from holdfast.demo.orders import WATERMARK, Orders, generate
from holdfast.demo.place import DEFAULT, DemoFolder
from holdfast.demo.proof import Proof, RowCounts
from holdfast.demo.trial import MOST_SIGHTINGS, Kill, Strike, Trial, draw
from holdfast.errors import BadValue

JOBS = {"holdfast": "Holdfast", "plain": "plain Spark"}
KILLS, FAST_KILLS = 4, 2
_EVENTS_PER_FILE = 300
_LOOK_S = 0.01
_DRAW_S = 0.1
_MOST_KILLS = 50
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo came to. It is `ok` if Holdfast lost, doubled and changed nothing; plain Spark is only shown."""

    folder: Path
    seed: int
    seconds: float
    events: int
    late: int
    twice: int
    kills: tuple[Kill, ...]
    proofs: dict[str, Proof]

    @property
    def ok(self) -> bool:
        """Whether Holdfast's outputs are exactly what is due."""
        return self.proofs["holdfast"].ok

    def killed(self, job: str) -> int:
        """Count the kills of a job."""
        return sum(kill.job == job for kill in self.kills)

    def summary(self) -> str:
        """Say it, a paragraph a job."""
        return "\n\n".join(
            f"{name}, killed {self.killed(job)} times\n{self.proofs[job].summary()}" for job, name in JOBS.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "ok": self.ok,
            "folder": str(self.folder),
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "events": self.events,
            "late": self.late,
            "twice": self.twice,
            "kills": [kill.to_dict() for kill in self.kills],
            "jobs": {job: {"killed": self.killed(job)} | self.proofs[job].to_dict() for job in JOBS},
        }


def demo(folder: Path | None, *, fast: bool, seed: int | None, kills: int | None, console: Console) -> Outcome:
    """Run the demo in a folder (`./holdfast-demo`), which is made, or replaced if a former demo made it.

    Input and moments come from the seed; where a kill strikes inside an epoch is still up to the machine. Interrupted,
    by Ctrl-C or SIGTERM, it ends its workers and exits with 130. A worker that fails by itself is `DemoFailed`.
    """
    seed = random.randrange(10_000) if seed is None else seed
    most = 1 if fast else MOST_SIGHTINGS
    strikes = draw(seed, _checked_kills(kills, fast=fast), most)
    needs.require()
    place = DemoFolder((folder or DEFAULT).absolute())
    with place.locked():
        return _shown(place, strikes, seed, most, console)


def _shown(place: DemoFolder, strikes: tuple[Strike, ...], seed: int, most: int, console: Console) -> Outcome:
    began = time.monotonic()
    files = most * (len(strikes) + 1) + 2  # more than a life uses up before its kill: the next one needs work too
    orders = generate(seed, files, _EVENTS_PER_FILE)
    place.clear(seed=seed, kills=len(strikes))
    orders.write(place.input, place.products)
    trials = [Trial(job, place, strikes) for job in JOBS]
    shown = _relative(place.folder)
    _introduce(console, orders, strikes, seed, shown)
    try:
        with _deferred() as asked, _Screen(console, orders.rows().total(), trials) as screen:
            _run(trials, screen, asked)
    except KeyboardInterrupt:
        console.print(f"\nInterrupted: the workers are ended. What there is lies in [bold]{escape(shown)}[/].")
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
    _conclude(console, outcome, len(strikes), shown)
    return outcome


def _run(trials: list[Trial], screen: _Screen, asked: threading.Event) -> None:
    """Run and kill both jobs side by side until both are done, or until a signal arrives.

    No worker is left running, whatever happens.
    """
    try:
        for trial in trials:
            trial.start()
        while not all(trial.done for trial in trials):
            if asked.is_set():
                raise KeyboardInterrupt
            for trial in trials:
                if not trial.done and (kill := trial.step()):
                    screen.tell(kill)
                    trial.start()
            screen.draw()
            time.sleep(_LOOK_S)
        screen.draw(now=True)
    finally:
        for trial in trials:
            trial.end()


class _Screen:
    """Bars where there is a terminal; else a line for each thing that happens."""

    def __init__(self, console: Console, rows: int, trials: list[Trial]) -> None:
        self._console = console
        self._trials = trials
        self._next = 0.0
        self._said: dict[str, str] = {}
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

    def tell(self, kill: Kill) -> None:
        """Say that a worker was killed, and what was to be seen then."""
        sqlite = "?" if kill.sqlite is None else f"{kill.sqlite:,}"
        when = f"{kill.delay_ms:>2} ms after {kill.place} grew;"
        self._console.print(
            f"[red]kill {kill.number}[/]  {JOBS[kill.job]:<11}  {when:<25} "
            f"now Parquet {kill.parquet:,}, SQLite {sqlite}",
            highlight=False,
        )

    def draw(self, *, now: bool = False) -> None:
        """Bring the bars up to date, at most so often."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _DRAW_S
        for trial in self._trials:
            state = {"starting": "Spark starts", "recovering": "starts again"}.get(trial.state, trial.state)
            if self._progress.disable:
                self._say(trial, state)
                continue
            rows = trial.outputs.sqlite_shown()
            if rows is not None:
                self._progress.update(self._tasks[trial.job], completed=rows, rows=rows)
            self._progress.update(self._tasks[trial.job], kills="✗" * len(trial.kills), state=state)

    def _say(self, trial: Trial, state: str) -> None:
        if self._said.get(trial.job) != state:
            self._said[trial.job] = state
            self._console.print(f"        {JOBS[trial.job]:<11}  {state} (life {trial.life})", highlight=False)


def _introduce(console: Console, orders: Orders, strikes: tuple[Strike, ...], seed: int, folder: str) -> None:
    events = sum(1 for _ in orders.events)
    hours = WATERMARK.total_seconds() / 3600
    console.print(
        f"[bold]{events:,} order events[/] in {len(orders.files)} files: {orders.late:,} come late, "
        f"{orders.twice:,} come twice. The watermark is {hours:.0f} hours, longer than any delay, so each order "
        f"counts, and counts once.\n"
        f"Two jobs get them, the same queries in both: [bold]Holdfast[/] and [bold]plain Spark[/] with foreachBatch. "
        f"Each writes the orders to Parquet and to SQLite, and totals from a second stream that reads the first.\n"
        f"Each is killed {len(strikes)} times with SIGKILL, Java and all, just after an output was seen to grow: the "
        f"same rule for both. Seed {seed}, folder {escape(folder)}.\n",
        highlight=False,
    )


def _conclude(console: Console, outcome: Outcome, planned: int, folder: str) -> None:
    console.print()
    console.print(_table(outcome))
    for job, name in JOBS.items():
        if outcome.killed(job) < planned:
            console.print(f"{name} was done before all {planned} kills: it was killed {outcome.killed(job)} times.")
    holdfast, plain = outcome.proofs["holdfast"], outcome.proofs["plain"]
    if holdfast.ok:
        console.print("[bold green]Holdfast: nothing lost, nothing doubled,[/] by its outputs alone.", highlight=False)
    else:
        console.print("[bold red]Holdfast's outputs are not what is due.[/] That is a bug: please report it, with the")
        console.print(f"seed {outcome.seed} and the folder {escape(folder)}.", highlight=False)
    if plain.ok:
        console.print("Plain Spark came through unharmed this time: no kill struck between a write and Spark's commit.")
        console.print("Another --seed will show it otherwise.")
    else:
        console.print("Plain Spark ran the killed batches again, and wrote again what they had written.")
    repository = f"{folder}/checkpoints/orders"
    console.print(f"\n[bold]Look[/]  ({outcome.seconds:.0f} s, seed {outcome.seed})", highlight=False)
    for inner, what in (
        ("holdfast", "orders/ and shop.db, by Holdfast"),
        ("plain   ", "the same, by plain Spark"),
        ("logs    ", "what each worker said, recoveries too"),
    ):
        console.print(f"  {escape(folder)}/{inner}  {what}", highlight=False, soft_wrap=True)
    console.print("\n[bold]Try[/]", highlight=False)
    commands = {
        f"ls -r {repository}": "its checkpoints",
        f"show -r {repository}": "the newest",
        f"verify -r {repository}": "is it sound?",
    }
    ids = _ids(outcome.folder / "checkpoints" / "orders")
    if len(ids) > 1:
        commands[f"diff -r {repository} {ids[0]} {ids[-1]}"] = "what went on between"
    width = max(map(len, commands))
    for command, what in commands.items():
        line = f"  {escape(_typed())} {escape(command.ljust(width))}  [dim]# {what}[/]"
        console.print(line, highlight=False, soft_wrap=True)


def _table(outcome: Outcome) -> Table:
    table = Table(title="What the outputs hold", title_justify="left", title_style="bold")
    table.add_column("")
    for name in JOBS.values():
        table.add_column(name, justify="right", min_width=14)
    proofs = [outcome.proofs[job] for job in JOBS]

    def count(found: int, text: str | None = None) -> str:
        return f"[{'red' if found else 'green'}]{text or f'{found:,}'}[/]"

    def rows(name: str, found: list[RowCounts]) -> None:
        table.add_row(f"{name}: rows, of {found[0].due:,}", *(f"{each.found:,}" for each in found))
        table.add_row("  lost", *(count(each.lost) for each in found))
        table.add_row(
            "  doubled", *(count(each.doubled) for each in found), end_section=not any(e.wrong for e in found)
        )
        if any(each.wrong for each in found):
            table.add_row("  wrong", *(count(each.wrong) for each in found), end_section=True)

    table.add_row("killed", *(f"{outcome.killed(job)} times" for job in JOBS), end_section=True)
    rows("orders in Parquet", [each.parquet for each in proofs])
    rows("orders in SQLite", [each.sqlite for each in proofs])
    totals = [each.totals for each in proofs]
    table.add_row(f"totals: wrong, of {totals[0].due}", *(count(each.wrong) for each in totals))
    table.add_row("  money too much", *(count(each.cents, f"{each.cents / 100:,.2f}") for each in totals))
    return table


def _ids(repository: Path) -> list[int]:
    """List the checkpoints that can be compared."""
    from holdfast.repository import Checkpoints, Status, open_repository  # only at the end

    summaries = Checkpoints(open_repository(str(repository))).all()
    return [each.checkpoint for each in summaries if each.status is Status.RESTORABLE]


def _typed() -> str:
    """Return what to type for `holdfast` here: its path, where it is not on the shell's."""
    return "holdfast" if shutil.which("holdfast") else _relative(Path(sys.executable).with_name("holdfast"))


def _relative(folder: Path) -> str:
    """Return a path as one would type it from here."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)


def _checked_kills(kills: int | None, *, fast: bool) -> int:
    if kills is None:
        return FAST_KILLS if fast else KILLS
    if not 1 <= kills <= _MOST_KILLS:
        raise BadValue(what="kills", value=kills, expected=f"a number from 1 to {_MOST_KILLS}")
    return kills


@contextlib.contextmanager
def _deferred() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set instead of raising. Only in the main thread.

    An exception could come between the start of a worker and the moment when it is known, and leave it running.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(_: int, frame: FrameType | None) -> None:
        del frame
        asked.set()

    handled = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, note) for each in handled}
    try:
        yield asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
