"""An event log on S3 as a sink and as a source: executors and driver share nothing but the bucket."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from faultproxy import FaultProxy
from holdfast.epoch import HOLDS, POINTS, Extent
from holdfast.errors import BadValue, LogCorrupt, SinkFailed, StreamFailed
from holdfast.eventlog import EventLog, Region
from holdfast.repository import ObjectRepository
from holdfast.sinks.base import Sink
from holdfast.sinks.log import LogSink
from holdfast.testing import CrashAt
from holdfast.testing.sinks import SinkContract, VisibleRows
from rig import FilesTarget, LogTarget, Rig
from s3fixture import KEY_ID, SECRET, S3Place, environment, with_faults
from s3spark import StoreRig, StoreTarget, executors


@pytest.fixture(autouse=True)
def of_executors(spark: SparkSession, s3: S3Place) -> Iterator[dict[str, str]]:
    with executors(spark, s3.environment) as found:
        yield found


class TestLogOnStore(SinkContract):
    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Place) -> None:
        self.s3 = s3

    def make(self, folder: Path) -> Sink:
        return LogSink(self.s3.url(f"{folder.name}/log"), entity="text")

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, LogSink)
        log = EventLog.open(sink.path)
        events = list(log.read())
        holes = log.cancelled(0, log.tail)
        assert len(events) + sum(end - start for start, end in holes) == log.tail
        assert log.rewinds or not holes, "no holes"
        return [(event.payload["n"], event.payload["text"]) for event in events]


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_a_point(point: str, spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [StoreTarget(s3.url("log"), entity="text")])
    rig.add(0)
    rig.run()
    before = sorted(rig.rows)
    rig.add_more(3)
    if point in ("aborted", "discarded"):  # reached by a second driver, which clears up after the first
        rig.crash(CrashAt("durable"))
    assert rig.crash(CrashAt(point)).startswith(point)
    (visible,) = rig.visible()
    if HOLDS[POINTS[point]][1] is Extent.NONE or point == "decided":
        assert visible == before
    assert visible in (before, sorted(rig.rows))
    rig.run()
    assert rig.visible() == [sorted(rig.rows)]
    rig.add_more(2)
    rig.run()
    assert rig.visible() == [sorted(rig.rows)]
    assert rig.staged() == [0]


def test_a_pipeline_of_two_streams_while_requests_fail(
    spark: SparkSession, s3: S3Place, s3_faults: FaultProxy, tmp_path: Path, of_executors: dict[str, str]
) -> None:
    of_executors.update(environment(s3_faults.endpoint))
    with_faults(s3_faults, 0.01)
    rig = Rig(spark, tmp_path, [LogTarget(s3.url("log"), entity="text")])  # type: ignore[arg-type]

    def run() -> None:
        pipeline = rig.pipeline()

        def copy(spark: SparkSession) -> DataFrame:
            return pipeline.read("rows", rows_per_epoch=2)

        pipeline.stream(copy, name="copy", sinks=hf.FileSink(rig.folder / "copy"))
        pipeline.run(spark, available_now=True, checkpoint_every=None)

    for _ in range(3):
        rig.add_more(3)
        run()
    s3_faults.clear()
    assert rig.visible() == [list(range(9))]
    assert FilesTarget(tmp_path / "copy").visible(spark) == list(range(9))
    offsets = tmp_path / "root/torment/timelines/1/streams/copy/spark/offsets"
    ends = [
        json.loads(path.read_text().splitlines()[-1])
        for path in sorted(offsets.glob("[0-9]*"), key=lambda p: int(p.name))
    ]
    assert all(set(end) == {"log", "sequence", "chain", "record"} for end in ends)
    assert [end["record"] for end in ends if end["sequence"] in (2, 5)], "positions inside a record"


def test_no_secret_is_in_a_decision_an_offset_or_the_log(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [LogTarget(s3.url("log"), entity="text")])  # type: ignore[arg-type]
    rig.add(1, 2)
    rig.run()
    for folder in (tmp_path / "root", s3.folder):
        for path in folder.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert SECRET.encode() not in data and KEY_ID.encode() not in data, path


def test_a_batch_query_reads_by_the_index(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [LogTarget(s3.url("log"), entity="text")])  # type: ignore[arg-type]
    for _ in range(3):
        rig.add_more(4)
        rig.run()
    url = s3.url("log")
    log = EventLog.open(url)
    assert sorted(row.payload.n for row in hf.read_log(spark, url).collect()) == list(range(12))
    assert sorted(row.sequence for row in hf.read_log(spark, url, start=3, end=9).collect()) == list(range(3, 9))
    assert hf.read_log(spark, url).where("payload.n > 5").select("entity").count() == 6
    with log.writer() as writer:
        writer.rewind("key", [(4, 4)])
    assert sorted(row.sequence for row in hf.read_log(spark, url).collect()) == [*range(4), *range(8, 12)]
    segment = next(iter(log.segments(8, 12)))
    path = s3.folder / "log" / segment.path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match="its bytes are not those that were committed"):
        hf.read_log(spark, url, start=8).collect()


def test_a_stream_that_has_read_what_a_rewind_takes_back_is_stopped(
    spark: SparkSession, s3: S3Place, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, [LogTarget(s3.url("log"), entity="text")])  # type: ignore[arg-type]
    rig.add(1, 2)
    rig.run()
    reader = hf.Pipeline("reader", tmp_path / "root", restart=hf.RestartPolicy.never())

    def lines(spark: SparkSession) -> DataFrame:
        return hf.read_log_stream(spark, s3.url("log")).select("sequence", "payload.n")

    reader.stream(lines, name="lines", sinks=hf.FileSink(tmp_path / "lines"))
    reader.run(spark, available_now=True, checkpoint_every=None)
    assert FilesTarget(tmp_path / "lines").visible(spark) == [1, 2]
    with EventLog.open(s3.url("log")).writer() as writer:
        writer.rewind("key", [(0, 2)])
    with pytest.raises(StreamFailed, match="a rewind has changed"):
        reader.run(spark, available_now=True, checkpoint_every=None)


def test_a_missing_record_is_damage_never_a_gap(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [LogTarget(s3.url("log"), entity="text")])  # type: ignore[arg-type]
    for _ in range(3):
        rig.add_more(2)
        rig.run()
    (s3.folder / "log/index" / f"{2:020}.json").unlink()
    with pytest.raises(LogCorrupt):
        list(EventLog.open(s3.url("log")).read(Region.everything()))


def test_rows_that_cannot_be_events_fail_and_leave_nothing(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    contract = TestLogOnStore()
    contract.s3 = s3
    sink = contract._open(spark, tmp_path)
    rows = spark.createDataFrame([(1, "row 1"), (2, None)], "n long, text string")
    with pytest.raises(SinkFailed, match="'text' cannot be the entity of 1 rows"):
        sink.prepare(rows, contract._key(1))
    assert ObjectRepository(s3.url(f"{tmp_path.name}/log")).flat("segments") == []
    with pytest.raises(BadValue, match="a column of the stream"):
        LogSink(s3.url("other"), entity="nothing").open(sink.context)


def test_each_partition_is_a_segment_in_its_order(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    contract = TestLogOnStore()
    contract.s3 = s3
    sink = contract._open(spark, tmp_path)
    rows = spark.range(0, 100, numPartitions=5).selectExpr("id AS n", "concat('row ', id) AS text")
    staged = sink.prepare(rows, contract._key(1))
    assert staged.rows == 100
    assert [name[:6] for name, *_ in staged.handle["segments"]] == [f"{part:05}-" for part in range(5)]
    sink.commit(contract._key(1), staged.handle)
    assert [event.payload["n"] for event in EventLog.open(s3.url(f"{tmp_path.name}/log")).read()] == list(range(100))


def test_the_log_is_rewound_and_its_events_are_skipped(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [LogTarget(s3.url("log"), entity="text")])  # type: ignore[arg-type]
    rig.add(1, 2)
    rig.pipeline().run(spark, available_now=True)
    rig.add(3, 4)
    rig.pipeline().run(spark, available_now=True)
    pipeline = rig.pipeline()
    plan = hf.plan_rewind(pipeline, "before:rows:2")
    hf.apply_rewind(pipeline, plan)
    seen = [event.payload["n"] for event in EventLog.open(s3.url("log")).read()]
    assert seen == [1, 2]
    rig.pipeline().run(spark, available_now=True)
    events = [(event.sequence, event.payload["n"]) for event in EventLog.open(s3.url("log")).read()]
    assert events == [(0, 1), (1, 2), (5, 3), (6, 4)]


def test_streams_are_chained_below_a_root_on_s3(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    """Nothing but the inputs of the test is on a disk: repository, Spark's checkpoints, the log and its readers."""
    rig = StoreRig(spark, s3, tmp_path, [StoreTarget(s3.url("own"), entity="text")])

    def run() -> None:
        pipeline = rig.pipeline()

        def copy(spark: SparkSession) -> DataFrame:
            return pipeline.read("rows", rows_per_epoch=2)

        def again(spark: SparkSession) -> DataFrame:
            return pipeline.read("copy")

        pipeline.stream(copy, name="copy", sinks=hf.FileSink(tmp_path / "copy"))
        pipeline.stream(again, name="again", sinks=hf.LogSink(s3.url("again")))
        pipeline.run(spark, available_now=True, checkpoint_every=None)

    for _ in range(3):
        rig.add_more(3)
        run()
    expected = list(range(9))
    assert rig.visible() == [expected]
    assert FilesTarget(tmp_path / "copy").visible(spark) == expected
    assert sorted(event.payload["n"] for event in EventLog.open(s3.url("again")).read()) == expected
    inner = EventLog.open(s3.url("pipelines/torment/logs/copy/log"))
    floor = inner.home.floor()
    assert floor == 3, "no stream and no checkpoint needs the events of the first run any more"
    assert [event.payload["n"] for event in inner.read(start=floor)] == expected[3:]


def test_a_fork_takes_the_logs_between_streams_with_it(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    """The reader of the fork continues inside the copied log, while the original goes on with its own."""
    rig = StoreRig(spark, s3, tmp_path, [FilesTarget(tmp_path / "out")])

    def run(name: str, out: str) -> None:
        pipeline = hf.Pipeline(name, rig.root)

        def copy(spark: SparkSession) -> DataFrame:
            return pipeline.read("rows", rows_per_epoch=2)

        pipeline.stream(rig.build, name="rows", sinks=hf.FileSink(tmp_path / out))
        pipeline.stream(copy, name="copy", sinks=hf.FileSink(tmp_path / f"{out}-copy"))
        pipeline.run(spark, available_now=True)

    rig.add(0, 1, 2)
    run("torment", "out")
    made = hf.fork(ObjectRepository(f"{rig.root}/torment"), "latest", name="trial")
    assert made.logs == ("rows",)
    rig.add(3, 4, 5)
    for name, out in (("torment", "out"), ("trial", "forked")):
        run(name, out)
    for _ in range(2):
        run("trial", "forked")
    assert FilesTarget(tmp_path / "out-copy").visible(spark) == list(range(6))
    assert FilesTarget(tmp_path / "forked").visible(spark) == [3, 4, 5]
    assert FilesTarget(tmp_path / "forked-copy").visible(spark) == [3, 4, 5]
    logs = [EventLog.open(f"{rig.root}/{name}/logs/rows/log") for name in ("torment", "trial")]
    assert logs[0].identity == logs[1].identity
    assert logs[0].tail == logs[1].tail == 6
