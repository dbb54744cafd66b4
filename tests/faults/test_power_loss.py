"""The power goes: whatever was never synced is gone. Nothing is lost that was decided, and nothing comes twice.

Spark syncs none of its files, so what this removes is nearly all that Spark wrote last: offsets, the source's log,
commits, state, staged output. A file survives if its bytes were synced, and then its name in its folder. Or its name
alone stays, with nothing in it: a file system may write names before bytes.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from epochfiles import EpochFiles, due
from holdfast.epoch import POINTS
from holdfast.repository import files
from holdfast.sinks import apply_compact, plan_compact
from holdfast.sinks.compaction import apply as compaction
from holdfast.sinks.staging import below
from holdfast.testing import CrashAt, Crashed
from rig import FilesTarget, LogTarget, Rig, Target
from sparkfixture import session

PLAIN = tuple(point for point in POINTS if point not in ("aborted", "discarded"))

FEWER = ("opening", "staging", "durable", "decided", "committed", "all committed")  # state is slow
UNSYNCED = ("opening", "staging", "prepared")  # later on, all has its bytes
OF_THE_LOG = ("staging", "decided", "committing", "committed")


class Disk:
    """Knows what was synced below some folders, and loses the rest."""

    def __init__(self, roots: list[Path], patch: pytest.MonkeyPatch, *, keeps_names: bool = False) -> None:
        self.roots = roots
        self._keeps_names = keeps_names
        self._bytes: set[tuple[int, int]] = set()  # inode and time of the last change: bytes that were synced
        self._names: set[tuple[int, str, int]] = set()  # folder, name, inode: names that were synced
        self.lost = 0
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._watched(getattr(os, name)))
        patch.setattr(files, "_SYNC_EACH", 1_000_000)  # each file by itself, so that a forgotten one shows

    def _watched(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            real(descriptor)
            self._synced(descriptor)

        return sync

    def _synced(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._bytes.add((found.st_ino, found.st_mtime_ns))
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.is_dir():
            with os.scandir(path) as entries:
                self._names |= {(found.st_ino, each.name, each.inode()) for each in entries}

    def lose_power(self) -> None:
        for root in self.roots:
            if root.exists():
                self._lose(root)

    def _lose(self, folder: Path) -> None:
        inode = folder.stat().st_ino
        for each in list(os.scandir(folder)):
            path, found = Path(each.path), each.stat(follow_symlinks=False)
            named = (inode, each.name, found.st_ino) in self._names
            if each.is_dir():
                if named or self._keeps_names:
                    self._lose(path)
                else:
                    self.lost += 1
                    shutil.rmtree(path)
            elif self._keeps_names:
                if found.st_size and (found.st_ino, found.st_mtime_ns) not in self._bytes:
                    self.lost += 1
                    os.truncate(path, 0)
            elif not named or (found.st_ino, found.st_mtime_ns) not in self._bytes:
                self.lost += 1
                path.unlink()


def totals(df: DataFrame) -> DataFrame:
    return df.groupBy((f.col("n") % 3).alias("k")).agg(f.sum("n").alias("n"))


@dataclass(frozen=True)
class Case:
    target: Callable[[Path], Target] = FilesTarget
    query: Callable[[DataFrame], DataFrame] | None = None
    mode: str = "append"
    points: tuple[str, ...] = PLAIN
    keeps_names: bool = False


CASES = {
    "files": Case(),
    "flat": Case(partial(FilesTarget, layout="flat")),
    "state": Case(partial(FilesTarget, changelog=True), totals, "update", FEWER),
    "files, names stay": Case(points=UNSYNCED, keeps_names=True),
    "state, names stay": Case(partial(FilesTarget, changelog=True), totals, "update", UNSYNCED, keeps_names=True),
    "log": Case(partial(LogTarget, entity="n"), lambda df: df.repartition(2), points=OF_THE_LOG),
}


@pytest.mark.parametrize(("case", "point"), [(case, point) for case in CASES for point in CASES[case].points])
def test_the_power_goes_at_a_point(case: str, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = CASES[case]
    spark: SparkSession = session()
    rig = Rig(spark, tmp_path, [chosen.target(tmp_path / "out")], chosen.query, output_mode=chosen.mode)
    (tmp_path / "root").mkdir()
    roots = [rig.repository, tmp_path / "out", tmp_path / "out.staging"]
    disk = Disk(roots, monkeypatch, keeps_names=chosen.keeps_names)
    rig.add(0, 1, 2)
    rig.run()
    expected = [0, 1, 2]
    sums = {0: 0, 1: 1, 2: 2}
    rows = [10, 11]
    rig.add(*rows)
    rig.crash(CrashAt(point))
    before = disk.lost
    disk.lose_power()
    assert disk.lost > before, "the disk lost nothing: this test tests nothing"
    rig.run()
    disk.lose_power()  # and once more while all is quiet: Spark's last commit goes
    rig.run()
    for n in rows:
        sums[n % 3] += n
    expected += rows if chosen.mode == "append" else [sums[k] for k in {n % 3 for n in rows}]
    assert rig.visible() == [sorted(expected)]


@pytest.mark.parametrize("point", compaction.POINTS)
def test_the_power_goes_in_a_compaction(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = EpochFiles(tmp_path)
    made.commit(1, 2, 3, 4, leaves=("a=1", "a=2"))
    before = made.rows()
    disk = Disk([tmp_path], monkeypatch)
    monkeypatch.setattr(files, "_syncfs", None)  # each file by itself, so that a forgotten one shows
    files.sync_all(below(tmp_path))
    with pytest.raises(Crashed):
        plan = plan_compact(made.repository, made.path)
        apply_compact(made.repository, plan, grace_s=0.0, reach=CrashAt(point))
    disk.lose_power()
    assert made.rows() == before
    assert made.folders() == ([2, 3, 4] if point in ("trees swapped", "compacted") else [1, 2, 3, 4])
    again = EpochFiles(tmp_path)
    again.commit(5)
    apply_compact(again.repository, plan_compact(again.repository, again.path), grace_s=0.0)
    assert again.folders() == [3, 4, 5]
    assert again.rows() == sorted(before + due(5))
