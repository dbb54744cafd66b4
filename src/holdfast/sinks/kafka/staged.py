"""The staged records of a Kafka sink: Parquet files, checked before the decision and read back at commit.

A record that the server would refuse is found here, before the epoch is decided: afterwards nothing could be done about
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import _figures as figures
from holdfast.errors import SinkFailed
from holdfast.sinks.kafka.cluster import TopicFacts
from holdfast.sinks.kafka.records import (
    BAD_HEADERS,
    EARLIEST,
    HEADERS,
    KEY,
    LARGEST,
    LATEST,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    UNKEYED,
    VALUE,
)

LEAST_LIMIT = 1000  # of a batch in bytes, for librdkafka
OVERHEAD = 512  # bytes of a record and its batch besides key, value and headers; generous
_PENDING_BYTES = 256 << 20  # what the driver holds of an epoch at a time
_PENDING_ROWS = 200_000
_BATCH = 10_000


def pending_rows(largest: int) -> int:
    """Return how many records may be under way, given the size of the largest one."""
    return max(1, min(_PENDING_ROWS, _PENDING_BYTES // (largest + OVERHEAD)))


@dataclass(frozen=True, slots=True)
class Accepted:
    """Staged records that the server will accept."""

    limit: int  # the largest batch, in bytes, that all of their topics accept
    notice: str | None  # about records that the server accepts, and soon deletes


def check_records(
    sink: str,
    folder: Path,
    seen: Mapping[str, Any],
    topic: TopicFacts,
    find: Callable[[str], TopicFacts | None],
) -> Accepted:
    """Refuse records that a server would refuse. `find` looks up the topics that rows name."""
    topics = _topics(sink, folder, topic, find)
    _check_partitions(sink, folder, topics, topic)
    if seen.get(BAD_HEADERS):
        raise _refused(sink, "some rows have a header without a name", "give every header a name")
    narrow = min(topics.values(), key=lambda each: each.bytes)
    limit = narrow.bytes
    if limit < LEAST_LIMIT:
        why = f"topic {narrow.name} accepts {figures.number(limit)} bytes, and clients send {LEAST_LIMIT} or more"
        raise _refused(sink, why, f"raise max.message.bytes of the topic to at least {LEAST_LIMIT}")
    if (seen[LARGEST] or 0) + OVERHEAD > limit:
        why = f"a record has {figures.number(seen[LARGEST])} bytes, and the topic accepts {figures.number(limit)}"
        raise _refused(sink, why, "raise max.message.bytes of the topic and message.max.bytes in options, or split it")
    compacted = next((each for each in topics.values() if each.compacted), None)
    if compacted is not None and seen.get(UNKEYED, 1):  # not counted if the sink has no key at all
        why = f"some rows have no key, and topic {compacted.name} is compacted"
        raise _refused(sink, why, "give every row a key (key=...)")
    notice = _check_timestamps(sink, seen, topics.values()) if seen.get(EARLIEST) is not None else None
    return Accepted(limit, notice)


def _check_timestamps(sink: str, seen: Mapping[str, Any], topics: Collection[TopicFacts]) -> str | None:
    if seen[EARLIEST] <= 0:
        raise _refused(sink, "a timestamp is not after 1970-01-01", "correct it, or set it to null")
    now = time.time() * 1000
    ahead, behind, kept = (
        min((limit for each in topics if (limit := getattr(each, name)) is not None), default=None)
        for name in ("ahead_ms", "behind_ms", "kept_ms")
    )
    if ahead is not None and seen[LATEST] > now + ahead:
        why = f"a timestamp is more than {figures.number(ahead // 1000)} seconds ahead of the clock"
        raise _refused(sink, why, "correct it, or raise message.timestamp.after.max.ms of the topic")
    if behind is not None and seen[EARLIEST] < now - behind:
        why = f"a timestamp is more than {figures.number(behind // 1000)} seconds behind the clock"
        raise _refused(sink, why, "correct it, or raise message.timestamp.before.max.ms of the topic")
    if kept is None or seen[EARLIEST] >= now - kept:
        return None
    return (
        f"sink {sink!r} writes records whose timestamps are older than retention.ms of the topic "
        f"({figures.number(kept // 1000)} seconds): the server may delete them at once"
    )


def _topics(
    sink: str, folder: Path, topic: TopicFacts, find: Callable[[str], TopicFacts | None]
) -> dict[str, TopicFacts]:
    """Return the topics that the rows name."""
    import pyarrow.compute as pc  # noqa: PLC0415 - an extra

    found, names = {topic.name: topic}, set()
    for path in _files(folder):
        table = _read(path, TOPIC)
        if table is not None:
            names |= set(pc.unique(table[TOPIC]).to_pylist())
    for name in sorted(names - {None, topic.name}):
        facts = find(name)
        if facts is None:
            raise _refused(sink, f"a row names topic {name!r}, which does not exist", "create it, or correct the row")
        found[name] = facts
    return found


def _check_partitions(sink: str, folder: Path, topics: Mapping[str, TopicFacts], topic: TopicFacts) -> None:
    for path in _files(folder):
        table = _read(path, PARTITION, TOPIC)
        if table is None or PARTITION not in table.column_names:
            continue
        names = [PARTITION, *([TOPIC] if TOPIC in table.column_names else [])]
        for row in table.group_by(names).aggregate([]).to_pylist():
            name = row.get(TOPIC) or topic.name
            if row[PARTITION] is not None and not 0 <= row[PARTITION] < topics[name].partitions:
                why = f"a row names partition {row[PARTITION]}; topic {name} has {topics[name].partitions} partitions"
                raise _refused(sink, why, "correct the row, or add partitions to the topic")


def _read(path: Path, *names: str) -> Any:
    """Return columns of a file; `None` if it has none of them."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    with pq.ParquetFile(path) as staged:
        there = [name for name in names if name in staged.schema_arrow.names]
        return staged.read(columns=there) if there else None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


def _refused(sink: str, why: str, do: str) -> SinkFailed:
    return SinkFailed(sink=sink, action="accept the rows", why=why, do=f"{do}; then run again: nothing was decided")


def staged_batches(folder: Path, largest: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the staged records in batches, in the form that producers take."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    for path in _files(folder):
        with pq.ParquetFile(path) as staged:
            for batch in staged.iter_batches(min(_BATCH, pending_rows(largest))):
                if batch.num_rows:
                    yield _records(batch)


def _records(batch: Any) -> list[dict[str, Any]]:
    names = batch.schema.names
    columns = [batch.column(name).to_pylist() for name in names]
    if names == [VALUE]:
        return [{VALUE: value} for value in columns[0]]
    if names == [KEY, VALUE]:
        return [{KEY: key, VALUE: value} for key, value in zip(*columns, strict=True)]
    records = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    for record in records:
        for optional in (PARTITION, TIMESTAMP, HEADERS):
            if record.get(optional, 0) is None:
                del record[optional]
        if HEADERS in record:
            record[HEADERS] = [(each["key"], each["value"]) for each in record[HEADERS]]
    return records
