"""A program of `examples/` as a person runs it: by its command line, in a folder of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast as hf

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = '--driver-memory 512m --driver-java-options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" pyspark-shell'
SECRET = "a-password-that-nobody-may-see"  # noqa: S105 - the server does not ask for it


class Program:
    """An example in a folder of its own: what is typed, what goes in, and what it says."""

    def __init__(self, name: str, folder: Path, source: str = "") -> None:
        """The source is the folder for input files, if the example reads files."""
        self.command = [sys.executable, str(EXAMPLES / f"{name}.py")]
        self.folder = folder
        self.source = folder / "data" / source
        self.source.mkdir(parents=True)
        self.environment = os.environ | {"PYSPARK_SUBMIT_ARGS": SMALL, "PYTHONDONTWRITEBYTECODE": "1"}
        self.said = folder / "said"
        self._files = 0

    def feed(self, *lines: Any) -> None:
        self._files += 1
        text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
        hidden = self.folder / "hidden"
        hidden.write_text(text)
        hidden.rename(self.source / f"{self._files}.json")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.said.open("ab") as said:
            return subprocess.Popen(
                [*self.command, *arguments], cwd=self.folder, env=self.environment, stdout=said, stderr=said
            )

    def run(self, *arguments: str) -> int:
        return self.start(*arguments).wait(100)

    def run_here(self, patch: pytest.MonkeyPatch, *arguments: str) -> None:
        """Run it in this process, on the session at hand: a start of Spark costs more than all else of a test."""
        patch.chdir(self.folder)
        patch.setattr(sys, "argv", [self.command[-1], *arguments])
        loaded(Path(self.command[-1]).stem).main()

    def until(self, condition: Callable[[], object], *running: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 100
        while not condition():
            assert time.monotonic() < end, self.said.read_text()
            assert all(each.poll() is None for each in running), self.said.read_text()
            time.sleep(0.05)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the program, and wait for its JVM, which finds out by itself and keeps the lock until it is gone."""
        process.kill()
        process.wait()
        self.until(self._is_free)

    def _is_free(self) -> bool:
        (repository,) = (self.folder / "data/checkpoints").iterdir()
        try:
            hf.repository.Lease.take(hf.open_repository(repository)).release()
        except hf.errors.Locked:
            return False
        return True


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
