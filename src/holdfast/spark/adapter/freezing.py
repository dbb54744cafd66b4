"""Frozen rows: computed once, and kept for several actions.

Rules:
- Rows are frozen by a local checkpoint, not by `persist`. A persisted partition that is lost with its executor would be
  computed again, into different rows if the query is not deterministic. A lost checkpoint block fails the attempt.
- `frozen` computes the rows before any action uses them. This takes one more Spark job.
- `frozen_on_use` saves that job: the first task that needs a partition computes and stores it, and all other tasks wait
  until it is stored. Spark's block manager locks each block for its writer, so this holds for concurrent jobs too, but
  only within one JVM.
- With `frozen_on_use`, a block that is lost before the first job has ended is computed again without an error. So a
  metric of Spark's plan counts the computed rows. If this number equals the number of rows that each action was given,
  no partition with rows was computed twice.
- The metric ignores failed tasks. The proof is therefore valid only if tasks are never repeated: with a master `local`
  or `local[n]`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

_ONE_TRY_IN_ONE_JVM = re.compile(
    r"local(\[(\d+|\*)\])?"
)  # `local[n,m]` repeats tasks, `local-cluster` has several JVMs
_TRACKED = "spark.rdd.cache.visibilityTracking.enabled"  # with it, a stored block may be computed again
_COUNT = "numOutputRows"


def can_freeze_on_use(spark: SparkSession) -> bool:
    """Whether `frozen_on_use` is safe in a session."""
    context = spark.sparkContext
    tracked = context.getConf().get(_TRACKED, "false") or ""
    return _ONE_TRY_IN_ONE_JVM.fullmatch(str(context.master)) is not None and tracked.lower() == "false"


@contextlib.contextmanager
def frozen(df: DataFrame) -> Iterator[DataFrame]:
    """Compute the rows now, and keep them for several actions."""
    kept = df.localCheckpoint(eager=True)
    try:
        yield kept
    finally:
        _free(kept)


@contextlib.contextmanager
def frozen_on_use(df: DataFrame) -> Iterator[tuple[DataFrame, Callable[[], int]]]:
    """Keep the rows for several actions, concurrent ones too; the first use of a partition computes it.

    Yield the rows, and a function that returns how many rows were computed so far. `df` must be a batch as Spark passes
    it to `foreachBatch`, without a further operation. Not guaranteed: that no row is computed twice. The caller must
    compare the number of computed rows with the number that each action was given.
    """
    leaves: Any = df._jdf.queryExecution().executedPlan().collectLeaves()
    computed = leaves.head().metrics().apply(_COUNT)
    kept = df.localCheckpoint(eager=False)
    vars(kept)["schema"] = df.schema  # it is the same: not read from the JVM again
    try:
        yield kept, lambda: int(computed.value())
    finally:
        _free(kept)


def _free(kept: DataFrame) -> None:
    """Delete the blocks. `df.unpersist()` would keep them; `rdd.unpersist()` would log a warning at every epoch."""
    with contextlib.suppress(Exception):  # the session may have ended
        number = kept._jdf.queryExecution().logical().rdd().id()
        kept.sparkSession.sparkContext._jsc.sc().unpersistRDD(number, False)
