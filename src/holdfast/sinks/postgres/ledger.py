"""The ledger: which epochs a table holds. It is kept in the same database, and written together with the rows.

It is the table `holdfast_epochs` in the schema of the target. It has three kinds of rows:

- one per part, `closed` false, written inside the prepared transaction that holds the part's rows. A prepared
  transaction that no longer exists was committed if and only if its row is in the ledger.
- one per epoch, `closed` true, written in the transaction that moves the rows, or after all parts are committed. Only
  this row means that the table holds the epoch: the row of a part does not show whether the other parts are there.
- one per owner, `closed` false, of epoch 0 in timeline 0: its claim, written when the sink is opened. It is kept, so
  that no other stream takes the table before the first epoch is committed, or after a first start that failed.

Rows are kept for the last two epochs of a timeline. `replaces` means that the owner replaces the whole table.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import UnsupportedVersion
from holdfast.sinks.base import EpochKey, Link, StreamIdentity
from holdfast.sinks.held_epochs import HeldEpochs
from holdfast.sinks.postgres.names import claiming_gid, closed_handle, closing_gid, owner_digest
from holdfast.sinks.postgres.server import Connection, sql

LEDGER = "holdfast_epochs"
_VERSION = 1
_CLAIM = (0, 0)  # timeline and epoch of a claim
_COMMENT = "Holdfast's ledger: which epochs the tables of this schema hold; version "
_CREATE = """
CREATE TABLE {ledger} (
    gid text PRIMARY KEY,
    pipeline text NOT NULL,
    uid text NOT NULL,
    stream text NOT NULL,
    sink text NOT NULL,
    target text NOT NULL,
    timeline int8 NOT NULL,
    epoch int8 NOT NULL,
    closed bool NOT NULL,
    replaces bool NOT NULL,
    rows int8 NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


def is_known(conn: Connection, schema: str, target: str) -> bool:
    """Whether a ledger records epochs of any owner in a table."""
    ledger = Ledger(schema, target, StreamIdentity("", "", ""), "", replaces=False)
    query = sql.SQL("SELECT 1 FROM {} WHERE target = {} AND epoch > 0 LIMIT 1").format(
        ledger.table, sql.Literal(target)
    )
    return ledger.exists(conn) and conn.execute(query).fetchone() is not None


@dataclass(frozen=True, slots=True)
class Ledger:
    """One owner's view of the ledger. Every method runs in the caller's transaction."""

    schema: str
    target: str
    owner: StreamIdentity
    sink: str
    replaces: bool

    @property
    def digest(self) -> str:
        """The digest of the owner for use in names."""
        return owner_digest(self.owner, self.sink, self.target)

    @property
    def table(self) -> sql.Identifier:
        """The ledger's name for a statement."""
        return sql.Identifier(self.schema, LEDGER)

    def exists(self, conn: Connection) -> bool:
        """Whether there is a ledger; raise if a later version created it."""
        name = self.table.as_string(conn)
        query = "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(%s)"
        row = conn.execute(query, [name]).fetchone()
        version = str(row[0] or "").partition(_COMMENT)[2] if row else ""
        if version not in ("", str(_VERSION)):  # a copy of a database may lack its comments
            raise UnsupportedVersion(what=f"ledger {name}", found=int(version), known=f"version {_VERSION}")
        return row is not None

    def create(self, conn: Connection) -> None:
        """Create the ledger if it does not exist; the caller holds the lock."""
        if not self.exists(conn):
            conn.execute(sql.SQL(_CREATE).format(ledger=self.table))
            conn.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(self.table, sql.Literal(f"{_COMMENT}{_VERSION}")))

    def claim(self, conn: Connection) -> None:
        """Record the owner of the table; the caller holds the lock."""
        gid = sql.Literal(claiming_gid(self.digest))
        conn.execute(sql.SQL("DELETE FROM {} WHERE gid = {}").format(self.table, gid))
        conn.execute(self._row(_CLAIM, False, gid, sql.Literal(0)))

    def last(self, conn: Connection, timeline: int | None = None) -> tuple[int, int] | None:
        """Return the last closed epoch, of one timeline or of all."""
        query = sql.SQL("SELECT timeline, epoch FROM {} WHERE {} AND closed{} ORDER BY 1 DESC, 2 DESC LIMIT 1")
        within = sql.SQL("") if timeline is None else sql.SQL(" AND timeline = {}").format(sql.Literal(timeline))
        row = conn.execute(query.format(self.table, self._ours, within)).fetchone()
        return (row[0], row[1]) if row else None

    def parts(self, conn: Connection, gids: list[str]) -> dict[str, int]:
        """Return those of these transactions that were committed, with their row counts."""
        query = sql.SQL("SELECT gid, rows FROM {} WHERE gid = ANY ({})").format(self.table, sql.Literal(gids))
        return dict(conn.execute(query).fetchall())

    def held(self, conn: Connection, key: EpochKey) -> HeldEpochs:
        """Return the entries that decide whether an epoch is committed."""
        newest = self.last(conn)
        last = newest if newest and newest[0] == key.timeline else None
        held = self.closed(conn, last) if last else None
        return HeldEpochs(newest[0] if newest else 0, self.closed(conn, key.place), held or Link(0, None))

    def closed(self, conn: Connection, place: tuple[int, int]) -> Link | None:
        """Return the row that closed an epoch. Earlier versions wrote rows without a handle."""
        query = sql.SQL("SELECT gid FROM {} WHERE {} AND closed AND timeline = {} AND epoch = {}")
        row = conn.execute(query.format(self.table, self._ours, *map(sql.Literal, place))).fetchone()
        return Link(place[1], closed_handle(row[0]) or None) if row else None

    def close(self, conn: Connection, key: EpochKey, rows: int, handle: str) -> None:
        """Record that the table holds the epoch, and remove the rows of all epochs before the previous one."""
        before = self.last(conn, key.timeline)
        gid = closing_gid(self.digest, key.place, handle)
        conn.execute(self._row(key.place, True, sql.Literal(gid), sql.Literal(rows)))
        if before is not None:
            conn.execute(
                sql.SQL("DELETE FROM {} WHERE {} AND timeline = {} AND epoch < {}").format(
                    self.table, self._ours, sql.Literal(before[0]), sql.Literal(before[1])
                )
            )

    def part_statement(self, key: EpochKey) -> str:
        """Return the SQL with which an executor inserts the row of its part; its parameters are gid and rows."""
        return self._row(key.place, False, sql.SQL("$1"), sql.SQL("$2")).as_string(None)

    def foreign(self, conn: Connection, *, share: bool) -> str | None:
        """Return another owner that must not share the table with this one, as text.

        That is an earlier pipeline of the same name; every other stream if one of the two replaces the whole table;
        and every other stream unless `share` is set.
        """
        query = sql.SQL(
            "SELECT pipeline, stream, uid FROM {} WHERE target = {} AND (uid, stream, sink) <> ({}, {}, {}) "
            "AND (NOT {} OR replaces OR {} OR (uid <> {} AND pipeline = {} AND stream = {})) ORDER BY at DESC LIMIT 1"
        )
        owner = self.owner
        values = (
            *(self.target, owner.uid, owner.stream, self.sink),
            *(share, self.replaces, owner.uid, owner.pipeline, owner.stream),
        )
        row = conn.execute(query.format(self.table, *map(sql.Literal, values))).fetchone()
        return StreamIdentity(row[0], row[2], row[1]).summary if row else None

    def rival(self, conn: Connection) -> str | None:
        """Return another stream or sink of the same pipeline that must not share the table with this one."""
        query = sql.SQL(
            "SELECT stream, sink FROM {} WHERE target = {} AND uid = {} AND (stream, sink) <> ({}, {}) "
            "AND (replaces OR {}) ORDER BY at DESC LIMIT 1"
        )
        values = (self.target, self.owner.uid, self.owner.stream, self.sink, self.replaces)
        row = conn.execute(query.format(self.table, *map(sql.Literal, values))).fetchone()
        return f"sink {row[1]!r} of stream {row[0]!r}" if row else None

    def _row(self, place: tuple[int, int], closed: bool, gid: sql.Composable, rows: sql.Composable) -> sql.Composed:
        values: dict[str, object] = {
            "pipeline": self.owner.pipeline,
            "uid": self.owner.uid,
            "stream": self.owner.stream,
            "sink": self.sink,
            "target": self.target,
            "timeline": place[0],
            "epoch": place[1],
            "closed": closed,
            "replaces": self.replaces,
        }
        comma = sql.SQL(", ")
        return sql.SQL("INSERT INTO {} ({}, gid, rows) VALUES ({}, {}, {})").format(
            self.table,
            comma.join(map(sql.Identifier, values)),
            comma.join(map(sql.Literal, values.values())),
            gid,
            rows,
        )

    @property
    def _ours(self) -> sql.Composed:
        values = (self.owner.uid, self.owner.stream, self.sink, self.target)
        text = sql.SQL("uid = {} AND stream = {} AND sink = {} AND target = {}")
        return text.format(*map(sql.Literal, values))
