"""Drivers that write to Kafka are killed while a topic grows, and at random moments; so is the broker.

Holdfast loses nothing and doubles nothing. The control is Spark's own writer under the same kills: it doubles rows.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from faults import kafkadrivers
from kafkafixture import broker
from rig import Rig
from sparkfixture import session

SCRIPT = Path(__file__).with_name("kafkadrivers.py")
ROWS = 30_000  # of an epoch: sending them takes longer than noticing that the topic grows


class Killed:
    """A driver that is replaced by the next one whenever it is killed. The next one starts its Spark in advance."""

    def __init__(self, verb: str, rig: Rig, topic: str) -> None:
        self._verb, self._rig, self._topic = verb, rig, topic
        self._number = 0
        self._process, self._go = self._standby()

    def _standby(self) -> tuple[subprocess.Popen[bytes], Path]:
        self._number += 1
        go = self._rig.folder / f"go-{self._verb}-{self._number}"
        spec = {"folder": str(self._rig.folder), "address": broker().address, "topic": self._topic, "go": str(go)}
        words = [sys.executable, str(SCRIPT), self._verb, json.dumps(spec)]
        with (self._rig.folder / f"log-{self._verb}-{self._number}").open("wb") as log:
            return subprocess.Popen(words, stdout=log, stderr=log), go

    def size(self) -> int:
        """How far the topic has grown, including what is not committed."""
        return broker().size(self._topic)

    def strike(self, *, while_growing: bool) -> None:
        """Let the driver run, feed it, and kill it with its JVM."""
        process, before = self._process, self.size()
        self._go.touch()
        self._process, self._go = self._standby()
        self._rig.add_more(ROWS)
        self._until(lambda: self.size() > before, process)
        if not while_growing:
            self._rig.add_more(ROWS)
            time.sleep(random.uniform(0, 2))
        family = [*psutil.Process(process.pid).children(recursive=True), process]
        for each in family:
            each.kill()
        process.wait()
        psutil.wait_procs([each for each in family if isinstance(each, psutil.Process)], timeout=60)

    def finish(self, done: Callable[[], bool]) -> None:
        """Let the last driver write what is left."""
        self._go.touch()
        self._until(done, self._process)

    def close(self) -> None:
        for each in psutil.Process(self._process.pid).children(recursive=True):
            each.kill()
        self._process.kill()
        self._process.wait()

    def _until(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 200
        while not condition():
            assert time.monotonic() < end
            logs = [path.read_text()[-3000:] for path in self._rig.folder.glob(f"log-{self._verb}-*")]
            assert process.poll() is None, f"the driver ended by itself: {logs}"
            time.sleep(0.002)


def numbers(topic: str) -> Counter[int]:
    return Counter(json.loads(value or b"")["n"] for _, value in broker().rows(topic))


def test_drivers_and_the_broker_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """KAFKA_KILLS says how often."""
    kills = int(os.environ.get("KAFKA_KILLS", "4"))
    topic = broker().topic()
    rig = kafkadrivers.rigged(tmp_path, broker().address, topic)
    driver = Killed("holdfast", rig, topic)
    try:
        for number in range(kills):
            driver.strike(while_growing=number % 2 == 0)
            if number % 4 == 1:
                broker().kill()
                broker().start()
    finally:
        driver.close()
    rig.run()
    found, (_, table) = numbers(topic), rig.targets
    lost, doubled = len(set(rig.rows) - set(found)), sum(found.values()) - len(found)
    with capsys.disabled():
        print(f"\nHoldfast: {kills} kills, {len(rig.rows)} rows given, {lost} lost, {doubled} doubled")
    assert (lost, doubled) == (0, 0)
    rows = [json.loads(value or b"") for _, value in broker().rows(topic)]
    assert sorted((row["n"], row["text"]) for row in rows) == table.visible(session(), "n text")  # type: ignore[call-arg]


def test_the_control_doubles_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kills = max(2, int(os.environ.get("KAFKA_KILLS", "2")))
    topic = broker().topic()
    rig = Rig(session(), tmp_path, [])
    driver = Killed("plain", rig, topic)
    try:
        for number in range(kills):
            driver.strike(while_growing=number % 2 == 0)
        driver.finish(lambda: len(list((tmp_path / "plain/commits").glob("[0-9]*"))) == rig.inputs)
    finally:
        driver.close()
    found = numbers(topic)
    lost, doubled = len(set(rig.rows) - set(found)), sum(found.values()) - len(found)
    with capsys.disabled():
        print(f"\nSpark's own writer: {kills} kills, {len(rig.rows)} rows given, {lost} lost, {doubled} doubled")
    assert lost == 0
    assert doubled > 0
