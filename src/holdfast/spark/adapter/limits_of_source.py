"""A source that limits itself, for versions of Spark that pass neither a start nor a limit.

Rules:
- `latestOffset` reads on from the offset that it returned last. Spark logs each of them as the end of a batch before
  it asks for the next one, or the query fails; then the next query has a reader of its own.
- When a query is restarted, Spark calls `partitions(o, o)` with the last offset of its log, before any other method.
  That is where the first new batch begins. A call without such a start means a new query: it begins at the first
  offset, which stays the same for this reader.
- Later calls of `partitions` do not move the start: a program may read the rows of an earlier batch again.
- A batch that ends before its start is refused. It would be empty, and the next one would read rows a second time.

Not done: the trigger availableNow. Spark processes one batch and ends the query; pipelines start it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from holdfast.errors import NotSupported
from holdfast.spark.adapter.limited_source import LimitedSource
from holdfast.spark.adapter.versions import ONE_BATCH


class SelfLimitedReader(LimitedSource, DataSourceStreamReader):  # type: ignore[misc]
    """Implements Spark's methods by those of a source, and keeps the position of the query."""

    _first: dict[str, Any] | None = None
    _at: dict[str, Any] | None = None  # the end of the last batch that Spark has logged, or is about to log

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are the next ones
        """Return the offset at which a new stream begins; always the same one."""
        if self._first is None:
            self._first = self.first_offset()
        return self._first

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        start = self.initialOffset() if self._at is None else self._at
        self._at = self.end_after(start, self.rows_per_batch)
        return self._at

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the inputs of the tasks of a batch. The first call tells where a restarted query is."""
        if self._at is None:
            self._at = end
        if self.position(end) < self.position(start):
            why = "Spark asked this source for its end before it passed the offset that the query has reached"
            do = f"leave {next(iter(ONE_BATCH))} at its default, and restore the query's checkpoint folder"
            raise NotSupported(what="the order of these calls", why=why, do=do)
        return self.inputs_between(start, end)
