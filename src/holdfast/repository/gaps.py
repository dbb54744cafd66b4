"""The gap ledger: input that did not reach the sinks, or that a replay may have processed differently.

Each gap is one sealed record, `timelines/<t>/streams/<stream>/gaps/<epoch>.<kind>.json`. It is written once and never
changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, checked_repository, now_ms, read_each
from holdfast.repository.decisions import stream_folder
from holdfast.repository.lineage import Lineage

QUARANTINED = "quarantined"  # an epoch that was passed to no sink
OFFSETS = "offsets"  # an epoch that does not start where the last one ended
REPLAY = "replay"  # a replay rebuilt a different state
SOURCE = "source"  # a source no longer had what follows the last epoch, or was another one


class GapRecord(Record, frozen=True, kw_only=True):
    """One gap: its stream and epoch, its kind, its reason and further facts."""

    stream: str  # name of the stream
    timeline: int  # its timeline
    epoch: int  # the affected epoch
    kind: str  # quarantined, offsets, replay or source
    why: str  # the reason as text
    at_ms: int  # when it was recorded
    facts: dict[str, Any] = msgspec.field(default_factory=dict)  # further details, by name


class Gaps:
    """The gap ledger of one pipeline."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.time) -> None:
        self._repository = checked_repository(repository)
        self._clock = clock

    def add(self, stream: str, timeline: int, epoch: int, *, kind: str, why: str, facts: dict[str, Any]) -> GapRecord:
        """Record a gap durably; an existing record is returned unchanged."""
        record = GapRecord(
            stream=stream,
            timeline=timeline,
            epoch=epoch,
            kind=kind,
            why=why,
            at_ms=now_ms(self._clock),
            facts=facts,
        )
        key = f"{_folder(stream, timeline)}/{epoch:010}.{kind}.json"
        return GapRecord.unsealed(self._repository.put_if_absent(key, record.sealed()).data, key)

    def all(self, stream: str, timeline: int) -> list[GapRecord]:
        """Return the gaps of a stream in epoch order, or raise the error of the first that cannot be read."""
        found, bad = self.seen(stream, timeline)
        for error in bad:
            raise error
        return found

    def seen(self, stream: str, timeline: int) -> tuple[list[GapRecord], list[HoldfastError]]:
        """Return the readable gaps of a stream, and an error for each of the others."""
        folder = _folder(stream, timeline)
        return read_each(self._read, (f"{folder}/{name.removesuffix('/')}" for name in self._repository.list(folder)))

    def _read(self, key: str) -> GapRecord:
        return GapRecord.unsealed(self._repository.read(key), key)

    def newest(self, stream: str, lineage: Lineage, until: int, most: int) -> tuple[int, list[GapRecord]]:
        """Return the number of a stream's gaps on a lineage up to an epoch, and the newest readable ones.

        A damaged record is counted but left out: it must not prevent a checkpoint.
        """
        keys = [
            f"{folder}/{name.removesuffix('/')}"
            for timeline, last in lineage.places(stream)
            for folder in [_folder(stream, timeline)]
            for name in self._repository.list(folder)
            if _epoch_of(name) <= (until if last is None else min(last, until))
        ]
        return len(keys), read_each(self._read, keys[-most:])[0]


def _epoch_of(name: str) -> int:
    number = name.partition(".")[0]
    return int(number) if number.isascii() and number.isdecimal() else 0


def _folder(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/gaps"
