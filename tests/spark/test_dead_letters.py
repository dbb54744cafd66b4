"""Rows that fail a check go to the dead letter, in the same decision: every row is in one place, once."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg import types as ice
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from typer.testing import CliRunner

import holdfast as hf
from deltastaged import DeltaTarget
from holdfast.cli.app import app
from holdfast.epoch import POINTS, Decision, Facts
from holdfast.errors import BadValue, NotSupported, SinksChanged, StreamFailed
from holdfast.repository import Decisions
from holdfast.sinks.kafka.cluster import TopicFacts
from holdfast.sinks.kafka.conditions import record_conditions
from holdfast.sinks.kafka.records import LARGEST, RecordColumns, observed
from holdfast.sinks.kafka.staged import OVERHEAD
from holdfast.spark.dead_letters import REASON, judged
from holdfast.testing import CrashAt
from holdfast.web.drawing.stream import StreamChoice, stream_view
from holdfast.web.metrics import exposition
from holdfast.web.reading.epochs import epochs_of
from holdfast.web.reading.status import status_of
from icebergstaged import IcebergTarget, created_iceberg
from rig import FilesTarget, LogTarget, MarkerTarget, Rig, SqliteTarget, Target

VALID = {"even": "n % 2 = 0", "small": "n < 100"}
CLEARING = ("aborted", "discarded")


class DeadRig(Rig):
    """A rig whose stream has a dead letter."""

    dead: Target

    def __init__(
        self, spark: SparkSession, folder: Path, targets: list[Target], dead: Target, valid: Any = VALID, **options: Any
    ) -> None:
        super().__init__(spark, folder, targets, dead=dead, valid=valid, **options)

    def facts(self) -> list[Facts]:
        decisions = Decisions(self.pipeline().repository)
        found: list[Decision] = []
        for epoch in range(1, self.inputs + 1):
            found += [each for each in decisions.look("rows", 1, epoch).closed if each.verdict == "commit"]
        return [Facts.of(each) for each in found]


def dead_files(folder: Path, **options: Any) -> FilesTarget:
    return FilesTarget(folder / "dead", name="dead", **options)


def by_chance(df: DataFrame) -> DataFrame:
    """Rows whose text, and whose fate, is different each time they are computed."""
    drawn = f.udf(lambda _: uuid.uuid4().hex, "string", useArrow=False)
    return df.withColumn("text", drawn("n"))


def test_each_row_goes_to_the_sinks_or_to_the_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    targets = [FilesTarget(tmp_path / "out"), SqliteTarget(tmp_path / "out.db"), LogTarget(tmp_path / "log")]
    rig = DeadRig(spark, tmp_path, targets, dead_files(tmp_path))
    rig.add(1, 2, 3, 4)
    rig.add(6, 8)
    rig.add(101, 102)
    status = rig.run()
    assert rig.visible() == [[2, 4, 6, 8]] * 3
    assert rig.dead.visible(spark, "n text dead_letter_reason") == [
        (1, "row 1", "even"),
        (3, "row 3", "even"),
        (101, "row 101", "even, small"),
        (102, "row 102", "small"),
    ]
    assert (status.streams["rows"].rows, status.streams["rows"].dead_rows) == (4, 4)
    assert status.streams["rows"].last_epoch.dead_rows == 2
    facts = rig.facts()
    assert [(each.rows, each.dead_rows, each.total_rows, each.total_dead_rows) for each in facts] == [
        (2, 2, 2, 2),
        (2, 0, 4, 2),
        (0, 2, 4, 4),
    ]
    assert [each.sinks["dead"].rows for each in facts] == [2, 0, 2]

    repository = rig.pipeline().repository
    assert [each.dead_rows for each in epochs_of(repository, "rows").epochs] == [2, 0, 2]
    (line,) = status_of(repository).streams
    assert (line.rows, line.dead_rows) == (4, 4)
    assert "holdfast_stream_dead_rows{" in exposition([status_of(repository)], {}, 0)
    for verb in ("epochs", "status"):
        shown = CliRunner().invoke(app, [verb, "-r", repository.where], env={"COLUMNS": "200"}).stdout
        assert " DEAD " in shown, shown
    page = str(stream_view("torment", line, epochs_of(repository, "rows"), StreamChoice(), chosen=[], now_ms=0))
    assert "dead letters" in page and "2 + 2 dead" in page


def test_a_null_is_not_true(spark: SparkSession, tmp_path: Path) -> None:
    rig = DeadRig(
        spark, tmp_path, [FilesTarget(tmp_path / "out")], dead_files(tmp_path), "nullif(n, 3) > 1", query=lambda df: df
    )
    rig.add(1, 2, 3, 4)
    rig.run()
    assert rig.visible() == [[2, 4]]
    assert rig.dead.visible(spark, "n dead_letter_reason") == [(1, "nullif(n, 3) > 1"), (3, "nullif(n, 3) > 1")]


@pytest.mark.parametrize("point", [point for point in POINTS if point not in CLEARING])
def test_rows_that_change_with_each_computation_are_in_one_place(
    point: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The text, on which the check depends, is drawn at random; so is the check. A crash at any point."""
    targets: list[Target] = [FilesTarget(tmp_path / "out"), MarkerTarget(tmp_path / "marker.db")]
    valid = {"text": "text < '8'", "luck": "rand() < 0.9"}
    rig = DeadRig(spark, tmp_path, targets, dead_files(tmp_path), valid, query=by_chance)
    rig.add(*range(20))
    rig.run()
    rig.add(*range(20, 40))
    rig.crash(CrashAt(point))
    rig.run()
    good, same = (target.visible(spark, "n text") for target in targets)
    bad = rig.dead.visible(spark, "n text")
    assert good == same
    assert sorted(n for n, _ in [*good, *bad]) == list(range(40))
    assert all(text < "8" for _, text in good)


def test_the_rows_of_each_key_of_an_aggregation(spark: SparkSession, tmp_path: Path) -> None:
    """A stateful stream, in update mode: the digest covers all rows, and a replay compares it."""

    def totals(df: DataFrame) -> DataFrame:
        return df.groupBy((f.col("n") % 3).alias("k")).agg(f.sum("n").alias("n"))

    def rig_at(folder: Path) -> DeadRig:
        targets: list[Target] = [SqliteTarget(folder / "out.db", key="k")]
        dead = SqliteTarget(folder / "dead.db", key="k", name="dead")
        return DeadRig(spark, folder, targets, dead, "n < 10", query=totals, output_mode="update")

    rig = rig_at(tmp_path)
    rig.add(0, 1, 2)
    rig.run()
    rig.add(3, 10)
    rig.crash(CrashAt("committed"))
    rig.run()
    assert rig.targets[0].visible(spark, "k n") == [(0, 3), (1, 1), (2, 2)]
    assert rig.dead.visible(spark, "k n dead_letter_reason") == [(1, 11, "n < 10")]


def test_complete_mode_replaces_both(spark: SparkSession, tmp_path: Path) -> None:
    def totals(df: DataFrame) -> DataFrame:
        return df.groupBy((f.col("n") % 2).alias("k")).agg(f.sum("n").alias("n"))

    rig = DeadRig(
        spark,
        tmp_path,
        [SqliteTarget(tmp_path / "out.db")],
        SqliteTarget(tmp_path / "dead.db", name="dead"),
        "n < 10",
        query=totals,
        output_mode="complete",
    )
    rig.add(1, 2)
    rig.add(9, 10)
    rig.run()
    assert rig.targets[0].visible(spark, "k n") == []
    assert rig.dead.visible(spark, "k n") == [(0, 12), (1, 10)]


def test_a_sink_names_the_rows_that_it_would_refuse(spark: SparkSession, tmp_path: Path) -> None:
    """A null in a NOT NULL column would fail the epoch. With a dead letter, only that row is left out."""
    with closing(sqlite3.connect(tmp_path / "out.db")) as db:
        db.execute("CREATE TABLE rows (n INTEGER NOT NULL, text TEXT NOT NULL)")

    def query(df: DataFrame) -> DataFrame:
        return df.withColumn("text", f.expr("nullif(text, 'row 2')"))

    targets: list[Target] = [SqliteTarget(tmp_path / "out.db"), FilesTarget(tmp_path / "out")]
    rig = DeadRig(spark, tmp_path, targets, dead_files(tmp_path), None, query=query)
    rig.add(1, 2, 3)
    rig.run()
    assert rig.visible() == [[1, 3], [1, 3]]
    assert rig.dead.visible(spark, "n dead_letter_reason") == [(2, "sqlite.rows: text is null")]


def test_a_key_that_is_null_or_nan(spark: SparkSession, tmp_path: Path) -> None:
    def query(df: DataFrame) -> DataFrame:
        return df.withColumn("k", f.expr("CASE n WHEN 1 THEN double('NaN') WHEN 2 THEN null ELSE double(n) END"))

    rig = DeadRig(
        spark, tmp_path, [SqliteTarget(tmp_path / "out.db", key="k")], dead_files(tmp_path), None, query=query
    )
    rig.add(1, 2, 3)
    rig.run()
    assert rig.visible() == [[3]]
    assert rig.dead.visible(spark) == [1, 2]


def test_a_row_that_cannot_be_an_event(spark: SparkSession, tmp_path: Path) -> None:
    def query(df: DataFrame) -> DataFrame:
        text = "CASE n WHEN 1 THEN '' WHEN 2 THEN null ELSE text END"
        return df.withColumn("text", f.expr(text))

    target = LogTarget(tmp_path / "log", entity="text", category="n")
    rig = DeadRig(spark, tmp_path, [target], dead_files(tmp_path), None, query=query)
    rig.add(-1, 0, 1, 2, 65535, 65536)
    rig.run()
    assert rig.visible() == [[0, 65535]]
    assert [(n, why.split(": ", 1)[1]) for n, why in rig.dead.visible(spark, "n dead_letter_reason")] == [
        (-1, "n cannot be the category"),
        (1, "text cannot be the entity"),
        (2, "text cannot be the entity"),
        (65536, "n cannot be the category"),
    ]


def test_rows_that_lake_tables_would_refuse(spark: SparkSession, tmp_path: Path) -> None:
    """Both tables require the text. The Delta table is also partitioned by it, and stores an empty one as null."""
    folder = tmp_path / "lake"
    created_iceberg(
        folder,
        ice.NestedField(1, "n", ice.LongType(), required=False),
        ice.NestedField(2, "text", ice.StringType(), required=True),
    )
    columns = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string(), nullable=False)])
    DeltaTable.create(tmp_path / "delta", columns, partition_by=["text"])

    def query(df: DataFrame) -> DataFrame:
        return df.withColumn("text", f.expr("CASE n WHEN 1 THEN '' WHEN 2 THEN null ELSE text END"))

    targets = [IcebergTarget(folder, name="ice"), DeltaTarget(tmp_path / "delta", name="delta")]
    rig = DeadRig(spark, tmp_path, targets, dead_files(tmp_path), None, query=query)
    rig.add(1, 2, 3)
    rig.run()
    assert rig.visible() == [[3], [3]]
    assert rig.dead.visible(spark, "n dead_letter_reason") == [
        (1, "delta: text is null"),
        (2, "ice: text is null, delta: text is null"),
    ]


KAFKA_ROWS = """
SELECT 1 AS n, 'k' AS k, 'v' AS v, 0 AS p, current_timestamp() AS at, 't' AS t,
    array(struct('h' AS key, 'x' AS value)) AS h
UNION ALL SELECT 2, null, null, null, null, null, null
UNION ALL SELECT 3, 'k', repeat('v', 1000), 1, current_timestamp(), 't', array()
UNION ALL SELECT 4, 'k', 'v', 2, current_timestamp(), 't', null
UNION ALL SELECT 5, 'k', 'v', -1, current_timestamp(), 'other', null
UNION ALL SELECT 6, null, repeat('v', 1000), 2, TIMESTAMP '2999-01-01 00:00:00', 'other', null
UNION ALL SELECT 7, 'k', 'v', 0, TIMESTAMP '2999-01-01 00:00:00', null, null
UNION ALL SELECT 8, 'k', 'v', 0, TIMESTAMP '1971-01-01 00:00:00', null, null
UNION ALL SELECT 9, 'k', 'v', 0, TIMESTAMP '1969-01-01 00:00:00', 'other', null
UNION ALL SELECT 10, 'k', 'v', 0, null, null, array(struct(null AS key, 'x' AS value))
UNION ALL SELECT 11, 'k', 'v', 0, null, null, array(struct(repeat('h', 1000) AS key, 'x' AS value))
"""
KAFKA_REASONS = {
    2: "k cannot be the key",
    3: "the record is too large",
    4: "p cannot be the partition",
    5: "p cannot be the partition",
    7: "at cannot be the timestamp",
    8: "at cannot be the timestamp",
    9: "at cannot be the timestamp",
    10: "h cannot be the headers",
    11: "the record is too large",
}


def test_rows_that_cannot_be_records_of_a_topic(spark: SparkSession) -> None:
    """A row of another topic has other limits, which are not known here."""
    facts = TopicFacts("t", "id", 2, 1000, compacted=True, ahead_ms=3_600_000, behind_ms=3_600_000)
    columns = RecordColumns(key="k", value="v", headers="h", timestamp="at", partition="p", topic="t")
    df = spark.sql(KAFKA_ROWS)
    found = judged(df, record_conditions(columns, facts, df.schema)).collect()
    assert {row["n"]: row[REASON] for row in found if row[REASON]} == KAFKA_REASONS


def test_the_size_of_a_record_that_is_json(spark: SparkSession) -> None:
    """It is the size that the sink itself counts when it stages the row."""
    columns = RecordColumns(key=("a b",), headers="h")
    df = spark.sql("SELECT 'ä' AS `a b`, CAST(null AS STRING) AS more, map('h', 'x') AS h")
    records, seen = observed(columns.of(df, "sink", "t"))
    records.collect()
    size = seen.get[LARGEST] + OVERHEAD
    for limit, reason in ((size, ""), (size - 1, "the record is too large")):
        checks = record_conditions(columns, TopicFacts("t", "id", 1, limit), df.schema)
        assert [row[REASON] for row in judged(df, checks).collect()] == [reason]


def test_on_epoch_makes_the_rows_that_are_checked(spark: SparkSession, tmp_path: Path) -> None:
    rig = DeadRig(spark, tmp_path, [FilesTarget(tmp_path / "out")], dead_files(tmp_path))
    rig.options |= {"stage": {"seen": 0}, "on_epoch": lambda df, _: df.withColumn("n", f.col("n") + 1)}
    rig.add(1, 2, 3)
    rig.run()
    assert (rig.visible(), rig.dead.visible(spark)) == ([[2, 4]], [3])


def test_a_quarantined_epoch_is_in_neither(spark: SparkSession, tmp_path: Path) -> None:
    """A check that raises fails the epoch, as any other expression."""
    valid = "if(n = 5, raise_error('bad row'), n > 1)"
    rig = DeadRig(spark, tmp_path, [FilesTarget(tmp_path / "out")], dead_files(tmp_path), valid, quarantine_after=2)
    rig.add(1, 2)
    rig.add(5)
    rig.add(3)
    rig.run(restart=hf.RestartPolicy.bounded(5, within=600))
    assert (rig.visible(), rig.dead.visible(spark)) == ([[2, 3]], [1])
    assert [bool(each.quarantined) for each in rig.facts()] == [False, True, False]
    assert rig.facts()[-1].total_dead_rows == 1


def test_a_log_that_is_the_dead_letter_is_not_what_readers_of_the_stream_get(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = DeadRig(spark, tmp_path, [FilesTarget(tmp_path / "out")], LogTarget(tmp_path / "dead", name="dead"))
    rig.add(1, 2)
    pipeline = rig.pipeline()
    copy = FilesTarget(tmp_path / "copy", name="copy")
    pipeline.stream(lambda _: pipeline.read("rows"), name="reader", sinks=copy.make())
    pipeline.run(spark, available_now=True, checkpoint_every=None)
    assert (rig.visible(), copy.visible(spark), rig.dead.visible()) == ([[2]], [2], [1])


def test_adding_it_and_changing_a_check(spark: SparkSession, tmp_path: Path) -> None:
    """It is one more sink, so its addition must be accepted; a changed check takes effect and is reported."""
    plain = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    plain.add(1, 2)
    plain.run()
    rig = DeadRig(spark, tmp_path, [FilesTarget(tmp_path / "out")], dead_files(tmp_path))
    rig.inputs = plain.inputs
    rig.add(3, 4)
    with pytest.raises(SinksChanged):
        rig.run()
    with pytest.raises(NotSupported, match="dead letter"):
        rig.pipeline().backfill(stream="rows", sink="dead", spark=spark)
    rig.run(accept=("sinks",))
    assert (rig.visible(), rig.dead.visible(spark)) == ([[1, 2, 4]], [3])
    rig.options["valid"] = {"even": "n % 2 = 0"}
    changed = [each.summary for each in rig.pipeline().plan(spark).changes]
    assert any("valid small of sink dead" in each for each in changed), changed
    more = SqliteTarget(tmp_path / "more.db")
    rig.targets.append(more)
    filled = rig.pipeline().backfill(stream="rows", sink="sqlite.rows", spark=spark)
    assert (filled.rows, more.visible()) == (3, [1, 2, 4])  # the rows of the other sinks, not the dead ones
    rig.add(5, 6, 200)
    rig.run()
    assert (rig.visible(), rig.dead.visible(spark)) == ([[1, 2, 4, 6, 200]] * 2, [3, 5])


def test_a_rewind_takes_both_back(spark: SparkSession, tmp_path: Path) -> None:
    rig = DeadRig(spark, tmp_path, [FilesTarget(tmp_path / "out")], dead_files(tmp_path))
    rig.add(1, 2)
    rig.pipeline().run(spark, available_now=True)  # takes a checkpoint at its end
    rig.add(3, 4)
    rig.run()
    pipeline = rig.pipeline()
    plan = hf.plan_rewind(pipeline, "latest")
    hf.apply_rewind(pipeline, plan)
    assert (rig.visible(), rig.dead.visible(spark)) == ([[2]], [1])
    rig.run()
    assert (rig.visible(), rig.dead.visible(spark)) == ([[2, 4]], [1, 3])


BAD: dict[str, tuple[Any, str]] = {
    "not boolean": ("n + 1", "bigint, not boolean"),
    "unknown column": ({"known": "m > 0"}, "UNRESOLVED_COLUMN"),
    "syntax": ("n >", "PARSE_SYNTAX_ERROR"),
    "aggregate": ("sum(n) > 0", "GROUP"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_check_is_refused_at_the_start(case: str, spark: SparkSession, tmp_path: Path) -> None:
    valid, text = BAD[case]
    rig = DeadRig(spark, tmp_path, [FilesTarget(tmp_path / "out")], dead_files(tmp_path), valid)
    rig.add(1)
    with pytest.raises((BadValue, StreamFailed), match=text):
        rig.run()
    assert (rig.visible(), rig.dead.visible(spark)) == ([[]], [])


def stream(**options: Any) -> Callable[[], object]:
    return lambda: hf.Pipeline("p", "root").stream(lambda s: s, name="s", sinks=hf.FileSink("out"), **options)


@pytest.mark.parametrize(
    ("define", "text"),
    [
        (stream(valid="n > 0"), "dead_letter="),
        (stream(dead_letter="dead"), "a sink"),
        (stream(dead_letter=hf.FileSink("out")), "two sinks with this name"),
        (stream(dead_letter=hf.FileSink("dead"), valid=3), "a condition in Spark SQL"),
        (stream(dead_letter=hf.FileSink("dead"), valid={"": "n > 0"}), "a condition in Spark SQL"),
    ],
)
def test_a_wrong_definition_is_refused(define: Callable[[], object], text: str) -> None:
    with pytest.raises(BadValue, match=text):
        define()


def test_a_column_that_has_the_name_of_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    rig = DeadRig(
        spark,
        tmp_path,
        [FilesTarget(tmp_path / "out")],
        dead_files(tmp_path),
        query=lambda df: df.withColumnRenamed("text", "dead_letter_reason"),
    )
    rig.add(1)
    with pytest.raises((BadValue, StreamFailed), match="rename the column"):
        rig.run()
