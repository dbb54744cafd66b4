"""The first records of Kafka topics that a stream has not processed, as the driver's JVM sees them.

It uses the same classes of Spark's connector as `kafka`. The isolation level is that of the source, so that a record of
an aborted transaction, or of one that is open, does not count if the stream leaves it out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast._topics import Positions
from holdfast.spark.adapter.kafka import driver_settings, failure, offsets_in, partition_keys

_SMALL = {"max.partition.fetch.bytes": 65536, "fetch.max.wait.ms": 100}  # one record of each partition is enough
_POLL_MS = 250  # then positions are compared: a partition may have only markers of transactions
_Partition = tuple[str, int]


class KafkaUnread:
    """Reads the first unread record of each partition of one source. Used by one thread at a time."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], *, stream: str, source: int) -> None:
        self._jvm: Any = spark._jvm
        self._options = dict(options)
        self._stream = stream
        self._source = source
        self._consumer: Any = None
        self._singleton: Any = None  # Java's methods: looking them up again for each record would take longer than it
        self._millis: Any = None

    def timestamps(self, positions: Positions, within_s: float) -> list[int] | None:
        """Return the timestamp of the first unread record of each partition that has one, in milliseconds.

        It is -1 for a record without a timestamp. The result is `None` if not every partition answers in time. Raises
        `SourceUnavailable` or `SourceFailed`.
        """
        deadline = time.monotonic() + within_s
        try:
            self._open()
            try:
                return self._timestamps(positions, deadline)
            finally:
                self._consumer.unsubscribe()  # releases the records that were fetched
        except (Py4JError, PySparkException, TypeError) as error:  # `TypeError`: the JVM has no such class
            raise failure(error, self._options, stream=self._stream, source=self._source) from None

    def close(self) -> None:
        """End the connections."""
        consumer, self._consumer = self._consumer, None
        try:
            if consumer is not None:
                consumer.close(self._millis(0))
        except (Py4JError, PySparkException):
            pass  # a session that is ending

    def _open(self) -> None:
        if self._consumer is None:
            self._singleton = self._jvm.java.util.Collections.singleton
            self._millis = self._jvm.java.time.Duration.ofMillis
            params = driver_settings(self._jvm, self._options)
            for name, value in _SMALL.items():
                params.put(name, value)
            self._consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(params)

    def _timestamps(self, positions: Positions, deadline: float) -> list[int] | None:
        """Ask Kafka.

        1. Find the partitions that have offsets after the position.  2. Read on from there, and pause a partition after
        its first record.  3. A partition that was read to its end without a record has no unread one.
        """
        keys = partition_keys(self._jvm, positions)
        ends = offsets_in(self._consumer.endOffsets(keys, self._time_left(deadline)))  # 1
        starts = {(topic, number): at for topic, each in positions.items() for number, at in each.items()}
        late = self._assigned({where: at for where, at in starts.items() if ends[where] > at})
        found: list[int] = []
        while late:
            if time.monotonic() >= deadline:
                return None
            records = self._consumer.poll(self._time_left(deadline, _POLL_MS))  # 2: at most one, as Spark has set it
            if records.isEmpty():
                for where in [each for each in late if self._position(late[each], deadline) >= ends[each]]:
                    del late[where]  # 3
                continue
            first = records.iterator().next()
            found.append(int(first.timestamp()))
            self._consumer.pause(self._singleton(late.pop((str(first.topic()), int(first.partition())))))
        return found

    def _assigned(self, starts: Mapping[_Partition, int]) -> dict[_Partition, Any]:
        """Let the consumer read partitions from an offset on; return them as Java objects."""
        new = self._jvm.org.apache.kafka.common.TopicPartition
        partitions = {where: new(*where) for where in starts}
        chosen = self._jvm.java.util.ArrayList()
        for each in partitions.values():
            chosen.add(each)
        self._consumer.assign(chosen)
        for where, at in starts.items():
            self._consumer.seek(partitions[where], at)
        return partitions

    def _position(self, partition: Any, deadline: float) -> int:
        return int(self._consumer.position(partition, self._time_left(deadline)))

    def _time_left(self, deadline: float, most_ms: int = 60_000) -> Any:
        left = int((deadline - time.monotonic()) * 1000)
        return self._millis(max(min(left, most_ms), 1))
