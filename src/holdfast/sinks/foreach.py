"""A user-supplied function as a sink, for jobs that use `foreachBatch`.

Spark stages an attempt as Parquet. `commit` reads it back as a DataFrame and calls the function with it.

Rules:
- The function is called only for decided epochs, in order, including epochs without rows.
- It is called at least once for each. It is called again, with the same rows and an equal key, if the call failed or if
  the driver died before the call was recorded.
- A call is recorded when the function has returned: by a file `t<timeline>-<epoch>.key` beside the staging folder. The
  last two are kept.
- A rewind cannot reverse what the function wrote. It records a stamp: a call without a handle, in its new timeline.
- A function that raises leaves its epoch in doubt: the stream does not continue until the function returns. The epoch
  is already decided, so it is not quarantined.

Not guaranteed: that the function takes effect exactly once. For that, the function must recognise a key that it has
seen before. Nor that a call has ended before the next one begins: a driver that was replaced may still be inside it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.errors import BadValue, SinkForeign
from holdfast.formats.sealed_json import Record
from holdfast.repository.files import hadoop_address, local_path, make_folder, sync_folder, temporary
from holdfast.sinks import base
from holdfast.sinks.base import CannotTakeBack, EpochKey, EpochPlace, Link, SinkContext, Staged, TakeBack, failing
from holdfast.sinks.held_epochs import HeldEpochs, is_committed
from holdfast.sinks.key_files import KeyFiles, place
from holdfast.sinks.owners import claim, position_in
from holdfast.sinks.staged_files import proven, stage
from holdfast.sinks.staged_sink import StagedSink
from holdfast.sinks.taking_back import refuse_outdated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXPECTED = "a function of two arguments: function(df, key)"
_SHAPE = "calls of a function"


@dataclass(frozen=True, slots=True)
class ForeachKey:
    """Identifies an epoch: equal whenever a call is repeated, different for every other epoch of any pipeline."""

    pipeline: str  # its name
    uid: str  # of its repository: differs between two pipelines of the same name
    stream: str  # its name
    timeline: int
    epoch: int

    @property
    def batch_id(self) -> int:
        """The number of Spark's micro-batch, as `foreachBatch` receives it: the epoch minus one."""
        return self.epoch - 1

    def __str__(self) -> str:
        return f"{self.uid}/{self.stream}/{place(self.timeline, self.epoch)}"


EpochFunction: TypeAlias = Callable[["DataFrame", ForeachKey], object]
"""The function that a `ForeachSink` calls; its result is ignored."""


def _require_two_arguments(function: EpochFunction) -> None:
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have no signature; a wrong one fails at the first call
        return
    try:
        found.bind(None, None)
    except TypeError as error:
        raise BadValue(what="function", value=function, why=str(error), expected=_EXPECTED) from None


class CalledRecord(Record, frozen=True, kw_only=True):
    """Records that the function has returned for this epoch."""

    pipeline: str
    uid: str
    stream: str
    timeline: int
    epoch: int
    rows: int
    handle: str  # digest of the handle in the decision


class ForeachSink(StagedSink):
    """Calls `function(df, key)` for every epoch, at least once: the replacement for `foreachBatch`.

    `df` holds the rows of the epoch, read from a staged copy: the same rows whenever a call is repeated, however often
    the function reads them. `key` is a `ForeachKey`: equal whenever a call is repeated. `str(key)` is text that can be
    stored in a table. The function is called only for decided epochs, in order, including epochs without rows.

    **Only the function itself can make its own writes exactly-once.** If the driver dies inside it, or before the call
    is recorded, the function is called again for the same epoch. Write the key in the same transaction as the data and
    skip a key that is already there, or write in a way that can be repeated, such as an upsert. The other sinks of the
    stream remain exactly-once, regardless of the function. If the function raises, the stream does not continue until a
    later call returns.

    `path` is a folder for the staged rows and the record of calls; by default they are kept in the repository. On a
    cluster, every machine must mount it. All output modes are accepted: `df` holds the rows that Spark emits in that
    mode. A rewind cannot reverse what the function wrote; it can leave it as it is, and then the function gets the rows
    of later epochs again, with keys of a new timeline.
    """

    def __init__(
        self, function: EpochFunction, *, path: str | os.PathLike[str] | None = None, name: str | None = None
    ) -> None:
        if not callable(function):
            raise BadValue(what="function", value=function, expected=_EXPECTED)
        _require_two_arguments(function)
        called = getattr(function, "__name__", "")
        default = base.default_name("foreach", called) if called.isidentifier() else "foreach"
        self.path = None if path is None else local_path("sink path", path)
        super().__init__(name or default, chosen=self.path)
        self.target = None if self.path is None else f"foreach {os.path.realpath(self.path)}"
        self._function = function

    def __repr__(self) -> str:
        return f"ForeachSink(name={self.name!r}{f', path={str(self.path)!r}' if self.path else ''})"

    # --- before the first epoch ---

    def open(self, context: SinkContext) -> None:
        """Create the folder, and record its owner if it has none."""
        super().open(context)
        with failing(self.name, "create its folder"):
            claim(self.folder, context.owner, _SHAPE)

    @property
    def _calls(self) -> KeyFiles:
        return KeyFiles(self.folder)

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Stage the rows as Parquet. An epoch without rows stages nothing, but the function is called for it too."""
        with failing(self.name, "prepare"):
            staged = stage(df, key, self._staged, self.context)
        return Staged(staged.handle, staged.rows, staged.paths)

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Call the function, unless the call is recorded.

        1. Look up the record.  2. Check the staged rows.  3. Call the function.  4. Record the call.
        """
        with failing(self.name, f"commit epoch {key.epoch}"):
            done = self._is_done(key, handle)  # 1
            df = None if done else self._rows(key, handle)  # 2
        if df is not None:
            owner = key.owner
            self._function(df, ForeachKey(owner.pipeline, owner.uid, owner.stream, *key.place))  # 3
            self.context.reach("committing")
            with failing(self.name, f"record epoch {key.epoch}"):
                self._record(key, handle)  # 4
        self._staged.sweep(key)

    def _rows(self, key: EpochKey, handle: dict[str, Any]) -> DataFrame:
        spark = self.context.spark
        if not handle["rows"]:
            return spark.createDataFrame([], self.context.schema)
        proven(self.name, self._staged, key, handle)
        reader = spark.read.option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")
        return reader.parquet(hadoop_address(self._staged.folder(key)))

    def _is_done(self, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the call is recorded; raise if another copy of the repository recorded it, or the one before."""
        timeline = max((timeline for timeline, _ in self._calls.places()), default=0)
        last = self._calls.last(key.timeline)
        held = HeldEpochs(timeline, self._link(*key.place), self._link(key.timeline, last) or Link(last, None))
        return is_committed(self, key, handle, held, str(self.folder))

    def _record(self, key: EpochKey, handle: dict[str, Any]) -> None:
        self._add(key.owner, key.place, handle["rows"], base.handle_digest(handle))
        self._calls.remove_older(key)

    def _add(self, owner: base.StreamIdentity, place: EpochPlace, rows: int, handle: str) -> None:
        """Link a record into place, unless a driver that was replaced has recorded it first."""
        record = CalledRecord(
            pipeline=owner.pipeline,
            uid=owner.uid,
            stream=owner.stream,
            timeline=place[0],
            epoch=place[1],
            rows=rows,
            handle=handle,
        )
        with temporary(self.folder, record.sealed()) as temp, contextlib.suppress(FileExistsError):
            os.link(temp, self._calls.path(*place))
        sync_folder(self.folder)

    def _link(self, timeline: int, epoch: int) -> Link | None:
        path = self._calls.path(timeline, epoch)
        try:
            return Link(epoch, CalledRecord.unsealed(path.read_bytes(), str(path)).handle or None)
        except FileNotFoundError:
            return None

    def inspect(self, owner: base.StreamIdentity, timeline: int) -> base.SinkPosition:
        """Return the last epoch for which the function has returned."""
        with failing(self.name, "be inspected"):
            return position_in(self.folder, owner, lambda: self._calls.last(timeline))

    # --- going back ---

    def can_take_back(self, owner: base.StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Only the function can reverse its own writes. So it must not have been called after the base."""
        del owner
        with failing(self.name, "be inspected"):
            if max(self._calls.places(), default=(0, 0)) <= base:
                return TakeBack(0, 0, "")
        return self.cannot_be_taken_back()

    def cannot_be_taken_back(self) -> CannotTakeBack:
        """No call can be."""
        why = "only its function can reverse what it wrote"
        do = f"to go back without it, pass --leave {self.name}: its function gets the rows again, with new keys"
        return CannotTakeBack(why, do)

    def take_back(self, owner: base.StreamIdentity, base: EpochPlace, into: int) -> None:
        """Write the stamp, if the function was not called after the base."""
        if isinstance(self.can_take_back(owner, base), CannotTakeBack):
            super().take_back(owner, base, into)
        self.stamp(owner, base, into)

    def put_back(self, owner: base.StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Write the stamp: nothing was taken back."""
        del taken
        self.stamp(owner, base, into)

    def stamp(self, owner: base.StreamIdentity, base: EpochPlace, into: int) -> None:
        """Record that a timeline begins at the base, and remove what earlier ones staged.

        Not guaranteed: that the function is not running for an epoch of an earlier timeline at this moment.
        """
        with failing(self.name, "be stamped"):
            make_folder(self.folder)
            found = claim(self.folder, owner, _SHAPE)
            if found.owner != owner:
                raise SinkForeign(sink=self.name, place=str(self.folder), owner=found.owner.summary)
            latest = max((timeline for timeline, _ in self._calls.places()), default=0)
            refuse_outdated(owner, into, latest)
            self._reach("stamping")
            if latest < into:
                self._add(owner, (into, base[1]), 0, "")
            self._reach("stamped")
            self._reach("moved")
            self._staged.retire(owner, (into, 0))
