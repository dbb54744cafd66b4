"""The Kafka topics of a stream: `topics/<stream>/<number>.json`.

Rules:
- A record is written at a start, if the topics differ from those of the last record, and when a running stream reads a
  new topic. It counts from an epoch on. Records are numbered, and never changed.
- A record counts if its epoch is on the current lineage. After a rewind, topics are compared with those that the epochs
  up to the base have read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

import msgspec

from holdfast.errors import NotFound
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, now_ms
from holdfast.repository.lineage import Lineage

_FOLDER = "topics"
_NAME = re.compile(r"(\d{10})\.json")


class TopicNote(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: its id, and how many partitions it had."""

    id: str
    partitions: int


class TopicsRecord(Record, frozen=True, kw_only=True):
    """The topics of a stream, from an epoch on."""

    stream: str
    timeline: int
    epoch: int  # the first one that has read them
    sources: dict[str, dict[str, TopicNote]]  # by the number of the source, by topic
    at_ms: int = 0  # when it was written

    def ids(self, source: int) -> dict[str, str]:
        """Return the ids of a source's topics."""
        return {topic: each.id for topic, each in self.sources.get(str(source), {}).items()}


class StreamTopics:
    """The records of one stream's topics."""

    def __init__(self, repository: Repository, stream: str, clock: Callable[[], float] = time.time) -> None:
        self._repository = repository
        self._stream = stream
        self._clock = clock

    def at(self, lineage: Lineage, epoch: int) -> TopicsRecord | None:
        """Return the topics that an epoch of the current lineage has read or will read; `None` if none are recorded."""
        for number in reversed(self._numbers()):
            key = self._key(number)
            try:
                record = TopicsRecord.unsealed(self._repository.read(key), key)
            except NotFound:
                continue
            if record.epoch <= epoch and _counts(lineage, record):
                return record
        return None

    def add(self, timeline: int, epoch: int, sources: Mapping[str, Mapping[str, TopicNote]]) -> None:
        """Record topics under the next number."""
        record = TopicsRecord(
            stream=self._stream,
            timeline=timeline,
            epoch=epoch,
            sources={source: dict(topics) for source, topics in sources.items()},
            at_ms=now_ms(self._clock),
        )
        number = max(self._numbers(), default=0) + 1
        while not self._repository.put_if_absent(self._key(number), record.sealed()).won:
            number += 1

    def copy_to(self, other: Repository, lineage: Lineage, epoch: int, timeline: int) -> None:
        """Record the topics of an epoch in another repository: a fork continues in them."""
        found = self.at(lineage, epoch)
        if found is not None:
            StreamTopics(other, self._stream, self._clock).add(timeline, epoch, found.sources)

    def _numbers(self) -> list[int]:
        names = (_NAME.fullmatch(name) for name in self._repository.list(f"{_FOLDER}/{self._stream}"))
        return sorted(int(name[1]) for name in names if name)

    def _key(self, number: int) -> str:
        return f"{_FOLDER}/{self._stream}/{number:010}.json"


def _counts(lineage: Lineage, record: TopicsRecord) -> bool:
    return lineage.holds_epoch(record.stream, record.timeline, record.epoch)
