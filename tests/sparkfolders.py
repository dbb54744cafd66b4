"""Checkpoint folders of plain Spark queries, made by small runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

STREAMING = "spark.sql.streaming."
FAST = {
    "checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager"
}
ROCKS = {"stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
CHANGELOG = {**ROCKS, "stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
FORMAT_2 = {**CHANGELOG, "stateStore.checkpointFormatVersion": "2"}
OFTEN = {"stateStore.minDeltasForSnapshot": "3", "stateStore.maintenanceInterval": "200ms"}


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """Set streaming settings of a session for a while. State maintenance is restarted, which reads its pace once."""
    store: Any = getattr(spark._jvm, "org.apache.spark.sql.execution.streaming.state.StateStore$")  # type: ignore[arg-type]
    getattr(store, "MODULE$").stop()
    for name, value in values.items():
        spark.conf.set(STREAMING + name, value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(STREAMING + name)
        getattr(store, "MODULE$").stop()


class Folders:
    """Makes checkpoint folders below one folder, from input files that are read one per batch."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root

    def feed(self, name: str, files: int, first: int = 0) -> Path:
        """Write input files of a few rows."""
        folder = self.root / "input" / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(first, first + files):
            rows = [{"k": n % 4, "v": number, "t": f"2024-01-01T00:{number % 60:02}:00"} for n in range(4)]
            (folder / f"{number:05}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    def read(self, name: str) -> DataFrame:
        """Read an input as a stream."""
        reader = self.spark.readStream.schema("k int, v int, t timestamp").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.root / "input" / name)).withWatermark("t", "1 minute")

    def run(self, name: str, df: DataFrame, mode: str = "append", **options: str) -> Path:
        """Run a query over the input that exists; return its checkpoint folder."""
        query = self.start(name, df, mode, {"availableNow": True}, **options)
        query.awaitTermination()
        return self.root / name

    def start(self, name: str, df: DataFrame, mode: str, trigger: dict[str, Any], **options: str) -> Any:
        """Start a query into nothing."""
        writer = df.writeStream.outputMode(mode).format("noop").options(**options)
        return writer.option("checkpointLocation", str(self.root / name)).trigger(**trigger).start()

    def fail(self, name: str, df: DataFrame, mode: str, at: int) -> Path:
        """Run a query that fails at the end of one batch: its offsets and its state are written, its commit is not."""

        def take(rows: DataFrame, batch: int) -> None:
            rows.write.format("noop").mode("overwrite").save()
            if batch == at:
                raise RuntimeError("on purpose")

        writer = df.writeStream.outputMode(mode).foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.root / name)).start()
        try:
            query.awaitTermination()
        except Exception as error:
            assert "on purpose" in str(error)
        return self.root / name


PLANS: dict[str, tuple[Callable[[Folders], DataFrame], str]] = {
    "stateless": (lambda at: at.read("a"), "append"),
    "counts": (lambda at: at.read("a").groupBy("k").count(), "update"),
    "windows": (lambda at: at.read("a").groupBy(f.window("t", "1 minute"), "k").count(), "append"),
    "sessions": (lambda at: at.read("a").groupBy(f.session_window("t", "30 seconds"), "k").count(), "append"),
    "dedup": (lambda at: at.read("a").dropDuplicatesWithinWatermark(["k", "v"]), "append"),
    "join": (
        lambda at: at.read("a").alias("a").join(at.read("b").alias("b"), f.expr("a.k = b.k and a.t = b.t")),
        "append",
    ),
    "union": (lambda at: at.read("a").union(at.read("b")), "append"),
    "limit": (lambda at: at.read("a").limit(1000), "append"),
}
