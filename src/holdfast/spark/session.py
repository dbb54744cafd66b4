"""The embedded Spark session, for programs that do not create one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext, cloudpickle
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from holdfast._error_text import one_line
from holdfast.errors import JavaMissing, SessionFailed
from holdfast.spark import adapter
from holdfast.spark.class_archive import archived_classes
from holdfast.spark.java_environment import GATEWAY, SUBMITTED, conf_folders, find_java, with_jar
from holdfast.spark.localfiles import CLASS, SETTING
from holdfast.spark.shipping import JARS, with_own_jars

OLDEST_JAVA = 17
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 2, 8)),
    "spark.sql.session.timeZone": "UTC",
}
_DEADLY = (signal.SIGINT, signal.SIGTERM)
_PROGRESS = "spark.ui.showConsoleProgress"  # Spark itself sets it when it is started from Python
_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


def embedded() -> SparkSession:
    """Return the active session, or create one on this machine, as a pipeline does that is run without a session.

    Settings of `spark-submit`, `spark-defaults.conf` and PYSPARK_SUBMIT_ARGS are kept, including the master; the
    settings here are defaults for the others.
    """
    return active_or_new()[0]


def active_or_new() -> tuple[SparkSession, bool]:
    """Return the embedded session, and whether it is new."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # local executors run the driver's interpreter
    require_java()
    try:
        return _made(), True
    except Exception as error:  # Java's text may be pages long
        raise SessionFailed(why=one_line(error)) from error


def _made() -> SparkSession:
    with _undisturbed(), with_jar(), archived_classes(), adapter.deaf_to_sigterm():
        SparkContext._ensure_initialized()  # before that, a SparkConf does not contain the user's settings
    given = SparkConf()
    builder = SparkSession.builder
    master = given.get("spark.master", None)
    if master is None:
        builder = builder.master("local[*]")
    if master is None or master.startswith("local"):
        settings = _SETTINGS if _has_log_settings() else {**_SETTINGS, "spark.log.level": "ERROR"}
        if _has_local_files():
            settings = {**settings, SETTING: CLASS}
        for name, value in settings.items():
            if not given.contains(name):
                builder = builder.config(name, value)
        if _PROGRESS not in os.environ.get(SUBMITTED, ""):
            builder = builder.config(_PROGRESS, "false")
    else:
        builder = builder.config(JARS, with_own_jars(given.get(JARS, None)))
    spark = builder.getOrCreate()
    if adapter.is_local(spark) and not _has_log_settings():
        adapter.quiet(spark)
        silence_spark()
    return spark


@contextlib.contextmanager
def borrowed() -> Iterator[SparkSession]:
    """Provide the active session, or a new one that is stopped afterwards."""
    spark, new = active_or_new()
    try:
        yield spark
    finally:
        if new:
            spark.stop()


def _has_local_files() -> bool:
    """Whether the JVM has `holdfast.LocalFiles`, and no other file system is configured.

    A JVM that was started elsewhere does not have it.
    """
    jvm: Any = SparkContext._jvm
    try:
        jvm.java.lang.Class.forName(CLASS)
    except Py4JJavaError:
        return False
    return jvm.org.apache.hadoop.conf.Configuration().get(SETTING.removeprefix("spark.hadoop.")) is None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals while Java starts: interrupted half-way, pyspark would leave the JVM process running."""
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
    """Raise `JavaMissing` if Spark would find no Java, or one that is too old: its own error is pages long.

    Nothing is checked if a JVM runs already, or if a `spark-env.sh` may choose another Java.
    """
    if SparkContext._gateway is not None or GATEWAY in os.environ or _conf("spark-env.sh"):
        return
    found = find_java(os.environ)
    if found is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no `java` is on the PATH"
        raise JavaMissing(why=where)
    about = found.resolve().parent.parent / "release"
    version = _VERSION.search(about.read_text(errors="replace")) if about.is_file() else None
    if version is not None and int(version[1]) < OLDEST_JAVA:
        raise JavaMissing(why=f"{found} is Java {version[1]}")


def _has_log_settings() -> bool:
    return _conf("log4j2.properties") or "log4j" in os.environ.get(SUBMITTED, "")


def _conf(name: str) -> bool:
    """Whether Spark's configuration contains a file of this name."""
    return any((folder / name).is_file() for folder in conf_folders(os.environ))


def send_by_value(module: ModuleType) -> None:
    """Send functions of a module to executors by value: executors need not import it and run its top level."""
    cloudpickle.register_pickle_by_value(module)


def silence_spark() -> None:
    """Silence the loggers of pyspark and py4j that print a page per error, unless the program has set their level."""
    if logging.getLogger("py4j").level == logging.NOTSET:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_not_of_py4j)  # when its JVM dies, py4j logs a traceback to the root logger
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return not record.pathname.endswith("py4j/java_gateway.py")
