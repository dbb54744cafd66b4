"""Kafka topics: where a stream is in them, and whether they still have the records that it must read next.

Rules:
- An offset is the next record to read. Transaction markers take offsets too, so a range of offsets may contain fewer
  records than numbers.
- A topic that was deleted and created again has another id. If it is longer than the old one, nothing else shows it.
- A new partition is read from its beginning. That is a gap only if its first records no longer exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Positions: TypeAlias = Mapping[str, Mapping[int, int]]
"""By topic and partition: the next offset to read."""
KAFKA = "kafka"  # the name of Spark's source
_PREFIX = "kafka."  # of options that are passed to Kafka's clients
_NAMED = re.compile(r"[\w-]+:(?=\{)")  # a source by name, in Spark's offset log v2
_NO_ID = frozenset({"", "AAAAAAAAAAAAAAAAAAAAAA"})  # of a server that has no ids of topics


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic as its server describes it: its id, and by partition the first offset and the one after the last."""

    id: str
    partitions: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The topics that a source reads, by the options of Spark's reader."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TopicChoice:
        """Return what the options of a source choose. The names are in lower case."""
        if "subscribe" in options:
            return cls(topics=tuple(each.strip() for each in options["subscribe"].split(",") if each.strip()))
        if "subscribepattern" in options:
            return cls(pattern=options["subscribepattern"])
        try:
            given = json.loads(options.get("assign", "{}"))
            assigned = {str(topic): tuple(int(each) for each in numbers) for topic, numbers in given.items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            return cls()  # Spark reports it
        return cls(topics=tuple(assigned), assigned=assigned)

    def names(self, topic: str) -> bool:
        """Whether a topic may be chosen. A pattern is one of Java, which only Java can match: it may choose any."""
        return topic in self.topics or bool(self.pattern)

    def reads(self, topic: str, partition: int) -> bool:
        """Whether a partition of a topic that exists is read."""
        if self.assigned:
            return partition in self.assigned.get(topic, ())
        return bool(self.pattern) or topic in self.topics  # topics are looked up by the pattern


class LossKind(StrEnum):
    """Why a source lacks input of a stream, or has other input."""

    EXPIRED = "expired"  # retention, or a deletion of records
    TRUNCATED = "truncated"  # the partition ends before the position: truncated, or created again
    RECREATED = "recreated"  # another topic of the same name
    PARTITION_GONE = "partition gone"
    TOPIC_GONE = "topic gone"
    NOT_READ = "not read"  # the program no longer reads it
    LATE = "late"  # a new partition whose first records are gone


@dataclass(frozen=True, slots=True)
class LostInput:
    """One place where a topic and the position of a stream in it do not fit."""

    kind: LossKind
    topic: str
    partition: int | None = None  # None: the whole topic
    position: int | None = None  # the next offset to read
    first: int | None = None  # that exists
    end: int | None = None  # the one after the last that exists
    ids: tuple[str, str] | None = None  # of the topic that was read, and of the one that exists

    @property
    def where(self) -> str:
        """The topic, and the partition if it is about one."""
        return f"topic {self.topic!r}" + ("" if self.partition is None else f" partition {self.partition}")

    @property
    def text(self) -> str:
        """What is wrong, without the place."""
        old, new = self.ids or ("", "")
        return {
            LossKind.EXPIRED: f"the records from offset {self.position} to {(self.first or 0) - 1} no longer exist",
            LossKind.TRUNCATED: f"the stream has read up to offset {self.position}, but it ends at {self.end}",
            LossKind.RECREATED: (
                f"it was deleted and created again: the stream has read the one with id {old}, now there is {new}"
            ),
            LossKind.PARTITION_GONE: f"it no longer exists; the stream would continue at offset {self.position}",
            LossKind.TOPIC_GONE: "it no longer exists, or the pattern of the program does not match it",
            LossKind.NOT_READ: f"the program no longer reads it, and has read it up to offset {self.position}",
            LossKind.LATE: f"it is new, and its records before offset {self.first} no longer exist",
        }[self.kind]

    def facts(self) -> dict[str, Any]:
        """Return the facts of a gap record. They do not change while the topic only grows."""
        found: dict[str, Any] = {"kind": str(self.kind), "topic": self.topic}
        found |= {"partition": self.partition, "position": self.position}
        if self.kind in (LossKind.EXPIRED, LossKind.LATE):
            found["first"] = self.first
        if self.ids:
            found["ids"] = list(self.ids)
        return {name: value for name, value in found.items() if value is not None}


def positions_of(offset: str | None) -> Positions:
    """Return the positions in an offset of Spark's source for Kafka; empty for the offset of another source."""
    try:
        found = json.loads(_NAMED.sub("", offset or "null", count=1))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or not found:
        return {}
    if not all(isinstance(each, dict) and each for each in found.values()):
        return {}
    numbers = [(name, value) for each in found.values() for name, value in each.items()]
    if not all(name.isascii() and name.isdecimal() and type(value) is int for name, value in numbers):
        return {}
    return {topic: {int(name): value for name, value in each.items()} for topic, each in found.items()}


def lost_input(
    positions: Positions, ids: Mapping[str, str], now: Mapping[str, TopicNow], choice: TopicChoice
) -> Iterator[LostInput]:
    """Yield where the topics of a source do not have what follows the positions of a stream.

    `ids` are those of the topics when the positions were reached, as far as they are known; `now` are the topics that
    exist, of those that the source reads and those in `positions`.
    """
    for topic, partitions in positions.items():
        there = now.get(topic)
        if there is None:
            unread = not choice.pattern and topic not in choice.topics
            yield from _unread(topic, partitions) if unread else [LostInput(LossKind.TOPIC_GONE, topic)]
        elif other_id(ids.get(topic), there.id):
            yield LostInput(LossKind.RECREATED, topic, ids=(ids[topic], there.id))
        else:
            yield from _lost_partitions(topic, partitions, there, choice)
    for topic, there in now.items():
        known = positions.get(topic, {})
        if not positions or (known and other_id(ids.get(topic), there.id)):
            continue
        for partition, (first, end) in there.partitions.items():
            if partition not in known and first > 0 and choice.reads(topic, partition):
                yield LostInput(LossKind.LATE, topic, partition, first=first, end=end)


def _lost_partitions(
    topic: str, positions: Mapping[int, int], there: TopicNow, choice: TopicChoice
) -> Iterator[LostInput]:
    for partition, position in positions.items():
        if not choice.reads(topic, partition):
            yield from _unread(topic, {partition: position})
        elif partition not in there.partitions:
            yield LostInput(LossKind.PARTITION_GONE, topic, partition, position)
        else:
            first, end = there.partitions[partition]
            if first > position >= 0:
                yield LostInput(LossKind.EXPIRED, topic, partition, position, first, end)
            elif end < position:
                yield LostInput(LossKind.TRUNCATED, topic, partition, position, first, end)


def _unread(topic: str, positions: Mapping[int, int]) -> Iterator[LostInput]:
    for partition, position in positions.items():
        yield LostInput(LossKind.NOT_READ, topic, partition, position)


def other_id(recorded: str | None, now: str) -> bool:
    """Whether two ids are known and differ."""
    return bool(recorded) and recorded not in _NO_ID and now not in _NO_ID and recorded != now


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Kafka's clients in the options of Spark's reader. They may contain secrets."""
    return {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}


def records_between(positions: Positions, now: Mapping[str, TopicNow]) -> int:
    """Return how many offsets the topics have after the positions."""
    return sum(
        max(there.partitions[partition][1] - position, 0)
        for topic, partitions in positions.items()
        if (there := now.get(topic)) is not None
        for partition, position in partitions.items()
        if partition in there.partitions
    )


def summary(found: Sequence[LostInput]) -> str:
    """Return the first of several as text, and the number of the others."""
    more = f"; and {len(found) - 1} more" if found[1:] else ""
    return f"{found[0].where}: {found[0].text}{more}"
