"""The demo: kill both jobs and compare their outputs, then deploy a bug with the Holdfast job and undo it."""

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

from holdfast.demo import needs, report, screen
from holdfast.demo.correction import correct
from holdfast.demo.orders import Orders, generate, write_products
from holdfast.demo.outcome import JOBS, Comparison, Outcome
from holdfast.demo.place import DEFAULT, DemoFolder
from holdfast.demo.proof import Proof
from holdfast.demo.trial import MOST_SIGHTINGS, Strike, Trial, draw
from holdfast.errors import BadValue

KILLS, FAST_KILLS = 4, 2
_EVENTS_PER_FILE = 300
_MORE_FILES = 2  # for the bug
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
    more = generate(seed, _MORE_FILES, _EVENTS_PER_FILE, first=files)
    place.clear(seed=seed, kills=len(strikes))
    write_products(place.products)
    orders.write(place.input)
    shown = report.relative(place.folder)
    report.introduce(console, orders, strikes, seed, shown)
    try:
        with _deferred() as interrupted:
            comparison = _compare(place, orders, strikes, console, interrupted)
            correction = correct(place, orders, more, console, interrupted)
    except KeyboardInterrupt:
        console.print(
            f"\nInterrupted: the workers have been ended. The outputs so far are in [bold]{escape(shown)}[/]."
        )
        sys.exit(_INTERRUPTED)
    outcome = Outcome(
        folder=place.folder,
        seed=seed,
        seconds=time.monotonic() - began,
        events=sum(1 for _ in orders.events),
        late=orders.late,
        twice=orders.twice,
        comparison=comparison,
        correction=correction,
    )
    report.conclude(console, outcome, shown)
    return outcome


def _compare(
    place: DemoFolder, orders: Orders, strikes: tuple[Strike, ...], console: Console, interrupted: threading.Event
) -> Comparison:
    """Run and kill both jobs side by side, and compare their outputs."""
    rows, totals = orders.rows(), orders.totals()
    trials = [Trial(job, place, strikes) for job in JOBS]
    screen.run(trials, rows.total(), console, interrupted)
    comparison = Comparison(
        kills=tuple(kill for trial in trials for kill in trial.kills),
        proofs={trial.job: Proof.of(trial.outputs, rows, totals) for trial in trials},
    )
    report.compare(console, comparison, len(strikes))
    return comparison


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
