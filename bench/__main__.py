"""Run benchmarks and print a table; the exit code says whether all goals are met. Names of some run only those."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

ALL = ("barrier", "durable", "checkpoints", "cuts", "start")


def main() -> int:
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or ALL
    results = [result for name in chosen for result in importlib.import_module(f"bench.{name}").run()]
    if "--json" in sys.argv[1:]:
        print(json.dumps([{**asdict(each), "ratio": each.ratio, "met": each.met} for each in results], indent=2))
    else:
        print(f"{'what':42}{'against':30}{'ours':>15}{'floor':>15}{'ratio':>8}{'goal':>7}")
        for each in results:
            verdict = "met" if each.met else "MISSED"
            print(
                f"{each.name:42}{each.floor_name:30}{each.ours * 1e6:>12.3f} µs{each.floor * 1e6:>12.3f} µs"
                f"{each.ratio:>7.2f}x{each.goal:>6.1f}x  {verdict}"
            )
    return 0 if all(each.met for each in results) else 1


sys.exit(main())
