"""Tickets: the futures of callers that wait for a checkpoint.

Rules:
- Every ticket is answered exactly once: with a manifest, with `CheckpointFailed`, or with `Closed` at the end. The
  ticket of a withdrawn request is cancelled.
- A ticket and its request are registered together, so no request is begun whose ticket is not yet known.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from holdfast.errors import CheckpointFailed, Closed
from holdfast.formats.manifest import Manifest


class Tickets:
    """The tickets of one run that are not answered yet."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._mutex = threading.Lock()
        self._open: list[Future[Manifest]] = []
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._open)

    @contextlib.contextmanager
    def issue(self) -> Iterator[Future[Manifest]]:
        """Provide a new ticket; the caller schedules its request inside the block. Refused after the end."""
        ticket: Future[Manifest] = Future()
        with self._mutex:
            if self._closed:
                raise self._ended()
            yield ticket
            self._open.append(ticket)

    def answer(self, ticket: Future[Manifest], outcome: Manifest | CheckpointFailed) -> None:
        """Answer one ticket."""
        with self._mutex:
            self._open.remove(ticket)
        if isinstance(outcome, CheckpointFailed):
            ticket.set_exception(outcome)
        else:
            ticket.set_result(outcome)

    def discard(self, ticket: Future[Manifest]) -> None:
        """Cancel the ticket of a request that its caller has withdrawn."""
        with self._mutex:
            self._open.remove(ticket)
        ticket.cancel()

    def close(self) -> None:
        """Answer all open tickets with `Closed`, and refuse new ones."""
        with self._mutex:
            self._closed = True
            left = [ticket for ticket in self._open if not ticket.done()]
        for ticket in left:
            ticket.set_exception(self._ended())

    def _ended(self) -> Closed:
        return Closed(what=f"pipeline {self._pipeline!r}", do="start it again: it has ended")
