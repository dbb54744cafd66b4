"""The table that a PostgreSQL sink writes to: its description, creation, and checks before the first epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.errors import BadValue
from holdfast.sinks.postgres.column_types import Fit, StreamColumn, TableColumn, fit
from holdfast.sinks.postgres.copying import PART_COLUMN
from holdfast.sinks.postgres.names import LONGEST_TABLE
from holdfast.sinks.postgres.server import Connection, sql

_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".]+)')
_RELATION = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text,
       EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal),
       row_security_active(c.oid),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion)),
       ARRAY (SELECT privilege FROM unnest(ARRAY['INSERT', 'SELECT', 'UPDATE', 'DELETE']) privilege
              WHERE CASE privilege WHEN 'DELETE' THEN has_table_privilege(c.oid, privilege)
                                   ELSE has_any_column_privilege(c.oid, privilege) END),
       has_schema_privilege(n.oid, 'CREATE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type(a.atttypid, -1), inner_.typname,
       (CASE WHEN t.typtype = 'd' THEN t.typtype ELSE inner_.typtype END)::text,
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
       outer_.typcategory = 'A',
       a.attnotnull AND NOT (a.atthasdef OR a.attidentity <> ''),
       a.attgenerated <> '' OR a.attidentity = 'a',
       CASE WHEN a.attcollation <> t.typcollation THEN ARRAY[cn.nspname, co.collname]::text[] END,
       a.attnotnull
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type outer_ ON outer_.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
JOIN pg_type inner_ ON inner_.oid = CASE WHEN outer_.typcategory = 'A' THEN outer_.typelem ELSE outer_.oid END
LEFT JOIN pg_collation co ON co.oid = a.attcollation
LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
# The unique indexes that ON CONFLICT (columns) can use: not partial, valid, not deferrable, on plain columns only.
_ARBITERS = """
SELECT ARRAY (SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
FROM pg_index i
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
"""


class Effect(StrEnum):
    """The effect of an epoch on the table."""

    APPEND = "append"
    UPSERT = "upsert"
    REPLACE = "replace"


_RIGHTS = {
    Effect.APPEND: {"INSERT"},
    Effect.UPSERT: {"INSERT", "SELECT", "UPDATE"},
    Effect.REPLACE: {"INSERT", "DELETE"},
}


@dataclass(frozen=True, slots=True)
class TableName:
    """The table's name as the user passed it. Without a schema, the search path applies."""

    schema: str | None
    table: str

    @classmethod
    def read(cls, text: object) -> TableName:
        """Parse `table` or `schema.table`. Names are case-sensitive; a name with a dot needs double quotes."""
        expected = 'a str: table, schema.table, or "odd.schema"."odd ""table"""'
        if isinstance(text, str):
            found = list(_PART.finditer(text))
            if found and ".".join(part.group() for part in found) == text and len(found) <= 2:
                names = [part["plain"] or part["quoted"].replace('""', '"') for part in found]
                expected = f"names of at most {LONGEST_TABLE} bytes"
                if all(len(name.encode()) <= LONGEST_TABLE for name in names):
                    return cls(names[0] if len(names) == 2 else None, names[-1])
        raise BadValue(what="table", value=text, expected=expected)

    @property
    def identifier(self) -> sql.Identifier:
        """The name for a statement."""
        return sql.Identifier(self.schema, self.table) if self.schema else sql.Identifier(self.table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table


@dataclass(frozen=True, slots=True)
class Table:
    """An existing table."""

    schema: str
    name: str
    kind: str
    triggers: bool
    row_security: bool
    unique: bool  # has a unique or exclusion constraint or index
    rights: frozenset[str]
    may_create: bool
    columns: tuple[TableColumn, ...]
    not_null: frozenset[str]
    arbiters: tuple[frozenset[str], ...]

    @property
    def identifier(self) -> sql.Identifier:
        """Its name for a statement."""
        return sql.Identifier(self.schema, self.name)

    @property
    def target(self) -> str:
        """Its name for the ledger, always in the same form."""
        return self.identifier.as_string(None)

    def column(self, name: str) -> TableColumn | None:
        """Return one column."""
        return next((each for each in self.columns if each.name == name), None)


def find_table(conn: Connection, name: TableName) -> Table | None:
    """Return the description of a table, or `None` if it does not exist."""
    row = conn.execute(_RELATION, [name.identifier.as_string(conn)]).fetchone()
    if row is None:
        return None
    oid, schema, table, kind, triggers, secured, unique, rights, may_create = row
    columns = read_columns(conn, oid)
    return Table(
        schema,
        table,
        kind,
        triggers,
        secured,
        unique,
        frozenset(rights),
        may_create,
        tuple(column for column, _ in columns),
        frozenset(column.name for column, filled in columns if filled),
        tuple(frozenset(names) for (names,) in conn.execute(_ARBITERS, [oid])),
    )


def read_columns(conn: Connection, oid: int) -> list[tuple[TableColumn, bool]]:
    """Return a table's columns, each with whether it is NOT NULL."""
    return [(TableColumn(*facts), filled) for *facts, filled in conn.execute(_COLUMNS, [oid])]


def create_table(
    conn: Connection, name: TableName, columns: Sequence[StreamColumn], key: Sequence[str], epoch_column: str | None
) -> None:
    """Create the table, with the key as its primary key."""
    lines: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.sql)) for column in columns
    ]
    if epoch_column:
        lines.append(sql.SQL("{} int8").format(sql.Identifier(epoch_column)))
    if key:
        lines.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
    conn.execute(sql.SQL("CREATE TABLE {} ({})").format(name.identifier, sql.SQL(", ").join(lines)))


def unfit_names(columns: Sequence[StreamColumn], key: Sequence[str], epoch_column: str | None) -> Iterator[str]:
    """Yield an error text for each name that is too long, reserved, or not a column of the stream."""
    names = [column.name for column in columns]
    for name in names:
        if len(name.encode()) > LONGEST_TABLE:
            yield f"the name of column {name!r} has more than {LONGEST_TABLE} bytes"
    if PART_COLUMN in names:
        yield f"the name of column {PART_COLUMN!r} is reserved for the staging table"
    if epoch_column in names:
        yield f"column {epoch_column!r} is a column of the stream and cannot be the epoch column too"
    for name in key:
        if name not in names:
            yield f"key column {name!r} is not among the stream's columns"


def misfits(table: Table, columns: Sequence[StreamColumn], epoch_column: str | None) -> Iterator[str]:
    """Yield an error text for each reason why a table does not accept the stream's columns."""
    for column in columns:
        found = table.column(column.name)
        if found is None:
            listed = ", ".join(repr(each.name) for each in table.columns)
            yield f"it has no column {column.name!r} (it has {listed})"
        elif found.generated:
            yield f"column {column.name!r} is generated by the table"
        elif fit(column, found) is Fit.NONE:
            yield f"column {column.name!r} is {found.type}, which does not accept {column.spark} (use {column.sql})"
    if epoch_column:
        found = table.column(epoch_column)
        if found is None or found.base != "int8" or found.array or found.generated:
            yield f"the epoch column {epoch_column!r} does not exist, or is not a plain bigint"
    filled = {column.name for column in columns} | {epoch_column}
    for found in table.columns:
        if found.required and found.name not in filled:
            yield f"column {found.name!r} is NOT NULL without a default, and the stream has no such column"


def lacking_right(table: Table, effect: Effect, stages: bool) -> str | None:
    """Return the privilege that the database user lacks, in SQL, or `None`."""
    lacking = ", ".join(sorted(_RIGHTS[effect] - table.rights))
    if lacking:
        return f"{lacking} ON {table.target}"
    if stages and not table.may_create:
        return f"CREATE ON SCHEMA {sql.Identifier(table.schema).as_string(None)}"
    return None


def obstacles(table: Table, columns: Sequence[StreamColumn], effect: Effect) -> Iterator[str]:
    """Yield each reason why this table cannot be written with prepared transactions."""
    if effect is not Effect.APPEND:
        yield f"they can only append, and this sink has to {effect}"
    if table.kind != "r":
        yield "the table is partitioned"
    if table.unique:
        # A prepared transaction keeps its keys locked, and the server's deadlock detector does not see waits for it.
        yield "the table has a unique or exclusion constraint or index, so a retried task would wait for its own rows"
    if table.triggers or table.row_security:
        yield "the table has triggers or row level security"
    for column in columns:
        found = table.column(column.name)
        if found is None or fit(column, found) is not Fit.SAME:
            yield f"column {column.name!r} has to be converted"
