"""Spark's checkpoint files on an object store: our file manager in the JVM, and the connector below it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from holdfast._error_text import one_line
from holdfast._redaction import redacted_text
from holdfast.errors import StorageFailed
from holdfast.spark.adapter.settings import FILE_MANAGER, changing, setting

STORE_FILES = "holdfast.StoreFiles"
ROOTS = "spark.holdfast.store.roots"  # as in StoreFiles.java
OTHERS = "spark.holdfast.store.others"
_S3A = "fs.s3a."
_DEFAULTS = "core-default.xml"  # the source of Hadoop's own defaults
_GIVEN = "holdfast.given."  # prefix of the settings that `set_for_bucket` has given, to tell them from the user's


def hadoop_version(spark: SparkSession) -> str:
    """Return the version of Hadoop in the session's JVM."""
    jvm: Any = spark._jvm
    return str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the JVM of a session can load a class as Spark does."""
    jvm: Any = spark._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, True, False)
    except Py4JJavaError:
        return False
    return True


def set_for_bucket(spark: SparkSession, bucket: str, settings: Mapping[str, str]) -> None:
    """Give the connector settings for one bucket, for the rest of the session, except where the session has its own."""
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in settings.items():
        own = f"{_S3A}bucket.{bucket}.{name.removeprefix(_S3A)}"
        given = conf.get(own) is not None and conf.get(own) != conf.get(f"{_GIVEN}{own}")
        if not given and not _is_set(conf, name):
            conf.set(own, value)
            conf.set(f"{_GIVEN}{own}", value)


def _is_set(conf: Any, name: str) -> bool:
    """Whether a setting has another value than Hadoop's default."""
    sources = conf.getPropertySources(name)
    return sources is not None and list(sources) != [_DEFAULTS]


def serve_root(spark: SparkSession, root: str) -> None:
    """Let our file manager serve the paths below a root, for the rest of the session.

    Sources read the setting some time after a query has started, so it cannot be set for the start alone. While the
    start of another query has changed it, this waits: that start sets the old value again.
    """
    with changing:
        before = setting(spark, FILE_MANAGER)
        if before not in (None, STORE_FILES):
            spark.conf.set(OTHERS, str(before))
        roots = [each for each in (setting(spark, ROOTS) or "").split(",") if each]
        spark.conf.set(ROOTS, ",".join(dict.fromkeys([*roots, root])))
        spark.conf.set(FILE_MANAGER, STORE_FILES)


class StoreFiles:
    """The file manager that Spark uses for a path. Its errors are those of storage; a missing file is `None`."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._jvm: Any = spark._jvm
        self._address = address
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        checkpointing = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        with self._failing_as("open", ""):
            self._manager = checkpointing.CheckpointFileManager.create(self._path(""), conf)

    @property
    def is_ours(self) -> bool:
        """Whether it is our file manager, and serves this path itself."""
        return str(self._manager.getClass().getName()) == STORE_FILES and bool(self._manager.isOwn())

    def write(self, name: str, data: bytes, *, overwrite: bool = False) -> bool:
        """Write a file; return whether that was done: without `overwrite`, an existing file is not replaced."""
        stream = self._manager.createAtomic(self._path(name), overwrite)
        stream.write(data)
        try:
            stream.close()
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in str(error.java_exception.getClass().getName()):
                return False
            raise self._failed("write", name, error) from None
        return True

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or `None` if it does not exist."""
        try:
            stream = self._manager.open(self._path(name))
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception.getClass().getName()):
                return None
            raise self._failed("read", name, error) from None
        with self._failing_as("read", name):
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def names(self) -> list[str]:
        """Return the names of the files, sorted."""
        with self._failing_as("list", ""):
            found = self._manager.list(self._path(""))
            return sorted(str(each.getPath().getName()) for each in found)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._address}/{name}" if name else self._address)

    @contextlib.contextmanager
    def _failing_as(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except Py4JError as error:
            raise self._failed(action, name, error) from None

    def _failed(self, action: str, name: str, error: Py4JError) -> StorageFailed:
        """Return the error, without the Java trace, which may contain what the server answered."""
        java = getattr(error, "java_exception", None)
        why = redacted_text(one_line(RuntimeError(str(java.toString()))) if java is not None else one_line(error))
        return StorageFailed(action=f"{action} through Spark's s3a connector", key=f"{self._address}/{name}", why=why)
