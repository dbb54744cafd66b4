"""`python -m holdfast.demo`: the demo without the command line around it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from holdfast.demo.show import FAST_KILLS, KILLS, demo
from holdfast.errors import HoldfastError


def main() -> int:
    """Run it; return 0 if Holdfast came through, 1 if it did not, 2 if the demo could not be run."""
    parser = argparse.ArgumentParser(prog="holdfast demo", description="Kill two jobs again and again, and compare.")
    parser.add_argument("folder", nargs="?", type=Path, help="where to write (./holdfast-demo)")
    parser.add_argument("--fast", action="store_true", help=f"{FAST_KILLS} kills, not {KILLS}")
    parser.add_argument("--seed", type=int, help="draw the input and the moments of the kills again")
    parser.add_argument("--kills", type=int, help="how often to kill each job")
    parser.add_argument("--json", action="store_true", help="say nothing but the result, as JSON")
    given = parser.parse_args()
    console = Console(quiet=given.json)
    try:
        outcome = demo(given.folder, fast=given.fast, seed=given.seed, kills=given.kills, console=console)
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(outcome.data(), indent=2))
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
