"""The part of the contract of a sink that a rewind needs: take epochs back, put them back, and end a timeline.

A sink that cannot take epochs back must state why, and which setting would have made it possible. `SinkContract`
includes these tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.epoch import Attempt, Reach, unwatched
from holdfast.errors import NotSupported, StagedGone, TimelineEnded
from holdfast.sinks.base import CannotTakeBack, EpochKey, EpochPlace, Link, Sink, Staged, StreamIdentity

VisibleRows = list[tuple[Any, ...]]
_WAIT_S = 60.0
_PAUSE_S = 0.01
_BLOCKED_S = 1.0  # how long a take-back may wait for a commit that is paused


class TakeBackContract:
    """What a sink promises to a rewind. `SinkContract` implements the private methods with Spark."""

    output_mode = "append"
    owner = StreamIdentity("contract", "0" * 31 + "1", "rows")

    def make(self, folder: Path) -> Sink:
        """Return a new sink; each call with the same folder returns one for the same target."""
        raise NotImplementedError

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        """Return the rows that a reader can see now, as `(n, text)`."""
        raise NotImplementedError

    # --- the tests ---

    def test_a_sink_that_cannot_go_back_states_why_and_what_to_set(self, spark: Any, tmp_path: Path) -> None:
        """The answer needs no open sink, and changes nothing."""
        sink = self._filled(spark, tmp_path)
        found = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        if isinstance(found, CannotTakeBack):
            assert found.why
            assert found.do
        else:
            assert sink.cannot_be_taken_back() is None, "the first start would report that it cannot go back"
            assert not found.kept or (found.epochs, found.rows) in ((2, 2), (2, None))
        assert self._seen(spark, sink) == self._expected([1, 2, 3, 4])
        assert sink.inspect(self.owner, 1).epoch == 4

    def test_epochs_are_taken_back_and_the_next_timeline_continues(self, spark: Any, tmp_path: Path) -> None:
        """Rows up to the base stay. The first epoch after it is not skipped, and a repetition does not touch it."""
        sink = self._filled(spark, tmp_path)
        for _ in range(2):
            if not self._taken(tmp_path, (1, 2), 2):
                return
            assert self._after(spark, sink) == self._expected([1, 2], kept=[4])
            assert self.make(tmp_path).inspect(self.owner, 2).epoch == 2
        self._epoch_of(spark, tmp_path, (2, 3), 13)
        self._taken(tmp_path, (1, 2), 2)
        self._epoch_of(spark, tmp_path, (2, 4), 14)
        assert self._seen(spark, sink) == self._expected([1, 2, 13, 14])
        assert self.make(tmp_path).inspect(self.owner, 2).epoch == 4

    def test_what_was_set_aside_can_be_discarded(self, spark: Any, tmp_path: Path) -> None:
        """An undo that needs it is refused. Rows that readers see are not touched."""
        sink = self._filled(spark, tmp_path)
        counted = self.make(tmp_path).can_take_back(self.owner, (1, 2))
        if isinstance(counted, CannotTakeBack) or not self._taken(tmp_path, (1, 2), 2):
            return
        before, other = self._after(spark, sink), self.make(tmp_path)
        rows = counted.rows or 0
        assert other.cannot_be_put_back(self.owner, 2, rows) is None
        kept = other.set_aside(self.owner)
        assert [(each.timeline, each.rows) for each in kept] in ([], [(2, rows)])
        for _ in range(2):
            other.discard_aside(self.owner, 2)
            assert other.set_aside(self.owner) == []
        assert bool(kept) == (other.cannot_be_put_back(self.owner, 2, rows) is not None)
        assert self._after(spark, sink) == before

    def test_put_back_restores_every_row(self, spark: Any, tmp_path: Path) -> None:
        """An undo begins a third timeline, which continues after the last epoch of the first."""
        sink = self._filled(spark, tmp_path)
        before = sorted(self.visible(spark, sink))
        if not self._taken(tmp_path, (1, 2), 2):
            return
        for _ in range(2):
            self.make(tmp_path).put_back(self.owner, (1, 4), 3, 2)
            assert sorted(self.visible(spark, sink)) == before
            assert self.make(tmp_path).inspect(self.owner, 3).epoch == 4
        self._epoch_of(spark, tmp_path, (3, 5), 15)
        self.make(tmp_path).put_back(self.owner, (1, 4), 3, 2)
        assert self._seen(spark, sink) == self._expected([1, 2, 3, 4, 15])

    def test_a_rewind_that_another_one_has_followed_changes_nothing(self, spark: Any, tmp_path: Path) -> None:
        """A process that was paused within a rewind resumes after its undo."""
        sink = self._filled(spark, tmp_path)
        if not self._taken(tmp_path, (1, 2), 2):
            return
        self.make(tmp_path).put_back(self.owner, (1, 4), 3, 2)
        assert raised(TimelineEnded, lambda: self._taken(tmp_path, (1, 2), 2))
        assert self._seen(spark, sink) == self._expected([1, 2, 3, 4])

    def test_one_can_go_back_again_and_across_a_timeline(self, spark: Any, tmp_path: Path) -> None:
        """Each rewind keeps its own rows. Rows that an earlier rewind set aside do not return with a later undo."""
        sink = self._filled(spark, tmp_path)
        if not self._taken(tmp_path, (1, 2), 2):
            return
        self._epoch_of(spark, tmp_path, (2, 3), 13)
        self._epoch_of(spark, tmp_path, (2, 4), 14)
        before = sorted(self.visible(spark, sink))
        self._taken(tmp_path, (1, 1), 3)
        assert self._after(spark, sink) == self._expected([1], kept=[14])
        self.make(tmp_path).put_back(self.owner, (2, 4), 4, 3)
        assert sorted(self.visible(spark, sink)) == before
        self._taken(tmp_path, (2, 3), 5)
        self._epoch_of(spark, tmp_path, (5, 4), 24)
        assert self._seen(spark, sink) == self._expected([1, 2, 13, 24])

    def test_a_driver_of_the_old_timeline_is_refused(self, spark: Any, tmp_path: Path) -> None:
        """It resumes after the rewind: with an epoch that was taken back, and with one that was only staged."""
        sink, late = self._filled(spark, tmp_path), self._open(spark, tmp_path)
        handles = [(key, self._stage(spark, sink, key, key.epoch).handle) for key in (self._key(5), self._key(6))]
        sink.commit(*handles[0])
        if not self._taken(tmp_path, (1, 2), 2):
            return
        for key, handle in handles:
            assert raised(TimelineEnded, partial(late.commit, key, handle)), "it was not refused"
            assert raised(TimelineEnded, partial(self.make(tmp_path).commit, key, handle))
        assert self._after(spark, sink) == self._expected([1, 2], kept=[5])
        self._epoch_of(spark, tmp_path, (2, 3), 13)
        assert raised(TimelineEnded, partial(late.commit, *handles[1]))
        assert self._seen(spark, sink) == self._expected([1, 2, 13])

    def test_a_commit_that_is_paused_within_does_not_survive(self, spark: Any, tmp_path: Path) -> None:
        """It passed all checks before the stamp, and resumes after the rows were moved, or while the sink waits."""
        self._filled(spark, tmp_path)
        if not self._can(tmp_path, (1, 2)):
            return
        paused, resumed = threading.Event(), threading.Event()

        def pause(point: str) -> None:
            if point == "committing":
                paused.set()
                resumed.wait(_WAIT_S)

        late = self._open(spark, tmp_path, reach=pause)
        key = self._key(5)
        handle = self._stage(spark, late, key, 5, 15).handle
        failures: list[BaseException] = []
        commit = _started(partial(late.commit, key, handle), failures)
        while commit.is_alive() and not paused.wait(_PAUSE_S):
            pass  # a sink may commit one row without a pause
        back = _started(partial(self.make(tmp_path).take_back, self.owner, (1, 2), 2), failures)
        back.join(_BLOCKED_S)
        resumed.set()
        commit.join()
        back.join()
        self._refused(failures)
        shown = [self._expected([1, 2], kept=kept) for kept in ([4], [5, 15])]  # refused, or before the rewind
        assert self._after(spark, late) in shown
        self._epoch_of(spark, tmp_path, (2, 3), 13)
        assert self._seen(spark, late) == self._expected([1, 2, 13])

    def test_a_commit_between_the_stamp_and_the_move_of_the_rows(self, spark: Any, tmp_path: Path) -> None:
        """It is refused, or waits and is refused."""
        sink, late = self._filled(spark, tmp_path), self._open(spark, tmp_path)
        key = self._key(5)
        handle = self._stage(spark, late, key, 5).handle
        failures: list[BaseException] = []
        commits: list[threading.Thread] = []

        def at(point: str) -> None:
            if point == "stamped":
                commits.append(_started(partial(late.commit, key, handle), failures))
                commits[-1].join(_BLOCKED_S)

        if not self._can(tmp_path, (1, 2)):
            return
        self._open(spark, tmp_path, reach=at).take_back(self.owner, (1, 2), 2)
        for each in commits:
            each.join()
        assert len(commits) == 1, "the sink must call reach('stamped') once"
        assert [type(error) for error in failures] == [TimelineEnded], failures
        assert self._after(spark, sink) == self._expected([1, 2], kept=[4])

    def test_several_processes_may_take_back_at_the_same_moment(self, spark: Any, tmp_path: Path) -> None:
        """All of them succeed, and so does a commit of the new timeline that follows the first."""
        sink = self._filled(spark, tmp_path)
        if not self._can(tmp_path, (1, 2)):
            return
        several = [partial(self.make(tmp_path).take_back, self.owner, (1, 2), 2) for _ in range(3)]
        assert at_once(several) == []
        assert self._after(spark, sink) == self._expected([1, 2], kept=[4])
        undo = [partial(self.make(tmp_path).put_back, self.owner, (1, 4), 3, 2) for _ in range(3)]
        assert at_once(undo) == []
        assert self._seen(spark, sink) == self._expected([1, 2, 3, 4])

    def test_a_stamp_alone_ends_a_timeline_and_moves_nothing(self, spark: Any, tmp_path: Path) -> None:
        """`--leave`: the rows stay, and the new timeline writes its own beside them."""
        sink, late = self._filled(spark, tmp_path), self._open(spark, tmp_path)
        key = self._key(5)
        handle = self._stage(spark, late, key, 5).handle
        for _ in range(2):
            if raised(NotSupported, partial(self.make(tmp_path).stamp, self.owner, (1, 2), 2)):
                return
        assert self._seen(spark, sink) == self._expected([1, 2, 3, 4])
        assert self.make(tmp_path).inspect(self.owner, 2).epoch == 2
        assert raised(TimelineEnded, partial(late.commit, key, handle))
        self._epoch_of(spark, tmp_path, (2, 3), 13)
        assert self._seen(spark, sink) == self._expected([1, 2, 3, 4, 13])

    def test_an_empty_sink_can_be_taken_back(self, spark: Any, tmp_path: Path) -> None:
        """A stream whose base is before its first epoch: everything is taken back; and a target that does not exist."""
        self._taken(tmp_path / "none", (1, 0), 2)
        sink = self._filled(spark, tmp_path)
        if not self._taken(tmp_path, (1, 0), 2):
            return
        assert self._after(spark, sink) == self._expected([], kept=[4])
        assert self.make(tmp_path).inspect(self.owner, 2).epoch == 0
        self._epoch_of(spark, tmp_path, (2, 1), 11)
        assert self._seen(spark, sink) == self._expected([11])

    # --- internal ---

    def _open(self, spark: Any, folder: Path, *, reach: Reach = unwatched) -> Sink:
        raise NotImplementedError

    def _stage(self, spark: Any, sink: Sink, key: EpochKey, *numbers: int) -> Staged:
        raise NotImplementedError

    def _key(self, epoch: int, *, attempt: int = 1, lease: int | None = 1, timeline: int = 1) -> EpochKey:
        key = Attempt(stream=self.owner.stream, timeline=timeline, epoch=epoch, attempt=attempt)
        return EpochKey(self.owner, key, lease)

    def _filled(self, spark: Any, folder: Path) -> Sink:
        """Return a sink whose target holds the epochs 1 to 4 of timeline 1, with one row each."""
        sink = self._open(spark, folder)
        for epoch in (1, 2, 3, 4):
            sink.commit(self._key(epoch), self._stage(spark, sink, self._key(epoch), epoch).handle)
        return sink

    def _epoch_of(self, spark: Any, folder: Path, place: EpochPlace, *numbers: int) -> None:
        """Commit an epoch as a driver of its timeline does: if the sink can go back, with one that was never opened."""
        sink = self._open(spark, folder)
        key = self._key(place[1], timeline=place[0])
        staged = self._stage(spark, sink, key, *numbers)
        before = Link(sink.inspect(self.owner, place[0]).epoch, None)
        committer = self.make(folder) if self._can(folder, (1, 0)) else sink
        committer.commit(replace(key, before=before), staged.handle)

    def _can(self, folder: Path, base: EpochPlace) -> bool:
        return not isinstance(self.make(folder).can_take_back(self.owner, base), CannotTakeBack)

    def _taken(self, folder: Path, base: EpochPlace, into: int) -> bool:
        """Take epochs back if the sink can; return whether it can."""
        if not self._can(folder, base):
            return False
        self.make(folder).take_back(self.owner, base, into)
        return True

    def _seen(self, spark: Any, sink: Sink) -> list[int]:
        rows = self.visible(spark, sink)
        assert all(text == f"row {n}" for n, text in rows)
        return sorted(n for n, _ in rows)

    def _after(self, spark: Any, sink: Sink) -> list[int]:
        """Return the rows after a take-back. A table that is replaced still shows any of the last results."""
        return self._seen(spark, sink)

    def _expected(
        self, all_of_them: Sequence[int], last: Sequence[int] | None = None, kept: Sequence[int] | None = None
    ) -> list[int]:
        """Return the rows that must be visible: all, or in complete mode those of the last epoch.

        `kept` are the rows that a table shows until the next epoch replaces them, if a take-back moves nothing.
        """
        if self.output_mode != "complete":
            return sorted(all_of_them)
        if kept is not None:
            return sorted(kept)
        return sorted(all_of_them[-1:] if last is None else last)

    def _refused(self, failures: Sequence[BaseException]) -> None:
        """Require that only the commit failed, if anything, and that it was refused."""
        assert all(isinstance(error, TimelineEnded | StagedGone) for error in failures), failures


def raised(error: type[BaseException], act: Callable[[], object]) -> bool:
    """Whether a function raises this error."""
    try:
        act()
    except error:
        return True
    return False


def _started(act: Callable[[], object], failures: list[BaseException]) -> threading.Thread:
    """Run a function in a thread, which adds its error to `failures`."""

    def run() -> None:
        try:
            act()
        except Exception as error:  # judged by the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def at_once(acts: Sequence[Callable[[], object]]) -> list[str]:
    """Run several functions at the same moment; return their errors."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(acts))

    def run(act: Callable[[], object]) -> None:
        start.wait()
        act()

    for thread in [_started(partial(run, act), failures) for act in acts]:
        thread.join()
    return [repr(error) for error in failures]
