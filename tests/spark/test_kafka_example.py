"""The example that reads Kafka, as a person runs it: by its command line, killed in the middle, and run again."""

import json
import random
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import holdfast as hf
from exampleprogram import SECRET, SMALL, Program
from kafkafixture import broker, connector
from pgfixture import server

NAME = "kafka_to_delta_and_postgres"
COLUMNS = ("id", "customer", "cents", "kafka_partition", "kafka_offset", "receipt")


class Shop:
    """The topic, both tables and the folder of one run of the program."""

    def __init__(self, folder: Path) -> None:
        self.program = Program(NAME, folder)
        self.topic = broker().topic(partitions=2)
        self.dsn = server().dsn(server().fresh_database())
        self.options = ["--servers", broker().address, "--topic", self.topic]
        self.program.environment["PYSPARK_SUBMIT_ARGS"] = f"--jars {connector()} {SMALL}"
        self.program.environment["HOLDFAST_DSN"] = f"{self.dsn} password={SECRET}"
        self.folder = folder
        self.sent: list[int] = []
        self.bad = 0

    def send(self, count: int) -> None:
        """Send valid orders, and three records that are none."""
        first = len(self.sent)
        orders = [
            {"id": each, "customer": f"customer {each}", "cents": 1 + each} for each in range(first, first + count)
        ]
        self.sent += [each["id"] for each in orders]
        wrong = ["no JSON", json.dumps({"customer": "nobody"}), json.dumps({"id": 1, "cents": -5})]
        self.bad += len(wrong)
        records = [*map(json.dumps, orders), *wrong]
        random.shuffle(records)
        broker().produce(self.topic, records)

    def postgres(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            if connection.execute("SELECT to_regclass('orders')").fetchone() == (None,):
                return []
            return sorted(connection.execute(f"SELECT {', '.join(COLUMNS)} FROM orders").fetchall())  # noqa: S608

    def delta(self) -> list[tuple[Any, ...]]:
        found = DeltaTable(self.folder / "data/orders").to_pyarrow_table().to_pylist()
        return sorted(tuple(row[name] for name in COLUMNS) for row in found)

    def rejected(self) -> list[dict[str, Any]]:
        files = (self.folder / "data/rejected").rglob("part-*.json")
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_each_order_is_in_both_tables_once_when_the_program_was_killed(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.send(20)
    running = shop.program.start(*shop.options, "--checkpoint-every", "1s")
    shop.program.until(shop.postgres, running)
    for count in (300, 7, 500):
        shop.send(count)
        time.sleep(0.4)
    shop.program.kill(running)
    shop.send(50)
    assert shop.program.run(*shop.options, "--once") == 0, shop.program.said.read_text()
    rows, rejected = shop.postgres(), shop.rejected()
    assert [row[0] for row in rows] == shop.sent
    assert shop.delta() == rows  # with the same receipts
    places = {row[3:5] for row in rows} | {(each["kafka_partition"], each["kafka_offset"]) for each in rejected}
    assert len(rejected) == shop.bad
    assert len(places) == len(rows) + len(rejected) == len(broker().rows(shop.topic))
    reasons = {each["dead_letter_reason"] for each in rejected}
    assert reasons == {"JSON with an id, positive amount", "positive amount"}
    assert "orders: ended" in shop.program.said.read_text()
    assert SECRET not in shop.program.said.read_text()
    assert hf.verify(hf.open_repository(tmp_path / "data/checkpoints/orders")).ok


def test_a_topic_that_does_not_exist_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    monkeypatch.setenv("HOLDFAST_DSN", shop.dsn)
    with pytest.raises(SystemExit, match="'absent' does not exist"):
        shop.program.run_here(monkeypatch, "--once", "--servers", broker().address, "--topic", "absent")
    assert shop.postgres() == []
    assert not shop.rejected()
