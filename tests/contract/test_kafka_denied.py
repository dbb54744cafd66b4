"""A Kafka broker that denies what a sink needs: the error names what to grant, and nothing is half done.

The broker allows everything that no rule denies. So each test adds one rule, and removes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql.types import StringType, StructField, StructType

from holdfast.errors import SinkFailed, SinkUnavailable
from holdfast.sinks.base import SinkContext
from holdfast.sinks.kafka.records import RecordColumns
from holdfast.sinks.kafka.sink import KafkaSink
from kafkafixture import Broker, require_jars
from kafkarig import OWNER, key_of, stage_by_hand
from unprivileged import make_read_only, open_folder, set_modes, unprivileged

pytestmark = pytest.mark.kafka
SCHEMA = StructType([StructField("text", StringType())])
GRANT = "Next: grant the user of the sink Read, Write and Describe on the topic"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    require_jars()
    found = Broker(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        allow_everyone_if_no_acl_found="true",
    )
    yield found
    found.kill()


@contextmanager
def denied(broker: Broker, kind: ResourceType, name: str, operation: AclOperation) -> Iterator[None]:
    """Deny an operation to all users."""
    rule = ("User:*", "*", operation, AclPermissionType.DENY)
    binding = AclBinding(kind, name, ResourcePatternType.LITERAL, *rule)
    broker.admin.create_acls([binding])[binding].result(30)
    try:
        yield
    finally:
        chosen = AclBindingFilter(kind, name, ResourcePatternType.LITERAL, *rule)
        assert len(broker.admin.delete_acls([chosen])[chosen].result(30)) == 1


class Denied:
    """A topic of its own, and sinks that write to it."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.topic = broker.topic()
        self.name = f"holdfast.{self.topic}"  # of the transactional id and of the group

    def opened(self, **options: Any) -> KafkaSink:
        sink = KafkaSink(self.broker.address, self.topic, path=self.folder, **options)
        nothing: Any = None
        sink.open(SinkContext(OWNER, SCHEMA, "append", nothing, tell=lambda _: None))
        return sink

    def one_epoch(self) -> list[bytes | None]:
        """Open a sink, commit an epoch and return all rows of the topic."""
        sink = self.opened()
        sink.commit(key_of(1), stage_by_hand(sink, key_of(1), [b"row 1"]).handle)
        sink.close()
        return [value for _, value in self.broker.rows(self.topic)]


@pytest.fixture
def place(guarded: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Denied:
    monkeypatch.setattr(RecordColumns, "check", lambda *_: None)  # it needs Spark; tests/spark has it
    return Denied(guarded, tmp_path / "sink")


def test_a_transactional_id_that_is_not_granted(place: Denied) -> None:
    with denied(place.broker, ResourceType.TRANSACTIONAL_ID, place.name, AclOperation.WRITE):
        with pytest.raises(SinkFailed, match=GRANT) as caught:
            place.opened()
        assert not isinstance(caught.value, SinkUnavailable)  # to wait would not help
        assert "the transactional id 'holdfast.*'" in str(caught.value)
        assert place.broker.size(place.topic) == 0
    assert place.one_epoch() == [b"row 1"]


def test_a_topic_that_may_not_be_described(place: Denied) -> None:
    with denied(place.broker, ResourceType.TOPIC, place.topic, AclOperation.DESCRIBE):
        with pytest.raises(SinkFailed, match=GRANT) as caught:
            place.opened()
        assert place.topic in str(caught.value)
        assert not place.folder.exists()
    assert place.one_epoch() == [b"row 1"]


def test_a_topic_that_may_not_be_written_to(place: Denied) -> None:
    """The epoch is decided. It stays staged, and is committed once when the privilege is granted."""
    sink = place.opened()
    handle = stage_by_hand(sink, key_of(1), [b"row 1"]).handle
    with denied(place.broker, ResourceType.TOPIC, place.topic, AclOperation.WRITE):
        with pytest.raises(SinkFailed, match=GRANT) as caught:
            sink.commit(key_of(1), handle)
        assert not isinstance(caught.value, SinkUnavailable)
        assert place.broker.rows(place.topic) == []
    for _ in range(2):
        sink.commit(key_of(1), handle)
    assert place.broker.rows(place.topic) == [(None, b"row 1")]
    sink.close()


def test_a_folder_that_cannot_be_written_to(place: Denied) -> None:
    with open_folder() as folder:
        place.folder = folder / "sink"
        make_read_only(folder)
        with (
            unprivileged(),
            pytest.raises(SinkFailed, match=f"create its folder: Permission denied: {folder}.* Next: "),
        ):
            place.opened()
        assert place.broker.size(place.topic) == 0
        set_modes(folder, folders=0o755, files=0o644)
        assert place.one_epoch() == [b"row 1"]


def test_a_broker_that_can_run_no_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of its transactions needs more replicas than there are brokers."""
    require_jars()
    monkeypatch.setattr(RecordColumns, "check", lambda *_: None)
    monkeypatch.setattr("holdfast.sinks.kafka.sink._WAIT_S", 5.0)
    broker = Broker(transaction_state_log_replication_factor="3")
    try:
        place = Denied(broker, tmp_path / "sink")
        with pytest.raises(SinkUnavailable, match=f"{broker.address}.* Next: ") as caught:
            place.opened()
        assert "transaction.state.log.replication.factor" in str(caught.value)
        assert broker.size(place.topic) == 0
    finally:
        broker.kill()
