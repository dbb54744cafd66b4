"""Clocks for tests."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only when `advance` is called; call the object to read the time."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now += seconds
