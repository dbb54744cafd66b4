"""A PostgreSQL table for one test: sinks for it, and what can be seen of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.epoch import Attempt
from holdfast.sinks.base import EpochKey, SinkContext, Staged, StreamIdentity
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.spark.adapter import few_rows
from pgfixture import Postgres

OWNER = StreamIdentity("shop", "uid-1", "orders")
SCHEMA = "n long, text string"
METHODS = ("prepared", "staged")


class Crash(Exception):
    pass


def key(
    epoch: int, *, attempt: int = 1, lease: int | None = 1, timeline: int = 1, owner: StreamIdentity = OWNER
) -> EpochKey:
    return EpochKey(owner, Attempt(stream=owner.stream, timeline=timeline, epoch=epoch, attempt=attempt), lease)


class Table:
    """A table in a database of its own: sinks for it, and what can be seen of it."""

    def __init__(self, pg: Postgres, spark: SparkSession) -> None:
        self.pg = pg
        self.spark = spark
        self.db = pg.fresh_database()
        self.told: list[str] = []

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        return [self.pg.execute(statement, self.db) for statement in statements][-1]

    def made(self, table: str = "orders", **options: Any) -> PostgresSink:
        return PostgresSink(self.pg.dsn(self.db), table, **options)

    def opened(
        self,
        sink: PostgresSink | None = None,
        *,
        mode: str = "append",
        schema: str = SCHEMA,
        dies_at: str | None = None,
        reach: Callable[[str], None] | None = None,
        owner: StreamIdentity = OWNER,
        **options: Any,
    ) -> PostgresSink:
        def dies(point: str) -> None:
            if point == dies_at:
                raise Crash(point)

        sink = sink or self.made(create=True, **options)
        types = self.spark.createDataFrame([], schema).schema
        tell = self.told.append
        collect = few_rows(self.spark, freezes=False)
        sink.open(SinkContext(owner, types, mode, self.spark, reach=reach or dies, tell=tell, collect=collect))
        return sink

    def rows(self, *numbers: int) -> DataFrame:
        values = ", ".join(f"({n}L, 'row {n}')" for n in numbers or [0])
        df = self.spark.sql(f"SELECT * FROM VALUES {values} AS t(n, text)")  # noqa: S608
        return (df if numbers else df.where("false")).repartition(2)

    def epoch(self, sink: PostgresSink, epoch: int, df: DataFrame) -> Staged:
        staged = sink.prepare(df, key(epoch))
        sink.commit(key(epoch), staged.handle)
        return staged

    def read(self, columns: str, name: str = "orders", rest: str = "") -> list[tuple[Any, ...]]:
        return self.run(f"SELECT {columns} FROM {name} {rest}")  # noqa: S608

    def visible(self, query: str = "SELECT n FROM orders ORDER BY n") -> list[Any]:
        return [row[0] if len(row) == 1 else row for row in self.run(query)]

    def prepared(self) -> list[str]:
        return self.visible("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid")

    def stages(self) -> list[str]:
        return self.visible("SELECT relname FROM pg_class WHERE relname LIKE 'holdfast_stage%' AND relkind = 'r'")

    def left(self) -> int:
        return len(self.prepared()) + len(self.stages())

    def ledger(self) -> list[Any]:
        """The epochs that it tells of; a claim is none."""
        columns = "timeline, epoch, closed, rows"
        return self.visible(f"SELECT {columns} FROM holdfast_epochs WHERE epoch > 0 ORDER BY 1, 2, 3, 4")  # noqa: S608
