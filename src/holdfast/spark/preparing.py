"""The first phase of an epoch: the rows are frozen where necessary, and every sink stages its output.

Rules:
- Each computation may give other rows. So the rows are frozen for several sinks, for one that may run several actions,
  and for `on_epoch`: the sinks must be given the rows that it has seen.
- Rows are frozen on use, which saves a job, only where a partition that is computed twice is always detected: in one
  JVM, for the first attempt at an epoch of a stateless stream without `on_epoch`, into several sinks that run one
  action each. In all other cases they are computed first.
- With a dead letter, the rows are always computed first, together with the outcome of the checks: a partition that is
  computed twice might pass them once and fail them once.
- Sinks prepare at the same time. No prepare is in progress when this phase ends, however it ends. The epoch moves in
  its own thread afterwards, sink by sink, in the order of the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._error_text import one_line
from holdfast.epoch import Attempt, EpochProgress, Move
from holdfast.errors import BadValue, FrozenRowsLost, SinkFailed
from holdfast.sinks.base import EpochKey, Sink, Staged, checked_staged
from holdfast.sinks.rows import RowDigest
from holdfast.spark import adapter
from holdfast.spark.dead_letters import all_checks, judged, split
from holdfast.spark.failures import to_report
from holdfast.spark.parts import StreamParts
from holdfast.spark.side_by_side import SideBySide, Within
from holdfast.spark.stages import Sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the sinks staged for one epoch, and the new state of its stage."""

    staged: dict[str, Staged]  # by sink
    row_digest: str | None  # of a stateful stream
    stage: Sealed | None
    seconds: dict[str, float] = field(default_factory=dict)  # by sink: how long it took
    dead_letter: str | None = None  # the sink of the dead letter

    @property
    def rows(self) -> int:
        """The rows that each sink was given, but that of the dead letter."""
        return max((each.rows for name, each in self.staged.items() if name != self.dead_letter), default=0)

    @property
    def dead_rows(self) -> int:
        """The rows that the dead letter was given."""
        return self.staged[self.dead_letter].rows if self.dead_letter in self.staged else 0

    @property
    def paths(self) -> list[Path]:
        """The local files and folders that are not durable yet."""
        return [path for each in self.staged.values() for path in each.paths]


class Preparer:
    """Prepares the epochs of one query."""

    def __init__(self, parts: StreamParts, *, stateful: bool, working: Within) -> None:
        self._parts = parts
        self._working = working  # entered in each thread that works for an epoch
        self._side_by_side = SideBySide(f"holdfast-sinks-{parts.name}")
        self._digest: RowDigest | None = None  # built from the first batch: all batches of a query have its columns
        self.stateful = stateful  # the query keeps state from batch to batch
        self._dead = dead = parts.spec.dead_letter
        self._checks = {} if dead is None else all_checks(dead, parts.spec.outputs)
        one_action = all(sink.one_action for sink in parts.sinks)
        self._freezes = len(parts.sinks) > 1 or not one_action or dead is not None
        plain = one_action and not stateful and parts.spec.on_epoch is None and dead is None
        self._on_use = self._freezes and plain and adapter.can_freeze_on_use(parts.run.spark)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks that are given the epochs."""
        return self._parts.sinks

    @contextlib.contextmanager
    def without(self, names: Collection[str]) -> Iterator[Preparer]:
        """Provide a preparer for an epoch that some of the sinks must not be given."""
        sinks = tuple(sink for sink in self._parts.sinks if sink.name not in names)
        parts = dataclasses.replace(self._parts, spec=dataclasses.replace(self._parts.spec, sinks=sinks))
        other = Preparer(parts, stateful=self.stateful, working=self._working)
        try:
            yield other
        finally:
            other.close()

    def close(self) -> None:
        """End the threads of the sinks."""
        self._side_by_side.close()

    def prepare(self, df: DataFrame, attempt: Attempt, stage: Sealed | None, progress: EpochProgress) -> Prepared:
        """Have every sink stage the epoch."""
        key = EpochKey(self._parts.owner, attempt, self._parts.lease.number)
        if self._on_use and attempt.attempt == 1:
            with adapter.frozen_on_use(df) as (rows, computed):
                staged, seconds = self._staged(rows, key, progress)
                self._require_computed_once(attempt.epoch, computed(), staged)
            return self._prepared(staged, seconds, None, stage)
        read_digest = None
        if self.stateful:
            df, read_digest = self.observed(df)
        with contextlib.ExitStack() as frozen:
            if self._parts.spec.on_epoch is not None:
                df, stage = self._run_stage(frozen.enter_context(adapter.frozen(df)), stage)
            if self._dead is not None:
                df = judged(df, self._checks)
            rows = frozen.enter_context(adapter.frozen(df)) if self._freezes else df
            staged, seconds = self._staged(rows, key, progress)
        return self._prepared(staged, seconds, read_digest, stage)

    def _prepared(
        self,
        staged: dict[str, Staged],
        seconds: dict[str, float],
        read_digest: Callable[[], str] | None,
        stage: Sealed | None,
    ) -> Prepared:
        self._parts.reach("all prepared")
        return Prepared(staged, read_digest() if read_digest else None, stage, seconds, self._dead_letter)

    @property
    def _dead_letter(self) -> str | None:
        return None if self._dead is None else self._dead.sink.name

    def _staged(
        self, rows: DataFrame, key: EpochKey, progress: EpochProgress
    ) -> tuple[dict[str, Staged], dict[str, float]]:
        """Have the sinks stage the rows at the same time, and wait for all of them; raise if one has failed.

        Return what they staged, and how long each of them took.
        """
        sinks = self._parts.sinks
        given = self._given(rows)
        calls = [lambda sink=sink: checked_staged(sink, sink.prepare(given[sink.name], key)) for sink in sinks]
        outcomes = self._side_by_side.run(calls, self._aside(rows) if len(sinks) > 1 else contextlib.nullcontext)
        named = {sink.name: outcome for sink, outcome in zip(sinks, outcomes, strict=True)}
        failed = {name: each.error for name, each in named.items() if each.error is not None}
        staged = {name: each.value for name, each in named.items() if each.value is not None}
        for number, _ in enumerate(staged, 1):
            progress.move(Move.PREPARE_LAST if number == len(sinks) else Move.PREPARE)
            self._parts.reach("prepared")
        if failed:
            raise self._outcome(failed, progress)
        _require_equal_counts({name: each.rows for name, each in staged.items() if name != self._dead_letter})
        return staged, {name: round(each.seconds, 6) for name, each in named.items()}

    def _given(self, rows: DataFrame) -> dict[str, DataFrame]:
        """Return the rows for each sink: all of them or, with a dead letter, those that passed or failed the checks."""
        if self._dead is None:
            return dict.fromkeys((sink.name for sink in self._parts.sinks), rows)
        passed, failed = split(rows)
        return {sink.name: failed if sink is self._dead.sink else passed for sink in self._parts.sinks}

    def _aside(self, rows: DataFrame) -> Within:
        """Return what is entered around the work of a sink in another thread."""
        adopt = adapter.job_properties(rows)

        @contextlib.contextmanager
        def aside() -> Iterator[None]:
            with self._working():
                adopt()
                yield

        return aside

    def _outcome(self, failed: Mapping[str, BaseException], progress: EpochProgress) -> BaseException:
        """Return the error to raise, and blame its sink. Other failures are logged, unless they have the same text."""
        blamed = to_report(failed)
        progress.blame(blamed)
        raised = one_line(failed[blamed])  # the supervisor reports it
        for name, why in ((name, one_line(each)) for name, each in failed.items()):
            if why != raised:
                _log.warning("stream %s: sink %s could not prepare: %s", self._parts.name, name, why)
        return failed[blamed]

    def _require_computed_once(self, epoch: int, computed: int, staged: Mapping[str, Staged]) -> None:
        """Raise if a partition may have been computed for one sink and again for another.

        Each sink counts its rows, and all counts are equal. If a partition with rows was computed twice, more rows were
        computed than any sink was given.
        """
        given = max(each.rows for each in staged.values())
        if computed != given:
            raise FrozenRowsLost(stream=self._parts.name, epoch=epoch, computed=computed, given=given)

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
