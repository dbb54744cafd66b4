"""How far a stream is behind its sources, where that can be told cheaply. Only whoever asks for a status pays for it.

Told of: event logs, whose tail is read now; Kafka, as of Spark's last progress, which is old while an epoch takes long.
Not told of: files and others, which give Spark no number. One such source, and nothing is told of the stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.loghead import read_about, read_head
from holdfast.offsets import leaves, log_position

_KAFKA = "Kafka"


def behind_logs(logs: Sequence[Path], ends: Sequence[str | None]) -> int:
    """Return how many sequences event logs have after the offsets at which the last epoch ended."""
    read = dict(filter(None, map(log_position, ends)))
    return sum(max(read_head(each).tail - read.get(read_about(each).uid, 0), 0) for each in logs)


def behind_topics(progress: Mapping[str, Any], ends: Sequence[str | None]) -> int | None:
    """Return how many records Kafka has after the offsets at which the last epoch ended, or `None` if not told."""
    sources = progress.get("sources", [])
    if not sources or len(sources) != len(ends):
        return None  # nothing has gone through yet
    if not all(str(each.get("description")).startswith(_KAFKA) for each in sources):
        return None
    distances = [_distance(end, each.get("latestOffset")) for end, each in zip(ends, sources, strict=True)]
    return None if None in distances else sum(filter(None, distances))


def _distance(end: str | None, latest: object) -> int | None:
    """Return by how much the partitions of one offset lie behind those of another."""
    here, there = leaves(end), leaves(latest if isinstance(latest, str) else json.dumps(latest))
    try:
        return sum(max(int(value) - int(here[where]), 0) for where, value in there.items())
    except (KeyError, ValueError):
        return None  # a partition that is new, or an offset of another form
