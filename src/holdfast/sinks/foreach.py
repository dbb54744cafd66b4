"""A user-supplied function as a sink, for jobs that use `foreachBatch`.

Spark stages an attempt as Parquet. `commit` reads it back as a DataFrame and calls the function with it.

Rules:
- The function is called only for decided epochs, in their order, including epochs without rows.
- It is called at least once for each. It is called again, with the same rows and an equal key, if the call failed or if
  the driver died before the call was recorded.
- A call is recorded when the function has returned: by a file `t<timeline>-<epoch>.key` beside the staging folder. The
  last two are kept.
- A function that raises leaves its epoch in doubt: the stream does not go on until the function returns. The epoch is
  decided by then, so it is not quarantined.

Not guaranteed: that the function takes effect exactly once. That is up to the function: it has to recognise a key that
it has seen. Nor that a call has ended before the next one begins: a driver that was replaced may still be inside it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.errors import BadValue, NotSupported
from holdfast.formats.sealed_json import Record
from holdfast.repository.files import hadoop_address, local_path, sync_folder, temporary
from holdfast.sinks.base import (
    EpochKey,
    Link,
    Sink,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    decided_elsewhere,
    failing,
    handle_digest,
    is_past,
)
from holdfast.sinks.files.epoch_folders import LEDGER_FILE, place, places_in
from holdfast.sinks.owners import claim, owner_of
from holdfast.sinks.rows import default_name
from holdfast.sinks.staged_files import proven, require_seen_by_all, stage
from holdfast.sinks.staging import Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHAPE = "calls of a function"
_STAGING = "staging"


@dataclass(frozen=True, slots=True)
class ForeachKey:
    """Identifies an epoch: equal in every repetition of a call, different for every other epoch of any pipeline."""

    pipeline: str  # its name
    uid: str  # of its repository: differs between two pipelines of one name
    stream: str  # its name
    timeline: int
    epoch: int

    @property
    def batch_id(self) -> int:
        """The number of Spark's micro-batch, as `foreachBatch` gives it: the epoch minus one."""
        return self.epoch - 1

    def __str__(self) -> str:
        return f"{self.uid}/{self.stream}/{place(self.timeline, self.epoch)}"


EpochFunction: TypeAlias = Callable[["DataFrame", ForeachKey], object]
"""What a `ForeachSink` calls; its result is not used."""


def _require_two_arguments(function: EpochFunction) -> None:
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none: the first call shows
        return
    try:
        found.bind(None, None)
    except TypeError as error:
        do = "let it take two arguments: function(df, key)"
        raise BadValue(what="function", value=function, why=f"it cannot be called so: {error}", do=do) from None


class CalledRecord(Record, frozen=True, kw_only=True):
    """The function has returned for this epoch."""

    pipeline: str
    uid: str
    stream: str
    timeline: int
    epoch: int
    rows: int
    handle: str  # digest of the handle by which the epoch was decided


class ForeachSink(Sink):
    """Calls `function(df, key)` for every epoch, at least once: the replacement for `foreachBatch`.

    `df` holds the rows of the epoch, read back from a staged copy: the same rows in every repetition, however often the
    function reads them. `key` is an `ForeachKey`: equal in every repetition, and `str(key)` is a text that a table can
    keep. The function is called only for epochs that are decided, in their order, and for empty ones too.

    **Exactly-once is up to the function.** If the driver dies inside it, or before the call is recorded, the function
    is called again for the same epoch. Keep the key together with what the function writes, in one transaction, and
    skip a key that is there already; or write so that a repetition changes nothing, as an upsert does. The other sinks
    of the stream stay exactly-once whatever the function does. If it raises, the stream does not go on until a later
    call returns.

    `path` is a folder for the staged rows and the record of calls; without it, they are kept in the repository. On a
    cluster all machines must see it. All output modes are accepted: `df` holds what the mode gives.
    """

    one_action = True

    def __init__(
        self, function: EpochFunction, *, path: str | os.PathLike[str] | None = None, name: str | None = None
    ) -> None:
        if not callable(function):
            do = "pass a function of two arguments: function(df, key)"
            raise BadValue(what="function", value=function, why="it cannot be called", do=do)
        _require_two_arguments(function)
        called = getattr(function, "__name__", "")
        super().__init__(name or (default_name("foreach", called) if called.isidentifier() else "foreach"))
        self.path = None if path is None else local_path("sink path", path)
        self.target = None if self.path is None else f"foreach {os.path.realpath(self.path)}"
        self._function = function
        self._staging: Staging | None = None

    def __repr__(self) -> str:
        return f"ForeachSink(name={self.name!r}{f', path={str(self.path)!r}' if self.path else ''})"

    # --- before the first epoch ---

    def open(self, setting: SinkContext) -> None:
        """Create the folder, and write the owner into it if it has none."""
        super().open(setting)
        require_seen_by_all(self.name, setting)
        folder = self._folder
        if folder.exists() and not folder.is_dir():
            raise BadValue(what="sink path", value=str(folder), why="it is a file", do="choose a folder")
        self._staging = None
        with failing(self.name, "make its folder"):
            self._staged.make()
            claim(folder, setting.owner, _SHAPE)

    @property
    def _folder(self) -> Path:
        found = self.path or self.setting.folder
        if found is None:
            raise NotSupported(what=f"sink {self.name!r}", why="it has no folder for its rows", do="pass path=...")
        return found

    @property
    def _staged(self) -> Staging:
        if self._staging is None:
            self._staging = Staging(self._folder / _STAGING)
        return self._staging

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Stage the rows as Parquet. An epoch without rows stages nothing, but the function is called for it too."""
        with failing(self.name, "prepare"):
            staged = stage(df, key, self._staged, self.setting)
        return Staged(staged.handle, staged.rows, staged.paths)

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Call the function, unless that is recorded.

        1. Look for the record.  2. Check the staged rows.  3. Call the function.  4. Record the call.
        """
        with failing(self.name, f"commit epoch {key.epoch}"):
            done = self._is_done(key, handle)  # 1
            df = None if done else self._rows(key, handle)  # 2
        if df is not None:
            owner = key.owner
            self._function(df, ForeachKey(owner.pipeline, owner.uid, owner.stream, *key.place))  # 3
            self.setting.reach("committing")
            with failing(self.name, f"record epoch {key.epoch}"):
                self._record(key, handle)  # 4
        self._staged.sweep(key)

    def _rows(self, key: EpochKey, handle: dict[str, Any]) -> DataFrame:
        spark = self.setting.spark
        if not handle["rows"]:
            return spark.createDataFrame([], self.setting.schema)
        proven(self.name, self._staged, key, handle)
        reader = spark.read.option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")
        return reader.parquet(hadoop_address(self._staged.folder(key)))

    def _is_done(self, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the call is recorded; raise where another copy of the repository recorded it, or the one before."""
        if any(timeline > key.timeline for timeline, _ in self._recorded()):
            return True
        last = self._last(key.timeline)
        own = self._link(key.timeline, key.epoch)
        if own is None:
            return is_past(self, key, self._link(key.timeline, last) or Link(last, None), str(self._folder))
        if own.handle != handle_digest(handle):
            raise decided_elsewhere(self, key, str(self._folder))
        return True

    def _record(self, key: EpochKey, handle: dict[str, Any]) -> None:
        owner, folder = key.owner, self._folder
        record = CalledRecord(
            pipeline=owner.pipeline,
            uid=owner.uid,
            stream=owner.stream,
            timeline=key.timeline,
            epoch=key.epoch,
            rows=handle["rows"],
            handle=handle_digest(handle),
        )
        with temporary(folder, record.sealed()) as temp, contextlib.suppress(FileExistsError):
            os.link(temp, self._entry(*key.place))  # a driver that was replaced may have recorded it first
        sync_folder(folder)
        for timeline, epoch in self._recorded():
            if (timeline, epoch) < (key.timeline, key.epoch - 1):
                self._entry(timeline, epoch).unlink(missing_ok=True)

    def _entry(self, timeline: int, epoch: int) -> Path:
        return self._folder / f"{place(timeline, epoch)}.key"

    def _link(self, timeline: int, epoch: int) -> Link | None:
        path = self._entry(timeline, epoch)
        try:
            return Link(epoch, CalledRecord.unsealed(path.read_bytes(), str(path)).handle)
        except FileNotFoundError:
            return None

    def abort(self, key: EpochKey) -> None:
        """Remove the attempt's folder."""
        self._staged.clear(key)

    # --- what is there ---

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Return the last epoch for which the function has returned."""
        with failing(self.name, "be inspected"):
            found = owner_of(self._folder)
            if found is None:
                return SinkPosition()
            return SinkPosition(self._last(timeline)) if found.is_of(owner) else SinkPosition(foreign=found.summary)

    def _recorded(self) -> list[tuple[int, int]]:
        return places_in(self._folder, LEDGER_FILE)

    def _last(self, timeline: int) -> int:
        return max((epoch for found, epoch in self._recorded() if found == timeline), default=0)
