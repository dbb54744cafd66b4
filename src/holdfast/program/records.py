"""Stored descriptions: `programs/<stream>/<number>.json`.

Rules:
- A description is stored when the first epoch of a start is decided, and only if it differs from the last one. A
  program that never decided an epoch leaves no trace.
- Records are numbered, written with `put_if_absent`, and never changed.
- A description counts if its epoch is on the current lineage: after a rewind, the program is compared with the one that
  wrote the state that the rewind restored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from holdfast.errors import NotFound
from holdfast.formats.sealed_json import Record
from holdfast.program.description import StreamDescription
from holdfast.repository.base import Repository
from holdfast.repository.lineage import Lineage

_FOLDER = "programs"
_NAME = re.compile(r"(\d{10})\.json")


class ProgramRecord(Record, frozen=True, kw_only=True):
    """The description of a stream, from an epoch on."""

    stream: str
    timeline: int
    epoch: int  # the first one that this program decided
    description: StreamDescription
    at_ms: int = 0  # when it was stored


class Programs:
    """The stored descriptions of a pipeline."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.time) -> None:
        self._repository = repository
        self._clock = clock

    def newest(self, stream: str, lineage: Lineage) -> ProgramRecord | None:
        """Return the last description of a stream on the current lineage, or `None` if none is stored."""
        for number in reversed(self._numbers(stream)):
            key = _key(stream, number)
            try:
                record = ProgramRecord.unsealed(self._repository.read(key), key)
            except NotFound:
                continue
            if lineage.holds_epoch(stream, record.timeline, record.epoch):
                return record
        return None

    def streams(self) -> list[str]:
        """Return the streams that have a description, sorted."""
        return sorted(name[:-1] for name in self._repository.list(_FOLDER) if name.endswith("/"))

    def store(self, stream: str, timeline: int, epoch: int, description: StreamDescription) -> None:
        """Store a description under the next number."""
        record = ProgramRecord(
            stream=stream,
            timeline=timeline,
            epoch=epoch,
            description=description,
            at_ms=int(self._clock() * 1000),
        )
        number = max(self._numbers(stream), default=0) + 1
        while not self._repository.put_if_absent(_key(stream, number), record.sealed()).won:
            number += 1

    def _numbers(self, stream: str) -> list[int]:
        names = (_NAME.fullmatch(name) for name in self._repository.list(f"{_FOLDER}/{stream}"))
        return sorted(int(name[1]) for name in names if name)


def _key(stream: str, number: int) -> str:
    return f"{_FOLDER}/{stream}/{number:010}.json"
