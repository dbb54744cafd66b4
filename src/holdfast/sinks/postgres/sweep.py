"""Finding and clearing what attempts left behind, by its name.

Nobody needs what is cleared here: the attempt is closed with an abort, or a later epoch is decided. So what cannot be
had now, because a task that outlived its attempt still writes to it, may stay: a later sweep gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast.sinks.postgres.names import Mark, table_prefix
from holdfast.sinks.postgres.server import Connection, finish_prepared, psycopg, sql

Doomed: TypeAlias = Callable[[Mark, str], bool]
"""Says of a name, and whose it is, whether it goes."""


def prepared_gids(conn: Connection, owner: str) -> list[str]:
    """Return the prepared transactions of an owner in this database; the server's view shows those of all."""
    query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'holdfast:%'"
    return _owned(owner, [str(gid) for (gid,) in conn.execute(query)])


def staging_tables(conn: Connection, schema: str, owner: str) -> list[str]:
    """Return the staging tables of an owner."""
    query = (
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname::text, %s)"
    )
    return _owned(owner, [str(name) for (name,) in conn.execute(query, [schema, table_prefix(owner)])])


def _owned(owner: str, names: list[str]) -> list[str]:
    return [name for name in names if (mark := Mark.read(name)) is not None and mark.owner == owner]


def clear(conn: Connection, schema: str, owner: str, doomed: Doomed, patience: float) -> None:
    """Drop tables and roll back prepared transactions; wait at most `patience` seconds for each.

    `conn` is one on which each statement is its own transaction.
    """
    conn.execute(f"SET lock_timeout = {max(1, int(patience * 1000)):d}")
    for name in _chosen(prepared_gids(conn, owner), doomed):
        try:
            finish_prepared(conn, "ROLLBACK", name, patience)
        except psycopg.errors.ObjectNotInPrerequisiteState:
            continue
    for name in _chosen(staging_tables(conn, schema, owner), doomed):
        try:
            conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))
        except psycopg.errors.LockNotAvailable:
            continue


def _chosen(names: list[str], doomed: Doomed) -> list[str]:
    return [name for name in names if (mark := Mark.read(name)) is not None and doomed(mark, name)]
