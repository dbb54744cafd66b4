"""PostgreSQL tables whose epochs are staged by hand: one database for each instance."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, ClassVar

from handstaged import HandStaged
from holdfast.sinks.base import Sink
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.testing.sinks import VisibleRows
from pgfixture import server

_folders: weakref.WeakKeyDictionary[Sink, Path] = weakref.WeakKeyDictionary()  # a sink keeps connections while it lives


class PostgresPrepared(HandStaged):
    options: ClassVar[dict[str, Any]] = {"method": "prepared", "epoch_column": "epoch"}

    def database(self, folder: Path) -> str:
        """The database of a folder; a test may have several."""
        made: dict[Path, str] = self.__dict__.setdefault("made", {})
        if folder not in made:
            made[folder] = server().fresh_database()
        return made[folder]

    def run(self, folder: Path, statement: str) -> list[tuple[Any, ...]]:
        return server().execute(statement, self.database(folder))

    def make(self, folder: Path) -> Sink:
        dsn = server().dsn(self.database(folder))
        sink = PostgresSink(dsn, "rows", create=True, **{"lock_timeout": 20, **self.options})
        _folders[sink] = folder
        return sink

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        return self.run(_folders[sink], "SELECT n, text FROM rows")

    def left(self, folder: Path) -> int:
        """How many prepared transactions and staging tables there are."""
        gids = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        tables = "SELECT relname FROM pg_class WHERE relname LIKE 'holdfast_stage%' AND relkind = 'r'"
        return len(self.run(folder, gids)) + len(self.run(folder, tables))


class PostgresStaged(PostgresPrepared):
    options: ClassVar[dict[str, Any]] = {"method": "staged", "epoch_column": "epoch"}
