"""Run every benchmark and print a table; the exit code says whether all goals are met."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from bench import barrier, checkpoints, durable


def main() -> int:
    results = [result for module in (barrier, durable, checkpoints) for result in module.run()]
    if "--json" in sys.argv[1:]:
        print(json.dumps([{**asdict(each), "ratio": each.ratio, "met": each.met} for each in results], indent=2))
    else:
        print(f"{'what':34}{'against':36}{'ours':>12}{'floor':>12}{'ratio':>8}{'goal':>7}")
        for each in results:
            verdict = "met" if each.met else "MISSED"
            print(
                f"{each.name:34}{each.floor_name:36}{each.ours * 1e6:>9.3f} µs{each.floor * 1e6:>9.3f} µs"
                f"{each.ratio:>7.2f}x{each.goal:>6.1f}x  {verdict}"
            )
    return 0 if all(each.met for each in results) else 1


sys.exit(main())
