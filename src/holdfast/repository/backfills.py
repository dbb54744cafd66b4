"""Backfills: a sink that was added to a stream was given everything up to an epoch, by one decision.

Rules:
- A record is written once, with `put_if_absent`, when the rows are staged in the sink. It is the decision: from then on
  the sink is given the rows of the record, by the next backfill or the next start.
- A record counts only while its epoch is the last decided one. A stream that has continued without the sink needs a new
  backfill.
"""

from __future__ import annotations

from typing import Any

from holdfast.epoch import Attempt
from holdfast.errors import NotFound
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository
from holdfast.repository.decisions import stream_folder


class BackfillRecord(Record, frozen=True, kw_only=True):
    """The decision to fill a sink."""

    attempt: Attempt  # stream, timeline and epoch: the sink holds everything up to this epoch
    sink: str  # the sink that is filled
    source: str  # the sink that the rows were read from
    handle: dict[str, Any]  # what `prepare` returned
    rows: int
    lease: int  # of the process that decided


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


def _key(stream: str, timeline: int, sink: str, epoch: int) -> str:
    return f"{stream_folder(stream, timeline)}/backfills/{sink}/{epoch:010}.json"
