"""The demo as a newcomer runs it, and as it is interrupted; its outputs are looked at again, by other means."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import holdfast as hf
from holdfast.demo.show import FAST_KILLS
from support import eventually

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]  # its processes start Spark, ten times


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast", "demo", "shop", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module", name="folder")
def folder_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module", name="outcome")
def outcome_fixture(folder: Path) -> dict[str, Any]:
    process = start(folder, "--fast", "--seed", "11", "--json")
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    return dict(json.loads(out)["result"])


def events_of(folder: Path) -> list[str]:
    """Return every event in the order of the files, with its copies."""
    lines = [line for path in sorted((folder / "shop/input").iterdir()) for line in path.read_text().splitlines()]
    return [json.loads(line)["event"] for line in lines]


def test_holdfast_comes_through(outcome: dict[str, Any]) -> None:
    assert outcome["ok"] is True
    assert outcome["jobs"]["holdfast"]["ok"] is True
    assert outcome["seed"] == 11


def test_both_were_really_killed(outcome: dict[str, Any], folder: Path) -> None:
    for job in ("holdfast", "plain"):
        kills = [kill for kill in outcome["kills"] if kill["job"] == job]
        assert len(kills) == outcome["jobs"][job]["killed"] == FAST_KILLS
        assert all(kill["processes"] >= 2 for kill in kills)  # Python and Java at least
        assert len({kill["pid"] for kill in kills}) == FAST_KILLS
        assert len(list((folder / "shop/logs").glob(f"{job}-*.log"))) == FAST_KILLS + 1


def test_a_bug_was_seen_taken_back_and_fixed(outcome: dict[str, Any], folder: Path) -> None:
    told = outcome["rewind"]
    assert told["ok"] is True
    due = set(events_of(folder))
    assert len(due) == told["fixed"]["parquet"]["due"] == told["buggy"]["parquet"]["due"]
    for place in ("parquet", "sqlite"):
        assert told["buggy"][place]["doubled"] > 0
        assert told["rewound"][place]["found"] == len(set(events_of(folder)[: outcome["events"]])) < len(due)
        assert told["fixed"][place] == {"found": len(due), "due": len(due), "lost": 0, "doubled": 0, "wrong": 0}
    assert told["buggy"]["totals"]["wrong"] > 0
    assert told["buggy"]["totals"]["cents"] > 0
    assert told["fixed"]["totals"]["wrong"] == told["fixed"]["totals"]["cents"] == 0
    streams = {each["stream"]: each for each in told["plan"]["streams"]}
    assert streams.keys() == {"orders", "totals"}
    new = told["buggy"]["parquet"]["found"] - told["rewound"]["parquet"]["found"]
    assert streams["orders"]["rows"] == new
    assert {sink["action"] for each in streams.values() for sink in each["sinks"]} == {"take back"}
    assert [path.name for path in sorted((folder / "shop/logs").glob("[bf]*.log"))] == ["buggy-1.log", "fixed-1.log"]


def test_the_repository_tells_of_the_rewind(outcome: dict[str, Any], folder: Path) -> None:
    repository = hf.open_repository(str(folder / "shop/checkpoints/orders"))
    lineage = hf.repository.Lineage.load(repository)
    assert lineage.current == outcome["rewind"]["timeline"] > outcome["rewind"]["plan"]["timeline"]
    base = outcome["rewind"]["plan"]["checkpoint"]
    later = [
        each for each in hf.Checkpoints(repository).all() if each.checkpoint >= base and each.status == "restorable"
    ]
    held = {each.checkpoint: lineage.holds_checkpoint(each.timeline, each.checkpoint) for each in later}
    assert held.pop(base)
    assert set(held.values()) == {False, True}  # those of the bug are abandoned, those of the fix are not


def test_the_outputs_of_holdfast_hold_each_order_once(outcome: dict[str, Any], folder: Path) -> None:
    due = sorted(set(events_of(folder)))
    files = ds.dataset(folder / "shop/holdfast/orders", format="parquet", partitioning="hive")
    assert sorted(files.to_table(columns=["event"])["event"].to_pylist()) == due
    with closing(sqlite3.connect(folder / "shop/holdfast/shop.db")) as shop:
        assert [event for (event,) in shop.execute("SELECT event FROM orders ORDER BY event")] == due
        sums = "SELECT day, category, count(*), sum(cents) FROM orders GROUP BY 1, 2 ORDER BY 1, 2"
        totals = "SELECT day, category, orders, cents FROM totals ORDER BY 1, 2"
        assert shop.execute(totals).fetchall() == shop.execute(sums).fetchall()


def test_what_it_says_of_plain_spark_is_what_lies_there(outcome: dict[str, Any], folder: Path) -> None:
    told, due = outcome["jobs"]["plain"], len(set(events_of(folder)[: outcome["events"]]))  # it ran before the bug
    files = ds.dataset(folder / "shop/plain/orders", format="parquet")
    assert files.count_rows() == told["parquet"]["found"] == due + told["parquet"]["doubled"]
    with closing(sqlite3.connect(folder / "shop/plain/shop.db")) as shop:
        (rows,) = shop.execute("SELECT count(*) FROM orders").fetchone()
    assert rows == told["sqlite"]["found"] == due + told["sqlite"]["doubled"]
    assert told["parquet"]["lost"] == told["sqlite"]["lost"] == 0


def test_it_leaves_a_repository_to_look_at(outcome: dict[str, Any], folder: Path) -> None:
    repository = hf.open_repository(str(folder / "shop/checkpoints/orders"))
    ids = [each.checkpoint for each in hf.Checkpoints(repository).all() if each.status == "restorable"]
    assert len(ids) >= 2
    assert hf.verify(repository).ok
    assert hf.diff(repository, ids[0], ids[-1]).summary()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_its_workers_and_says_where_things_are(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "--fast")
    _wait_for_workers(process, tmp_path)
    assert list(tmp_path.glob("shop/logs/plain-1.log"))
    process.send_signal(number)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert "Interrupted" in out
    assert "shop" in out
    assert _workers(tmp_path) == []


def test_workers_die_with_a_demo_that_is_killed(tmp_path: Path) -> None:
    """Their Java too, and at once: not because they had finished their work."""
    process = start(tmp_path, "--fast")
    _wait_for_workers(process, tmp_path)
    time.sleep(1)  # Java is starting now
    sessions = set(_workers(tmp_path))
    assert len(_alive_in(sessions)) >= 2
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    eventually(lambda: not _alive_in(sessions))
    assert not list(tmp_path.glob("shop/*/shop.db"))  # no worker got as far as its first output


def test_a_worker_that_fails_by_itself_ends_the_demo_with_its_last_words(tmp_path: Path) -> None:
    process = start(tmp_path, "--fast", "--json")
    products = tmp_path / "shop/products.json"
    while not products.exists() and process.poll() is None:
        time.sleep(0.001)
    products.unlink()  # what the jobs need is gone before Spark is up
    out, err = process.communicate()
    assert process.returncode == 2, out + err
    failure = json.loads(out)["error"]
    assert failure["kind"] == "DemoFailed"
    assert "products.json" in failure["message"]
    assert "ended with exit code 1" in failure["message"]
    assert ".log" in failure["next"]
    assert _workers(tmp_path) == []


def _wait_for_workers(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until both workers of a demo run; a demo that ends before that has failed."""
    eventually(lambda: len(_workers(folder)) >= 2 or process.poll() is not None)
    assert process.poll() is None, process.communicate()


def _alive_in(sessions: set[int]) -> list[int]:
    """Find the live processes of these sessions: each worker leads one, and its Java is in it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, session, *_ = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(session) in sessions and state not in "ZX":
            found.append(int(entry.name))
    return found


def _workers(folder: Path) -> list[int]:
    """Find the workers of the demo that was started here."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"holdfast.demo.worker" in words and str(folder / "shop").encode() in words:
            found.append(int(entry.name))
    return found
