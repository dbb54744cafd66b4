"""Kafka as a source, with a real broker: what no longer fits the last epoch is refused or recorded, never skipped."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast import FileSink, Pipeline, StreamCallbacks, StreamStatus, apply_rewind, fork, plan_rewind, read_kafka
from holdfast.errors import RewindRefused, SourceFailed, SourceGap, SourceUnavailable, StreamFailed
from holdfast.policy import RestartPolicy
from holdfast.repository import GapRecord, Gaps, Lineage
from holdfast.repository.topics import StreamTopics, TopicsRecord
from holdfast.rewind import Readable
from holdfast.spark import adapter
from holdfast.testing import CrashAt, Crashed
from kafkafixture import Broker, broker, require_jars

NAME = "orders"


class Story:
    """One pipeline that reads Kafka into files, and is run again and again."""

    def __init__(self, spark: SparkSession, folder: Path, topics: Any = None, **how: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.topics = topics
        self.how = how
        self.server = broker()
        self.plain: Mapping[str, str] | None = None  # options of a reader that is Spark's own
        self.group: str | None = None
        self.restart = RestartPolicy.never()
        self.outage: Any = 0

    def build(self, spark: SparkSession) -> DataFrame:
        options = {"startingOffsets": "earliest", **self.how.get("options", {})}
        if self.plain is not None:
            reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.server.address)
            return reader.options(**options, **self.plain).load().selectExpr("cast(value as string) value")
        chosen = {name: value for name, value in self.how.items() if name in ("pattern", "partitions")}
        servers = self.how.get("servers", self.server.address)
        df = read_kafka(spark, self.topics, servers=servers, options=options, **chosen)
        return df.selectExpr("cast(value as string) value")

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME, root=self.folder / "root", restart=self.restart, outage=self.outage)
        pipeline.stream(self.build, name=NAME, sinks=[FileSink(self.folder / "out")], commit_group=self.group)
        return pipeline

    def run(self, **options: Any) -> list[str]:
        """Process what there is, and return all rows so far."""
        self.pipeline().run(self.spark, available_now=True, **{"checkpoint_every": None, **options})
        return self.rows()

    def rows(self) -> list[str]:
        if not list((self.folder / "out").rglob("part-*")):
            return []
        return sorted(ds.dataset(self.folder / "out", format="parquet").to_table()["value"].to_pylist())

    def refused(self, text: str, **options: Any) -> SourceGap:
        """Run, expect that the start is refused, and that it has changed nothing."""
        before = self.files(), self.rows()
        with pytest.raises(SourceGap, match=text) as caught:
            self.run(**options)
        assert (self.files(), self.rows()) == before
        assert not self.gaps()
        return caught.value

    def files(self) -> list[str]:
        root = self.folder / "root" / NAME / "timelines"
        return sorted(str(each.relative_to(root)) for each in root.rglob("*") if "/spark/" in str(each))

    def gaps(self) -> list[GapRecord]:
        lineage = Lineage.load(self.pipeline().repository)
        return Gaps(self.pipeline().repository).all(NAME, lineage.timeline_of(NAME))

    def lost(self) -> list[dict[str, Any]]:
        """Return what the only gap has recorded."""
        (gap,) = self.gaps()
        assert gap.kind == "source"
        return list(gap.facts["lost"])

    def noted(self, epoch: int = 1 << 40) -> TopicsRecord:
        repository = self.pipeline().repository
        found = StreamTopics(repository, NAME).at(Lineage.load(repository), epoch)
        assert found is not None
        return found

    def recreate(self, topic: str, partitions: int = 1) -> None:
        self.server.delete_topic(topic)
        self.server.topic(topic, partitions)


def values(*numbers: int) -> list[str]:
    return sorted(f"{each:04}" for each in numbers)


@pytest.fixture
def story(spark: SparkSession, tmp_path: Path) -> Story:
    """Ten records of one topic have been read: the stream is at offset 10."""
    made = Story(spark, tmp_path)
    made.topics = made.server.topic()
    made.server.produce(made.topics, values(*range(10)), partition=0)
    assert made.run() == values(*range(10))
    return made


def test_01_a_first_start_records_the_topics(story: Story) -> None:
    record = story.noted()
    assert record.epoch == 1
    note = record.sources["0"][story.topics]
    assert (len(note.id), note.partitions) == (22, 1)


def test_02_a_start_without_a_change_continues_and_records_nothing(story: Story) -> None:
    story.server.produce(story.topics, values(10, 11))
    assert story.run() == values(*range(12))
    assert story.noted().epoch == 1
    assert not story.gaps()
    assert len(list((story.folder / "root" / NAME / "topics").rglob("*.json"))) == 1


def test_03_records_lost_to_retention_are_refused(story: Story) -> None:
    story.server.produce(story.topics, values(*range(10, 20)))
    story.server.delete_records(story.topics, {0: 15})
    error = story.refused("the records from offset 10 to 14 no longer exist")
    assert (error.epoch, error.source) == (2, 0)
    assert "--accept gaps" in str(error)


def test_04_accepted_losses_are_in_the_gap_ledger(story: Story) -> None:
    story.server.produce(story.topics, values(*range(10, 20)))
    story.server.delete_records(story.topics, {0: 15})
    assert story.run(accept="gaps") == values(*range(10), *range(15, 20))
    (lost,) = story.lost()
    assert lost == {"kind": "expired", "topic": story.topics, "partition": 0, "position": 10, "first": 15}
    story.server.produce(story.topics, values(20))
    assert len(story.run()) == 16  # nothing has to be accepted again
    assert len(story.gaps()) == 1


def test_05_deleted_records_that_were_read_are_no_loss(story: Story) -> None:
    story.server.produce(story.topics, values(10))
    story.server.delete_records(story.topics, {0: 10})
    assert story.run() == values(*range(11))
    assert not story.gaps()


@pytest.mark.parametrize("count", [4, 10, 25], ids=["06 shorter", "07 as long", "08 longer"])
def test_a_recreated_topic_is_refused(story: Story, count: int) -> None:
    story.recreate(story.topics)
    story.server.produce(story.topics, values(*range(100, 100 + count)))
    story.refused("it was deleted and created again")


def test_09_a_recreated_longer_topic_is_recorded_if_accepted(story: Story) -> None:
    """The stream continues at its old offset: the ledger says that the records before it were not read."""
    old = story.noted().sources["0"][story.topics].id
    story.recreate(story.topics)
    story.server.produce(story.topics, values(*range(100, 125)))
    assert story.run(accept="gaps") == values(*range(10), *range(110, 125))
    (lost,) = story.lost()
    new = story.noted().sources["0"][story.topics].id
    assert (lost["kind"], lost["ids"]) == ("recreated", [old, new])
    assert story.gaps()[0].facts["ended"] == [{story.topics: {"0": 10}}]
    story.server.produce(story.topics, values(200))
    assert len(story.run()) == 26


def test_10_a_recreated_shorter_topic_is_recorded_if_accepted(story: Story) -> None:
    story.recreate(story.topics)
    story.server.produce(story.topics, values(*range(100, 104)))
    assert story.run(accept="gaps") == values(*range(10))
    story.server.produce(story.topics, values(104, 105))
    assert story.run() == values(*range(10), 104, 105)
    assert [each["kind"] for each in story.lost()] == ["recreated"]


def test_11_a_removed_partition_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    made = Story(spark, tmp_path)
    made.topics = made.server.topic(partitions=3)
    for partition in range(3):
        made.server.produce(made.topics, values(partition), partition=partition)
    assert made.run() == values(0, 1, 2)
    made.recreate(made.topics, partitions=2)
    made.refused("deleted and created again")


def test_12_an_added_partition_is_read_from_its_beginning(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    add_partition(story)
    story.server.produce(story.topics, values(10, 11), partition=1)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert story.run() == values(*range(12))
    assert "has 2 partitions now, not 1" in caplog.text
    assert story.noted().sources["0"][story.topics].partitions == 2
    assert not story.gaps()


def test_13_an_added_partition_that_has_lost_its_first_records_is_refused(story: Story) -> None:
    add_partition(story)
    story.server.produce(story.topics, values(10, 11, 12), partition=1)
    delete_soon(story, {1: 2})
    story.refused("partition 1: it is new, and its records before offset 2 no longer exist")
    assert story.run(accept="gaps") == values(*range(10), 12)
    assert [each["kind"] for each in story.lost()] == ["late"]


def test_14_a_deleted_topic_is_refused(story: Story) -> None:
    story.server.delete_topic(story.topics)
    for accept in ((), "gaps"):
        error = story.refused("does not exist", accept=accept)
        assert "create the topic" in str(error)


def test_15_a_topic_that_never_existed_is_refused_before_the_first_epoch(spark: SparkSession, tmp_path: Path) -> None:
    made = Story(spark, tmp_path, "no-such-topic")
    with pytest.raises(SourceFailed, match="'no-such-topic' does not exist"):
        made.run()
    topic = made.server.topic(partitions=2)
    made.topics, made.how = None, {"partitions": {topic: [1, 2]}}
    with pytest.raises(SourceFailed, match=f"partition 2 of topic '{topic}' does not exist"):
        made.run()
    assert made.rows() == []


def test_16_a_dead_broker_is_reported_by_its_address(story: Story) -> None:
    story.how["options"] = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}
    story.server.kill()
    try:
        with pytest.raises(SourceUnavailable, match="does not answer") as caught:
            story.run()
        assert story.server.address in str(caught.value)
    finally:
        story.server.start()
    assert story.run() == values(*range(10))


def test_17_of_several_topics_the_one_that_does_not_fit_is_named(spark: SparkSession, tmp_path: Path) -> None:
    server = broker()
    topics = [server.topic() for _ in range(3)]
    made = Story(spark, tmp_path, topics)
    for number, topic in enumerate(topics):
        server.produce(topic, values(number))
    assert made.run() == values(0, 1, 2)
    made.recreate(topics[1])
    made.refused(f"topic '{topics[1]}': it was deleted and created again")


def test_18_topics_by_pattern_may_appear_but_not_disappear(spark: SparkSession, tmp_path: Path) -> None:
    server = broker()
    one, two = server.topic(f"by-{tmp_path.name}-1"), f"by-{tmp_path.name}-2"
    server.produce(one, values(1))
    made = Story(spark, tmp_path, pattern=f"by-{tmp_path.name}-.*")
    assert made.run() == values(1)
    server.topic(two)
    server.produce(two, values(2))
    assert made.run() == values(1, 2)
    assert set(made.noted().sources["0"]) == {one, two}
    server.delete_topic(one)
    made.refused(f"topic '{one}': it no longer exists, or the pattern")
    server.produce(two, values(3))
    assert made.run(accept="gaps") == values(1, 2, 3)
    assert [each["kind"] for each in made.lost()] == ["topic gone"]


def test_19_of_assigned_partitions_only_those_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    server = broker()
    topic = server.topic(partitions=3)
    made = Story(spark, tmp_path, partitions={topic: [0, 2]})
    for partition in range(3):
        server.produce(topic, values(*range(partition * 10, partition * 10 + 5)), partition=partition)
    assert made.run(checkpoint_every="1h") == values(*range(5), *range(20, 25))
    server.produce(topic, values(*range(15, 20)), partition=1)
    server.produce(topic, values(5), partition=0)
    server.delete_records(topic, {1: 8})
    assert len(made.run()) == 11
    assert [each.readable for each in plan_rewind(made.pipeline(), 1).streams[0].sources] == [Readable.YES]
    server.produce(topic, values(*range(25, 30)), partition=2)
    server.delete_records(topic, {2: 7})
    made.refused("partition 2: the records from offset 5 to 6 no longer exist")


def test_20_a_topic_that_the_program_no_longer_reads_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    server = broker()
    one, two = server.topic(), server.topic()
    server.produce(one, values(1))
    server.produce(two, values(2))
    made = Story(spark, tmp_path, [one, two])
    assert made.run() == values(1, 2)
    made.topics = [one]
    made.refused(f"topic '{two}' partition 0: the program no longer reads it")


def test_21_a_failed_start_does_not_hide_a_loss(story: Story) -> None:
    """Spark has written the offsets of the next batch already: the last decision counts, not they."""
    story.server.produce(story.topics, values(*range(10, 20)))
    with pytest.raises((Crashed, StreamFailed)):
        story.run(reach=CrashAt("prepared"))
    story.server.delete_records(story.topics, {0: 20})
    story.refused("the records from offset 10 to 19 no longer exist")


def test_22_losses_while_a_stream_runs_are_not_silent(story: Story) -> None:
    """With failOnDataLoss=false, Spark skips lost records without an error; the epoch is not decided."""
    story.plain = {"subscribe": story.topics, "failOnDataLoss": "false"}
    story.server.produce(story.topics, values(*range(10, 20)))

    def lose(point: str) -> None:
        if point == "opened":
            story.server.delete_records(story.topics, {0: 15})

    with pytest.raises(StreamFailed) as caught:
        story.run(reach=lose)
    assert isinstance(caught.value.__cause__, SourceGap)
    assert story.rows() == values(*range(10))
    assert story.run(accept="gaps") == values(*range(10), *range(15, 20))
    assert [each["first"] for each in story.lost()] == [15]


def test_23_an_accepted_gap_needs_spark_to_go_on(story: Story) -> None:
    story.plain = {"subscribe": story.topics}
    story.server.produce(story.topics, values(*range(10, 20)))
    story.server.delete_records(story.topics, {0: 15})
    assert "failOnDataLoss of the source to false" in str(story.refused("offset 10 to 14", accept="gaps"))


# --- rewinds ---


def test_24_a_rewind_behind_the_retention_is_refused(story: Story) -> None:
    for first in (10, 20, 30):
        story.run(checkpoint_every="1h")
        story.server.produce(story.topics, values(*range(first, first + 10)))
    story.run(checkpoint_every="1h")
    assert plan_rewind(story.pipeline(), 1).problems == ()
    story.server.delete_records(story.topics, {0: 15})
    plan = plan_rewind(story.pipeline(), 1)
    (problem,) = plan.problems
    assert "source 0 of stream 'orders' can no longer be read" in problem
    assert "the records from offset 10 to 14 no longer exist" in problem
    with pytest.raises(RewindRefused):
        apply_rewind(story.pipeline(), plan)
    later = plan_rewind(story.pipeline(), 2)
    assert [each.readable for each in later.streams[0].sources] == [Readable.YES]
    apply_rewind(story.pipeline(), later)
    assert story.rows() == values(*range(20))
    assert story.run() == values(*range(40))


def test_25_a_rewind_to_another_topic_of_the_same_name_is_refused(story: Story) -> None:
    story.run(checkpoint_every="1h")
    story.recreate(story.topics)
    story.server.produce(story.topics, values(*range(100, 120)))
    story.run(accept="gaps")
    (problem,) = plan_rewind(story.pipeline(), 1).problems
    assert "it was deleted and created again" in problem


def test_26_a_start_after_a_rewind_compares_with_its_base(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka could not be asked when the rewind was planned, and the records have expired since."""
    monkeypatch.setattr("holdfast.rewind.topics._ANSWER_S", 2.0)
    story.run(checkpoint_every="1h")
    story.server.produce(story.topics, values(*range(10, 20)))
    story.run()
    story.server.kill()
    try:
        plan = plan_rewind(story.pipeline(), 1)
        assert [each.readable for each in plan.streams[0].sources] == [Readable.UNKNOWN]
        apply_rewind(story.pipeline(), plan, accept_input=True)
    finally:
        story.server.start()
    story.server.delete_records(story.topics, {0: 12})
    story.refused("the records from offset 10 to 11 no longer exist")


# --- options ---


def test_27_denied_topics_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    require_jars()
    server = Broker(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        allow_everyone_if_no_acl_found="true",
    )
    try:
        topic = server.topic()
        deny = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            AclOperation.DESCRIBE,
            AclPermissionType.DENY,
        )
        made = Story(spark, tmp_path, topic, servers=server.address)
        made.server = server
        made.server.produce(topic, values(1))
        assert made.run() == values(1)
        for each in server.admin.create_acls([deny]).values():
            each.result(30)
        with pytest.raises(SourceFailed, match="Authorization") as caught:
            made.run()
        assert "permission to describe and read" in str(caught.value)
    finally:
        server.kill()


def test_28_secrets_reach_no_error_log_or_file(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, secret = broker(), "s3cr3t-of-the-test"
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{secret}";'
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": jaas,
        "kafka.default.api.timeout.ms": "4000",
        "kafka.request.timeout.ms": "2000",
    }
    made = Story(spark, tmp_path, server.topic(), options=options)
    with caplog.at_level(logging.DEBUG, "holdfast"), pytest.raises(SourceFailed) as caught:
        made.run()
    assert secret not in repr(caught.value) + caplog.text + str(caught.value.__cause__)
    assert not [each for each in tmp_path.rglob("*") if each.is_file() and secret.encode() in each.read_bytes()]


def test_29_rows_of_aborted_transactions_are_left_out(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import Producer

    server = broker()
    topic = server.topic()
    producer = Producer({"bootstrap.servers": server.address, "transactional.id": topic})
    producer.init_transactions(30)
    for number, commit in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        producer.produce(topic, values(number)[0])
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    made = Story(spark, tmp_path / "ours", topic)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert made.run() == values(1, 3)
    assert "kafka.isolation.level" not in caplog.text
    other = Story(spark, tmp_path / "plain")
    other.plain = {"subscribe": topic}
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert other.run() == values(1, 2, 3)
    assert "set its option kafka.isolation.level to read_committed" in caplog.text


def test_30_offsets_are_committed_to_a_consumer_group(story: Story) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    story.group = f"lag-of-{story.topics}"
    story.server.produce(story.topics, values(10, 11, 12))
    story.run()
    asked = ConsumerGroupTopicPartitions(story.group, [TopicPartition(story.topics, 0)])
    (answer,) = story.server.admin.list_consumer_group_offsets([asked]).values()
    (place,) = answer.result(30).topic_partitions
    assert place.offset == 13


def test_31_two_sources_are_compared_by_their_order(spark: SparkSession, tmp_path: Path) -> None:
    server = broker()
    one, two = server.topic(), server.topic()
    server.produce(one, values(1))
    server.produce(two, values(2))
    made = Story(spark, tmp_path)

    def both(spark: SparkSession) -> DataFrame:
        read = [
            read_kafka(spark, each, servers=server.address, options={"startingOffsets": "earliest"})
            for each in (one, two)
        ]
        return read[0].union(read[1]).union(read[1]).selectExpr("cast(value as string) value")

    made.build = both  # type: ignore[method-assign]
    assert made.run() == values(1, 2, 2)
    made.recreate(two)
    error = made.refused(f"topic '{two}': it was deleted")
    assert error.source == 1


def test_32_a_topic_that_appears_while_the_stream_runs_is_recorded(spark: SparkSession, tmp_path: Path) -> None:
    server = broker()
    one, two = server.topic(f"run-{tmp_path.name}-1"), f"run-{tmp_path.name}-2"
    server.produce(one, values(1))
    options = {"kafka.metadata.max.age.ms": "500"}
    made = Story(spark, tmp_path, pattern=f"run-{tmp_path.name}-.*", options=options)
    handle = made.pipeline().start(spark, checkpoint_every=None)
    try:
        server._until(lambda: made.rows() == values(1), "the first row is there")
        server.topic(two)
        server.produce(two, values(2))
        server._until(lambda: made.rows() == values(1, 2), "the second row is there")
    finally:
        handle.stop()
    assert json.dumps(sorted(made.noted().sources["0"])) == json.dumps([one, two])
    made.recreate(two)
    server.produce(two, values(*range(10, 20)))
    made.refused(f"topic '{two}': it was deleted and created again")


def test_33_a_fork_continues_in_the_same_topics(story: Story) -> None:
    story.run(checkpoint_every="1h")
    story.recreate(story.topics)
    story.server.produce(story.topics, values(*range(100, 120)))
    fork(story.pipeline().repository, 1, name="forked", root=story.folder / "forks")
    forked = Pipeline("forked", root=story.folder / "forks", restart=RestartPolicy.never())
    forked.stream(story.build, name=NAME, sinks=[FileSink(story.folder / "out-of-fork")])
    with pytest.raises(SourceGap, match="it was deleted and created again"):
        forked.run(story.spark, available_now=True)


def test_34_the_code_of_the_page_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = broker()
    server.topic("orders")
    server.produce("orders", ["a", "b"], key="k")
    page = (Path(__file__).parents[2] / "docs" / "kafka-source.md").read_text()
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(code.replace("localhost:9092", server.address), {})  # noqa: S102 - the page is ours
    found = ds.dataset(tmp_path / "out/orders", format="parquet").to_table()
    assert sorted(zip(found["id"].to_pylist(), found["body"].to_pylist(), strict=True)) == [("k", "a"), ("k", "b")]


def test_35_records_that_expire_while_the_stream_runs_are_reported_by_the_restart(story: Story) -> None:
    """With failOnDataLoss=true, Spark fails with an error of its own; the restart says what is lost."""
    story.server.produce(story.topics, values(*range(10, 20)))
    story.restart = RestartPolicy.bounded(3, within=600)

    def lose(point: str) -> None:
        if point == "opened":
            story.server.delete_records(story.topics, {0: 15})

    with pytest.raises(StreamFailed, match="the records from offset 10 to 14 no longer exist") as caught:
        story.run(reach=lose)
    assert isinstance(caught.value.__cause__, SourceGap)
    assert story.rows() == values(*range(10))


def test_36_a_stream_waits_for_a_broker_and_shows_its_lag(spark: SparkSession, tmp_path: Path) -> None:
    server = broker()
    topic = server.topic()
    quick = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}
    made = Story(spark, tmp_path, topic, options={**quick, "maxOffsetsPerTrigger": "5"})
    made.outage = "5m"
    server.produce(topic, values(*range(20)), timestamp=int((time.time() - 100) * 1000))
    behind: list[int | None] = []
    goes_on = threading.Event()

    def now() -> StreamStatus:
        return handle.status().streams[NAME]

    def epoch_ended(*_: object) -> None:
        behind.append(now().behind)
        assert len(behind) < 2 or goes_on.wait(60)  # with ten records that are read, and ten that are not

    callbacks = StreamCallbacks(on_epoch=epoch_ended)
    handle = made.pipeline().start(spark, checkpoint_every=None, callbacks=callbacks)
    try:
        server._until(lambda: now().behind_s is not None, "the lag in seconds is known")
        assert 100 <= (now().behind_s or 0) < 200
        goes_on.set()
        server._until(lambda: made.rows() == values(*range(20)), "all rows are there")
        assert {5, 10} & set(behind)
        server._until(lambda: (now().behind, now().behind_s) == (0, 0.0), "no record is left")
        server.kill()
        server._until(lambda: now().state == "waiting", "the stream waits")
        assert now().behind_s is None
        server.start()
        server.produce(topic, values(20))
        server._until(lambda: made.rows() == values(*range(21)), "the stream continues")
    finally:
        goes_on.set()
        server.start()
        handle.stop()


def test_37_the_first_unread_record_of_each_partition_is_found(spark: SparkSession) -> None:
    """Markers of transactions, and records that the isolation level leaves out, are not unread records."""
    server = broker()
    topic = server.topic(partitions=3)
    at = int(time.time() * 1000) - 60_000
    for number, time_ms in ((0, at), (0, at + 1), (1, at + 2)):
        server.produce(topic, ["x"], partition=number, timestamp=time_ms)
    aborted(server, topic, partition=1, timestamp=at + 3)
    options = {"kafka.bootstrap.servers": server.address}
    committed = adapter.KafkaUnread(spark, {**options, "kafka.isolation.level": "read_committed"}, stream="s", source=0)
    all_rows = adapter.KafkaUnread(spark, options, stream="s", source=0)
    try:
        for _ in range(2):  # a reader is used again and again
            assert sorted(committed.timestamps({topic: {0: 0, 1: 0, 2: 0}}, 30) or ()) == [at, at + 2]
            assert committed.timestamps({topic: {0: 1, 1: 1, 2: 0}}, 30) == [at + 1]
            assert committed.timestamps({topic: {0: 2, 1: 1, 2: 0}}, 30) == []
            assert all_rows.timestamps({topic: {0: 2, 1: 1, 2: 0}}, 30) == [at + 3]
            assert all_rows.timestamps({topic: {0: 2, 1: 2, 2: 0}}, 30) == []
    finally:
        committed.close()
        all_rows.close()


def aborted(server: Broker, topic: str, **options: Any) -> None:
    """Write a record in a transaction, and abort it."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server.address, "transactional.id": f"aborted-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "aborted", **options)
    producer.flush(30)
    producer.abort_transaction(30)


def add_partition(story: Story) -> None:
    from confluent_kafka.cimpl import NewPartitions

    for each in story.server.admin.create_partitions([NewPartitions(story.topics, 2)]).values():
        each.result(30)


def delete_soon(story: Story, before: Mapping[int, int]) -> None:
    """Delete records of a partition whose leader the client may not know yet."""
    from confluent_kafka import KafkaException

    def done() -> bool:
        try:
            story.server.delete_records(story.topics, before)
        except KafkaException:
            return False
        return True

    story.server._until(done, "the records are deleted")
