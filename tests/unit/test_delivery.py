"""Committing a decided epoch to its sinks: who gets it, what is raised, and which moves are made."""

from typing import Any

import pytest

from holdfast.epoch import Attempt, Decision, EpochProgress, Facts, Move, Share, State, Verdict
from holdfast.errors import (
    BadName,
    Fenced,
    InDoubt,
    Locked,
    LogHalted,
    LogMissing,
    RecordCorrupt,
    SinkBehind,
    SinkFailed,
    SinkForeign,
    StagedGone,
)
from holdfast.sinks.base import Sink, SinkPosition, Staged, StreamIdentity
from holdfast.spark.delivery import commit_to_sinks

OWNER = StreamIdentity("pipeline", "uid", "orders")
DOWN = SinkFailed(sink="b", action="commit", why="down")
GONE = StagedGone(sink="b", epoch=3)
FENCED = Fenced(number=1, newer=2, holder="another")
FOREIGN = SinkForeign(sink="c", place="table", owner="another pipeline")


class Recording(Sink):
    """Remembers its commits, or raises."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        super().__init__(name)
        self.error = error
        self.commits: list[Any] = []

    def prepare(self, df: Any, key: Any) -> Staged:
        raise NotImplementedError

    def commit(self, key: Any, handle: dict[str, Any]) -> None:
        if self.error is not None:
            raise self.error
        self.commits.append((key.epoch, key.before.epoch, handle))

    def abort(self, key: Any) -> None:
        raise NotImplementedError

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        raise NotImplementedError


def decided(*sinks: Sink) -> tuple[Decision, Facts]:
    facts = Facts(
        start=[None],
        end=["9"],
        offsets_digest="ab",
        source_log={},
        source_entries={},
        sinks={sink.name: Share(handle={"of": sink.name}, rows=1, stands=3, before=2) for sink in sinks},
        rows=1,
    )
    attempt = Attempt(stream="orders", timeline=1, epoch=3, attempt=1)
    return Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain()), facts


def deliver(*sinks: Sink, spark_committed: bool = False) -> tuple[EpochProgress, list[Move], list[str]]:
    moves: list[Move] = []
    points: list[str] = []
    progress = EpochProgress(lambda move, _: moves.append(move))
    progress.move(Move.FIND)
    decision, facts = decided(*sinks)
    try:
        commit_to_sinks(
            OWNER, sinks, decision, facts, progress=progress, reach=points.append, spark_committed=spark_committed
        )
    except Exception as error:
        error.progress = progress
        raise
    return progress, moves[1:], points


def test_each_sink_commits_once_and_only_the_last_one_makes_the_epoch_visible() -> None:
    sinks = [Recording(name) for name in "abc"]
    progress, moves, points = deliver(*sinks)
    assert moves == [Move.COMMIT, Move.COMMIT, Move.COMMIT_LAST]
    assert (progress.state, progress.sink) == (State.VISIBLE, None)
    assert points == ["committed"] * 3 + ["all committed"]
    assert [sink.commits for sink in sinks] == [[(3, 2, {"of": name})] for name in "abc"]


def test_an_epoch_without_sinks_is_skipped() -> None:
    progress, moves, _ = deliver()
    assert (moves, progress.state) == ([Move.SKIP], State.VISIBLE)


@pytest.mark.parametrize(
    "error",
    [
        DOWN,
        ConnectionError("down"),
        Locked(what="log down", pid=1),  # until that process ends
        LogHalted(path="down"),  # until the writer is opened again
        LogMissing(path="down"),  # until its disk is mounted
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_sink_that_fails_leaves_the_epoch_in_doubt_and_the_others_commit(error: Exception) -> None:
    first, down, last = Recording("a"), Recording("b", error), Recording("c")
    with pytest.raises(InDoubt, match="down") as caught:
        deliver(first, down, last)
    assert (caught.value.sinks, caught.value.epoch, caught.value.__cause__) == (("b",), 3, error)
    assert (caught.value.progress.state, caught.value.progress.sink) == (State.DECIDED, "b")
    assert first.commits
    assert last.commits


@pytest.mark.parametrize("spark_committed", [True, False])
def test_staged_output_that_is_gone_puts_the_sink_behind(spark_committed: bool) -> None:
    last = Recording("c")
    with pytest.raises(SinkBehind) as caught:
        deliver(Recording("b", GONE), last, spark_committed=spark_committed)
    error = caught.value
    assert (error.sink, error.holds, error.decided, error.committed) == ("b", 2, 3, spark_committed)
    assert error.__cause__ is GONE
    assert last.commits


@pytest.mark.parametrize(
    "error",
    [FOREIGN, RecordCorrupt(key="record", why="bad"), BadName(kind="sink", name="?", why="bad"), FENCED],
    ids=lambda each: type(each).__name__,
)
def test_an_error_that_no_later_try_can_fix_is_raised_before_one_that_time_may_fix(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        deliver(Recording("b", DOWN), Recording("c", error))
    assert caught.value.progress.sink == "c"
