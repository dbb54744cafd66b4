"""Kafka topics as input and output of the tests, and epochs that are staged by hand, so that no Spark is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.epoch import Attempt
from holdfast.formats.sealed_json import digest_of
from holdfast.sinks.base import EpochKey, Link, Staged, StreamIdentity
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord
from holdfast.sinks.kafka.records import LARGEST
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.sinks.kafka.staged import check_records
from holdfast.sinks.staged_files import digests
from holdfast.spark.kafka_reading import read_kafka
from kafkafixture import Cluster
from rig import Rig, Target

OWNER = StreamIdentity("orders", "0" * 31 + "1", "rows")


class KafkaTarget(Target):
    """A topic whose values are JSON, as readers of committed rows see it."""

    def __init__(self, broker: Cluster, topic: str, folder: Path, **options: Any) -> None:
        super().__init__(lambda: KafkaSink(broker.address, topic, path=folder, **options))
        self.broker = broker
        self.topic = topic
        self.folder = folder

    def visible(self, spark: SparkSession | None = None, columns: str = "n") -> list[Any]:
        rows = [json.loads(value or b"null") for _, value in self.broker.rows(self.topic)]
        found = [tuple(row[name] for name in columns.split()) for row in rows]
        return sorted(row[0] if len(row) == 1 else row for row in found)

    def staged(self) -> int:
        folder = self.folder / "staging"
        return len([each for each in folder.iterdir() if list(each.iterdir())]) if folder.exists() else 0


class TopicRig(Rig):
    """A pipeline of one stream whose input is a topic: its rows have a number, and a text that the query adds."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        targets: list[Target],
        query: Callable[[DataFrame], DataFrame],
        *,
        broker: Cluster,
        source: str,
        rows_per_epoch: int = 1000,
    ) -> None:
        super().__init__(spark, folder, targets, query)
        self.broker = broker
        self.source = source
        self.rows_per_epoch = rows_per_epoch

    def add(self, *numbers: int) -> None:
        """Give input. It is one epoch if it is not longer than one, and if all before it was read."""
        self.broker.produce(self.source, [json.dumps({"n": n}) for n in numbers])
        self.rows += numbers

    def build(self, spark: SparkSession) -> DataFrame:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": self.rows_per_epoch}
        records = read_kafka(spark, self.source, servers=self.broker.address, options=options)
        rows = records.select(f.from_json(f.col("value").cast("string"), "n long").alias("row"))
        return self.query(rows.select("row.n"))


def key_of(epoch: int, *, timeline: int = 1, attempt: int = 1, lease: int = 1, before: Link | None = None) -> EpochKey:
    """Return the key of an attempt at an epoch."""
    return EpochKey(OWNER, Attempt(stream=OWNER.stream, timeline=timeline, epoch=epoch, attempt=attempt), lease, before)


def stage_by_hand(sink: KafkaSink, key: EpochKey, values: Sequence[bytes | None], /, **columns: list[Any]) -> Staged:
    """Stage records as `prepare` does, without Spark."""
    staging = sink._staged
    staging.root.mkdir(parents=True, exist_ok=True)
    folder = staging.folder(key)
    folder.mkdir()
    table = pa.table({**columns, "value": pa.array(values, pa.binary())})
    pq.write_table(table, folder / "part-0.parquet")
    sizes = {"part-0.parquet": (folder / "part-0.parquet").stat().st_size}
    record = KeyRecord(
        pipeline=key.owner.pipeline,
        uid=key.owner.uid,
        stream=key.owner.stream,
        timeline=key.timeline,
        epoch=key.epoch,
        attempt=key.attempt.attempt,
        lease=key.lease or 0,
        rows=len(values),
        files=sizes,
        shape="",
        options={},
        digests=digests(folder, sizes),
    ).sealed()
    (folder / KEY_FILE).write_bytes(record)
    largest = max(len(value or b"") for value in values)
    accepted = check_records(sink.name, folder, {LARGEST: 0}, sink._facts or sink._found_topic(), sink._other_topic)
    handle = {
        "rows": len(values),
        "files": 1,
        "digest": digest_of(record),
        "topic": sink.topic,
        "largest": largest,
        "limit": accepted.limit,
    }
    return Staged(handle, len(values))
