"""A driver that is made up: it holds the lease of a pipeline and answers requests. No Spark runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from holdfast.control.channel import ControlChannel
from holdfast.control.records import ControlAnswer, ControlRequest, RequestKind
from holdfast.control.results import CheckpointTaken
from holdfast.errors import HoldfastError
from holdfast.repository import Lease, Repository

TAKEN = CheckpointTaken(
    request="ab" * 16, checkpoint=7, savepoint=None, timeline=1, timestamp_ms=5, epochs={"orders": 3}, rows=1200
)
Carry = Callable[[ControlRequest], dict[str, Any]]


class MadeUpDriver:
    """Holds the lease and answers every request with what `carry` returns, until `end`. `deaf`: it takes nothing."""

    def __init__(self, repository: Repository, carry: Carry, *, deaf: bool = False) -> None:
        self.lease = Lease.take(repository)
        self.channel = ControlChannel(repository, self.lease, RequestKind)
        self.seen: list[ControlRequest] = []
        self.deaf = deaf
        self._carry = carry
        self._ended = threading.Event()
        self.channel.open()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.wait(0.02):
            for request in self.channel.look():
                self.seen.append(request)
                if not self.deaf and self.channel.take(request):
                    self._answer(request)

    def _answer(self, request: ControlRequest) -> None:
        try:
            answer = ControlAnswer(at_ms=1, result=self._carry(request))
        except HoldfastError as error:
            answer = ControlAnswer.of_error(1, error)
        self.channel.answer(request, answer)
        if request.kind == RequestKind.STOP:
            self._ended.set()
            self.channel.close()
            self.lease.release()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.lease.release()
