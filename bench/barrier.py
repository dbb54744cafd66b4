"""What `poll` costs an epoch when nothing is pending, against a method call that does nothing."""

from __future__ import annotations

from typing import Protocol

from bench.compare import Result, best_of
from holdfast import BarrierInjector


class Empty:
    """The floor: a method of the same shape with nothing in it."""

    __slots__ = ()

    def poll(self, epoch: int) -> None:
        """Do nothing."""


class Polled(Protocol):
    """Either side."""

    def poll(self, epoch: int) -> object:
        """Be polled."""


def _poll(side: Polled, calls: int) -> None:
    """Ten calls a turn, so that the loop weighs little on either side."""
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


def run() -> list[Result]:
    handle, empty = BarrierInjector().handle(), Empty()
    times = best_of(20, 500_000, lambda calls: _poll(handle, calls), lambda calls: _poll(empty, calls))
    return [Result("barrier poll, nothing pending", "empty method call", *times, goal=2.0)]
