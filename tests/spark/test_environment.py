"""What set-up promises: Spark runs here, and its JVM and our Python keep each other out by the same lock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import Locked
from holdfast.repository import Lease, LocalRepository
from holdfast.repository.oslock import OsLock


def test_a_micro_batch_runs(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("1\n2\n3\n")
    rows: list[int] = []
    stream = spark.readStream.schema("n int").csv(str(tmp_path / "in"))
    query = (
        stream.writeStream.foreachBatch(lambda df, _: rows.extend(row.n for row in df.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert sorted(rows) == [1, 2, 3]


def test_the_jvm_and_python_exclude_each_other_by_one_lock(spark: SparkSession, tmp_path: Path) -> None:
    jvm = spark._jvm
    assert jvm is not None
    repository = LocalRepository(tmp_path)
    repository.put("lease/nothing", b"")
    path = tmp_path / "lease" / "os.lock"
    channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    lock = channel.tryLock()
    assert lock is not None
    with pytest.raises(Locked) as caught:
        Lease.take(repository)
    assert jvm.java.lang.ProcessHandle.current().pid() != os.getpid()
    assert caught.value.pid == os.getpid()  # the Python that the JVM works for: that is who is to be stopped
    lock.release()
    with Lease.take(repository):
        assert channel.tryLock() is None
    lock = channel.tryLock()
    assert lock is not None
    with pytest.raises(Locked):
        OsLock.acquire(path)
    probe = (
        "import sys, pathlib; from holdfast.repository.oslock import OsLock; OsLock.acquire(pathlib.Path(sys.argv[1]))"
    )
    refused = subprocess.run([sys.executable, "-c", probe, str(path)], capture_output=True, text=True, check=False)
    assert f"held by process {caught.value.pid}" in refused.stderr
    channel.close()
