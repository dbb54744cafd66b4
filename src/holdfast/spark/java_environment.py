"""The environment in which Spark's launcher starts a JVM: Java itself, its options, its class path."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.spark.localfiles import JAR
from holdfast.spark.s3a import jars_folder

SUBMITTED = "PYSPARK_SUBMIT_ARGS"
GATEWAY = "PYSPARK_GATEWAY_PORT"  # of a JVM that spark-submit has started
CLASS_PATH = "SPARK_DIST_CLASSPATH"  # Spark's launcher appends it to the class path, regardless of user settings
OPTIONS = "SPARK_SUBMIT_OPTS"  # Java options; those in the user's settings come later, and win


@contextlib.contextmanager
def with_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable in this block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def with_jar() -> Iterator[None]:
    """Put the classes of Holdfast, and the s3a connector if there is one, on the class path of a JVM started here."""
    connector = jars_folder()
    added = map(str, [JAR, *(sorted(connector.glob("*.jar")) if connector else [])])  # a `/*` would prevent an archive
    with with_variable(CLASS_PATH, os.pathsep.join(filter(None, (os.environ.get(CLASS_PATH), *added)))):
        yield


def find_java(environment: Mapping[str, str]) -> Path | None:
    """Return the `java` that Spark's launcher runs, unless a `spark-env.sh` chooses another one."""
    home = environment.get("JAVA_HOME")
    path = str(Path(home) / "bin") if home else environment.get("PATH")
    found = shutil.which("java", path=path)
    return None if found is None else Path(found)


def conf_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders in which Spark may look for its configuration."""
    home = environment.get("SPARK_HOME")
    folders = [environment.get("SPARK_CONF_DIR"), home and f"{home}/conf"]
    return [Path(each) for each in folders if each]
