"""Settings of a Spark session: the ones that Holdfast requires, sets for a query, or changes for a while."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import BadValue, NotSupported

LEAST_RETAINED = 10
RETAIN = "spark.sql.streaming.minBatchesToRetain"
RETAINED = 100  # Spark's default
POLLING_DELAY = "spark.sql.streaming.pollingDelay"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
STATE_STORE = "spark.sql.streaming.stateStore"  # prefix of the settings of state stores
_PACKAGE = "org.apache.spark.sql.execution.streaming"
PROVIDER = f"{STATE_STORE}.providerClass"
_ROCKSDB = f"{_PACKAGE}.state.RocksDBStateStoreProvider"
FAST_FILES = {FILE_MANAGER: f"{_PACKAGE}.checkpointing.FileSystemBasedCheckpointFileManager"}
STATE = {
    PROVIDER: _ROCKSDB,
    f"{STATE_STORE}.checkpointFormatVersion": "2",
    f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
_FORMAT = f"{STATE_STORE}.checkpointFormatVersion"
STORE_QUERY = {  # for queries whose checkpoint is on an object store
    f"{STATE_STORE}.maxVersionsToDeletePerMaintenance": "0",  # Holdfast removes state files, Spark must not
    "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "1000000",  # otherwise "deleted" files are read again
}
_VERBOSE = (  # loggers, relative to Spark's root package
    "broadcast.TorrentBroadcast",
    "executor.Executor",
    "scheduler.TaskSetManager",
    "sql.execution.datasources.FileFormatWriter",
    "sql.execution.datasources.v2",
    "sql.execution.streaming.runtime.MicroBatchExecution",
    "util.Utils",
)
changing = threading.RLock()  # the settings of a session are changed for one query at a time
_log = logging.getLogger(__name__)


def require_classic(spark: SparkSession) -> None:
    """Refuse Spark Connect sessions. Unsupported PySpark versions were refused when this package was imported."""
    if not isinstance(spark, SparkSession):
        if not type(spark).__module__.startswith("pyspark.sql.connect"):
            raise BadValue(what="spark", value=spark, expected="a SparkSession", do="pass one, or none at all")
        why = "its driver is elsewhere: neither its files nor its lock can be reached from here"
        raise NotSupported(what="a Spark Connect session", why=why, do="run the program on the driver: spark-submit")


def is_local(spark: SparkSession) -> bool:
    """Whether executors are on this machine."""
    return str(spark.sparkContext.master).startswith("local")


def setting(spark: SparkSession, name: str) -> str | None:
    """Return a setting that was set explicitly, or `None` if Spark's default applies."""
    found = spark.conf.get(name, None)
    return None if found is None else str(found)


def require_retention(spark: SparkSession) -> int:
    """Return how many batches Spark retains; refuse too few, because recovery may need the last ones."""
    kept = int(setting(spark, RETAIN) or RETAINED)
    if kept < LEAST_RETAINED:
        why = f"recovery and checkpoints need at least {LEAST_RETAINED} batches"
        raise NotSupported(what=f"{RETAIN}={kept}", why=why, do=f"set {RETAIN} to {RETAINED}, its default")
    return kept


def require_store_settings(spark: SparkSession) -> None:
    """Refuse explicit settings of a session with which Spark's checkpoint cannot be on an object store."""
    kept = int(setting(spark, RETAIN) or RETAINED)
    if kept < RETAINED:
        why = f"on an object store, at least {RETAINED} batches are needed: clean-up goes by them"
        raise NotSupported(what=f"{RETAIN}={kept}", why=why, do=f"unset it, or set it to {RETAINED} or more")
    for name, value in STORE_QUERY.items():
        found = setting(spark, name)
        if found is not None and float(found) != float(value):
            why = "on an object store, Spark must not remove state files: Holdfast does"
            raise NotSupported(what=f"{name}={found}", why=why, do=f"unset it, or set it to {value}")


def require_store_state(stream: str, settings: Mapping[str, str]) -> None:
    """Refuse state settings of a stream whose checkpoint is on an object store: names of files must be used once."""
    wanted = {PROVIDER: _ROCKSDB, _FORMAT: "2"}
    for name, value in wanted.items():
        found = settings.get(name)
        if found != value:
            why = "on an object store, every state file needs a name of its own, which only RocksDB in format 2 gives"
            do = f"set {name}={value} before the first start of the stream, or use a root on a local disk"
            raise NotSupported(what=f"{name}={found} in stream {stream!r}", why=why, do=do)


def state_settings(spark: SparkSession) -> dict[str, str]:
    """Return the state-store settings of a new stream: Holdfast's defaults, overridden by explicit settings."""
    if setting(spark, PROVIDER) not in (None, _ROCKSDB):
        return {name: found for name in STATE if (found := setting(spark, name)) is not None}
    return {name: setting(spark, name) or value for name, value in STATE.items()}


def adopted_settings(confs: Mapping[str, str], state_format: int, *, changelog: bool) -> dict[str, str]:
    """Return the state-store settings of a stream that continues a plain Spark query: those that its files have."""
    provider = confs.get(PROVIDER)
    found = {PROVIDER: provider} if provider else {}
    found[f"{STATE_STORE}.checkpointFormatVersion"] = str(state_format)
    if provider == _ROCKSDB:
        found[f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled"] = str(changelog).lower()
    return found


def state_reading(state_format: str, confs: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that Spark's state reader needs for a folder: those that the query was started with."""
    version = state_format.rpartition("-")[2]
    pinned = {name: value for name, value in confs.items() if name.startswith(STATE_STORE)}
    return {**pinned, f"{STATE_STORE}.checkpointFormatVersion": version}


@contextlib.contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for a while. A query that starts meanwhile keeps them: it clones the session."""
    with changing:
        before = {name: setting(spark, name) for name in settings}
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)


def let_replace_sources(spark: SparkSession) -> None:
    """Silence Spark's warning that a data source is registered again: it is intended."""
    with contextlib.suppress(Exception):  # with another logging library, Spark still warns
        logging_: Any = spark._jvm.org.apache.logging.log4j
        name = "org.apache.spark.sql.execution.datasources.DataSourceManager"
        logging_.core.config.Configurator.setLevel(name, logging_.Level.ERROR)


def quiet(spark: SparkSession) -> None:
    """Silence the Spark loggers that print pages when a query fails: Holdfast reports the failure in one line.

    The exception has the same text. Does nothing if the logger `holdfast` is at DEBUG.
    """
    if _log.isEnabledFor(logging.DEBUG):
        return
    with contextlib.suppress(Exception):  # with another logging library, Spark still prints them
        logging_: Any = spark._jvm.org.apache.logging.log4j
        for name in _VERBOSE:
            logging_.core.config.Configurator.setLevel(f"org.apache.spark.{name}", logging_.Level.OFF)


def folder_mode(spark: SparkSession) -> int:
    """Return the permissions of folders that Spark creates: Hadoop has its own umask."""
    jvm: Any = spark._jvm
    umask = jvm.org.apache.hadoop.fs.permission.FsPermission.getUMask(spark.sparkContext._jsc.hadoopConfiguration())
    return 0o777 & ~int(umask.toShort())
