"""Which offsets belong to which Kafka source, and what a failure of one means for its stream."""

from __future__ import annotations

from holdfast.errors import SourceFailed, SourceGap, SourceUnavailable
from holdfast.spark.failures import Kind, Remedy, diagnose
from holdfast.spark.kafka_sources import KafkaInputs, KafkaSource

A, B = {"subscribe": "a"}, {"subscribe": "b"}
AT_A, AT_B, FILES = '{"a":{"0":1}}', '{"b":{"0":2}}', '{"logOffset":3}'


def test_offsets_belong_to_sources_by_their_order() -> None:
    inputs = KafkaInputs((None, A, B))
    assert [each.number for each in inputs.sources] == [1, 2]
    one, two = inputs.sources
    ends = [FILES, AT_A, AT_B]
    assert inputs.ends_of(one, ends) == [{"a": {0: 1}}]
    assert inputs.ends_of(two, ends) == [{"b": {0: 2}}]
    assert inputs.ends_of(one, [FILES, None, AT_B]) == []
    assert inputs.ends_of(one, []) == []


def test_a_source_that_a_plan_contains_twice_is_one_source() -> None:
    """Spark has one offset for it, or two if it was built twice: both belong to it."""
    inputs = KafkaInputs((A, B, B))
    one, two = inputs.sources
    assert inputs.ends_of(two, [AT_A, AT_B]) == [{"b": {0: 2}}]
    assert inputs.ends_of(one, [AT_A, AT_B]) == [{"a": {0: 1}}]
    assert inputs.ends_of(two, [AT_A, AT_B, '{"b":{"0":9}}']) == [{"b": {0: 2}}, {"b": {0: 9}}]
    by_pattern = KafkaInputs(({"subscribepattern": ".*"}, A, A))
    pattern, named = by_pattern.sources
    assert by_pattern.ends_of(named, [AT_B, AT_A]) == [{"a": {0: 1}}]
    assert by_pattern.ends_of(pattern, [AT_B, AT_A]) == [{"b": {0: 2}}]


def test_the_options_of_a_source_are_those_of_spark() -> None:
    assert KafkaSource(0, {}).fails_on_loss
    assert not KafkaSource(0, {"failondataloss": " False "}).fails_on_loss
    assert not KafkaSource(0, {}).reads_committed
    assert KafkaSource(0, {"kafka.isolation.level": "read_committed"}).reads_committed


def test_an_unreachable_server_is_an_outage_and_a_gap_is_not_retried() -> None:
    away = SourceUnavailable(stream="s", source=0, why="Kafka does not answer")
    assert (diagnose(away, None).kind, diagnose(away, None).remedy) == (Kind.SOURCE, Remedy.WAIT)
    wrong = SourceFailed(stream="s", source=0, why="Kafka refuses")
    assert (diagnose(wrong, None).kind, diagnose(wrong, None).remedy) == (Kind.SOURCE, Remedy.RESTART)
    lost = SourceGap(stream="s", epoch=2, source=0, what="topic 't': gone")
    assert (diagnose(lost, None).kind, diagnose(lost, None).remedy) == (Kind.REFUSED, Remedy.NONE)
