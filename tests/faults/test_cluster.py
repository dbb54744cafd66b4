"""A cluster whose machines share only an S3 server: workers, executors and drivers are killed, paused and replaced.

The driver, each worker and the machine that a driver is moved to have a disk of their own, at the same path. PostgreSQL
is a server on the network, as the sink of both streams.
"""

import importlib.util
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from holdfast.spark.localfiles import JAR
from holdfast.spark.shipping import with_own_jars
from machines import until, why_not
from s3fixture import KEY_ID, SECRET, unavailable
from site_of_machines import Driver, Shop, Site

ROOT = Path(__file__).parents[2]
SUBMIT = Path(pyspark.__file__).parent / "bin/spark-submit"

pytestmark = pytest.mark.jvm
ONCE = {"available_now": True}
NO_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
AT_ONCE = {"take_over": True}  # without waiting until the lease of the last driver has had no beat for long enough


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if why := why_not():
        unavailable(why)
    made = Site()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def shop(site: Site) -> Shop:
    return Shop(site)


def finished(shop: Shop, driver: Driver) -> None:
    assert driver.end().startswith("done"), str(driver)
    shop.check()


def test_a_pipeline_runs_on_machines_that_share_only_a_store(shop: Shop) -> None:
    """Stateless and stateful, with a log in between. Snapshots of state come from maintenance threads on executors."""
    shop.feed(8)
    driver = shop.start(run_options=ONCE)
    finished(shop, driver)
    assert driver.lines[0].startswith("host driver-")
    names = shop.names()
    assert [name for name in names if "/state/" in name and name.endswith(".zip")], names


def page(name: str, kind: str, having: str) -> str:
    """Return the block of a page that has some text."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / "docs" / name).read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if having in block]
    return str(found)


def submitted(shop: Shop, jars: str) -> Driver:
    """Run the program of the page with the command of the page, but with the addresses and jars of this site."""
    (shop.machines[0].root / shop.site.cluster.disk.relative_to("/") / "work/orders.py").write_text(
        page("cluster.md", "python", "# orders.py")
    )
    command = page("cluster.md", "sh", "spark.pyspark.python=/opt/orders")
    command = command.replace("$(holdfast jar --submit)", jars).replace("spark://master:7077", shop.site.cluster.url)
    command = command.replace("/opt/orders/bin/python", sys.executable).replace("=2g", "=512m")
    command = command.replace("export AWS_REGION=eu-central-1", "").replace("spark-submit", f"exec {SUBMIT}")
    more = "--conf spark.driver.host=127.0.0.1 --conf spark.driver.memory=1g --conf spark.cores.max=2"
    command = command.replace("orders.py", f"--conf spark.ui.enabled=false {more} orders.py")
    dsn = shop.site.postgres.network_dsn(shop.database)
    environment = {"BUCKET": f"s3://{shop.bucket}", "DSN": dsn, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return shop.start_command(["sh", "-c", command], 0, environment)


def test_the_program_of_the_page_runs_as_the_page_says(shop: Shop) -> None:
    """With spark-submit in client mode. The connector comes from a folder, so that nothing is downloaded."""
    shop.put({"id": n, "item": "tea" if n % 3 else "cup", "cents": n} for n in range(30))
    driver = submitted(shop, f"--jars {with_own_jars(None)}")
    expected = [("cup", sum(range(0, 30, 3))), ("tea", sum(n for n in range(30) if n % 3))]
    until(lambda: shop.table("SELECT item, cents FROM totals ORDER BY item") == expected or driver.ended, "totals", 400)
    assert shop.table("SELECT item, cents FROM totals ORDER BY item") == expected, str(driver)
    assert shop.table("SELECT count(*) FROM orders") == [(30,)]
    assert KEY_ID not in " ".join(shop.names())


def test_spark_submit_without_the_jar_is_refused_with_the_line(shop: Shop) -> None:
    connector = ",".join(each for each in with_own_jars(None).split(",") if each != str(JAR))
    driver = submitted(shop, f"--jars {connector}")
    until(lambda: driver.ended, f"the end\n{driver}", 400)
    assert f"--jars {JAR}" in str(driver), str(driver)


def test_unfit_executors_are_refused_by_their_host(shop: Shop) -> None:
    """One worker has no obstore, and another one no credentials."""
    cluster = shop.site.cluster
    obstore = Path(str(importlib.util.find_spec("obstore").origin)).parent
    added = [
        cluster.add_worker("without-obstore", hidden=[obstore]),
        cluster.add_worker("without-credentials", environment=NO_CREDENTIALS),
    ]
    try:
        shop.feed(1)
        driver = shop.start(run_options=ONCE, cores=4)
        ended = driver.end()
        assert ended.startswith("ExecutorsUnfit"), ended
        assert "without-obstore: the Python package obstore" in ended
        assert "without-credentials: Java cannot use the object store" in ended
        assert "without-credentials: Python cannot use the object store" in ended
        assert "worker-0" not in ended
        assert SECRET not in str(driver)
        assert shop.table("SELECT count(*) FROM pg_tables WHERE tablename = 'totals'") == [(0,)]
        assert all("/lease/" in f"/{name}" for name in shop.names()), shop.names()  # no event log, nothing of the check
    finally:
        for number in added:
            cluster.kill_worker(number)


def test_a_local_root_on_a_cluster_is_refused_and_s3_is_named(shop: Shop) -> None:
    ended = shop.start(root=str(shop.site.cluster.disk / "root"), run_options=ONCE).end()
    assert ended.startswith("NotSupported"), ended
    assert 'root="s3://' in ended


@pytest.mark.parametrize("victim", ["worker", "executor"])
def test_a_part_of_the_cluster_killed_in_mid_epoch_changes_nothing(shop: Shop, victim: str) -> None:
    shop.feed(6)
    driver = shop.start(run_options=ONCE)
    driver.until("point prepared", 2)
    cluster = shop.site.cluster
    if victim == "worker":
        cluster.kill_worker(0)
        cluster.start_worker(0)
    else:
        cluster.executors()[-1].kill()
    finished(shop, driver)


@pytest.mark.parametrize("point", ["prepared", "decided", "committed"])
def test_a_driver_killed_and_started_on_another_machine_loses_nothing(shop: Shop, point: str) -> None:
    shop.feed(4)
    first = shop.start(0)
    first.until(f"point {point}", 2)
    first.kill()
    shop.feed(2)
    finished(shop, shop.start(1, run_options=ONCE))  # waits for the lease by itself


@pytest.mark.parametrize("point", ["prepared", "decided"])
def test_an_old_driver_that_wakes_up_on_its_machine_changes_nothing(shop: Shop, point: str) -> None:
    shop.feed(4)
    old = shop.start(0, pause_at=point)
    old.until("paused")
    old.pause()
    finished(shop, shop.start(1, run_options={**ONCE, **AT_ONCE}))
    old.resume()
    assert old.end(200).startswith("Fenced"), str(old)
    shop.check()
    shop.feed(1)
    finished(shop, shop.start(1, run_options=ONCE))  # and the pipeline continues


def test_random_kills_lose_nothing_and_double_nothing(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Drivers, executors and whole workers, at random moments; a killed driver goes on elsewhere. KILLS: how often."""
    kills, struck = int(os.environ.get("KILLS", "3")), Counter[str]()
    cluster, machine = shop.site.cluster, 0
    shop.feed(3)
    driver = shop.start(machine, run_options=AT_ONCE)
    for number in range(1, kills + 1):
        seen = len(driver.lines)
        shop.feed(2)
        driver.until("point prepared", sum(line == "point prepared" for line in driver.lines[:seen]) + 1)
        for _ in range(random.randrange(4)):
            shop.feed(1)
            time.sleep(random.uniform(0, 0.5))
        victim = random.choice(["driver", "driver", "executor", "worker"])
        struck[victim] += 1
        with capsys.disabled():
            print(f"\rkill {number} of {kills}: {victim:10}", end="", flush=True)
        if victim == "driver":
            driver.kill()
            machine = 1 - machine
            driver = shop.start(machine, run_options=AT_ONCE if random.random() < 0.8 else {})
        elif victim == "worker":
            killed = random.randrange(2)
            cluster.kill_worker(killed)
            cluster.start_worker(killed)
        elif executors := cluster.executors():
            random.choice(executors).kill()
    driver.kill()
    finished(shop, shop.start(1 - machine, run_options={**ONCE, **AT_ONCE}))
    with capsys.disabled():
        print(f"\n{dict(struck)}; {len(shop.given)} rows: 0 lost, 0 doubled")
