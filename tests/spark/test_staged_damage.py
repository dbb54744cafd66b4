"""Staged data that is damaged between the decision and the commit is refused: nothing of the epoch becomes visible."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import Corrupt, SinkBehind, StagedDamaged
from holdfast.testing import CrashAt
from rig import FilesTarget, ForeachTarget, LogTarget, Rig, SqliteTarget, Target

TARGETS: dict[str, Callable[[Path], Target]] = {
    "files": lambda folder: FilesTarget(folder / "out"),
    "json": lambda folder: FilesTarget(folder / "out", format="json", partition_by="text"),
    "flat": lambda folder: FilesTarget(folder / "out", layout="flat"),
    "sqlite": lambda folder: SqliteTarget(folder / "out.db"),
    "log": lambda folder: LogTarget(folder / "out"),
    "foreach": lambda folder: ForeachTarget(folder / "calls", folder / "out.staging"),
}


def staged_files(folder: Path) -> list[Path]:
    (staging,) = folder.glob("*.staging")
    return sorted(path for path in staging.rglob("*") if path.is_file())


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def in_doubt(kind: str, spark: SparkSession, folder: Path) -> Rig:
    """Return a pipeline that was killed after it decided its second epoch."""
    rig = Rig(spark, folder, [TARGETS[kind](folder)])
    rig.add(1)
    rig.run()
    rig.add(2, 3, 4)
    rig.crash(CrashAt("decided"))
    return rig


@pytest.mark.parametrize("kind", TARGETS)
def test_a_flipped_bit_in_any_staged_file_is_refused(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    rig = in_doubt(kind, spark, tmp_path)
    files = [path for path in staged_files(tmp_path) if ".e0000000002." in str(path)]
    assert len(files) >= 3  # data, its checksum, the key
    for path in files:
        sound = path.read_bytes()
        for at in sorted({0, len(sound) // 3, len(sound) // 2, len(sound) - 1}):
            path.write_bytes(flipped(sound, at))
            with pytest.raises(Corrupt, match=path.name) as caught:
                rig.run()
            assert "Next: " in str(caught.value)
            assert rig.visible() == [[1]], (path, at)
        path.write_bytes(sound)
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4]]
    rig.add(5)
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4, 5]]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_staged_file_that_was_cut_or_is_gone_is_refused(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    rig = in_doubt(kind, spark, tmp_path)
    path = next(
        each for each in staged_files(tmp_path) if each.name.startswith("part-") and ".e0000000002." in str(each)
    )
    sound = path.read_bytes()
    path.write_bytes(sound[:-1])
    with pytest.raises(StagedDamaged, match="bytes, but") as caught:
        rig.run()
    assert caught.value.path == str(path)
    path.unlink()
    with pytest.raises(StagedDamaged, match="it is missing"):
        rig.run()
    assert rig.visible() == [[1]]
    path.write_bytes(sound)
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4]]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_restart_inside_the_process_checks_too(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """The sink is the same object then, but the time since it staged the epoch may be long."""
    rig = Rig(spark, tmp_path, [TARGETS[kind](tmp_path)])
    sink = rig.targets[0].make()
    rig.targets[0].make = lambda: sink
    rig.add(1, 2)
    rig.crash(CrashAt("decided"))
    path = next(each for each in staged_files(tmp_path) if each.name.startswith("part-"))
    sound = path.read_bytes()
    path.write_bytes(flipped(sound, len(sound) // 2))
    with pytest.raises(StagedDamaged):
        rig.run()
    assert rig.visible() == [[]]
    path.write_bytes(sound)
    rig.run()
    assert rig.visible() == [[1, 2]]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_file_that_was_not_staged_is_refused(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """Sinks that take the whole folder would show its rows."""
    rig = in_doubt(kind, spark, tmp_path)
    part = next(
        each for each in staged_files(tmp_path) if each.name.startswith("part-") and ".e0000000002." in str(each)
    )
    extra = part.with_name(f"part-99999{part.name[10:]}")
    extra.write_bytes(part.read_bytes())
    with pytest.raises(StagedDamaged, match=f"it holds .*{extra.name}, which was not staged.* Next: move ") as caught:
        rig.run()
    assert str(extra) in str(caught.value)
    assert rig.visible() == [[1]]
    extra.rename(part.with_name(f".{extra.name}"))  # readers do not see it
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4]]


def test_what_was_staged_for_a_decided_epoch_and_is_gone_was_never_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = in_doubt("files", spark, tmp_path)
    (staged,) = (tmp_path / "out.staging").glob("*.e0000000002.*")
    staged.rename(tmp_path / "aside")
    with pytest.raises(SinkBehind, match="holds epoch 1, but epoch 2 was decided, and its staged rows are missing"):
        rig.run()
    (tmp_path / "aside").rename(staged)
    rig.run()
    assert rig.visible() == [[1, 2, 3, 4]]
