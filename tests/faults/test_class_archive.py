"""The archive of classes with real JVMs: made after a clean exit, used at the next start, and never in the way."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from holdfast.spark.class_archive import VARIABLE, is_intact
from holdfast.spark.java_environment import OPTIONS

pytestmark = pytest.mark.jvm

PROGRAM = """
import sys
from pathlib import Path
import holdfast as hf
from pyspark import SparkContext

folder = Path(sys.argv[1])
(folder / "in").mkdir(parents=True)
(folder / "in" / "1.json").write_text('{"n": 1}')
pipeline = hf.Pipeline("p", root=folder / "root")

@pipeline.stream(sinks=[hf.FileSink(folder / "out")])
def rows(spark):
    return spark.readStream.schema("n long").json(str(folder / "in"))

pipeline.run(available_now=True)
java = SparkContext._gateway.proc.pid
mapped = {line.split()[-1] for line in open(f"/proc/{java}/maps") if line.rstrip().endswith(".jsa")}
print("java", java, *(each for each in mapped if not each.endswith("/classes.jsa")), flush=True)
"""
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that lives for seconds need not compile twice
_LIMIT_S = 600  # an archive is written with the lowest priority


def start(archives: Path, work: Path, **variables: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in (OPTIONS, VARIABLE)}
    options = f"{FAST} {variables.pop(OPTIONS, '')}"
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(work)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**inherited, VARIABLE: str(archives), "SPARK_LOCAL_IP": "127.0.0.1", OPTIONS: options, **variables},
    )


def end(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Return the pid of the JVM, and the archives that it used; the process must have succeeded and printed nothing."""
    out, err = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 0, err
    words = out.split()
    assert words[0] == "java"
    assert len(out.splitlines()) == 1
    assert "cds" not in err
    assert "rchive" not in err
    return int(words[1]), words[2:]


def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_two_processes_write_an_archive_at_once_and_the_next_one_starts_from_it(tmp_path: Path) -> None:
    """All have the same user-supplied option, which is kept: it makes the JVM log from where it loads each class."""
    archives = tmp_path / "classes"
    log = tmp_path / "loaded.log"
    options = f"-Xlog:class+load:file={log}"
    started = [start(archives, tmp_path / f"w{number}", SPARK_SUBMIT_OPTS=options) for number in range(2)]
    for java, used in [end(each) for each in started]:
        assert used == []
        until(lambda java=java: has_ended(java))  # type: ignore[misc]
    until(lambda: list(archives.glob("*.jsa")) and not list(archives.glob("*.part*")))
    until(lambda: not list(archives.glob("*.classlist")))
    made = list(archives.iterdir())
    assert len(made) == 1
    assert is_intact(made[0])
    java, used = end(start(archives, tmp_path / "w3", SPARK_SUBMIT_OPTS=options))
    assert [Path(each).parent for each in used] == [archives]
    assert log.read_text().count("source: shared objects file") > 10_000
    until(lambda: has_ended(java))
    assert sorted(archives.iterdir()) == sorted(made)  # the third process wrote none

    newest = Path(used[0])  # now damage it in a way that its name does not show
    found = newest.stat()
    for other in made:
        if other != newest:
            other.unlink()
    newest.chmod(0o644)
    with newest.open("r+b") as file:
        file.write(b"\\0" * 4096)
    newest.chmod(0o444)
    os.utime(newest, ns=(found.st_atime_ns, found.st_mtime_ns))
    _, used = end(start(archives, tmp_path / "w4", SPARK_SUBMIT_OPTS=options))
    assert used == []


def test_the_start_after_a_kill_makes_the_archive_and_the_jvm_of_the_killed_program_ends_at_once(
    tmp_path: Path,
) -> None:
    """The JVM holds the lock of the pipeline, which the next run needs."""
    archives = tmp_path / "classes"
    process = start(archives, tmp_path / "work")
    until(lambda: list((tmp_path / "work" / "out").glob("hf_epoch=*")))
    java = next(each.pid for each in psutil.Process(process.pid).children() if each.name() == "java")
    process.kill()
    process.communicate()
    until(lambda: has_ended(java))
    assert list(archives.glob("*.jsa")) == []
    assert list(archives.glob("*.part*")) == []

    _, used = end(start(archives, tmp_path / "second"))
    assert used == []
    until(lambda: list(archives.glob("*.jsa")) and not list(archives.glob("*.part*")))
    until(lambda: not list(archives.glob("*.classlist")))
    _, used = end(start(archives, tmp_path / "third"))
    assert [Path(each).parent for each in used] == [archives]


def test_it_is_off_where_it_is_turned_off(tmp_path: Path) -> None:
    _, used = end(start(Path("off"), tmp_path / "work", XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert used == []
    assert not (tmp_path / "cache").exists()
