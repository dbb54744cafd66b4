"""An Apache Iceberg table as a sink: files, ledger and expiry in one transaction for each epoch, through PyIceberg.

    <table>/data/hf/<uid>.<stream>/t<timeline>-<epoch>/<attempt>.<lease>/…      data files, written by Spark
    <table>/_holdfast/<uid>.<stream>/…                                          the record of each attempt

Spark writes the data files where they stay. No reader sees them before a snapshot names them.

Rules:
- Rows are appended. A stream in update or complete mode needs `changelog=True`, which keeps every version of a row.
- One stream owns a table, from its first start on. Programs that are not pipelines may write to it, too.
- A commit that another one has overtaken is repeated: the table is loaded, and its ledger compared, again.
- The table keeps its partitioning while an epoch is staged and not committed: its files were written for it. It also
  keeps every column in which these files have values (see `evolution`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import BucketTransform

from holdfast.errors import BadValue, HoldfastError, NotSupported, SchemaMismatch, SinkFailed, SinkForeign, StagedGone
from holdfast.sinks import base
from holdfast.sinks.base import CannotTakeBack, EpochKey, EpochPlace, SinkContext, Staged, StreamIdentity, TakeBack
from holdfast.sinks.held_epochs import is_committed
from holdfast.sinks.iceberg.catalog import CatalogTable, CommitRefused
from holdfast.sinks.iceberg.changes import change
from holdfast.sinks.iceberg.columns import StoredColumn, stored_columns, table_schema
from holdfast.sinks.iceberg.data_files import data_files, describing, required_columns
from holdfast.sinks.iceberg.evolution import columns_found
from holdfast.sinks.iceberg.ledger import TableLedger, foreign_owner, ledger_in
from holdfast.sinks.iceberg.partitions import Partitioning, parsed_parts, same_parts, shown_spec, spec_of
from holdfast.sinks.iceberg.rewind import IcebergRewind, OwnFile
from holdfast.sinks.lake.epoch_files import EpochFiles, LakeStaging
from holdfast.sinks.lake.table_folder import table_folder
from holdfast.sinks.rows import not_null

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DATA = "data/hf"
FORMAT = 2  # the version of Iceberg's format that tables have
_CREATED_WITH = {
    "format-version": str(FORMAT),
    "write.metadata.delete-after-commit.enabled": "true",  # otherwise each commit leaves a file behind
}
_TRIES = 100
_FAILURES = 3  # commits whose result is not known, before the epoch fails
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.01, 1.0


class IcebergSink(base.Sink):
    """Appends a stream to an Apache Iceberg table, every epoch exactly once, in one transaction.

        hf.IcebergSink("shop.orders", catalog={"type": "rest", "uri": "https://catalog"}, partition_by="day(at)")

    `table` is a namespace and a name. `catalog` names a catalog of PyIceberg's configuration, or has its properties;
    its type is `sql` or `rest`. `create=True` creates the table, and its namespace, if it does not exist, with the
    partitions of `partition_by`: columns, `year(c)`, `month(c)`, `day(c)`, `hour(c)`, `bucket(16, c)`,
    `truncate(4, c)`. An existing table keeps its partitioning; `partition_by` must then be left out, or be the same.

    Each epoch is one snapshot. The last `keep_snapshots` of them are kept for time travel. The table may be on a disk
    or on S3. Its endpoint, region and credentials come from the environment, as for a repository.

    A rewind takes the files of later epochs out of the table, and a tag keeps them. It is refused if another program
    has rewritten them, as a compaction does.
    """

    one_action = True

    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str],
        partition_by: str | Sequence[str] = (),
        create: bool = True,
        keep_snapshots: int = 20,
        changelog: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name or base.default_name("iceberg", str(table)))
        self._at = CatalogTable(self.name, catalog, table)
        self._parts = parsed_parts(partition_by)
        if any(isinstance(part.transform, BucketTransform) for part in self._parts):
            self.on_executors = ("pyiceberg",)  # type: ignore[misc] # they compute the buckets
        if not isinstance(keep_snapshots, int) or isinstance(keep_snapshots, bool) or keep_snapshots < 1:
            raise BadValue(what="keep_snapshots", value=keep_snapshots, expected="an integer of at least 1")
        self.table = table
        self.partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        self.create = create
        self.keep_snapshots = keep_snapshots
        self.changelog = changelog
        self.target = self._at.target
        self._open_table: Table | None = None  # as `open` found it
        self._stored: list[StoredColumn] = []
        self._staging_of: tuple[str, LakeStaging] | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"

    def describe(self) -> dict[str, Any]:
        """Return the partitioning, and whether every version of a row is kept."""
        return {"partition_by": self.partition_by, "changelog": self.changelog}

    def row_checks(self) -> dict[str, str]:
        """Columns that the table requires must have a value."""
        return {f"{each.name} is null": not_null(each.name) for each in required_columns(self._stored)}

    # --- before the first epoch ---

    def open(self, context: SinkContext) -> None:
        """Create the table on request; check that it accepts the columns, and that Spark can write to its folder."""
        super().open(context)
        base.refuse_mode(self, context.output_mode, self.changelog, "use a SqliteSink or PostgresSink with a key")
        with self._at.failing("be opened"):
            table = self._at.load() or self._created(context)
            self._check_format(table)
            self._stored = stored_columns(context.schema, table.schema(), self.name, self.table)
            self._check_names(table)
            if self._parts and not same_parts(
                spec_of(self._parts, table.schema(), self.name, self.table), table.spec()
            ):
                now = shown_spec(table.spec(), table.schema())
                why = f"it is partitioned by {now}, and not by {', '.join(self.partition_by)}"
                raise self._mismatch(why, "leave partition_by out, or change the table's partitioning")
            self._partitioning(table)
            self._staging(table).folder.check(self.name, context)
            self._claim(table, context.owner)
            self._open_table = table

    def _created(self, context: SinkContext) -> Table:
        if not self.create:
            raise self._mismatch("there is no such table", "create it, or pass create=True")
        schema = table_schema(context.schema, self.name, self.table)
        spec = spec_of(self._parts, schema, self.name, self.table)
        Partitioning(spec, schema, self.name, self.table)
        claim = TableLedger(pipeline=context.owner.pipeline).property_of(context.owner)
        return self._at.create(schema, spec, {**_CREATED_WITH, **claim})

    def _check_format(self, table: Table) -> None:
        found = table.metadata.format_version
        if found != FORMAT:
            do = f"change the table to version {FORMAT}" if found < FORMAT else f"use a table of version {FORMAT}"
            raise NotSupported(
                what=f"table {self.table} of Iceberg's format version {found}", why="only version 2 is tested", do=do
            )

    def _check_names(self, table: Table) -> None:
        """Spark's files have no field ids, so readers find the columns by the table's name mapping."""
        mapping = table.metadata.name_mapping()
        known = {} if mapping is None else {field.field_id: field.names for field in mapping.root}
        for each in self._stored if mapping is not None else ():
            names = known.get(each.field.field_id, [])
            if each.field.name not in names:
                why = f"its property schema.name-mapping.default does not name the column {each.field.name!r}"
                raise self._mismatch(
                    why, "add the column to the mapping, or remove the property: the sink then sets it"
                )

    def _claim(self, table: Table, owner: StreamIdentity) -> None:
        """Record the owner of a table that has none. Another owner is reported by `inspect`."""

        def act(table: Table) -> Transaction | None:
            if ledger_in(table.properties, owner) is not None or foreign_owner(table.properties, owner) is not None:
                return None
            return table.transaction().set_properties(TableLedger(pipeline=owner.pipeline).property_of(owner))

        if act(table) is not None:
            self._changed("be opened", act)

    def _mismatch(self, why: str, do: str) -> SchemaMismatch:
        return SchemaMismatch(sink=self.name, table=self.table, why=why, do=do)

    def _partitioning(self, table: Table) -> Partitioning:
        return Partitioning(table.spec(), table.schema(), self.name, self.table)

    def _staging(self, table: Table) -> LakeStaging:
        """Return the staged files of this table; the object remembers what it has staged itself."""
        location = _location(table)
        if self._staging_of is None or self._staging_of[0] != location:
            self._staging_of = location, LakeStaging(self.name, table_folder(_as_it_is(location), "IcebergSink"), DATA)
        return self._staging_of[1]

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Let Spark write the rows as Parquet files of the table that no snapshot names."""
        context, table = self.context, self._open_table
        if table is None:
            raise SinkFailed(sink=self.name, action="prepare", why="it is not open")
        with self._at.failing("prepare"):
            partitioning = self._partitioning(table)
            staged = self._staging(table).stage(
                self._written(df, partitioning),
                key,
                context,
                partition_by=partitioning.names,
                describe=describing(table, self._stored, self.name, self.table),
                required=[each.field.name for each in required_columns(self._stored)],
            )
        if not staged.rows:
            return staged
        handle = staged.handle | _known(table)
        self._check_again(key, handle)
        return Staged(handle, staged.rows, staged.paths, staged.trace)

    def _check_again(self, key: EpochKey, handle: Mapping[str, Any]) -> None:
        """Refuse a table that has changed since `open`, while the epoch can still be aborted."""
        with self._at.failing("prepare"):
            table = self._at.load()
            if table is None or _known(table).items() - handle.items():
                what = "was dropped, or its partitioning or its location was changed"
                why = f"table {self.table} {what}, after the stream had started"
                do = "run again: this epoch was not decided, and the next start uses the table as it is then"
                raise SinkFailed(sink=self.name, action="prepare", why=why, do=do)
            self._check_format(table)
            files = self._staging(table).proven(key, handle)
            columns_found(
                files, table, self.name, self.table, "change the table or the stream's columns; then run again"
            )

    def _written(self, df: DataFrame, partitioning: Partitioning) -> DataFrame:
        """Return the rows as the table stores them, with the columns by which Spark separates the partitions."""
        if not all(each.is_unchanged for each in self._stored):
            df = df.select(*(each.selected() for each in self._stored))
        return df.select("*", *partitioning.columns(self._stored)) if partitioning.names else df

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Add the files and replace the ledger, in one transaction."""
        if not handle["rows"]:
            return

        def act(table: Table) -> Transaction | None:
            self._refuse_foreign(table, key.owner)
            ledger = ledger_in(table.properties, key.owner) or TableLedger(pipeline=key.owner.pipeline)
            if is_committed(self, key, handle, ledger.held_for(key), f"table {self.table}"):
                return None
            self._refuse_other_table(table, key, handle)
            self._check_format(table)
            files = self._proven(table, key, handle)
            columns = columns_found(files, table, self.name, self.table, _restore(key.epoch))
            made = change(
                table,
                key.owner,
                ledger.with_epoch(key, handle),
                added=data_files(table, files.files, columns, self._partitioning(table), handle["spec"]),
                keep=self.keep_snapshots,
            )
            self._reach("committing")
            return made

        self._changed(f"commit epoch {key.epoch}", act)
        if key.attempt.attempt > 1:
            with self._at.failing("clean up"):
                table = self._open_table or self._at.load()
                if table is not None:
                    self._staging(table).sweep(key)

    def _proven(self, table: Table, key: EpochKey, handle: Mapping[str, Any]) -> EpochFiles:
        """Return the staged files; if they are gone, report whether the table has moved away from them."""
        try:
            return self._staging(table).proven(key, handle)
        except StagedGone:
            staged = handle.get("location", _location(table))  # handles of earlier versions do not name it
            if staged == _location(table):
                raise
            why = f"the location of table {self.table} was changed after the epoch was staged, to {_location(table)}"
            do = f"set the location back to {staged}, run again, and stop the pipeline before you change it"
            raise SinkFailed(sink=self.name, action=f"commit epoch {key.epoch}", why=why, do=do) from None

    def _refuse_foreign(self, table: Table, owner: StreamIdentity) -> None:
        foreign = foreign_owner(table.properties, owner)
        if foreign is not None:
            raise SinkForeign(sink=self.name, place=f"table {self.table}", owner=foreign)

    def _refuse_other_table(self, table: Table, key: EpochKey, handle: Mapping[str, Any]) -> None:
        action = f"commit epoch {key.epoch}"
        if handle["table"] != str(table.metadata.table_uuid):
            why = f"table {self.table} was dropped and created again after the epoch was staged"
            do = "restore the table from a copy that was made before"
            raise SinkFailed(sink=self.name, action=action, why=why, do=do)
        if handle["spec"] != table.metadata.default_spec_id:
            why = f"the partitioning of table {self.table} was changed after the epoch was staged"
            do = "restore the partitioning, run again, and stop the pipeline before you change it"
            raise SinkFailed(sink=self.name, action=action, why=why, do=do)

    def _changed(self, action: str, act: Callable[[Table], Transaction | None]) -> None:
        """Load the table, let `act` compute a change, and commit it; repeat that until the change is there.

        `act` returns `None` if nothing is left to do. A failure may have changed the table: loading it again shows
        whether it did.
        """
        failures = 0
        with self._at.failing(action):
            for number in range(_TRIES):
                try:
                    self._changed_once(action, act)
                    return
                except HoldfastError:
                    raise
                except CommitRefused:
                    if number == _TRIES - 1:
                        raise
                except Exception:
                    failures += 1
                    if failures == _FAILURES:
                        raise
                time.sleep(random.uniform(0, min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**number)))  # noqa: S311

    def _changed_once(self, action: str, act: Callable[[Table], Transaction | None]) -> None:
        table = self._at.load()
        if table is None:
            why, do = f"table {self.table} does not exist", "restore the table, then run again"
            raise SinkFailed(sink=self.name, action=action, why=why, do=do)
        made = act(table)
        if made is not None:
            self._at.commit(table, made)

    def abort(self, key: EpochKey) -> None:
        """Remove the files of the attempt, unless the table holds them."""
        with self._at.failing("abort"):
            table = self._at.load()
            if table is None or not self._staging(table).has(key):
                return
            if self._rewind(key.owner, table).holds(key):
                why = f"files of epoch {key.epoch} are part of the table, but this attempt was aborted"
                do = "another copy of the repository has committed it: stop one of the two"
                raise SinkFailed(sink=self.name, action="abort", why=why, do=do)
            self._staging(table).clear(key)

    def is_missing(self) -> bool:
        """Whether the table does not exist."""
        with self._at.failing("be inspected"):
            return self._at.load() is None

    def inspect(self, owner: StreamIdentity, timeline: int) -> base.SinkPosition:
        """Return the last epoch in the ledger, and another owner if there is one."""
        with self._at.failing("be inspected"):
            table = self._at.load()
            if table is None:
                return base.SinkPosition()
            foreign = foreign_owner(table.properties, owner)
            ledger = ledger_in(table.properties, owner)
            return base.SinkPosition(0 if foreign or ledger is None else ledger.epoch_in(timeline), foreign)

    # --- going back ---

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what would be taken out of the table, or why that is impossible."""
        with self._at.failing("be inspected"):
            table = self._at.load()
            return TakeBack(0, 0, "") if table is None else self._rewind(owner, table).found(base)

    def take_back(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Take the files of later epochs out of the table, in one transaction with the stamp."""
        self._go_back("be taken back", owner, into, lambda rewind: rewind.take_back(base, into))

    def put_back(self, owner: StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Add the files again that the rewind into the timeline `taken` took out, in one transaction with the stamp."""
        self._go_back("be put back", owner, into, lambda rewind: rewind.put_back(base, into, taken))

    def stamp(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Write the stamp, and remove what earlier timelines staged."""
        self._go_back("be stamped", owner, into, lambda rewind: rewind.stamp(base, into))

    def _go_back(
        self, action: str, owner: StreamIdentity, into: int, act: Callable[[IcebergRewind], Transaction]
    ) -> None:
        """1. Change files and stamp in one transaction.  2. Remove what earlier timelines staged.

        A table that does not exist has no rows, and its staged epochs can never be committed: they name its uuid.
        """
        if self.is_missing():
            return

        def once(table: Table) -> Transaction | None:
            rewind = self._rewind(owner, table)
            if rewind.is_stamped(into):
                return None
            return act(rewind)

        self._reach("stamping")
        self._changed(action, once)  # 1
        self._reach("stamped")
        self._reach("moved")
        with self._at.failing(action):
            table = self._at.load()
            ledger = ledger_in(table.properties, owner) if table is not None else None
            if table is not None and ledger is not None and ledger.timeline == into:
                self._staging(table).retire(owner, (ledger.ended[0], ledger.ended[1]), (into, 0))  # 2

    def set_aside(self, owner: StreamIdentity) -> list[base.RowsAside]:
        """Return the rows that the tags of this stream keep."""
        with self._at.failing("be inspected"):
            table = self._at.load()
            return [] if table is None else self._rewind(owner, table).set_aside()

    def discard_aside(self, owner: StreamIdentity, timeline: int) -> None:
        """Remove the tag, and delete the files that no other snapshot names; the others are left to the table."""
        if self.is_missing():
            return
        files: list[OwnFile] = []

        def once(table: Table) -> Transaction | None:
            found = self._rewind(owner, table).discard(timeline)
            if found is None:
                return None
            files[:] = found[1]
            return found[0]

        self._changed("discard rows", once)
        with self._at.failing("discard rows"):
            table = self._at.load()
            if table is not None and files:
                self._rewind(owner, table).delete(files)

    def _rewind(self, owner: StreamIdentity, table: Table) -> IcebergRewind:
        return IcebergRewind(self.name, owner, table, self._staging(table), self.keep_snapshots)

    def _reach(self, point: str) -> None:
        if self._context is not None:
            self._context.reach(point)

    def close(self) -> None:
        """Close the connections to the catalog."""
        super().close()
        self._at.close()
        self._open_table = None


def _known(table: Table) -> dict[str, Any]:
    """Return which table an epoch is staged for, as its handle names it."""
    uuid, spec = str(table.metadata.table_uuid), table.metadata.default_spec_id
    return {"table": uuid, "spec": spec, "location": _location(table)}


def _location(table: Table) -> str:
    return table.location().rstrip("/")


def _as_it_is(location: str) -> str:
    """Return a location for a function that decodes file URLs: Iceberg and Hadoop take percent signs literally."""
    return location.replace("%", "%25") if location[:5].lower() == "file:" else location


def _restore(epoch: int) -> str:
    return (
        "restore the column in the table as it was, and run again; change the table and the stream only after that: "
        f"epoch {epoch} was decided with this column, and is not committed yet"
    )
