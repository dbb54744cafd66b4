"""Whether an epoch of a stream may begin.

Rules:
- `stopping` asks for a graceful stop: the epoch in progress, or one that begins within a moment, is the last one.
- A gate that is shut stays shut. It is shut only while no epoch is in progress.
- The mutex is held while an epoch is in progress. Another thread that holds it keeps the stream between two epochs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Stopping(Exception):
    """A batch arrived after the stream was stopped. Nothing of it was begun."""


class EpochGate:
    """Admits the epochs of one stream, one at a time, until it is shut."""

    def __init__(self) -> None:
        self.stopping = threading.Event()  # a graceful stop was asked for
        self._mutex = threading.Lock()
        self._admission = threading.Lock()
        self._busy = False
        self._shut = False
        self._refused = False
        self._threads: set[int] = set()  # of the epoch in progress

    @contextlib.contextmanager
    def epoch(self) -> Iterator[None]:
        """Admit an epoch, or raise `Stopping` if the gate is shut."""
        with self._admission:
            if self._shut:
                self._refused = True
                raise Stopping
            self._busy = True
        try:
            with self.working(), self._mutex:
                if self._shut:
                    self._refused = True
                    raise Stopping  # the stream was drained while this epoch waited for the mutex
                yield
        finally:
            self._busy = False

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Mark the caller's thread as one of the epoch in progress: a callback in it must not wait for the epoch."""
        thread = threading.get_ident()
        self._threads.add(thread)
        try:
            yield
        finally:
            self._threads.discard(thread)

    @contextlib.contextmanager
    def between_epochs(self) -> Iterator[bool]:
        """Keep the stream between two epochs; yield `False` if an epoch is in progress."""
        held = self._mutex.acquire(blocking=False)
        try:
            yield held
        finally:
            if held:
                self._mutex.release()

    def shut(self) -> bool:
        """Admit no further epoch, unless one is in progress; return whether the gate is shut."""
        with self._admission:
            self._shut = self._shut or not self._busy
            return self._shut

    def shut_here(self) -> None:
        """Admit no further epoch. The caller is in `epoch` or in `between_epochs`."""
        with self._admission:  # a concurrent `shut` must not overwrite this
            self._shut = True

    @property
    def is_busy(self) -> bool:
        """Whether an epoch is in progress."""
        return self._busy

    @property
    def is_shut(self) -> bool:
        """Whether no further epoch may begin."""
        return self._shut

    @property
    def has_refused(self) -> bool:
        """Whether an epoch was refused because the gate is shut: then its query ends with an error."""
        return self._refused

    @property
    def is_inside(self) -> bool:
        """Whether the caller is in a thread of the epoch in progress."""
        return threading.get_ident() in self._threads
