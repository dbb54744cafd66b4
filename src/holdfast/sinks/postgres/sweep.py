"""Removal of the staging tables and prepared transactions of old attempts, found by name.

They are no longer needed: the attempt was aborted, or a later epoch is decided. A table that is still locked, by a task
that outlived its attempt, is skipped: a later sweep removes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast.sinks.postgres.names import Mark, table_prefix
from holdfast.sinks.postgres.server import Connection, finish_prepared, psycopg, sql

Selection: TypeAlias = Callable[[Mark, str], bool]
"""Whether to remove the table or transaction with this mark and name."""


def prepared_gids(conn: Connection, owner: str) -> list[str]:
    """Return the prepared transactions of an owner in this database; the view lists those of all databases."""
    query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'holdfast:%'"
    return _owned(owner, [str(gid) for (gid,) in conn.execute(query)])


def left_over(conn: Connection, schema: str, owner: str) -> tuple[list[str], list[str]]:
    """Return the prepared transactions and the staging tables of an owner."""
    query = (
        "SELECT gid, true FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'holdfast:%%' "
        "UNION ALL SELECT c.relname::text, false FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname::text, %s)"
    )
    found = [(str(name), prepared) for name, prepared in conn.execute(query, [schema, table_prefix(owner)])]
    transactions = [name for name, prepared in found if prepared]
    return _owned(owner, transactions), _owned(owner, [name for name, prepared in found if not prepared])


def _owned(owner: str, names: list[str]) -> list[str]:
    return [name for name in names if (mark := Mark.read(name)) is not None and mark.owner == owner]


def clear(conn: Connection, schema: str, owner: str, selected: Selection, patience: float) -> None:
    """Drop tables and roll back prepared transactions; wait at most `patience` seconds for each.

    `conn` is in autocommit mode. Usually nothing is left, and one query shows that.
    """
    gids, tables = (_chosen(names, selected) for names in left_over(conn, schema, owner))
    if tables:
        conn.execute(f"SET lock_timeout = {max(1, int(patience * 1000)):d}")
    for name in gids:
        try:
            finish_prepared(conn, "ROLLBACK", name, patience)
        except psycopg.errors.ObjectNotInPrerequisiteState:
            continue
    for name in tables:
        try:
            conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))
        except psycopg.errors.LockNotAvailable:
            continue


def _chosen(names: list[str], selected: Selection) -> list[str]:
    return [name for name in names if (mark := Mark.read(name)) is not None and selected(mark, name)]
