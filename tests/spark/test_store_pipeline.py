"""Pipelines with their repository on S3: started, refused, and started again."""

import json
import re
import runpy
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from faultproxy import FaultProxy
from holdfast.cli.app import app
from holdfast.errors import NotSupported, SparkFileDamaged, StoresDiffer
from holdfast.repository.objectstore import ObjectRepository
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.spark import adapter
from holdfast.spark.context import StreamCallbacks
from holdfast.spark.pipeline import Pipeline
from pgfixture import server
from rig import PostgresTarget, Rig, polling_delays_ms
from s3fixture import SECRET, S3Place, as_profile, using
from s3spark import StoreRig, executors
from storekinds import MAKE, totals
from support import eventually

LOGS = "timelines/1/streams/rows/spark"


@pytest.fixture
def rig(spark: SparkSession, s3: S3Place, tmp_path: Path) -> StoreRig:
    pg = server()
    return StoreRig(spark, s3, tmp_path, [PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True)])


@pytest.fixture
def counting(spark: SparkSession, s3: S3Place, tmp_path: Path) -> StoreRig:
    pg = server()
    target = PostgresTarget(pg.dsn(pg.fresh_database()), "totals", create=True, key=["k"])
    return StoreRig(spark, s3, tmp_path, [target], totals, output_mode="update")


def test_a_stateless_stream_runs_and_continues(rig: StoreRig) -> None:
    for rows in ([1, 2], [3]):
        rig.add(*rows)
        rig.run()
    assert rig.visible() == [[1, 2, 3]]
    names = sorted(each.name for each in (rig.repository / LOGS / "offsets").iterdir())
    assert names == ["0", "1"]
    assert not list(rig.folder.glob("root"))  # nothing of the repository is on the disk
    kinds = {each.name for each in rig.repository.rglob("*") if each.is_file() and each.name.endswith((".crc", ".tmp"))}
    assert kinds == set()


def test_a_stateful_stream_runs_and_continues_and_spark_deletes_nothing(counting: StoreRig) -> None:
    for number in range(4):
        counting.add(number)
        counting.run()
    assert counting.targets[0].visible(None, "k total rows") == [(0, 3, 2), (1, 1, 1), (2, 2, 1)]
    state = counting.repository / LOGS / "state/0/0"
    versions = {int(each.name.partition("_")[0]) for each in state.iterdir() if each.name[0].isdigit()}
    assert versions == {1, 2, 3, 4}
    assert all("_" in each.name for each in state.iterdir() if each.name[0].isdigit())  # format 2


def test_the_file_manager_is_set_for_the_rest_of_the_session(rig: StoreRig) -> None:
    rig.add(1)
    rig.run()
    assert adapter.setting(rig.spark, adapter.FILE_MANAGER) == adapter.STORE_FILES
    assert f"s3a://{rig.s3.bucket}/pipelines/torment" in str(adapter.setting(rig.spark, "spark.holdfast.store.roots"))


def test_a_store_is_not_polled_as_often_as_a_disk(rig: StoreRig, s3: S3Place) -> None:
    """Each poll of a file source on a store sends LIST requests, which cost money."""
    ObjectRepository(s3.url("in")).put_new("1.json", b'{"n": 1}')
    made = Pipeline("reader", root=rig.folder / "root")

    @made.stream(sinks=[FileSink(rig.folder / "out")])
    def rows(spark: SparkSession) -> Any:
        return spark.readStream.schema("n long").json(f"s3a://{s3.bucket}/in")

    for pipeline, options, ms in (
        (made, {}, 200),
        (made, {"poll_every": "20ms"}, 20),
        (rig.pipeline(), {}, 50),
    ):
        with pipeline.start(rig.spark, checkpoint_every=None, **options) as handle:
            assert polling_delays_ms(handle) == {ms}


def test_a_local_pipeline_of_the_same_session_is_not_affected(
    rig: StoreRig, spark: SparkSession, tmp_path: Path
) -> None:
    rig.add(1)
    rig.run()
    pg = server()
    other = Rig(spark, tmp_path / "local", [PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True)])
    other.add(7)
    other.run()
    assert other.visible() == [[7]]
    assert (other.checkpoint / "commits/0").is_file()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.streaming.minBatchesToRetain", "99"),
        ("spark.sql.streaming.stateStore.maxVersionsToDeletePerMaintenance", "30"),
        ("spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint", "0.3"),
        (adapter.PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"),
        ("spark.sql.streaming.stateStore.checkpointFormatVersion", "1"),
    ],
)
def test_settings_that_cannot_work_on_a_store_are_refused(
    rig: StoreRig, spark: SparkSession, name: str, value: str
) -> None:
    rig.add(1)
    with adapter.with_settings(spark, {name: value}), pytest.raises(NotSupported, match=name):
        rig.run()
    assert rig.visible() == [[]]


def test_a_session_that_writes_elsewhere_is_refused(rig: StoreRig, spark: SparkSession) -> None:
    """The connector has another endpoint than Holdfast: each of them alone would work."""
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set(f"fs.s3a.bucket.{rig.s3.bucket}.secret.key", "another")
    rig.add(1)
    with pytest.raises(StoresDiffer) as caught:
        rig.run()
    assert SECRET not in str(caught.value)
    assert "another" not in str(caught.value)


def test_a_damaged_entry_is_reported_and_never_removed(rig: StoreRig) -> None:
    for rows in ([1], [2]):
        rig.add(*rows)
        rig.run()
    path = rig.repository / LOGS / "offsets/1"
    path.write_bytes(path.read_bytes()[:-3])
    rig.add(3)
    with pytest.raises(SparkFileDamaged, match="offsets/1"):
        rig.run()
    assert path.exists()
    assert rig.visible() == [[1, 2]]


@pytest.mark.parametrize("log", ["commits", "offsets"])
def test_an_entry_of_a_driver_that_was_replaced_restarts_the_stream_at_once(rig: StoreRig, log: str) -> None:
    """The old driver writes one more entry of a log. No restart is allowed here: this one is not counted."""
    rig.add(1)
    rig.run()
    repository = ObjectRepository(rig.s3.url("pipelines/torment"))
    written: list[bool] = []

    def reach(point: str) -> None:
        batch = 1 if log == "commits" else 2
        if point == "decided" and not written:
            entry = repository.read(f"{LOGS}/{log}/{1 if log == 'offsets' else 0}")
            if log == "offsets":  # of the next batch, which has one more file
                entry = entry.replace(b'{"logOffset":1}', b'{"logOffset":2}')
                source = repository.read(f"{LOGS}/sources/0/1")
                made = source.replace(b"000002.json", b"000003.json").replace(b'"batchId":1', b'"batchId":2')
                written.append(repository.put_if_absent(f"{LOGS}/sources/0/2", made).won)
            written.append(repository.put_if_absent(f"{LOGS}/{log}/{batch}", entry + b" " * (log == "commits")).won)

    rig.add(2)
    rig.add(3)
    status = rig.run(reach)
    assert all(written)
    assert rig.visible() == [[1, 2, 3]]
    assert status.streams["rows"].restarts == 0


def test_a_running_pipeline_on_a_store_is_asked_by_its_address(rig: StoreRig, spark: SparkSession) -> None:
    def asked(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, "--repo", f"{rig.root}/torment", "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)["result"]

    rig.add(1)
    handle = rig.pipeline().start(spark, checkpoint_every=None)
    try:
        eventually(lambda: handle.status().streams["rows"].epoch == 1)
        asked("checkpoint")
        asked("savepoint", "kept")
        pruned = asked("prune", "--last", "1", "--deep", "--yes")
        assert pruned["pruned"] is not None or not pruned["drops"]
        asked("stop")
    finally:
        handle.stop()
    assert handle.await_termination(60).streams["rows"].state == "stopped"
    assert rig.visible() == [[1]]


PROGRAM = """
import holdfast as hf

pipeline = hf.Pipeline("planned", root={root!r})


@pipeline.stream(sinks=[hf.FileSink({folder!r} + "/out")])
def rows(spark):
    return spark.readStream.schema("n long").json({folder!r} + "/in"){more}
"""


def test_a_plan_compares_a_program_with_a_pipeline_on_a_store_and_changes_nothing(
    rig: StoreRig, s3: S3Place, tmp_path: Path
) -> None:
    rig.add(1)  # a file in `in`
    program = tmp_path / "app.py"
    given = {"root": s3.url("plans"), "folder": str(tmp_path)}
    program.write_text(PROGRAM.format(**given, more=""))
    made: Pipeline = runpy.run_path(str(program))["pipeline"]
    made.run(rig.spark, available_now=True, checkpoint_every=None)
    before = ObjectRepository(s3.url("plans")).flat()
    assert planned(program) == []
    program.write_text(PROGRAM.format(**given, more='.groupBy("n").count()'))
    assert planned(program)
    assert ObjectRepository(s3.url("plans")).flat() == before


def planned(program: Path) -> list[Any]:
    """Return the changes that `holdfast plan` finds."""
    done = CliRunner().invoke(app, ["plan", str(program), "--json"])
    return list(json.loads(done.stdout)["result"]["changes"])


def test_the_secret_is_in_no_object_and_no_status(rig: StoreRig) -> None:
    rig.add(1)
    status = rig.run()
    assert SECRET not in repr(status)
    assert not [each for each in rig.repository.rglob("*") if each.is_file() and SECRET.encode() in each.read_bytes()]


def test_spark_and_holdfast_read_the_same_profile(
    rig: StoreRig, spark: SparkSession, s3: S3Place, tmp_path: Path
) -> None:
    """Java reads the files by itself: by variables, or, because this one runs already, by properties."""
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for name in ("access.key", "secret.key", "endpoint", "endpoint.region"):
        conf.unset(f"fs.s3a.bucket.{s3.bucket}.{name}")
    variables = as_profile(s3, tmp_path)
    java: Any = spark._jvm.java.lang.System  # type: ignore[union-attr]
    named = {
        "aws.sharedCredentialsFile": variables["AWS_SHARED_CREDENTIALS_FILE"],
        "aws.configFile": variables["AWS_CONFIG_FILE"],
        "aws.profile": variables["AWS_PROFILE"],
    }
    for name, value in named.items():
        java.setProperty(name, value)
    try:
        with using(variables):
            rig.add(1, 2)
            rig.run()
    finally:
        for name in named:
            java.clearProperty(name)
    assert rig.visible() == [[1, 2]]
    settings = dict(conf.getPropsWithPrefix(f"fs.s3a.bucket.{s3.bucket}."))
    assert "ProfileCredentialsProvider" in settings["aws.credentials.provider"]
    assert SECRET not in settings.values()


def test_sinks_that_cannot_be_on_a_store_name_what_can() -> None:
    with pytest.raises(NotSupported, match=r"DeltaSink.*IcebergSink"):
        FileSink("s3://bucket/out")
    with pytest.raises(NotSupported, match="one machine"):
        SqliteSink("s3://bucket/rows.db", "rows")


@pytest.mark.parametrize("scheme", ["gs", "az", "hdfs", "s3a"])
def test_other_stores_are_refused_by_name(scheme: str) -> None:
    with pytest.raises(NotSupported, match=scheme):
        Pipeline("orders", f"{scheme}://bucket/pipelines")


_ROUND_S = 0.5  # how long each request takes: much longer than what a busy machine adds to it


class Answers(list[Any]):
    """Requests that the proxy has seen, and when each was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def append(self, found: Any) -> None:
        self.at.append(time.monotonic())
        super().append(found)

    def rounds(self, first: int, last: int, apart_s: float) -> list[list[str]]:
        """Return the requests in groups that were under way at the same time."""
        found: list[list[str]] = []
        before = 0.0
        for number in range(first, last):
            if re.search(r"(requests|activity)(/|%2F)|\.beat$", self[number].key):
                continue  # of threads that run beside the epochs
            if self.at[number] - before > apart_s:
                found.append([])
            before = self.at[number]
            found[-1].append(f"{self[number].kind} {self[number].key}")
        return found


@pytest.mark.parametrize("kind", MAKE)
def test_an_epoch_takes_at_most_five_round_trips_of_ours(
    kind: str, spark: SparkSession, s3: S3Place, s3_faults: FaultProxy, tmp_path: Path
) -> None:
    """The lease, the slot and two entries of Spark's logs; new entries of sources, while the sinks prepare; the
    decision; the heads; the record of a log. Only these pass the proxy: Spark and its tasks use the server's address.
    """
    rig = MAKE[kind](spark, s3, tmp_path)
    s3_faults.seen = seen = Answers()
    begun: list[int] = []
    ended: list[int] = []

    def reach(point: str) -> None:
        if point == "opening":
            begun.append(len(seen))
            s3_faults.delay_s = _ROUND_S if len(begun) > 2 else 0.0

    def on_epoch(*_: object) -> None:
        ended.append(len(seen))
        s3_faults.delay_s = 0.0

    for number in range(5):
        rig.add(number)
    with executors(spark, s3.environment):
        rig.run(reach, callbacks=StreamCallbacks(on_epoch=on_epoch))
    for first, last in list(zip(begun, ended, strict=True))[2:]:
        rounds = seen.rounds(first, last, _ROUND_S * 0.7)
        assert 3 <= len(rounds) <= (5 if "log" in kind else 4), rounds
        assert len([each for group in rounds for each in group if each.startswith("LIST")]) <= 2
