"""The jar of Holdfast on a cluster: Spark sends it to executors if the session was configured with it.

A session that Holdfast creates is. Under `spark-submit`, Java runs before the program does, so the jar must be named on
the command line; the error has the line.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from holdfast.errors import NotFound
from holdfast.spark import s3a
from holdfast.spark.localfiles import JAR
from holdfast.spark.s3a import jars_folder

JARS = "spark.jars"


def with_own_jars(jars: str | None) -> str:
    """Return a value of `spark.jars` that contains the jar of Holdfast too, and those of the s3a connector if here."""
    given = [each for each in (jars or "").split(",") if each]
    connector = jars_folder()
    own = [str(JAR), *(sorted(map(str, connector.glob("*.jar"))) if connector else [])]
    return ",".join(dict.fromkeys([*given, *own]))


def submit_arguments(hadoop: str) -> str:
    """Return the arguments of `spark-submit` with which driver and executors get all jars, for a version of Hadoop."""
    return f"--jars {shlex.quote(str(JAR))} {s3a.submit_line(hadoop)}"


def installed_hadoop() -> str:
    """Return the version of Hadoop that the installed PySpark includes."""
    jars = Path(_find_spark_home()) / "jars"
    found = sorted(jars.glob("hadoop-client-api-*.jar"))
    if not found:
        raise NotFound(key="hadoop-client-api-*.jar", where=str(jars))
    return found[-1].stem.removeprefix("hadoop-client-api-")
