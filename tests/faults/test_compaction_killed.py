"""Compactions that die before any call, are killed or paused, and readers and a writer that never notice."""

import itertools
import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from glob import glob as listed  # it passes over folders that are gone, unlike Path.glob
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path

import pytest

from deaths import crash_everywhere
from epochfiles import EpochFiles, due
from holdfast.errors import CommitOpen, CompactionOutdated
from holdfast.repository import LocalRepository
from holdfast.sinks import apply_compact, plan_compact
from holdfast.sinks.base import SinkContext
from holdfast.sinks.compaction.apply import POINTS
from holdfast.sinks.files.gate import Gate, beside

FORK = multiprocessing.get_context("fork")
SWAPS, READS, TURNS = 12, 40, 2  # of a compaction beside a writer and two readers; epochs at each of its points
GRACE_S = 0.2  # that the old names stay


def compact(files: EpochFiles, **options: float | Callable[[str], None]) -> None:
    apply_compact(files.repository, plan_compact(files.repository, files.path), **({"grace_s": 0.0} | options))


def compact_in(repository: LocalRepository, path: Path) -> None:
    apply_compact(repository, plan_compact(repository, path), grace_s=0.0)


def test_dying_before_each_call(tmp_path: Path) -> None:
    """Whatever it leaves, all rows are there once, a driver starts and commits, and the next one clears up."""
    (tmp_path / "model").mkdir()
    model = EpochFiles(tmp_path / "model")
    model.commit(1, 2, 3, 4, leaves=("a=1",))
    (tmp_path / "places").mkdir()
    places = crash_everywhere(
        tmp_path / "places",
        lambda place: shutil.copytree(tmp_path / "model", place, dirs_exist_ok=True),
        lambda place: compact_in(LocalRepository(place / "root"), place / "out"),
    )
    swapped = []
    for place in places:
        files = EpochFiles(place)
        assert files.rows() == due(1, 2, 3, 4)
        swapped.append(files.folders() == [2, 3, 4])
        assert swapped[-1] or files.folders() == [1, 2, 3, 4]
        if len(swapped) % 4:
            continue  # what was left differs little from call to call, and each takes a while
        files.commit(5, leaves=("a=1",))
        compact(files)
        assert files.folders() == [3, 4, 5]
        assert files.rows() == due(1, 2, 3, 4, 5)
        assert not beside(files.path).exists()
    assert swapped == sorted(swapped)
    assert {True, False} == set(swapped)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_point(tmp_path: Path, point: str) -> None:
    files = EpochFiles(tmp_path)
    files.commit(1, 2, 3, 4)

    def die(at: str) -> None:
        if at == point:
            os.kill(os.getpid(), signal.SIGKILL)

    child = FORK.Process(target=compact, args=(files,), kwargs={"reach": die})
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert files.rows() == due(1, 2, 3, 4)
    files.commit(5)  # at once: the system has freed the lock
    assert files.rows() == due(1, 2, 3, 4, 5)
    compact(files)
    assert files.folders() == [3, 4, 5]
    assert files.rows() == due(1, 2, 3, 4, 5)
    assert not beside(files.path).exists()


def paused(target: Callable[[Callable[[str], None]], None], point: str) -> multiprocessing.Process:
    """Return a process that has stopped itself at a point."""

    def stop(at: str) -> None:
        if at == point:
            os.kill(os.getpid(), signal.SIGSTOP)

    child = FORK.Process(target=target, args=(stop,))
    child.start()
    assert child.pid
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    return child


def woken(child: multiprocessing.Process) -> int:
    assert child.pid
    os.kill(child.pid, signal.SIGCONT)
    return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def test_a_paused_compaction_is_passed_over_and_changes_nothing_when_it_wakes(tmp_path: Path) -> None:
    files = EpochFiles(tmp_path)
    files.commit(1, 2, 3, 4)

    def work(reach: Callable[[str], None]) -> None:
        with pytest.raises(CompactionOutdated):
            compact(files, reach=reach)

    child = paused(work, "gate closed")
    files.sink._gate = Gate(files.path, patience_s=2.0)
    files.commit(5)
    files.sink._gate = Gate(files.path, patience_s=3600.0)  # only the first one waits
    files.commit(6, 7, 8)
    assert woken(child) == 0
    assert files.rows() == due(*range(1, 9))
    assert files.folders() == list(range(1, 9))
    compact(files)
    assert files.folders() == [6, 7, 8]
    assert files.rows() == due(*range(1, 9))


def test_a_driver_paused_in_its_commit_holds_the_swap_off(tmp_path: Path) -> None:
    files = EpochFiles(tmp_path)
    files.commit(1, 2, 3, 4)

    def work(reach: Callable[[str], None]) -> None:
        context = files.sink.context
        files.sink.open(SinkContext(context.owner, context.schema, "append", None, reach=reach))
        files.commit(5)

    child = paused(work, "committing")
    with pytest.raises(CommitOpen):
        compact(files, busy_s=0.2)
    assert files.rows() == due(1, 2, 3, 4)
    assert woken(child) == 0
    compact(files)
    assert files.folders() == [3, 4, 5]
    assert files.rows() == due(1, 2, 3, 4, 5)


def test_a_zombie_that_wakes_after_its_epoch_was_merged(tmp_path: Path) -> None:
    """It decided and was paused before its commit; the next driver did that, went on, and all was merged."""
    files = EpochFiles(tmp_path)
    files.commit(1, 2)
    handle = files.stage(3)

    def work(reach: Callable[[str], None]) -> None:
        reach("about to commit")
        files.sink.commit(files.key(3), handle)

    child = paused(work, "about to commit")
    files.sink.commit(files.key(3), handle)
    files.commit(4, 5, 6)
    compact(files)
    assert files.folders() == [4, 5, 6]
    assert woken(child) == 0
    assert files.rows() == due(*range(1, 7))
    assert files.folders() == [4, 5, 6]


class Race:
    """A folder that one process writes, two read without a pause, and this one compacts, round by round.

    Each point of a compaction lets the writer commit, and no round begins before each reader has got through since
    the last one. So the work is bounded, however slow the machine is in any part of it.
    """

    def __init__(self, files: EpochFiles, committed: int) -> None:
        self.files = files
        self.committed = FORK.Value("q", committed)
        self.turns = FORK.Semaphore(0)
        self.looked = [FORK.Semaphore(0) for _ in range(2)]
        self.done: Event = FORK.Event()
        self.wrongs: multiprocessing.Queue[str] = FORK.Queue()
        readers = [FORK.Process(target=self.read, args=(each,), daemon=True) for each in self.looked]
        self.processes = [FORK.Process(target=self.write, daemon=True), *readers]

    def write(self) -> None:
        while self.turns.acquire() and not self.done.is_set():
            self.files.commit(self.committed.value + 1)
            self.committed.value += 1

    def read(self, looked: Semaphore) -> None:
        wrong = ""
        while not self.done.is_set() and not wrong:
            committed = self.committed.value
            rows = look(self.files.path)
            if rows is not None:
                wrong = wrong_in(rows, committed)
                looked.release()
        self.wrongs.put(wrong)

    def looks(self) -> list[int]:
        return [each.get_value() for each in self.looked]

    def alive(self) -> bool:
        return all(each.is_alive() for each in self.processes)

    def let_write(self, _point: str) -> None:
        for _ in range(TURNS):
            self.turns.release()

    def compact(self) -> bool:
        """Do one round; say whether there was something to merge."""
        before = self.looks()
        self.let_write("at the start")
        plan = plan_compact(self.files.repository, self.files.path)
        if plan.runs:
            apply_compact(self.files.repository, plan, grace_s=GRACE_S, reach=self.let_write)
        while any(now <= then for now, then in zip(self.looks(), before, strict=True)) and self.alive():
            time.sleep(0.001)
        return bool(plan.runs)


def wrong_in(rows: list[int], committed: int) -> str:
    """Say what is wrong if not every row that was committed before is there, and each only once.

    Epochs that are committed while a folder is being listed may be in the list or not, whichever of them is older.
    """
    due_rows = due(*range(1, committed + 1))
    lost = sorted(set(due_rows) - set(rows))
    doubled = sorted(row for row, next_row in itertools.pairwise(rows) if row == next_row)
    return f"after {committed} epochs lost {lost}, doubled {doubled}" if lost or doubled else ""


def look(path: Path) -> list[int] | None:
    """Read as most do: list all, then open all. A file that is gone means: list again.

    So does a list that took longer than the old names stay: nothing is promised of it.
    """
    began = time.monotonic()
    names = listed(f"{path}/**/*.json", recursive=True)  # noqa: PTH207 - see there
    if time.monotonic() - began > GRACE_S:
        return None
    try:
        found = [Path(name).read_text() for name in names]
    except FileNotFoundError:
        return None
    return sorted(json.loads(line)["n"] for text in found for line in text.splitlines())


def test_a_reader_that_loses_or_doubles_a_row_would_be_noticed() -> None:
    assert wrong_in(due(1, 2, 4), 2) == ""
    assert wrong_in(due(1, 3), 2) == "after 2 epochs lost [20, 21], doubled []"
    assert wrong_in(sorted([*due(1, 2), 20]), 2) == "after 2 epochs lost [], doubled [20]"


def test_a_writer_and_readers_never_notice(tmp_path: Path) -> None:
    """One process commits, two read, and this one compacts until it and each of them did so often enough."""
    files = EpochFiles(tmp_path)
    files.commit(*range(1, 11))
    race = Race(files, 10)
    for each in race.processes:
        each.start()
    swaps = 0
    while (swaps < SWAPS or min(race.looks()) < READS) and race.alive():  # one that found something wrong ends
        swaps += race.compact()
    race.done.set()
    wrongs = [race.wrongs.get(timeout=60) for _ in race.looked]
    race.turns.release()
    for each in race.processes:
        each.join(30)
        assert each.exitcode == 0
    assert wrongs == ["", ""]
    assert files.rows() == due(*range(1, race.committed.value + 1))
