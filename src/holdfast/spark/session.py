"""The embedded Spark session, for programs that bring none of their own."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext, cloudpickle
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from holdfast._error_text import one_line
from holdfast.errors import JavaMissing, SessionFailed
from holdfast.spark import adapter
from holdfast.spark.localfiles import CLASS, JAR, SETTING

OLDEST_JAVA = 17
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 2, 8)),
    "spark.sql.session.timeZone": "UTC",
}
_DEADLY = (signal.SIGINT, signal.SIGTERM)
_PROGRESS = "spark.ui.showConsoleProgress"  # Spark itself sets it where it is started from Python
_SUBMITTED = "PYSPARK_SUBMIT_ARGS"
_CLASS_PATH = "SPARK_DIST_CLASSPATH"  # what Spark's launcher puts behind all else, whatever the user has set
_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


def embedded() -> tuple[SparkSession, bool]:
    """Return the session at hand, or a new one on this machine, and whether it is new.

    What `spark-submit`, `spark-defaults.conf` or PYSPARK_SUBMIT_ARGS has set is kept, the master too; only what nobody
    set is ours.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # local executors run the driver's interpreter
    require_java()
    try:
        return _made(), True
    except Exception as error:  # whatever Java says, and it may be pages
        raise SessionFailed(why=one_line(error)) from error


def _made() -> SparkSession:
    with _undisturbed(), _with_jar():
        SparkContext._ensure_initialized()  # before, a SparkConf knows nothing of what others have set
    given = SparkConf()
    builder = SparkSession.builder
    master = given.get("spark.master", None)
    if master is None:
        builder = builder.master("local[*]")
    if master is None or master.startswith("local"):
        settings = _SETTINGS if _logs_as_users_say() else {**_SETTINGS, "spark.log.level": "ERROR"}
        if _has_local_files():
            settings = {**settings, SETTING: CLASS}
        for name, value in settings.items():
            if not given.contains(name):
                builder = builder.config(name, value)
        if _PROGRESS not in os.environ.get(_SUBMITTED, ""):
            builder = builder.config(_PROGRESS, "false")
    spark = builder.getOrCreate()
    if adapter.is_local(spark) and not _logs_as_users_say():
        adapter.quiet(spark)
        silence_spark()
    return spark


@contextlib.contextmanager
def borrowed() -> Iterator[SparkSession]:
    """Give the session at hand, or a new one that is stopped afterwards."""
    spark, new = embedded()
    try:
        yield spark
    finally:
        if new:
            spark.stop()


@contextlib.contextmanager
def _with_jar() -> Iterator[None]:
    """Let a JVM that is started meanwhile know our own class."""
    before = os.environ.get(_CLASS_PATH)
    os.environ[_CLASS_PATH] = os.pathsep.join(filter(None, (before, str(JAR))))
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CLASS_PATH]
        else:
            os.environ[_CLASS_PATH] = before


def _has_local_files() -> bool:
    """Whether the JVM knows our own class, and the user has none: a JVM that somebody else has started does not."""
    jvm: Any = SparkContext._jvm
    try:
        jvm.java.lang.Class.forName(CLASS)
    except Py4JJavaError:
        return False
    return jvm.org.apache.hadoop.conf.Configuration().get(SETTING.removeprefix("spark.hadoop.")) is None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait while Java starts: pyspark would forget it half-way, and it would live on without anybody."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in _DEADLY}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if came:
        signal.raise_signal(came[0])


def require_java() -> None:
    """Raise `JavaMissing` where Spark would find no Java, or one that is too old: it says so in pages.

    Where a JVM runs already, or a `spark-env.sh` may know better, nothing is looked at.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ or _conf("spark-env.sh"):
        return
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no `java` is on the PATH"
        raise JavaMissing(why=where)
    about = Path(found).resolve().parent.parent / "release"
    version = _VERSION.search(about.read_text(errors="replace")) if about.is_file() else None
    if version is not None and int(version[1]) < OLDEST_JAVA:
        raise JavaMissing(why=f"{found} is Java {version[1]}")


def _logs_as_users_say() -> bool:
    return _conf("log4j2.properties") or "log4j" in os.environ.get(_SUBMITTED, "")


def _conf(name: str) -> bool:
    """Whether the user has a file of Spark's configuration."""
    folders = [os.environ.get("SPARK_CONF_DIR"), os.environ.get("SPARK_HOME") and f"{os.environ['SPARK_HOME']}/conf"]
    return any((Path(each) / name).is_file() for each in folders if each)


def send_by_value(module: ModuleType) -> None:
    """Let functions of a module travel to executors as they are: these need not import it, and run its top level."""
    cloudpickle.register_pickle_by_value(module)


def silence_spark() -> None:
    """Keep pyspark and py4j from printing each error as a page of their own, unless the program has set their level."""
    if logging.getLogger("py4j").level == logging.NOTSET:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
