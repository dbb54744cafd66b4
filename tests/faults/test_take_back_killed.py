"""Rewinds that are killed within a sink: at each of their points, and before each call to the operating system."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deaths import crash_everywhere
from deltastaged import DeltaByHand
from handstaged import FilesByEpoch, HandStaged, Log, SqliteAppend, SqliteUndo
from holdfast.sinks.taking_back import POINTS
from icebergstaged import IcebergByHand
from takebackkills import CHECKS, filled, killed_at, put_back, seen, taken_back

SINKS: dict[str, type[HandStaged]] = {
    "files": FilesByEpoch,
    "append to a SQLite table": SqliteAppend,
    "upsert into a SQLite table": SqliteUndo,
    "event log": Log,
    "Delta table": DeltaByHand,
    "Iceberg table": IcebergByHand,
}
Act = Callable[[HandStaged, Path], None]


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_point(kind: str, check: str, point: str, tmp_path: Path) -> None:
    CHECKS[check](SINKS[kind](), tmp_path, point)


@pytest.mark.parametrize("kind", SINKS)
def test_every_point_is_reached(kind: str, tmp_path: Path) -> None:
    contract = SINKS[kind]()
    reached = []
    for point in POINTS:
        filled(contract, tmp_path / point)
        if killed_at(point, contract, tmp_path / point, "take back"):
            reached.append(point)
    assert reached == [point for point in POINTS if kind == "files" or point != "moving"]


@pytest.mark.parametrize("kind", ["files", "event log"])
@pytest.mark.parametrize(("act", "rows"), [(taken_back, [1, 2]), (put_back, [1, 2, 3, 4])])
def test_dying_before_each_call(kind: str, act: Act, rows: list[int], tmp_path: Path) -> None:
    contract = SINKS[kind]()
    (tmp_path / "model").mkdir()
    filled(contract, tmp_path / "model")
    if act is put_back:
        taken_back(contract, tmp_path / "model")
    (tmp_path / "places").mkdir()
    places = crash_everywhere(
        tmp_path / "places",
        lambda place: shutil.copytree(tmp_path / "model", place, dirs_exist_ok=True),
        lambda place: act(contract, place),
    )
    for place in places:
        assert seen(contract, place) in ([1, 2, 3, 4], [1, 2, 3], [1, 2])
        act(contract, place)
        assert seen(contract, place) == rows
        assert not (place / "out.compact").exists()
