"""The lag of Kafka sources in seconds: asked rarely, never by an epoch, and not guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast._topics import Positions
from holdfast.errors import SourceUnavailable
from holdfast.spark.gate import EpochGate
from holdfast.spark.kafka_sources import KafkaInputs
from holdfast.spark.topic_lag import TopicLag, seconds_since

A, B = {"subscribe": "a"}, {"subscribe": "b"}
AT_A, AT_B, FILES = '{"a":{"0":1}}', '{"b":{"0":2}}', '{"logOffset":3}'
NOW_MS = 1_000_000


class Kafka:
    """Answers by topic, and counts the questions. Each question takes some seconds of a clock that only it moves."""

    def __init__(self, *inputs: Mapping[str, str] | None) -> None:
        self.inputs = KafkaInputs(inputs)
        self.answers: dict[str, Any] = {"a": [], "b": []}
        self.takes_s = 0.0
        self.clock_s = 0.0
        self.asked: list[str] = []
        self.limits: list[float] = []
        self.open = 0
        self.gate = EpochGate()
        clocks: Any = {"clock": lambda: self.clock_s, "wall_clock": lambda: NOW_MS / 1000}
        self.lag = TopicLag("orders", self.gate, lambda: self.inputs, self.opened, **clocks)

    def opened(self, options: Mapping[str, str], *, source: int) -> Kafka:
        self.open += 1
        return self

    def timestamps(self, positions: Positions, within_s: float) -> list[int] | None:
        (topic,) = positions
        self.asked.append(topic)
        self.limits.append(within_s)
        self.clock_s += self.takes_s
        found = self.answers[topic]
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self.open -= 1


@pytest.mark.parametrize(
    ("times_ms", "seconds"),
    [
        ([], 0.0),  # nothing is unread
        ([NOW_MS - 12_345], 12.345),
        ([NOW_MS - 10, NOW_MS - 2000, NOW_MS], 2.0),
        ([NOW_MS + 5000], 0.0),  # the clock of a producer is ahead
        ([NOW_MS - 10, -1], None),  # a record without a timestamp may be older
    ],
)
def test_the_lag_is_the_age_of_the_oldest_first_record(times_ms: list[int], seconds: float | None) -> None:
    assert seconds_since(times_ms, NOW_MS / 1000) == seconds


def test_all_sources_are_asked_and_the_oldest_record_counts() -> None:
    kafka = Kafka(A, B)
    kafka.answers = {"a": [NOW_MS - 1000], "b": [NOW_MS - 3000, NOW_MS - 2000]}
    assert kafka.lag.seconds([AT_A, AT_B]) == 3.0
    assert (kafka.asked, kafka.open) == (["a", "b"], 2)


@pytest.mark.parametrize(
    ("inputs", "ends"),
    [
        ((A,), []),  # no epoch has ended yet
        ((A,), [None]),
        ((A, None), [AT_A, FILES]),
        ((None,), [FILES]),
        ((), [FILES]),
    ],
)
def test_the_lag_of_other_sources_is_not_known(
    inputs: tuple[Mapping[str, str] | None, ...], ends: list[str | None]
) -> None:
    kafka = Kafka(*inputs)
    assert kafka.lag.seconds(ends) is None
    assert kafka.asked == []


@pytest.mark.parametrize("answer", [None, SourceUnavailable(stream="orders", source=0, why="away"), OSError("the JVM")])
def test_without_an_answer_of_each_source_the_lag_is_not_known(answer: object) -> None:
    kafka = Kafka(A, B)
    kafka.answers = {"a": [NOW_MS - 1000], "b": answer}
    assert kafka.lag.seconds([AT_A, AT_B]) is None
    kafka.answers["b"] = []
    kafka.clock_s += 5
    assert kafka.lag.seconds([AT_A, AT_B]) == 1.0


def test_an_answer_is_kept_for_seconds_and_longer_if_it_took_long() -> None:
    kafka = Kafka(A)
    for _ in range(3):
        assert kafka.lag.seconds([AT_A]) == 0.0
    assert len(kafka.asked) == 1
    kafka.clock_s, kafka.takes_s = 5.0, 2.0
    assert kafka.lag.seconds([AT_A]) == 0.0
    assert len(kafka.asked) == 2
    kafka.clock_s += 9.9
    assert kafka.lag.seconds([AT_A]) == 0.0
    assert len(kafka.asked) == 2
    kafka.clock_s += 0.1
    assert kafka.lag.seconds([AT_A]) == 0.0
    assert len(kafka.asked) == 3


def test_the_sources_share_one_time_limit() -> None:
    kafka = Kafka(A, B)
    kafka.takes_s = 1.5
    kafka.lag.seconds([AT_A, AT_B])
    assert kafka.limits == [2.0, 0.5]


def test_an_epoch_does_not_wait_for_kafka() -> None:
    kafka = Kafka(A)
    kafka.answers["a"] = [NOW_MS - 1000]
    with kafka.gate.epoch():
        assert kafka.lag.seconds([AT_A]) is None
    assert kafka.lag.seconds([AT_A]) == 1.0
    with kafka.gate.epoch():
        assert kafka.lag.seconds([AT_A]) == 1.0
        kafka.clock_s += 5
        assert kafka.lag.seconds([AT_A]) is None, "an old answer is not given again"
    assert len(kafka.asked) == 1


def test_connections_end_with_the_stream_and_when_it_reads_other_topics() -> None:
    kafka = Kafka(A)
    assert kafka.lag.seconds([AT_A]) == 0.0
    kafka.inputs = KafkaInputs((B,))
    kafka.clock_s += 5
    assert kafka.lag.seconds([AT_B]) == 0.0
    assert (kafka.asked, kafka.open) == (["a", "b"], 1)
    kafka.lag.close()
    kafka.clock_s += 5
    assert kafka.lag.seconds([AT_B]) is None
    assert (len(kafka.asked), kafka.open) == (2, 0)
