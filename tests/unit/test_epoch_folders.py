"""What a FileSink's folder tells by its names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from epochfiles import EpochFiles, due
from holdfast.errors import BadValue, NotSupported
from holdfast.sinks.base import SinkContext, StreamIdentity
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord, folder_name, last_epoch_in
from holdfast.sinks.files.sink import FileSink


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
    context = SinkContext(StreamIdentity("shop", "0" * 32, "s"), schema, "append", None)
    with pytest.raises(BadValue, match=r"partition_by.*\.p.*begin with a dot"):
        FileSink(tmp_path / "out", partition_by=["_p", ".p"]).open(context)
    assert not (tmp_path / "out").exists()
    FileSink(tmp_path / "out", partition_by="_p").open(context)


@pytest.mark.parametrize("layout", ["epochs", "flat"])
def test_what_an_earlier_version_staged_without_digests_is_committed(layout: str, tmp_path: Path) -> None:
    """Its files are compared by size only."""
    files = EpochFiles(tmp_path, layout=layout)
    handle = files.stage(1)
    record = files.sink._staging.folder(files.key(1)) / KEY_FILE
    assert KeyRecord.unsealed(record.read_bytes(), KEY_FILE).digests is None
    files.sink.commit(files.key(1), handle)
    assert files.rows() == due(1)


@pytest.mark.parametrize("layout", ["epochs", "flat"])
def test_a_folder_that_sparks_own_sink_has_written_is_refused(layout: str, tmp_path: Path) -> None:
    """Spark reads only the files that `_spark_metadata` lists: ours would be invisible."""
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(NotSupported, match=r"_spark_metadata.*Next: choose another folder"):
        EpochFiles(tmp_path, layout=layout)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_spark_metadata"]


@pytest.mark.parametrize("scheme", ["s3a", "gs", "abfss", "hdfs"])
def test_a_store_is_refused_with_advice_that_can_be_followed(scheme: str) -> None:
    with pytest.raises(NotSupported) as caught:
        FileSink(f"{scheme}://bucket/out")
    assert all(name in str(caught.value) for name in ("DeltaSink", "IcebergSink", "PostgresSink"))
