"""Test doubles for Holdfast's tests and for users' tests.

Public: `ManualClock`; `CrashAt` and `Crashed` for crash points; `FaultyBlocks` and `FaultyRepository`, which fail on
request; `SinkContract`, the contract of a sink as a test suite. The modules of this package are internal.
"""

from holdfast.testing.clocks import ManualClock
from holdfast.testing.crash import CrashAt, Crashed
from holdfast.testing.faults import FaultyBlocks, FaultyRepository
from holdfast.testing.sinks import SinkContract

__all__ = ["CrashAt", "Crashed", "FaultyBlocks", "FaultyRepository", "ManualClock", "SinkContract"]
