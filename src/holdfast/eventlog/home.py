"""Where an event log is kept: the one seam between the logic of a log and the place of its records and segments.

Readers, cursors and workers know only `LogHome` and `LiveIndex`. There are two implementations: `local_home` and
`store_home`. `homes` chooses one by the address.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.eventlog.appending import Appender
from holdfast.eventlog.index import LiveIndex, Segment

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.eventlog._files import About


class LogHome(Protocol):
    """The place of one log. It holds no open resource, and can be sent to another process."""

    @property
    def address(self) -> Path | str:
        """The address of the log."""

    @property
    def poll_every(self) -> float:
        """The least number of seconds between two looks of a reader that waits for events."""

    @property
    def parquet(self) -> str | None:
        """The address at which Spark can read the segments by itself, each in a folder `first=<sequence>`."""

    def about(self) -> About:
        """Return the identity and the columns of the log, or raise `LogMissing`."""

    def create(self, schema: pa.Schema, *, keep_clock: bool) -> None:
        """Create the log, or raise `AlreadyExists`. `log.json` is written last: until then there is no log."""

    def index(self, about: About, *, whole: bool) -> LiveIndex:
        """Return the index, which is read by its first `refresh`: all of it, or only its end if not `whole`."""

    def tail(self) -> int:
        """Return the sequence after the last one, for a reader that needs nothing else."""

    def segment(self, segment: Segment, schema: pa.Schema) -> pa.Table:
        """Return the events of a segment, or raise `LogCorrupt` if its bytes are not those that were committed."""

    def writer(self) -> Appender:
        """Open the log for writing."""

    def writer_of(self, index: LiveIndex, schema: pa.Schema) -> Appender:
        """Open the log for writing for a caller that has an index of it, and keeps it up to date by itself."""

    def floor(self) -> int:
        """Return the first sequence that is kept; 0: nothing was removed."""

    def keep(self) -> float | None:
        """Return how long events are kept at least, in seconds; `None`: forever."""

    def set_keep(self, seconds: float | None) -> None:
        """Record how long events are kept at least, unless the record has it already."""

    def old_segments(self, index: LiveIndex) -> OldSegments:
        """Return what a trim needs to know of the oldest segments."""


class OldSegments(Protocol):
    """The oldest segments of a log, for a trim."""

    def written_s(self, segment: Segment) -> float:
        """Return when a segment was written, in seconds since 1970."""

    def below(self, floor: int) -> dict[str, int]:
        """Return the segments before a sequence that still exist: path and size."""

    def remove(self, floor: int) -> None:
        """Record a floor, unless a higher one is recorded, then remove all segments before it."""
