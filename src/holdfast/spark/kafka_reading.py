"""Reading Kafka: Spark's own source, with the settings that a pipeline needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import BadValue
from holdfast.spark.chain import accepts_here
from holdfast.spark.kafka_sources import FAIL_ON_LOSS, ISOLATION, READ_COMMITTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SERVERS = "kafka.bootstrap.servers"


def read_kafka(
    spark: SparkSession,
    topics: str | Sequence[str] | None = None,
    *,
    servers: str | Sequence[str],
    pattern: str | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    options: Mapping[str, object] | None = None,
) -> DataFrame:
    """Read Kafka topics: a streaming DataFrame with the columns of Spark's Kafka source.

    It is `spark.readStream.format("kafka")` with two defaults that differ: rows of transactions that are open or were
    aborted are left out (`kafka.isolation.level=read_committed`), and in a run that accepts gaps, Spark does not fail
    on lost records (`failOnDataLoss=false`): Holdfast records them.

    - `topics`, `pattern`, `partitions`: what to read; exactly one of them. `topics` is a name or a list of names,
      `pattern` a regular expression of Java, and `partitions` has the numbers of partitions by topic.
    - `servers`: `host:port`, or a list of them.
    - `options`: other options of Spark's source, such as `startingOffsets`, `maxOffsetsPerTrigger` or
      `kafka.security.protocol`.
    """
    chosen = {"subscribe": topics, "subscribePattern": pattern, "assign": partitions}
    given = {name: value for name, value in chosen.items() if value}
    if len(given) != 1:
        expected = "exactly one of topics, pattern= and partitions="
        raise BadValue(what="arguments of read_kafka", value=sorted(given), expected=expected)
    settings = {ISOLATION: READ_COMMITTED, _SERVERS: servers if isinstance(servers, str) else ",".join(servers)}
    if accepts_here("gaps"):
        settings[FAIL_ON_LOSS] = "false"
    for name, value in given.items():
        if name == "assign":
            settings[name] = json.dumps({topic: list(numbers) for topic, numbers in (partitions or {}).items()})
        else:
            settings[name] = str(value) if isinstance(value, str) else ",".join(value)
    reader = spark.readStream.format("kafka").options(**settings)
    return reader.options(**{name: str(value) for name, value in (options or {}).items()}).load()
