"""The table that a SQLite sink writes to: column types, creation, checks and the INSERT statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import BadValue, NotSupported, SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TYPES = {
    "boolean": "INTEGER",
    "byte": "INTEGER",
    "short": "INTEGER",
    "integer": "INTEGER",
    "long": "INTEGER",
    "float": "REAL",
    "double": "REAL",
    "string": "TEXT",
    "varchar": "TEXT",
    "char": "TEXT",
    "binary": "BLOB",
    "decimal": "TEXT",
    "date": "TEXT",
    "timestamp": "TEXT",
    "timestamp_ntz": "TEXT",
}


@dataclass(frozen=True, slots=True)
class SqliteTable:
    """A table, and how a sink uses it."""

    sink: str
    name: str
    key: tuple[str, ...]
    epoch_column: str | None

    def columns(self, schema: StructType) -> dict[str, str]:
        """Return the columns to write with their SQLite types; refuse a type that SQLite cannot store."""
        found: dict[str, str] = {}
        for each in schema.fields:
            kind = each.dataType.typeName()
            if kind not in _TYPES:
                raise NotSupported(
                    what=f"column {each.name!r} of type {each.dataType.simpleString()} in sink {self.sink!r}",
                    why="SQLite has no such type",
                    do=f"write it as text: to_json({each.name})",
                )
            found[each.name] = _TYPES[kind]
        for column in self.key:
            if column not in found:
                raise BadValue(what="key", value=column, expected=f"a column of the stream: {sorted(found)}")
        if self.epoch_column is not None:
            if self.epoch_column.lower() in {name.lower() for name in found}:
                raise BadValue(what="epoch_column", value=self.epoch_column, why="the stream has a column of this name")
            found[self.epoch_column] = "INTEGER"
        return found

    def exists(self, connection: sqlite3.Connection) -> bool:
        """Whether the table exists."""
        return bool(self._info(connection))

    def create(self, connection: sqlite3.Connection, columns: dict[str, str]) -> None:
        """Create the table, with a unique index on the key."""
        parts = [f"{quoted(name)} {kind}{' NOT NULL' * (name in self.key)}" for name, kind in columns.items()]
        if (
            self.key
        ):  # not PRIMARY KEY: on an integer it would be an alias of the rowid, and NULL would generate a value
            parts.append(f"UNIQUE ({', '.join(map(quoted, self.key))})")
        connection.execute(f"CREATE TABLE {quoted(self.name)} ({', '.join(parts)})")

    def check(self, connection: sqlite3.Connection, columns: dict[str, str]) -> None:
        """Refuse a table that cannot take these columns."""
        required = {row[1].lower(): bool(row[3]) and row[4] is None for row in self._info(connection)}
        missing = [name for name in columns if name.lower() not in required]
        if missing:
            raise self.mismatch(f"it has no column {', '.join(missing)}")
        given = {name.lower() for name in columns}
        for name in (name for name, needed in required.items() if needed and name not in given):
            raise self.mismatch(f"its column {name!r} is NOT NULL without a default, and the stream has no such column")
        if self.key and {name.lower() for name in self.key} not in self.unique_keys(connection):
            raise self.mismatch(f"it has no unique index on ({', '.join(self.key)}), which an upsert needs")

    def mismatch(self, why: str, **advice: str) -> SchemaMismatch:
        """Return the error for a table that does not fit."""
        return SchemaMismatch(sink=self.sink, table=self.name, why=why, **advice)

    def not_null(self, connection: sqlite3.Connection) -> set[str]:
        """Return the columns, in lower case, that do not accept NULL. For a rowid SQLite generates a value."""
        rows = self._info(connection)
        primary = [row for row in rows if row[5]]
        rowids = {row[1] for row in primary if len(primary) == 1 and row[2].upper() == "INTEGER"}
        return {row[1].lower() for row in rows if row[3] and row[1] not in rowids}

    def column_names(self, connection: sqlite3.Connection) -> list[str]:
        """Return the names of the columns, without generated ones; an empty list if there is no such table."""
        return [row[1] for row in self._info(connection)]

    def dependents(self, connection: sqlite3.Connection) -> Iterator[str]:
        """Yield an error text for each trigger on the table, and for each table with a foreign key to it."""
        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?) ORDER BY 1"
        for (name,) in connection.execute(triggers, (self.name,)).fetchall():
            yield f"trigger {name} of its table has effects that cannot be taken back"
        references = (
            "SELECT DISTINCT m.name FROM sqlite_master m JOIN pragma_foreign_key_list(m.name) f "
            "WHERE m.type = 'table' AND m.sql NOT LIKE 'CREATE VIRTUAL%' AND lower(f.\"table\") = lower(?) ORDER BY 1"
        )
        for (name,) in connection.execute(references, (self.name,)).fetchall():
            yield f"a foreign key of table {name} refers to its rows"

    def insert_statement(self, staged: Sequence[str], upsert_by: Sequence[str]) -> str:
        """Return the statement that inserts one row of the staged columns, or replaces the row with the same key."""
        names = [*staged] if self.epoch_column is None else [*staged, self.epoch_column]
        marks = ", ".join("?" * len(names))
        text = f"INSERT INTO {quoted(self.name)} ({', '.join(map(quoted, names))}) VALUES ({marks})"  # noqa: S608 - quoted
        if not upsert_by:
            return text
        rest = [f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in upsert_by]
        keys = ", ".join(map(quoted, upsert_by))
        return f"{text} ON CONFLICT ({keys}) DO " + (f"UPDATE SET {', '.join(rest)}" if rest else "NOTHING")

    def _info(self, connection: sqlite3.Connection) -> list[tuple[int, str, str, int, str | None, int]]:
        """Return number, name, type, NOT NULL, default and primary key of each column."""
        return connection.execute(f"PRAGMA table_info({quoted(self.name)})").fetchall()

    def unique_keys(self, connection: sqlite3.Connection) -> list[set[str]]:
        """Return the columns, in lower case, of the primary key and of each unique index that is not partial."""
        found = []
        if primary := {row[1].lower() for row in self._info(connection) if row[5]}:
            found.append(primary)
        for index in connection.execute(f"PRAGMA index_list({quoted(self.name)})").fetchall():
            if index[2] and not index[4]:  # unique, and not partial
                rows = connection.execute(f"PRAGMA index_info({quoted(index[1])})").fetchall()
                found.append({str(row[2]).lower() for row in rows})
        return found


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'
