"""Kafka as the driver's JVM sees it: with the same client, settings and credentials as Spark's own source.

It uses these classes of Spark's connector that are not public API: `KafkaSourceProvider`, for the settings of a client
in the driver, which include delegation tokens, and `JsonUtils`, for many partitions in one call.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast._redaction import REDACTED, redacted, redacted_text
from holdfast._topics import Positions, TopicChoice, TopicNow, client_settings
from holdfast.errors import SourceFailed, SourceUnavailable

_LIMITS = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}  # for a server that does not answer
_OFFSET = re.compile(r"([\w.-]+)-(\d+)=(-?\d+)")  # as Java prints a map of partitions
_OUTAGE = re.compile(r"Timeout|Disconnect|Network|NotAvailable|NotLeader|UnknownHost|ConnectException")
_UNRESOLVED = "No resolvable bootstrap urls"
_DENIED = re.compile(r"Authorization|Authentication")
_MISSING = "UnknownTopicOrPartitionException"


class KafkaClient:
    """Describes the topics of one source, and commits offsets to a consumer group. Used by any thread."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], *, stream: str, source: int) -> None:
        self._jvm: Any = spark._jvm
        self._options = dict(options)
        self._stream = stream
        self._source = source
        self._admin: Any = None
        self._consumer: Any = None
        self._mutex = threading.Lock()  # a consumer of Kafka may be used by one thread at a time

    def topics(self, choice: TopicChoice, also: Collection[str] = ()) -> dict[str, TopicNow]:
        """Return the topics that exist, of those that a source reads and some others.

        Raises `SourceUnavailable` or `SourceFailed`.
        """
        try:
            with self._mutex:
                self._open()
                described = dict(self._described([*choice.topics, *also, *self._matching(choice.pattern)]))
                numbers = {topic: list(range(count)) for topic, (_, count) in described.items() if count}
                first, end = self._offsets(numbers)
        except (Py4JError, PySparkException, TypeError) as error:  # `TypeError`: the JVM has no such class
            raise self._failed(error) from None  # its text may contain settings
        return {
            topic: TopicNow(id_, {each: (first[topic, each], end[topic, each]) for each in numbers.get(topic, ())})
            for topic, (id_, _) in described.items()
        }

    def commit(self, group: str, positions: Positions) -> None:
        """Commit the position of a stream to a consumer group."""
        common = self._jvm.org.apache.kafka.common
        try:
            with self._mutex:
                self._open()
            offsets = self._jvm.java.util.HashMap()
            for topic, partitions in positions.items():
                for partition, position in partitions.items():
                    offset = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(position)
                    offsets.put(common.TopicPartition(topic, partition), offset)
            self._admin.alterConsumerGroupOffsets(group, offsets).all().get()
        except (Py4JError, PySparkException) as error:
            raise self._failed(error) from None

    def close(self) -> None:
        """End the connections."""
        with self._mutex:
            for client in (self._admin, self._consumer):
                try:
                    if client is not None:
                        client.close(self._jvm.java.time.Duration.ZERO)
                except (Py4JError, PySparkException):
                    pass  # a session that is ending
            self._admin = self._consumer = None

    def _open(self) -> None:
        if self._admin is not None:
            return
        params = driver_settings(self._jvm, self._options)
        params.put("isolation.level", "read_uncommitted")  # an open transaction must not look like a truncation
        self._consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(params)
        for name in [name for name in params if "deserializer" in name or name.startswith(("max.poll", "auto."))]:
            params.remove(name)  # an admin client would warn of them
        self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(params)

    def _matching(self, pattern: str) -> Iterator[str]:
        if not pattern:
            return
        compiled = self._jvm.java.util.regex.Pattern.compile(pattern)
        for name in self._admin.listTopics().names().get():
            if compiled.matcher(name).matches():
                yield str(name)

    def _described(self, names: Collection[str]) -> Iterator[tuple[str, tuple[str, int]]]:
        """Yield id and number of partitions of each topic that exists."""
        wanted = self._jvm.java.util.ArrayList()
        for name in dict.fromkeys(names):
            wanted.add(name)
        found = self._admin.describeTopics(wanted).topicNameValues()
        for name in dict.fromkeys(names):
            try:
                topic = found.get(name).get()
            except Py4JJavaError as error:
                if _root(error)[0] == _MISSING:
                    continue
                raise
            yield name, (str(topic.topicId().toString()), int(topic.partitions().size()))

    def _offsets(self, numbers: Mapping[str, list[int]]) -> tuple[dict[tuple[str, int], int], ...]:
        """Return the first offset of each partition, and the one after its last."""
        if not numbers:
            return {}, {}
        keys = partition_keys(self._jvm, numbers)
        return offsets_in(self._consumer.beginningOffsets(keys)), offsets_in(self._consumer.endOffsets(keys))

    def _failed(self, error: Exception) -> SourceFailed:
        return failure(error, self._options, stream=self._stream, source=self._source)


def driver_settings(jvm: Any, options: Mapping[str, str]) -> Any:
    """Return the settings of a client in the driver, as a Java map: as Spark's source has them, with short limits."""
    settings = client_settings(options)
    limits = {} if settings.keys() & _LIMITS.keys() else _LIMITS
    given = jvm.java.util.HashMap()
    for name, value in {**settings, **limits}.items():
        given.put(name, value)
    provider = jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider
    return provider.kafkaParamsForDriver(jvm.PythonUtils.toScalaMap(given))


def partition_keys(jvm: Any, numbers: Mapping[str, Collection[int]]) -> Any:
    """Return partitions, given by topic, as a Java set."""
    text = json.dumps({topic: dict.fromkeys(map(str, each), 0) for topic, each in numbers.items()})
    partitions = jvm.org.apache.spark.sql.kafka010.JsonUtils.partitionOffsets(text)
    return jvm.scala.jdk.javaapi.CollectionConverters.asJava(partitions).keySet()


def offsets_in(offsets: Any) -> dict[tuple[str, int], int]:
    """Return a Java map of offsets by partition as a dict. It is read as text: one call for all partitions."""
    return {(each[1], int(each[2])): int(each[3]) for each in _OFFSET.finditer(offsets.toString())}


def failure(error: Exception, options: Mapping[str, str], *, stream: str, source: int) -> SourceFailed:
    """Return an error of a client as one of this package, without secrets."""
    name, said = _root(error)
    secrets = [options[each] for each, shown in redacted(options).items() if shown == REDACTED]
    for secret in filter(None, secrets):
        said = said.replace(secret, REDACTED)
    why = f"{name}: {redacted_text(said)}" if said else name
    facts: dict[str, Any] = {"stream": stream, "source": source, "why": why}
    if _OUTAGE.search(name) or _UNRESOLVED in said:
        servers = options.get("kafka.bootstrap.servers", "")
        return SourceUnavailable(**{**facts, "why": f"Kafka at {redacted_text(servers)} does not answer: {why}"})
    if _DENIED.search(name):
        do = "give the user of this source the permission to describe and read the topics, or correct its options"
        return SourceFailed(**facts, do=do)
    return SourceFailed(**facts)


def _root(error: Exception) -> tuple[str, str]:
    """Return the class and the text of the innermost Java exception."""
    found = getattr(error, "java_exception", None)
    if isinstance(error, PySparkException):
        return type(error).__name__, str(error).strip().partition("\n")[0]
    if found is None:
        return type(error).__name__, "the JVM of the session did not answer, or has no connector for Kafka"
    while (cause := found.getCause()) is not None:
        found = cause
    lines = str(found.getMessage() or "").strip().splitlines()
    return str(found.getClass().getSimpleName()), lines[0] if lines else ""
