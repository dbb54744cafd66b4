"""What a FileSink's folder tells by its names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import BadValue
from holdfast.sinks.base import Owner, Setting
from holdfast.sinks.epochfolders import KEY_FILE, folder_name, last_epoch_in
from holdfast.sinks.files import FileSink


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for timeline, epoch in ((1, 1), (1, 2), (1, 10_000_000_001), (2, 7)):
        (tmp_path / folder_name(timeline, epoch)).mkdir()
        (tmp_path / folder_name(timeline, epoch) / KEY_FILE).touch()
    return tmp_path


def test_the_last_epoch_is_that_of_its_timeline(folder: Path) -> None:
    assert [last_epoch_in(folder, timeline) for timeline in (1, 2, 3)] == [10_000_000_001, 7, 0]
    assert last_epoch_in(folder / "nowhere", 1) == 0


def test_a_folder_without_a_key_is_none_of_ours(folder: Path) -> None:
    """Nor is one whose name only looks alike."""
    (folder / folder_name(2, 8)).mkdir()
    (folder / "hf_epoch=t2-9").mkdir()
    (folder / "hf_epoch=t2-9" / KEY_FILE).touch()
    assert last_epoch_in(folder, 2) == 7


def test_a_partition_whose_folders_readers_pass_over_is_refused(tmp_path: Path) -> None:
    number = SimpleNamespace(typeName=lambda: "long")
    schema: Any = SimpleNamespace(fields=[SimpleNamespace(name=name, dataType=number) for name in (".p", "_p", "n")])
    setting = Setting(Owner("shop", "0" * 32, "s"), schema, "append", None)
    with pytest.raises(BadValue, match=r"partition_by.*\.p.*begin with a dot"):
        FileSink(tmp_path / "out", partition_by=["_p", ".p"]).open(setting)
    assert not (tmp_path / "out").exists()
    FileSink(tmp_path / "out", partition_by="_p").open(setting)
