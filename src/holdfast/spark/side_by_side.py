"""Functions that run concurrently: the first in the caller's thread, the others in threads that are reused.

Rules:
- `run` returns when every function has returned or failed: nothing continues in the background.
- The threads are kept from one `run` to the next, because each of them has a connection to the JVM and a thread there.
- If no further thread can be started, the caller runs the remaining functions one after another.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
MOST_THREADS = 7  # in addition to the caller's
Within: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class CallResult(Generic[T]):
    """How a function ended: with a value, or with an error of any kind."""

    value: T | None = None
    error: BaseException | None = None
    seconds: float = 0.0  # how long it took

    @classmethod
    def of(cls, call: Callable[[], T]) -> CallResult[T]:
        """Call a function."""
        began = time.monotonic()
        try:
            return cls(call(), seconds=time.monotonic() - began)
        except BaseException as error:
            return cls(error=error, seconds=time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    """One function of a `run`, and where its outcome is reported."""

    number: int
    function: Callable[[], T]
    within: Within
    ended: queue.SimpleQueue[tuple[int, CallResult[T]]]

    def here(self) -> None:
        """Make the call in the thread of the caller of `run`."""
        self.ended.put((self.number, CallResult.of(self.function)))

    def aside(self) -> None:
        """Make the call in another thread."""
        self.ended.put((self.number, CallResult.of(self._inside)))

    def _inside(self) -> T:
        with self.within():
            return self.function()


class SideBySide:
    """Runs several functions at the same time, for one caller."""

    def __init__(self, name: str) -> None:
        self._name = name  # of the threads
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()  # None: a thread ends
        self._threads = 0

    def run(self, functions: Sequence[Callable[[], T]], within: Within) -> list[CallResult[T]]:
        """Call all functions and return their outcomes in the same order.

        `within` is entered around each call that is not made in the caller's thread.
        """
        ended: queue.SimpleQueue[tuple[int, CallResult[T]]] = queue.SimpleQueue()
        first, *others = (_Call(number, each, within, ended) for number, each in enumerate(functions))
        self._start(min(len(others), MOST_THREADS))
        for call in others:
            self._calls.put(call)
        first.here()
        self._help()
        found = dict(ended.get() for _ in functions)
        return [found[number] for number in range(len(functions))]

    def close(self) -> None:
        """End the threads: at once if they are idle, otherwise after the `run` in progress."""
        for _ in range(self._threads):
            self._calls.put(None)
        self._threads = 0

    def _start(self, wanted: int) -> None:
        with contextlib.suppress(RuntimeError):  # the system's limit is reached: the caller runs what is left
            while self._threads < wanted:
                threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
                self._threads += 1

    def _help(self) -> None:
        """Run the calls that no thread has taken yet."""
        ends = 0
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is None:
                    ends += 1  # closed meanwhile
                else:
                    call.here()
        for _ in range(ends):
            self._calls.put(None)


def _work(calls: queue.SimpleQueue[_Call[Any] | None]) -> None:
    while _take(calls):
        pass


def _take(calls: queue.SimpleQueue[_Call[Any] | None]) -> bool:
    """Run the next call. An idle thread refers to no call: that would keep the rows of the last one."""
    call = calls.get()
    if call is not None:
        call.aside()
    return call is not None
