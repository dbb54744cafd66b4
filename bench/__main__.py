"""Run benchmarks and print a table. The exit code is 0 if all benchmarks ran and all goals are met, and 1 otherwise."""

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
from bench.pages import FOLDER, MAIN, PEERS, Page
from bench.progress import Progress
from bench.report import WIDTH, drawn, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks, and print or write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "modules",
        nargs="*",
        metavar="MODULE",
        help=f"benchmarks to run: {', '.join(MAIN.modules)}; with --peers: {', '.join(PEERS.modules)}; default: all",
    )
    parser.add_argument("--peers", action="store_true", help="compare with Flink; `make bench-peers` installs it")
    parser.add_argument(
        "--quick", action="store_true", help=f"run fewer rounds with smaller sizes, without {', '.join(MAIN.not_quick)}"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all samples to this file, or to stdout if it is -"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="update the page of the docs, its plots and its JSON; with MODULEs, only their part",
    )
    options = parser.parse_args(arguments)
    about = PEERS if options.peers else MAIN
    unknown = set(options.modules) - set(about.modules)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; choose from {', '.join(about.modules)}")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"the folder {options.json.parent} does not exist")
    if options.json and options.json.is_dir():
        parser.error(f"{options.json} is a folder; name a file")
    older = _written(about) if options.write and options.modules else None  # all modules make a new page
    if older and not Document("", options.quick, 0, machine(), versions(), ()).fits(older):
        parser.error(
            f"docs/{about.json} was measured on another kind of machine or with other versions: measure all modules"
        )
    chosen = options.modules or [name for name in about.modules if not options.quick or name not in about.not_quick]
    found = run(about, [name for name in about.modules if name in chosen], options.quick)
    if options.json:
        print(found.to_json()) if str(options.json) == "-" else options.json.write_text(found.to_json())
    if options.write:
        if older:
            found = found.renewing(older)
        for name, text in {about.json: found.to_json(), **drawn(found, about)}.items():
            (FOLDER / name).write_text(text)
    print_results(found, to_stderr=str(options.json) == "-")  # then stdout has only JSON
    return 0 if found.good else 1


def print_results(found: Document, *, to_stderr: bool) -> None:
    """Print the table, and explain the exit code."""
    console = Console(stderr=to_stderr)
    console = Console(stderr=to_stderr, width=min(console.width, WIDTH) if console.is_terminal else WIDTH)
    show(found.results, found.failed, console)
    if found.quick:
        without = f", without {', '.join(found.left_out)}" * bool(found.left_out)
        console.print(f"quick: few samples, small sizes, fewer sides{without}; for reliable figures run `make bench`")
    if not found.good:
        console.print(
            f"exit code 1: {'not all benchmarks ran' if found.failed else 'all benchmarks ran, but a goal was missed'}"
        )


def run(about: Page, names: Sequence[str], quick: bool) -> Document:
    """Run modules one after another. A failure is reported, and the others continue."""
    date, start = datetime.now(UTC).date().isoformat(), time.perf_counter()
    on, made_with = machine(), versions()  # before the benchmarks change the load
    measured = []
    older = None if quick else _written(about)
    known = {each.module: each.seconds for each in older.modules} if older else {}
    for at, name in enumerate(names):
        with Progress(f"{name} ({at + 1} of {len(names)})", start, known.get(name)):
            measured.append(measure(f"{about.package}.{name}", quick, made_with))
    left_out = [name for name in about.modules if name not in names]
    seconds = round(time.perf_counter() - start, 1)
    return Document(date, quick, seconds, on, made_with, measured, left_out=left_out)


def _written(about: Page) -> Document | None:
    """Return the run of the docs page."""
    path = FOLDER / about.json
    return Document.from_json(path.read_text()) if path.is_file() else None


def measure(path: str, quick: bool, made_with: dict[str, str]) -> Measured:
    """Run one module, given by its import path."""
    name = path.rpartition(".")[2]
    method, why, results = "", "", []
    start = time.perf_counter()
    try:
        module = importlib.import_module(path)
        method = inspect.cleandoc(module.__doc__ or "")
        results = [each.rounded() for each in module.run(quick)]
        made_with.update(getattr(module, "VERSIONS", {}))
    except CannotMeasure as error:
        sys.stderr.write(f"\n{name} cannot run here: {error}\n")
        why = (str(error).splitlines() or ["no reason given"])[0]
    except Exception as error:
        traceback.print_exc()
        why = f"it failed with {type(error).__name__}"  # without its text, which may contain paths
    return Measured(name, method, round(time.perf_counter() - start, 1), results, why)


def _end(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # so that folders and processes are removed
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; nothing was written\n")
        sys.exit(130)
