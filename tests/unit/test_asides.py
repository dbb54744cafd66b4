"""Rows that a rewind has set aside: an undo without them is refused, and they can be listed and discarded."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakespark import install
from handstaged import query
from holdfast.errors import RewindRefused, SinkFailed
from holdfast.repository import History
from holdfast.rewind import discard_rows, kept_rows
from holdfast.sinks.base import EpochKey, Staged
from rewindbench import DiskBench, HandSqliteSink


class HandUpserts(HandSqliteSink):
    """A real SqliteSink that upserts rows, which are staged without Spark."""

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        staged = super().prepare(df, key)
        return Staged(staged.handle | {"effect": "upsert", "key": self.key}, staged.rows)


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
def bench(tmp_path: Path) -> DiskBench:
    """A pipeline that was rewound from epoch 3 to epoch 1."""
    made = DiskBench(tmp_path)
    made.add([1])
    made.take()
    made.add([2, 2], [3])
    made.rewind(1)
    return made


def tables(bench: DiskBench) -> list[str]:
    found = query(bench.place / "out.db", "SELECT name FROM sqlite_master WHERE name LIKE 'holdfast_aside_%'")
    return [name for (name,) in found]


def change(bench: DiskBench, statement: str) -> None:
    with sqlite3.connect(bench.place / "out.db") as connection:
        connection.execute(statement.format(tables(bench)[0]))
    connection.close()


DELETIONS: dict[str, Callable[[DiskBench], None]] = {
    "the folder": lambda bench: shutil.rmtree(bench.place / ".out.aside"),
    "one epoch": lambda bench: shutil.rmtree(next((bench.place / ".out.aside").rglob("hf_epoch=*"))),
    "the table": lambda bench: change(bench, "DROP TABLE {}"),
    "one row": lambda bench: change(bench, "DELETE FROM {} WHERE n = 3"),
}


@pytest.mark.parametrize("deleted", DELETIONS)
def test_an_undo_without_the_rows_that_were_set_aside_is_refused(bench: DiskBench, deleted: str) -> None:
    """Otherwise it would succeed, and the rows would be lost."""
    before = bench.lineage.current
    DELETIONS[deleted](bench)
    with pytest.raises(RewindRefused, match=r"cannot be put back: .* of the 3 rows that were set aside are left"):
        bench.undo()
    assert bench.lineage.current == before
    assert bench.visible() == [[1], [1]]


def test_an_undo_of_upserts_without_their_later_versions_is_refused(tmp_path: Path) -> None:
    bench = DiskBench(tmp_path)
    bench.sinks = lambda: [HandUpserts(tmp_path / "out.db", "rows", key="n", undo=True, name="table")]
    bench.add([1])
    bench.take()
    bench.add([1, 2], [2])
    bench.rewind(1)
    change(bench, "DELETE FROM {} WHERE rowid = 1")
    with pytest.raises(RewindRefused, match="2 of the 3 rows that were set aside are left"):
        bench.undo()


def test_rows_are_kept_for_an_undo_and_can_be_discarded_once_it_is_impossible(bench: DiskBench) -> None:
    found = kept_rows(bench)
    assert [(each.sink, each.timeline, each.rows, each.undoable) for each in found] == [
        ("files", 2, 3, True),
        ("table", 2, 3, True),
    ]
    bench.add()  # the new timeline decides its first epoch
    found = kept_rows(bench)
    assert not any(each.undoable for each in found)
    assert discard_rows(bench, found[:1], why="checked") == found[:1]
    assert kept_rows(bench) == found[1:]
    assert discard_rows(bench, found) == found[1:]
    assert (kept_rows(bench), discard_rows(bench, found), tables(bench)) == ([], [], [])
    assert not (bench.place / ".out.aside").exists()
    assert bench.visible() == [[1, 2, 2, 3], [1, 2, 2, 3]]
    entries = [each for each in History(bench.repository).entries() if each.what == "discard"]
    assert [each.why for each in entries] == ["checked", "rows that rewinds had set aside"]


def test_a_discard_that_was_interrupted_is_continued(bench: DiskBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(folder: Path) -> None:
        next(folder.rglob("_holdfast.key")).unlink()
        raise OSError("the disk is gone")

    found = kept_rows(bench)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.sinks.files.taking_back.shutil.rmtree", interrupted)
        with pytest.raises(SinkFailed, match="the disk is gone"):
            discard_rows(bench, found)
    with pytest.raises(RewindRefused, match="rows that were set aside are left"):
        bench.undo()
    assert [each.sink for each in discard_rows(bench, found)] == ["files", "table"]
    assert kept_rows(bench) == []


@pytest.mark.parametrize("first", ["*part-*", "_holdfast.key"])
def test_an_undo_never_takes_a_half_discarded_folder_for_a_whole_one(
    bench: DiskBench, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whichever file a discard deletes first: if it is interrupted, the folder is no longer one to put back."""

    def interrupted(folder: Path) -> None:
        next(folder.rglob(first)).unlink()
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.sinks.files.taking_back.shutil.rmtree", interrupted)
        with pytest.raises(SinkFailed, match="the disk is gone"):
            discard_rows(bench, kept_rows(bench)[:1])
    with pytest.raises(RewindRefused, match="only 0 of the 3 rows that were set aside are left"):
        bench.undo()
    left = kept_rows(bench)
    assert [(each.sink, each.rows) for each in left] == [("files", 0), ("table", 3)]
    assert discard_rows(bench, left) == left
    assert kept_rows(bench) == []
    assert not (bench.place / ".out.aside").exists()


def test_another_pipeline_with_the_same_targets_finds_nothing(bench: DiskBench, tmp_path: Path) -> None:
    other = DiskBench(tmp_path / "other")
    other.sinks = bench.made_sinks
    assert kept_rows(other) == []
