"""For tests; the users' too: a clock that stands still, devices that fail, crash points, the contract of sinks."""

from holdfast.testing.clocks import ManualClock
from holdfast.testing.crash import CrashAt, Crashed
from holdfast.testing.faults import FaultyBlocks, FaultyRepository
from holdfast.testing.sinks import SinkContract

__all__ = ["CrashAt", "Crashed", "FaultyBlocks", "FaultyRepository", "ManualClock", "SinkContract"]
