"""Input files that a stream has not read yet: counted by the rules of Spark's reader, and not too often."""

import json
from pathlib import Path

import pytest

from holdfast.spark.lag import RowRate
from holdfast.spark.unread import FileInput, Unread, UnreadFiles
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.testing import ManualClock


class World:
    """A folder of input, and the log that Spark keeps of what it has taken."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.input, self.sources, self.clock = folder / "in put", folder / "sources", ManualClock()
        self.input.mkdir()
        (self.sources / "0").mkdir(parents=True)
        self.options = options
        self.files = UnreadFiles(LocalSparkFolder(folder), [FileInput(0, str(self.input), options)], self.clock)

    def add(self, *names: str, size: int = 10) -> None:
        for name in names:
            path = self.input / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * size)

    def take(self, entry: int, *names: str, compact: bool = False) -> None:
        lines = [
            {"path": f"{(self.input / name).as_uri()}", "timestamp": self._time(name), "batchId": entry}
            for name in names
        ]
        text = "\n".join(["v1", *map(json.dumps, lines)])
        (self.sources / "0" / (f"{entry}.compact" if compact else str(entry))).write_text(text)

    def _time(self, name: str) -> int:
        return (self.input / name).stat().st_mtime_ns // 1_000_000

    def count(self, entry: int | None) -> Unread | None:
        self.clock.advance(3600)
        return self.files.count([] if entry is None else [json.dumps({"logOffset": entry})])


def test_what_no_decided_epoch_has_taken_is_unread(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.count(None) == Unread(0, 0)
    world.add("a b.json", "c.json", "d%20.json", size=7)
    assert world.count(None) == Unread(3, 21)
    world.take(0, "a b.json")
    world.take(1, "d%20.json")  # Spark has planned it, and no epoch is decided with it
    assert world.count(0) == Unread(2, 14)
    assert world.count(1) == Unread(1, 7)
    world.take(2, "a b.json", "d%20.json", "c.json", compact=True)
    (world.sources / "0" / "0").unlink()
    assert world.count(2) == Unread(0, 0)
    again = UnreadFiles(LocalSparkFolder(tmp_path), [FileInput(0, str(world.input), {})], world.clock)
    assert again.count(['{"logOffset": 2}']) == Unread(0, 0)  # from the compacted entry alone


def test_files_are_listed_as_sparks_reader_lists_them(tmp_path: Path) -> None:
    world = World(tmp_path, pathglobfilter="*.json")
    world.add("a.json", "b.csv", ".hidden.json", "_SUCCESS", "day=1/c.json", "deeper/d.json")
    assert world.count(None) == Unread(2, 20)
    world.options["recursivefilelookup"] = "true"
    assert world.count(None) == Unread(3, 30)


def test_options_that_cannot_be_repeated_cheaply_are_not_counted(tmp_path: Path) -> None:
    world = World(tmp_path, modifiedafter="2025-01-01T00:00:00")
    world.add("a.json")
    assert world.count(None) is None


def test_a_folder_of_sparks_own_file_sink_is_not_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add("a.json", "_spark_metadata/0")
    assert world.count(None) is None


def test_a_count_is_kept_for_some_seconds(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.count(None) == Unread(0, 0)
    world.add("a.json")
    assert world.files.count([]) == Unread(0, 0)
    world.clock.advance(5)
    assert world.files.count([]) == Unread(1, 10)


def test_the_rate_is_that_of_the_last_minute() -> None:
    clock = ManualClock()
    rate = RowRate(clock)
    assert rate.per_second() == 0
    clock.advance(10)
    rate.add(100)
    assert rate.per_second() == 10
    clock.advance(50)
    rate.add(500)
    assert rate.per_second() == 10
    clock.advance(30)
    assert rate.per_second() == pytest.approx(500 / 60, abs=0.1)
    clock.advance(60)
    assert rate.per_second() == 0
