"""The Kafka sink with Spark and a real broker: the contract of sinks, the form of its records, crashes, and rewinds."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.epoch import HOLDS, POINTS, Extent
from holdfast.errors import MarkerLost, NotSupported, SchemaMismatch, SinkFailed, StreamFailed
from holdfast.rewind import apply_rewind, plan_rewind
from holdfast.sinks.base import Sink, SinkContext
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.testing import CrashAt
from holdfast.testing.sinks import SinkContract, VisibleRows
from kafkafixture import broker
from kafkarig import OWNER, KafkaTarget, key_of
from rig import FilesTarget, Rig

CLEARING = ["aborted", "discarded"]  # reached by a second driver, which clears up after the first
PLAIN = [point for point in POINTS if point not in CLEARING]
DAY = datetime(2024, 5, 1, 12, tzinfo=UTC)


class _Kafka(SinkContract):
    """A topic for each folder."""

    options: ClassVar[dict[str, Any]] = {}
    _topics: ClassVar[dict[Path, str]] = {}

    def make(self, folder: Path) -> Sink:
        if folder not in self._topics:
            self._topics[folder] = broker().topic(partitions=2)
        return KafkaSink(broker().address, self._topics[folder], path=folder / "sink", **self.options)

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, KafkaSink)
        rows = [json.loads(value or b"") for _, value in broker().rows(sink.topic)]
        return [(row["n"], row["text"]) for row in rows]


class TestKafka(_Kafka):
    pass


class TestKafkaShared(_Kafka):
    options: ClassVar[dict[str, Any]] = {"share": True, "key": "text"}


# --- records -------------------------------------------------------------------------------------------------------


class Written:
    """What an epoch with one DataFrame writes."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.topic = broker().topic(partitions=3, retention_ms="-1")  # rows with old timestamps stay
        self._sinks: list[KafkaSink] = []

    def sink(self, df: DataFrame, output_mode: str = "append", **options: Any) -> KafkaSink:
        sink = KafkaSink(broker().address, options.pop("topic", self.topic), path=self.folder, **options)
        self._sinks.append(sink)
        sink.open(SinkContext(OWNER, df.schema, output_mode, self.spark, tell=lambda _: None))
        return sink

    def messages(self, df: DataFrame, **options: Any) -> list[Any]:
        sink = self.sink(df, **options)
        staged = sink.prepare(df, key_of(1))
        sink.commit(key_of(1), staged.handle)
        assert staged.rows == df.count()
        return broker().messages(self.topic)

    def close(self) -> None:
        for each in self._sinks:
            each.close()


@pytest.fixture
def written(spark: SparkSession, tmp_path: Path) -> Iterator[Written]:
    found = Written(spark, tmp_path)
    yield found
    found.close()


def test_all_columns_become_json(spark: SparkSession, written: Written) -> None:
    df = spark.sql(
        "SELECT 1L AS n, 'ä' AS text, CAST(NULL AS INT) AS none, 1.50BD AS price, X'00ff' AS raw, "
        "TIMESTAMP '2024-05-01 12:00:00' AS at, array(1, 2) AS list, struct('x' AS `a.b`) AS inner"
    )
    (message,) = written.messages(df)
    assert json.loads(message.value()) == {
        "n": 1,
        "text": "ä",
        "none": None,
        "price": 1.5,
        "raw": base64.b64encode(b"\x00\xff").decode(),
        "at": "2024-05-01T12:00:00.000Z",
        "list": [1, 2],
        "inner": {"a.b": "x"},
    }
    assert (message.key(), message.headers()) == (None, None)


def test_columns_as_given(spark: SparkSession, written: Written) -> None:
    """Bytes stay what they are, and what routes a record is not in its JSON."""
    df = spark.sql(
        "SELECT 'k1' AS `the key`, X'00ff80' AS avro, map('h', 'v') AS tags, 2 AS p, "
        "TIMESTAMP '2024-05-01 12:00:00' AS at"
    )
    (message,) = written.messages(df, key="the key", value="avro", headers="tags", timestamp="at", partition="p")
    assert (message.key(), message.value(), message.partition()) == (b"k1", b"\x00\xff\x80", 2)
    assert message.headers() == [("h", b"v")]
    assert message.timestamp()[1] == int(DAY.timestamp() * 1000)


def test_keys_of_several_columns_and_topics_of_rows(spark: SparkSession, written: Written) -> None:
    other = broker().topic()
    df = spark.createDataFrame([(1, "a", None), (2, "b", other)], "n long, text string, target string")
    (message,) = written.messages(df, key=["n"], value=["text"], topic_column="target")
    assert (message.key(), message.value()) == (b'{"n":1}', b'{"text":"a"}')
    assert broker().rows(other) == [(b'{"n":2}', b'{"text":"b"}')]


def test_keys_are_distributed_as_by_java_producers(spark: SparkSession, written: Written) -> None:
    """The partition of a key is the one that Spark's own writer chooses."""
    df = spark.range(50).select(f.col("id").cast("string").alias("key"), f.lit("x").alias("value"))
    ours = {each.key(): each.partition() for each in written.messages(df, key="key", value="value")}
    topic = broker().topic(partitions=3)
    df.write.format("kafka").option("kafka.bootstrap.servers", broker().address).option("topic", topic).save()
    assert ours == {each.key(): each.partition() for each in broker().messages(topic)}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"key": "absent"}, "is not a column"),
        ({"key": "n"}, "has the type bigint"),
        ({"value": "n"}, r"pass value=\['n'\]"),
        ({"value": ["n", "absent"]}, "is not a column"),
        ({"headers": "text"}, "expected array"),
        ({"timestamp": "text"}, "expected timestamp"),
        ({"partition": "text"}, "expected int"),
        ({"partition": "n"}, "expected int"),
        ({"topic_column": "n"}, "expected string"),
    ],
)
def test_columns_that_cannot_be_a_part_of_a_record(
    options: dict[str, Any], why: str, spark: SparkSession, written: Written
) -> None:
    df = spark.sql("SELECT 1L AS n, 'a' AS text")
    with pytest.raises(SchemaMismatch, match=why):
        written.sink(df, **options)


def test_a_type_that_json_lacks(spark: SparkSession, written: Written) -> None:
    df = spark.sql("SELECT CAST(NULL AS VOID) AS nothing, map(named_struct('a', 1), 2) AS pairs")
    sink = written.sink(df)  # Spark writes even these
    assert sink.prepare(df, key_of(1)).rows == 1


@pytest.mark.parametrize(
    ("select", "options", "why"),
    [
        ("repeat('x', 2000000) AS text", {}, "bytes, and the topic accepts"),
        ("'a' AS text, 3 AS p", {"partition": "p"}, "has 3 partitions"),
        ("'a' AS text, -1 AS p", {"partition": "p"}, "partition -1"),
        ("'a' AS text, 'no-such-topic' AS t", {"topic_column": "t"}, "does not exist"),
        ("'a' AS text, 'no such topic!' AS t", {"topic_column": "t"}, "does not exist"),
        ("'a' AS text, TIMESTAMP '1969-01-01 00:00:00' AS at", {"timestamp": "at"}, "1970-01-01"),
        ("'a' AS text, TIMESTAMP '2999-01-01 00:00:00' AS at", {"timestamp": "at"}, "ahead of the clock"),
        (
            "'a' AS text, array(struct(CAST(NULL AS STRING) AS key, X'00' AS value)) AS h",
            {"headers": "h"},
            "header without a name",
        ),
    ],
)
def test_rows_that_the_server_would_refuse_fail_before_the_decision(
    select: str, options: dict[str, Any], why: str, spark: SparkSession, written: Written
) -> None:
    df = spark.sql(f"SELECT {select}")
    sink = written.sink(df, **options)
    with pytest.raises(SinkFailed, match=why):
        sink.prepare(df, key_of(1))
    assert broker().rows(written.topic) == []


def test_a_compacted_topic_needs_keys(spark: SparkSession, written: Written) -> None:
    compacted = broker().topic(cleanup_policy="compact")
    df = spark.sql("SELECT 'a' AS text, CAST(NULL AS STRING) AS k")
    with pytest.raises(SinkFailed, match="no key"):
        written.sink(df, topic=compacted, key="k").prepare(df, key_of(1))


def test_output_modes(spark: SparkSession, written: Written) -> None:
    df = spark.sql("SELECT 'a' AS text")
    with pytest.raises(NotSupported, match="key="):
        written.sink(df, "update")
    with pytest.raises(NotSupported, match="changelog"):
        written.sink(df, "complete", key="text")
    written.sink(df, "update", key="text")
    written.sink(df, "complete", changelog=True)


# --- pipelines -----------------------------------------------------------------------------------------------------


class Rigs:
    """One rig for all points, after its first epoch; after a test that fails, the next one gets a new one."""

    def __init__(self, spark: SparkSession, factory: pytest.TempPathFactory) -> None:
        self._spark, self._factory = spark, factory
        self._whole: Rig | None = None

    @contextmanager
    def one(self) -> Iterator[Rig]:
        rig, self._whole = self._whole, None
        if rig is None:
            rig = kafka_rig(self._spark, self._factory.mktemp("kafka"))
            rig.add(0)
            rig.run()
        yield rig
        self._whole = rig


def kafka_rig(spark: SparkSession, folder: Path, **options: Any) -> Rig:
    return Rig(spark, folder, [KafkaTarget(broker(), broker().topic(partitions=2), folder / "sink", **options)])


@pytest.fixture(scope="module")
def rigs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Rigs:
    return Rigs(spark, tmp_path_factory)


@pytest.mark.parametrize("point", PLAIN)
def test_a_crash_at_a_point(point: str, rigs: Rigs) -> None:
    with rigs.one() as rig:
        before = sorted(rig.rows)
        rig.add_more(3)
        assert rig.crash(CrashAt(point)).startswith(point)
        ((visible,), (staged,)) = rig.visible(), rig.staged()
        prepared, shown = HOLDS[POINTS[point]]
        if shown is Extent.ALL or point == "committed":
            assert visible == sorted(rig.rows)
        else:
            assert visible == before  # one transaction: never a part of it
        if prepared is Extent.ALL and shown is not Extent.ALL and point != "committed":
            assert staged
        rig.run()
        assert rig.visible() == [sorted(rig.rows)]


@pytest.mark.parametrize("point", CLEARING)
def test_a_crash_of_the_driver_that_clears_up(point: str, rigs: Rigs) -> None:
    with rigs.one() as rig:
        before = sorted(rig.rows)
        rig.add_more(2)
        rig.crash(CrashAt("durable"))
        assert rig.crash(CrashAt(point)).startswith(point)
        assert rig.visible() == [before]
        rig.run()
        assert rig.visible() == [sorted(rig.rows)]


def test_rows_that_the_server_would_refuse_go_to_the_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    target = KafkaTarget(broker(), broker().topic(partitions=2), tmp_path / "sink", partition="p", name="topic")
    dead = FilesTarget(tmp_path / "dead", name="dead")
    rig = Rig(spark, tmp_path, [target], lambda df: df.withColumn("p", f.expr("int(n)")), dead=dead)
    rig.add(-1, 0, 1, 2)
    rig.run()
    assert rig.visible() == [[0, 1]]
    reason = "topic: p cannot be the partition"
    assert dead.visible(spark, "n dead_letter_reason") == [(-1, reason), (2, reason)]


def test_a_marker_that_was_lost_stops_the_stream_and_a_rewind_continues_it(spark: SparkSession, tmp_path: Path) -> None:
    """The advice of the error is followed: nothing is written twice after a checkpoint of the last epoch."""
    rig = kafka_rig(spark, tmp_path)
    (target,) = rig.targets
    assert isinstance(target, KafkaTarget)
    rig.add(1)
    rig.pipeline().run(spark, available_now=True)  # with a checkpoint at its end
    group = f"holdfast.{target.topic}"
    broker().admin.delete_consumer_groups([group])[group].result(30)
    rig.add(2)
    with pytest.raises((StreamFailed, MarkerLost), match="is lost"):
        rig.run()
    assert target.visible() == [1]
    name = target.make().name
    refused = plan_rewind(rig.pipeline(), "latest")
    assert any("was it deleted?" in problem for problem in refused.problems), refused.problems
    plan = plan_rewind(rig.pipeline(), "latest", leave=[name])
    assert "check that it holds" in (plan.streams[0].sinks[0].why or "")
    apply_rewind(rig.pipeline(), plan)
    rig.run()
    assert target.visible() == [1, 2]


def test_a_rewind_leaves_the_rows_and_writes_later_ones_again(spark: SparkSession, tmp_path: Path) -> None:
    rig = kafka_rig(spark, tmp_path)
    (target,) = rig.targets
    rig.add(1)
    rig.pipeline().run(spark, available_now=True)
    rig.add(2)
    rig.run()
    name = target.make().name
    refused = plan_rewind(rig.pipeline(), "latest")
    assert any(f"--leave {name}" in problem for problem in refused.problems), refused.problems
    apply_rewind(rig.pipeline(), plan_rewind(rig.pipeline(), "latest", leave=[name]))
    rig.run()
    assert target.visible(spark) == [1, 2, 2]


def test_the_repository_has_no_password(spark: SparkSession, tmp_path: Path) -> None:
    rig = kafka_rig(spark, tmp_path, options={"sasl.password": "hunter2", "sasl.username": "etl"})
    rig.add(1)
    rig.run()
    found = [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert found == []


def test_the_code_of_the_page(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is in docs/kafka-sink.md, but for the address and the folder of the input."""
    page = (Path(__file__).parents[2] / "docs/kafka-sink.md").read_text()
    ((code, topic),) = re.findall(r'^```py\n(.*?9092", "(\w+)".*?)^```', page, re.MULTILINE | re.DOTALL)
    broker().topic(topic)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    code = code.replace("broker1:9092,broker2:9092", broker().address).replace("./orders", str(tmp_path / "orders"))
    exec(code, names)  # noqa: S102 - our own docs
    for number, price in enumerate((2.5, 1.0)):
        (tmp_path / "orders").mkdir(exist_ok=True)
        (tmp_path / f"orders/{number}.json").write_text(json.dumps({"item": "tea", "price": price}))
        names["pipeline"].run(spark, available_now=True)
    found = [(key, json.loads(value or b"")) for key, value in broker().rows(topic)]
    assert found == [(b"tea", {"item": "tea", "total": total}) for total in (2.5, 3.5)]
