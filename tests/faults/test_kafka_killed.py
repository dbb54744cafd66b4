"""Drivers that write to Kafka are killed while a topic grows, and at random moments; so is the broker.

Holdfast loses nothing and doubles nothing. The control is Spark's own writer under the same kills: it doubles rows.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from faults import kafkadrivers
from faults.killed import Killed, Moment
from kafkafixture import broker
from rig import Rig
from sparkfixture import session

SCRIPT = Path(__file__).with_name("kafkadrivers.py")
ROWS = 30_000  # of an epoch: sending them takes longer than noticing that the topic grows


def killed(verb: str, rig: Rig, topic: str) -> Killed:
    spec = {"folder": str(rig.folder), "address": broker().address, "topic": topic}
    return Killed(SCRIPT, verb, rig, size=lambda: broker().size(topic), rows=ROWS, spec=spec)


def moment(number: int) -> Moment:
    return Moment.RANDOM if number % 2 else Moment.GROWING


def numbers(topic: str) -> Counter[int]:
    return Counter(json.loads(value or b"")["n"] for _, value in broker().rows(topic))


def all_read(checkpoint: Path, files: int) -> bool:
    """Whether plain Spark has committed every file, of which each entry of its source's log names one.

    After a kill between the two logs of a batch, that batch has two files, so the commits are not counted.
    """
    committed = [int(each.name) for each in (checkpoint / "commits").glob("[0-9]*")]
    if not committed:
        return False
    position = (checkpoint / f"offsets/{max(committed)}").read_text().splitlines()[-1]
    return bool(json.loads(position)["logOffset"] == files - 1)


def test_drivers_and_the_broker_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """KAFKA_KILLS says how often."""
    kills = int(os.environ.get("KAFKA_KILLS", "4"))
    topic = broker().topic()
    rig = kafkadrivers.rigged(tmp_path, broker().address, topic)
    driver = killed("holdfast", rig, topic)
    try:
        for number in range(kills):
            driver.strike(moment(number))
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
    driver = killed("plain", rig, topic)
    try:
        for number in range(kills):
            driver.strike(moment(number))
        driver.finish(lambda: all_read(tmp_path / "plain", rig.inputs))
    finally:
        driver.close()
    found = numbers(topic)
    lost, doubled = len(set(rig.rows) - set(found)), sum(found.values()) - len(found)
    with capsys.disabled():
        print(f"\nSpark's own writer: {kills} kills, {len(rig.rows)} rows given, {lost} lost, {doubled} doubled")
    assert lost == 0
    assert doubled > 0
