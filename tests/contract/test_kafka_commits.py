"""Commits into a real Kafka broker, with epochs that are staged by hand: exactly once, whatever happens around them."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition

from handstaged import SCHEMA
from holdfast.epoch import Reach, unwatched
from holdfast.errors import (
    BadValue,
    MarkerLost,
    NotSupported,
    RecordCorrupt,
    SinkBehind,
    SinkFailed,
    SinkForeign,
    SinkUnavailable,
    StagedGone,
    TimelineEnded,
)
from holdfast.sinks.base import CannotTakeBack, Link, SinkContext, StreamIdentity, handle_digest
from holdfast.sinks.kafka.marker import EpochMarker
from holdfast.sinks.kafka.records import RecordColumns
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.sinks.kafka.transactions import TopicTransactions
from holdfast.testing import Crashed
from holdfast.testing.take_back import at_once
from kafkafixture import Broker, broker
from kafkarig import OWNER, key_of, stage_by_hand


class Bench:
    """A topic of its own, and sinks that write to it."""

    def __init__(self, folder: Path) -> None:
        self.broker: Broker = broker()
        self.topic = self.broker.topic(partitions=2)
        self.folder = folder
        self._made: list[KafkaSink] = []

    def sink(self, reach: Reach = unwatched, *, opened: bool = True, owner: Any = OWNER, **options: Any) -> KafkaSink:
        folder = self.folder / owner.pipeline / owner.stream
        sink = KafkaSink(self.broker.address, options.pop("topic", self.topic), path=folder, **options)
        self._made.append(sink)
        if opened:
            nothing: Any = None
            sink.open(SinkContext(owner, SCHEMA, "append", nothing, reach=reach, tell=lambda _: None))
        return sink

    def epoch(self, sink: KafkaSink, number: int, *values: str, timeline: int = 1) -> dict[str, Any]:
        key = key_of(number, timeline=timeline)
        staged = stage_by_hand(sink, key, [each.encode() for each in values or (f"row {number}",)])
        sink.commit(key, staged.handle)
        return staged.handle

    @property
    def values(self) -> list[str]:
        return sorted((value or b"").decode() for _, value in self.broker.rows(self.topic))

    def forget_marker(self) -> None:
        """Delete the offset, as the server does after `offsets.retention.minutes`."""
        self.broker.admin.delete_consumer_groups([f"holdfast.{self.topic}"])[f"holdfast.{self.topic}"].result(30)

    def close(self) -> None:
        for each in self._made:
            each.close()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(RecordColumns, "check", lambda *_: None)  # it needs Spark; tests/spark has it
    found = Bench(tmp_path / "sink")
    yield found
    found.close()


def test_staged_rows_are_invisible_and_committed_rows_are_there_once(bench: Bench) -> None:
    sink = bench.sink()
    key = key_of(1)
    handle = stage_by_hand(sink, key, [b"a", b"b"]).handle
    assert (bench.values, sink.inspect(OWNER, 1).epoch) == ([], 0)
    for _ in range(2):
        sink.commit(key, handle)
    bench.sink().commit(key, handle)  # a restarted driver
    bench.sink(opened=False).commit(key, handle)
    assert (bench.values, sink.inspect(OWNER, 1).epoch) == (["a", "b"], 1)
    bench.epoch(sink, 3)  # an epoch without rows between them leaves no trace
    assert bench.sink(opened=False).inspect(OWNER, 1).epoch == 3
    assert bench.sink(opened=False).inspect(OWNER, 2).epoch == 0


def test_the_decision_before_is_compared(bench: Bench) -> None:
    """Another copy of the repository has written to the topic, or the topic lacks an epoch."""
    sink = bench.sink()
    first = bench.epoch(sink, 1)
    handle = stage_by_hand(sink, key_of(2), [b"x"]).handle
    with pytest.raises(SinkForeign, match="another copy"):
        sink.commit(key_of(2, before=Link(1, "other")), handle)
    with pytest.raises(SinkBehind):
        sink.commit(key_of(3, before=Link(2, None)), handle)
    with pytest.raises(SinkForeign, match="decided it too"):
        sink.commit(key_of(1), {**first, "rows": 7})
    sink.commit(key_of(2, before=Link(1, handle_digest(first))), handle)
    sink.commit(key_of(1, before=Link(0, None)), first)  # a driver that is one epoch behind
    assert bench.values == ["row 1", "x"]


def test_two_drivers_commit_the_same_handle_at_the_same_moment(bench: Bench) -> None:
    """Both succeed, whichever fences the other, and the rows are there once. KAFKA_RACES says how often."""
    first, second = bench.sink(), bench.sink()
    expected = []
    for epoch in range(1, 1 + int(os.environ.get("KAFKA_RACES", "20"))):
        key = key_of(epoch)
        handle = stage_by_hand(first, key, [b"%d.%d" % (epoch, row) for row in range(3)]).handle
        expected += [f"{epoch}.{row}" for row in range(3)]
        assert at_once([partial(sink.commit, key, handle) for sink in (first, second)]) == []
    assert bench.values == sorted(expected)


def test_producers_that_were_fenced_are_released_with_their_threads(bench: Bench) -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(each, Producer) for each in gc.get_objects())

    first, second = bench.sink(), bench.sink()
    before = alive()
    for epoch in range(1, 9):
        key = key_of(epoch)
        handle = stage_by_hand(first, key, [b"%d" % epoch]).handle
        assert at_once([partial(sink.commit, key, handle) for sink in (first, second)]) == []
    assert alive() <= before


def test_a_crash_while_committing_leaves_nothing_visible_and_the_next_driver_repeats_it(bench: Bench) -> None:
    def dies(point: str) -> None:
        if point == "committing":
            raise Crashed(point)

    sink = bench.sink(dies)
    handle = stage_by_hand(sink, key_of(1), [b"a"]).handle
    with pytest.raises(Crashed):
        sink.commit(key_of(1), handle)
    assert bench.values == []
    again = bench.sink()
    assert again.inspect(OWNER, 1).epoch == 0
    again.commit(key_of(1), handle)
    assert bench.values == ["a"]


def test_a_driver_that_died_between_its_marker_and_the_end_of_its_transaction(bench: Bench) -> None:
    """Until that transaction ends, the server does not tell the marker: whoever asks ends it."""
    sink = bench.sink()
    handle = bench.epoch(sink, 1)
    for ask in (
        lambda: bench.sink(opened=False).inspect(OWNER, 1).epoch,
        lambda: bench.sink().inspect(OWNER, 1).epoch,
        lambda: bench.sink(opened=False).commit(key_of(1), handle),
    ):
        dead = sink._transactions(OWNER)
        producer = dead.init(1_000_000)
        producer.begin_transaction()
        offset = TopicPartition(bench.topic, 0, 7, EpochMarker.claim(OWNER).metadata())
        producer.send_offsets_to_transaction([offset], dead._group_metadata(), 30)
        if (found := ask()) is not None:
            assert found == 1
    assert bench.values == ["row 1"]


def test_abort_removes_what_is_staged(bench: Bench) -> None:
    sink = bench.sink()
    handle = stage_by_hand(sink, key_of(1), [b"a"]).handle
    other = stage_by_hand(sink, key_of(1, attempt=2), [b"b"]).handle
    for _ in range(2):
        sink.abort(key_of(1))
    with pytest.raises(StagedGone):
        sink.commit(key_of(1), handle)
    sink.commit(key_of(1, attempt=2), other)
    assert bench.values == ["b"]


def test_a_driver_of_an_older_timeline_is_fenced_in_the_middle_of_its_commit(bench: Bench) -> None:
    """Its rows are sent, and its transaction is open, while a rewind writes its stamp: nothing of them is visible."""
    paused, resumed = threading.Event(), threading.Event()

    def pause(point: str) -> None:
        if point == "committing" and not resumed.is_set():
            paused.set()
            resumed.wait(60)

    zombie = bench.sink(pause)
    first = bench.sink(opened=False)
    handle = stage_by_hand(zombie, key_of(1), [b"zombie"]).handle
    failures: list[BaseException] = []

    def commit() -> None:
        try:
            zombie.commit(key_of(1), handle)
        except TimelineEnded as error:
            failures.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    assert paused.wait(60)
    first.stamp(OWNER, (1, 0), 2)
    resumed.set()
    thread.join()
    assert len(failures) == 1
    assert bench.values == []
    bench.epoch(bench.sink(), 1, "new", timeline=2)
    assert bench.values == ["new"]


def test_a_transaction_that_never_ends_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server can lose the end of one. No driver can end it then, so the sink waits, and nothing is written."""
    monkeypatch.setattr("holdfast.sinks.kafka.repeating._TRIES", 2)
    monkeypatch.setattr("holdfast.sinks.kafka.transactions._MARKER_S", 0.5)
    sink = bench.sink()
    bench.epoch(sink, 1)
    other = TopicTransactions(sink._cluster, "other-id", bench.topic, 300, 5)
    producer = other.init(1_000_000)
    producer.begin_transaction()
    group = sink._cluster.consumer(f"holdfast.{bench.topic}").consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(bench.topic, 0, 7, "{}")], group, 10)
    handle = stage_by_hand(sink, key_of(2), [b"row 2"]).handle
    for act in (
        lambda: sink.commit(key_of(2), handle),
        lambda: sink.inspect(OWNER, 1),
        lambda: bench.sink(opened=False).inspect(OWNER, 1),
        bench.sink,
    ):
        with pytest.raises(SinkUnavailable, match=r"a transaction that has written its marker .* Next: .*find-hanging"):
            act()
    assert bench.values == ["row 1"]
    producer.abort_transaction(10)
    bench.sink().commit(key_of(2), handle)
    assert bench.values == ["row 1", "row 2"]


def test_stamps_never_move_back(bench: Bench) -> None:
    sink = bench.sink()
    bench.epoch(sink, 1)
    bench.epoch(sink, 2)
    other = bench.sink(opened=False)
    found = other.can_take_back(OWNER, (1, 1))
    assert isinstance(found, CannotTakeBack) and f"--leave {sink.name}" in found.do
    with pytest.raises(NotSupported):
        other.take_back(OWNER, (1, 1), 2)
    assert not isinstance(other.can_take_back(OWNER, (1, 2)), CannotTakeBack)
    for _ in range(2):
        other.stamp(OWNER, (1, 1), 2)
    assert other.inspect(OWNER, 2).epoch == 1
    handle = stage_by_hand(sink, key_of(3), [b"late"]).handle
    with pytest.raises(TimelineEnded):
        sink.commit(key_of(3), handle)
    other.take_back(OWNER, (2, 1), 3)
    with pytest.raises(TimelineEnded):
        other.stamp(OWNER, (1, 1), 2)
    bench.epoch(bench.sink(), 2, "again", timeline=3)
    assert bench.values == ["again", "row 1", "row 2"]


def test_stamps_and_commits_at_the_same_moment(bench: Bench) -> None:
    for timeline in range(1, 6):
        sink = bench.sink()
        key = key_of(timeline, timeline=timeline)
        handle = stage_by_hand(sink, key, [b"%d" % timeline]).handle

        stamp = partial(bench.sink(opened=False).stamp, OWNER, (timeline, timeline), timeline + 1)
        other = partial(bench.sink(opened=False).stamp, OWNER, (timeline, timeline), timeline + 1)
        errors = at_once([partial(sink.commit, key, handle), stamp, other])
        assert all(each.startswith(("TimelineEnded", "StagedGone")) for each in errors), errors
    assert len(bench.values) == len(set(bench.values))
    assert bench.sink(opened=False).inspect(OWNER, 6).epoch == 5


def test_another_owner_is_reported_and_not_fenced(bench: Bench) -> None:
    sink = bench.sink()
    bench.epoch(sink, 1)
    other = StreamIdentity(OWNER.pipeline, "0" * 31 + "2", OWNER.stream)
    assert "0" * 31 + "1" in str(bench.sink(owner=other).inspect(other, 1).foreign)
    with pytest.raises(SinkForeign):
        bench.sink(opened=False).stamp(other, (1, 0), 2)
    bench.epoch(sink, 2)  # with the producer that it has kept
    elsewhere = StreamIdentity("other", "0" * 31 + "3", "rows")
    assert bench.sink(opened=False).inspect(elsewhere, 1).foreign is not None
    shared = bench.sink(opened=False, share=True)
    assert shared.inspect(elsewhere, 1).foreign is None
    with pytest.raises(SinkForeign):
        bench.sink(owner=elsewhere, share=True)
    assert bench.values == ["row 1", "row 2"]


def test_several_streams_share_a_topic(bench: Bench) -> None:
    owners = [StreamIdentity("p", f"{number:032}", "rows") for number in (1, 2)]
    others = [StreamIdentity("q", "3", "rows"), StreamIdentity("p", "1", "others")]
    for number, owner in enumerate([owners[0], *others]):
        sink = bench.sink(owner=owner, share=True)
        key = replace(key_of(1), owner=owner)
        sink.commit(key, stage_by_hand(sink, key, [b"%d" % number]).handle)
    assert bench.values == ["0", "1", "2"]
    assert bench.sink(opened=False, share=True).inspect(owners[1], 1).foreign is not None  # a new repository


def test_a_marker_that_has_expired_is_reported_and_written_again_by_a_rewind(bench: Bench) -> None:
    """Without it, the first epoch would be written twice."""
    sink = bench.sink()
    handle = bench.epoch(sink, 1)
    sink.close()
    bench.forget_marker()
    with pytest.raises(MarkerLost, match=r"offsets\.retention\.minutes.*--leave"):
        bench.sink()
    with pytest.raises(MarkerLost):
        bench.sink(opened=False).commit(key_of(1), handle)
    assert bench.values == ["row 1"]
    assert bench.sink(opened=False).inspect(OWNER, 1).epoch == 0
    bench.sink(opened=False).stamp(OWNER, (1, 1), 2)
    bench.epoch(bench.sink(), 2, timeline=2)
    assert bench.values == ["row 1", "row 2"]


def test_a_start_renews_the_marker(bench: Bench) -> None:
    bench.epoch(bench.sink(), 1)
    for _ in range(2):
        assert bench.sink().inspect(OWNER, 1).epoch == 1


def test_a_topic_that_was_created_again_is_refused(bench: Bench) -> None:
    sink = bench.sink()
    handle = bench.epoch(sink, 1)
    bench.broker.delete_topic(bench.topic)
    assert bench.sink(opened=False).is_missing()
    with pytest.raises(SinkFailed, match="does not exist"):
        bench.sink()
    bench.broker.topic(bench.topic, partitions=2)
    with pytest.raises(MarkerLost, match="created again"):
        bench.sink()
    with pytest.raises((MarkerLost, SinkBehind)):
        bench.sink(opened=False).commit(key_of(1), handle)
    assert bench.values == []


def test_an_offset_that_another_program_has_set_is_refused(bench: Bench) -> None:
    bench.sink().close()
    group = f"holdfast.{bench.topic}"
    offset = ConsumerGroupTopicPartitions(group, [TopicPartition(bench.topic, 0, 7)])
    bench.broker.admin.alter_consumer_group_offsets([offset])[group].result(30)
    with pytest.raises(RecordCorrupt, match="another program"):
        bench.sink()


def test_a_transaction_that_took_too_long_is_repeated_and_then_reported(bench: Bench) -> None:
    """The server ends it, as it would fence a producer. Nothing is visible, and a longer timeout helps."""
    slow = threading.Event()

    def wait(point: str) -> None:
        if point == "committing" and not slow.is_set():
            slow.set()
            time.sleep(4)

    sink = bench.sink(wait, transaction_timeout=1)
    handle = stage_by_hand(sink, key_of(1), [b"a"]).handle
    sink.commit(key_of(1), handle)  # the second try is fast
    assert slow.is_set() and bench.values == ["a"]
    always = bench.sink(lambda point: time.sleep(4) if point == "committing" else None, transaction_timeout=1)
    handle = stage_by_hand(always, key_of(2), [b"b"]).handle
    with pytest.raises(SinkFailed, match="transaction_timeout"):
        always.commit(key_of(2), handle)
    bench.sink(opened=False).commit(key_of(2), handle)
    assert bench.values == ["a", "b"]


def test_a_broker_that_is_killed_in_the_middle_of_a_commit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit fails as an outage, or succeeds when the broker is back in time; its repetition changes nothing."""
    monkeypatch.setattr("holdfast.sinks.kafka.sink._WAIT_S", 5.0)

    def kill(point: str) -> None:
        if point == "committing":
            bench.broker.kill()

    sink = bench.sink(kill, transaction_timeout=5)
    handle = stage_by_hand(sink, key_of(1), [b"a", b"b"]).handle
    with pytest.raises(SinkUnavailable, match=bench.broker.address):
        sink.commit(key_of(1), handle)
    with pytest.raises(SinkUnavailable):
        bench.sink()
    bench.broker.start()
    again = bench.sink()
    again.commit(key_of(1), handle)
    assert bench.values == ["a", "b"]


def test_the_broker_killed_at_any_moment_of_many_commits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit ends in time, with success or as an outage, and every row is there once.

    KAFKA_OUTAGES says how often. The broker can lose the end of a committed transaction when it starts again. Then the
    sink says so, and continues after that transaction was aborted with Kafka's own command. If the broker had confirmed
    it, its epoch is sent again here; a pipeline would be refused.
    """
    monkeypatch.setattr("holdfast.sinks.kafka.sink._WAIT_S", 5.0)
    sink, epoch, longest = bench.sink(), 0, 0.0
    handles: dict[int, dict[str, Any]] = {}
    for _ in range(int(os.environ.get("KAFKA_OUTAGES", "2"))):
        killer = threading.Timer(random.uniform(0.05, 0.5), bench.broker.kill)
        killer.start()
        alive, failures = True, 0
        while alive:
            alive = killer.is_alive()  # the last commit is one after the kill
            epoch += 1
            handles[epoch] = handle = stage_by_hand(sink, key_of(epoch), [b"%d" % epoch]).handle
            while True:
                began = time.monotonic()
                try:
                    sink.commit(key_of(epoch), handle)
                    break
                except SinkUnavailable as error:
                    if "has not ended" in str(error):
                        assert bench.broker.end_hanging()
                        for lost in range(sink.inspect(OWNER, 1).epoch + 1, epoch):
                            sink.commit(key_of(lost), handles[lost])
                        continue
                    longest = max(longest, time.monotonic() - began)
                    failures += 1
                    assert failures < 5, "the broker did not come back"
                    killer.join()
                    bench.broker.start()  # by this thread: the broker ends with the thread that has started it
    assert longest < 40  # a commit has several calls, and each of them has a timeout of its own
    assert bench.values == sorted(str(each) for each in range(1, epoch + 1))


def test_headers_timestamps_partitions_and_topics_of_rows(bench: Bench) -> None:
    kept, other = (bench.broker.topic(partitions=3, retention_ms="-1") for _ in range(2))
    sink = bench.sink(topic=kept)
    columns = {
        "topic": [None, other, other],
        "partition": [1, 2, None],
        "timestamp": [1_700_000_000_000, None, 1_700_000_000_001],
        "key": [b"k", None, b""],
        "headers": [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], [], None],
    }
    handle = stage_by_hand(sink, key_of(1), [b"x", b"y", b"z"], **columns).handle
    sink.commit(key_of(1), handle)
    time.sleep(3)  # the broker applies retention each second
    (first,) = bench.broker.messages(kept)
    assert (first.key(), first.value(), first.partition()) == (b"k", b"x", 1)
    assert first.timestamp()[1] == 1_700_000_000_000
    assert first.headers() == [("a", b"1"), ("a", None)]
    found = {each.value(): each for each in bench.broker.messages(other)}
    assert (found[b"y"].partition(), found[b"y"].key(), found[b"y"].headers()) == (2, None, None)
    assert abs(found[b"y"].timestamp()[1] - time.time() * 1000) < 60_000
    assert (found[b"z"].key(), found[b"z"].timestamp()[1]) == (b"", 1_700_000_000_001)


def test_a_null_value_is_a_tombstone(bench: Bench) -> None:
    sink = bench.sink()
    handle = stage_by_hand(sink, key_of(1), [b"x", None], key=[b"a", b"b"]).handle
    sink.commit(key_of(1), handle)
    assert sorted(bench.broker.rows(bench.topic), key=str) == [(b"a", b"x"), (b"b", None)]


def test_many_rows_and_large_ones(bench: Bench) -> None:
    sink = bench.sink()
    values = [b"%06d" % n for n in range(50_000)]
    key = key_of(1)
    sink.commit(key, stage_by_hand(sink, key, values).handle)
    large = [b"x" * 900_000 for _ in range(400)]
    key = key_of(2)
    sink.commit(key, stage_by_hand(sink, key, large).handle)
    found = [value or b"" for _, value in bench.broker.rows(bench.topic)]
    assert sorted(each for each in found if len(each) == 6) == values
    assert len([each for each in found if len(each) == 900_000]) == 400


def test_what_is_wrong_is_refused_before_the_first_epoch(bench: Bench) -> None:
    with pytest.raises(SinkFailed, match=r"does not exist.* Next: create it, for example: kafka-topics") as absent:
        bench.sink(topic="absent")
    assert type(absent.value) is SinkFailed, "it is no outage: the pipeline does not wait for it"
    with pytest.raises(BadValue, match=r"no\.such\.option"):
        bench.sink(options={"no.such.option": 1})
    compacted = bench.broker.topic(cleanup_policy="compact")
    with pytest.raises(SinkFailed, match="compacted"):
        bench.sink(topic=compacted)
    bench.sink(topic=compacted, key="text")
    with pytest.raises(SinkFailed, match=r"transaction\.max\.timeout\.ms"):
        bench.sink(transaction_timeout=10_000)


def test_a_server_that_cannot_be_reached_or_refuses_the_password(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("holdfast.sinks.kafka.cluster._METADATA_S", 2.0)
    nothing: Any = None
    context = SinkContext(OWNER, SCHEMA, "append", nothing, tell=lambda _: None)
    secret = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "etl"}
    for servers in ("127.0.0.1:1", bench.broker.address):
        sink = KafkaSink(servers, "rows", path=tmp_path, options={**secret, "sasl.password": "hunter2"})
        with pytest.raises(SinkFailed) as raised:
            sink.open(context)
        assert "hunter2" not in str(raised.value) + repr(sink) + str(sink.describe())
        assert servers in str(raised.value)
        assert "Next: " in str(raised.value)
        if servers != bench.broker.address:
            assert type(raised.value) is SinkUnavailable


def test_the_producer_is_kept_between_epochs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    whole = TopicTransactions.init

    def init(self: TopicTransactions, size: int) -> Any:
        made.append(found := whole(self, size))
        return found

    monkeypatch.setattr(TopicTransactions, "init", init)
    sink = bench.sink()
    for epoch in (1, 2, 3):
        bench.epoch(sink, epoch)
    assert len({id(each) for each in made}) == 1


def test_no_batch_is_larger_than_its_topic_accepts(bench: Bench) -> None:
    """Neither with an option that allows larger ones, nor in a program that has not opened the sink."""
    small = bench.broker.topic(max_message_bytes="20000")
    sink = bench.sink(topic=small, options={"message.max.bytes": 1_000_000})
    values = [b"%d" % number * 50 for number in range(1000)]
    sink.commit(key_of(1), stage_by_hand(sink, key_of(1), values).handle)
    late = bench.sink(topic=small, opened=False)
    late.commit(key_of(2), stage_by_hand(sink, key_of(2), values).handle)
    assert len(bench.broker.rows(small)) == 2000


def test_no_batch_is_larger_than_the_topics_that_rows_name_accept(bench: Bench) -> None:
    """Also before and after an epoch with larger records, and in a program that has not prepared the epoch."""
    small = bench.broker.topic(max_message_bytes="20000")
    sink = bench.sink()
    values = [b"%d" % number * 50 for number in range(1000)]
    sink.commit(key_of(1), stage_by_hand(sink, key_of(1), values).handle)
    for epoch, used in ((2, bench.sink(opened=False)), (3, sink)):
        staged = stage_by_hand(sink, key_of(epoch), values, topic=[small, None] * 500)
        used.commit(key_of(epoch), staged.handle)
    for epoch, value in ((4, b"x" * 50_000), (5, b"x" * 500_000)):
        sink.commit(key_of(epoch), stage_by_hand(sink, key_of(epoch), [value]).handle)
    assert (len(bench.broker.rows(small)), len(bench.broker.rows(bench.topic))) == (1000, 2002)


def test_rows_that_the_server_refuses_after_all_fail_the_commit_and_are_aborted(bench: Bench) -> None:
    """The limit of a topic was lowered after the epoch was staged."""
    small = bench.broker.topic(max_message_bytes="1000")
    sink = bench.sink(topic=small, options={"message.max.bytes": 100_000})
    handle = stage_by_hand(sink, key_of(1), [b"x" * 50_000]).handle
    with pytest.raises(SinkFailed, match=r"(?i)too large"):
        sink.commit(key_of(1), handle)
    assert bench.broker.rows(small) == []
