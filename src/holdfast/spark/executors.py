"""The check of a cluster at the start of a pipeline: what executors lack, and on which host.

Rules:
- There is one task per core. Spark hands the tasks of a stage to all free cores at once, so each core gets one.
- The Python part needs only the standard library on executors, and is sent by value. The Java part is a function in the
  jar that Spark sends to executors.
- Executors use their own credentials. Nothing that is sent contains any.
- All problems of all hosts are in one error. Nothing was changed when it is raised.

Not guaranteed: an executor that starts later is not checked. Its tasks fail if it lacks something, and Spark repeats
them on other executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

import holdfast
from holdfast.errors import ExecutorsUnfit
from holdfast.spark import adapter, executor_probe
from holdfast.spark.executor_probe import probe_python
from holdfast.spark.session import send_by_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE = "holdfast.ExecutorProbe"
_FUNCTION = "holdfast_executor_probe"


def require_executors(
    spark: SparkSession,
    *,
    packages: Iterable[str],
    java_class: str,
    folder: str,
    settings: Mapping[str, str],
    reach: Callable[[], object] | None,
) -> None:
    """Raise `ExecutorsUnfit` unless every core can run the tasks of a pipeline.

    - `packages`: what tasks import.  - `java_class`: what Spark loads there.
    - `folder`: an address for Hadoop, below which the check writes, reads and deletes one object per core.
    - `settings`: what Hadoop needs to find the store, besides the settings of the session; no credentials.
    - `reach`: uses the store from Python; `None` if no task does that.
    """
    cores = adapter.registered_cores(spark)
    send_by_value(executor_probe)
    task = probe_python(("holdfast", *packages), holdfast.__version__, reach)
    found = set(spark.sparkContext.parallelize(range(cores), cores).mapPartitions(task).collect())
    given = "\n".join(f"{name}={value}" for name, value in settings.items())
    found |= _java_problems(spark, cores, java_class, folder, given)
    if found:
        raise ExecutorsUnfit(problems=tuple(sorted(found)))


def _java_problems(spark: SparkSession, cores: int, *arguments: str) -> set[str]:
    spark.udf.registerJavaFunction(_FUNCTION, _PROBE, "string")
    called = f.call_function(_FUNCTION, *map(f.lit, arguments))
    # It depends on the row: otherwise the driver would call it once, before the job.
    rows = spark.range(0, cores, 1, cores).select(f.when(f.col("id") >= 0, called).alias("problem"))
    return {row.problem for row in rows.collect() if row.problem}
