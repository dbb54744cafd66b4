"""What a thread that runs Spark jobs for a query needs: the local properties of the query's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from py4j.clientserver import ClientServer
from pyspark.sql import DataFrame

_SESSION = "org.apache.spark.sql.classic.SparkSession"


def job_properties(df: DataFrame) -> Callable[[], None]:
    """Return a function that makes another thread run its jobs as part of the query of this thread.

    They are in the job group by which Spark cancels the query's jobs, and have its scheduler pool, batch id and active
    session. The properties are copied now, and again for each thread: Spark changes them during an action. With
    PYSPARK_PIN_THREAD=false, threads have no properties of their own, and nothing is done.
    """
    session = df.sparkSession
    context: Any = session.sparkContext
    if not isinstance(context._gateway, ClientServer):
        return lambda: None
    java = context._jsc.sc()
    properties = java.getLocalProperties().clone()

    def adopt() -> None:
        java.setLocalProperties(properties.clone())
        getattr(context._jvm, _SESSION).setActiveSession(session._jsparkSession)  # by dots it takes a call for each

    return adopt
