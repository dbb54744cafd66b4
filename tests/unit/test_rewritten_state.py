"""State files that a query writes again after a restart in the same process: a power loss must not empty them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fakespark import Bench, install
from holdfast.policy import RestartPolicy
from holdfast.sinks.base import EpochKey
from holdfast.spark import adapter
from holdfast.sparkfiles import localfolder
from holdfast.sparkfiles.localfolder import LocalSparkFolder


class Synced:
    """Records the inodes that were synced, instead of syncing them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.inodes: set[int] = set()
        patch.setattr(localfolder, "sync_all", self._sync)

    def _sync(self, paths: Iterable[Path], **_: object) -> None:
        self.inodes |= {path.stat().st_ino for path in paths if path.exists()}

    def has(self, path: Path) -> bool:
        return path.stat().st_ino in self.inodes


def written(path: Path, text: str) -> None:
    """Write a file as Spark's state store does, which replaces one of an earlier try."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.tmp")
    made.write_text(text)
    made.replace(path)


def test_a_state_file_is_synced_once_for_each_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, synced = LocalSparkFolder(tmp_path), Synced(monkeypatch)
    file = tmp_path / "state/0/0/1.delta"
    written(file, "first")
    folder.make_durable([], [])
    assert synced.has(file)
    synced.inodes.clear()
    folder.make_durable([], [])
    assert not synced.has(file)
    folder.begin()
    written(file, "again")
    folder.make_durable([], [])
    assert synced.has(file)


def test_the_state_of_a_replayed_epoch_is_durable_before_spark_commits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink fails to commit. After the restart, Spark runs the batch again and writes its state again.

    Its commit may survive a power loss by chance, and then the state must have survived too.
    """
    install(monkeypatch)
    synced, bench, failures = Synced(monkeypatch), Bench(tmp_path, stateful=True), [OSError("down")]
    state = tmp_path / "repository/timelines/1/streams/rows/spark/state/0/0"
    unsynced: list[int] = []

    def before(step: str, key: EpochKey) -> None:
        if step == "prepare":
            written(state / f"{key.epoch}.delta", "state")
        if step == "commit" and failures:
            raise failures.pop()

    def ended(_: str, epoch: int, __: int) -> None:
        unsynced.extend(each for each in range(1, epoch + 1) if not synced.has(state / f"{each}.delta"))

    def replay(_: Any) -> None:
        written(state / "1.delta", "state, written again")

    bench.before, bench.source = before, [[1], [2]]
    monkeypatch.setattr(adapter, "run_for_nothing", replay)
    bench.run(restart=RestartPolicy.bounded(3, within=60), on_epoch=ended)
    assert bench.places[0].rows == [1, 2]
    assert "again" in (state / "1.delta").read_text()
    assert unsynced == []
