"""The sources of one stream that are compared with its last epoch: Kafka topics and lake tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.spark.kafka_sources import KafkaInputs, KafkaSources
from holdfast.spark.lake_sources import LakeSources
from holdfast.spark.last_decided import LastDecided
from holdfast.spark.parts import StreamParts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ComparedSources:
    """Passes each call to every kind of source. It exists from the first recovery to the end of the run."""

    def __init__(self, parts: StreamParts) -> None:
        self._kafka = KafkaSources(parts)
        self._lake = LakeSources(parts)

    def check(self, df: DataFrame, last: LastDecided) -> bool:
        """Compare the sources with the last epoch, before a query starts; return whether anything was compared."""
        found = [self._kafka.check(df, last), self._lake.check(df, last)]
        return any(found)

    def check_again(self, last: LastDecided) -> None:
        """Compare the sources before an epoch is decided, if Spark would skip lost input without an error."""
        self._kafka.check_again(last)
        self._lake.check_again(last)

    def epoch_ended(self, last: LastDecided) -> None:
        """Record topics that an epoch was the first to read, and pass its end to the consumer group."""
        self._kafka.epoch_ended(last)

    def kafka_inputs(self) -> KafkaInputs:
        """Return the Kafka sources of the current query."""
        return self._kafka.inputs

    def close(self) -> None:
        """End the connections."""
        self._kafka.close()
