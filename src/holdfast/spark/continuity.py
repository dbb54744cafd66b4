"""Whether an epoch continues the stream: it begins where the last one ended, and a replay gives the same epoch again.

Rules:
- A difference is an error, unless the user accepts it. Then it is recorded in the gap ledger.
- A decided epoch that comes back with other offsets is never accepted.
"""

from __future__ import annotations

import logging
from typing import Any

from holdfast._offsets import differences
from holdfast.epoch import Facts
from holdfast.errors import HoldfastError, OffsetsDiverged, OffsetsGap, ReplayDiverged
from holdfast.repository.gaps import OFFSETS, REPLAY
from holdfast.sinks.rows import is_comparable
from holdfast.spark.last_decided import LastDecided
from holdfast.spark.parts import StreamParts
from holdfast.spark.sparklog import Offsets

_log = logging.getLogger(__name__)


class Continuity:
    """Checks the epochs of one stream."""

    def __init__(self, parts: StreamParts) -> None:
        self._parts = parts

    def check_start(self, batch: int, last: LastDecided) -> None:
        """Require that a batch begins where the last epoch ended, for each source and partition."""
        if not batch or not last.epoch:
            return
        begins = self._parts.log.offsets(batch - 1).ends
        found: list[dict[str, Any]] = []
        for source in range(max(len(begins), len(last.ends))):
            ended = last.ends[source] if source < len(last.ends) else None
            begin = begins[source] if source < len(begins) else None
            found += [
                {"source": source, "partition": partition, "ended": old, "begins": new}
                for partition, old, new in differences(ended, begin)
            ]
        if found:
            error = OffsetsGap(stream=self._parts.name, epoch=batch + 1, **found[0])
            more = f"; and {len(found) - 1} more" if found[1:] else ""
            facts = {**found[0], "differences": found}
            self._record("gaps", OFFSETS, batch + 1, error, facts, more)

    def check_same(self, batch: int, offsets: Offsets, facts: Facts) -> None:
        """Require that a decided epoch comes back with the offsets and source entries that it was decided with."""
        what = None
        if offsets.digest != facts.offsets_digest:
            what = f"end than it was decided with ({list(offsets.ends)}, not {facts.end})"
        for entry, digest in facts.source_entries.items():
            if self._parts.log.entry_digest(entry) != digest:
                what = f"entry {entry} in its source's log"
        if what:
            raise OffsetsDiverged(stream=self._parts.name, epoch=batch + 1, what=what)

    def check_adopted(self, batch: int, offsets: Offsets, digest: str) -> None:
        """Require that a batch that some sinks have already comes with the offsets that it had in plain Spark."""
        if offsets.digest != digest:
            what = f"end than in the plain Spark query, whose rows some sinks have ({list(offsets.ends)})"
            raise OffsetsDiverged(stream=self._parts.name, epoch=batch + 1, what=what)

    def check_rows(self, epoch: int, decided: str, found: str) -> None:
        """Require that a replay gave the rows that the epoch was decided with, by their digests."""
        if found == decided:
            return
        if not is_comparable(found, decided):
            _log.warning(
                "stream %s: the row digest of epoch %d is of an earlier version of Holdfast, and cannot be compared",
                self._parts.name,
                epoch,
            )
            return
        error = ReplayDiverged(stream=self._parts.name, epoch=epoch, decided=decided, found=found)
        self._record("replay", REPLAY, epoch, error, {"decided": decided, "found": found})

    def _record(  # noqa: PLR0917 - what a gap record has
        self, change: str, kind: str, epoch: int, error: HoldfastError, facts: dict[str, Any], more: str = ""
    ) -> None:
        """Raise, or record the difference once for the epoch if the user accepts it."""
        if not self._parts.accepts(change):
            raise error
        why = error.summary + more
        self._parts.gaps.add(self._parts.name, self._parts.timeline, epoch, kind=kind, why=why, facts=facts)
        _log.warning("%s; accepted and recorded", why)
