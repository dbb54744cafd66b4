"""The ledger: which epochs a table holds. It is kept in the same database, and written together with the rows.

It is the table `holdfast_epochs` in the schema of the target. It has five kinds of rows:

- one per part, `closed` false, written inside the prepared transaction that holds the part's rows. A prepared
  transaction that no longer exists was committed if and only if its row is in the ledger.
- one per epoch, `closed` true, written in the transaction that moves the rows, or after all parts are committed. Only
  this row means that the table holds the epoch: the row of a part does not show whether the other parts are there.
- one per owner, `closed` false, of epoch 0 in timeline 0: its claim, written when the sink is opened. It is kept, so
  that no other stream takes the table before the first epoch is committed, or after a first start that failed.
- one per owner, `closed` false, of epoch 0 in timeline 0: its mode, written when the sink is opened. It records how
  rows are written, and in `rows` the first epoch from which on all are written like that. A rewind needs both.
- one per rewind, `closed` true: its stamp, of the timeline that it begins and the last epoch that it keeps.

Rows are kept for the last two epochs of a timeline. `replaces` means that the owner replaces the whole table.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import UnsupportedVersion
from holdfast.sinks.asides import owner_digest
from holdfast.sinks.base import EpochKey, EpochPlace, Link, StreamIdentity
from holdfast.sinks.held_epochs import HeldEpochs
from holdfast.sinks.postgres.names import claiming_gid, closed_handle, closing_gid, mode_gid
from holdfast.sinks.postgres.server import Connection, sql
from holdfast.sinks.postgres.target_table import Effect

LEDGER = "holdfast_epochs"
_VERSION = 1
_CLAIM = (0, 0)  # timeline and epoch of a claim
_UNSURE = 2  # epochs after the last closed one: the next may be decided already, with a handle of the previous mode
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
class TableMode:
    """How the rows of a table are written, and since which epoch."""

    effect: Effect
    column: str  # the epoch column; empty: none
    since: int


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

    def mode(self, conn: Connection) -> TableMode | None:
        """Return how rows are written; `None` if only earlier versions have opened the table."""
        query = sql.SQL("SELECT gid, rows FROM {} WHERE {} AND timeline = 0 AND starts_with(gid, {})")
        prefix = mode_gid(self.digest, "")
        row = conn.execute(query.format(self.table, self._ours, sql.Literal(prefix))).fetchone()
        if row is None:
            return None
        effect, _, column = str(row[0]).removeprefix(prefix).partition(":")
        return TableMode(Effect(effect), column, row[1]) if effect in set(Effect) else None

    def note_mode(self, conn: Connection, effect: Effect, column: str | None) -> None:
        """Record how rows are written from now on, unless it is recorded; the caller holds the lock."""
        before, newest = self.mode(conn), self.newest(conn)
        if before is not None and (before.effect, before.column) == (effect, column or ""):
            return
        since = 0 if before is None and newest is None else (newest or _CLAIM)[1] + _UNSURE
        old = sql.SQL("DELETE FROM {} WHERE {} AND timeline = 0 AND starts_with(gid, {})")
        conn.execute(old.format(self.table, self._ours, sql.Literal(mode_gid(self.digest, ""))))
        gid = sql.Literal(mode_gid(self.digest, f"{effect}:{column or ''}"))
        conn.execute(self._row(_CLAIM, False, gid, sql.Literal(since)))

    def written_since(self, conn: Connection, epoch: int) -> None:
        """Record that only epochs from this one on are known to be written in the current mode."""
        update = sql.SQL("UPDATE {} SET rows = {} WHERE {} AND timeline = 0 AND starts_with(gid, {})")
        values = (self.table, sql.Literal(epoch), self._ours, sql.Literal(mode_gid(self.digest, "")))
        conn.execute(update.format(*values))

    def newest(self, conn: Connection) -> EpochPlace | None:
        """Return the last epoch of which the table holds anything, or the stamp; `None` if there is none."""
        query = sql.SQL("SELECT timeline, epoch FROM {} WHERE {} AND timeline > 0 ORDER BY 1 DESC, 2 DESC LIMIT 1")
        row = conn.execute(query.format(self.table, self._ours)).fetchone()
        return (row[0], row[1]) if row else None

    def stamp(self, conn: Connection, base: EpochPlace, into: int) -> None:
        """Record the beginning of a timeline at a base, and remove the rows of earlier ones."""
        old = sql.SQL("DELETE FROM {} WHERE {} AND timeline > 0 AND timeline < {}")
        conn.execute(old.format(self.table, self._ours, sql.Literal(into)))
        place = into, base[1]
        conn.execute(self._row(place, True, sql.Literal(closing_gid(self.digest, place, "")), sql.Literal(0)))

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
        """Return the entries that decide whether an epoch is committed. Earlier versions wrote rows without a handle.

        One query returns all closed epochs: two per timeline.
        """
        query = sql.SQL("SELECT timeline, epoch, gid FROM {} WHERE {} AND closed ORDER BY 1 DESC, 2 DESC")
        closed = conn.execute(query.format(self.table, self._ours)).fetchall()
        links = {(timeline, epoch): Link(epoch, closed_handle(gid) or None) for timeline, epoch, gid in closed}
        newest = max(links, default=(0, 0))
        last = links[newest] if newest in links and newest[0] == key.timeline else Link(0, None)
        return HeldEpochs(newest[0], links.get(key.place), last)

    def last_rows(self, conn: Connection) -> int | None:
        """Return the number of rows in the epoch that was closed last, or `None` if there is none."""
        query = sql.SQL("SELECT rows FROM {} WHERE {} AND closed ORDER BY timeline DESC, epoch DESC LIMIT 1")
        row = conn.execute(query.format(self.table, self._ours)).fetchone()
        return row[0] if row else None

    def close(self, conn: Connection, key: EpochKey, rows: int, handle: str, before: int) -> None:
        """Record that the table holds the epoch, and remove the rows of all epochs before the previous one.

        `before` is the last epoch of the timeline that was closed before this one, 0 for none.
        """
        gid = closing_gid(self.digest, key.place, handle)
        statement = self._row(key.place, True, sql.Literal(gid), sql.Literal(rows))
        if before:
            old = sql.SQL("; DELETE FROM {} WHERE {} AND timeline = {} AND epoch < {}")
            statement += old.format(self.table, self._ours, sql.Literal(key.timeline), sql.Literal(before))
        conn.execute(statement)

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
