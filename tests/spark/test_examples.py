"""The programs in `examples/`, as a person runs them: by their command line, killed in the middle, and run again."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from exampleprogram import EXAMPLES, SECRET, Program, loaded
from holdfast.eventlog._cursor_slot import read_cursor
from holdfast.testing import SinkContract
from pgfixture import server

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """What a table holds; nothing while there is no table."""
    if not database.exists():
        return []
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error)
            return []


# --- all of them -----------------------------------------------------------------------------------------------------


def test_importing_an_example_starts_nothing_and_writes_nothing(tmp_path: Path) -> None:
    """`app.py:pipeline` is a pipeline, or a function that returns one, for whoever imports the file."""
    program = f"""
import runpy, psutil, holdfast, pyspark
for name in {NAMES!r}:
    found = runpy.run_path(f"{EXAMPLES}/{{name}}.py", run_name=name)["pipeline"]
    found = found if isinstance(found, holdfast.Pipeline) else found()
    assert isinstance(found, holdfast.Pipeline), found
    print(name, found)
assert pyspark.SparkContext._gateway is None
assert psutil.Process().children() == []
"""
    dsn = f"host=nowhere.invalid password={SECRET}"
    told = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"HOLDFAST_DSN": dsn, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert [line.split()[0] for line in told.stdout.splitlines()] == NAMES
    assert SECRET not in told.stdout + told.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_example_stands_in_the_index_and_says_how_it_is_run() -> None:
    index = (EXAMPLES / "README.md").read_text()
    assert len(index.splitlines()) <= 40
    for name in NAMES:
        assert f"({name}.py)" in index
        assert f"examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text().split('"""')[1]


# --- files into PostgreSQL -------------------------------------------------------------------------------------------


def customer(number: int, version: int) -> dict[str, Any]:
    return {"id": number, "version": version, "name": f"name {version}", "email": f"{number}@example.org"}


def test_the_newest_version_of_each_customer_is_in_postgresql_whatever_dies(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = Program("files_to_postgres", tmp_path, "customers")
    dsn = server().dsn(server().fresh_database())

    def found() -> list[tuple[Any, ...]]:
        with psycopg.connect(dsn) as connection:
            if connection.execute("SELECT to_regclass('customers')").fetchone() == (None,):
                return []
            return connection.execute("SELECT id, version, name, email FROM customers ORDER BY id").fetchall()

    assert program.run("--once") == 1
    assert "--dsn" in program.said.read_text() and "HOLDFAST_DSN" in program.said.read_text()
    assert "Traceback" not in program.said.read_text()
    program.environment["HOLDFAST_DSN"] = f"{dsn} password={SECRET}"
    program.feed(*(customer(number, 1) for number in range(5)), "no JSON")
    running = program.start("--checkpoint-every", "1s")
    program.until(found, running)
    for version in (3, 2, 4):
        program.feed(*(customer(number, version) for number in range(8)), {"name": "nobody"})
        time.sleep(0.4)
    program.kill(running)
    program.feed(customer(6, 2), customer(7, 6), customer(7, 5), customer(8, 1))  # late; twice in one file
    program.run_here(monkeypatch, "--once", "--dsn", program.environment["HOLDFAST_DSN"])
    told = capfd.readouterr()
    assert "customers: ended" in told.out and SECRET not in told.out + told.err
    versions = dict.fromkeys(range(7), 4) | {7: 6, 8: 1}
    assert found() == [tuple(customer(number, version).values()) for number, version in versions.items()]
    rejected = [
        json.loads(line) for path in tmp_path.glob("data/rejected/*/*.json") for line in path.read_text().splitlines()
    ]
    assert Counter(each.get("_corrupt_record", each.get("name")) for each in rejected) == {"no JSON": 1, "nobody": 3}
    assert {Path(each["file_path"]).name for each in rejected} == {"1.json", "2.json", "3.json", "4.json"}
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


def test_customers_come_as_csv_too(spark: SparkSession, tmp_path: Path) -> None:
    example = loaded("files_to_postgres")
    database = server().fresh_database()
    places = [f"--{name}={tmp_path / name}" for name in ("input", "output", "checkpoints")]
    options = example.arguments([*places, "--format=csv", f"--dsn={server().dsn(database)}"])
    (tmp_path / "input").mkdir()
    lines = ["id,version,name,email", "1,2,Ada,ada@example.org", "1,1,A,", "x,1,nobody,", "2,1,Bob,"]
    (tmp_path / "input" / "1.csv").write_text("\n".join(lines))
    example.build(options).run(spark, available_now=True)
    found = server().execute("SELECT id, version, name, email FROM customers ORDER BY id", database)
    assert found == [(1, 2, "Ada", "ada@example.org"), (2, 1, "Bob", None)]
    (rejected,) = [json.loads(path.read_text()) for path in (tmp_path / "output").glob("*/*.json")]
    assert rejected["_corrupt_record"] == "x,1,nobody,"


# --- chained streams -------------------------------------------------------------------------------------------------


def test_balances_and_alerts_are_exact_when_both_programs_were_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program("chained_streams", tmp_path, "payments")
    output, root = tmp_path / "data/out", tmp_path / "data/checkpoints/payments"
    given: list[tuple[str, int]] = []

    def feed(*amounts: int) -> None:
        payments = [(f"a-{n % 3}", amount) for n, amount in enumerate(amounts)]
        program.feed(*({"account": account, "cents": cents} for account, cents in payments), "no JSON")
        given.extend(payments)

    def alerts() -> dict[int, int]:
        found = (json.loads(path.read_text()) for path in output.glob("alerts/[0-9]*.json"))
        return {each["alert"]: each["cents"] for each in found}

    assert program.run("--alerts", "--once") == 1  # nothing to read yet
    assert "run the pipeline that writes the log" in program.said.read_text()
    feed(5, 200_000, 7, 300_000)
    worker = program.start("--alerts")
    running = program.start("--checkpoint-every", "1s")
    program.until(lambda: rows(output / "payments.db", "SELECT 1 FROM balances"), running, worker)
    program.until(lambda: hf.Checkpoints(hf.open_repository(root)).restorable(), running, worker)
    program.until(lambda: len(alerts()) == 2 and read_cursor(hf.open_repository(root), "alerts"), running, worker)
    for path in output.glob("alerts/*"):
        path.unlink()  # what was handled does not come again
    for amount in (400_000, 9, 100_000):
        feed(amount, 99_999, amount + 1)
        time.sleep(0.4)
    worker.kill()
    worker.wait()
    program.kill(running)
    feed(500_000)
    program.run_here(monkeypatch, "--once")
    assert program.run("--alerts", "--once") == 0
    sums = {account: [cents for name, cents in given if name == account] for account, _ in given}
    balances = rows(output / "payments.db", "SELECT account, cents, payments FROM balances ORDER BY account")
    assert balances == sorted((account, sum(each), len(each)) for account, each in sums.items())
    log = hf.eventlog.EventLog.open(output / "payments.log")
    assert sorted((event.entity, event.payload["cents"]) for event in log.read()) == sorted(given)
    large = {event.sequence: event.payload["cents"] for event in log.read() if event.payload["cents"] >= 100_000}
    assert list(large.values())[:2] == [200_000, 300_000]
    assert alerts() == dict(list(large.items())[2:])
    assert hf.verify(hf.open_repository(root)).ok


# --- a sink of one's own ---------------------------------------------------------------------------------------------


def test_counters_are_exact_when_the_program_was_killed(tmp_path: Path) -> None:
    program = Program("own_sink", tmp_path, "movements")
    stock: Counter[str] = Counter()

    def feed(number: int) -> None:
        movements = [("apple", number), ("apple", -1), ("pear", 2 * number)]
        program.feed(*({"sku": sku, "quantity": quantity} for sku, quantity in movements), "no JSON", {"sku": "plum"})
        for sku, quantity in movements:
            stock[sku] += quantity

    def counters() -> dict[str, int]:
        return dict(rows(tmp_path / "data/out/stock.db", "SELECT name, number FROM counters"))

    feed(10)
    running = program.start("--checkpoint-every", "1s")
    program.until(counters, running)
    for number in range(4):
        feed(number)
        time.sleep(0.3)
    program.kill(running)
    feed(100)
    assert program.run("--once") == 0, program.said.read_text()
    assert counters() == stock


class TestCounterSink(SinkContract):
    """The contract's own suite: each row is added once, or a counter would not be the number that its name says."""

    def make(self, folder: Path) -> hf.Sink:
        sink: hf.Sink = loaded("own_sink").CounterSink(folder / "counters.db", key="text", add="n")
        return sink

    def visible(self, spark: Any, sink: hf.Sink) -> list[tuple[Any, ...]]:
        return rows(sink.path, "SELECT number, name FROM counters")  # type: ignore[attr-defined]


def test_counters_refuse_what_they_cannot_count(spark: SparkSession, tmp_path: Path) -> None:
    contract = TestCounterSink()
    sink = contract.make(tmp_path)
    context = hf.SinkContext(contract.owner, spark.sql("SELECT 1L AS n, 'a' AS text").schema, "append", spark)
    sink.open(context)
    with pytest.raises(hf.errors.SinkFailed, match="null"):
        sink.prepare(spark.sql("SELECT 1L AS n, string(null) AS text"), contract._key(1))
    with pytest.raises(hf.errors.NotSupported):
        sink.open(hf.SinkContext(contract.owner, context.schema, "update", spark))
    with pytest.raises(hf.errors.BadValue, match="text"):
        sink.open(hf.SinkContext(contract.owner, spark.sql("SELECT 1L AS n").schema, "append", spark))
    other = hf.StreamIdentity("other", "0" * 31 + "2", "rows")
    staged = sink.prepare(spark.sql("SELECT 1L AS n, 'a' AS text"), contract._key(1))
    sink.commit(contract._key(1), staged.handle)
    with pytest.raises(hf.errors.SinkForeign):
        sink.commit(hf.EpochKey(other, contract._key(1).attempt, 1), staged.handle)
