"""Drivers of an old timeline that write to a topic. Spark is not needed: rows are staged by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.sinks.base import EpochKey, Sink, Staged
from holdfast.sinks.kafka.records import RecordColumns
from holdfast.sinks.kafka.sink import KafkaSink
from kafkafixture import Cluster
from kafkarig import stage_by_hand
from zombies import ZombieBench


class UncheckedColumns(RecordColumns):
    """Only Spark can check them."""

    def check(self, *_: Any) -> None:
        pass


class HandKafkaSink(KafkaSink):
    """A real KafkaSink, for a driver with a fake query: each epoch is a list of numbers."""

    def __init__(self, servers: str, topic: str, **options: Any) -> None:
        super().__init__(servers, topic, **options)
        self._columns = UncheckedColumns()

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        return stage_by_hand(self, key, [json.dumps({"n": n, "text": f"row {n}"}).encode() for n in df])


class KafkaZombieBench(ZombieBench):
    """A shared pipeline into one topic."""

    def __init__(self, folder: Path, address: str, topic: str) -> None:
        super().__init__(folder, "kafka")
        self.address = address
        self.topic = topic

    def made_sinks(self) -> list[Sink]:
        return [HandKafkaSink(self.address, self.topic, path=self.place / "staging", name="out")]

    def seen(self) -> list[tuple[int, str]]:
        """The rows that a reader of committed records sees, once for each record."""
        rows = [json.loads(value or b"null") for _, value in Cluster(self.address).rows(self.topic)]
        return sorted((row["n"], row["text"]) for row in rows)
