"""A source that is limited by Spark: Spark passes the start and the limit of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.spark.adapter.limited_source import LimitedSource


class SparkLimitedReader(LimitedSource, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Implements Spark's methods by those of a source."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are the next ones
        """Return the offset at which a new stream begins."""
        return self.first_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of each batch."""
        return ReadAllAvailable() if self.rows_per_batch is None else ReadMaxRows(self.rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the current end, and no further."""
        self.end_here()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        return self.end_after(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the current end, for metrics."""
        return self.last_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the inputs of the tasks of a batch."""
        return self.inputs_between(start, end)
