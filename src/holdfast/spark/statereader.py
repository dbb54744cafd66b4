"""Read the state of a checkpoint with Spark, and compare two states key by key.

Spark's state reader takes the provider and the format from the session, not from the folder, so both are set around
each read. Rows are read inside that block, never later. A checkpoint's files are restored into a temporary folder
first.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from holdfast._error_text import one_line
from holdfast.difference import Difference, KeyCounts, diff
from holdfast.errors import HoldfastError, NotSupported, StorageFailed
from holdfast.eventlog.homes import home_of
from holdfast.formats.manifest_parts import Severity, StreamCut
from holdfast.repository import Repository
from holdfast.repository.files import hadoop_address
from holdfast.restore import RestorePlan, plan_restore, restore_stream
from holdfast.spark import adapter
from holdfast.spark.logsource import LogReader
from holdfast.verification import Finding, FindingCode, ReadData

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNREADABLE = ("transformWithState", "transformWithStateInPySpark")  # one store holds several variables


@dataclass(frozen=True, slots=True)
class StateDigest:
    """The content of one store of one operator: the number of keys, and an order-independent digest."""

    keys: int
    digest: str


def read_data(spark: SparkSession, repository: Repository) -> ReadData:
    """Return the check of `verify` for its highest grade: it loads the state of every stream, and checks its logs."""

    def look(plan: RestorePlan) -> Iterator[Finding]:
        for name, cut in plan.manifest.streams.items():
            yield from _lost_events(plan, name, cut)
            if cut.state_format is None:
                continue
            try:
                with _restored(repository, plan, name) as folder:
                    StateFolder(spark, folder, cut.state_format, cut.confs).digests()
            except NotSupported as error:
                yield Finding("state-not-read", Severity.WARNING, str(error), f"stream {name!r}")
            except Exception as error:  # any error of Spark
                yield Finding(FindingCode.STATE_UNREADABLE, Severity.ERROR, one_line(error), f"stream {name!r}")

    return look


def diff_keys(spark: SparkSession, repository: Repository, a: int | str, b: int | str) -> Difference:
    """Compare two checkpoints as `diff` does, and their states key by key."""
    found = diff(repository, a, b)
    old, new = plan_restore(repository, a), plan_restore(repository, b)
    for name in found.streams:
        cuts = old.manifest.streams[name], new.manifest.streams[name]
        if cuts[0].state_format is None or cuts[1].state_format is None:
            continue
        with _restored(repository, old, name) as before, _restored(repository, new, name) as now:
            older = StateFolder(spark, before, cuts[0].state_format, cuts[0].confs)
            newer = StateFolder(spark, now, cuts[1].state_format, cuts[1].confs)
            found = found.with_keys(name, newer.changes(older))
    return found


def _lost_events(plan: RestorePlan, name: str, cut: StreamCut) -> Iterator[Finding]:
    """Check whether the event logs that a stream reads still contain its offsets."""
    notes = {
        note["log"]: note for above in plan.manifest.streams.values() for note in above.sinks.values() if "log" in note
    }
    for offset in cut.offsets:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            at = json.loads(offset or "null")
            note = notes[at["log"]]
            try:
                LogReader(home_of(str(note["path"])), StructType(), None, 1).position(at)
            except StorageFailed as error:
                yield Finding(FindingCode.UNREADABLE, Severity.ERROR, str(error), f"stream {name!r}")
            except HoldfastError as error:
                yield Finding("source-lost", Severity.ERROR, str(error), f"stream {name!r}")


@contextlib.contextmanager
def _restored(repository: Repository, plan: RestorePlan, stream: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        restore_stream(repository, plan, stream, Path(folder) / "spark")
        yield Path(folder) / "spark"


class StateFolder:
    """The state in one of Spark's checkpoint folders: a local one, or one at an address."""

    def __init__(self, spark: SparkSession, folder: Path | str, state_format: str, confs: Mapping[str, str]) -> None:
        self._spark = spark
        self._address = folder if isinstance(folder, str) else hadoop_address(folder)
        self._settings = adapter.state_reading(state_format, confs)

    def digests(self) -> dict[str, StateDigest]:
        """Read every store completely; return its digest, by operator and store."""
        with self.reading():
            return {name: _digest(self._store(name)) for name in self.stores()}

    def stores(self) -> list[str]:
        """Return the names of all stores, as `operator/store`."""
        rows = self._spark.read.format("state-metadata").load(self._address).collect()
        for row in rows:
            if str(row.operatorName).startswith(_UNREADABLE):
                why = "its state variables cannot be read without their names"
                raise NotSupported(what=f"reading the state of {row.operatorName}", why=why, do="verify by digests")
        return sorted({f"{row.operatorId}/{row.stateStoreName}" for row in rows})

    def changes(self, older: StateFolder) -> dict[str, KeyCounts]:
        """Compare with an older state; return the counts by store."""
        with self.reading():
            mine = {name: _hashed(self._store(name)).cache() for name in self.stores()}
            for each in mine.values():
                each.count()
        try:
            with older.reading():
                theirs = {name: _hashed(older._store(name)) for name in older.stores()}
                empty = next(iter([*mine.values(), *theirs.values()]), None)
                return {
                    name: _compared(mine.get(name, _none(empty)), theirs.get(name, _none(empty)))
                    for name in sorted(mine.keys() | theirs.keys())
                }
        finally:
            for each in mine.values():
                each.unpersist()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Set the session to the state format of this folder."""
        with adapter.with_settings(self._spark, self._settings):
            yield

    def _store(self, name: str) -> DataFrame:
        operator, _, store = name.partition("/")
        reader = self._spark.read.format("statestore").option("operatorId", operator)
        if store != "default":
            reader = reader.option("storeName", store)
        return reader.load(self._address)


def _none(like: DataFrame | None) -> DataFrame:
    if like is None:
        raise NotSupported(what="comparing states", why="neither checkpoint has state")
    return like.limit(0)


def _hashed(state: DataFrame) -> DataFrame:
    """Return each key as JSON, so that keys of any type can be compared, and a hash of its value."""
    return state.select(f.to_json("key").alias("key"), f.xxhash64(f.to_json("value")).alias("value"))


def _digest(state: DataFrame) -> StateDigest:
    row = f.xxhash64(f.to_json("key"), f.to_json("value"))
    found = state.agg(
        f.count(f.lit(1)).alias("keys"), f.bit_xor(row).alias("xor"), f.sum(row.cast("decimal(20,0)")).alias("sum")
    ).first()
    return StateDigest(int(found["keys"]), f"{found['keys']}:{found['xor'] or 0}:{found['sum'] or 0}")


def _compared(now: DataFrame, before: DataFrame) -> KeyCounts:
    both = now.alias("now").join(before.alias("before"), "key", "full_outer")
    mine, theirs = f.col("now.value"), f.col("before.value")
    found = both.agg(
        f.count_if(theirs.isNull()).alias("added"),
        f.count_if(mine.isNotNull() & theirs.isNotNull() & (mine != theirs)).alias("changed"),
        f.count_if(mine.isNull()).alias("removed"),
    ).first()
    return KeyCounts(int(found["added"]), int(found["changed"]), int(found["removed"]))
