"""A stream whose program was changed between two runs: what must stay as it was is refused when it differs."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import BadInput, StreamChanged
from holdfast.testing import CrashAt
from pgfixture import server
from rig import FilesTarget, PostgresTarget, Rig, SqliteTarget


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_what_an_epoch_does_is_decided_with_it(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """Another output mode is refused; another key or changelog does not change what an epoch in doubt does."""

    def target(**options: Any) -> Any:
        if kind == "sqlite":
            return SqliteTarget(tmp_path / "out.db", **options)
        return PostgresTarget(dsn, "rows", create=True, **options)

    dsn = server().dsn(server().fresh_database())
    rig = Rig(spark, tmp_path, [target(key="n")])
    rig.add(1, 2)
    rig.run()
    rig.add(3)
    rig.crash(CrashAt("decided"))
    rig.output_mode = "complete"
    with pytest.raises(StreamChanged, match="output mode of stream 'rows' changed from 'append'"):
        rig.run()
    rig.output_mode = "append"
    rig.run()
    assert rig.visible() == [[1, 2, 3]]


@pytest.mark.parametrize("change", [{"partition_by": "text"}, {"format": "json"}, {"layout": "flat"}])
def test_the_shape_of_a_folder_of_files_stays(change: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    """Readers could not bear two shapes side by side."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    rig.run()
    rig.targets = [FilesTarget(tmp_path / "out", **change)]
    with pytest.raises(StreamChanged, match="a folder stores its rows in one way only"):
        rig.run()


def test_one_place_has_one_sink(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    pipeline = hf.Pipeline("p", tmp_path / "root")
    with pytest.raises(BadInput, match="writes there already"):
        pipeline.stream(
            lambda s: s, name="x", sinks=[hf.FileSink(tmp_path / "out"), hf.FileSink(f"{tmp_path}/link/", name="again")]
        )
    pipeline.stream(lambda s: s, name="x", sinks=hf.SqliteSink(tmp_path / "a.db", "rows"))
    with pytest.raises(BadInput, match="stream 'x' writes there already"):
        pipeline.stream(lambda s: s, name="y", sinks=hf.SqliteSink(tmp_path / "a.db", "Rows"))
