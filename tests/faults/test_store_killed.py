"""Real drivers with their repository on S3, killed with SIGKILL: no row is lost, and none counts twice."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.storedriver import rigged
from pgfixture import server
from rig import Rig
from s3fixture import S3Place
from s3spark import connect
from sparkfixture import session

SCRIPT = Path(__file__).with_name("storedriver.py")


def test_drivers_killed_at_random_moments_lose_nothing_and_double_nothing(s3: S3Place, tmp_path: Path) -> None:
    """The Python process of each driver is killed; its JVM goes on for seconds, while the next driver takes over.

    The next driver starts its Spark while the last one runs, and waits for its turn.
    """
    kills = int(os.environ.get("KILLS", "3"))
    spark = session()
    connect(spark, s3)
    pg = server()
    about = {"folder": str(tmp_path), "root": s3.url("pipelines"), "dsn": pg.dsn(pg.fresh_database())}
    rig = rigged(spark, **about)
    points = tmp_path / "points"
    points.touch()
    process, go = _standby(about, 0)
    try:
        for number in range(1, kills + 1):
            began = len(points.read_text())
            go.touch()
            current, (process, go) = process, _standby(about, number)
            _feed_until(rig, lambda began=began: "prepared" in points.read_text()[began:], current)
            for _ in range(random.randrange(1, 10)):
                rig.add_more(1)
                time.sleep(random.uniform(0, 0.3))
            assert current.poll() is None, "the driver ended by itself"
            current.kill()
            current.wait()
    finally:
        process.kill()
        process.wait()
    rig.pipeline().run(spark, available_now=True, checkpoint_every=None, take_over=True)
    groups = {k: [n for n in rig.rows if n % 3 == k] for k in range(3)}
    expected = [(k, sum(found), len(found)) for k, found in groups.items() if found]
    assert rig.targets[0].visible(spark, "k total rows") == expected


def test_a_start_waits_until_a_killed_driver_has_been_silent(s3: S3Place, tmp_path: Path) -> None:
    spark = session()
    connect(spark, s3)
    pg = server()
    about = {"folder": str(tmp_path), "root": s3.url("pipelines"), "dsn": pg.dsn(pg.fresh_database())}
    rig = rigged(spark, **about)
    points = tmp_path / "points"
    points.touch()
    process, go = _standby(about, 0)
    try:
        go.touch()
        _feed_until(rig, lambda: "committed" in points.read_text(), process)
    finally:
        process.kill()
        process.wait()
    began = time.monotonic()
    rig.pipeline().run(spark, available_now=True, checkpoint_every=None)
    assert time.monotonic() - began > 15  # the last sign was at most ten seconds old
    assert sum(rows for _, _, rows in rig.targets[0].visible(spark, "k total rows")) == len(rig.rows)


def _standby(about: dict[str, str], number: int) -> tuple[subprocess.Popen[bytes], Path]:
    go = Path(about["folder"]) / f"go-{number}"
    spec = {**about, "go": str(go), "take_over": True}
    log = (Path(about["folder"]) / f"driver-{number}.log").open("wb")
    with log:
        return subprocess.Popen([sys.executable, str(SCRIPT), json.dumps(spec)], stdout=log, stderr=log), go


def _feed_until(rig: Rig, condition: object, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 200
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        if process.poll() is not None:
            logs = sorted(rig.folder.glob("driver-*.log"))
            pytest.fail("the driver ended by itself: " + "\n".join(each.read_text()[-3000:] for each in logs))
        rig.add_more(1)
        time.sleep(0.3)
