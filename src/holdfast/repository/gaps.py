"""The gap ledger: input that should have reached the sinks and did not, or may have been read otherwise.

One sealed record a gap, under `timelines/<t>/streams/<stream>/gaps/<epoch>.<kind>.json`; written once, never changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.repository.base import Repository, checked_repository
from holdfast.repository.decisions import stream_folder
from holdfast.seal import Record

QUARANTINED = "quarantined"  # an epoch that no sink was given
OFFSETS = "offsets"  # an epoch that does not begin where the last one ended
REPLAY = "replay"  # a state that was rebuilt otherwise


class GapRecord(Record, frozen=True, kw_only=True):
    """One gap: which epoch of which stream, of what kind, why, and what is known of it."""

    stream: str  # the stream that it is of
    timeline: int  # the timeline that it is in
    epoch: int  # the epoch that it is of
    kind: str  # quarantined, offsets or replay
    why: str  # in words
    at_ms: int  # when it was recorded
    facts: dict[str, Any] = msgspec.field(default_factory=dict)  # more about it, by name


class Gaps:
    """The gap ledger of one pipeline."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.time) -> None:
        self._repository = checked_repository(repository)
        self._clock = clock

    def add(self, stream: str, timeline: int, epoch: int, *, kind: str, why: str, facts: dict[str, Any]) -> GapRecord:
        """Record a gap durably; one that is there already stands."""
        record = GapRecord(
            stream=stream,
            timeline=timeline,
            epoch=epoch,
            kind=kind,
            why=why,
            at_ms=int(self._clock() * 1000),
            facts=facts,
        )
        key = f"{_folder(stream, timeline)}/{epoch:010}.{kind}.json"
        return GapRecord.unsealed(self._repository.put_if_absent(key, record.sealed()).data, key)

    def all(self, stream: str, timeline: int) -> list[GapRecord]:
        """Return the gaps of a stream, in the order of their epochs."""
        folder = _folder(stream, timeline)
        keys = [f"{folder}/{name}" for name in self._repository.list(folder)]
        return [GapRecord.unsealed(self._repository.read(key), key) for key in keys]


def _folder(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/gaps"
