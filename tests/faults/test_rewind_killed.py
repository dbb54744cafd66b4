"""Rewinds of real files and a real SQLite table that are killed anywhere, and finished by another process.

The query is a fake, so no JVM is needed. Everything else is on disk. After the next start, the outputs equal those of a
run that never had the later epochs; after an undo, they equal the original ones.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from deaths import crash_everywhere
from fakespark import install
from holdfast.epoch import Attempt, Decision, Facts, Share, Verdict
from holdfast.errors import Fenced, StreamFailed, TimelineEnded
from holdfast.repository import Decisions
from holdfast.repository.rewinds import unfinished_rewind
from holdfast.rewind.steps import POINTS
from holdfast.sinks.base import EpochKey, Sink, StreamIdentity
from holdfast.testing import CrashAt, Crashed
from rewindbench import STREAM, DiskBench, HandFileSink, HandSqliteSink

FORK = multiprocessing.get_context("fork")
BEFORE, AFTER = [[1, 2]] * 2, [[1, 2, 3, 4]] * 2
DECIDED = [point for point in POINTS if point not in ("rewind planned", "rewind built")]
Act = Callable[[Path, Callable[[str], None]], None]


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline with two epochs, a checkpoint, and two more epochs."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        bench = DiskBench(folder)
        bench.add([1], [2])
        bench.take()
        bench.add([3], [4])
    return folder


def copied(model: Path, place: Path) -> None:
    shutil.copytree(model, place, dirs_exist_ok=True)


def go_back(place: Path, reach: Callable[[str], None]) -> None:
    DiskBench(place).rewind(1, reach)


def undo(place: Path, reach: Callable[[str], None]) -> None:
    DiskBench(place).undo(reach)


def killed(act: Act, place: Path, point: str, hit: int) -> None:
    """Run an act in a process that is killed when it reaches a point."""
    hits = 0

    def die(at: str) -> None:
        nonlocal hits
        hits += at == point
        if hits == hit:
            os.kill(os.getpid(), signal.SIGKILL)

    child = FORK.Process(target=act, args=(place, die))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, point


def started(place: Path, source: list[list[int]]) -> DiskBench:
    """Start the program: it finishes a rewind that was interrupted."""
    bench = DiskBench(place)
    bench.source += source
    bench.run()
    return bench


CRASHES = [(point, hit) for point in POINTS for hit in ((1, 2) if point == "sink taken back" else (1,))]


@pytest.mark.parametrize(("point", "hit"), CRASHES)
def test_killed_at_each_point(model: Path, tmp_path: Path, point: str, hit: int) -> None:
    """The next start has the outputs of a run without the later epochs, and an undo the original ones."""
    copied(model, tmp_path)
    killed(go_back, tmp_path, point, hit)
    if point not in DECIDED:
        assert DiskBench(tmp_path).visible() == AFTER, "nothing has changed"
        go_back(tmp_path, lambda _: None)
    bench = started(tmp_path, [[1], [2]])
    assert bench.visible() == BEFORE
    assert unfinished_rewind(bench.repository, bench.lineage) is None
    undo(tmp_path, lambda _: None)
    assert started(tmp_path, [[1], [2], [3], [4]]).visible() == AFTER
    assert started(tmp_path, [[1], [2], [3], [4], [5]]).visible() == [[1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize(("point", "hit"), CRASHES)
def test_an_undo_that_is_killed_at_each_point(model: Path, tmp_path: Path, point: str, hit: int) -> None:
    copied(model, tmp_path)
    go_back(tmp_path, lambda _: None)
    killed(undo, tmp_path, point, hit)
    if point not in DECIDED:
        assert DiskBench(tmp_path).visible() == BEFORE, "nothing has changed"
        undo(tmp_path, lambda _: None)
    assert started(tmp_path, [[1], [2], [3], [4], [5]]).visible() == [[1, 2, 3, 4, 5]] * 2


def test_dying_before_each_call(model: Path, tmp_path: Path) -> None:
    """A rewind that ends before any of its calls to the operating system is finished, or has changed nothing."""
    decided = []
    for place in crash_everywhere(
        tmp_path, lambda place: copied(model, place), lambda place: go_back(place, lambda _: None)
    ):
        bench = DiskBench(place)
        done = bench.lineage.current > 1
        decided.append(done or unfinished_rewind(bench.repository, bench.lineage) is not None)
        if not decided[-1]:
            assert bench.visible() == AFTER
            if len(decided) % 8:
                shutil.rmtree(place)
                continue  # what was left differs little from call to call
            go_back(place, lambda _: None)
        assert started(place, [[1], [2], [30]]).visible() == [[1, 2, 30]] * 2
        shutil.rmtree(place)
    assert decided == sorted(decided)
    assert {True, False} == set(decided)


def test_a_driver_that_is_paused_in_a_commit_wakes_after_the_rewind(model: Path, tmp_path: Path) -> None:
    """It has decided an epoch. The rewind gives that epoch to its sinks; the driver changes nothing more."""
    copied(model, tmp_path)

    def run(reach: Callable[[str], None]) -> None:
        bench = DiskBench(tmp_path)
        bench.source += [[1], [2], [3], [4], [5]]
        with pytest.raises(StreamFailed) as caught:
            bench.run(reach)
        assert isinstance(caught.value.__cause__, Fenced)

    def pause(at: str) -> None:
        if at == "decided":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.2)  # another thread may take the signal: this one must not go on into a transaction meanwhile

    child = FORK.Process(target=run, args=(pause,))
    child.start()
    assert child.pid
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    plan = DiskBench(tmp_path).rewind(1)
    assert plan.streams[0].epoch == 5
    assert DiskBench(tmp_path).visible() == BEFORE
    os.kill(child.pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 0
    assert DiskBench(tmp_path).visible() == BEFORE
    assert started(tmp_path, [[1], [2], [30]]).visible() == [[1, 2, 30]] * 2


def test_the_old_timeline_refuses_a_late_commit(model: Path, tmp_path: Path) -> None:
    copied(model, tmp_path)
    bench = DiskBench(tmp_path)
    bench.rewind(1)
    old = Decisions(bench.repository).committed(STREAM, 1, 4)
    assert old is not None
    key = EpochKey(StreamIdentity("pipeline", bench.identity.uid, STREAM), old.attempt, old.lease)
    for sink in bench.made_sinks():
        with pytest.raises(TimelineEnded):
            sink.commit(key, Facts.of(old).sinks[sink.name].handle)
    assert bench.visible() == BEFORE


@pytest.mark.parametrize(("point", "hit"), [(None, 1), *((point, hit) for point, hit in CRASHES if point in DECIDED)])
def test_an_undo_takes_back_what_the_undone_timeline_decided_at_the_last_moment(
    model: Path, tmp_path: Path, point: str | None, hit: int
) -> None:
    """A driver of the timeline that is undone wakes up, and decides an epoch after the undo was decided."""
    copied(model, tmp_path)
    go_back(tmp_path, lambda _: None)
    bench = DiskBench(tmp_path)
    late = late_decision(bench)
    crash = CrashAt(point, hit) if point else None

    def decide(at: str) -> None:
        if at == "rewind decided":
            assert Decisions(bench.repository).close(late) == late
        if crash:
            crash(at)

    with pytest.raises(Crashed) if point else contextlib.nullcontext():
        bench.undo(decide)
    assert started(tmp_path, [[1], [2], [3], [4]]).visible() == AFTER
    assert started(tmp_path, [[1], [2], [3], [4], [5]]).visible() == [[1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("sink", [HandFileSink, HandSqliteSink])
def test_an_undo_that_stops_between_its_two_stamps_is_finished(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: type[Sink]
) -> None:
    """The first stamp takes back what the undone timeline decided at the last moment."""
    copied(model, tmp_path)
    go_back(tmp_path, lambda _: None)
    bench = DiskBench(tmp_path)
    late = late_decision(bench)

    def decide(at: str) -> None:
        if at == "rewind decided":
            assert Decisions(bench.repository).close(late) == late

    def die(*_: object) -> None:
        raise Crashed("between two stamps")

    with monkeypatch.context() as dying:
        dying.setattr(sink, "put_back", die)
        with pytest.raises(Crashed):
            bench.undo(decide)
    assert started(tmp_path, [[1], [2], [3], [4]]).visible() == AFTER


def late_decision(bench: DiskBench) -> Decision:
    """Stage epoch 3 of timeline 2, as a driver that was paused; return the decision that it is about to write."""
    base = Decisions(bench.repository).newest(STREAM, 2)
    assert base is not None
    attempt = Attempt(stream=STREAM, timeline=2, epoch=3, attempt=1)
    key = EpochKey(StreamIdentity("pipeline", bench.identity.uid, STREAM), attempt, base.lease)
    shares = {
        sink.name: Share(handle=sink.prepare([30], key).handle, rows=1, stands=3, before=2)  # type: ignore[arg-type]
        for sink in bench.made_sinks()
    }
    facts = msgspec.structs.replace(Facts.of(base), sinks=shares, rows=1, total_rows=3)
    return Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=base.lease, facts=facts.plain())
