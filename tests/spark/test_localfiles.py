"""The file system that starts no processes: the same files as Hadoop's own, and where it is in force."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from holdfast.spark import localfiles
from holdfast.spark.adapter import FAST_FILES, FILE_MANAGER
from holdfast.spark.localfiles import CLASS, SOURCES
from rig import FilesTarget, Rig
from tools.jar import packed_sources

HADOOPS = "org.apache.hadoop.fs.LocalFileSystem"


def test_the_jar_is_built_from_the_sources_beside_it() -> None:
    assert packed_sources() == {each.name: each.read_bytes() for each in SOURCES}, "run `make jar`"


def made(spark: SparkSession, name: str) -> Any:
    """Return a new file system of a class."""
    jvm: Any = spark._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    found = {HADOOPS: jvm.org.apache.hadoop.fs.LocalFileSystem, CLASS: jvm.holdfast.LocalFiles}[name]()
    found.initialize(jvm.java.net.URI.create("file:///"), configuration)
    return found


def test_files_are_made_as_hadoop_makes_them(spark: SparkSession, tmp_path: Path) -> None:
    """Names, bytes, checksum files and permissions, sticky bit and all."""
    jvm: Any = spark._jvm
    seen = []
    for name in (HADOOPS, CLASS):
        files, top = made(spark, name), tmp_path / name
        out = files.create(jvm.org.apache.hadoop.fs.Path(f"file:{top}/a/b/c"))
        out.write(b"some bytes")
        out.close()
        for mode in ("1777", "0600", "0751"):
            path = jvm.org.apache.hadoop.fs.Path(f"file:{top}/{mode}")
            files.mkdirs(path)
            files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission(mode))
            assert oct((top / mode).stat().st_mode).endswith(mode)
        seen.append({str(each.relative_to(top)): oct(each.stat().st_mode) for each in top.rglob("*")})
        assert (top / "a/b/c").read_bytes() == b"some bytes"
    assert seen[0] == seen[1]
    assert "a/b/.c.crc" in seen[0]


@pytest.mark.parametrize("name", [HADOOPS, CLASS])
def test_a_folder_that_is_shared_by_its_group_stays_so(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """The command leaves the bit alone, the system's call would not; all below would then be of another group."""
    jvm: Any = spark._jvm
    tmp_path.chmod(0o2775)
    made(spark, name).mkdirs(jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/a/b"))
    assert oct((tmp_path / "a" / "b").stat().st_mode) == "0o42755"


def test_no_settings_where_a_class_path_cannot_name_the_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localfiles, "JAR", Path("/with:colon/localfiles.jar"))
    assert localfiles.local_files() == {}


def test_an_epochs_folder_is_for_whom_hadoop_would_make_it(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop has a umask of its own; ours must not keep others from reading, nor let them write."""
    for umask in (0o077, 0o000):
        place = tmp_path / oct(umask)
        (place / "out").mkdir(parents=True)
        (place / "out").chmod(0o2775)
        rig = Rig(spark, place, [FilesTarget(place / "out")])
        rig.add(1)
        before = os.umask(umask)
        try:
            rig.run()
        finally:
            os.umask(before)
        (folder,) = (place / "out").glob("hf_epoch=*")
        assert oct(folder.stat().st_mode).endswith("755")


def test_a_partition_that_is_named_like_a_file_is_none(spark: SparkSession, tmp_path: Path) -> None:
    target = FilesTarget(tmp_path / "out", partition_by="text")
    rig = Rig(spark, tmp_path, [target], lambda df: df.withColumn("text", f.lit("a.parquet")))
    rig.add(1, 2)
    rig.run()
    assert rig.visible() == [[1, 2]]


@pytest.mark.parametrize("error", [OSError("encrypted"), pyarrow.ArrowInvalid("no footer")], ids=["OSError", "Arrow"])
def test_spark_counts_rows_of_files_that_tell_us_nothing(
    error: Exception, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is with encrypted ones, for which Spark has the keys."""

    def silent(_: object) -> None:
        raise error

    monkeypatch.setattr(pyarrow.parquet, "read_metadata", silent)
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1, 2, 3)
    rig.run()
    assert rig.visible() == [[1, 2, 3]]
    (record,) = (tmp_path / "out").glob("hf_epoch=*/_holdfast.key")
    assert '"rows":3' in record.read_text().replace(" ", "")


def test_a_file_that_is_not_there_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/none")
    with pytest.raises(Exception, match="NoSuchFile"):
        made(spark, CLASS).setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission("0600"))


PROGRAM = """
import json, sys
from pathlib import Path
import holdfast as hf
{session}
folder = Path(sys.argv[1])
(folder / "in").mkdir()
for n in range(3):
    (folder / "in" / f"{{n}}.json").write_text(json.dumps({{"n": n}}))
pipeline = hf.Pipeline("p", folder / "root")
@pipeline.stream(sinks=[hf.FileSink(folder / "out")])
def s(spark):
    return spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
pipeline.run(spark, available_now=True)
rows = spark.read.parquet(str(folder / "out")).collect()
of = spark._jvm.org.apache.hadoop.fs.Path("file:/").getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
print(json.dumps([sorted(row.n for row in rows), of.getClass().getName()]))
"""
EMBEDDED = "from holdfast.spark.session import embedded\nspark = embedded()"
OWN = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""


def test_the_settings_put_it_in_force(spark: SparkSession) -> None:
    """The session of the tests is made with them."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    found = spark._jvm.org.apache.hadoop.fs.Path("file:/").getFileSystem(configuration)
    assert found.getClass().getName() == CLASS


@pytest.mark.parametrize(("session", "ours"), [(EMBEDDED, True), (OWN, False)], ids=["embedded", "own"])
def test_which_sessions_start_processes(session: str, ours: bool, tmp_path: Path) -> None:
    """A `chmod` before the system's own tells whether anybody called it. Pipelines run on either."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "chmod"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/called"\nexec /bin/chmod "$@"\n')
    script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    program = PROGRAM.format(session=session)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows, name = json.loads(done.stdout.splitlines()[-1])
    assert rows == [0, 1, 2]
    assert (name == CLASS) == ours
    calls = (tmp_path / "called").read_text().splitlines() if (tmp_path / "called").exists() else []
    for place in ("out.staging/", "/offsets/", "/sources/"):
        assert any(place in call for call in calls) == (not ours), (place, calls)


def test_sources_keep_their_log_by_the_setting_of_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    """A source looks for it in the shared session, and after the start of the query has returned."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    rig.add(1)
    for _ in range(5):
        with rig.pipeline().start(spark) as handle:
            query = _query(handle)
            source = query._jsq.streamingQuery().sources().apply(0)
            log = _field(source, "metadataLog")
            assert log.fileManager().getClass().getName() == FAST_FILES[FILE_MANAGER]


def _query(handle: Any) -> Any:
    while (query := handle._streams[0]._query.running) is None:
        pass
    while query._jsq.streamingQuery().sources().isEmpty():
        pass
    return query


def _field(thing: Any, name: str) -> Any:
    field = next(each for each in thing.getClass().getDeclaredFields() if each.getName().endswith(name))
    field.setAccessible(True)
    return field.get(thing)
