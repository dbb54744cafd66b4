"""The lock of a running driver: held until it ends, and refused with a typed error."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import Locked, StorageFailed
from holdfast.spark import adapter
from rig import FilesTarget, Rig


def test_a_refused_second_start_does_not_drop_the_lock(spark: SparkSession, tmp_path: Path) -> None:
    """To close any descriptor of the file lets go of all locks that a process has on it."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    lock = rig.repository / "lease" / "os.lock"
    probe = (
        "import sys, pathlib; from holdfast.repository.oslock import OsLock; OsLock.acquire(pathlib.Path(sys.argv[1]))"
    )
    with rig.pipeline().start(spark):
        with pytest.raises(Locked):
            rig.run()
        other = subprocess.run([sys.executable, "-c", probe, str(lock)], capture_output=True, text=True, check=False)
    assert "Locked" in other.stderr


def test_a_lock_file_that_cannot_be_opened_is_a_typed_error(spark: SparkSession, tmp_path: Path) -> None:
    """Another user's, or on a disk that is only to be read: Java's error came as it was."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    lock = rig.repository / "lease" / "os.lock"
    lock.mkdir(parents=True)
    with pytest.raises(StorageFailed, match="Is a directory") as caught:
        rig.run()
    assert caught.value.action == "lock"
    lock.rmdir()
    rig.run()


class Channel:
    """A channel of Java's whose lock fails."""

    def __init__(self, fail: Callable[[], object]) -> None:
        self.tryLock = fail
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_lock_that_fails_leaves_no_channel_open(overlaps: bool, spark: SparkSession, tmp_path: Path) -> None:
    """But one whose file this JVM has locked: closing it would let go of that lock."""
    jvm: Any = spark._jvm
    file = jvm.java.io.RandomAccessFile(str(tmp_path / "lock"), "rw")
    again = jvm.java.io.RandomAccessFile(str(tmp_path / "lock"), "rw")
    file.getChannel().tryLock()
    channel = Channel(again.getChannel().tryLock)
    if not overlaps:
        again.close()  # it cannot be locked any more
    opened = SimpleNamespace(getChannel=lambda: channel)
    io = SimpleNamespace(io=SimpleNamespace(RandomAccessFile=lambda *_: opened), lang=jvm.java.lang)
    session: Any = SimpleNamespace(_jvm=SimpleNamespace(java=io))
    try:
        with pytest.raises(Locked if overlaps else StorageFailed):
            adapter.JvmLock.acquire(session, tmp_path / "lock", "the lease")
    finally:
        file.close()
        again.close()
    assert channel.closed is not overlaps
