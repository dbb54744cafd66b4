"""Frozen rows with their size, so that a sink can choose how to write them without computing them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import DataFrame

from holdfast.sinks.base import FrozenRows
from holdfast.spark.adapter.freezing import frozen


@contextlib.contextmanager
def frozen_with_size(df: DataFrame) -> Iterator[FrozenRows]:
    """Compute the rows once, and keep them for several actions; yield them with the size of their blocks.

    Not guaranteed: that the size is exact. Where a block in memory has hundreds of rows, Spark estimates its size from
    a sample of them. The estimate is never below 40 bytes per row.
    """
    with frozen(df) as kept:
        yield FrozenRows(kept, _stored_bytes(kept))


def _stored_bytes(kept: DataFrame) -> int:
    """Return the size of a local checkpoint in memory and on disk, as the driver's block manager knows it."""
    number = kept._jdf.queryExecution().logical().rdd().id()
    stored = kept.sparkSession.sparkContext._jsc.sc().getRDDStorageInfo()
    return sum(int(each.memSize()) + int(each.diskSize()) for each in stored if each.id() == number)
