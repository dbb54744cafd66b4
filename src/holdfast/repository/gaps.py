"""The gap ledger: input that should have reached the sinks and did not, or may have been read otherwise.

One sealed record a gap, under `timelines/<t>/streams/<stream>/gaps/<epoch>.<kind>.json`; written once, never changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, checked_repository, read_each
from holdfast.repository.decisions import stream_folder

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
        """Return the gaps of a stream, in the order of their epochs, or raise on the first that cannot be read."""
        found, bad = self.seen(stream, timeline)
        for error in bad:
            raise error
        return found

    def seen(self, stream: str, timeline: int) -> tuple[list[GapRecord], list[HoldfastError]]:
        """Return the gaps of a stream that can be read, and an error for each of the others."""
        folder = _folder(stream, timeline)
        return read_each(self._read, (f"{folder}/{name.removesuffix('/')}" for name in self._repository.list(folder)))

    def _read(self, key: str) -> GapRecord:
        return GapRecord.unsealed(self._repository.read(key), key)

    def newest(self, stream: str, timeline: int, until: int, most: int) -> tuple[int, list[GapRecord]]:
        """Return how many gaps a stream has up to an epoch, and the newest of them that can be read.

        A damaged record counts and is left out: it must not keep a checkpoint from being taken.
        """
        folder = _folder(stream, timeline)
        names = [name.removesuffix("/") for name in self._repository.list(folder) if _epoch_of(name) <= until]
        return len(names), read_each(self._read, (f"{folder}/{name}" for name in names[-most:]))[0]


def _epoch_of(name: str) -> int:
    number = name.partition(".")[0]
    return int(number) if number.isascii() and number.isdecimal() else 0


def _folder(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/gaps"
