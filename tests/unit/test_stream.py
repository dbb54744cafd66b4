"""One stream without a JVM: it dies at every point, fails, restarts, waits, is fenced, stopped, drained and killed."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fakespark import Bench, MemorySink, install
from holdfast.barriers import BarrierFlags
from holdfast.epoch import HOLDS, MOVES, POINTS, Attempt, Decision, EpochProgress, Extent, Move, State, Verdict
from holdfast.errors import (
    BadValue,
    Fenced,
    InDoubt,
    OffsetsGap,
    SinkBehind,
    SinkFailed,
    SinkForeign,
    SinkUnavailable,
    StreamFailed,
    TimelineEnded,
)
from holdfast.policy import RestartPolicy
from holdfast.repository import Decisions, GapRecord, Gaps, Lease
from holdfast.sinks.base import EpochKey
from holdfast.spark import adapter
from holdfast.testing import CrashAt, Crashed
from support import eventually

OFTEN = RestartPolicy.bounded(20, 60)
PLAIN = [point for point in POINTS if point not in ("aborted", "discarded")]


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> set[tuple[State, Move]]:
    """The moves made so far, by the state in which each was made."""
    found: set[tuple[State, Move]] = set()
    real = EpochProgress.move

    def recorded(progress: EpochProgress, move: Move) -> None:
        state = progress.state
        real(progress, move)
        found.add((state, move))

    monkeypatch.setattr(EpochProgress, "move", recorded)
    return found


def crash(bench: Bench, reach: CrashAt) -> None:
    """Run until the crash."""
    with pytest.raises((Crashed, StreamFailed)):
        bench.run(reach)
    assert reach.died


def failing(step: str, *errors: Exception) -> Any:
    """Return a function that raises each error once, at a step of a sink."""
    left = list(errors)

    def before(at: str, _: object) -> None:
        if at == step and left:
            raise left.pop(0)

    return before


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("sinks", [1, 3])
def test_a_stream_dies_at_every_point_and_every_row_is_in_every_sink_once(
    sinks: int, stateful: bool, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, sinks, stateful=stateful)
    number = 0
    for point in PLAIN:
        for hit in range(1, sinks + 1 if point in ("prepared", "committed", "staging", "committing") else 2):
            before = bench.rows
            number += 10
            bench.source.append([number, number + 1])
            crash(bench, CrashAt(point, hit))
            for place in bench.places:
                if HOLDS[POINTS[point]][1] is Extent.NONE:
                    assert place.rows == before
                assert place.rows in (before, bench.rows)
            bench.run()
            assert [place.rows for place in bench.places] == [bench.rows] * sinks, point


@pytest.mark.parametrize("point", ["aborted", "discarded", "committed", "all committed"])
def test_a_driver_dies_in_the_recovery_after_a_crash(point: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2)
    bench.source.append([1])
    crash(bench, CrashAt("decided" if "committed" in point else "durable"))
    with pytest.raises(Crashed):  # out of `recover`, not out of an epoch
        bench.driver(CrashAt(point)).recover()
    bench.run()
    assert [place.rows for place in bench.places] == [[1], [1]]


def test_real_code_makes_every_move(tmp_path: Path, made: set[tuple[State, Move]]) -> None:
    three, one = Bench(tmp_path / "three", 3), Bench(tmp_path / "one", quarantine_after=1)
    three.source.append([1])
    for point in ("durable", "decided"):
        crash(three, CrashAt(point))
    three.run()
    one.source.append([1])

    def overtaken(point: str) -> None:
        """An older driver closes the slot just before this one decides."""
        if point == "durable":
            slot = Attempt(stream="rows", timeline=1, epoch=1, attempt=1)
            Decisions(one.repository).close(Decision(attempt=slot, verdict=Verdict.ABORT, lease=1))

    one.run(overtaken, restart=OFTEN)
    one.source.append([2])
    one.before = failing("prepare", SinkFailed(sink="sink0", action="prepare", why="bad"))
    one.run(restart=OFTEN)
    assert one.places[0].rows == [1]
    assert made == set(MOVES)


@pytest.mark.parametrize("step", ["prepare", "commit"])
def test_a_failing_sink_is_tried_again_within_the_budget(step: str, tmp_path: Path) -> None:
    bench, restarts = Bench(tmp_path, 2), []
    bench.source += [[1], [2]]
    bench.before = failing(step, *(SinkFailed(sink="sink0", action=step, why="down") for _ in range(3)))
    stream = bench.run(restart=OFTEN, on_restart=lambda _, error, n: restarts.append((type(error), n)))
    assert [place.rows for place in bench.places] == [[1, 2], [1, 2]]
    kind = SinkFailed if step == "prepare" else InDoubt
    assert restarts[0] == (kind, 1)
    status = stream.status()
    assert (status.state, status.epoch, status.rows, status.in_doubt) == ("ended", 2, 2, None)
    assert status.restarts == len(restarts)


def test_an_exhausted_budget_leaves_the_epoch_in_doubt_and_the_next_start_completes_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2)
    bench.source.append([1])
    bench.before = failing("commit", SinkFailed(sink="sink0", action="commit", why="down"))
    stream = bench.driver()
    stream.recover()
    stream.live()
    assert isinstance(stream.failed, StreamFailed)
    assert (stream.failed.sink, stream.status().in_doubt, stream.can_acknowledge) == ("sink0", 1, False)
    assert [place.rows for place in bench.places] == [[], [1]]
    again = bench.driver()
    assert again.recover().plan.finish == ("sink0",)
    assert [place.rows for place in bench.places] == [[1], [1]]


def test_an_error_that_no_restart_can_fix_ends_the_stream_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2)
    bench.source.append([1])
    bench.before = failing("commit", SinkForeign(sink="sink0", place="table", owner="another"))
    stream = bench.driver(restart=OFTEN)
    stream.recover()
    stream.live()
    assert stream.failed is not None
    assert isinstance(stream.failed.__cause__, SinkForeign)
    assert (stream.failed.restarts, stream.status().in_doubt) == (0, 1)
    assert bench.places[1].rows == [1]


def test_staged_output_that_is_gone_is_reported_by_run_and_recovery(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.source.append([1])
    bench.before = lambda step, _: bench.places[0].staged.clear() if step == "commit" else None
    with pytest.raises(StreamFailed) as caught:
        bench.run(restart=OFTEN)
    assert isinstance(caught.value.__cause__, SinkBehind)
    with pytest.raises(SinkBehind, match="its staged rows are missing"):
        bench.run()


def test_a_sink_that_is_added_again_while_an_epoch_is_replayed_continues_after_what_it_holds(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2)
    bench.source.append([1])
    bench.run()
    away = bench.places.pop()
    bench.source.append([2])
    with pytest.raises((Crashed, StreamFailed)):
        bench.run(CrashAt("all committed"), accept=("sinks",))
    bench.places.append(away)
    bench.source.append([3])
    bench.run(accept=("sinks",))
    assert [place.rows for place in bench.places] == [[1, 2, 3], [1, 3]]
    bench.run()


def test_an_epoch_stays_in_doubt_until_a_recovery_has_completed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, seen = Bench(tmp_path), []
    bench.source.append([1])
    bench.before = failing("commit", SinkFailed(sink="sink0", action="commit", why="down"))

    def restarting(*_: object) -> None:
        seen.append(stream.status().in_doubt)
        broken = len(seen) == 1  # the first recovery fails before it reaches the sink
        monkeypatch.setattr(adapter, "require_packages", lambda _: {}["column"] if broken else None)
        if len(seen) == 2:
            bench.before = failing("prepare", SinkFailed(sink="sink0", action="prepare", why="down"))
            bench.source.append([2])

    stream = bench.driver(restart=OFTEN, on_restart=restarting)
    stream.recover()
    stream.live()
    assert (stream.failed, bench.places[0].rows) == (None, [1, 2])
    assert seen == [1, 1, None]


def test_a_poison_epoch_is_quarantined_and_a_second_one_is_not(tmp_path: Path) -> None:
    bench, gaps = Bench(tmp_path, quarantine_after=2), []
    bench.source += [[1], [2], [3]]

    def bad(step: str, key: Any) -> None:
        if step == "prepare" and key.epoch > 1:
            raise SinkFailed(sink="sink0", action="prepare", why="bad rows")

    bench.before = bad
    with pytest.raises(StreamFailed, match="epoch 2 was quarantined just before, so epoch 3 is not") as caught:
        bench.run(restart=RestartPolicy.bounded(4, 60), on_quarantine=lambda _, gap: gaps.append(gap))
    assert caught.value.epoch == 3
    assert [gap.epoch for gap in gaps] == [2]
    bench.run(restart=OFTEN, accept=("gaps",))
    assert bench.places[0].rows == [1]
    recorded: list[GapRecord] = Gaps(bench.repository).all("rows", 1)
    assert [gap.epoch for gap in recorded] == [2, 3]


def test_the_time_of_a_quarantined_epoch_is_counted_in_the_phases_of_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, stateful=True, quarantine_after=1)
    bench.source.append([1])
    bench.before = failing("prepare", SinkFailed(sink="sink0", action="prepare", why="bad rows"))
    monkeypatch.setattr(adapter, "run_for_nothing", lambda _: time.sleep(0.05))  # the state advances
    last = bench.run(restart=OFTEN).status().last_epoch
    assert last is not None
    assert list(last.phases) == ["open", "prepare", "harden", "decide", "commit"]
    assert last.phases["prepare"] >= 0.05


def test_a_decided_epoch_is_never_quarantined(tmp_path: Path) -> None:
    bench = Bench(tmp_path, quarantine_after=1)
    bench.source.append([1])
    bench.before = failing("commit", SinkFailed(sink="sink0", action="commit", why="down"))
    with pytest.raises(StreamFailed):
        bench.run()  # without a restart
    bench.run()
    assert bench.places[0].rows == [1]
    assert Gaps(bench.repository).all("rows", 1) == []


def test_an_outage_is_waited_for_without_the_restart_budget(tmp_path: Path) -> None:
    bench, waits = Bench(tmp_path, outage="1h"), []
    bench.source.append([1])
    bench.before = failing(
        "prepare", *(SinkUnavailable(sink="sink0", action="prepare", why="refused") for _ in range(3))
    )
    stream = bench.run(
        on_outage=lambda _, outage: waits.append(outage.tries), on_outage_over=lambda *_: waits.append(0)
    )
    assert (waits, stream.status().restarts, bench.places[0].rows) == ([1, 2, 3, 0], 0, [1])


def test_a_driver_that_was_replaced_stops_and_discards_nothing_of_the_newer_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.source.append([1])

    def replaced(point: str) -> None:
        if point == "all prepared":
            Lease.take(bench.repository, locker=lambda: None, shared=True)
            slot = Attempt(stream="rows", timeline=1, epoch=1, attempt=1)
            Decisions(bench.repository).close(Decision(attempt=slot, verdict=Verdict.ABORT, lease=2))

    with pytest.raises(StreamFailed) as caught:
        bench.run(replaced, restart=OFTEN)
    assert isinstance(caught.value.__cause__, Fenced)
    assert (bench.places[0].rows, bench.places[0].staged) == ([], {})
    bench.run()
    assert bench.places[0].rows == [1]


@pytest.mark.parametrize("point", ["opening", "opened", "all prepared", "durable"])
@pytest.mark.parametrize("leased", [True, False], ids=["under a newer lease", "under no other lease"])
def test_a_driver_whose_timeline_has_ended_decides_nothing_more(tmp_path: Path, point: str, leased: bool) -> None:
    bench = Bench(tmp_path)
    bench.source += [[1], [2]]

    def ended(reached: str) -> None:
        if reached == point and bench.places[0].rows == [1]:
            if leased:
                Lease.take(bench.repository, locker=lambda: None, shared=True)
            Decisions(bench.repository).end("rows", 1, lease=2, after=1)

    with pytest.raises(StreamFailed) as caught:
        bench.run(ended, restart=OFTEN)
    assert isinstance(caught.value.__cause__, Fenced if leased else TimelineEnded)
    assert bench.places[0].rows == [1]
    assert all(" epoch 1 " in key for key in bench.places[0].staged), "it discards what it staged for the next epoch"
    with pytest.raises(TimelineEnded, match="continues in the current timeline"):
        bench.driver().recover()
    newest = Decisions(bench.repository).newest("rows", 1)
    assert newest is not None
    assert newest.attempt.epoch == 1


def test_an_epoch_that_begins_elsewhere_is_a_gap(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.source.append([1])
    bench.run()
    offsets = bench.repository.root / "timelines/1/streams/rows/spark/offsets/0"
    offsets.write_text(offsets.read_text().replace('"0": 1', '"0": 9'))
    bench.source.append([2])
    with pytest.raises(StreamFailed) as caught:
        bench.run()
    assert isinstance(caught.value.__cause__, OffsetsGap)
    bench.run(accept=("gaps",))
    assert bench.places[0].rows == [1, 2]
    assert [gap.kind for gap in Gaps(bench.repository).all("rows", 1)] == ["offsets"]


# --- stopping and acknowledging --------------------------------------------------------------------------------------


class Paused:
    """Holds an epoch at a point until it is let through."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.entered.set()
            assert self.go_on.wait(60)


def test_a_stop_completes_the_epoch_in_progress_with_sparks_commit(tmp_path: Path) -> None:
    bench, paused = Bench(tmp_path), Paused("all prepared")
    bench.source += [[1], [2], [3]]
    stream, thread = bench.started(paused)
    assert paused.entered.wait(60)
    stopper = threading.Thread(target=stream.stop)
    stopper.start()
    eventually(stream._gate.stopping.is_set)
    assert bench.places[0].rows == []
    paused.go_on.set()
    stopper.join(60)
    thread.join(60)
    assert (stream.state, bench.places[0].rows, stream.is_committed(1)) == ("stopped", [1], True)
    assert stream.can_acknowledge
    assert not bench.driver().recover().plan.replays


def test_an_idle_stream_is_stopped_acknowledged_and_drained(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.source.append([1])
    stream, thread = bench.started()
    eventually(lambda: stream.is_committed(1))
    stream.injector.trigger(1)
    assert stream.acknowledge_idle()
    stream.injector.trigger(2, BarrierFlags.DRAIN)
    assert stream.acknowledge_idle()
    thread.join(60)
    assert [(checkpoint, position.epoch) for checkpoint, position in bench.acknowledged] == [(1, 1), (2, 1)]
    assert stream.state == "stopped"


def test_a_driver_that_is_replaced_decides_and_commits_while_the_newer_one_looks_at_the_sinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, paused, inspect = Bench(tmp_path), Paused("durable"), MemorySink.inspect
    bench.source.append([1])
    bench.run()
    bench.source.append([2])
    old, thread = bench.started(paused)
    assert paused.entered.wait(60)

    def late(sink: MemorySink, *facts: Any) -> Any:
        paused.go_on.set()
        thread.join(60)
        return inspect(sink, *facts)

    new = bench.driver()
    monkeypatch.setattr(MemorySink, "inspect", late)
    assert new.recover().plan.decided == 2
    assert old.failed is not None
    assert isinstance(old.failed.__cause__, Fenced)
    new.live()
    assert (new.failed, bench.places[0].rows) == (None, [1, 2])


def test_a_busy_stream_acknowledges_and_drains_at_the_end_of_its_epoch(tmp_path: Path) -> None:
    bench, paused = Bench(tmp_path), Paused("decided")
    bench.source += [[1], [2]]
    stream, thread = bench.started(paused)
    assert paused.entered.wait(60)
    stream.injector.trigger(1, BarrierFlags.DRAIN)
    assert not stream.acknowledge_idle()
    paused.go_on.set()
    thread.join(60)
    assert [position.epoch for _, position in bench.acknowledged] == [1]
    assert (stream.state, bench.places[0].rows) == ("stopped", [1])


def test_a_query_that_fails_after_its_stream_was_drained_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench, paused = Bench(tmp_path), Paused("decided")
    bench.source.append([1])
    stream, thread = bench.started(paused)
    assert paused.entered.wait(60)
    stream.injector.trigger(1, BarrierFlags.DRAIN)
    commits = bench.repository.root / "timelines/1/streams/rows/spark/commits"
    commits.rename(commits.with_name("away"))  # Spark cannot write its commit
    paused.go_on.set()
    thread.join(60)
    assert (stream.state, [position.epoch for _, position in bench.acknowledged]) == ("stopped", [1])
    assert "stream rows: its query failed after it was stopped" in caplog.text


@pytest.mark.parametrize("drained", [True, False])
def test_a_batch_that_comes_too_late_is_no_failure(
    drained: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    stream, thread = bench.started()
    eventually(lambda: stream._query.running is not None)
    stream._gate.stopping.set()
    stream._gate.shut_here() if drained else stream._gate.shut()
    bench.source.append([1])
    thread.join(60)
    assert (stream.state, stream.can_acknowledge, bench.places[0].rows) == ("stopped", True, [])
    assert "failed" not in caplog.text


def test_a_stop_while_an_attempt_fails_allows_a_last_cut(tmp_path: Path) -> None:
    bench, paused = Bench(tmp_path), Paused("opened")
    bench.source.append([1])
    bench.before = failing("prepare", SinkFailed(sink="sink0", action="prepare", why="down"))
    stream, thread = bench.started(paused, restart=OFTEN)
    assert paused.entered.wait(60)
    stream.ask_to_stop()
    paused.go_on.set()
    thread.join(60)
    assert (stream.state, stream.can_acknowledge, stream.status().restarts) == ("stopped", True, 0)


def test_a_stop_while_a_decided_epoch_fails_allows_no_cut(tmp_path: Path) -> None:
    bench, paused = Bench(tmp_path), Paused("decided")
    bench.source.append([1])
    bench.before = failing("commit", SinkFailed(sink="sink0", action="commit", why="down"))
    stream, thread = bench.started(paused, restart=OFTEN)
    assert paused.entered.wait(60)
    stream.ask_to_stop()
    paused.go_on.set()
    thread.join(60)
    assert (stream.state, stream.can_acknowledge) == ("stopped", False)
    bench.run()
    assert bench.places[0].rows == [1]


def test_a_killed_stream_begins_no_further_epoch(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stream, thread = bench.started()
    eventually(lambda: stream.state == "running")
    eventually(lambda: stream._query.running is not None)
    stream.kill()
    thread.join(60)
    bench.source.append([1])
    assert (stream.state, bench.places[0].rows) == ("stopped", [])


def test_available_input_is_finished_by_a_callback_that_knows_it_is_inside(tmp_path: Path) -> None:
    bench, inside = Bench(tmp_path), []
    bench.source += [[1], [2]]
    stream = bench.driver(on_epoch=lambda *_: inside.append(stream.is_inside))
    stream.recover()
    stream.live()
    assert (inside, stream.is_inside, stream.progress) == ([True, True], False, (2, 2))


def test_an_attempt_is_discarded_only_after_every_sink_has_returned(tmp_path: Path) -> None:
    """One sink fails at once; the other one still works, in its own thread."""
    bench, order = Bench(tmp_path, sinks=2), []
    bench.source.append([1])
    calls, failed = threading.Lock(), []

    def before(step: str, key: EpochKey) -> None:
        with calls:
            first = step == "prepare" and not failed
            if first:
                failed.append(key)
        if first:
            raise SinkFailed(sink="sink0", action="prepare", why="down")
        if step == "prepare" and key.attempt.attempt == 1:
            time.sleep(0.1)
            order.append("slow sink returns")
        if step == "abort" and "discards" not in order:
            order.append("discards")

    bench.before = before
    bench.run(restart=OFTEN)
    assert order == ["slow sink returns", "discards"]
    assert [place.rows for place in bench.places] == [[1], [1]]


def test_of_several_failed_sinks_the_one_that_a_restart_cannot_help_is_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sinks=3)
    bench.source.append([1])
    turn = iter([0, 1, 2])

    def before(step: str, _: EpochKey) -> None:
        if step == "prepare":
            number = next(turn)
            raise (BadValue(what="x", value=1) if number == 1 else SinkFailed(sink="s", action="prepare", why="down"))

    bench.before = before
    with pytest.raises(StreamFailed) as caught:
        bench.run(restart=OFTEN)
    assert isinstance(caught.value.__cause__, BadValue)
    assert caught.value.restarts == 0
