"""The events that were available when a stream began, where Spark does not process all of them by itself.

A version of Spark that passes no read limits to Python sources ends a query with the trigger availableNow after one
batch: the batch in doubt, or one new batch. The supervisor starts the query again until the backlog is processed.

Not guaranteed on such a version: the batch without input that Spark otherwise adds at the end for a query with a
watermark. The rows that it would emit follow with the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast._offsets import log_position
from holdfast.eventlog.homes import home_of
from holdfast.spark import adapter
from holdfast.spark.logsource import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Backlog:
    """How far a stream must read its event logs before it may end."""

    tails: Mapping[str, int]  # uid of a log -> its tail when the stream began; empty if Spark reads so far by itself

    @classmethod
    def of(cls, df: DataFrame) -> Backlog:
        """Return what a streaming DataFrame can read now."""
        if adapter.FACTS.passes_read_limits:
            return cls({})
        homes = [home_of(each) for each in adapter.source_paths(df, FORMAT)]
        return cls({each.about().uid: each.tail() for each in homes})

    def is_left(self, ends: Sequence[str | None]) -> bool:
        """Whether events are left after an epoch with these offsets."""
        read: dict[str, int] = {}
        for log, sequence in filter(None, map(log_position, ends)):
            read[log] = min(sequence, read.get(log, sequence))  # two sources may read the same log
        return any(read.get(log, 0) < tail for log, tail in self.tails.items())
