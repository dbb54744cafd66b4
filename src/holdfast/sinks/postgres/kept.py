"""Connections that a sink keeps open between two operations.

Rules:
- A connection belongs to one thread from `take` to `put`. Two threads never share one.
- Only a connection outside a transaction is put back. After an error the connection is closed, and all idle ones too,
  because they lead to the same server.
- A kept connection may be dead: the server was restarted, or it closes idle connections. So the first statement on it
  must have no effect. If it fails, the caller opens a new connection and repeats only this statement.
- A forked process neither uses nor closes the connections of its parent: closing one would send a message to the server
  through the parent's socket.
- Connections are kept only between `open` and `close`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

C = TypeVar("C")
_of_parents: list[Any] = []  # connections of the parent of a forked process; they are never closed here


class KeptConnections(Generic[C]):
    """The idle connections of one sink to its server."""

    def __init__(self, end: Callable[[C], None], most: int) -> None:
        self._end = end
        self._most = most
        self._idle: list[C] = []
        self._lock = threading.Lock()
        self._keeps = False
        self._process = os.getpid()
        weakref.finalize(self, _end_all, self._idle, end, self._process)

    def open(self) -> None:
        """Keep connections from now on."""
        self._keeps = True

    def close(self) -> None:
        """Close all idle connections, and keep no others."""
        self._keeps = False
        self.drop()

    def take(self) -> C | None:
        """Return an idle connection, which may be dead, or `None` if there is none."""
        with self._lock:
            if self._process != os.getpid():
                _of_parents.extend(self._idle)
                self._idle.clear()
            return self._idle.pop() if self._idle else None

    def put(self, connection: C) -> None:
        """Keep a connection that is idle outside a transaction, or close it if there are enough."""
        with self._lock:
            if self._keeps and self._process == os.getpid() and len(self._idle) < self._most:
                self._idle.append(connection)
                return
        self.end(connection)

    def drop(self) -> None:
        """Close all idle connections."""
        while (connection := self.take()) is not None:
            self.end(connection)

    def end(self, connection: C) -> None:
        """Close a connection. The server rolls back its transaction, if it is in one."""
        with contextlib.suppress(Exception):  # it may be broken, and then it is closed already
            self._end(connection)


def _end_all(idle: list[C], end: Callable[[C], None], process: int) -> None:
    """Close the connections of a sink that was never closed."""
    if process != os.getpid():
        _of_parents.extend(idle)
        return
    while idle:
        with contextlib.suppress(Exception):
            end(idle.pop())
