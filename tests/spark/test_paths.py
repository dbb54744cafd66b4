"""Folders with unusual names, and one that cannot be created."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import BadValue, StorageFailed
from rig import FilesTarget, Rig, SqliteTarget


@pytest.mark.parametrize("name", ["a b", "a%20b", "é☃", "x#y", "[1]", "{x,y}", "a:b", "a;b&c", "it's"])
def test_paths_may_hold_any_character(name: str, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / name
    rig = Rig(spark, folder, [FilesTarget(folder / "out"), SqliteTarget(folder / "out.db")])
    shutil.rmtree(folder / "in")  # reading a path with a glob in it is Spark's matter
    rig.build = lambda session: session.readStream.schema("n long, text string").json(str(tmp_path / "in"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"n": 1, "text": "row 1"}')
    rig.run()
    files = [path for path in (folder / "out").rglob("*.parquet") if not path.name.startswith(".")]
    assert len(files) == 1
    assert rig.targets[1].visible() == [1]
    assert sorted(each.name for each in folder.iterdir()) == ["out", "out.db", "out.db.staging", "out.staging", "root"]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted({"in", name})


def test_a_root_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadValue, match="it is a file"):
        hf.Pipeline("p", tmp_path / "file")
    pipeline = hf.Pipeline("p", tmp_path / "file" / "root")
    pipeline.stream(lambda s: s, name="x", sinks=hf.FileSink(tmp_path / "out"))
    with pytest.raises(StorageFailed):
        pipeline.run()
    assert not (tmp_path / "out").exists()
