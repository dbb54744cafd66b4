"""A stream that counts rows with transformWithState, which keeps its state through Python."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle


def counter() -> StatefulProcessor:
    """Return what counts the rows of each key; made in a function, so that workers need not import this module."""

    class Count(StatefulProcessor):  # type: ignore[misc]
        """Counts the rows of each key."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.rows = handle.getValueState("rows", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Row]:  # noqa: N802
            before = self.rows.get()[0] if self.rows.exists() else 0
            count = before + len(list(rows))
            self.rows.update((count,))
            yield Row(k=key[0], n=count)

        def close(self) -> None:
            pass

    return Count()


class Counting:
    """A stream that counts with transformWithState what is put into a folder."""

    def __init__(self, folder: Path) -> None:
        self.inbox = folder / "in"
        self.inbox.mkdir(exist_ok=True)

    def add(self, name: str, keys: str) -> None:
        hidden = self.inbox / f".{name}"
        hidden.write_text("".join(json.dumps({"k": key}) + "\n" for key in keys))
        hidden.rename(self.inbox / f"{name}.json")

    def build(self, spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1)
        rows = files.json(str(self.inbox)).groupBy("k")
        return rows.transformWithState(counter(), "k string, n long", "Update", "None")

    def run(self, spark: SparkSession, checkpoint: Path) -> list[tuple[str, int]]:
        """Run it as a plain query of Spark's; return what came out."""
        found: list[tuple[str, int]] = []

        def take(df: DataFrame, _: int) -> None:
            found.extend((row.k, row.n) for row in df.collect())

        writer = self.build(spark).writeStream.foreachBatch(take).outputMode("update")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return sorted(found)
