"""The time that `holdfast ls` and `holdfast show` take, started from the shell, on a repository of ten checkpoints."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.compare import Result, calls_in_turn

ROUNDS = 5
LIMIT_S = 0.4


def run(quick: bool) -> list[Result]:
    sys.path.insert(0, "tests")
    from fabricated import Fabricated  # noqa: PLC0415 - the tests make the checkpoints
    from holdfast.repository import LocalRepository  # noqa: PLC0415

    command = Path(sys.executable).with_name("holdfast")
    with tempfile.TemporaryDirectory() as folder:
        made = Fabricated(LocalRepository(Path(folder) / "orders"))
        for number in range(10):
            made.take("kept", str(number))
        found = []
        for verb in ("ls", "show"):
            words = [command, verb, "--repo", folder]
            bare = [sys.executable, "-c", "import typer, rich.console, msgspec"]
            ours, floor = calls_in_turn(3 if quick else ROUNDS, partial(_quiet, words), partial(_quiet, bare))
            found.append(Result("path", f"start of `holdfast {verb}`", "a fixed limit", ours, [LIMIT_S], goal=1.0))
            found.append(
                Result("path", f"start of `holdfast {verb}`", "Python and its libraries", ours, floor, goal=4.0)
            )
        return found


def _quiet(words: Sequence[str | Path]) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
