"""Real processes, killed and paused: nothing lost, nothing twice, and a zombie changes nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults import drivers
from holdfast.epoch import POINTS
from holdfast.errors import Locked, StreamFailed
from holdfast.testing import Crashed
from pgfixture import server
from sparkfixture import session

SCRIPT = Path(__file__).with_name("drivers.py")


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session()


def start(verb: str, environment: dict[str, str] | None = None, **spec: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), verb, json.dumps(spec)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | (environment or {}),
    )


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes] | None = None, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        assert process is None or process.poll() is None, "the driver ended by itself"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """The processes below one, found by their parents."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, pending = [], [pid]
    while pending:
        below = parents.get(pending.pop(), [])
        found += below
        pending += below
    return found


def jvm_of(pid: int) -> int:
    for child in children(pid):
        try:
            if b"java" in (Path("/proc") / str(child) / "cmdline").read_bytes().split(b"\0")[0]:
                return child
        except OSError:
            continue
    raise AssertionError("no JVM")


def lives(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_drivers_killed_at_random_moments_lose_nothing_and_double_nothing(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A query that gives other rows each time it runs; every sink ends up with the same, the dead letter with the rest.

    A round counts only if it struck after the first prepare. KILLS says how many rounds. The next driver starts its
    Spark while the last one runs, and waits for its turn: that saves most of the time.
    """
    kills = int(os.environ.get("KILLS", "4"))
    dsn = None
    if "KILLS" in os.environ:  # a soak has the time for more sinks
        dsn = server().dsn(server().fresh_database())
    rig = drivers.rigged_with_dead_letter(spark, tmp_path, dsn)
    points = tmp_path / "points"
    points.touch()

    def standby(number: int) -> tuple[subprocess.Popen[bytes], Path]:
        go = tmp_path / f"go-{number}"
        return start("run", folder=str(tmp_path), dsn=dsn, go=str(go)), go

    struck: Counter[str] = Counter()
    process, go = standby(0)
    try:
        for number in range(1, kills + 1):
            killed, (process, began) = process, _let_go(process, go, points, rig)
            process, go = standby(number)
            until(lambda began=began: "prepared" in _since(points, began), killed)
            for _ in range(random.randrange(10)):  # most of the time an epoch is under way
                feed(rig, 1)
                time.sleep(random.uniform(0, 0.3))
            jvm = jvm_of(killed.pid)
            killed.kill()
            killed.wait()
            struck[_since(points, began)[-1]] += 1
            wait_for_the_lock(rig, jvm)
            with capsys.disabled():
                print(f"\rkill {number} of {kills}, after {_since(points, began)[-1]!r:16}", end="", flush=True)
    finally:
        process.kill()
        process.wait()
    rig.run()
    rows = [target.visible(spark, "n text") for target in rig.targets]
    with capsys.disabled():
        print(f"\nwhere the kills struck: {dict(struck.most_common())}; {len(rig.rows)} rows given")
    assert rig.dead is not None
    dead = rig.dead.visible(spark, "n text")
    assert all(text < "c" for _, text in rows[0])
    assert all(text >= "c" for _, text in dead)
    assert sorted(n for n, _ in [*rows[0], *dead]) == sorted(rig.rows)
    assert all(each == rows[0] for each in rows)


def _let_go(
    process: subprocess.Popen[bytes], go: Path, points: Path, rig: drivers.Rig
) -> tuple[subprocess.Popen[bytes], int]:
    began = len(points.read_text().splitlines())
    feed(rig, 2)
    go.touch()
    return process, began


def _since(points: Path, began: int) -> list[str]:
    return points.read_text().splitlines()[began:] or ["nothing"]


def wait_for_the_lock(rig: drivers.Rig, jvm: int) -> None:
    """The JVM of a killed driver may write on for seconds: its lock holds until it is gone, and no longer."""
    end = time.monotonic() + 120
    while True:
        alive = lives(jvm)
        try:
            rig.pipeline().start(rig.spark, available_now=True, reach=_dies).await_termination()
        except Locked as locked:
            assert locked.pid == jvm
            assert time.monotonic() < end
            time.sleep(0.1)
        except (Crashed, StreamFailed):
            assert not alive or not lives(jvm)
            return
        else:
            return


def _dies(point: str) -> None:
    raise Crashed(point)


def feed(rig: drivers.Rig, files: int) -> bool:
    for _ in range(files):
        rig.add(*range(len(rig.rows), len(rig.rows) + 5))
    return True


def test_a_driver_that_was_paused_at_any_point_changes_nothing_and_ends_fenced(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It is stopped, its JVM too; another takes over and finishes; then it wakes up."""
    points = [point for point in POINTS if point not in ("aborted", "discarded")]
    rigs = {point: drivers.rigged(spark, tmp_path / point.replace(" ", "-")) for point in points}
    for rig in rigs.values():
        rig.add(1, 2)
        rig.add(3, 4)
    zombie = start("pause", folder=str(tmp_path), points=points)
    try:
        for point, rig in rigs.items():
            until(lambda rig=rig: (rig.folder / "paused").exists() and _is_stopped(zombie.pid), zombie)
            jvm = jvm_of(zombie.pid)
            os.kill(jvm, signal.SIGSTOP)
            rig.run(shared=True)
            rows = [target.visible(spark, "n text") for target in rig.targets]
            assert all([n for n, _ in each] == [1, 2, 3, 4] for each in rows), point
            os.kill(jvm, signal.SIGCONT)
            os.kill(zombie.pid, signal.SIGCONT)
            until(lambda rig=rig: (rig.folder / "ended").exists() and (rig.folder / "ended").read_text() != "")
            assert (rig.folder / "ended").read_text() == "Fenced", point
            assert [target.visible(spark, "n text") for target in rig.targets] == rows, point
            rig.add(5)
            rig.run(shared=True)  # and the pipeline goes on
            assert all([n for n, _ in target.visible(spark, "n text")] == [1, 2, 3, 4, 5] for target in rig.targets)
    finally:
        zombie.kill()
        zombie.wait()


def _is_stopped(pid: int) -> bool:
    return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


@pytest.fixture
def cluster() -> Iterator[tuple[str, str]]:
    """A standalone master and two workers, from the pip package."""
    import pyspark

    home = Path(pyspark.__file__).parent
    mark = f"cluster-{uuid.uuid4().hex}"
    environment = os.environ | {"HOLDFAST_TEST_CLUSTER": mark, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}
    port = _free_port()
    command = [str(home / "bin/spark-class")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    master = "org.apache.spark.deploy.master.Master"
    worker = "org.apache.spark.deploy.worker.Worker"
    at = f"spark://127.0.0.1:{port}"
    ui = ["--webui-port", "0"]
    processes = [subprocess.Popen([*command, master, "--host", "127.0.0.1", "--port", str(port), *ui], **quiet)]
    try:
        until(lambda: _listens(port), processes[0])
        for _ in range(2):
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", *ui]
            processes.append(subprocess.Popen([*command, worker, *options, at], **quiet))
        yield at, mark
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(120)


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_an_executor_killed_between_two_prepares_leaves_all_sinks_with_the_same_rows(
    cluster: tuple[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    master, mark = cluster
    rig = drivers.Rig(spark, tmp_path, [])
    rig.add(*range(50))
    rig.add(*range(50, 100))
    driver = start("executor", {"HOLDFAST_TEST_CLUSTER": mark}, folder=str(tmp_path), master=master)
    try:
        driver.wait(400)
    finally:
        driver.kill()
        driver.wait()
    result = json.loads((tmp_path / "result").read_text())
    assert len(result["killed"]) == 1
    first, second = result["rows"]
    assert [n for n, _ in first] == list(range(100))
    assert first == second
