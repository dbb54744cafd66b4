"""The contract of a sink as a test suite, to be run on your own sinks.

    class TestMySink(SinkContract):
        def make(self, folder): return MySink(folder / "out")
        def visible(self, spark, sink): return [...]      # the rows that a reader sees now, as (n, text)

pytest collects the subclass. It needs a fixture `spark`, a session on this machine, and pytest's `tmp_path`.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.epoch import Reach
from holdfast.errors import HoldfastError, StagedGone
from holdfast.formats.sealed_json import seal
from holdfast.sinks.base import EpochKey, Sink, SinkContext, Staged, StreamIdentity, checked_staged
from holdfast.testing.crash import Crashed
from holdfast.testing.take_back import TakeBackContract, VisibleRows, at_once, raised

__all__ = ["SinkContract", "VisibleRows"]


class SinkContract(TakeBackContract):
    """The contract of every sink. Subclass it and implement `make` and `visible`."""

    def make(self, folder: Path) -> Sink:
        """Return a new sink; each call with the same folder returns one for the same target."""
        raise NotImplementedError

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        """Return the rows that a reader can see now, as `(n, text)`."""
        raise NotImplementedError

    # --- the tests ---

    def test_prepare_shows_nothing_and_commit_shows_all(self, spark: Any, tmp_path: Path) -> None:
        """Prepared rows are invisible; committed rows are visible."""
        sink = self._open(spark, tmp_path)
        staged = sink.prepare(_rows(spark, 1, 2, 3), self._key(1))
        assert staged.rows == 3
        assert self._seen(spark, sink) == []
        assert sink.inspect(self.owner, 1).epoch == 0
        sink.commit(self._key(1), staged.handle)
        assert self._seen(spark, sink) == [1, 2, 3]
        assert sink.inspect(self.owner, 1).epoch == 1

    def test_a_handle_is_small_json_that_can_be_kept(self, spark: Any, tmp_path: Path) -> None:
        """A decision stores the handle unchanged, and a checkpoint the mark."""
        sink = self._open(spark, tmp_path)
        staged = checked_staged(sink, sink.prepare(_rows(spark, 1), self._key(1)))
        assert len(seal({"handle": staged.handle})) < 100_000
        assert len(seal({"mark": sink.mark()})) < 10_000

    def test_commit_is_idempotent_in_other_processes_too(self, spark: Any, tmp_path: Path) -> None:
        """A restarted driver commits an epoch that the dead driver may have committed."""
        sink = self._open(spark, tmp_path)
        staged = sink.prepare(_rows(spark, 1, 2), self._key(1))
        for _ in range(2):
            sink.commit(self._key(1), staged.handle)
        self._open(spark, tmp_path).commit(self._key(1), staged.handle)
        assert self._seen(spark, sink) == [1, 2]

    def test_a_driver_that_is_behind_changes_nothing(self, spark: Any, tmp_path: Path) -> None:
        """A paused driver commits an epoch long after another driver has continued."""
        sink, late = self._open(spark, tmp_path), self._open(spark, tmp_path)
        first = sink.prepare(_rows(spark, 1), self._key(1))
        sink.commit(self._key(1), first.handle)
        for epoch in (2, 3, 4):
            sink.commit(self._key(epoch), sink.prepare(_rows(spark, epoch), self._key(epoch)).handle)
        late.commit(self._key(1), first.handle)
        assert self._seen(spark, sink) == self._expected([1, 2, 3, 4])
        assert sink.inspect(self.owner, 1).epoch == 4

    def test_two_drivers_may_commit_one_handle_at_the_same_moment(self, spark: Any, tmp_path: Path) -> None:
        """Both succeed, and the rows are visible once."""
        for epoch in (1, 2, 3):
            staged = self._open(spark, tmp_path).prepare(_rows(spark, epoch, epoch + 10), self._key(epoch))
            sinks = [self._open(spark, tmp_path) for _ in range(2)]
            failures = at_once([partial(sink.commit, self._key(epoch), staged.handle) for sink in sinks])
            assert not failures, failures
            expected = [each for e in range(1, epoch + 1) for each in (e, e + 10)]
            assert self._seen(spark, sinks[0]) == self._expected(expected, last=[epoch, epoch + 10])

    def test_abort_drops_one_attempt_and_only_that(self, spark: Any, tmp_path: Path) -> None:
        """Attempts share nothing, neither under the same lease nor under two."""
        sink = self._open(spark, tmp_path)
        first = sink.prepare(_rows(spark, 1), self._key(1, attempt=1, lease=1))
        second = sink.prepare(_rows(spark, 2), self._key(1, attempt=1, lease=2))
        third = sink.prepare(_rows(spark, 3), self._key(1, attempt=2, lease=2))
        sink.abort(self._key(1, attempt=1, lease=1))
        sink.abort(self._key(1, attempt=1, lease=1))
        assert raised(StagedGone, lambda: sink.commit(self._key(1, attempt=1, lease=1), first.handle))
        sink.abort(self._key(1, attempt=1, lease=None))
        assert raised(StagedGone, lambda: sink.commit(self._key(1, attempt=1, lease=2), second.handle))
        assert self._seen(spark, sink) == []
        sink.commit(self._key(1, attempt=2, lease=2), third.handle)
        assert self._seen(spark, sink) == [3]

    def test_a_crash_while_staging_leaves_nothing_visible(self, spark: Any, tmp_path: Path) -> None:
        """The next driver discards incomplete staged data."""
        sink = self._open(spark, tmp_path, dies_at="staging")
        assert raised(Crashed, lambda: sink.prepare(_rows(spark, 1), self._key(1)))
        again = self._open(spark, tmp_path)
        assert self._seen(spark, again) == []
        again.abort(self._key(1, lease=None))
        staged = again.prepare(_rows(spark, 2), self._key(1, attempt=2))
        again.commit(self._key(1, attempt=2), staged.handle)
        assert self._seen(spark, again) == [2]

    def test_a_crash_while_committing_is_finished_by_the_next_driver(self, spark: Any, tmp_path: Path) -> None:
        """An interrupted commit is repeated, and takes effect once."""
        sink = self._open(spark, tmp_path)
        staged = sink.prepare(_rows(spark, *range(20)), self._key(1))
        dying = self._open(spark, tmp_path, dies_at="committing")
        raised(Crashed, lambda: dying.commit(self._key(1), staged.handle))
        again = self._open(spark, tmp_path)
        assert again.inspect(self.owner, 1).epoch in (0, 1)
        again.commit(self._key(1), staged.handle)
        assert self._seen(spark, again) == list(range(20))
        assert again.inspect(self.owner, 1).epoch == 1

    def test_an_epoch_without_rows_changes_nothing(self, spark: Any, tmp_path: Path) -> None:
        """It may leave a trace or not; `Staged.trace` reports which."""
        sink = self._open(spark, tmp_path)
        self._epoch(spark, sink, 1, 1)
        staged = sink.prepare(_rows(spark), self._key(2))
        assert staged.rows == 0
        sink.commit(self._key(2), staged.handle)
        sink.commit(self._key(2), staged.handle)
        assert self._seen(spark, sink) == self._expected([1], last=[])
        assert sink.inspect(self.owner, 1).epoch == (2 if staged.trace else 1)

    def test_what_is_staged_goes_when_the_next_epoch_is_committed(self, spark: Any, tmp_path: Path) -> None:
        """Staged data does not accumulate, not even that of attempts that were never aborted."""
        sink = self._open(spark, tmp_path)
        lost = sink.prepare(_rows(spark, 9), self._key(1, attempt=1))
        kept = sink.prepare(_rows(spark, 1), self._key(1, attempt=2))
        sink.commit(self._key(1, attempt=2), kept.handle)
        self._epoch(spark, sink, 2, 2)
        # The attempt was never decided, and its epoch is over: the sink may raise an error or ignore it.
        with contextlib.suppress(HoldfastError):
            sink.commit(self._key(1, attempt=1), lost.handle)
        assert self._seen(spark, sink) == self._expected([1, 2], last=[2])

    def test_it_remembers_its_owner(self, spark: Any, tmp_path: Path) -> None:
        """A new repository of the same name over old output would write everything twice."""
        sink = self._open(spark, tmp_path)
        self._epoch(spark, sink, 1, 1)
        assert sink.inspect(self.owner, 1).foreign is None
        other = StreamIdentity(self.owner.pipeline, "0" * 31 + "2", self.owner.stream)
        assert self.make(tmp_path).inspect(other, 1).foreign is not None

    def test_a_new_timeline_counts_anew(self, spark: Any, tmp_path: Path) -> None:
        """Epochs of two timelines are never confused."""
        sink = self._open(spark, tmp_path)
        self._epoch(spark, sink, 1, 1)
        self._epoch(spark, sink, 2, 2)
        staged = sink.prepare(_rows(spark, 3), self._key(2, timeline=2))
        sink.commit(self._key(2, timeline=2), staged.handle)
        assert self._seen(spark, sink) == self._expected([1, 2, 3], last=[3])
        assert sink.inspect(self.owner, 2).epoch == 2

    # --- internal ---

    def _open(self, spark: Any, folder: Path, dies_at: str | None = None, *, reach: Reach | None = None) -> Sink:
        from holdfast.spark.adapter import few_rows  # noqa: PLC0415 - an extra

        def dies(point: str) -> None:
            if point == dies_at:
                raise Crashed(point)

        sink = self.make(folder)
        schema = _rows(spark, 1).schema
        context = SinkContext(self.owner, schema, self.output_mode, spark, reach=reach or dies, tell=lambda _: None)
        sink.open(replace(context, collect=few_rows(spark, freezes=False)))
        return sink

    def _stage(self, spark: Any, sink: Sink, key: EpochKey, *numbers: int) -> Staged:
        return sink.prepare(_rows(spark, *numbers), key)

    def _epoch(self, spark: Any, sink: Sink, epoch: int, *numbers: int) -> Staged:
        staged = sink.prepare(_rows(spark, *numbers), self._key(epoch))
        sink.commit(self._key(epoch), staged.handle)
        return staged


def _rows(spark: Any, *numbers: int) -> Any:
    """Return rows as a DataFrame that needs no Python worker, which is slow to start."""
    values = ", ".join(f"({n}L, 'row {n}')" for n in numbers or [0])
    df = spark.sql(f"SELECT * FROM VALUES {values} AS t(n, text)")  # noqa: S608 - numbers
    return (df if numbers else df.where("false")).repartition(2)
