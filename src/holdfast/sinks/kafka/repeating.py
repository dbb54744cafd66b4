"""Transactions that are run again: another driver took over in the middle of them, or they took too long.

Rules:
- Nothing of an interrupted transaction is visible, so all of it is repeated, with the marker as it is then.
- After some tries the error names the next step. A transaction that takes longer than it may last is tried only twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import SinkFailed, SinkUnavailable
from holdfast.sinks.base import failing
from holdfast.sinks.kafka.cluster import KafkaCluster
from holdfast.sinks.kafka.transactions import Interrupted, Unsettled

T = TypeVar("T")

_TRIES = 12  # if other producers take over
_SLOW_TRIES = 2  # of a transaction that takes longer than it may last
_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class RepeatedTransactions:
    """Runs the transactions of one sink until one of them is not interrupted."""

    sink: str
    cluster: KafkaCluster
    longest_s: float  # a transaction may last

    def run(self, action: str, act: Callable[[], T], tries: int | None = None) -> T:
        """Return what `act` returns. Raise a typed error if it is interrupted too often."""
        slow = number = 0
        while True:
            try:
                with failing(self.sink, action), self.cluster.doing(action):
                    return act()
            except Interrupted as error:
                slow += error.seconds > self.longest_s
                if slow >= _SLOW_TRIES:
                    raise self._too_slow(action) from None
                if number + 1 == (tries or _TRIES):
                    raise self._given_up(action, error) from None
            _pause(number)
            number += 1

    def _too_slow(self, action: str) -> SinkFailed:
        why = f"sending its rows took longer than transaction_timeout, {self.longest_s:g} seconds"
        do = "pass a longer transaction_timeout, up to transaction.max.timeout.ms of the server; then run again"
        return SinkFailed(sink=self.sink, action=action, why=why, do=do)

    def _given_up(self, action: str, error: Interrupted) -> SinkFailed:
        failed = self.cluster.failed(action, error.error)
        if isinstance(error, Unsettled):
            why = f"a transaction that has written its marker has not ended: {failed.why}"
            do = (
                "stop the pipeline, abort the transactions that kafka-transactions.sh find-hanging names, and run again"
            )
        else:
            why = f"another process uses the transactional id: {failed.why}"
            do = "stop the other process that runs this pipeline; then run again"
        return SinkUnavailable(sink=self.sink, action=action, why=why, do=do)


def _pause(number: int) -> None:
    """Wait before another try; at random, so that two drivers do not fence each other again and again."""
    time.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**number) * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
