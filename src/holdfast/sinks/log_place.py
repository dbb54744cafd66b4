"""What a `LogSink` keeps next to its log, wherever the log is: staged rows, and the record of its owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast.eventlog.appending import StagedSegment
from holdfast.eventlog.log import EventLog
from holdfast.sinks.base import EpochKey, EpochPlace, SinkContext, Staged, StreamIdentity
from holdfast.sinks.owners import OwnerRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


HeldPlace: TypeAlias = Callable[[], tuple[EpochPlace, EventLog]]
"""Returns the last epoch of a stream that its log holds, and the log."""


class LogPlace(Protocol):
    """Where a sink stages the rows of its log. There is one implementation for each kind of `LogHome`."""

    @property
    def target(self) -> str:
        """The log, written so that two sinks of one log have the same text."""

    def check(self, context: SinkContext) -> None:
        """Refuse a place that the executors cannot use, before the first epoch."""

    def make(self) -> None:
        """Create what staging needs. Rows that were staged before are checked before they are committed."""

    def stage(self, events: DataFrame, key: EpochKey, context: SinkContext, log: EventLog) -> Staged:
        """Write the events of an attempt where no reader sees them, with one action."""

    def proven(self, key: EpochKey, handle: dict[str, Any]) -> list[StagedSegment]:
        """Return what was staged, after checking it against the handle; raise `StagedGone` if it is missing."""

    def clear(self, key: EpochKey) -> None:
        """Remove what one attempt has staged: under the key's lease or, if that is `None`, under any lease."""

    def sweep(self, key: EpochKey, held: HeldPlace) -> None:
        """After a commit, remove what earlier epochs have staged and what is not part of the log."""

    def retire(self, owner: StreamIdentity, before: EpochPlace, log: EventLog) -> None:
        """After a rewind, remove what earlier timelines have staged and what is not part of the log."""

    def claim(self, owner: StreamIdentity) -> OwnerRecord:
        """Record the owner of a log that has none; return the record that the log has now."""

    def owner(self) -> OwnerRecord | None:
        """Return the record of the owner, or `None` if there is none."""
