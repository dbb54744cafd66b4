"""A program that runs in its own process, whose input is written and whose output is read while it runs.

The program reads the CSV files of a folder and writes CSV files to another one. This process writes the input, one row
per file, and polls the output about a thousand times per second, as any reader of such a folder would: it skips hidden
names (`.` or `_` first), and reads each new file or folder once.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.group import Group

POLL_S = 0.001
PATIENCE_S = 180.0
RATE = 4.0  # rows per second


class ProgramFailed(Exception):
    """The program ended, or a row did not become visible. The text ends with the last lines of its log."""


@dataclass(frozen=True)
class Program:
    """How a side is started: the folder of the job stands between the command and its arguments."""

    name: str
    command: Sequence[str]
    arguments: Sequence[str] = ()
    exactly_once: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)  # of its environment, besides those of this process


class Output:
    """Reads what is visible in a folder, each file once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: set[str] = set()
        self._old: set[str] = set()  # read before the last `clear`

    def new(self) -> list[bytes]:
        """Return the contents of the files that have become visible since the last call."""
        found: list[bytes] = []
        for entry in _visible(self._folder):
            if entry.name not in self._read:
                self._read.add(entry.name)
                found += map(Path.read_bytes, _files(entry))
        return found

    def clear(self) -> None:
        """Remove what had been read before the last call, so that the disk does not fill up.

        What was read since then stays, because a sink checks that its last epoch is still there.
        """
        for entry in _visible(self._folder):
            if entry.name in self._old:
                shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)  # noqa: PTH108
        self._old = set(self._read)


def _visible(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.name[0] not in "._"]
    except FileNotFoundError:
        return []


def _files(entry: os.DirEntry[str]) -> Iterator[Path]:
    if not entry.is_dir():
        yield Path(entry.path)
        return
    for each in _visible(entry.path):
        yield from _files(each)


class Watched:
    """A running program, with its input and its output."""

    def __init__(self, folder: Path, program: Program, files: Sequence[Path] = (), *, seed: int = 1) -> None:
        self.program = program
        self.folder = folder
        self.input = folder / "in"
        self.input.mkdir(parents=True)
        self.output = Output(folder / "out")
        self.copies: Counter[int] = Counter()  # of each row in the output
        self._chance = random.Random(seed)  # noqa: S311 - the same moments in every run
        self._written: dict[int, float] = {}  # when each row was written that is not yet visible
        self._waited: list[float] = []  # seconds until visible, since the last turn began
        self._next = 0
        self.link(files)  # before the start: they are read first
        self.start()

    # --- the process ---

    def start(self) -> None:
        """Start the program, as its user would after a failure."""
        with (self.folder / "log").open("ab") as log:
            command = [*self.program.command, str(self.folder), *self.program.arguments]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=Path(__file__).parents[1],
                env={
                    **os.environ,
                    "FLINK_LOG_DIR": str(self.folder),
                    "PYSPARK_PYTHON": sys.executable,
                    **self.program.variables,
                },
            )
        self.group = Group(self._process.pid)

    def kill(self) -> None:
        """Kill the program and its JVM, and wait for their end."""
        self._process_killed()
        self.group.wait()

    def kill_and_start(self) -> None:
        """Kill the program, and start it again as soon as its process has ended; its JVM may take a moment longer."""
        old = self.group
        self._process_killed()
        self.start()
        old.wait()

    def _process_killed(self) -> None:
        self.group.resume()
        self.group.kill()
        self._process.wait()

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Let the program run in this block, and suspend it afterwards."""
        self.group.resume()
        yield
        self.group.suspend()

    # --- many rows ---

    def link(self, files: Sequence[Path]) -> None:
        """Add files to the input."""
        for file in files:
            os.link(file, self.input / f"{self._next:06}.csv")
            self._next += 1

    def wait_for_rows(self, rows: int) -> None:
        """Wait until that many more rows are visible, then remove them. Only lines are counted."""
        patience = time.perf_counter() + PATIENCE_S
        while rows > 0:
            rows -= sum(data.count(b"\n") for data in self.output.new())
            self.check(patience)
            time.sleep(POLL_S)
        if rows:
            raise ProgramFailed(f"{self.program.name} wrote {-rows} rows too many")
        self.output.clear()

    # --- single rows ---

    def warm_up(self, rows: int) -> None:
        """Write that many rows, each as soon as the one before it is visible."""
        for _ in range(rows):
            self._write()
            self._run(self._all_visible)

    def visible(self, rows: int) -> list[float]:
        """Write rows at the rate, and return the time until each was visible, from the rename of its input file."""
        self._waited = []
        last = self._next + rows
        self._run(lambda: self._next == last and self._all_visible(), last)
        return self._waited

    def run_for(self, seconds: float) -> None:
        """Write rows at the rate for that long. The last ones need not be visible at the end."""
        end = time.perf_counter() + seconds
        self._run(lambda: time.perf_counter() >= end, sys.maxsize)

    def first_new(self) -> None:
        """Write rows at the rate until one of them is visible."""
        first = self._next
        self._run(lambda: any(self.copies[row] for row in range(first, self._next)), sys.maxsize)

    def settle(self) -> None:
        """Wait until every row is visible, and check that exactly-once output has each row once."""
        self._run(self._all_visible)
        copied = [row for row, copies in self.copies.items() if copies > 1]
        if copied and self.program.exactly_once:
            raise ProgramFailed(f"{self.program.name} wrote {len(copied)} of {self._next} rows more than once")

    def _all_visible(self) -> bool:
        return not self._written

    def _run(self, done: Callable[[], bool], last: int = 0) -> None:
        """Write rows at the rate up to a number, and read the output, until the condition holds."""
        due = time.perf_counter()
        patience = due + PATIENCE_S
        while not done():
            if self._next < last and time.perf_counter() >= due:
                self._write()
                due += self._chance.uniform(0.5, 1.5) / RATE  # so that it is not in step with a program's interval
            self._look()
            self.check(patience)
            time.sleep(POLL_S)

    def _write(self) -> None:
        path = self.input / f"{self._next:06}.csv"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text(f"{self._next},customer-{self._next},1.5,1700000000000,true\n")
        self._written[self._next] = time.perf_counter()
        hidden.rename(path)
        self._next += 1

    def _look(self) -> None:
        for data in self.output.new():
            now = time.perf_counter()
            for line in data.splitlines():
                row = int(line.split(b",", 1)[0])
                self.copies[row] += 1
                if row in self._written:
                    self._waited.append(now - self._written.pop(row))

    def check(self, patience: float) -> None:
        """Raise `ProgramFailed` if the program has ended, or if the time is over."""
        late = time.perf_counter() > patience
        if not late and self._process.poll() is None:
            return
        why = f"showed no row within {PATIENCE_S:.0f} s" if late else f"ended with {self._process.returncode}"
        log = (self.folder / "log").read_text(errors="replace")[-3000:]
        raise ProgramFailed(f"{self.program.name} {why}\n{log}")


@contextlib.contextmanager
def watched(folder: Path, programs: Sequence[Program]) -> Iterator[dict[str, Watched]]:
    """Yield running programs by name; at the end they are killed."""
    found: dict[str, Watched] = {}
    try:
        for number, program in enumerate(programs):
            found[program.name] = Watched(folder / str(number), program)
        yield found
    finally:
        for each in found.values():
            each.kill()
