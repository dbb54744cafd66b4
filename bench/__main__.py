"""Run benchmarks and print a table; the exit code says whether all ran and all goals are met."""

from __future__ import annotations

import argparse
import importlib
import inspect
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.compare import CannotMeasure
from bench.document import Document, Measured
from bench.machine import machine, versions
from bench.progress import Progress
from bench.questions import MODULES, NOT_QUICK
from bench.report import FOLDER, JSON, WIDTH, drawn, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and tell in the ways that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"which to run, of {', '.join(MODULES)}; else all")
    parser.add_argument(
        "--quick", action="store_true", help=f"fewer rounds and smaller sizes; without {', '.join(NOT_QUICK)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples into this file, - for the screen")
    parser.add_argument(
        "--write",
        action="store_true",
        help="renew the page of the docs, its plots and its JSON; with names of modules, their part of it",
    )
    said = parser.parse_args(arguments)
    unknown = set(said.modules) - set(MODULES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    if said.json and not said.json.parent.is_dir():
        parser.error(f"there is no folder {said.json.parent} to write {said.json.name} into")
    if said.json and said.json.is_dir():
        parser.error(f"{said.json} is a folder; name a file in it")
    chosen = said.modules or [name for name in MODULES if not said.quick or name not in NOT_QUICK]
    found = run([name for name in MODULES if name in chosen], said.quick)
    if said.json:
        print(found.to_json()) if str(said.json) == "-" else said.json.write_text(found.to_json())
    if said.write:
        if found.left_out and (FOLDER / JSON).is_file():
            found = found.renewing(Document.from_json((FOLDER / JSON).read_text()))
        for name, text in {JSON: found.to_json(), **drawn(found)}.items():
            (FOLDER / name).write_text(text)
    tell(found, aside=str(said.json) == "-")  # then what is on the screen is JSON and nothing else
    return 0 if found.good else 1


def tell(found: Document, *, aside: bool) -> None:
    """Print the table, and what to make of it."""
    console = Console(stderr=aside)
    console = Console(stderr=aside, width=min(console.width, WIDTH) if console.is_terminal else WIDTH)
    show(found.results, found.failed, console)
    if found.quick:
        without = f", without {', '.join(found.left_out)}" * bool(found.left_out)
        console.print(f"quick: few samples, small sizes, fewer sides{without}; `make bench` takes its time")
    if not found.good:
        console.print(f"exit code 1: {'not all could be measured' if found.failed else 'all ran, a goal was missed'}")


def run(names: Sequence[str], quick: bool) -> Document:
    """Run modules, one after another. One that fails is told, and the others go on."""
    date, start = datetime.now(UTC).date().isoformat(), time.perf_counter()
    on, made_with = machine(), versions()  # before anything runs: a benchmark has a load, and leaves files about
    measured = []
    known = {} if quick else _known()
    for at, name in enumerate(names):
        with Progress(f"{name} ({at + 1} of {len(names)})", start, known.get(name)):
            measured.append(measure(name, quick, made_with))
    left_out = [name for name in MODULES if name not in names]
    seconds = round(time.perf_counter() - start, 1)
    return Document(date, quick, seconds, on, made_with, measured, left_out=left_out)


def _known() -> dict[str, float]:
    """Return how long each module took in the run that the page is of."""
    path = FOLDER / JSON
    return (
        {each.module: each.seconds for each in Document.from_json(path.read_text()).modules} if path.is_file() else {}
    )


def measure(name: str, quick: bool, made_with: dict[str, str]) -> Measured:
    """Run one module."""
    method, why, results = "", "", []
    start = time.perf_counter()
    try:
        module = importlib.import_module(f"bench.{name}")
        method = inspect.cleandoc(module.__doc__ or "")
        results = [each.rounded() for each in module.run(quick)]
        made_with.update(getattr(module, "VERSIONS", {}))
    except CannotMeasure as error:
        sys.stderr.write(f"\n{name} cannot be measured: {error}\n")
        why = (str(error).splitlines() or ["it does not say why"])[0]
    except Exception as error:
        traceback.print_exc()
        why = f"it failed with {type(error).__name__}"  # its text may have paths in it
    return Measured(name, method, round(time.perf_counter() - start, 1), results, why)


def _end(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # so that folders and processes go
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; nothing was written\n")
        sys.exit(130)
