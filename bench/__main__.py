"""Run benchmarks and print a table; the exit code says whether all goals are met."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from bench.compare import CannotMeasure, Result
from bench.questions import MODULES
from bench.report import table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"which to run, of {', '.join(MODULES)}; else all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples into this file, - for the screen")
    said = parser.parse_args()
    unknown = set(said.modules) - set(MODULES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    results: list[Result] = []
    failures: dict[str, CannotMeasure] = {}
    for name in said.modules or MODULES:
        start = time.perf_counter()
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            results += importlib.import_module(f"bench.{name}").run(said.quick)
        except CannotMeasure as error:
            failures[name] = error
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    if said.json:
        text = json.dumps([each.plain() for each in results], indent=1)
        print(text) if str(said.json) == "-" else said.json.write_text(text + "\n")
    print(table(results))
    for name, reason in failures.items():
        print(f"\n{name} was not measured:\n{reason}", file=sys.stderr)
    return 0 if not failures and all(each.met is not False for each in results) else 1


sys.exit(main())
