"""Compaction of what real pipelines wrote: every format, partitions, changes of columns, and a pipeline at work."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast import Checkpoints, Retention
from holdfast.errors import NotSupported, SinkFailed
from holdfast.pruning import plan_prune
from holdfast.repository import History, LocalRepository
from holdfast.sinks import apply_compact, file_sinks, plan_compact
from holdfast.sinks.compaction.apply import POINTS, Compacted
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord
from holdfast.sinks.files.gate import beside
from holdfast.sinks.files.sink import FileSink
from holdfast.testing import CrashAt, Crashed
from rig import FilesTarget, Rig

MOMENT = "timestamp_seconds(1700000000 + n) AS moment"


def compact(rig: Rig, **options: Any) -> Compacted:
    repository = LocalRepository(rig.repository)
    (found,) = file_sinks(repository)
    return apply_compact(repository, plan_compact(repository, found.path), rig.spark, **({"grace_s": 0.0} | options))


def epochs(rig: Rig, count: int) -> None:
    """Let so many epochs be committed, of two rows each, in one run."""
    for _ in range(count):
        number = rig.inputs
        rig.add(2 * number, 2 * number + 1)
    rig.run()


def folders(path: Path) -> list[int]:
    return sorted(int(each.name[-10:]) for each in path.glob("hf_epoch=*"))


def rows(rig: Rig, columns: str = "n") -> list[Any]:
    target = rig.targets[0]
    assert isinstance(target, FilesTarget)
    return target.visible(rig.spark, columns)


@pytest.mark.parametrize("form", ["parquet", "parquet.gzip", "orc", "json", "json.gzip", "csv"])
def test_each_format(spark: SparkSession, tmp_path: Path, form: str) -> None:
    path = tmp_path / "out"
    form, _, pressed = form.partition(".")
    columns = "_c0 _c1" if form == "csv" else "n text"
    query = None if form == "csv" else lambda df: df.selectExpr("n", "text", MOMENT, "array(n, 1L) AS list")
    options = {"compression": pressed} if pressed else {}
    rig = Rig(spark, tmp_path, [FilesTarget(path, format=form, options=options)], query)
    epochs(rig, 4)
    before = rows(rig, columns)
    endings = {"".join(each.suffixes[-2:]) for each in path.rglob("part-*")}
    done = compact(rig)
    assert (done.epochs, done.folders, done.files_after, done.rows) == (2, 1, 1, 4)
    assert folders(path) == [2, 3, 4]
    assert rows(rig, columns) == before
    assert len(before) == 8
    assert {"".join(each.suffixes[-2:]) for each in path.rglob("part-*")} == endings
    if form == "parquet":
        found = ds.dataset(path, format="parquet", partitioning="hive").to_table(columns=["n"])
        assert sorted(found["n"].to_pylist()) == rig.rows
        schemas = [pq.read_schema(each) for each in path.rglob("*.parquet")]
        assert len({tuple(each.names) for each in schemas}) == 1
        assert {str(each.field("moment").type) for each in schemas} == {"timestamp[us, tz=UTC]"}
    if form != "csv":
        read = spark.read.format(form).load(str(path))
        assert read.where("hf_epoch = 't1-0000000002' AND size(list) = 2").count() == 4


def test_partitions_and_names_that_spark_escapes(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a {b} [c] é%20" / "out"

    def query(df: DataFrame) -> DataFrame:
        return df.withColumn("day", f.concat(f.lit("d/{*}="), (f.col("n") % 2).cast("string")))

    rig = Rig(spark, tmp_path, [FilesTarget(path, partition_by=["day", "text"])], query)
    for n in range(5):
        rig.add(2 * n, 2 * n + 1, 0)
    rig.run()
    names = list(path.rglob("*.parquet"))
    before = Counter((str(each.parent.relative_to(path)).partition("/")[2], n) for each in names for n in numbers(each))
    done = compact(rig)
    names = list(path.rglob("*.parquet"))
    after = Counter((str(each.parent.relative_to(path)).partition("/")[2], n) for each in names for n in numbers(each))
    assert after == before
    assert sum(after.values()) == 15
    assert done.files_after < done.files_before
    assert folders(path) == [3, 4, 5]


def numbers(path: Path) -> list[int]:
    found: list[int] = pq.ParquetFile(path).read(columns=["n"])["n"].to_pylist()
    return found


def test_columns_that_changed_end_a_run(spark: SparkSession, tmp_path: Path) -> None:
    """Also where the records are of a version that did not tell: then Spark looks."""
    for told in (True, False):
        folder = tmp_path / str(told)
        rig = Rig(spark, folder, [FilesTarget(folder / "out")])
        epochs(rig, 2)
        rig.query = lambda df: df.withColumn("more", f.lit(1.5))
        epochs(rig, 4)
        if not told:
            for each in (folder / "out").glob("hf_epoch=*"):
                rerecorded(each, shape="", options=None)
        done = compact(rig)
        assert (done.folders, done.files_after) == (2, 2), told
        assert folders(folder / "out") == [2, 4, 5, 6]
        found = spark.read.option("mergeSchema", "true").parquet(str(folder / "out"))
        assert found.count() == 12
        assert found.where("more = 1.5").count() == 8


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_a_point(point: str, spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    rig = Rig(spark, tmp_path, [FilesTarget(path)])
    epochs(rig, 4)
    with pytest.raises(Crashed):
        compact(rig, reach=CrashAt(point))
    assert rows(rig) == rig.rows
    assert sorted(ds.dataset(path, partitioning="hive").to_table(columns=["n"])["n"].to_pylist()) == rig.rows
    assert sorted(n for name in path.glob("**/*.parquet") for n in numbers(name)) == rig.rows
    epochs(rig, 1)
    compact(rig)
    assert rows(rig) == rig.rows
    assert not beside(path).exists()


def rerecorded(folder: Path, **changed: Any) -> bytes:
    """Write an epoch's record anew, with other facts; return the one that it had."""
    path = folder / KEY_FILE
    data = path.read_bytes()
    record = KeyRecord.unsealed(data, "")
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    path.write_bytes(KeyRecord(**(fields | changed)).sealed())
    return data


def test_wrong_rows_are_never_swapped_in(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    rig = Rig(spark, tmp_path, [FilesTarget(path)])
    epochs(rig, 4)
    record = rerecorded(path / "hf_epoch=t1-0000000001", rows=3)  # as if Spark had passed over one of them
    with pytest.raises(SinkFailed, match="has 4 rows, but its epochs have 5"):
        compact(rig)
    (path / "hf_epoch=t1-0000000001" / KEY_FILE).write_bytes(record)
    (first,) = (path / "hf_epoch=t1-0000000001").glob("part-*")
    whole = first.read_bytes()
    first.write_bytes(b"x" * len(whole))
    with pytest.raises(SinkFailed, match="could not be compacted"):
        compact(rig)
    assert folders(path) == [1, 2, 3, 4]
    assert not beside(path).exists()
    first.write_bytes(whole)
    assert compact(rig).epochs == 2
    assert rows(rig) == rig.rows


def test_checkpoints_keep_their_cuts(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    rig = Rig(spark, tmp_path, [FilesTarget(path)])
    epochs(rig, 3)
    with rig.pipeline().start(spark, checkpoint_every=None) as handle:
        handle.savepoint("mine")
    epochs(rig, 4)
    compact(rig)
    assert folders(path) == [3, 5, 6, 7]
    assert rows(rig) == rig.rows
    repository = LocalRepository(rig.repository)
    assert [each.savepoint for each in Checkpoints(repository).all()] == ["mine"]
    assert plan_prune(repository, Retention(last=1)).blocked is None
    assert [entry.what for entry in History(repository).entries()][-1] == "compact"


def test_a_folder_that_a_stream_reads_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    epochs(rig, 4)
    pipeline = rig.pipeline()
    pipeline.stream(
        lambda session: (
            session.readStream.schema("n long, text string").parquet(str(tmp_path / "out")).drop("hf_epoch")
        ),
        name="second",
        sinks=[FileSink(tmp_path / "second")],
        reads=["rows"],
    )
    pipeline.run(spark, available_now=True)
    repository = LocalRepository(rig.repository)
    assert {each.stream for each in file_sinks(repository)} == {"rows", "second"}
    with pytest.raises(NotSupported, match="stream 'second' reads it"):
        plan_compact(repository, tmp_path / "out")


def test_a_pipeline_at_work(spark: SparkSession, tmp_path: Path) -> None:
    """A pipeline commits epoch after epoch while the folder is compacted and counted again and again."""
    path = tmp_path / "out"
    rig = Rig(spark, tmp_path, [FilesTarget(path)])
    epochs(rig, 3)
    handle = rig.pipeline().start(spark)
    wrong: list[str] = []
    counts: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                count = spark.read.schema("n long").parquet(str(path)).count()
            except Exception as error:  # a file is gone: it must list again
                if "FILE_NOT_EXIST" not in str(error) and "FileNotFound" not in str(error):
                    wrong.append(str(error)[:500])
                continue
            if count % 2 or count > len(rig.rows) or count < max([6, *counts]):
                wrong.append(f"{count} rows after {counts[-1:]}")
            counts.append(count)

    reader = threading.Thread(target=read)
    reader.start()
    swaps = 0
    try:
        for _ in range(8):
            number = rig.inputs
            rig.add(2 * number, 2 * number + 1)
            while handle.status().streams["rows"].epoch < rig.inputs - 1:
                assert not handle.wait(0.02)
            swaps += compact(rig, grace_s=0.2).folders
    finally:
        done.set()
        reader.join()
        handle.stop()
        handle.await_termination()
    assert wrong == []
    assert swaps > 3
    assert counts
    rig.run()
    assert rows(rig) == rig.rows
