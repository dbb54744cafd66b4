"""Spark's state, read back for real: from the folder of a stream's snapshot, as of its last commit.

Spark's own reader of state takes the provider and the format from the session, not from the folder, so both are set
around each read. Rows are read inside it, never later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from holdfast.errors import NotSupported
from holdfast.repository.files import hadoop_address
from holdfast.spark import adapter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNREADABLE = ("transformWithState", "transformWithStateInPySpark")  # one store holds several variables


@dataclass(frozen=True, slots=True)
class StateDigest:
    """What one store of one operator holds: how many keys, and a digest of keys and values that knows no order."""

    keys: int
    digest: str


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """How the keys of a state differ from those of another."""

    added: int
    changed: int
    removed: int


class StateFolder:
    """The state in one folder of Spark's."""

    def __init__(self, spark: SparkSession, folder: Path, state_format: str, confs: Mapping[str, str]) -> None:
        self._spark = spark
        self._address = hadoop_address(folder)
        self._settings = adapter.state_reading(state_format, confs)

    def digests(self) -> dict[str, StateDigest]:
        """Read every store whole; return what each holds, by operator and store."""
        with self.reading():
            return {name: _digest(self._store(name)) for name in self.stores()}

    def stores(self) -> list[str]:
        """Return the stores that there are, as `operator/store`."""
        rows = self._spark.read.format("state-metadata").load(self._address).collect()
        for row in rows:
            if str(row.operatorName).startswith(_UNREADABLE):
                why = "its state variables cannot be read without their names"
                raise NotSupported(what=f"reading the state of {row.operatorName}", why=why, do="verify by digests")
        return sorted({f"{row.operatorId}/{row.stateStoreName}" for row in rows})

    def changes(self, older: StateFolder) -> dict[str, KeyCounts]:
        """Compare with an older state, store by store."""
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
        """Let the session read this folder's format for a while."""
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
        raise NotSupported(what="comparing states", why="neither has any")
    return like.limit(0)


def _hashed(state: DataFrame) -> DataFrame:
    """Return each key as JSON, which any type of key can be compared by, and a hash of its value."""
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
