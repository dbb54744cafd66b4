"""Drivers that write to Kafka, in processes of their own, to be killed: `python kafkadrivers.py <verb> <JSON>`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark.sql import functions as f

from faults.killed import released
from holdfast.sinks.kafka.sink import KafkaSink
from rig import SCHEMA, Rig, SqliteTarget, Target
from sparkfixture import session


def rigged(folder: Path, address: str, topic: str) -> Rig:
    """A stream into a topic and into SQLite, whose rows differ each time they are computed."""
    targets = [Target(lambda: KafkaSink(address, topic)), SqliteTarget(folder / "rows.db")]
    return Rig(session(), folder, targets, lambda df: df.withColumn("text", f.expr("uuid()")))


def holdfast(folder: str, address: str, topic: str, go: str) -> None:
    """Start Spark, wait for `go`, and run for ever."""
    rig = rigged(Path(folder), address, topic)
    released(go)
    rig.pipeline().run(rig.spark)


def plain(folder: str, address: str, topic: str, go: str) -> None:
    """The same with Spark's own writer."""
    rows = session().readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    released(go)
    records = rows.select(f.to_json(f.struct("n", "text")).alias("value"))
    writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic)
    writer.option("checkpointLocation", f"{folder}/plain").start().awaitTermination()


if __name__ == "__main__":
    {"holdfast": holdfast, "plain": plain}[sys.argv[1]](**json.loads(sys.argv[2]))
