"""A driver in a process of its own that is killed with its JVM, again and again, and replaced by the next one.

The next driver starts its Spark in advance and waits for a file, `go`. The file may name a point of the protocol at
which the driver kills itself. When the driver has recovered and its query runs, it creates another file: see `watched`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import psutil

from holdfast.epoch import Reach
from rig import Rig

_LONGEST_S = 200


class Moment(Enum):
    """When a driver is killed."""

    START = "in its first seconds"  # it recovers, or is in its first epoch
    POINT = "at a point of the protocol"
    GROWING = "while the output grows"
    RANDOM = "at random"  # after its first epoch


class Killed:
    """A driver that is replaced by the next one whenever it is killed."""

    def __init__(
        self, script: Path, verb: str, rig: Rig, *, size: Callable[[], int], rows: int, spec: dict[str, str]
    ) -> None:
        """`size` returns the size of the output, including what is not committed. `rows` are given at a time."""
        self._words = [sys.executable, str(script), verb]
        self._verb, self._rig, self._size, self._rows, self._spec = verb, rig, size, rows, spec
        self._seen = 0
        self._number = 0
        self._process, self._go = self._standby()

    def _standby(self) -> tuple[subprocess.Popen[bytes], Path]:
        self._number += 1
        go = self._rig.folder / f"go-{self._verb}-{self._number}"
        words = [*self._words, json.dumps({**self._spec, "go": str(go)})]
        with self._log(self._number).open("wb") as log:
            return subprocess.Popen(words, stdout=log, stderr=log), go

    def _log(self, number: int) -> Path:
        return self._rig.folder / f"log-{self._verb}-{number}"

    def strike(self, moment: Moment, *, point: str = "", outage: Callable[[], None] | None = None) -> None:
        """Let the driver run, feed it, and kill it with its JVM. An outage happens while its query runs."""
        process, running = self._process, _note(self._go)
        self._release(point)
        self._process, self._go = self._standby()
        self._rig.add_more(self._rows)
        if outage is not None:
            self._until(running.exists, process)  # a start does not wait for servers: it is refused
            time.sleep(random.uniform(0, 1))
            outage()
            self._note_size()
            self._rig.add_more(self._rows)
        if moment is Moment.POINT:
            self._wait_for_its_end(process)
        else:
            self._wait(moment, process)
            kill_with_children(process.pid)
            process.wait()

    def _release(self, point: str) -> None:
        """Let the driver run that waits."""
        self._note_size()
        hidden = self._go.with_suffix(".hidden")
        hidden.write_text(point)
        hidden.rename(self._go)

    def _wait(self, moment: Moment, process: subprocess.Popen[bytes]) -> None:
        if moment is Moment.START:
            time.sleep(random.uniform(0, 5))
            return
        self._until(lambda: self._size() > self._seen, process)
        if moment is Moment.RANDOM:
            self._rig.add_more(self._rows)
            time.sleep(random.uniform(0, 2))

    def _note_size(self) -> None:
        self._seen = max(self._seen, self._size())  # it is smaller while a broker starts

    def _wait_for_its_end(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the driver has killed itself, and until its JVM is gone, which holds the lock."""
        children: list[psutil.Process] = []
        end = time.monotonic() + _LONGEST_S
        while process.poll() is None:
            assert time.monotonic() < end, f"the driver did not reach its point: {self._said()}"
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children(recursive=True) or children
            time.sleep(0.05)
        assert process.returncode == -signal.SIGKILL, f"the driver ended by itself: {self._said()}"
        psutil.wait_procs(children, timeout=60)

    def finish(self, done: Callable[[], bool]) -> None:
        """Let the last driver write what is left. `close` kills it."""
        self._release("")
        self._until(done, self._process)

    def _until(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + _LONGEST_S
        while not condition():
            assert time.monotonic() < end, f"waited in vain: {self._said()}"
            assert process.poll() is None, f"the driver ended by itself: {self._said()}"
            time.sleep(0.002)

    def _said(self) -> str:
        """Return the ends of the logs of the last drivers."""
        numbers = range(max(1, self._number - 2), self._number + 1)
        return "\n".join(f"{self._log(each).name}: {self._log(each).read_text()[-3000:]}" for each in numbers)

    def close(self) -> None:
        """Kill the last driver."""
        if self._process.poll() is None:  # otherwise another process may have its pid
            kill_with_children(self._process.pid)
        self._process.wait()


def kill_with_children(pid: int) -> None:
    """Kill a driver, its JVM and its Python workers, and wait until all but the driver itself are gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        children = process.children(recursive=True)
        for each in [*children, process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(children, timeout=60)


def released(go: str) -> str:
    """In a driver: wait for the file and return its text."""
    while not Path(go).exists():
        time.sleep(0.02)
    return Path(go).read_text()


def watched(go: str, chosen: str) -> Reach:
    """In a driver: return a function that notes that the query runs, and kills the driver at a chosen point.

    The point is given with a number: `committed 2` is the second time that it is reached.
    """
    point, _, hit = chosen.rpartition(" ")
    times = itertools.count(1)

    def reach(found: str) -> None:
        if found == "opening":
            _note(Path(go)).touch()
        if found == point and next(times) == int(hit):
            kill_with_children(os.getpid())

    return reach


def _note(go: Path) -> Path:
    return go.with_suffix(".running")
