"""A chain goes back to each of ten checkpoints: state, stage, event log and tables are what its offsets say.

The history: files of orders → stream `orders`, with a stage → event log → stream `totals`, with state. Each checkpoint
is compared with a recomputation in plain Python from the offsets in its manifest. After each rewind, the pipeline runs
to the end of the input, and its outputs are compared with those from before the first rewind.

Without HOLDFAST_SOAK, there are fewer epochs, and only some of the checkpoints are gone back to.
"""

from __future__ import annotations

import base64
import json
import os
import random
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast import FileSink, Pipeline, SqliteSink, apply_rewind, plan_rewind, plan_undo
from holdfast.epoch import Facts
from holdfast.errors import RewindRefused
from holdfast.eventlog import EventLog
from holdfast.eventlog.keeping import read_floor
from holdfast.formats.manifest import Manifest
from holdfast.policy import CheckpointPolicy, RestartPolicy, Retention
from holdfast.repository import Decisions, Lineage
from holdfast.rewind import RewindPlan
from holdfast.spark.pipeline_status import PipelineStatus
from holdfast.spark.statereader import StateFolder
from holdfast.stages import MsgpackCodec, Stage
from support import eventually, rounds

POLICY = CheckpointPolicy(every="1h", retention=Retention(last=1000))
CHECKPOINTS = 10
FILES = rounds(1, 3)  # between two checkpoints; each of them is an epoch of `orders`
ROWS_PER_EPOCH = 7  # of `totals`: an offset may lie inside a segment of the log

Order = tuple[int, str, int]
"""Number, item, and how many orders the stage had counted before this one's epoch."""
Totals = dict[str, tuple[int, int]]
"""By item: how many orders there are, and the sum of their numbers."""


def counted(df: DataFrame, stage: Any) -> DataFrame:
    """Put the stage's state into the rows: a wrong state gives wrong rows."""
    before, stage.state = stage.state, stage.state + df.count()
    return df.withColumn("before", f.lit(before).cast("long"))


@dataclass(frozen=True)
class Cut:
    """A checkpoint, and what the offsets in its manifest say that it contains."""

    number: int
    manifest: Manifest
    files: int  # of orders, that `orders` had read
    orders: list[Order]
    totals: Totals
    lag: int  # how many orders `totals` had not read


@dataclass(frozen=True)
class Outputs:
    """Everything that the pipeline has written, as readers see it."""

    orders: list[tuple[int, str, int, int]]  # with the epoch
    log: list[Order]
    totals: Totals
    changes: Totals  # the newest version of each key
    stage: int
    state: Totals


class OrderChain:
    """A pipeline of two streams whose input a test gives file by file."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.files: list[list[tuple[int, str]]] = []
        self.pipeline = self._pipeline()
        self.log = folder / "root/shop/logs/orders/log"
        self._chance = random.Random(3)
        (folder / "in").mkdir(parents=True)

    def _pipeline(self) -> Pipeline:
        made = Pipeline("shop", self.folder / "root", restart=RestartPolicy.never(), outage=0)
        tables = self.folder / "out.db"
        changes = FileSink(self.folder / "changes", format="json", changelog=True, name="changes")
        table = SqliteSink(tables, "totals", key=["item"], undo=True, name="table")
        rows = SqliteSink(tables, "orders", epoch_column="epoch", name="rows")

        @made.stream(sinks=rows, stage=Stage(0, MsgpackCodec(int)), on_epoch=counted)
        def orders(spark: SparkSession) -> DataFrame:
            source = spark.readStream.schema("n long, item string").option("maxFilesPerTrigger", 1)
            return source.json(str(self.folder / "in")).withColumn("before", f.lit(0).cast("long"))

        @made.stream(output_mode="update", sinks=[table, changes])
        def totals(_: SparkSession) -> DataFrame:
            read = made.read("orders", rows_per_epoch=ROWS_PER_EPOCH)
            return read.groupBy("item").agg(f.count("*").alias("orders"), f.sum("n").alias("total"))

        return made

    # --- running ---

    def add(self) -> None:
        """Give a file of orders; it appears whole, and later than the ones before it."""
        first = sum(map(len, self.files))
        rows = [(first + n, self._chance.choice("abcdef")) for n in range(self._chance.randrange(3, 12))]
        self.files.append(rows)
        path = self.folder / "in" / f"{len(self.files):06}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(json.dumps({"n": n, "item": item}) + "\n" for n, item in rows))
        os.utime(hidden, (1_700_000_000 + len(self.files),) * 2)  # Spark takes older files first
        hidden.rename(path)

    def run(self) -> None:
        """Run to the end of the input."""
        self.pipeline.run(self.spark, available_now=True, checkpoint_every=POLICY)

    def take(self, checkpoints: int) -> list[Cut]:
        """Run with new input, take checkpoints on the way, and end after all of the input."""
        taken = []
        with self.pipeline.start(self.spark, checkpoint_every=POLICY) as handle:
            for _ in range(checkpoints):
                for _ in range(FILES):
                    self.add()
                eventually(lambda: handle.wait(0) or self._is_ready(handle.status()))
                taken.append(self.cut(handle.checkpoint()))
            self.add()
            handle.drain()
        print(f"{checkpoints} checkpoints; orders that totals had not read: {[each.lag for each in taken]}")
        return taken

    def _is_ready(self, status: PipelineStatus) -> bool:
        """Whether `orders` has read all files, and `totals` has begun."""
        return status.streams["orders"].epoch >= len(self.files) and status.streams["totals"].epoch > 0

    def cut(self, manifest: Manifest) -> Cut:
        """Recompute what a checkpoint contains from the offsets in its manifest. Sequences of a log may have holes."""
        upper, lower = manifest.streams["orders"], manifest.streams["totals"]
        files = json.loads(upper.offsets[0] or "")["logOffset"] + 1
        sequence = json.loads(lower.offsets[0] or "")["sequence"] if lower.epoch else 0
        holes = EventLog.open(self.log).cancelled(0, sequence)
        orders = self.given(files)
        read = sequence - sum(end - first for first, end in holes)
        return Cut(manifest.checkpoint_id, manifest, files, orders, totals_of(orders[:read]), len(orders) - read)

    def given(self, files: int) -> list[Order]:
        """Return what `orders` makes of the first files."""
        found: list[Order] = []
        for rows in self.files[:files]:
            before = len(found)
            found += [(n, item, before) for n, item in rows]
        return found

    # --- looking ---

    def outputs(self, cut: Manifest) -> Outputs:
        """Return what readers see. The format of the state is the one in a manifest."""
        return Outputs(
            orders=self.rows("SELECT n, item, before, epoch FROM orders ORDER BY n"),
            log=[(each["n"], each["item"], each["before"]) for each in self.events()],
            totals={
                item: (orders, total) for item, orders, total in self.rows("SELECT item, orders, total FROM totals")
            },
            changes=newest_versions(self.changes()),
            stage=self.stage(),
            state=self.state(cut),
        )

    def rows(self, query: str) -> list[Any]:
        connection = sqlite3.connect(self.folder / "out.db")
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the log. The oldest ones are removed when no checkpoint needs them."""
        floor = read_floor(self.log)
        kept = [event.payload for event in EventLog.open(self.log).read(start=floor)]
        removed = [{"n": n, "item": item, "before": before} for n, item, before in self.given(len(self.files))[:floor]]
        return removed + kept

    def changes(self) -> list[dict[str, Any]]:
        files = (self.folder / "changes").rglob("part-*.json")
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    def timeline(self, stream: str) -> int:
        return Lineage.load(self.pipeline.repository).timeline_of(stream)

    def facts(self, stream: str) -> tuple[int, Facts]:
        """Return the last decided epoch of a stream, and the facts of its decision."""
        decision = Decisions(self.pipeline.repository).newest(stream, self.timeline(stream))
        assert decision is not None
        return decision.attempt.epoch, Facts.of(decision)

    def stage(self) -> int:
        stage = self.facts("orders")[1].stage
        assert stage is not None
        return MsgpackCodec(int).decode(base64.b64decode(stage["inline"]))

    def state(self, manifest: Manifest) -> Totals:
        """Return the state in the live Spark folder of `totals`, as Spark reads it."""
        cut = manifest.streams["totals"]
        folder = self.folder / f"root/shop/timelines/{self.timeline('totals')}/streams/totals/spark"
        assert cut.state_format is not None
        state = StateFolder(self.spark, folder, cut.state_format, cut.confs)
        with state.reading():
            rows = state._store("0/default").select("key.*", "value.*").collect()
        return {row[0]: (row[1], row[2]) for row in rows}

    # --- going back ---

    def back_to(self, to: int, only: list[str] | None = None) -> RewindPlan:
        plan = plan_rewind(self.pipeline, to, only=only)
        assert plan.problems == ()
        apply_rewind(self.pipeline, plan)
        return plan

    def require_at(self, cut: Cut) -> None:
        """Compare everything with the recomputation of a checkpoint."""
        found = self.outputs(cut.manifest)
        assert [row[:3] for row in found.orders] == cut.orders
        assert [row[3] for row in found.orders] == self.epochs(cut.files)
        assert found.log == cut.orders
        assert found.stage == len(cut.orders)
        assert self.facts("orders")[1].end == list(cut.manifest.streams["orders"].offsets)
        self.require_totals_at(cut, found)

    def require_totals_at(self, cut: Cut, found: Outputs) -> None:
        assert found.totals == found.changes == found.state == cut.totals
        epoch, facts = self.facts("totals")
        saved = cut.manifest.streams["totals"]
        assert (epoch, facts.end, facts.total_rows) == (saved.epoch, list(saved.offsets), saved.rows)
        assert len(self.changes()) == saved.rows

    def epochs(self, files: int) -> list[int]:
        return [epoch for epoch, rows in enumerate(self.files[:files], start=1) for _ in rows]


def totals_of(orders: Iterable[Order]) -> Totals:
    found: Totals = {}
    for n, item, _ in orders:
        count, total = found.get(item, (0, 0))
        found[item] = (count + 1, total + n)
    return found


def newest_versions(changes: Iterable[dict[str, Any]]) -> Totals:
    """Return the version of each key that counts the most orders; no version may appear twice."""
    found: Totals = {}
    seen = [(each["item"], each["orders"], each["total"]) for each in changes]
    assert len(seen) == len(set(seen))
    for item, orders, total in sorted(seen):
        found[item] = (orders, total)
    return found


def chosen(taken: list[Cut]) -> list[Cut]:
    """Return the checkpoints to go back to, newest first: each of them is on the lineage of the next one."""
    few = sorted({0, len(taken) // 2, len(taken) - 1})
    return list(reversed(taken if rounds(0, 1) else [taken[number] for number in few]))


@pytest.fixture
def chain(spark: SparkSession, tmp_path: Path) -> OrderChain:
    return OrderChain(spark, tmp_path)


def test_everything_goes_back(chain: OrderChain) -> None:
    """To each checkpoint, and to one of a later timeline; in between an undo, and to the end of the input."""
    taken = chain.take(CHECKPOINTS)
    last = taken[-1].manifest
    final = chain.outputs(last)
    assert final.log == chain.given(len(chain.files))
    assert final.totals == final.changes == final.state == totals_of(final.log)
    for number, cut in enumerate(chosen(taken)):
        chain.back_to(cut.number)
        chain.require_at(cut)
        if number == 1:
            apply_rewind(chain.pipeline, plan_undo(chain.pipeline))
            assert chain.outputs(last) == final
            chain.back_to(cut.number)
            chain.require_at(cut)
        chain.run()
        assert chain.outputs(last) == final
    later = chain.take(2)
    chain.back_to(later[0].number)
    chain.require_at(later[0])
    with pytest.raises(RewindRefused, match="abandoned branch"):
        plan_rewind(chain.pipeline, later[1].number)
    chain.run()
    found = chain.outputs(last)
    assert [row[:3] for row in found.orders] == found.log == chain.given(len(chain.files))
    assert found.totals == found.changes == found.state == totals_of(found.log)


def test_only_totals_goes_back(chain: OrderChain) -> None:
    """The upper stream and its log stay as they are; then everything goes back, to before and after such a rewind."""
    taken = chain.take(rounds(2, CHECKPOINTS))
    last = taken[-1].manifest
    final = chain.outputs(last)
    records = EventLog.open(chain.log).records
    for cut in chosen(taken):
        plan = chain.back_to(cut.number, only=["totals"])
        assert [each.stream for each in plan.streams] == ["totals"]
        found = chain.outputs(last)
        assert (found.orders, found.log, found.stage) == (final.orders, final.log, final.stage)
        chain.require_totals_at(cut, found)
        chain.run()
        assert chain.outputs(last) == final
    assert (chain.timeline("orders"), EventLog.open(chain.log).records) == (1, records)  # no record was added
    later = chain.take(2)
    chain.back_to(later[0].number)
    chain.require_at(later[0])
    chain.back_to(taken[0].number)
    chain.require_at(taken[0])
    chain.run()
    found = chain.outputs(last)
    assert [row[:3] for row in found.orders] == found.log == chain.given(len(chain.files))
    assert found.totals == found.changes == found.state == totals_of(found.log)
