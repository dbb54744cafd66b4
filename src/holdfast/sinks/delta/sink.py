"""A Delta Lake table as a sink: Spark writes the files, and one commit of the table's log makes an epoch visible.

Spark writes the files of an attempt into the table's folder, where no reader sees them, because the log does not name
them. `commit` adds them to the log together with the position of the stream, as application transactions: see
`ledger.py`. delta-rs writes the log.

Rules:
- `append` adds files. `complete` replaces all files of the table in the same commit. With a key, rows replace those
  with the same key: the driver reads the staged rows, and delta-rs merges them into the table.
- A commit is based on the version of the table that was checked. If another driver has committed the same epoch, or a
  rewind has ended its timeline, Delta refuses it, and the table is loaded and checked again.
- A commit whose answer was lost looks like a failed one. So after every failure the table is loaded and checked.
- One stream owns a table, from its first start on, unless all streams that write to it pass `share=True`. Programs
  other than Holdfast may write to it too.
- delta-rs checks neither columns nor constraints: `columns.py` and `features.py` do.
- A rewind removes the files of later epochs from the table, and nothing else: see `rewind.py`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast._extras import missing_extra
from holdfast.errors import BadValue, HoldfastError, NotSupported, SinkFailed, SinkForeign, StagedGone
from holdfast.repository.files import make_folder
from holdfast.sinks import base
from holdfast.sinks.base import (
    CannotTakeBack,
    EpochKey,
    EpochPlace,
    RowsAside,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    TakeBack,
    handle_digest,
)
from holdfast.sinks.delta.columns import (
    check_key,
    check_nulls,
    check_partitions,
    check_stream,
    check_table,
    null_conditions,
    required_columns,
)
from holdfast.sinks.delta.features import APPEND_ONLY, refuse_features
from holdfast.sinks.delta.ledger import DeltaLedger, DeltaMode
from holdfast.sinks.delta.rewind import CANNOT_APPEND_ONLY, CANNOT_UPSERT, TRIES, DeltaRewind, is_append_only
from holdfast.sinks.delta.statistics import statistics_of
from holdfast.sinks.delta.table_log import TableLog, TableState
from holdfast.sinks.delta.upserts import check_unique, merged_rows
from holdfast.sinks.held_epochs import is_committed
from holdfast.sinks.lake.epoch_files import DATA, RECORDS, EpochFiles, LakeStaging
from holdfast.sinks.lake.table_folder import DiskFolder, failing_at, table_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PAUSE_S = 0.02  # the longest one before another try, multiplied by the number of tries
_LONGEST_S = 1.0
_ALLOW_NULLS = "let the column of the table be null, and run again: the epoch was decided, and is not committed yet"


class DeltaSink(base.Sink):
    """Writes a stream into a Delta Lake table, every epoch exactly once, by one commit of the table's log.

        hf.DeltaSink("s3://bucket/tables/orders", partition_by=["day"])

    `path` is the folder of the table: on a local disk, on a file system that every machine mounts, or on S3, with the
    same environment variables as a repository on S3. Delta readers see all of an epoch or nothing. Other programs may
    write to the table at the same time.

    - `partition_by`: columns of which each value is a partition, if the table is created. By default, the table's own.
    - `create`: create the table from the stream's columns if it does not exist (default).
    - `properties`: table properties for a table that is created, such as `{"delta.logRetentionDuration": "7 days"}`.
    - `options`: options for Spark's Parquet writer, such as `{"compression": "zstd"}`.
    - `key`: the column or columns to upsert by. A key must not be null and may occur once per epoch. All rows of an
      epoch pass through the driver, so this suits results rather than bulk data.
    - `changelog`: add every version of a row in the output modes "update" and "complete". Without it, "update" needs a
      `key`, and "complete" replaces all rows of the table with each epoch.
    - `share`: allow several streams to write to the table, if all of them pass `share=True`. By default one stream owns
      it from its first start on. A table that is replaced cannot be shared.
    - `name`: the sink's name in decisions, errors and checkpoints; by default made from the path.

    Columns are compared with the table's before the first epoch and at every commit; there is no schema evolution.
    Tables with deletion vectors, column mapping, constraints, generated columns or a catalog that manages their commits
    are refused. A rewind removes the files of later epochs from the table, and an undo adds them again, unless OPTIMIZE
    or VACUUM has been at them; upserts cannot be taken back. Not guaranteed: that programs that read the folder without
    its log see only committed rows.
    """

    one_action = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | Sequence[str] | None = None,
        partition_by: str | Sequence[str] | None = None,
        create: bool = True,
        properties: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        changelog: bool = False,
        share: bool = False,
        name: str | None = None,
    ) -> None:
        self.folder = table_folder(path, "a DeltaSink")
        self.path = self.folder.url
        if "%" in self.path:
            why = "delta-rs decodes percent signs, and would look in another folder"
            raise BadValue(what="table", value=self.path, why=why, do="choose a path without them")
        super().__init__(name or base.default_name("delta", self.path.rpartition("/")[2]))
        self.key = [key] if isinstance(key, str) else list(key or ())
        if key is not None and not self.key:
            raise BadValue(what="key", value=key, expected="one or more columns", do="leave it out to append rows")
        self.partition_by = [partition_by] if isinstance(partition_by, str) else partition_by and list(partition_by)
        self.create = create
        self.properties = dict(properties or {})
        self.options = dict(options or {})
        self.changelog = changelog
        self.share = share
        where = self.path if self.folder.bucket else os.path.realpath(self.path)
        self.target = None if share else f"delta {where}"
        self._log = TableLog(self.name, self.folder)
        self._view = TableLog(self.name, self.folder)  # for questions, which another thread may ask during a commit
        self._staging = LakeStaging(self.name, self.folder)
        self._upserts = LakeStaging(self.name, self.folder, f"{RECORDS}/staged", f"{RECORDS}/staged")
        self._partitions: list[str] = []
        self._columns = ""  # of the table, as it was opened

    def __repr__(self) -> str:
        return f"DeltaSink({self.path!r})"

    def describe(self) -> dict[str, Any]:
        """Return the key, the partitioning, if it was given, and whether every version of a row is kept."""
        return {"key": self.key, "partition_by": self.partition_by, "changelog": self.changelog}

    def row_checks(self) -> dict[str, str]:
        """Columns that are NOT NULL in the table must have a value, and so must the key of an upsert."""
        upserts = self._mode == DeltaMode.UPSERT
        by = () if upserts else self._partitions  # of the files
        return null_conditions(self._columns, self.context.schema.names, self.key if upserts else (), by)

    # --- before the first epoch ---

    def open(self, context: SinkContext) -> None:
        """Check the columns, create the table if it does not exist, check its features, and record its owner."""
        super().open(context)
        _require_arrow()
        if context.output_mode == "update" and not self.key:
            base.refuse_mode(self, context.output_mode, self.changelog, "pass key=[...] to upsert")
        if self._mode == DeltaMode.REPLACE and self.share:
            why = "each epoch replaces all rows, those of other streams too"
            raise BadValue(what="share", value=True, why=why, do="give the stream a table of its own")
        self.folder.check(self.name, context)
        columns = context.schema.json()
        zone = context.spark.conf.get("spark.sql.session.timeZone") or ""
        check_stream(self.name, columns, self.partition_by or (), zone)
        check_key(columns, self.key)
        self._log.forget()
        self._view.forget()
        if not self._log.exists():
            self._create(context.owner, columns)
        state = self._log.load("be opened")
        self._check(state, columns)
        if self._mode != DeltaMode.APPEND and is_append_only(state):
            why = f"it has {APPEND_ONLY}=true, so no row can be replaced"
            raise NotSupported(
                what=f"writing to the Delta table {self.path}", why=why, do=f"set {APPEND_ONLY} to false, or append"
            )
        if self.partition_by is not None and state.partition_by != self.partition_by:
            why = f"the table is partitioned by {state.partition_by}"
            raise BadValue(
                what="partition_by", value=self.partition_by, why=why, do="leave it out, or use another table"
            )
        check_stream(self.name, columns, state.partition_by, zone)
        self._partitions, self._columns = state.partition_by, state.columns
        self._claim(context.owner)

    def _create(self, owner: StreamIdentity, columns: str) -> None:
        if not self.create:
            why = f"there is no Delta table at {self.path}"
            raise BadValue(what="path", value=self.path, why=why, do="create the table, or pass create=True")
        with failing_at(self.name, "be opened"):
            other = self.folder.other_file(DATA)
        if other is not None and not self._log.exists():  # another program may just have created the table
            why = f"it is not a Delta table, and has the file {other!r}: a VACUUM of the table would delete it"
            do = "choose an empty folder, or convert this one to a Delta table first"
            raise BadValue(what="path", value=self.path, why=why, do=do)
        if isinstance(self.folder, DiskFolder):
            with failing_at(self.name, "create its folder"):
                make_folder(self.folder.path)
        ledger = DeltaLedger(owner, lambda _: None, self.share)
        self._log.create(columns, self.partition_by or (), self.properties, ledger.claim())
        self._log.sync(0)

    def _claim(self, owner: StreamIdentity) -> None:
        """Record the owner of a table that has none; if it has another one, `inspect` reports it."""
        for tried in range(TRIES):
            state = self._log.load("be opened")
            ledger = self._ledger(state, owner)
            if ledger.is_claimed or ledger.foreign():
                return
            about = {"pipeline": owner.pipeline, "stream": owner.stream, "uid": owner.uid}
            error = self._log.commit(state, ledger.claim(), about)
            if error is None:
                self._log.sync(state.version)
                return
            _pause(tried)
        raise SinkFailed(sink=self.name, action="be opened", why="other writers were always faster")

    def _check(self, state: TableState, columns: str) -> None:
        """Refuse a table that cannot be written, or that does not have the columns of the rows."""
        refuse_features(self.path, state.features, state.settings, state.columns)
        check_table(self.name, self.path, columns, state.columns)

    def _ledger(self, state: TableState, owner: StreamIdentity) -> DeltaLedger:
        return DeltaLedger(owner, state.transaction, self.share, state.last_owner)

    @property
    def _mode(self) -> DeltaMode:
        if self.changelog:
            return DeltaMode.APPEND
        if self.context.output_mode == "complete":
            return DeltaMode.REPLACE
        return DeltaMode.UPSERT if self.key else DeltaMode.APPEND

    def _staging_for(self, mode: int) -> LakeStaging:
        """Return where the rows of an epoch are staged: those of an upsert never become files of the table."""
        return self._upserts if mode == DeltaMode.UPSERT else self._staging

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Write the files with Spark. An epoch without rows leaves no trace, unless it replaces all rows."""
        staging, upserts = self._staging_for(self._mode), self._mode == DeltaMode.UPSERT
        with failing_at(self.name, "prepare"):
            by = () if upserts else self._partitions
            staged = staging.stage(
                df,
                key,
                self.context,
                partition_by=by,
                options=self.options,
                describe=statistics_of,
                required=required_columns(self._columns),
            )
            if staged.rows:
                files = staging.proven(key, staged.handle)
                check_nulls(self.name, self._columns, files)
                if upserts:
                    check_unique(self.name, merged_rows(self.folder, files, self.key), self.key)
        handle = staged.handle | {"mode": int(self._mode)}  # fixed by the decision, even if the sink changes
        if upserts:
            handle["key"] = self.key
        return Staged(handle, staged.rows, staged.paths, trace=staged.trace or self._mode == DeltaMode.REPLACE)

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Add the files to the table's log.

        1. Load the table and check whether it holds the epoch.  2. Check the files, and the table's columns and
        features.  3. Commit. If that fails, repeat from 1: another writer may have been faster, or the answer was lost.
        4. Make the log durable, and remove other attempts at this epoch.
        """
        if not handle["rows"] and handle["mode"] != DeltaMode.REPLACE:
            return
        action, error = f"commit epoch {key.epoch}", None
        for tried in range(TRIES):
            state = self._log.load(action)  # 1
            ledger = self._ledger(state, key.owner)
            if self._holds(ledger, key, handle):
                is_last = (ledger.place, ledger.handle) == (key.place, handle_digest(handle))
                break
            error = self._add(state, ledger, key, handle)  # 2, 3
            if error is None:
                is_last = True
                break
            _pause(tried)
        else:
            raise error or SinkFailed(sink=self.name, action=action, why="other writers were always faster")
        self._log.sync(state.version, merged=handle["mode"] == DeltaMode.UPSERT)  # 4
        with failing_at(self.name, action):
            if is_last:
                self._staging_for(handle["mode"]).sweep(key)
            if handle["mode"] == DeltaMode.UPSERT:
                self._upserts.retire(key.owner, (0, 0), key.place)

    def _holds(self, ledger: DeltaLedger, key: EpochKey, handle: dict[str, Any]) -> bool:
        if foreign := ledger.foreign():
            raise SinkForeign(sink=self.name, place=f"table {self.path}", owner=foreign)
        return is_committed(self, key, handle, ledger.held(key), f"table {self.path}")

    def _add(
        self, state: TableState, ledger: DeltaLedger, key: EpochKey, handle: dict[str, Any]
    ) -> HoldfastError | None:
        action = f"commit epoch {key.epoch}"
        files: list[EpochFiles] = []
        if handle["rows"]:
            try:
                with failing_at(self.name, action):
                    files = [self._staging_for(handle["mode"]).proven(key, handle)]
            except StagedGone as gone:
                if self._holds(self._ledger(self._log.load(action), key.owner), key, handle):  # raises after a rewind
                    return gone  # another driver has committed it, and a later epoch
                raise
            self._check(state, files[0].columns)
            check_nulls(self.name, state.columns, files[0], _ALLOW_NULLS)
            if handle["mode"] != DeltaMode.UPSERT:
                check_partitions(self.name, self.path, files[0], state.partition_by)
        else:
            refuse_features(self.path, state.features, state.settings, state.columns)
        self._reach("committing")
        mode = DeltaMode(handle["mode"])
        owner = {"pipeline": key.owner.pipeline, "stream": key.owner.stream, "uid": key.owner.uid}
        about = owner | {"timeline": key.timeline, "epoch": key.epoch, "rows": handle["rows"]}
        txns = ledger.committed(key, handle_digest(handle), mode)
        if mode == DeltaMode.UPSERT:
            with failing_at(self.name, action):
                rows = merged_rows(self.folder, files[0])
            return self._log.merge(state, txns, about, rows, handle["key"])
        return self._log.commit(
            state,
            txns,
            about,
            add=[(file, each.written_ms) for each in files for file in each.files],
            mode="overwrite" if mode == DeltaMode.REPLACE else "append",
        )

    def abort(self, key: EpochKey) -> None:
        """Remove the files of the attempt, unless the table's log names them."""
        with failing_at(self.name, "abort"):
            self._upserts.clear(key)
            if self._staging.has(key) and self._log.exists():
                names = {each.path for each in self._log.load("abort").files()}
                if self._staging.is_named(key, names):
                    why = f"files of epoch {key.epoch} are part of the table, but this attempt was aborted"
                    do = "another copy of the repository has committed it: stop one of the two"
                    raise SinkFailed(sink=self.name, action="abort", why=why, do=do)
            self._staging.clear(key)

    def is_missing(self) -> bool:
        """Whether there is no table."""
        return not self._log.exists()

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Return the last epoch that the table's log records, and another owner if there is one."""
        if not self._log.exists():
            return SinkPosition()
        return self._ledger(self._view.load("be inspected"), owner).position(timeline)

    def _reach(self, point: str) -> None:
        if self._context is not None:
            self._context.reach(point)

    # --- going back ---

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return which files would be removed from the table, or why that is impossible."""
        if not self._log.exists():
            return TakeBack(0, 0, "")
        with failing_at(self.name, "be inspected"):
            return self._rewind(owner, self._view).found(base)

    def cannot_be_taken_back(self) -> CannotTakeBack | None:
        """No file can be removed from a table that is append-only."""
        if self._mode != DeltaMode.APPEND:
            return CANNOT_UPSERT if self._mode == DeltaMode.UPSERT else None
        return CANNOT_APPEND_ONLY if is_append_only(self._view.load("be inspected")) else None

    def take_back(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Remove the files of later epochs from the table, in one commit with the stamp."""
        if self._log.exists():
            with failing_at(self.name, "be taken back"):
                self._rewind(owner).take_back(base, into)

    def put_back(self, owner: StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Add the files again, in one commit with the stamp."""
        if self._log.exists():
            with failing_at(self.name, "be put back"):
                self._rewind(owner).put_back(base, into, taken)

    def stamp(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Write the stamp, and remove what earlier timelines staged."""
        if self._log.exists():
            with failing_at(self.name, "be stamped"):
                self._rewind(owner).stamp(base, into)

    def set_aside(self, owner: StreamIdentity) -> list[RowsAside]:
        """Return the files that rewinds removed from the table, and that still exist."""
        if not self._log.exists():
            return []
        with failing_at(self.name, "be inspected"):
            return self._rewind(owner, self._view).set_aside()

    def discard_aside(self, owner: StreamIdentity, timeline: int) -> None:
        """Delete these files. Older versions of the table that contain them can no longer be read."""
        if self._log.exists():
            with failing_at(self.name, "discard rows"):
                self._rewind(owner).discard(timeline)

    def _rewind(self, owner: StreamIdentity, log: TableLog | None = None) -> DeltaRewind:
        return DeltaRewind(self.name, log or self._log, self._staging, self._upserts, owner, self.share, self._reach)


def _pause(tried: int) -> None:
    if tried:
        time.sleep(random.uniform(0, min(_PAUSE_S * tried, _LONGEST_S)))  # noqa: S311 - to let two drivers diverge


def _require_arrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415 - optional
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
