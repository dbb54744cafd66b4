"""A side that runs in its own process with its own Spark, and is suspended between its turns."""

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
for kill in (os.killpg, os.kill):  # it may not have created its process group yet
    try:
        kill(int(sys.argv[1]), signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class RivalFailed(Exception):
    """The other process failed. The text is its traceback."""


class Rival:
    """Calls a function in another process, where `make(*args)` returns it. Between two calls the process is suspended.

    SIGSTOP suspends Python and its JVM, because an idle query polls for input and would disturb the side that is being
    measured. A suspended process cannot end by itself. So a third process waits for the end of this one, however it
    ends, and then kills the suspended one.
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
        """Wait until the function is ready. Several rivals can start in parallel."""
        try:
            self._answer()
        except RivalFailed:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def __call__(self, request: Any = None) -> Any:
        """Resume the process, call the function, and suspend the process again."""
        self._signal(signal.SIGCONT)
        self._pipe.send(request)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def _answer(self) -> Any:
        try:
            good, answer = self._pipe.recv()
        except EOFError:
            good, answer = False, "the process ended without a reason"
        if not good:
            raise RivalFailed(answer)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _is_alive(self) -> bool:
        """Whether any process of its group is alive."""
        assert self._process.pid
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """Kill the process and its JVM."""
        self._signal(signal.SIGKILL)
        self._process.kill()  # in case it has not created its process group yet
        self._process.join()
        end = time.monotonic() + _ENDING_S
        while (
            self._is_alive() and time.monotonic() < end
        ):  # until the JVM has ended too, so that its files can be removed
            time.sleep(0.01)
        self._reaper.communicate()  # it waits for the end of its input

    def __enter__(self) -> Rival:
        self.get_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def rivals(made: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Rival]]:
    """Yield several rivals by name, each given as a function and its arguments; they start in parallel."""
    found = {name: Rival(*how) for name, how in made.items()}
    try:
        for rival in found.values():
            rival.get_ready()
        yield found
    finally:
        for rival in found.values():
            rival.close()


def apart(module: str, measure: Callable[[Path, bool], list[Result]], quick: bool) -> list[Result]:
    """Run a module's measurements in its own process, with a folder that is removed after the process has ended.

    Spark maintains its state in the background, even after it was stopped, so the folder must not be removed earlier.
    """
    with scratch(module) as folder, Rival(_kept, measure, folder, quick) as rival:
        found: list[Result] = rival()
        return found


def _kept(measure: Callable[[Path, bool], list[Result]], folder: Path, quick: bool) -> Callable[[Any], list[Result]]:
    return lambda _: measure(folder, quick)


def _serve(pipe: Connection, make: Callable[..., Callable[[Any], Any]], args: tuple[Any, ...]) -> None:
    os.setsid()  # a new process group, which includes the JVM
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Spark's messages; errors are sent through the pipe
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
        os.killpg(0, signal.SIGKILL)  # the JVM too: a benchmark needs no clean shutdown
