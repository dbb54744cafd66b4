"""A pipeline in the hands of a person: what its status says, its handle, streams that are defined again."""

import importlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast
from fabricated import flip
from holdfast.cli.runresults import RunStatus
from holdfast.errors import AlreadyExists, BadValue, Locked
from holdfast.policy import RestartPolicy
from holdfast.repository import Checkpoints, Gaps, Lineage, LocalRepository
from holdfast.spark.unread import Unread
from rig import Rig, SqliteTarget
from support import eventually


def test_a_status_has_rates_durations_lag_and_sparks_progress(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "rows.db")])
    gate, inside, epochs = threading.Event(), threading.Event(), []

    def reach(point: str) -> None:
        if point == "opening":
            epochs.append(point)
            if len(epochs) == 2:
                inside.set()
                gate.wait(120)

    for number in range(3):
        rig.add(number)
    made = rig.pipeline()
    handle = made.start(spark, checkpoint_every=None, reach=reach)
    assert inside.wait(120)  # one epoch is in the sink; the second, of one file, is under way
    eventually(lambda: handle.status().streams["rows"].last_progress)
    status = handle.status().streams["rows"]
    sizes = [path.stat().st_size for path in sorted((tmp_path / "in").iterdir())]
    assert status.epoch == 1 and status.unread == Unread(2, sum(sizes[1:]))
    gate.set()
    eventually(lambda: handle.status().streams["rows"].epoch == 3)
    text = repr(handle)
    handle.stop()
    ended = handle.status()
    status = ended.streams["rows"]
    assert "'torment', running: rows running at epoch 3; checkpoint None" in text
    assert "'torment', ended: rows stopped" in repr(handle)
    assert status.last_epoch is not None and (status.last_epoch.epoch, status.last_epoch.rows) == (3, 1)
    assert list(status.last_epoch.phases) == ["open", "prepare", "harden", "decide", "commit"]
    assert 0 < sum(status.last_epoch.phases.values()) <= status.last_epoch.seconds
    assert status.rows_per_s > 0
    assert status.last_progress is not None and status.last_progress["batchId"] == 2
    assert status.processed_rows_per_s == status.last_progress["processedRowsPerSecond"]
    assert json.loads(json.dumps(ended.to_dict()))["streams"]["rows"]["last_epoch"]["epoch"] == 3
    assert msgspec.convert(ended.to_dict(), RunStatus).streams["rows"].last_progress == status.last_progress


def test_manifests_and_checkpoints_say_what_they_are(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "rows.db")])
    rig.add(1)
    made = rig.pipeline()
    assert made.run(spark, available_now=True).streams["rows"].unread is None  # it has ended
    checkpoints = Checkpoints(made.repository)
    where = made.repository.where
    assert repr(checkpoints) == f"<Checkpoints of {where!r}: 1, the newest is 1; savepoints: []>"
    assert repr(checkpoints.latest()) == "<Manifest: checkpoint 1 of pipeline 'torment', timeline 1: rows at epoch 1>"


def test_a_manifest_has_the_gaps_of_its_streams_up_to_the_cut(spark: SparkSession, tmp_path: Path) -> None:
    def poisoned(df: DataFrame) -> DataFrame:
        return df.withColumn("n", f.udf(lambda n: n // (n - 2) * 0 + n, "long", useArrow=False)("n"))

    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "rows.db")], query=poisoned, quarantine_after=1)
    for n in (1, 2, 3):
        rig.add(n)
    rig.pipeline(restart=RestartPolicy.bounded(5, 60)).run(spark, available_now=True)
    repository = LocalRepository(rig.repository)
    ledger = Gaps(repository)
    (gap,) = ledger.all("rows", 1)
    gaps = Checkpoints(repository).latest().gaps
    assert gaps is not None and gaps.total == 1
    (noted,) = gaps.newest
    assert (noted.stream, noted.epoch, noted.kind, noted.why) == ("rows", 2, "quarantined", gap.why)
    assert (noted.at_ms, noted.facts) == (gap.at_ms, gap.facts)

    for epoch in range(3, 40):
        ledger.add("rows", 1, epoch, kind="offsets", why="far" * 10, facts={"differences": ["x" * 90] * 30})
    ledger.add("rows", 1, 1, kind="replay", why="damaged", facts={})
    flip(repository, "timelines/1/streams/rows/gaps/0000000001.replay.json")
    rig.add(4)
    rig.pipeline().run(spark, available_now=True)
    gaps = Checkpoints(repository).latest().gaps  # of epochs 1 to 4
    assert gaps is not None and gaps.total == 4
    assert {each.epoch: each.facts for each in gaps.newest} == {2: gap.facts, 3: {}, 4: {}}
    assert ledger.newest("rows", Lineage.load(repository), until=100, most=5)[0] == 39


def test_a_stream_that_is_defined_again_replaces_the_one_before_it_and_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As when a notebook cell with @pipeline.stream is run again."""
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "rows.db")])
    made = rig.pipeline()

    def define(factor: int) -> None:
        @made.stream(sinks=[rig.targets[0].make()])
        def rows(spark: SparkSession) -> DataFrame:
            return rig.build(spark).selectExpr(f"n * {factor} AS n", "text")

    rig.add(1)
    made.run(spark, available_now=True)
    define(10)
    rig.add(2)
    with made.start(spark, checkpoint_every=None) as handle:
        assert made.handle is handle
        eventually(lambda: handle.status().streams["rows"].epoch == 2)
        with pytest.raises(AlreadyExists, match=r"running pipeline.*handle\.stop"):
            define(100)
    assert made.handle is None
    define(100)
    rig.add(3)
    made.run(spark, available_now=True)
    assert rig.visible() == [[1, 20, 300]]


_TWICE = {
    "two functions": "{stream}{stream}",
    "a loop": "for _ in range(2):\n    pipeline.stream(lambda spark: None, name='rows', sinks=[hf.FileSink('a')])\n",
    "a factory": """
def add(path):
    @pipeline.stream(sinks=[hf.FileSink(path)])
    def rows(spark):
        return None

add("a")
add("b")
""",
}


@pytest.mark.parametrize("program", _TWICE.values(), ids=_TWICE)
def test_two_streams_of_one_name_in_a_program_are_refused(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them would never run."""
    stream = "@pipeline.stream(sinks=[hf.FileSink('a')])\ndef rows(spark):\n    return None\n"
    begin = "import holdfast as hf\npipeline = hf.Pipeline('p', 'root')\n"
    (tmp_path / "twice_defined.py").write_text(begin + program.replace("{stream}", stream))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AlreadyExists, match="rename one"):
        importlib.import_module("twice_defined")


def test_a_notebook_cell_that_is_run_again_defines_its_stream_again() -> None:
    """Before the first start too. The module of a notebook has no file."""
    cell = "@pipeline.stream(sinks=[hf.FileSink('a')])\ndef rows(spark):\n    return {}\n"
    names = {"hf": holdfast, "pipeline": holdfast.Pipeline("p", "root"), "__name__": "__notebook__"}
    for number in range(2):
        exec(compile(cell.format(number), f"<cell {number}>", "exec"), names)  # noqa: S102 - as a notebook does
    assert names["rows"](None) == 1
    assert list(names["pipeline"]._streams) == ["rows"]
    assert names["pipeline"]._streams["rows"].build is names["rows"]


def test_the_handle_of_a_running_pipeline_is_found_by_another_object_of_it(spark: SparkSession, tmp_path: Path) -> None:
    """As when a notebook cell that creates the pipeline is run again."""
    rig = Rig(spark, tmp_path, [SqliteTarget(tmp_path / "rows.db")])
    with rig.pipeline().start(spark, checkpoint_every=None) as running:
        again = rig.pipeline()
        assert again.handle is running
        with pytest.raises(Locked, match=r"pipeline\.handle\.stop"):
            again.start(spark)
    assert again.handle is None


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: holdfast.Pipeline("p", "root", restart="never"), "RestartPolicy"),
        (lambda: holdfast.Pipeline("p", "root", outage="never"), "outage"),
        (lambda: holdfast.Pipeline("p", "root", outage={"snk": "4h"}), "kinds are"),
        (lambda: holdfast.SqliteSink("a.db", table="t", key=[]), "expected one or more columns"),
        (lambda: holdfast.ForeachSink(abs), "two arguments"),
        (lambda: holdfast.ForeachSink(print), None),
        (lambda: holdfast.ForeachSink(pow), None),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_given(made: Callable[[], object], says: str | None) -> None:
    if says is None:
        made()
    else:
        with pytest.raises(BadValue, match=says):
            made()
