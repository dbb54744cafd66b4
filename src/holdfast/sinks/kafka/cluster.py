"""A Kafka cluster: its clients, its topics, and errors without secrets.

Rules:
- The options are given to librdkafka and never shown. Errors name the servers.
- librdkafka logs to stderr by default. Here it logs nothing, unless `log_level` is among the options: what matters is
  raised. Of a producer it also logs fatal errors, such as being fenced, which are handled here. What a producer logs is
  passed to Python's logging at level DEBUG.
- Records are distributed to partitions as Java producers do it, so that a key stays in its partition when a job that
  used Spark's own writer moves to Holdfast.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast._redaction import REDACTED, redacted, redacted_text
from holdfast.errors import BadValue, MissingExtra, SinkFailed, SinkUnavailable

try:
    from confluent_kafka import (
        Consumer,
        KafkaError,
        KafkaException,
        Producer,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._config import ConfigResource  # the package exports it without a type
except ModuleNotFoundError as _error:
    raise MissingExtra(extra="kafka", module="confluent_kafka") from _error

# The other modules of this sink import these names from here, so that a missing package raises `MissingExtra`.
__all__ = ["Consumer", "KafkaCluster", "KafkaError", "KafkaException", "Producer", "TopicFacts", "TopicPartition"]

_log = logging.getLogger(__name__)
_OWN = {  # options that the sink sets itself, and the argument that replaces them
    "bootstrap.servers": "servers",
    "metadata.broker.list": "servers",
    "transactional.id": "",
    "transaction.timeout.ms": "transaction_timeout",
    "enable.idempotence": "",
    "acks": "",
    "request.required.acks": "",
    "group.id": "",
    "isolation.level": "",
    "enable.auto.commit": "",
    "delivery.report.only.error": "",
    "enable.partition.eof": "",
}
_ALSO_SECRET = ("sasl.oauthbearer.",)
_METADATA_S = 10.0
_COMPRESSION = ("compression.type", "compression.codec")  # two names of one option
MESSAGE_BYTES = 1_000_000  # librdkafka's default for `message.max.bytes`
_OUTAGES = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
_NO_TRANSACTIONS = {KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION}
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_ADVICE = (
    (
        _DENIED,
        "grant the user of the sink Read, Write and Describe on the topic, Write and Describe on the transactional id "
        "'holdfast.*' and Read on the group 'holdfast.*'; then run again",
    ),
    (_LOGIN, "check security.protocol, the user and the password in options; then run again"),
    (_NO_TRANSACTIONS, "use a Kafka cluster that supports transactions (version 2.5 or later)"),
    (
        {KafkaError.INVALID_TRANSACTION_TIMEOUT},
        "pass a shorter transaction_timeout, or raise transaction.max.timeout.ms of the server",
    ),
    (_NO_TOPIC, "create the topic, then run again"),
    (
        {KafkaError.COORDINATOR_NOT_AVAILABLE},
        "check that enough brokers run for the internal topics of the server: offsets.topic.replication.factor, "
        "transaction.state.log.replication.factor and transaction.state.log.min.isr; then run again",
    ),
    (_OUTAGES, "check the servers and their addresses; then run again: the epoch continues where it stopped"),
)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic, as far as rows and the marker depend on it."""

    name: str
    id: str
    partitions: int
    bytes: int = MESSAGE_BYTES  # the largest record that it accepts
    compacted: bool = False  # then every record needs a key
    ahead_ms: int | None = None  # how far the timestamp of a record may be ahead of the server's clock
    behind_ms: int | None = None  # and how far behind it
    kept_ms: int | None = None  # how old a timestamp may be before the server deletes the record


class _ProducerLog:
    """What a producer logs. It is delivered while the producer is polled."""

    def log(self, _level: int, text: str, *words: object) -> None:
        _log.debug(text, *words)


class KafkaCluster:
    """The servers of a sink's topic, and how to connect to them."""

    def __init__(self, sink: str, servers: object, options: Mapping[str, object] | None) -> None:
        self.sink = sink
        self.servers = _checked_servers(servers)
        self._options = _checked_options(options)
        texts = {name: value for name, value in self._options.items() if isinstance(value, str)}
        hidden = {name for name, value in redacted(texts).items() if value != texts[name]}
        hidden |= {name for name in texts if name.startswith(_ALSO_SECRET)}
        public = {value for name, value in texts.items() if name not in hidden} | {self.servers}
        # A password that equals a public value, such as the user name, is not replaced: it is shown as that value.
        self._secrets = tuple(texts[name] for name in hidden if texts[name] and texts[name] not in public)
        self._noted: Any = None  # what librdkafka reported last: the cause of a time-out

    @property
    def message_bytes(self) -> int | None:
        """The limit of a record's size, if the options set it."""
        found = self._options.get("message.max.bytes")
        return None if found is None else int(str(found))

    # --- clients ---

    def producer(self, name: str, transaction_s: float, message_bytes: int) -> Producer:
        """Return a producer of transactions, which is not connected yet. No batch is larger than `message_bytes`."""
        # A batch is sent at once when it is full. A retry after 10 ms makes a commit ten times faster than after 100.
        own = {
            "transactional.id": name,
            "transaction.timeout.ms": int(transaction_s * 1000),
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": message_bytes,
        }
        defaults = {
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "retry.backoff.ms": 10,
            "partitioner": "murmur2_random",
        }
        found: Producer = self._client(Producer, defaults | self._options | own, logger=_ProducerLog())
        return found

    def consumer(self, group: str) -> Consumer:
        """Return a consumer that reads the offsets of a group, and never joins it."""
        own = {"group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False}
        found: Consumer = self._client(Consumer, self._options | own)
        return found

    def _client(self, kind: type, settings: Mapping[str, Any], **more: Any) -> Any:
        own = {"bootstrap.servers": self.servers, "error_cb": self._note}
        try:
            return kind({"log_level": 0} | dict(settings) | own, **more)
        except (KafkaException, TypeError, ValueError) as error:
            raise BadValue(
                what="options",
                value=REDACTED,
                why=self._text(error),
                do="pass properties of librdkafka with their exact names: see CONFIGURATION.md of librdkafka",
            ) from None

    def _note(self, error: Any) -> None:
        self._noted = error

    def check_options(self) -> None:
        """Refuse an option that librdkafka does not know."""
        self._client(AdminClient, self._options)

    # --- topics ---

    def topic(self, name: str) -> TopicFacts | None:
        """Return a topic, or `None` if it does not exist."""
        with self.doing(f"find topic {name!r}"):
            admin = self._client(AdminClient, self._options)
            try:
                asked = admin.describe_topics(TopicCollection([name]), request_timeout=_METADATA_S)
                found = asked[name].result(_METADATA_S + 1)
            except KafkaException as error:
                if error.args[0].code() in _NO_TOPIC:
                    return None
                admin.poll(0)
                raise
            except TimeoutError:
                admin.poll(0)
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            settings = self._topic_settings(admin, name)
        given = settings.get("message.timestamp.type") != "LogAppendTime"  # else the server sets all timestamps
        expires = given and "delete" in settings.get("cleanup.policy", "")
        return TopicFacts(
            name=name,
            id=str(found.topic_id),
            partitions=len(found.partitions),
            bytes=self._record_bytes(settings.get("max.message.bytes")),
            compacted="compact" in settings.get("cleanup.policy", ""),
            ahead_ms=_limit(settings, "message.timestamp.after.max.ms") if given else None,
            behind_ms=_limit(settings, "message.timestamp.before.max.ms") if given else None,
            kept_ms=_limit(settings, "retention.ms") if expires else None,
        )

    def _record_bytes(self, limit: str | None) -> int:
        """Return the size of the largest record, given the limit of its topic, if that is known.

        The server compares the size after compression. So with compression, the option decides.
        """
        found = self.message_bytes
        if found is None:
            return min(int(limit or MESSAGE_BYTES), 1_000_000_000)
        compresses = any(str(self._options.get(name, "none")) != "none" for name in _COMPRESSION)
        return found if limit is None or compresses else min(found, int(limit))

    def _topic_settings(self, admin: AdminClient, name: str) -> dict[str, str]:
        """Return the settings of a topic; none of them without the privilege to read them."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        try:
            asked = admin.describe_configs([resource], request_timeout=_METADATA_S)
            found = asked[resource].result(_METADATA_S + 1)
        except KafkaException as error:
            if error.args[0].code() in _DENIED:
                return {}
            raise
        return {entry.name: entry.value for entry in found.values() if entry.value is not None}

    # --- errors ---

    @contextmanager
    def doing(self, action: str) -> Iterator[None]:
        """Raise errors of Kafka as `SinkFailed`."""
        self._noted = None
        try:
            yield
        except KafkaException as error:
            raise self.failed(action, error) from None

    @property
    def has_noted(self) -> bool:
        """Whether librdkafka has reported an error since the last action began, such as a refused connection."""
        return self._noted is not None

    def failed(self, action: str, error: KafkaException) -> SinkFailed:
        """Return the error to raise instead of one of Kafka's."""
        found = error.args[0]
        code, why = found.code(), self._text(error)
        if code in _OUTAGES and self._noted is not None:
            why = f"{why}: {self._text(self._noted)}"
            code = self._noted.code() if self._noted.code() in _LOGIN else code
        kind = SinkUnavailable if code in _OUTAGES else SinkFailed
        return kind(sink=self.sink, action=f"{action} (Kafka at {self.servers})", why=why, **_advice(code))

    def _text(self, error: object) -> str:
        found = error.args[0] if isinstance(error, KafkaException) and error.args else error
        text = found.str() if isinstance(found, KafkaError) else str(found)
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return redacted_text(text)


def _limit(settings: Mapping[str, str], name: str) -> int | None:
    """Return a setting in milliseconds; `None` if it does not limit anything."""
    found = int(settings.get(name, -1))
    return found if 0 <= found < 1 << 62 else None


def _advice(code: int | None) -> dict[str, str]:
    return next(({"do": do} for codes, do in _ADVICE if code in codes), {})


def _checked_servers(servers: object) -> str:
    listed = servers.split(",") if isinstance(servers, str) else servers if isinstance(servers, Sequence) else ()
    found = [each.strip() for each in listed if isinstance(each, str) and each.strip()]
    if not found or len(found) != len(listed):
        raise BadValue(what="servers", value=redacted_text(str(servers)), expected="host:port, or several of them")
    if any("@" in each for each in found):
        do = "pass user and password in options: sasl.username, sasl.password"
        raise BadValue(what="servers", value=REDACTED, why="an address must not contain a user", do=do)
    return ",".join(found)


def _checked_options(options: object) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise BadValue(what="options", value=REDACTED, expected="a dict of properties of librdkafka")
    for name in options:
        if name in _OWN:
            do = f"pass {_OWN[name]}=... instead" if _OWN[name] else "leave it out"
            raise BadValue(what=f"option {name!r}", value=REDACTED, why="the sink sets it itself", do=do)
        if name.startswith("kafka."):
            do = f"write {name.removeprefix('kafka.')!r}: the prefix is Spark's"
            raise BadValue(what=f"option {name!r}", value=REDACTED, why="librdkafka has no such property", do=do)
    return dict(options)
