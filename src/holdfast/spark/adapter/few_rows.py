"""Few rows, collected by the driver.

Rules:
- One Spark job computes the rows and returns them as Arrow. What a task returns is bounded: at a limit in bytes, it
  stops, and the rows count as too many. A Java class does this, because adding it to the plan of every batch takes
  longer than the job.
- The class is in the jar of Holdfast. Where tasks might not find it, rows are not collected.
- Rows that were too many have been computed in part, and the caller computes them again. So the rows are first frozen
  where this is visible: for a query with state, one that is observed, and after a function of the user.

Not guaranteed: that a Python function of the query is called once per row, and that Spark's own number of input rows
counts each of them once. Spark does not guarantee that either when it repeats a task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.adapter.freezing import frozen
from holdfast.spark.adapter.settings import is_local
from holdfast.spark.adapter.storefiles import has_class
from holdfast.spark.localfiles import JAR

if TYPE_CHECKING:
    import pyarrow as pa

_CLASS = "holdfast.FewRows"


class FewRows:
    """Collects the rows of batches. An instance is a `CollectRows` of a sink."""

    def __init__(self, spark: SparkSession, *, freezes: bool) -> None:
        self._spark = spark
        self._freezes = freezes

    @contextlib.contextmanager
    def __call__(self, df: DataFrame, tasks: int, most: int) -> Iterator[tuple[DataFrame, list[pa.RecordBatch] | None]]:
        """Yield the rows for an action on the executors, and as Arrow, unless a task has more than `most` bytes."""
        with frozen(df) if self._freezes else contextlib.nullcontext(df) as rows:
            yield rows, self._collected(rows, tasks, most)

    def _collected(self, df: DataFrame, tasks: int, most: int) -> list[pa.RecordBatch] | None:
        jvm: Any = self._spark._jvm
        java: Any = df._jdf
        cut: Any = self._spark.sparkContext._jsc.sc().longAccumulator()
        computed = java.queryExecution().toRdd().toJavaRDD().coalesce(tasks)
        first = computed.mapPartitions(jvm.holdfast.FewRows(most, cut)).rdd()
        rows = DataFrame(java.sparkSession().internalCreateDataFrame(first, java.schema(), False), self._spark)
        vars(rows)["schema"] = df.schema
        found = rows.toArrow()
        return None if cut.value() else found.combine_chunks().to_batches()


def few_rows(spark: SparkSession, *, freezes: bool) -> FewRows | None:
    """Return what collects few rows in a session; `None` if its tasks might not find the Java class."""
    if not has_class(spark, _CLASS) or not (is_local(spark) or _is_shipped(spark)):
        return None
    return FewRows(spark, freezes=freezes)


def _is_shipped(spark: SparkSession) -> bool:
    """Whether Spark sends the jar to the executors."""
    listed: Any = spark.sparkContext._jsc.sc().listJars()
    return any(str(listed.apply(number)).endswith(f"/{JAR.name}") for number in range(listed.size()))
