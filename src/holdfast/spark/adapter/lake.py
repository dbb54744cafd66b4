"""Lake tables as the driver's JVM sees them: with the same connector, catalog and credentials as Spark's own source.

It uses these parts of the connectors that are not public API: Delta's cache of logs, and Iceberg's `SparkTable`, which
contains the table that a stream reads.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast._lake_tables import (
    DELTA,
    FAIL_ON_LOSS,
    DeltaNow,
    DeltaPosition,
    IcebergNow,
    IcebergPosition,
    LostTableInput,
    lost_in_delta,
    lost_in_iceberg,
)
from holdfast._redaction import redacted_text
from holdfast.spark.adapter.plans import options_of, streaming_relations

_ICEBERG_TABLE = "org.apache.iceberg.spark.source.SparkTable"
_COMMIT = re.compile(r"/(\d{20})\.json\b")  # in the folder of a Delta log
# Tables whose commits are in a catalog: the folder of the log may lack the newest ones.
_BY_CATALOG = ("catalogManaged", "catalogOwned", "coordinatedCommits")
_GONE = re.compile(
    r"DELTA_TABLE_NOT_FOUND|DELTA_MISSING_DELTA_TABLE|PATH_DOES_NOT_EXIST|NoSuchTableException|Not Found"
)


class NotComparable(Exception):
    """A table cannot be compared; the text gives the reason."""


class TableUnreadable(NotComparable):
    """The facts about a table could not be read this time."""


class LakeInput(ABC):
    """A table that a stream reads."""

    name: str  # its path, or its name in a catalog
    can_skip: ClassVar[bool]  # whether Spark's source has an option to continue after lost versions

    @property
    @abstractmethod
    def skips_loss(self) -> bool:
        """Whether Spark would continue after lost input without an error."""

    @abstractmethod
    def lost_after(self, offset: str | None) -> LostTableInput | None:
        """Return why the table lacks the input after an offset, or `None`; raise `NotComparable` if that is unknown."""


@dataclass(frozen=True)
class DeltaInput(LakeInput):
    """A Delta table, by its path."""

    can_skip: ClassVar[bool] = True
    name: str
    options: Mapping[str, str] = field(hash=False)
    spark: SparkSession = field(compare=False)

    @property
    def skips_loss(self) -> bool:
        """Whether the option failOnDataLoss is false."""
        return self.options.get(FAIL_ON_LOSS.lower(), "true").strip().lower() == "false"

    def lost_after(self, offset: str | None) -> LostTableInput | None:
        """Compare the id of the table, and the versions in its log."""
        position = DeltaPosition.of(offset)
        return None if position is None else lost_in_delta(redacted_text(self.name), position, self._now())

    def _now(self) -> DeltaNow | None:
        jvm: Any = self.spark._jvm
        session: Any = self.spark._jsparkSession
        try:
            jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(session, jvm.org.apache.hadoop.fs.Path(self.name))
            detail = DataFrame(jvm.io.delta.tables.DeltaTable.forPath(session, self.name).detail(), self.spark)
            (found,) = detail.select("id", "location", "tableFeatures").collect()
            if any(each.startswith(_BY_CATALOG) for each in found.tableFeatures or ()):
                raise NotComparable("its commits are kept by a catalog")
            folder = jvm.org.apache.hadoop.fs.Path(f"{found.location}/_delta_log")
            files = folder.getFileSystem(session.sessionState().newHadoopConf()).listStatus(folder)
            paths = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(files)
            names = str(jvm.org.apache.commons.lang3.ArrayUtils.toString(paths))  # in one call, however many
        except (Py4JError, PySparkException, TypeError) as error:  # `TypeError`: the JVM has no such class
            _require_absent(error)
            return None
        return DeltaNow(str(found.id), {int(number) for number in _COMMIT.findall(names)})


@dataclass(frozen=True)
class IcebergInput(LakeInput):
    """An Iceberg table, by the object that the plan contains."""

    can_skip: ClassVar[bool] = False
    name: str
    options: Mapping[str, str] = field(hash=False)
    table: Any = field(compare=False)
    jvm: Any = field(compare=False)

    @property
    def skips_loss(self) -> bool:
        """Spark's source never continues after an expired snapshot."""
        return False

    def lost_after(self, offset: str | None) -> LostTableInput | None:
        """Compare the snapshot with the history of the table."""
        position = IcebergPosition.of(offset)
        return None if position is None else lost_in_iceberg(self.name, position, self._now(position.snapshot))

    def _now(self, snapshot: int) -> IcebergNow | None:
        try:
            self.table.refresh()
            known = self.table.snapshot(snapshot) is not None
            if not known or self.table.currentSnapshot() is None:  # it was replaced by a table without rows
                return IcebergNow(known, in_history=False)
            history = self.jvm.org.apache.iceberg.util.SnapshotUtil
            return IcebergNow(known, in_history=bool(history.isAncestorOf(self.table, snapshot)))
        except (Py4JError, PySparkException, TypeError) as error:
            _require_absent(error)
            return None


def lake_inputs(df: DataFrame) -> list[LakeInput | None]:
    """Return the lake tables that a DataFrame reads, in the order of Spark's offsets; `None` for other sources."""
    spark = df.sparkSession
    return [_input(spark, node) for node in streaming_relations(df)]


def _input(spark: SparkSession, node: Any) -> LakeInput | None:
    options = options_of(node)
    if node.getClass().getSimpleName() == "StreamingRelation":
        is_delta = str(node.sourceName()) == DELTA and "path" in options
        return DeltaInput(options["path"], options, spark) if is_delta else None
    table = node.table()
    if table.getClass().getName() != _ICEBERG_TABLE:
        return None
    return IcebergInput(str(table.table().name()), options, table.table(), spark._jvm)


def _require_absent(error: Exception) -> None:
    """Return if the error means that a table does not exist; raise `TableUnreadable` for any other."""
    found = getattr(error, "java_exception", None)
    text = str(found.toString()) if isinstance(error, Py4JJavaError) and found is not None else str(error)
    if not _GONE.search(text):
        raise TableUnreadable(redacted_text(text.strip().partition("\n")[0])) from error
