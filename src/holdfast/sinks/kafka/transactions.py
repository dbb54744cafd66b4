"""The transactions of a Kafka sink: rows and marker together, by one producer that is kept between epochs.

Rules:
- `init_transactions` fences every other producer of the same transactional id, and ends the transaction that it left
  open. Only then is the marker read. If another producer is initialised later, the transaction of this one fails. So
  rows are written only if the marker has not changed since it was read.
- A producer that failed is never used again: the next one finds out from the marker what has happened.
- A transaction that took longer than its timeout fails in the same way as one that was fenced.
- librdkafka may ignore the timeout of `send_offsets_to_transaction` for as long as the coordinator of the group is down
  (https://github.com/confluentinc/librdkafka/issues/5456). So another thread makes that call. If it does not return in
  time, it is left alone with its producer. It cannot commit anything: only `commit_transaction` does.
- confluent-kafka never releases the error of a fenced producer. The error refers to the frames that it has passed, and
  these to the producer and its threads. So each error is detached from its frames where it is caught.
- After an error the transaction is aborted where possible, because readers of committed rows wait for its end. After a
  crash the next producer does that, or the server after the timeout.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from holdfast.sinks.kafka.cluster import (
    Consumer,
    KafkaCluster,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from holdfast.sinks.kafka.marker import PARTITION, EpochMarker
from holdfast.sinks.kafka.records import HEADERS, TOPIC

_FENCED = {
    # codes of KafkaError: the server has a newer producer, or has ended the transaction after its timeout
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "UNKNOWN_PRODUCER_ID",
    "INVALID_TXN_STATE",
    "TRANSACTION_ABORTABLE",
    "CONCURRENT_TRANSACTIONS",
    "_FATAL",  # of a record, after the producer was fenced
}
_UNSETTLED = (KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError._TIMED_OUT)
_MOVING = (  # the coordinator of the group, after the start of a broker
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
_POLL_S = 0.05
_MARKER_S = 3.0
_ABORT_S = 5.0
_GRACE_S = 1.0  # after the timeout of a call: librdkafka's own error names the cause


class Interrupted(Exception):
    """A transaction failed because another producer took over, or because it took too long. Nothing is visible."""

    def __init__(self, seconds: float, error: KafkaException) -> None:
        super().__init__(seconds, error)
        self.seconds = seconds
        self.error = error


class Unsettled(Interrupted):
    """The marker cannot be read, because a transaction that has written it has not ended."""


class TopicTransactions:
    """The producer and the marker of one ledger in one topic."""

    def __init__(self, cluster: KafkaCluster, name: str, topic: str, transaction_s: float, wait_s: float) -> None:
        self.cluster = cluster
        self.name = name
        self.topic = topic
        self._transaction_s = transaction_s
        self._wait_s = wait_s
        self._producer: Producer | None = None
        self._message_bytes = 0  # the limit of the producer
        self._consumer: Consumer | None = None
        self._group: Any = None
        self._failures: list[Any] = []  # errors of records, as the server reported them

    @property
    def place(self) -> str:
        """Where the marker is, for errors."""
        return f"the offset of group {self.name} in topic {self.topic}, partition {PARTITION},"

    # --- the marker ---

    def marker(self) -> EpochMarker | None:
        """Return the marker, or `None` if there is none.

        While the transaction of another producer is under way that has written a marker, there is no answer: after some
        time this raises `Unsettled`, and the next `init` ends that transaction. It cannot end one whose end the server
        has lost: a server that finds no leader of a partition when it starts may leave the partition out when it ends a
        committed transaction (seen with Kafka 4.3.1, after a broker was killed).
        """
        if self._consumer is None:
            self._consumer = self.cluster.consumer(self.name)
        found = self._committed(self._consumer)
        return None if found.offset < 0 else EpochMarker.read(found.offset, found.metadata, self.place)

    def _committed(self, consumer: Consumer) -> TopicPartition:
        until = time.monotonic() + self._wait_s
        while True:
            try:
                (found,) = consumer.committed([TopicPartition(self.topic, PARTITION)], timeout=_MARKER_S)
                if found.error is None:
                    return found
                raise KafkaException(found.error)
            except KafkaException as error:
                code = error.args[0].code()
                if code in _UNSETTLED:
                    self.drop()
                    raise Unsettled(0, error) from None
                if code not in _MOVING or time.monotonic() > until:
                    raise
                time.sleep(_POLL_S)

    # --- transactions ---

    def init(self, message_bytes: int) -> Producer:
        """Return a producer that has fenced all others, and sends no batch that is larger than `message_bytes`.

        It is the one of the last transaction, unless that failed or has another limit.
        """
        if self._producer is not None and self._message_bytes == message_bytes:
            return self._producer
        self.drop()
        producer = self.cluster.producer(self.name, self._transaction_s, message_bytes)
        try:
            producer.init_transactions(self._wait_s)
        except KafkaException as error:
            _detach(error)
            _poll(producer)  # so that the cause of a time-out is noted
            raise self._interrupted(0, self._explained(error)) from None
        self._producer, self._message_bytes = producer, message_bytes
        return producer

    def _explained(self, error: KafkaException) -> KafkaException:
        """Name the cause if `init_transactions` has timed out, although the server can be reached."""
        found = error.args[0]
        if found.code() != KafkaError._TIMED_OUT or self.cluster.has_noted:
            return error
        text = f"{found.str()}: the server has no coordinator of transactions, or it does not answer"
        return KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, text))

    def write(
        self,
        producer: Producer,
        marker: EpochMarker,
        batches: Iterable[list[dict[str, Any]]] = (),
        pending: int = 1,
    ) -> None:
        """Write records and marker in one transaction.

        The marker must follow the one that was read after `init` returned this producer. `batches` is read while the
        transaction is open. If it raises, the transaction is aborted.
        """
        began = time.monotonic()
        self._failures = []
        try:
            producer.begin_transaction()
            for batch in batches:
                self._produce(producer, batch, pending)
            self._wait(producer, 0)
            offset = TopicPartition(self.topic, PARTITION, marker.last.epoch, marker.metadata())
            group = self._group_metadata()
            bounded(lambda: producer.send_offsets_to_transaction([offset], group, self._wait_s), self._wait_s)
            producer.commit_transaction(self._wait_s)
        except KafkaException as error:
            _detach(error)
            self._abort(producer)
            raise self._interrupted(time.monotonic() - began, error) from None
        except Exception:
            self._abort(producer)
            raise
        except BaseException:
            self.drop()
            raise

    def _produce(self, producer: Producer, batch: list[dict[str, Any]], pending: int) -> None:
        """Hand records to the producer, which sends them in the background."""
        self._wait(producer, max(0, pending - len(batch)))
        if any(HEADERS in record for record in batch):
            for record in batch:
                topic = record.pop(TOPIC, None) or self.topic
                producer.produce(topic, on_delivery=self._delivered, **record)
        else:
            for topic, records in _by_topic(batch, self.topic).items():
                self._produce_batch(producer, topic, records)
        producer.poll(0)
        self._raise_failure()

    def _wait(self, producer: Producer, pending: int) -> None:
        """Wait while more records than this are under way; raise if none of them arrives for too long."""
        left, since = len(producer), time.monotonic()
        wait = producer.poll if pending else producer.flush  # which does not wait for batches to fill
        while left > pending:
            wait(_POLL_S)
            self._raise_failure()
            now = len(producer)
            if now < left:
                since = time.monotonic()
            elif time.monotonic() - since > self._wait_s:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            left = now

    def _produce_batch(self, producer: Producer, topic: str, records: list[dict[str, Any]]) -> None:
        if producer.produce_batch(topic, records, on_delivery=self._delivered) < len(records):
            failed = next(record["_error"] for record in records if "_error" in record)
            raise KafkaException(failed)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None and not self._failures:
            self._failures.append(error)

    def _raise_failure(self) -> None:
        if self._failures:
            raise KafkaException(self._failures[0])

    def _group_metadata(self) -> Any:
        if self._group is None:
            if self._consumer is None:
                self._consumer = self.cluster.consumer(self.name)
            self._group = self._consumer.consumer_group_metadata()
        return self._group

    # --- failures ---

    def _interrupted(self, seconds: float, error: KafkaException) -> Interrupted | KafkaException:
        """Return the error to raise: with the cause that the server gave for a record, if there is one."""
        self.drop()
        causes = [each for each in self._failures if not each.name().startswith("_PURGE")]
        cause = causes[0] if causes else error.args[0]
        self._failures = []
        if _is_fenced(error.args[0]) or _is_fenced(cause):
            return Interrupted(seconds, error)
        return KafkaException(cause)

    def _abort(self, producer: Producer) -> None:
        with _ignored():
            producer.purge()
            producer.abort_transaction(_ABORT_S)
        _poll(producer)
        self.drop()

    def drop(self) -> None:
        """Give up the producer: the next `init` makes another one."""
        self._producer = None

    def close(self) -> None:
        """Close the clients."""
        self.drop()
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._group = None


def bounded(call: Callable[[], object], seconds: float) -> None:
    """Make a call in a thread. If it ignores its timeout, raise a time-out, and leave the thread alone."""
    ended, failures = threading.Event(), []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="holdfast-kafka", daemon=True).start()
    if not ended.wait(seconds + _GRACE_S):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    if failures:
        raise failures[0]


def _poll(producer: Producer) -> None:
    """Run the callbacks of a producer that has failed. It raises the error of one that was fenced."""
    with _ignored():
        producer.poll(0)


@contextlib.contextmanager
def _ignored() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        _detach(error)


def _detach(error: KafkaException) -> None:
    """Forget through which frames an error has passed: they would keep the producer and its threads."""
    error.__traceback__ = None


def _is_fenced(error: Any) -> bool:
    return error.name() in _FENCED


def _by_topic(batch: list[dict[str, Any]], default: str) -> dict[str, list[dict[str, Any]]]:
    if TOPIC not in batch[0]:
        return {default: batch}
    found: dict[str, list[dict[str, Any]]] = {}
    for record in batch:
        found.setdefault(record.pop(TOPIC) or default, []).append(record)
    return found
