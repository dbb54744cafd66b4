"""What breaks on purpose, for tests; the users' too: a clock that stands still, devices and repositories that fail."""

from holdfast.testing.clocks import ManualClock
from holdfast.testing.faults import FaultyBlocks, FaultyRepository

__all__ = ["FaultyBlocks", "FaultyRepository", "ManualClock"]
