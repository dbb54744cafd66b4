"""Clocks for tests."""

from __future__ import annotations


class ManualClock:
    """A clock that moves when it is told to; call it to read it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
