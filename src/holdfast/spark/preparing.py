"""The first phase of an epoch: the rows are frozen where necessary, and every sink stages its output."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.epoch import Attempt, EpochProgress, Move
from holdfast.errors import BadValue, SinkFailed
from holdfast.sinks.base import EpochKey, Staged, checked_staged
from holdfast.sinks.rows import RowDigest
from holdfast.spark import adapter
from holdfast.spark.parts import StreamParts
from holdfast.spark.stages import Sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the sinks staged for one epoch, and the new state of its stage."""

    staged: dict[str, Staged]  # by sink
    row_digest: str | None  # of a stateful stream
    stage: Sealed | None

    @property
    def rows(self) -> int:
        """The rows that each sink was given."""
        return max((each.rows for each in self.staged.values()), default=0)

    @property
    def paths(self) -> list[Path]:
        """The local files and folders that are not durable yet."""
        return [path for each in self.staged.values() for path in each.paths]


class Preparer:
    """Prepares the epochs of one query."""

    def __init__(self, parts: StreamParts, *, stateful: bool) -> None:
        self._parts = parts
        self._digest: RowDigest | None = None  # built from the first batch: all batches of a query have its columns
        self.stateful = stateful  # the query keeps state from batch to batch

    def prepare(self, df: DataFrame, attempt: Attempt, stage: Sealed | None, progress: EpochProgress) -> Prepared:
        """Have every sink stage the epoch.

        With several sinks, or one that may run two actions, the rows are frozen: each computation may give other rows.
        With a stage they are frozen as well: the sinks must be given the rows that `on_epoch` has seen.
        """
        sinks, read_digest = self._parts.sinks, None
        if self.stateful:
            df, read_digest = self.observed(df)
        staged: dict[str, Staged] = {}
        key = EpochKey(self._parts.owner, attempt, self._parts.lease.number)
        freeze = len(sinks) > 1 or not all(sink.one_action for sink in sinks)
        with contextlib.ExitStack() as frozen:
            if self._parts.spec.on_epoch is not None:
                df, stage = self._run_stage(frozen.enter_context(adapter.frozen(df)), stage)
            rows = frozen.enter_context(adapter.frozen(df)) if freeze else df
            for number, sink in enumerate(sinks, 1):
                with progress.inside(sink.name):
                    staged[sink.name] = checked_staged(sink, sink.prepare(rows, key))
                progress.move(Move.PREPARE_LAST if number == len(sinks) else Move.PREPARE)
                self._parts.reach("prepared")
        _require_equal_counts({name: each.rows for name, each in staged.items()})
        self._parts.reach("all prepared")
        return Prepared(staged, read_digest() if read_digest else None, stage)

    def skip(self, df: DataFrame, stage: Sealed | None, progress: EpochProgress) -> Prepared:
        """Give the epoch to no sink: it failed several times, and the user allowed it to be quarantined."""
        if self.stateful:
            adapter.run_for_nothing(df)  # the state advances; such a stream is quarantined for its sinks only
        progress.move(Move.SKIP)
        return Prepared({sink.name: Staged({}, 0, trace=False) for sink in self._parts.sinks}, None, stage)

    def observed(self, df: DataFrame) -> tuple[DataFrame, Callable[[], str]]:
        """Return a DataFrame whose rows are observed, and a function that returns their digest afterwards."""
        if self._digest is None:
            self._digest = RowDigest(df)
        return self._digest.observed(df)

    def _run_stage(self, rows: DataFrame, stage: Sealed | None) -> tuple[DataFrame, Sealed | None]:
        """Call the user's function with the rows and the stage, reset to its last decided state."""
        keeper, on_epoch, name = self._parts.stage, self._parts.spec.on_epoch, self._parts.name
        if keeper is None or on_epoch is None or stage is None:
            return rows, stage
        view = keeper.view(stage)
        try:
            made = on_epoch(rows, view)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            error.add_note(f"on_epoch of stream {name!r}, {frame.filename}:{frame.lineno}")
            raise
        if getattr(made, "isStreaming", True):
            what, expected = f"result of on_epoch of stream {name!r}", "a DataFrame of this epoch"
            do = "return a DataFrame from on_epoch(df, stage) that is made from its argument"
            raise BadValue(what=what, value=made, expected=expected, do=do)
        return made, keeper.seal(view, stage)


def _require_equal_counts(counts: dict[str, int]) -> None:
    if len(set(counts.values())) > 1:
        why = "the sinks counted different rows of one epoch: " + ", ".join(f"{name} {n}" for name, n in counts.items())
        raise SinkFailed(sink=min(counts, key=lambda name: counts[name]), action="prepare", why=why)
