"""The cost of `poll` in an epoch without a pending barrier, compared with an empty method call."""

from __future__ import annotations

from typing import Protocol

from bench.compare import Result, in_turn, timed
from holdfast.barriers import BarrierInjector

CALLS = 500_000


class Empty:
    """The floor: an empty method with the same signature."""

    __slots__ = ()

    def poll(self, epoch: int) -> None:
        """Do nothing."""


class Polled(Protocol):
    """Either side."""

    def poll(self, epoch: int) -> object:
        """Poll for a barrier."""


def _poll(side: Polled, calls: int) -> None:
    """Poll ten times per iteration, so that the loop itself costs little on either side."""
    for epoch in range(calls // 10):
        side.poll(epoch)
        side.poll(epoch)
        side.poll(epoch)
        side.poll(epoch)
        side.poll(epoch)
        side.poll(epoch)
        side.poll(epoch)
        side.poll(epoch)
        side.poll(epoch)
        side.poll(epoch)


def _time(side: Polled) -> float:
    return timed(lambda: _poll(side, CALLS)) / CALLS


def run(quick: bool) -> list[Result]:
    handle, empty = BarrierInjector().handle(), Empty()
    found = in_turn(5 if quick else 20, {"ours": lambda: _time(handle), "theirs": lambda: _time(empty)})
    name, against = "barrier poll, nothing pending", "empty method call"
    return [Result("path", name, against, found["ours"], found["theirs"], goal=2.0, best=True)]
