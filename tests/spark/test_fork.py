"""A fork begins where a checkpoint of the original is, and neither of the two notices the other."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast.cli.verbs.fork import ForkedPipeline
from holdfast.errors import AlreadyExists, BadName, CheckpointMissing, NotSupported, SinkForeign
from holdfast.eventlog import EventLog
from holdfast.repository import History, Lineage
from holdfast.repository.forks import fork_of

SCHEMA = "n long, text string"


class Shop:
    """orders -> log -> totals, with state and a stage; `name` is the pipeline, and its targets are its own."""

    def __init__(self, spark: SparkSession, folder: Path, name: str = "shop", **source: str) -> None:
        self.spark, self.folder, self.name, self._source = spark, folder, name, source
        (folder / "in").mkdir(exist_ok=True)

    def give(self, number: int) -> None:
        rows = "".join(json.dumps({"n": number, "text": each}) + "\n" for each in "ab")
        (self.folder / "in" / f"{number:03}.json").write_text(rows)

    @property
    def pipeline(self) -> hf.Pipeline:
        out = self.folder / f"out-{self.name}"
        pipeline = hf.Pipeline(self.name, self.folder / "root", restart=hf.RestartPolicy.never(), outage=0)

        def counted(df: DataFrame, stage: Any) -> DataFrame:
            stage.state = stage.state + df.count()
            return df

        @pipeline.stream(sinks=hf.FileSink(out / "orders"), stage=0, on_epoch=counted)
        def orders(spark: SparkSession) -> DataFrame:
            reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).options(**self._source)
            return reader.json(str(self.folder / "in"))

        @pipeline.stream(sinks=hf.SqliteSink(out / "shop.db", table="totals", key="text"), output_mode="update")
        def totals(spark: SparkSession) -> DataFrame:
            return pipeline.read("orders").groupBy("text").agg(f.count("*").alias("count"), f.sum("n").alias("sum"))

        return pipeline

    def run(self, **options: Any) -> None:
        policy = hf.CheckpointPolicy(epochs=1)
        self.pipeline.run(self.spark, available_now=True, checkpoint_every=policy, **options)

    def orders(self) -> list[int]:
        path = self.folder / f"out-{self.name}" / "orders"
        return sorted(row["n"] for row in self.spark.read.schema(SCHEMA).parquet(str(path)).collect())

    def totals(self) -> dict[str, tuple[int, int]]:
        import sqlite3

        with sqlite3.connect(self.folder / f"out-{self.name}" / "shop.db") as connection:
            found = connection.execute('SELECT text, count, "sum" FROM totals').fetchall()
        connection.close()
        return {text: (count, total) for text, count, total in found}


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    made = Shop(spark, tmp_path)
    for number in (1, 2, 3):
        made.give(number)
        made.run()
    return made


def test_a_fork_continues_the_state_into_targets_of_its_own(shop: Shop) -> None:
    repository = shop.pipeline.repository
    base = hf.Checkpoints(repository).latest(Lineage.load(repository)).checkpoint_id
    shop.give(4)
    shop.run()  # the original goes on
    made = hf.fork(repository, base, name="trial")
    assert made.epochs == {"orders": 3, "totals": 3}
    assert made.logs == ("orders",)
    assert made.uid != Lineage.load(repository).identity.uid
    before = shop.totals(), shop.orders()

    trial = Shop(shop.spark, shop.folder, "trial")
    trial.give(5)
    trial.run()
    assert trial.orders() == [4, 4, 5, 5]  # only what comes after the base
    assert trial.totals() == {"a": (5, 15), "b": (5, 15)}  # with the state of the base
    stage = json.loads(json.dumps(trial.pipeline.plan(shop.spark).to_dict()))
    assert stage["pipeline"] == "trial"
    assert (shop.totals(), shop.orders()) == before
    shop.run()
    assert shop.totals() == trial.totals()
    assert shop.orders() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    logs = [EventLog.open(each.pipeline.repository.root / "logs/orders/log") for each in (shop, trial)]
    assert logs[0].identity == logs[1].identity
    assert [each.tail for each in logs] == [10, 10]
    origin = fork_of(trial.pipeline.repository)
    assert origin is not None and origin.pipeline == "shop"
    [entry] = [each for each in History(trial.pipeline.repository).entries() if each.what == "fork"]
    assert entry.facts["epochs"] == {"orders": 3, "totals": 3}
    assert sorted(each.name for each in (shop.folder / "root").iterdir()) == ["shop", "trial"]
    trial.give(6)
    trial.run()
    assert trial.totals() == {"a": (6, 21), "b": (6, 21)}


def test_a_savepoint_can_be_forked_elsewhere_and_outlives_the_original(shop: Shop, tmp_path: Path) -> None:
    with shop.pipeline.start(shop.spark, checkpoint_every=None) as running:
        running.savepoint("release")
    command = [sys.executable, "-m", "holdfast", "fork", "--from", "release", "--as", "copy", "--json"]
    command += ["--root", str(tmp_path / "other"), "-r", str(tmp_path / "root/shop")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    result = msgspec.convert(json.loads(found.stdout)["result"], ForkedPipeline, strict=True)
    assert (result.pipeline, result.origin, result.epochs) == ("copy", "shop", {"orders": 3, "totals": 3})
    assert (tmp_path / "other/copy/holdfast.json").exists()


def test_targets_of_the_original_are_refused(shop: Shop) -> None:
    hf.fork(shop.pipeline.repository, "latest", name="trial")
    trial = Shop(shop.spark, shop.folder, "trial")
    (shop.folder / "out-trial").symlink_to(shop.folder / "out-shop")
    with pytest.raises(SinkForeign):
        trial.run()


def test_a_source_that_cleans_up_is_refused_in_a_fork(shop: Shop) -> None:
    hf.fork(shop.pipeline.repository, "latest", name="trial")
    trial = Shop(shop.spark, shop.folder, "trial", cleanSource="delete")
    with pytest.raises(NotSupported, match="cleanSource"):
        trial.run()


BAD: list[tuple[type[Exception], Callable[[hf.Pipeline], object]]] = [
    (CheckpointMissing, lambda p: hf.fork(p.repository, 99, name="x")),
    (CheckpointMissing, lambda p: hf.fork(p.repository, "nothing", name="x")),
    (BadName, lambda p: hf.fork(p.repository, "latest", name="a/b")),
    (AlreadyExists, lambda p: hf.fork(p.repository, "latest", name="shop")),
]


def test_bad_arguments_leave_nothing_behind(shop: Shop) -> None:
    for error, call in BAD:
        with pytest.raises(error):
            call(shop.pipeline)
    assert [each.name for each in (shop.folder / "root").iterdir()] == ["shop"]
