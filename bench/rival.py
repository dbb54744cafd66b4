"""A side in a process of its own, with a Spark of its own, that stands still while it is not its turn."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.compare import Result
from bench.scratch import scratch

_SPAWN = multiprocessing.get_context("spawn")
_ENDING_S = 5.0
_REAPER = """
import os, signal, sys
sys.stdin.read()
for kill in (os.killpg, os.kill):  # it may not have come as far as a group of its own
    try:
        kill(int(sys.argv[1]), signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class RivalFailed(Exception):
    """The other process failed; its text is that of the traceback there."""


class Rival:
    """Calls a function in another process: `make(*args)` there returns it. Between two calls the process is stopped.

    Stopped are Python and its JVM, by the signal: an idle query looks for input all the time, and would take its share
    of the machine from whoever is measured. What is stopped cannot end by itself, so a third process, which only waits
    for the end of this one, ends it whatever this one dies of.
    """

    def __init__(self, make: Callable[..., Callable[[Any], Any]], *args: Any) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, make, args), daemon=True)
        self._process.start()
        theirs.close()
        self._reaper = subprocess.Popen(
            [sys.executable, "-c", _REAPER, str(self._process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )

    def get_ready(self) -> None:
        """Wait until it is made. Several can be made side by side."""
        try:
            self._answer()
        except RivalFailed:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def __call__(self, request: Any = None) -> Any:
        """Let it run, ask, and stop it again."""
        self._signal(signal.SIGCONT)
        self._pipe.send(request)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def _answer(self) -> Any:
        try:
            good, answer = self._pipe.recv()
        except EOFError:
            good, answer = False, "it ended without a word"
        if not good:
            raise RivalFailed(answer)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _is_there(self) -> bool:
        """Whether any process of its group is."""
        assert self._process.pid
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """End it and its JVM."""
        self._signal(signal.SIGKILL)
        self._process.kill()  # one that has not come as far as a group of its own
        self._process.join()
        end = time.monotonic() + _ENDING_S
        while self._is_there() and time.monotonic() < end:  # the JVM too, before somebody removes its files
            time.sleep(0.01)
        self._reaper.communicate()  # the end of its input is what it waits for

    def __enter__(self) -> Rival:
        self.get_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def rivals(made: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Rival]]:
    """Give several by name, each made of a function and its arguments; they start side by side."""
    found = {name: Rival(*how) for name, how in made.items()}
    try:
        for rival in found.values():
            rival.get_ready()
        yield found
    finally:
        for rival in found.values():
            rival.close()


def apart(module: str, measure: Callable[[Path, bool], list[Result]], quick: bool) -> list[Result]:
    """Let a module measure in a process of its own, with a folder that goes when that process has gone.

    Spark looks after its state in the background, and goes on with that when it was told to stop.
    """
    with scratch(module) as folder, Rival(_kept, measure, folder, quick) as rival:
        found: list[Result] = rival()
        return found


def _kept(measure: Callable[[Path, bool], list[Result]], folder: Path, quick: bool) -> Callable[[Any], list[Result]]:
    return lambda _: measure(folder, quick)


def _serve(pipe: Connection, make: Callable[..., Callable[[Any], Any]], args: tuple[Any, ...]) -> None:
    os.setsid()  # a group of its own, the JVM in it
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what Spark says while it starts; what fails is sent
    try:
        answer = make(*args)
        pipe.send((True, None))
        while True:
            pipe.send((True, answer(pipe.recv())))
    except EOFError:
        pass
    except BaseException:
        with contextlib.suppress(OSError):
            pipe.send((False, traceback.format_exc()))
    finally:
        os.killpg(0, signal.SIGKILL)  # its JVM too: nothing of a benchmark is worth a clean end
