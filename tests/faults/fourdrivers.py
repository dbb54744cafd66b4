"""Drivers that read Kafka and write to four sinks, in processes of their own, to be killed.

Run as `python fourdrivers.py <verb> <JSON>`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter

from deltastaged import DeltaTarget
from faults.drivers import by_chance
from faults.killed import released, watched
from icebergstaged import IcebergTarget
from kafkafixture import Cluster
from kafkarig import KafkaTarget, TopicRig
from rig import PostgresTarget
from sparkfixture import session

EPOCH = 1000  # rows at most


def rigged(folder: Path, broker: Cluster, source: str, topic: str, dsn: str) -> TopicRig:
    """A stream from a topic into four sinks, whose rows differ each time they are computed."""
    (folder / "iceberg").mkdir(parents=True, exist_ok=True)
    targets = [
        KafkaTarget(broker, topic, folder / "kafka"),
        DeltaTarget(folder / "delta"),
        IcebergTarget(folder / "iceberg"),
        PostgresTarget(dsn, "rows", create=True),
    ]
    return TopicRig(session(), folder, targets, by_chance, broker=broker, source=source, rows_per_epoch=EPOCH)


def plainly(rig: TopicRig, topic: str) -> DataStreamWriter:
    """The same stream with Spark's own writers: each batch goes to a topic and to Parquet files."""

    def write(df: DataFrame, batch: int) -> None:
        df.persist()  # so that both writers see the same rows
        records = df.select(f.to_json(f.struct("n", "text")).alias("value")).write.format("kafka")
        records.option("kafka.bootstrap.servers", rig.broker.address).option("topic", topic).save()
        df.write.mode("append").parquet(str(rig.folder / "parquet"))
        df.unpersist()

    stream = rig.build(rig.spark).writeStream.foreachBatch(write)
    return stream.option("checkpointLocation", str(rig.folder / "plain"))


def holdfast(*, folder: str, address: str, source: str, topic: str, dsn: str, go: str) -> None:
    """Start Spark, wait for `go`, and run for ever. Wait for servers that were killed."""
    rig = rigged(Path(folder), Cluster(address), source, topic, dsn)
    point = released(go)
    rig.pipeline(outage="5m").run(rig.spark, reach=watched(go, point))


def plain(*, folder: str, address: str, source: str, topic: str, go: str) -> None:
    """The same with Spark's own writers."""
    rig = TopicRig(session(), Path(folder), [], by_chance, broker=Cluster(address), source=source, rows_per_epoch=EPOCH)
    writer = plainly(rig, topic)
    released(go)
    writer.start().awaitTermination()


if __name__ == "__main__":
    {"holdfast": holdfast, "plain": plain}[sys.argv[1]](**json.loads(sys.argv[2]))
