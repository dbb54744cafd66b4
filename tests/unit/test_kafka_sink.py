"""The Kafka sink without a broker: its marker, its arguments, and what its errors show."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from holdfast.epoch import Attempt
from holdfast.errors import BadValue, RecordCorrupt, SinkFailed, SinkUnavailable
from holdfast.sinks.base import EpochKey, Link, StreamIdentity
from holdfast.sinks.held_epochs import HeldEpochs
from holdfast.sinks.kafka.cluster import KafkaCluster, TopicFacts
from holdfast.sinks.kafka.marker import EpochMarker, ledger_name
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.sinks.kafka.staged import check_records, pending_rows, staged_batches
from holdfast.sinks.kafka.transactions import bounded

OWNER = StreamIdentity("orders", "0" * 31 + "1", "rows")
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=64)
NUMBERS = st.integers(0, 2**62)
LINKS = st.builds(Link, NUMBERS, st.none() | st.text("0123456789abcdef", min_size=16, max_size=16))
MARKERS = st.builds(EpochMarker, st.builds(StreamIdentity, NAMES, NAMES, NAMES), NUMBERS, LINKS, st.none() | LINKS)


def key_of(timeline: int, epoch: int) -> EpochKey:
    return EpochKey(OWNER, Attempt(stream="rows", timeline=timeline, epoch=epoch, attempt=1), 1)


# --- the marker ----------------------------------------------------------------------------------------------------


@given(MARKERS)
def test_a_marker_survives_the_server(marker: EpochMarker) -> None:
    """Offset and metadata are all that the server stores."""
    assert EpochMarker.read(marker.last.epoch, marker.metadata(), "here") == marker
    assert len(marker.metadata().encode()) < 4096  # the server's limit


@given(st.text() | st.none(), NUMBERS)
def test_metadata_of_another_program_is_refused(metadata: str | None, offset: int) -> None:
    with pytest.raises(RecordCorrupt, match="here"):
        EpochMarker.read(offset, metadata, "here")


@given(MARKERS, st.data())
def test_damaged_metadata_is_read_or_refused(marker: EpochMarker, data: st.DataObject) -> None:
    text = marker.metadata()
    place = data.draw(st.integers(0, len(text) - 1))
    for damaged in (text[:place], text[:place] + data.draw(st.characters(codec="utf-8")) + text[place + 1 :]):
        try:
            EpochMarker.read(1, damaged, "here")
        except RecordCorrupt:
            continue


@pytest.mark.parametrize("change", [{"holdfast": 2}, {"timeline": -1}, {"more": 1}, {"before": [1]}])
def test_an_unknown_form_is_refused(change: dict[str, Any]) -> None:
    known = json.loads(EpochMarker.claim(OWNER).metadata())
    with pytest.raises(RecordCorrupt):
        EpochMarker.read(0, json.dumps(known | change), "here")


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), max_size=12))
def test_the_marker_knows_the_last_two_epochs_of_its_timeline(steps: list[tuple[int, int]]) -> None:
    """Compare it with the whole history."""
    marker, held = EpochMarker.claim(OWNER), [(0, 0, "")]
    timeline, epoch = 1, 0
    for rewind, distance in steps:
        if rewind:
            timeline, epoch = timeline + 1, max(0, epoch - distance)
            marker, held = EpochMarker.stamp(OWNER, (timeline - 1, epoch), timeline), [(timeline, epoch, "")]
        else:
            epoch += distance
            digest = f"{timeline}/{epoch}"
            marker = marker.followed_by(key_of(timeline, epoch), digest)
            held.append((timeline, epoch, digest))
    own = [(e, h) for t, e, h in held if t == timeline]
    for e, handle in own[-2:]:
        found = marker.held(key_of(timeline, e)).own if e else None
        assert found == (Link(e, handle or None) if e else None)
    following = marker.held(key_of(timeline, epoch + 1))
    assert (following.own, following.last.epoch) == (None, own[-1][0] if own else 0)
    assert marker.held(key_of(timeline + 1, 1)) == HeldEpochs(marker.timeline, None, Link(0, None))


def test_the_ledger_of_an_owner_is_found_by_the_next_one() -> None:
    """It has neither uid nor timeline in its name, unless the topic is shared."""
    other = StreamIdentity("other", "2", "rows")
    assert ledger_name("t", OWNER, "s", share=False) == ledger_name("t", other, "s", share=False) == "holdfast.t"
    assert ledger_name("t", OWNER, "s", share=True) == "holdfast.t.orders.rows.s"


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("", "t"), "host:port"),
        (([], "t"), "host:port"),
        ((7, "t"), "host:port"),
        (("etl:hunter2@broker:9092", "t"), "must not contain a user"),
        (("h:1", ""), "name of a topic"),
        (("h:1", "a/b"), "name of a topic"),
        (("h:1", ".."), "name of a topic"),
        (("h:1", "x" * 250), "name of a topic"),
    ],
)
def test_servers_and_topic(arguments: tuple[Any, Any], why: str) -> None:
    with pytest.raises(BadValue, match=why) as raised:
        KafkaSink(*arguments)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"key": ""}, "name of a column"),
        ({"key": []}, "name of a column"),
        ({"value": ["a", "a"]}, "different names"),
        ({"value": 7}, "name of a column"),
        ({"headers": ["h"]}, "name of a column"),
        ({"partition": 0}, "name of a column"),
        ({"timestamp": ""}, "name of a column"),
        ({"topic_column": 1}, "name of a column"),
        ({"transaction_timeout": -1}, "transaction_timeout"),
        ({"options": ["a"]}, "a dict"),
        ({"options": {"transactional.id": "mine"}}, "the sink sets it itself"),
        ({"options": {"bootstrap.servers": "h:1"}}, "pass servers="),
        ({"options": {"transaction.timeout.ms": 7}}, "pass transaction_timeout="),
        ({"options": {"kafka.sasl.password": "hunter2"}}, "write 'sasl.password'"),
        ({"name": "a/b"}, "name"),
    ],
)
def test_bad_arguments(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        KafkaSink("h:1", "t", **options)
    assert "hunter2" not in str(raised.value)


def test_an_option_that_librdkafka_does_not_know() -> None:
    with pytest.raises(BadValue, match=r"sasl\.pasword") as raised:
        KafkaCluster("s", "h:1", {"sasl.pasword": "hunter2"}).check_options()
    assert "hunter2" not in str(raised.value)
    with pytest.raises(BadValue) as raised:
        KafkaCluster("s", "h:1", {"security.protocol": "hunter2", "sasl.password": "hunter2"}).check_options()
    KafkaCluster("s", "h:1", {"linger.ms": 5, "compression.type": "lz4"}).check_options()


def test_what_a_sink_shows_of_itself() -> None:
    sink = KafkaSink(["a:1", "b:2"], "t.x", key=["n"], value="v", options={"sasl.password": "hunter2"})
    assert repr(sink) == "KafkaSink('a:1,b:2', 't.x', name='kafka.t.x')"
    assert sink.target == "kafka a:1,b:2 t.x"
    assert KafkaSink("a:1", "t", share=True).target is None
    assert sink.describe() == {
        "key": ["n"],
        "value": "v",
        "headers": None,
        "timestamp": None,
        "partition": None,
        "topic_column": None,
        "changelog": False,
    }


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "do"),
    [
        (KafkaError._TRANSPORT, SinkUnavailable, "check the servers"),
        (KafkaError.NOT_ENOUGH_REPLICAS, SinkUnavailable, "check the servers"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SinkFailed, "grant"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, SinkFailed, "transactional id"),
        (KafkaError._AUTHENTICATION, SinkFailed, "password"),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, SinkFailed, "transaction_timeout"),
        (KafkaError.UNSUPPORTED_VERSION, SinkFailed, "supports transactions"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, SinkFailed, "create the topic"),
        (KafkaError.MSG_SIZE_TOO_LARGE, SinkFailed, "run again"),
    ],
)
def test_errors_of_kafka(code: int, kind: type[SinkFailed], do: str) -> None:
    cluster = KafkaCluster("s", "h:1", {"sasl.username": "etl", "sasl.password": "hunter2"})
    error = KafkaException(KafkaError(code, "login of etl with hunter2"))
    with pytest.raises(SinkFailed) as raised, cluster.doing("commit"):
        raise error
    assert type(raised.value) is kind
    assert do in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert "Kafka at h:1" in str(raised.value)


# --- staged records ------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=5),
            st.none() | st.binary(max_size=5),
            st.none() | st.integers(0, 3),
            st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        ),
        max_size=30,
    ),
    st.integers(1, 1 << 28),
)
def test_staged_records_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], largest: int
) -> None:
    folder = tmp_path_factory.mktemp("staged")
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [None if row[3] is None else [{"key": k, "value": v} for k, v in row[3]] for row in rows]
    table = pa.table(
        {
            "partition": pa.array([row[2] for row in rows], pa.int32()),
            "key": pa.array([row[0] for row in rows], pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.binary()),
            "headers": pa.array(headers, pairs),
        }
    )
    pq.write_table(table, folder / "part-0.parquet")
    (folder / "_hidden.parquet").write_bytes(b"not read")
    (folder / "_hidden.parquet").unlink()
    batches = list(staged_batches(folder, largest))
    assert all(len(batch) <= pending_rows(largest) for batch in batches)
    found = [record for batch in batches for record in batch]
    assert [(each["key"], each["value"], each.get("partition"), each.get("headers")) for each in found] == rows


def test_the_driver_holds_a_bounded_part_of_an_epoch() -> None:
    for largest in (0, 100, 10_000, 1_000_000, 1 << 30):
        assert pending_rows(largest) >= 1
        assert pending_rows(largest) == 1 or pending_rows(largest) * largest <= 256 << 20


def test_records_are_compared_with_their_topics(tmp_path: Path) -> None:
    """Topics that rows name are looked up once each; partitions are those of the row's own topic."""
    table = pa.table(
        {
            "topic": pa.array([None, "big", "big", "t"]),
            "partition": pa.array([0, 5, None, None], pa.int32()),
            "value": pa.array([b"x"] * 4),
        }
    )
    pq.write_table(table, tmp_path / "part-0.parquet")
    asked = []

    def find(name: str) -> TopicFacts | None:
        asked.append(name)
        return TopicFacts(name, "id", 6, bytes=1500)

    accepted = check_records("s", tmp_path, {"largest": 1}, TopicFacts("t", "id", 1, bytes=2000), find)
    assert asked == ["big"]
    assert accepted.limit == 1500, "the smallest one of all topics"
    with pytest.raises(SinkFailed, match=r"names topic 'big', which does not exist"):
        check_records("s", tmp_path, {"largest": 1}, TopicFacts("t", "id", 1), lambda _: None)
    with pytest.raises(SinkFailed, match=r"topic big has 5 partitions"):
        check_records("s", tmp_path, {"largest": 1}, TopicFacts("t", "id", 1), lambda n: TopicFacts(n, "id", 5))


def test_a_topic_that_accepts_less_than_a_client_sends_is_refused_before_the_decision(tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match=r"topic t accepts 600 bytes.*raise max.message.bytes.*nothing was decided"):
        check_records("s", tmp_path, {"largest": 1}, TopicFacts("t", "id", 1, bytes=600), lambda _: None)


def test_a_record_without_a_key_is_refused_if_its_topic_is_compacted(tmp_path: Path) -> None:
    """Also if the sink has no key at all, and only a row names the topic."""
    table = pa.table({"topic": pa.array([None, "compact"]), "value": pa.array([b"x"] * 2)})
    pq.write_table(table, tmp_path / "part-0.parquet")

    def checked(**seen: int) -> None:
        topic = TopicFacts("t", "id", 1)
        check_records("s", tmp_path, {"largest": 1, **seen}, topic, lambda n: TopicFacts(n, "id", 1, compacted=True))

    for seen in ({}, {"unkeyed": 1}):
        with pytest.raises(SinkFailed, match="topic compact is compacted"):
            checked(**seen)
    checked(unkeyed=0)


@pytest.mark.parametrize(
    ("options", "limit", "largest"),
    [
        ({}, None, 1_000_000),
        ({}, "2000", 2000),
        ({}, "2147483647", 1_000_000_000),
        ({"message.max.bytes": 5000}, None, 5000),
        ({"message.max.bytes": 5000}, "2000", 2000),
        ({"message.max.bytes": 1000}, "2000", 1000),
        ({"message.max.bytes": 5000, "compression.type": "none"}, "2000", 2000),
        ({"message.max.bytes": 5000, "compression.type": "zstd"}, "2000", 5000),
        ({"message.max.bytes": 5000, "compression.codec": "zstd"}, "2000", 5000),
    ],
)
def test_the_largest_record_is_that_of_the_topic(options: dict[str, Any], limit: str | None, largest: int) -> None:
    """An option cannot raise it: the server would refuse a record that has been decided."""
    assert KafkaCluster("s", "h:1", options)._record_bytes(limit) == largest


def test_timestamps_are_compared_with_the_limits_of_the_topic(tmp_path: Path) -> None:
    """What the server would refuse is refused; what it would delete soon is reported."""
    now, hour = int(time.time() * 1000), 3_600_000

    def checked(earliest: int, latest: int, **limits: int) -> str | None:
        seen = {"largest": 1, "earliest": earliest, "latest": latest}
        return check_records("s", tmp_path, seen, TopicFacts("t", "id", 1, **limits), lambda _: None).notice  # type: ignore[arg-type]

    assert checked(now - 3 * hour, now) is None
    assert checked(now - hour, now, kept_ms=2 * hour, behind_ms=2 * hour, ahead_ms=hour) is None
    assert "retention.ms" in (checked(now - 3 * hour, now, kept_ms=2 * hour) or "")
    with pytest.raises(SinkFailed, match=r"timestamp\.before\.max\.ms"):
        checked(now - 3 * hour, now, kept_ms=2 * hour, behind_ms=2 * hour)
    with pytest.raises(SinkFailed, match=r"timestamp\.after\.max\.ms"):
        checked(now, now + 3 * hour, ahead_ms=2 * hour)


def test_a_server_that_is_not_there_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sinks.kafka.cluster._METADATA_S", 0.5)
    with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1.* Next: check the servers") as raised:
        KafkaSink("127.0.0.1:1", "rows").is_missing()
    assert type(raised.value) is SinkUnavailable


def test_a_call_that_ignores_its_timeout_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`send_offsets_to_transaction` of librdkafka does, while the coordinator of the group is down."""
    monkeypatch.setattr("holdfast.sinks.kafka.transactions._GRACE_S", 0.05)
    forever, ended = threading.Event(), threading.Event()

    def call() -> None:
        forever.wait()
        ended.set()

    with pytest.raises(KafkaException) as raised:
        bounded(call, 0.05)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
    assert isinstance(KafkaCluster("s", "h:1", None).failed("commit", raised.value), SinkUnavailable)
    forever.set()
    assert ended.wait(10)
    bounded(lambda: None, 10)
    with pytest.raises(KafkaException):
        bounded(_fenced, 10)


def _fenced() -> None:
    raise KafkaException(KafkaError(KafkaError._FENCED))
