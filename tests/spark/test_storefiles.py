"""The checkpoint file manager for object stores, in the JVM, on a real S3 server."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from faultproxy import Fault, FaultProxy
from holdfast.errors import StorageFailed
from holdfast.repository.objectstore import ObjectRepository
from holdfast.spark import adapter
from holdfast.spark.s3a import s3a_settings
from holdfast.sparkfiles.storefolder import hadoop_root
from s3fixture import S3Place
from s3spark import connect


class Files:
    """The file manager of a place on S3."""

    def __init__(self, spark: SparkSession, repository: ObjectRepository) -> None:
        self.spark, self.repository = spark, repository
        self.root = hadoop_root(repository)
        adapter.serve_root(spark, self.root)
        self.jvm: Any = spark._jvm
        self.ours = adapter.StoreFiles(spark, f"{self.root}/logs")
        self.manager = self.ours._manager

    def path(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}")

    def create(self, name: str, *, overwrite: bool = False) -> Any:
        return self.manager.createAtomic(self.path(name), overwrite)


@pytest.fixture
def files(spark: SparkSession, s3: S3Place) -> Iterator[Files]:
    connect(spark, s3)
    adapter.set_for_bucket(spark, s3.bucket, s3a_settings())
    before = adapter.setting(spark, adapter.FILE_MANAGER)
    yield Files(spark, ObjectRepository(s3.url("root")))
    _restore(spark, before)


@pytest.fixture
def faulty(spark: SparkSession, s3: S3Place, s3_faults: FaultProxy) -> Iterator[Files]:
    """The connector behind the proxy; Holdfast's own client too."""
    connect(spark, s3, s3_faults.endpoint)
    before = adapter.setting(spark, adapter.FILE_MANAGER)
    yield Files(spark, ObjectRepository(s3.url("root")))
    _restore(spark, before)


def _restore(spark: SparkSession, before: str | None) -> None:
    for name in (adapter.FILE_MANAGER, "spark.holdfast.store.roots", "spark.holdfast.store.others"):
        spark.conf.unset(name)
    if before is not None:
        spark.conf.set(adapter.FILE_MANAGER, before)


def test_an_entry_of_a_log_is_one_conditional_put_and_is_never_replaced(files: Files) -> None:
    assert files.ours.is_ours
    assert files.ours.write("0", b"first")
    assert files.repository.read("logs/0") == b"first"
    assert not files.ours.write("0", b"second")
    assert files.repository.read("logs/0") == b"first"
    assert files.ours.write("0", b"first")  # equal bytes: written, perhaps by a request whose answer was lost


def test_an_own_entry_and_the_absence_of_the_next_one_are_known(faulty: Files, s3_faults: FaultProxy) -> None:
    """Spark asks for each entry before it writes it, and reads it right after: that would be five round trips."""
    manager = faulty.manager
    assert faulty.ours.write("8", b"eight")
    s3_faults.reset()
    assert not manager.exists(faulty.path("logs/9"))
    assert not manager.exists(faulty.path("logs/9.compact"))
    assert manager.exists(faulty.path("logs/8"))
    assert faulty.ours.read("8") == b"eight"
    stream = manager.open(faulty.path("logs/8"))
    stream.seek(3)
    assert (stream.getPos(), stream.read(), stream.available()) == (3, ord("h"), 1)
    with pytest.raises(Py4JJavaError, match="EOFException"):
        stream.seek(6)
    assert s3_faults.seen == []
    assert not manager.exists(faulty.path("logs/10"))
    assert not manager.exists(faulty.path("logs/7"))
    assert not manager.exists(faulty.path("other/9"))
    assert {seen.kind for seen in s3_faults.seen} == {"HEAD", "LIST"}


@pytest.mark.parametrize("name", ["9", "9.compact"])
def test_the_next_entry_of_another_driver_is_never_replaced(files: Files, name: str) -> None:
    assert files.ours.write("8", b"eight")
    files.repository.put_new(f"logs/{name}", b"theirs")
    assert not files.manager.exists(files.path(f"logs/{name}"))
    assert not files.ours.write(name, b"ours")
    assert files.ours.read(name) == b"theirs"


def test_entries_that_are_large_or_long_ago_are_read_from_the_store(files: Files) -> None:
    large = b"x" * ((1 << 16) + 1)
    assert files.ours.write("0", large)
    for number in range(1, 18):
        assert files.ours.write(str(number), str(number).encode())
    files.repository.delete_all(f"logs/{number}" for number in range(18))
    assert [files.ours.read(str(number)) for number in (0, 1)] == [None, None]
    assert [files.ours.read(str(number)) for number in (2, 17)] == [b"2", b"17"]


def test_nothing_is_visible_before_close_and_the_first_end_is_final(files: Files) -> None:
    stream = files.create("logs/0")
    stream.write(b"bytes")
    assert files.repository.list("logs") == []
    stream.cancel()
    stream.close()
    stream.close()
    assert files.repository.list("logs") == []
    stream = files.create("logs/1")
    stream.write(b"bytes")
    stream.close()
    files.repository.delete("logs/1")
    stream.close()
    stream.cancel()
    assert files.repository.list("logs") == []
    with pytest.raises(Py4JJavaError, match="closed or cancelled"):
        stream.write(b"more")


def test_a_close_that_failed_is_final(files: Files) -> None:
    assert files.ours.write("0", b"first")
    stream = files.create("logs/0")
    stream.write(b"other")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        stream.close()
    files.repository.delete("logs/0")
    stream.close()
    assert files.repository.list("logs") == []


def test_folders_do_not_exist_and_nothing_is_deleted(files: Files) -> None:
    manager = files.manager
    assert list(manager.list(files.path("missing"))) == []
    manager.mkdirs(files.path("made"))
    assert not manager.exists(files.path("made"))
    assert files.repository.flat() == []
    files.ours.write("0", b"kept")
    manager.delete(files.path("logs/0"))
    manager.delete(files.path("logs"))
    assert manager.exists(files.path("logs/0"))
    assert manager.exists(files.path("logs"))
    assert [str(each.getPath().getName()) for each in manager.list(files.path("logs"))] == ["0"]
    assert not manager.isLocal()
    assert str(manager.createCheckpointDirectory().toString()) == f"{files.root}/logs"


def test_files_that_were_read_do_not_stay_in_the_memory_of_java(files: Files) -> None:
    """The default stream of newer connectors has a cache of up to 2 GB, which is more than the heap of many drivers."""
    data, number = os.urandom(4 << 20), 40
    for each in range(number):
        files.repository.put_new(f"state/{each}", data)

    def used() -> int:
        java = files.jvm.java.lang
        java.System.gc()
        return int(java.Runtime.getRuntime().totalMemory() - java.Runtime.getRuntime().freeMemory())

    before = used()
    for each in range(number):
        stream = files.manager.open(files.path(f"state/{each}"))
        assert files.jvm.org.apache.commons.io.IOUtils.consume(stream) == len(data)
        stream.close()
    assert used() - before < number * len(data) / 4


@pytest.mark.parametrize("size", [0, 1, (8 << 20) - 1, (8 << 20) + 1, 20 << 20])
def test_files_of_any_size_are_written_whole(files: Files, size: int, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * (size >> 20) + b"x" * (size % (1 << 20))
    source = tmp_path / "data"
    source.write_bytes(data)
    name = "state/0/0/1_a.zip"
    before = parts()
    stream = files.create(name, overwrite=True)
    files.jvm.java.nio.file.Files.copy(source_path(files, source), stream)
    assert len(parts() - before) == (size > 8 << 20)  # on a disk
    stream.close()
    assert parts() == before
    assert files.repository.read(name) == data
    if size:
        again = files.create(name)
        files.jvm.java.nio.file.Files.copy(source_path(files, source), again)
        again.close()  # equal, also where it was compared with bytes on a disk


def parts() -> set[Path]:
    return set(Path("/tmp").glob("holdfast-*.part"))  # noqa: S108 - where Java has its temporary files


def source_path(files: Files, path: Path) -> Any:
    return files.jvm.java.io.File(str(path)).toPath()


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_of_a_conditional_put_leaves_the_truth(faulty: Files, s3_faults: FaultProxy, fault: Fault) -> None:
    s3_faults.fail(fault, "CREATE", key="logs/")
    assert faulty.ours.write("0", b"ours")
    assert faulty.repository.read("logs/0") == b"ours"
    s3_faults.fail(fault, "CREATE", key="logs/")
    assert not faulty.ours.write("0", b"another")
    assert faulty.repository.read("logs/0") == b"ours"


@pytest.fixture
def impatient(spark: SparkSession, s3: S3Place, s3_faults: FaultProxy) -> Iterator[Files]:
    """The connector behind the proxy. It waits for an answer for half a second."""
    connect(spark, s3, s3_faults.endpoint)
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in {"connection.timeout": "500ms", "attempts.maximum": "1", "retry.limit": "1"}.items():
        conf.set(f"fs.s3a.bucket.{s3.bucket}.{name}", value)
    jvm: Any = spark._jvm
    client = jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig
    client.setMinimumOperationDuration(jvm.java.time.Duration.ofMillis(100))  # its own minimum is 15 s
    before = adapter.setting(spark, adapter.FILE_MANAGER)
    yield Files(spark, ObjectRepository(s3.url("root")))
    client.resetMinimumOperationDuration()
    _restore(spark, before)


def test_an_entry_whose_answers_time_out_is_read_back(impatient: Files, s3_faults: FaultProxy) -> None:
    """For Java, a timeout is a kind of interruption. But nothing was interrupted, and the entry may be written."""
    s3_faults.hang_s = 1.5
    s3_faults.fail(Fault.HANG, "CREATE", key="logs/", chance=1.0)
    assert impatient.ours.write("0", b"ours")
    assert not impatient.ours.write("0", b"another")
    assert impatient.repository.read("logs/0") == b"ours"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_whose_bytes_are_gone_is_not_written_in_part(files: Files, overwrite: bool, tmp_path: Path) -> None:
    """The bytes of a large file are on a disk of the machine, which may fail while they are sent."""
    source = tmp_path / "data"
    source.write_bytes(os.urandom(9 << 20))
    before = parts()
    stream = files.create("logs/0", overwrite=overwrite)
    files.jvm.java.nio.file.Files.copy(source_path(files, source), stream)
    (spooled,) = parts() - before
    spooled.unlink()
    with pytest.raises(Py4JJavaError, match="NoSuchFileException"):
        stream.close()
    assert files.repository.list("logs") == []


@pytest.mark.parametrize("fault", [Fault.DROP_BEFORE, Fault.ANSWER_503])
def test_a_write_that_never_succeeds_is_an_error_and_writes_nothing(
    faulty: Files, s3_faults: FaultProxy, fault: Fault
) -> None:
    s3_faults.fail(fault, "CREATE", key="logs/", chance=1.0)
    stream = faulty.create("logs/0")
    stream.write(b"lost")
    with pytest.raises(Py4JJavaError):
        stream.close()
    s3_faults.clear()
    assert faulty.repository.list("logs") == []


def test_other_paths_are_left_to_sparks_own_manager(files: Files, s3: S3Place, tmp_path: Path) -> None:
    own = adapter.StoreFiles(files.spark, f"file:{tmp_path}")
    assert not own.is_ours
    assert own._manager.isLocal()
    assert own.write("0", b"first")
    assert (tmp_path / "0").read_bytes() == b"first"
    own._manager.delete(files.jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/0"))
    assert not (tmp_path / "0").exists()
    beside = adapter.StoreFiles(files.spark, f"s3a://{s3.bucket}/root-of-another")
    assert not beside.is_ours


def test_a_file_system_without_conditional_writes_refuses(files: Files, tmp_path: Path) -> None:
    """The condition is mandatory: a local file system does not know it."""
    adapter.serve_root(files.spark, f"file:{tmp_path}")
    manager = adapter.StoreFiles(files.spark, f"file:{tmp_path}")
    assert manager.is_ours
    with pytest.raises(StorageFailed, match=r"fs\.option\.create\.conditional\.overwrite"):
        manager.write("0", b"bytes")
    assert not (tmp_path / "0").exists()
