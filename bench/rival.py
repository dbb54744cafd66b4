"""A side that runs in its own process with its own Spark, and is suspended between its turns."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.compare import Result
from bench.group import Group
from bench.scratch import scratch

_SPAWN = multiprocessing.get_context("spawn")


class RivalFailed(Exception):
    """The other process failed. The text is its traceback."""


class Rival:
    """Calls a function in another process, where `make(*args)` returns it. Between two calls the process is suspended.

    SIGSTOP suspends Python and its JVM, because an idle query polls for input and would disturb the side that is being
    measured.
    """

    def __init__(self, make: Callable[..., Callable[[Any], Any]], *args: Any) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, make, args), daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid
        self._group = Group(self._process.pid)

    def get_ready(self) -> None:
        """Wait until the function is ready. Several rivals can start in parallel."""
        try:
            self._answer()
        except RivalFailed:
            self.close()
            raise
        self._group.suspend()

    def __call__(self, request: Any = None) -> Any:
        """Resume the process, call the function, and suspend the process again."""
        self._group.resume()
        self._pipe.send(request)
        answer = self._answer()
        self._group.suspend()
        return answer

    def _answer(self) -> Any:
        try:
            good, answer = self._pipe.recv()
        except EOFError:
            good, answer = False, "the process ended without a reason"
        if not good:
            raise RivalFailed(answer)
        return answer

    def close(self) -> None:
        """Kill the process and its JVM."""
        self._group.kill()
        self._process.kill()  # in case it has not created its process group yet
        self._process.join()
        self._group.wait()

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
