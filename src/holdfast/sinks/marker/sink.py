"""A base class for a sink into one's own database. The user writes two methods, and Holdfast the rest of the contract.

Spark stages an attempt as Parquet. `commit` compares the key that the database holds with that of the epoch, and calls
`apply` if the epoch is not there.

Rules:
- `apply` writes the rows and the key in one transaction, and only if the key that the database holds is still `before`.
  Two drivers may call it at the same moment. If another one was first, it writes nothing; it may return or raise.
- After each call, `last_key` is read again. It alone decides whether the epoch is in the database: a call that raised
  may have taken effect, and a call that returned may have been too late.
- A call that raises is repeated, up to four times within about a second: databases report the conflict of two
  transactions as an error. `apply` is repeated only while the key stays the same. Then its error is raised.
- `apply` is not called for an epoch without rows, except in output mode "complete".
- A rewind calls `apply` without rows, with the key of its timeline. From then on, a driver of an older timeline finds
  another key than its `before`, and is refused with `TimelineEnded`.

Not guaranteed: that rows are written once by an `apply` that does not compare and store the key in the transaction that
writes the rows. Such a sink is at-least-once, or exactly-once as far as the database recognises a repeated key.
"""

from __future__ import annotations

import logging
import os
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import BadValue, NotSupported, SinkFailed, SinkForeign
from holdfast.repository.files import local_path
from holdfast.sinks.base import (
    CannotTakeBack,
    EpochKey,
    EpochPlace,
    OutputMode,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    TakeBack,
    failing,
    handle_digest,
)
from holdfast.sinks.held_epochs import is_committed
from holdfast.sinks.marker.key import Marker
from holdfast.sinks.marker.rows import StagedRows, rows_in, serialised
from holdfast.sinks.staged_files import proven, require_arrow, stage
from holdfast.sinks.staged_sink import StagedSink
from holdfast.sinks.taking_back import refuse_outdated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PAUSES_S = (0.05, 0.1, 0.25, 0.6)  # before each further call of a method that raised
_log = logging.getLogger(__name__)


class MarkerSink(StagedSink):
    """A base class for a sink into your own database: implement `apply` and `last_key`, and every epoch is there once.

        class MySink(hf.MarkerSink):
            def last_key(self): ...                    # the key that the database holds, or None
            def apply(self, rows, key, before): ...    # rows and key, in one transaction

    - `name`: the sink's name in decisions, errors and checkpoints. It must stay the same from run to run. Store the key
      under this name if several sinks write to one database.
    - `target`: text that names the place that the sink writes to. Two sinks of a pipeline must not have the same one.
    - `staging`: a folder for the staged rows; by default they are kept in the repository. Required if the repository
      is on S3. On a cluster, every machine must mount it.

    A subclass that handles other output modes than "append" lists them in `output_modes`. In "update", the rows are new
    versions of rows; in "complete", they replace all rows, and `rows.replaces` is true.

    `apply` and `last_key` are called on the driver, also without `open`, and never by two threads of one process at the
    same time for one object. They may raise any error. Raise `hf.errors.SinkUnavailable`, or Python's `ConnectionError`
    or `TimeoutError`, for an outage, and the stream waits for its end.
    """

    output_modes: ClassVar[tuple[OutputMode, ...]] = ("append",)
    folder_option = "staging"

    def __init__(self, name: str, *, target: str | None = None, staging: str | os.PathLike[str] | None = None) -> None:
        super().__init__(name, chosen=None if staging is None else local_path("staging folder", staging))
        self.target = None if target is None else f"{type(self).__name__} {target}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    # --- what a subclass implements ---

    @abstractmethod
    def apply(self, rows: StagedRows, key: str, before: str | None) -> object:
        """Write the rows and the key, in one transaction, if the database still holds the key `before`.

        `before` is `None` if it holds none. If it holds another one, write nothing. `key` has at most 255 characters,
        without spaces. `rows` may be empty: then only the key is stored. The result is ignored.
        """

    @abstractmethod
    def last_key(self) -> str | None:
        """Return the key that the database holds, as the last transaction stored it, or `None` if it holds none."""

    # --- an epoch ---

    def open(self, context: SinkContext) -> None:
        """Check the output mode, and create the folder for staged rows."""
        if context.output_mode not in self.output_modes:
            raise NotSupported(
                what=f"output mode {context.output_mode!r} into sink {self.name!r}",
                why=f"{type(self).__name__} accepts {', '.join(self.output_modes)}",
                do=f"list it in {type(self).__name__}.output_modes if apply() handles such rows",
            )
        require_arrow()
        super().open(context)

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Stage the rows as Parquet. An epoch without rows leaves no trace, unless it replaces all rows."""
        with failing(self.name, "prepare"):
            staged = stage(df, key, self._staged, self.context)
        replaces = self.context.output_mode == "complete"
        handle = staged.handle | {"replaces": replaces}
        if replaces and not staged.rows:
            handle["schema"] = serialised(self.context.schema)
        return Staged(handle, staged.rows, staged.paths, trace=staged.trace or replaces)

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Have the rows written, unless the database holds the epoch."""
        if handle["rows"] or handle["replaces"]:
            marker = Marker(key.owner, *key.place, handle_digest(handle))
            self._store(
                marker,
                rows=lambda: self._rows(key, handle),
                is_stored=lambda found: self._is_committed(found, key, handle),
            )
        self._staged.sweep(key)

    def _is_committed(self, found: Marker | None, key: EpochKey, handle: dict[str, Any]) -> bool:
        none = Marker(key.owner, 0, 0, None)
        return is_committed(self, key, handle, (found or none).held(key), self._place)

    def _rows(self, key: EpochKey, handle: dict[str, Any]) -> StagedRows:
        if not handle["rows"]:
            return StagedRows((), 0, handle["replaces"], handle["schema"])
        with failing(self.name, "read the staged rows"):
            proven(self.name, self._staged, key, handle)
            return rows_in(self.name, self._staged.folder(key), handle["rows"], replaces=handle["replaces"])

    def _store(
        self, marker: Marker, *, rows: Callable[[], StagedRows], is_stored: Callable[[Marker | None], bool]
    ) -> None:
        """Call `apply` until `is_stored`, which may raise, confirms what the database holds.

        1. Read the key; return if the marker is stored.  2. Read the staged rows.  3. Call `apply`.  4. Read the key
        again: an unchanged one after an error means that the call had no effect so far.
        """
        before = self._held(marker.owner)  # 1
        for pause in (*_PAUSES_S, None):
            if is_stored(before):
                return
            given = rows()  # 2
            self._reach("committing")
            try:
                self.apply(given, str(marker), None if before is None else str(before))  # 3
            except Exception:
                now = self._held(marker.owner)  # 4
                if now == before:
                    if pause is None:
                        raise
                    time.sleep(pause)
            else:
                now = self._held(marker.owner)
                if now == before:
                    raise self._not_stored(marker, now)
            before = now
        if not is_stored(before):
            raise SinkFailed(sink=self.name, action=f"store {marker}", why="other drivers store keys at the same time")

    def _not_stored(self, marker: Marker, found: Marker | None) -> SinkFailed:
        why = f"apply() returned, but last_key() is {'None' if found is None else found} and not {marker}"
        do = "have apply() store the key in the transaction that writes the rows, and last_key() return it"
        return SinkFailed(sink=self.name, action="store its key", why=why, do=do)

    def _held(self, owner: StreamIdentity) -> Marker | None:
        """Return the key that the database holds; raise if it is that of another stream."""
        found = self._found()
        if found is not None and found.owner != owner:
            raise SinkForeign(sink=self.name, place=self._place, owner=found.owner.summary)
        return found

    def _found(self) -> Marker | None:
        text = self._last_key()
        if text is None:
            return None
        marker = Marker.parsed(text) if isinstance(text, str) else None
        if marker is None:
            what, do = f"result of last_key() of sink {self.name!r}", "return the text that apply() stored, or None"
            raise BadValue(what=what, value=text, expected="None, or a key that apply() was given", do=do)
        return marker

    def _last_key(self) -> object:
        for pause in _PAUSES_S:
            try:
                return self.last_key()
            except Exception:  # of any kind, from user code
                _log.debug("sink %s: last_key() failed", self.name, exc_info=True)
                time.sleep(pause)
        return self.last_key()

    @property
    def _place(self) -> str:
        return self.target or f"the database of sink {self.name!r}"

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Return the epoch of the key that the database holds."""
        found = self._found()
        if found is None:
            return SinkPosition()
        if found.owner != owner:
            return SinkPosition(foreign=found.owner.summary)
        return SinkPosition(found.epoch if found.timeline == timeline else 0)

    # --- going back ---

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Only the database can reverse its rows. So it must hold no epoch after the base."""
        found = self._held(owner)
        return TakeBack(0, 0, "") if found is None or found.place <= base else self.cannot_be_taken_back()

    def cannot_be_taken_back(self) -> CannotTakeBack:
        """No epoch can be."""
        return CannotTakeBack(
            why=f"only {type(self).__name__} can remove rows from its database",
            do=f"to go back without it, pass --leave {self.name}: its rows stay, and the next epochs write beside them",
        )

    def take_back(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Store the key of the new timeline, if the database holds no epoch after the base."""
        if isinstance(self.can_take_back(owner, base), CannotTakeBack):
            super().take_back(owner, base, into)
        self.stamp(owner, base, into)

    def put_back(self, owner: StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Store the key of the new timeline: nothing was taken back."""
        del taken
        self.stamp(owner, base, into)

    def stamp(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Store the key of a timeline that begins at the base, and remove what earlier ones staged."""

        def is_stored(found: Marker | None) -> bool:
            refuse_outdated(owner, into, 0 if found is None else found.timeline)
            return found is not None and found.timeline == into

        self._reach("stamping")
        self._store(Marker(owner, into, base[1], None), rows=lambda: StagedRows((), 0), is_stored=is_stored)
        self._reach("stamped")
        self._reach("moved")
        with failing(self.name, "remove staged rows"):
            self._staged.retire(owner, (into, 0))
