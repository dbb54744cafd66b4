"""Going back past a backfill: rows that are not processed again are never taken out of the sink that was filled."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfillbench import LOCAL, NEW, BackfillBench, install_backfill
from holdfast.errors import NotSupported, RewindRefused, SinksChanged
from holdfast.rewind import SinkAction, plan_undo
from holdfast.testing import Crashed


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    install_backfill(monkeypatch)


@pytest.fixture(params=LOCAL)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> BackfillBench:
    """Two epochs, checkpoint 1, two more epochs, checkpoint 2; then another sink is in the program."""
    return two_checkpoints(BackfillBench(tmp_path, request.param))


@pytest.fixture
def table(tmp_path: Path) -> BackfillBench:
    return two_checkpoints(BackfillBench(tmp_path, "sqlite"))


def two_checkpoints(bench: BackfillBench) -> BackfillBench:
    bench.add([1], [2])
    bench.take()
    bench.add([3], [4])
    bench.take()
    bench.names.append(NEW)
    return bench


def dying(point: str) -> None:
    if point == "backfill decided":
        raise Crashed(point)


@pytest.mark.parametrize("runs", [False, True])
def test_a_base_before_a_backfill_is_refused(bench: BackfillBench, runs: bool) -> None:
    """Whether or not the stream has written to the sink since: the rows of epochs 1 and 2 are not processed again."""
    assert bench.backfill().rows == 4
    if runs:
        bench.add([5])
    rows = [1, 2, 3, 4, 5] if runs else [1, 2, 3, 4]
    plan = bench.plan(1)
    assert [sink.action for sink in plan.streams[0].sinks] == [SinkAction.TAKE_BACK, SinkAction.CANNOT]
    (problem,) = plan.problems
    again = f"only {len(rows) - 2} rows are processed again"
    for text in ("filled by a backfill up to epoch 4", again, "go back to checkpoint 2 or later", "--leave new"):
        assert text in problem
    with pytest.raises(RewindRefused, match="filled by a backfill"):
        bench.rewind(1)
    assert (bench.seen("old"), bench.seen()) == (rows, bench.expected(*rows))


def test_the_base_of_the_backfill_keeps_its_rows(bench: BackfillBench) -> None:
    """Checkpoint 2 was taken before the backfill, at the epoch that it filled the sink up to."""
    bench.backfill()
    bench.add([5])
    bench.rewind(2)
    assert (bench.seen("old"), bench.seen()) == ([1, 2, 3, 4], bench.expected(1, 2, 3, 4))
    bench.source[4:] = [[50], [6]]
    bench.run()
    assert (bench.seen("old"), bench.seen()) == ([1, 2, 3, 4, 6, 50], bench.expected(1, 2, 3, 4, 50, 6))
    assert "filled by a backfill" in bench.plan(1).problems[0]  # in a later timeline, too


def test_a_backfill_after_a_rewind_belongs_to_the_new_timeline(bench: BackfillBench) -> None:
    """The base has the epoch of the backfill, in the timeline before."""
    bench.rewind(2)
    bench.backfill()
    if bench.kind == "sqlite":  # appended rows are known by their epoch alone, so they are not after the base
        bench.rewind(2)
    else:
        assert "filled by a backfill" in bench.plan(2).problems[0]
    assert bench.seen() == bench.expected(1, 2, 3, 4)
    bench.add([5])
    assert bench.seen() == bench.expected(1, 2, 3, 4, 5)


def test_an_undo_leaves_what_was_filled_refused(bench: BackfillBench) -> None:
    bench.backfill()
    bench.add([5])
    bench.rewind(2)
    bench.undo()
    assert (bench.seen("old"), bench.seen()) == ([1, 2, 3, 4, 5], bench.expected(1, 2, 3, 4, 5))
    assert "filled by a backfill" in bench.plan(1).problems[0]
    bench.add([6])
    assert bench.seen() == bench.expected(1, 2, 3, 4, 5, 6)


def test_a_rewind_is_not_undone_after_a_backfill(table: BackfillBench) -> None:
    """The sink was filled up to the base: after an undo, it would lack the epochs that are put back."""
    table.rewind(1)
    table.backfill()
    assert "a backfill has filled sink 'new' of stream 'rows' since the rewind" in plan_undo(table).problems[0]
    with pytest.raises(RewindRefused):
        table.undo()


def test_a_filled_sink_may_be_left(table: BackfillBench) -> None:
    table.backfill()
    table.rewind(1, leave=[NEW])
    assert table.seen() == [1, 2, 3, 4]
    table.run()
    assert (table.seen("old"), table.seen()) == ([1, 2, 3, 4], [1, 2, 3, 3, 4, 4])


def test_a_sink_that_was_added_without_a_backfill_is_taken_back(bench: BackfillBench) -> None:
    """All of its rows are processed again."""
    bench.source.append([5])
    bench.run(accept=("sinks",))
    assert bench.seen() == bench.expected(5)
    plan = bench.rewind(1)
    assert plan.streams[0].notes == ("sink 'new' is not in the checkpoint: it was added later",)
    assert bench.seen() == []
    bench.run()
    assert (bench.seen("old"), bench.seen()) == ([1, 2, 3, 4, 5], bench.expected(3, 4, 5))


def test_a_new_sink_is_not_touched_and_can_be_filled_afterwards(bench: BackfillBench) -> None:
    """It has no epoch yet. A rewind does not accept it in place of the user."""
    plan = bench.rewind(1)
    assert [sink.sink for sink in plan.streams[0].sinks] == ["old"]
    assert "sink 'new' is new" in plan.streams[0].notes[-1]
    with pytest.raises(SinksChanged):
        bench.run()
    assert bench.backfill().rows == 2
    bench.run()
    assert (bench.seen("old"), bench.seen()) == ([1, 2, 3, 4], bench.expected(1, 2, 3, 4))


def test_a_new_sink_cannot_be_left(table: BackfillBench) -> None:
    assert table.plan(1, leave=[NEW]).problems == ()
    assert "the sinks are new, old" in table.plan(1, leave=["other"]).problems[0]


def test_a_decided_backfill_is_completed_before_a_rewind(bench: BackfillBench) -> None:
    with pytest.raises(Crashed):
        bench.backfill(reach=dying)
    for base in (1, 2):
        (problem,) = bench.plan(base).problems
        assert "a backfill of sink 'new' of stream 'rows' was interrupted" in problem
    bench.backfill()
    assert bench.plan(2).problems == ()


def test_a_backfill_that_never_reached_the_sink_does_not_count(bench: BackfillBench) -> None:
    """It was decided; then the stream continued without the sink, which was added later, empty."""
    with pytest.raises(Crashed):
        bench.backfill(reach=dying)
    bench.names.remove(NEW)
    bench.add([5])
    bench.names.append(NEW)
    bench.source.append([6])
    bench.run(accept=("sinks",))
    assert bench.seen() == bench.expected(6)
    assert bench.plan(1).problems == ()
    bench.rewind(1)
    bench.run()
    assert bench.seen() == bench.expected(3, 4, 5, 6)


def test_a_sink_that_lacks_epochs_before_the_base_is_refused(table: BackfillBench) -> None:
    """It was filled; then the stream continued without it. The next start would refuse it, so the rewind does."""
    table.backfill()
    table.names.remove(NEW)
    table.add([5])
    table.take()
    table.names.append(NEW)
    assert "lacks the epochs 5 to 5 of the base" in table.plan(3).problems[0]
    table.names.remove(NEW)
    table.rewind(3)
    table.names.append(NEW)
    with pytest.raises(NotSupported, match="only an empty sink can be filled"):
        table.backfill()  # its rows are those of an earlier timeline
