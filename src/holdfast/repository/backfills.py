"""Backfills: a sink that was added to a stream was given everything up to an epoch, by one decision.

Rules:
- A record is written once, with `put_if_absent`, when the rows are staged in the sink. It is the decision: from then on
  the sink is given the rows of the record, by the next backfill or the next start.
- A start uses a record only while its epoch is the last decided one. A stream that has continued without the sink needs
  a new backfill.
- Records are kept: a rewind must not take back the rows of a backfill, because only those after its base are processed
  again. A record alone does not show that the sink holds the rows, so the sink is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.epoch import Attempt
from holdfast.errors import NotFound
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository
from holdfast.repository.decisions import stream_folder
from holdfast.repository.lineage import Lineage


class BackfillRecord(Record, frozen=True, kw_only=True):
    """The decision to fill a sink."""

    attempt: Attempt  # stream, timeline and epoch: the sink holds everything up to this epoch
    sink: str  # the sink that is filled
    source: str  # the sink that the rows were read from
    handle: dict[str, Any]  # what `prepare` returned
    rows: int
    lease: int  # of the process that decided
    replaces: list[str] = msgspec.field(default_factory=list)  # sinks that the program lacked, which was accepted

    @property
    def place(self) -> tuple[int, int]:
        """Timeline and epoch of the commit that filled the sink."""
        return self.attempt.timeline, self.attempt.epoch


class Backfills:
    """The backfills of a pipeline."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def decide(self, record: BackfillRecord) -> BackfillRecord:
        """Write a record, and return the one that stands: this one, or the one that was written first."""
        key = _key(record.attempt.stream, record.attempt.timeline, record.sink, record.attempt.epoch)
        return BackfillRecord.unsealed(self._repository.put_if_absent(key, record.sealed()).data, key)

    def find(self, stream: str, timeline: int, sink: str, epoch: int) -> BackfillRecord | None:
        """Return the decision to fill a sink up to an epoch, if there is one."""
        key = _key(stream, timeline, sink, epoch)
        try:
            return BackfillRecord.unsealed(self._repository.read(key), key)
        except NotFound:
            return None

    def sinks(self, stream: str, timeline: int) -> list[str]:
        """Return the sinks of a stream for which a timeline has a record, sorted."""
        return sorted(name.removesuffix("/") for name in self._repository.list(_folder(stream, timeline)))

    def of_sink(self, stream: str, lineage: Lineage, sink: str) -> Iterator[BackfillRecord]:
        """Yield the records of a sink that belong to the lineage, newest first."""
        for timeline, _ in reversed(lineage.places(stream)):
            folder = f"{_folder(stream, timeline)}/{sink}"
            for name in sorted(self._repository.list(folder), reverse=True):
                record = BackfillRecord.unsealed(self._repository.read(f"{folder}/{name}"), f"{folder}/{name}")
                if lineage.holds_epoch(stream, timeline, record.attempt.epoch):
                    yield record


def _folder(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/backfills"


def _key(stream: str, timeline: int, sink: str, epoch: int) -> str:
    return f"{_folder(stream, timeline)}/{sink}/{epoch:010}.json"
