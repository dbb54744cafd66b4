"""Real runs make every move of the epoch table, and no other."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.epoch import MOVES, Attempt, Decision, EpochProgress, Move, State, Verdict
from holdfast.errors import InDoubt, SinkFailed, StreamFailed
from holdfast.policy import RestartPolicy
from holdfast.repository import Decisions, LocalRepository
from holdfast.repository import files as repository_files
from holdfast.sinks.files.sink import FileSink
from holdfast.testing import CrashAt
from rig import FilesTarget, Rig, SqliteTarget

OFTEN = RestartPolicy.bounded(5, 60)


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


class Poisoned(FileSink):
    """Refuses every epoch."""

    def prepare(self, *_: object) -> object:
        raise SinkFailed(sink=self.name, action="prepare", why="bad rows")


def test_real_runs_make_every_move(spark: SparkSession, tmp_path: Path, made: set[tuple[State, Move]]) -> None:
    """A crash before and one after the decision, a lost slot, a quarantine; into one sink and into three."""
    three = [FilesTarget(tmp_path / "a"), FilesTarget(tmp_path / "b"), SqliteTarget(tmp_path / "c.db")]
    rig = Rig(spark, tmp_path, three)
    rig.add(1)
    for point in ("durable", "decided", "committed"):
        rig.crash(CrashAt(point))
    rig.run()
    assert rig.visible() == [[1]] * 3
    assert {(State.STAGED, Move.PREPARE), (State.DECIDED, Move.COMMIT), (State.UNTRIED, Move.FIND)} <= made
    assert {(State.UNTRIED, Move.ABORT), (State.ABORTED, Move.DISCARD), (State.VISIBLE, Move.FINISH)} <= made

    one = Rig(spark, tmp_path / "one", [FilesTarget(tmp_path / "one/out")], quarantine_after=1)
    one.add(1)
    lost: list[Decision] = []

    def overtaken(point: str) -> None:
        """An older driver closes the slot just before this one decides."""
        if point == "durable" and not lost:
            slot = Attempt(stream="rows", timeline=1, epoch=1, attempt=1)
            lost.append(Decision(attempt=slot, verdict=Verdict.ABORT, lease=1))
            Decisions(LocalRepository(one.repository)).close(lost[0])

    one.run(overtaken, restart=OFTEN)
    assert one.visible() == [[1]]
    one.add(2)
    one.targets[0].make = lambda: Poisoned(tmp_path / "one/out")
    one.run(restart=OFTEN)
    assert one.visible() == [[1]]
    assert made == set(MOVES)


def test_a_sink_that_fails_keeps_no_other_from_its_commit(spark: SparkSession, tmp_path: Path) -> None:
    """At run time and in recovery: the first sink is down, the second one has the epoch all the same."""

    class Down(FileSink):
        def commit(self, *_: object) -> None:
            raise SinkFailed(sink=self.name, action="commit", why="down")

    files, table = FilesTarget(tmp_path / "a"), SqliteTarget(tmp_path / "b.db")
    rig = Rig(spark, tmp_path, [files, table])
    rig.add(1)
    up, files.make = files.make, lambda: Down(tmp_path / "a")
    with pytest.raises(StreamFailed, match="in doubt"):
        rig.run()
    assert rig.visible() == [[], [1]]
    files.make = up
    rig.add(2)
    rig.crash(CrashAt("decided", 1))
    assert rig.visible() == [[1], [1]]
    files.make = lambda: Down(tmp_path / "a")
    with pytest.raises(InDoubt):
        rig.run()
    assert rig.visible() == [[1], [1, 2]]
    files.make = up
    rig.run()
    assert rig.visible() == [[1, 2], [1, 2]]


def test_an_epoch_is_synced_once_before_its_decision_and_four_times_from_there_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a decision needs in one go, then the decision and its folder, then the two folders of the rename."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.path.relpath(Path(f"/proc/self/fd/{descriptor}").readlink(), tmp_path))
        fsync(descriptor)

    def at_once(descriptor: int) -> int:
        synced.append("all")
        return int(real(descriptor))

    real = repository_files._syncfs
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(repository_files, "_syncfs", at_once)
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    for n in (1, 2, 3):
        rig.add(n)
    began: list[int] = []
    rig.run(lambda point: began.append(len(synced)) if point == "opening" else None)
    all_of_it, record, *folders = synced[began[2] : began[2] + 5]
    assert all_of_it == "all"
    assert record.startswith("root/torment/.tmp/")
    assert folders == ["root/torment/timelines/1/streams/rows/epochs", "out", "out.staging"]
