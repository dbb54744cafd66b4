"""Rows into Kafka: an epoch of `KafkaSink` against Spark's own writer, into a topic with two partitions.

The broker is a process on this machine with one replica. All sides use one Spark session and one cached DataFrame of
two partitions, with a key and a value of 100 bytes. A million rows show the cost per row, a hundred rows the fixed cost
of an epoch.

- Holdfast is measured by the work of its sink in an epoch: `prepare`, which stages the rows as Parquet, then `commit`,
  which sends them in one transaction. No side includes Spark's logs or Holdfast's decision.
- Spark's writer is `df.write.format("kafka")`: with its defaults, and tuned (`linger.ms` 20, `batch.size` 512 kB). It
  has no transactions, and a repeated batch is written twice, so it gives weaker guarantees.

After each sample the rows are counted, outside the measured time. The first rounds do not count, because Java needs
them to warm up.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.compare import CannotMeasure, Result, in_turn, timed
from bench.rival import apart
from bench.spark import session
from holdfast import KafkaSink
from holdfast.epoch import Attempt
from holdfast.sinks.base import EpochKey, SinkContext, StreamIdentity

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the broker is that of the tests

from kafkafixture import JARS, Broker

ROWS, QUICK_ROWS, FEW_ROWS = 1_000_000, 200_000, 100
GOAL = 0.7  # of the rows per second of Spark's writer
PARTITIONS = 2
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "524288"}
VERSIONS = {"Kafka": "4.3.1"}
OWNER = StreamIdentity("bench", "0" * 31 + "1", "rows")
Write = Callable[[], object]


class Topic:
    """The topic of one side. Each write adds the same rows to it."""

    def __init__(self, broker: Broker, rows: int) -> None:
        self.broker, self.name, self._rows = broker, broker.topic(partitions=PARTITIONS), rows

    def sample(self, write: Write) -> float:
        """Return the rows per second of one write."""
        before = self._size()
        seconds = timed(write)
        markers = 2 * PARTITIONS  # a transaction adds up to one record to each partition
        assert self._rows <= self._size() - before <= self._rows + markers
        return self._rows / seconds

    def _size(self) -> int:
        return int(self.broker.size(self.name))


class SinkEpochs:
    """Holdfast: a sink, opened as by a stream, that receives one epoch after another."""

    def __init__(self, topic: Topic, df: DataFrame, folder: Path) -> None:
        self._sink = KafkaSink(topic.broker.address, topic.name, key="key", value="value", path=folder / topic.name)
        self._sink.open(SinkContext(OWNER, df.schema, "append", df.sparkSession, tell=print))
        self._df = df
        self._numbers = itertools.count(1)

    def __call__(self) -> None:
        """Write one epoch to the sink."""
        tried = Attempt(stream=OWNER.stream, timeline=1, epoch=next(self._numbers), attempt=1)
        key = EpochKey(OWNER, tried, 1)
        self._sink.commit(key, self._sink.prepare(self._df, key).handle)


def plain(topic: Topic, df: DataFrame, options: dict[str, str]) -> Write:
    """Return a function that writes the same rows with Spark's own writer."""
    servers = {"kafka.bootstrap.servers": topic.broker.address, "topic": topic.name}
    save: Write = df.write.format("kafka").options(**servers, **options).save
    return save


def records(spark: SparkSession, rows: int) -> DataFrame:
    """Return the rows, cached in memory."""
    df = spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "cast(id AS string) AS key", "rpad(concat('order ', xxhash64(id)), 100, 'x') AS value"
    )
    df.cache()
    assert df.count() == rows
    return df


def measured(broker: Broker, df: DataFrame, folder: Path, rounds: int, warm_up: int) -> dict[str, list[float]]:
    """Return the rows per second of each side."""
    rows = df.count()
    makes: dict[str, Callable[[Topic], Any]] = {
        "ours": lambda topic: SinkEpochs(topic, df, folder),
        "plain": lambda topic: plain(topic, df, {}),
        "tuned": lambda topic: plain(topic, df, TUNED),
    }
    sides = {}
    for side, make in makes.items():
        topic = Topic(broker, rows)
        sides[side] = partial(topic.sample, make(topic))
    return in_turn(rounds, sides, warm_up=warm_up)


def measure(folder: Path, quick: bool) -> list[Result]:
    jars = sorted((JARS / "connector").glob("*.jar"))
    broker = Broker(log_retention_bytes="1000000000", log_segment_bytes="100000000")
    spark = session({"spark.jars": ",".join(map(str, jars))})
    try:
        rows = QUICK_ROWS if quick else ROWS
        many = measured(broker, records(spark, rows), folder, *((2, 1) if quick else (9, 4)))
        few = measured(broker, records(spark, FEW_ROWS), folder, *((4, 4) if quick else (30, 10)))
    finally:
        spark.stop()
        broker.kill()
    default, tuned = "Spark's Kafka writer, defaults", "Spark's Kafka writer, tuned"
    seconds = {side: [FEW_ROWS / each for each in found] for side, found in few.items()}
    return [
        Result("kafka", "a large epoch", default, many["ours"], many["plain"], GOAL, "rows/s"),
        Result("kafka", "a large epoch", tuned, many["ours"], many["tuned"], None, "rows/s"),
        Result("kafka", f"an epoch of {FEW_ROWS:,} rows", default, seconds["ours"], seconds["plain"], None),
    ]


def run(quick: bool) -> list[Result]:
    if not list((JARS / "connector").glob("*.jar")):
        raise CannotMeasure(f"the jars of Kafka are missing. Next: python -m tools.kafka fetch {JARS}")
    return apart(__name__, measure, quick)  # a JVM that is running already does not load the connector
