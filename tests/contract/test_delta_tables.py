"""Which tables, columns and options a DeltaSink accepts, without Spark: rows are staged by hand.

Everything that is refused raises a typed error that names the next step, and changes nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from pyspark.sql import types as t

from deltastaged import OWNER, SCHEMA, context_for, frame_of, key_of, rows_of
from handstaged import table_of
from holdfast.errors import (
    BadValue,
    HoldfastError,
    NotSupported,
    SchemaMismatch,
    SinkBehind,
    SinkFailed,
    SinkForeign,
    SinkUnavailable,
    StagedDamaged,
    StagedGone,
)
from holdfast.sinks.base import CannotTakeBack, EpochKey, Link, StreamIdentity, TakeBack, handle_digest
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.lake.table_folder import table_folder
from lakeframe import LakeFrame, LongFrame
from s3fixture import S3_PARAMS, S3Place

OTHER = StreamIdentity("contract", "0" * 31 + "2", "rows")
COLUMNS = SCHEMA.jsonValue()["fields"]


def opened(path: str | Path, owner: StreamIdentity = OWNER, schema: t.StructType = SCHEMA, **options: Any) -> DeltaSink:
    sink = DeltaSink(path, **options)
    sink.open(context_for(owner, schema=schema))
    return sink


def filled(path: Path, epochs: int = 4, **options: Any) -> DeltaSink:
    sink = opened(path, **options)
    for epoch in range(1, epochs + 1):
        sink.commit(key_of(epoch), sink.prepare(frame_of(epoch, 10 * epoch), key_of(epoch)).handle)
    return sink


def numbers(sink: DeltaSink) -> list[int]:
    return [n for n, _ in rows_of(sink)]


def _before_its_commit(sink: DeltaSink, act: Callable[[], object]) -> None:
    """Have another program change the table when a sink has checked it, and is about to commit, for the first time."""
    commit = sink._log.commit

    def late(*args: Any, **options: Any) -> HoldfastError | None:
        sink._log.commit = commit  # type: ignore[method-assign]
        act()
        return commit(*args, **options)

    sink._log.commit = late  # type: ignore[method-assign]


def handmade(
    path: Path,
    *,
    fields: list[dict[str, Any]] | None = None,
    settings: dict[str, str] | None = None,
    protocol: dict[str, Any] | None = None,
) -> Path:
    """Write a table that delta-rs does not create."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    schema = json.dumps({"type": "struct", "fields": fields or COLUMNS})
    metadata = {
        "id": "00000000-0000-4000-8000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": settings or {},
        "createdTime": 0,
    }
    actions = [{"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    (log / f"{0:020}.json").write_text("".join(json.dumps(each) + "\n" for each in actions))
    return path


def newest(reader: list[str], writer: list[str]) -> dict[str, Any]:
    features = {"readerFeatures": reader, "writerFeatures": writer}
    return {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7} | (
        features if reader else {"writerFeatures": writer}
    )


def with_metadata(**metadata: Any) -> list[dict[str, Any]]:
    return [COLUMNS[0] | {"metadata": metadata}, COLUMNS[1]]


def mapped() -> list[dict[str, Any]]:
    return [
        each | {"metadata": {"delta.columnMapping.id": n, "delta.columnMapping.physicalName": f"col-{n}"}}
        for n, each in enumerate(COLUMNS, 1)
    ]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "deletion vectors": (
        {
            "protocol": newest(["deletionVectors"], ["deletionVectors"]),
            "settings": {"delta.enableDeletionVectors": "true"},
        },
        "deletion vectors",
    ),
    "deletion vectors that were turned off": (
        {"protocol": newest(["deletionVectors"], ["deletionVectors"])},
        "deletion vectors",
    ),
    "column mapping": (
        {
            "protocol": {"minReaderVersion": 2, "minWriterVersion": 5},
            "settings": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
            "fields": mapped(),
        },
        "column mapping",
    ),
    "a catalog": ({"protocol": newest(["catalogManaged"], ["catalogManaged", "inCommitTimestamp"])}, "catalog"),
    "a constraint": (
        {
            "protocol": {"minReaderVersion": 1, "minWriterVersion": 3},
            "settings": {"delta.constraints.positive": "n > 0"},
        },
        "constraint positive",
    ),
    "a generated column": (
        {
            "protocol": {"minReaderVersion": 1, "minWriterVersion": 4},
            "fields": with_metadata(**{"delta.generationExpression": "1 + 1"}),
        },
        "generated column n",
    ),
    "an identity column": (
        {
            "protocol": {"minReaderVersion": 1, "minWriterVersion": 6},
            "fields": with_metadata(**{"delta.identity.start": 1, "delta.identity.step": 1}),
        },
        "identity column n",
    ),
    "an invariant": (
        {"fields": with_metadata(**{"delta.invariants": '{"expression": {"expression": "n > 3"}}'})},
        "invariant on column n",
    ),
    "row tracking": ({"protocol": newest([], ["rowTracking", "domainMetadata"])}, "rowTracking"),
    "row tracking by a setting": (
        {
            "protocol": newest([], ["rowTracking", "domainMetadata"]),
            "settings": {"delta.enableRowTracking": "true"},
        },
        "it has row tracking",
    ),
    "in-commit timestamps": ({"protocol": newest([], ["inCommitTimestamp"])}, "inCommitTimestamp"),
    "in-commit timestamps by a setting": (
        {
            "protocol": newest([], ["inCommitTimestamp"]),
            "settings": {"delta.enableInCommitTimestamps": "true"},
        },
        "it has in-commit timestamps",
    ),
    "a column default": (
        {"protocol": newest([], ["allowColumnDefaults"]), "fields": with_metadata(CURRENT_DEFAULT="1")},
        "a default for column n",
    ),
    "Iceberg compatibility 1": ({"settings": {"delta.enableIcebergCompatV1": "true"}}, "it has Iceberg compatibility"),
    "Iceberg compatibility 2": ({"settings": {"delta.enableIcebergCompatV2": "true"}}, "it has Iceberg compatibility"),
    "a future feature": ({"protocol": newest([], ["timeTravelForever"])}, "timeTravelForever"),
    "a future reader feature": (
        {"protocol": newest(["timeTravelForever"], ["timeTravelForever"])},
        "timeTravelForever",
    ),
    "liquid clustering": ({"protocol": newest([], ["clustering", "domainMetadata"])}, "clustering"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_table_that_cannot_be_written_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    made, named = REFUSED[kind]
    path = handmade(tmp_path / "table", **made)
    before = sorted(each.name for each in path.rglob("*"))
    with pytest.raises((NotSupported, SinkFailed)) as found:
        opened(path)
    assert named in str(found.value)
    assert "Next: " in str(found.value)
    assert sorted(each.name for each in path.rglob("*")) == before


@pytest.mark.parametrize("features", [["appendOnly", "invariants"], ["checkConstraints"], ["changeDataFeed"]])
def test_features_that_are_not_used_are_no_obstacle(features: list[str], tmp_path: Path) -> None:
    path = handmade(tmp_path / "table", protocol=newest([], features))
    sink = opened(path)
    sink.commit(key_of(1), sink.prepare(frame_of(1), key_of(1)).handle)
    assert numbers(sink) == [1]


def struct(*fields: tuple[str, t.DataType]) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields])


COLUMNS_REFUSED: dict[str, tuple[t.StructType, dict[str, Any], type[HoldfastError], str]] = {
    "interval": (struct(("n", t.DayTimeIntervalType())), {}, NotSupported, "interval"),
    "variant": (struct(("n", t.VariantType())), {}, NotSupported, "variant"),
    "void": (struct(("n", t.NullType())), {}, NotSupported, "void"),
    "inside a list": (struct(("n", t.ArrayType(struct(("m", t.NullType()))))), {}, NotSupported, "n.element.m"),
    "a space in a name": (struct(("n m", t.LongType())), {}, BadValue, "rename"),
    "a bad name inside": (struct(("n", struct(("a;b", t.LongType())))), {}, BadValue, "rename"),
    "names that differ in case": (struct(("n", t.LongType()), ("N", t.LongType())), {}, BadValue, "case"),
    "no such partition": (SCHEMA, {"partition_by": "day"}, BadValue, "partition_by"),
    "all columns as partitions": (SCHEMA, {"partition_by": ["n", "text"]}, BadValue, "no column would be left"),
    "a float as partition": (
        struct(("n", t.DoubleType()), ("text", t.StringType())),
        {"partition_by": "n"},
        BadValue,
        "double",
    ),
}


@pytest.mark.parametrize("kind", COLUMNS_REFUSED)
def test_columns_that_no_table_can_store_are_refused(kind: str, tmp_path: Path) -> None:
    schema, options, error, named = COLUMNS_REFUSED[kind]
    with pytest.raises(error) as found:
        opened(tmp_path / "table", schema=schema, **options)
    assert named in str(found.value)
    assert not (tmp_path / "table").exists()


def field(name: str, kind: Any, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ([field("n", "integer"), field("text", "string")], "n is integer, and the stream's is long"),
        ([field("n", "long")], "no column text"),
        ([field("n", "long"), field("Text", "string")], "written text in the stream"),
        ([*COLUMNS, field("more", "long", False)], "more must not be null"),
        ([field("n", "long"), field("text", {"type": "struct", "fields": []})], "text is struct"),
    ],
)
def test_a_table_with_other_columns_is_refused(fields: list[dict[str, Any]], named: str, tmp_path: Path) -> None:
    path = handmade(tmp_path / "table", fields=fields)
    with pytest.raises(SchemaMismatch) as found:
        opened(path)
    assert named in str(found.value)
    assert DeltaTable(path).version() == 0


def test_columns_in_another_order_and_more_of_them(tmp_path: Path) -> None:
    path = handmade(tmp_path / "table", fields=[COLUMNS[1], field("more", "long"), COLUMNS[0]])
    sink = opened(path)
    sink.commit(key_of(1), sink.prepare(frame_of(1, 2), key_of(1)).handle)
    assert DeltaTable(path).to_pyarrow_table().sort_by("n").to_pylist() == [
        {"text": f"row {n}", "more": None, "n": n} for n in (1, 2)
    ]


def test_the_conditions_that_keep_nulls_out_of_a_table(tmp_path: Path) -> None:
    """The key of an upsert, and columns that are NOT NULL. Spark writes an empty string as a null partition."""
    n, text = field("n", "long", False), field("text", "string", False)
    plain = {"n is null": "`n` IS NOT NULL"}
    assert opened(handmade(tmp_path / "plain")).row_checks() == {}
    assert opened(handmade(tmp_path / "required", fields=[n, COLUMNS[1]])).row_checks() == plain
    assert opened(tmp_path / "upsert", key="n").row_checks() == plain
    table = write_table(tmp_path / "parts", n, text)
    assert opened(table).row_checks() == plain | {"text is null": "`text` IS NOT NULL AND `text` <> ''"}
    assert opened(table, key="text").row_checks() == plain | {"text is null": "`text` IS NOT NULL"}


def write_table(path: Path, *fields: dict[str, Any]) -> Path:
    DeltaTable.create(
        path, Schema.from_json(json.dumps({"type": "struct", "fields": list(fields)})), partition_by="text"
    )
    return path


def test_a_null_where_the_table_allows_none(tmp_path: Path) -> None:
    path = handmade(tmp_path / "table", fields=[field("n", "long", False), COLUMNS[1]])
    sink = opened(path)
    rows = pa.table({"n": pa.array([1, None], pa.int64()), "text": ["a", "b"]})
    frame: Any = LakeFrame(rows, SCHEMA)
    with pytest.raises(SinkFailed, match="column n is null in some rows"):
        sink.prepare(frame, key_of(1))
    sink.abort(key_of(1))
    assert not list(path.glob("hf/*/*/*"))
    sink.commit(key_of(2), sink.prepare(frame_of(1), key_of(2)).handle)
    assert numbers(sink) == [1]


@pytest.mark.parametrize("key", [None, "n"])
@pytest.mark.parametrize("store", ["disk", S3_PARAMS[0]])
def test_long_values_where_the_table_allows_no_null(
    store: str, key: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The footer of a file has no count of the nulls, so the column is read."""
    path = request.getfixturevalue("s3").url("table") if store == "s3" else str(tmp_path / "table")
    opened(path).close()  # creates the table
    made = DeltaSink(path)
    nothing = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string(), nullable=False)]).empty_table()
    write_deltalake(path, nothing, mode="overwrite", schema_mode="overwrite", storage_options=made._log._options())
    sink = opened(path, key=key)

    def frame(*texts: str | None) -> Any:
        return LongFrame(pa.table({"n": pa.array(range(len(texts)), pa.int64()), "text": texts}), SCHEMA)

    long = "x" * 5000
    sink.commit(key_of(1), sink.prepare(frame("a", "b", long, "c"), key_of(1)).handle)
    assert rows_of(sink) == [(0, "a"), (1, "b"), (2, long), (3, "c")]
    with pytest.raises(SinkFailed, match="column text is null in some rows"):
        sink.prepare(frame("a", "b", long, None), key_of(2))
    sink.abort(key_of(2))
    assert numbers(sink) == [0, 1, 2, 3]


def test_a_table_that_changes_between_two_epochs(tmp_path: Path) -> None:
    """The epoch is decided, and stays in doubt until the table has its columns again."""
    sink = filled(tmp_path / "table", 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    DeltaTable(sink.path).alter.add_columns(DeltaTable(sink.path).schema().fields[:0] or _added("more"))
    sink.commit(key_of(2), handle)  # a new nullable column is no obstacle
    handle = sink.prepare(frame_of(3), key_of(3)).handle
    DeltaTable(sink.path).alter.add_constraint({"small": "n < 100"})
    with pytest.raises(NotSupported, match="constraint small"):
        sink.commit(key_of(3), handle)
    assert numbers(sink) == [1, 2, 10]
    DeltaTable(sink.path).alter.drop_constraint("small")
    sink.commit(key_of(3), handle)
    assert numbers(sink) == [1, 2, 3, 10]


def test_a_table_that_gets_columns_without_null_while_an_epoch_is_staged(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table", 1)
    rows = pa.table({"n": pa.array([2, None], pa.int64()), "text": ["a", "b"]})
    frame: Any = LakeFrame(rows, SCHEMA)
    handle = sink.prepare(frame, key_of(2)).handle
    before = DeltaTable(sink.path).to_pyarrow_table().schema
    write_deltalake(sink.path, table_of(7).cast(required(before)), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SinkFailed, match="column n is null in some rows") as caught:
        sink.commit(key_of(2), handle)
    assert "Next: let the column of the table be null" in str(caught.value)
    write_deltalake(sink.path, table_of(7).cast(before), mode="overwrite", schema_mode="overwrite")
    sink.commit(key_of(2), handle)
    assert sorted(DeltaTable(sink.path).to_pyarrow_table()["n"].to_pylist(), key=str) == [2, 7, None]


def required(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_nullable(False) for each in schema])


def test_nulls_are_found_in_any_column(tmp_path: Path) -> None:
    """Statistics end at the 32nd column. The file of a nested column does not show whether it is null."""
    schema = t.StructType([t.StructField(f"c{number}", t.LongType()) for number in range(40)])
    fields = [field(f"c{number}", "long", number < 39) for number in range(40)]
    sink = opened(handmade(tmp_path / "wide", fields=fields), schema=schema)
    rows = pa.table({f"c{number}": pa.array([number], pa.int64()) for number in range(40)})
    frame: Any = LakeFrame(rows, schema)
    sink.commit(key_of(1), sink.prepare(frame, key_of(1)).handle)
    frame = LakeFrame(rows.set_column(39, "c39", pa.array([None], pa.int64())), schema)
    with pytest.raises(SinkFailed, match="column c39 is null in some rows"):
        sink.prepare(frame, key_of(2))
    inner = {"type": "struct", "fields": [field("a", "long")]}
    nested = handmade(tmp_path / "nested", fields=[field("s", inner, False)])
    kind = t.StructType([t.StructField("a", t.LongType())])
    with pytest.raises(SchemaMismatch, match="column s must not be null there, and may be null in the stream"):
        opened(nested, schema=t.StructType([t.StructField("s", kind)]))
    without = t.StructType([t.StructField("s", kind, nullable=False)])
    sink = opened(nested, schema=without)
    frame = LakeFrame(pa.table({"s": [{"a": 1}]}), without)
    sink.commit(key_of(1), sink.prepare(frame, key_of(1)).handle)
    assert DeltaTable(nested).to_pyarrow_table().to_pylist() == [{"s": {"a": 1}}]


@pytest.mark.parametrize("name", [".day", "_day"])
def test_partitions_by_a_column_whose_name_looks_hidden(name: str, tmp_path: Path) -> None:
    schema = t.StructType([t.StructField("n", t.LongType()), t.StructField(name, t.StringType())])
    sink = opened(tmp_path / "table", schema=schema, partition_by=name)
    frame: Any = LakeFrame(pa.table({"n": [1, 2], name: ["a", "b"]}), schema)
    staged = sink.prepare(frame, key_of(1))
    assert staged.rows == 2
    sink.commit(key_of(1), staged.handle)
    assert DeltaTable(sink.path).count() == 2


@pytest.mark.parametrize("commits", [0, 1, 9])
def test_a_table_that_is_created_again_while_the_stream_runs(commits: int, tmp_path: Path) -> None:
    """delta-rs reads only what is newer than the version that it knows, so it takes the new table for the old one."""
    sink = filled(tmp_path / "table", 2)
    handle = sink.prepare(frame_of(3), key_of(3)).handle
    for _ in range(2):  # as after a restart
        sink.commit(key_of(3), handle)
    assert sink.inspect(OWNER, 1).epoch == 3
    shutil.rmtree(sink.path)
    key = replace(key_of(4), before=Link(3, None))
    with pytest.raises(SinkFailed, match="there is no Delta table"):
        sink.commit(key, sink.prepare(frame_of(4), key).handle)
    shutil.rmtree(sink.path)
    handmade(Path(sink.path))
    for number in range(commits):
        write_deltalake(sink.path, table_of(100 + number), mode="append")
    entries = sorted(Path(sink.path, "_delta_log").iterdir())
    with pytest.raises(SinkBehind):
        sink.commit(key, sink.prepare(frame_of(4), key).handle)
    assert sorted(Path(sink.path, "_delta_log").iterdir()) == entries
    assert sink.inspect(OWNER, 1).epoch == 0


def test_a_table_that_gets_other_partitions(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table", 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    write_deltalake(sink.path, table_of(7), mode="overwrite", schema_mode="overwrite", partition_by=["text"])
    with pytest.raises(SchemaMismatch, match="partitioned by"):
        sink.commit(key_of(2), handle)
    assert DeltaTable(sink.path).to_pyarrow_table()["n"].to_pylist() == [7]
    again = opened(sink.path)
    assert again.inspect(OWNER, 1).epoch == 1


def _added(name: str) -> Any:
    from deltalake import Field

    return Field(name, "long", nullable=True)


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda _: DeltaSink("gs://bucket/table"), NotSupported, "Google"),
        (lambda _: DeltaSink("s3a://bucket/table"), NotSupported, "write s3://bucket/table"),
        (lambda _: DeltaSink("hdfs://host/table"), NotSupported, "hdfs"),
        (lambda _: DeltaSink("s3://key:secret@bucket/table"), BadValue, "credentials"),
        (lambda _: DeltaSink(""), BadValue, "a path"),
        (lambda _: DeltaSink(7), BadValue, "a path"),
        (lambda folder: DeltaSink(folder / "per%20cent"), BadValue, "percent"),
        (lambda folder: DeltaSink(folder / "file"), BadValue, "it is a file"),
        (lambda folder: opened(folder / "none", key="m"), BadValue, "key"),
        (lambda folder: opened(folder / "none", key=[]), BadValue, "key"),
        (lambda folder: opened(folder / "none", create=False), BadValue, "create=True"),
        (lambda folder: opened(filled(folder / "t").path, partition_by="text"), BadValue, "partitioned by"),
        (lambda folder: opened(folder / "t", properties={"delta.madeUp": "x"}), SinkFailed, "create its table"),
    ],
)
def test_a_bad_option_is_refused(
    make: Callable[[Path], DeltaSink], error: type[HoldfastError], named: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(error) as found:
        make(tmp_path)
    assert named in str(found.value)
    assert "secret" not in str(found.value)
    assert "Next: " in str(found.value)


FOREIGN = ["rows.parquet", "day=1/rows.parquet", "_day=1/rows.parquet", "README", "orders/rows.parquet", "hf2/x"]


@pytest.mark.parametrize("store", ["disk", S3_PARAMS[0]])
def test_no_table_is_created_around_files_of_another_program(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A VACUUM of the table would delete them."""
    s3: S3Place | None = request.getfixturevalue("s3") if store == "s3" else None
    for number, name in enumerate(FOREIGN):
        path = s3.url(f"table-{number}") if s3 else str(tmp_path / f"table-{number}")
        folder = table_folder(path, "a test")
        folder.write(name, b"PAR1")
        before = set(folder.flat(""))
        with pytest.raises(BadValue) as caught:
            opened(path)
        assert f"it is not a Delta table, and has the file {name!r}" in str(caught.value)
        assert "Next: choose an empty folder, or convert this one to a Delta table first." in str(caught.value)
        assert set(folder.flat("")) == before
        assert DeltaSink(path).is_missing()


@pytest.mark.parametrize("store", ["disk", S3_PARAMS[0]])
def test_a_table_is_created_beside_hidden_files_and_after_an_interrupted_start(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue("s3").url("table") if store == "s3" else str(tmp_path / "table")
    folder = table_folder(path, "a test")
    for name in ("_SUCCESS", ".part.crc", "_spark_metadata/0", "_holdfast/u.s/x.json", "hf/u.s/t1-1/1.1/rows.parquet"):
        folder.write(name, b"x")
    if store == "disk":
        (tmp_path / "table/empty").mkdir()
        folder.write("_delta_log/00000000000000000000.json#1", b"{")  # delta-rs links it to its name when it is whole
    assert DeltaSink(path).is_missing()
    sink = opened(path)
    sink.commit(key_of(1), sink.prepare(frame_of(1), key_of(1)).handle)
    assert numbers(sink) == [1]
    filled(tmp_path / "other")
    (tmp_path / "other/rows.parquet").write_bytes(b"PAR1")
    opened(tmp_path / "other")  # a table that exists is not searched


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_output_modes(mode: str, tmp_path: Path) -> None:
    if mode == "update":
        with pytest.raises(NotSupported, match=r"key=\[\.\.\.\].*changelog=True"):
            DeltaSink(tmp_path / "table").open(context_for(output_mode=mode))
    else:
        with pytest.raises(BadValue, match="table of its own"):
            DeltaSink(tmp_path / "table", share=True).open(context_for(output_mode=mode))
    assert not (tmp_path / "table").exists()
    sink = DeltaSink(tmp_path / "table", changelog=True)
    sink.open(context_for(output_mode=mode))
    for epoch in (1, 2):
        sink.commit(key_of(epoch), sink.prepare(frame_of(1), key_of(epoch)).handle)
    assert numbers(sink) == [1, 1]


@pytest.mark.parametrize(("mode", "key"), [("update", "n"), ("complete", None)])
def test_rows_of_an_append_only_table_cannot_be_replaced(mode: str, key: str | None, tmp_path: Path) -> None:
    path = handmade(tmp_path / "table", settings={"delta.appendOnly": "true"})
    with pytest.raises(NotSupported, match="appendOnly"):
        DeltaSink(path, key=key).open(context_for(output_mode=mode))
    assert DeltaTable(path).version() == 0


SEARCHED: dict[str, tuple[t.DataType, pa.DataType, list[Any]]] = {
    "boolean": (t.BooleanType(), pa.bool_(), [True, False]),
    "double": (t.DoubleType(), pa.float64(), [1.5, -2.5]),
    "decimal": (t.DecimalType(10, 2), pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-2.50")]),
    "long decimal": (t.DecimalType(38, 10), pa.decimal128(38, 10), [Decimal(0), Decimal("-1234567890123456789.5")]),
    "binary": (t.BinaryType(), pa.binary(), [b"a", b"b"]),
    "long string": (t.StringType(), pa.string(), ["a" * 40, "b" * 40]),
    "ends of time": (t.TimestampNTZType(), pa.timestamp("us"), [datetime.min, datetime.max]),
}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("kind", SEARCHED)
def test_rows_are_found_by_a_column_of_any_type(kind: str, alone: bool, tmp_path: Path) -> None:
    """The datasets of delta-rs skip each file in which only some columns have bounds, if they search another column."""
    stored, arrow, values = SEARCHED[kind]
    fields, names = [t.StructField("value", stored)], pa.schema([("value", arrow)])
    if not alone:
        fields, names = [*fields, t.StructField("n", t.LongType())], names.append(pa.field("n", pa.int64()))
    schema = t.StructType(fields)
    rows = [dict(zip(names.names, (value, n), strict=False)) for n, value in enumerate([*values, None])]
    sink = opened(tmp_path / "table", schema=schema)
    frame = LakeFrame(pa.Table.from_pylist(rows, names), schema)
    sink.commit(key_of(1), sink.prepare(frame, key_of(1)).handle)
    table = DeltaTable(sink.path).to_pyarrow_dataset()
    for value in values:
        found = table.to_table(filter=pc.field("value") == pa.scalar(value, arrow))
        assert found["value"].to_pylist() == [value]
    assert table.to_table(filter=pc.field("value").is_null()).num_rows == 1
    if not alone:
        assert table.to_table(filter=pc.field("n") == 1).num_rows == 1


@pytest.mark.parametrize("name", ["with space", "ü", "a#b?c", "file-url"])
def test_the_name_of_a_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    sink = opened(path.as_uri() if name == "file-url" else path)
    sink.commit(key_of(1), sink.prepare(frame_of(1), key_of(1)).handle)
    assert (path / "_delta_log").is_dir()
    assert numbers(sink) == [1]
    sink.take_back(OWNER, (1, 0), 2)
    assert numbers(sink) == []
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_an_epoch_without_rows_replaces_all_rows(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "table")
    sink.open(context_for(output_mode="complete"))
    sink.commit(key_of(1), sink.prepare(frame_of(1, 2), key_of(1)).handle)
    staged = sink.prepare(frame_of(), key_of(2))
    assert staged.trace
    sink.commit(key_of(2), staged.handle)
    assert numbers(sink) == []
    assert sink.inspect(OWNER, 1).epoch == 2


def test_all_rows_are_replaced_even_if_an_optimize_is_faster(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "table")
    sink.open(context_for(output_mode="complete"))
    sink.commit(key_of(1), sink.prepare(frame_of(1, 2), key_of(1)).handle)
    staged = sink.prepare(frame_of(3), key_of(2))
    _before_its_commit(sink, DeltaTable(sink.path).optimize.compact)
    sink.commit(key_of(2), staged.handle)
    assert numbers(sink) == [3]


def test_upserts_replace_rows_and_leave_those_of_other_writers(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "table", key="n", partition_by="text")
    sink.open(context_for(output_mode="update"))
    sink.commit(key_of(1), sink.prepare(frame_of(1, 2), key_of(1)).handle)
    write_deltalake(sink.path, pa.table({"n": [2, 9], "text": ["other", "other"]}), mode="append")
    again: Any = LakeFrame(pa.table({"n": pa.array([2, 3], pa.int64()), "text": ["new", "new"]}), SCHEMA)
    staged = sink.prepare(again, key_of(2))
    for _ in range(2):
        sink.commit(key_of(2), staged.handle)
    found = DeltaTable(sink.path).to_pyarrow_table().sort_by([("n", "ascending"), ("text", "ascending")]).to_pylist()
    rows = [(1, "row 1"), (2, "new"), (2, "new"), (3, "new"), (9, "other")]
    assert [(row["n"], row["text"]) for row in found] == rows
    assert not list(Path(sink.path).glob("_holdfast/staged/*/t1-0000000001/*")), "what was staged before is removed"


@pytest.mark.parametrize(("numbers", "named"), [([1, 1], "only 1 different keys"), ([1, None], "key column n is null")])
def test_rows_without_a_key_of_their_own(numbers: list[int | None], named: str, tmp_path: Path) -> None:
    sink = opened(tmp_path / "table", key="n")
    frame: Any = LakeFrame(pa.table({"n": pa.array(numbers, pa.int64()), "text": ["a", "b"]}), SCHEMA)
    with pytest.raises(SinkFailed, match=named):
        sink.prepare(frame, key_of(1))
    assert rows_of(sink) == []


def test_going_back_across_a_change_of_the_mode(tmp_path: Path) -> None:
    """Epochs that were upserted cannot be taken back after the key was removed."""
    sink = opened(tmp_path / "table", key="n")
    sink.commit(key_of(1), sink.prepare(frame_of(1), key_of(1)).handle)
    sink.commit(key_of(2), sink.prepare(frame_of(2), key_of(2)).handle)
    sink = opened(tmp_path / "table")
    sink.commit(key_of(3), sink.prepare(frame_of(3), key_of(3)).handle)
    found = sink.can_take_back(OWNER, (1, 1))
    assert isinstance(found, CannotTakeBack)
    assert "epoch 2 or later" in found.do
    sink.take_back(OWNER, (1, 2), 2)
    assert numbers(sink) == [1, 2]


# --- owners ---


def test_a_table_of_another_owner(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table")
    version = DeltaTable(sink.path).version()
    second = StreamIdentity("second", "0" * 31 + "3", "rows")
    for owner in (OTHER, second, StreamIdentity(OWNER.pipeline, OWNER.uid, "others")):
        other = opened(sink.path, owner)  # a start inspects it before the first epoch, and refuses
        assert other.inspect(owner, 1).foreign == OWNER.summary
        handle = other.prepare(frame_of(9), key := EpochKey(owner, key_of(1).attempt, 1)).handle
        with pytest.raises(SinkForeign):
            other.commit(key, handle)
        with pytest.raises(SinkForeign):
            other.take_back(owner, (1, 0), 2)
        assert isinstance(other.can_take_back(owner, (1, 0)), CannotTakeBack)
    assert DeltaTable(sink.path).version() == version
    assert numbers(sink) == [1, 2, 3, 4, 10, 20, 30, 40]


def test_streams_share_a_table_if_all_of_them_say_so(tmp_path: Path) -> None:
    one, two = (OWNER, StreamIdentity("second", "0" * 31 + "3", "rows"))
    sinks = {owner: opened(tmp_path / "table", owner, share=True) for owner in (one, two)}
    for n, (owner, sink) in enumerate(sinks.items()):
        key = EpochKey(owner, key_of(1).attempt, 1)
        sink.commit(key, sink.prepare(frame_of(n), key).handle)
    assert numbers(sinks[one]) == [0, 1]
    sinks[one].take_back(one, (1, 0), 2)
    assert numbers(sinks[one]) == [1]
    alone = opened(tmp_path / "table")
    assert alone.inspect(OWNER, 1).foreign == "streams that share it"
    assert opened(tmp_path / "table", OTHER, share=True).inspect(OTHER, 1).foreign is not None


def test_another_copy_of_the_repository_has_written_an_epoch(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table", 2)
    before = Link(2, "0" * 16)
    handle = sink.prepare(frame_of(3), key_of(3)).handle
    with pytest.raises(SinkForeign, match="another copy"):
        sink.commit(EpochKey(OWNER, key_of(3).attempt, 1, before), handle)
    with pytest.raises(SinkForeign, match="another copy"):
        sink.commit(key_of(2), handle)
    with pytest.raises(SinkBehind):
        sink.commit(EpochKey(OWNER, key_of(5).attempt, 1, Link(4, None)), handle)
    assert numbers(sink) == [1, 2, 10, 20]


def test_the_ledger_survives_checkpoints_and_the_clean_up_of_the_log(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table", 3)
    last = sink.prepare(frame_of(4), key_of(4))
    sink.commit(key_of(4), last.handle)
    table = DeltaTable(sink.path)
    table.create_checkpoint()
    for each in sorted(Path(sink.path, "_delta_log").glob("*.json"))[:-1]:
        each.unlink()  # what a clean-up does with versions before the checkpoint
    again = opened(sink.path)
    assert again.inspect(OWNER, 1).epoch == 4
    again.commit(key_of(4), last.handle)
    staged = again.prepare(frame_of(5), key_of(5))
    again.commit(EpochKey(OWNER, key_of(5).attempt, 1, Link(4, handle_digest(last.handle))), staged.handle)
    assert numbers(again) == [1, 2, 3, 4, 5, 10, 20, 30]


# --- staged files ---


def test_damage_of_staged_files_is_found_before_they_are_part_of_the_table(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table", 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    (file,) = Path(sink.path).glob("hf/*/t1-0000000002/*/*.parquet")
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(StagedDamaged, match="bytes"):
        sink.commit(key_of(2), handle)
    file.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    with pytest.raises(StagedDamaged, match="digest"):
        opened(sink.path).commit(key_of(2), handle)
    file.unlink()
    with pytest.raises(StagedGone):
        opened(sink.path).commit(key_of(2), handle)
    assert numbers(sink) == [1, 10]
    file.write_bytes(data)
    opened(sink.path).commit(key_of(2), handle)
    assert numbers(sink) == [1, 2, 10]


def test_files_of_the_table_are_never_removed_by_an_abort_or_a_late_driver(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    lost = sink.prepare(frame_of(9), key_of(1, attempt=1))
    kept = sink.prepare(frame_of(1), key_of(1, attempt=2))
    sink.commit(key_of(1, attempt=2), kept.handle)
    assert not list(Path(sink.path).glob("hf/*/t1-0000000001/1.1")), "the other attempt is swept"
    sink.commit(key_of(2), sink.prepare(frame_of(2), key_of(2)).handle)
    opened(sink.path).commit(key_of(1, attempt=1), lost.handle)  # it is over
    with pytest.raises(SinkFailed, match="part of the table"):
        sink.abort(key_of(1, attempt=2))
    assert numbers(sink) == [1, 2]


# --- going back ---


def test_each_of_five_checkpoints_and_its_undo(tmp_path: Path) -> None:
    """Rows of another writer are never touched, whether they are older or newer."""
    sink = opened(tmp_path / "table", partition_by="text")
    timeline = 1
    for epoch in range(1, 6):
        sink.commit(key_of(epoch), sink.prepare(frame_of(epoch, 10 * epoch), key_of(epoch)).handle)
        write_deltalake(sink.path, table_of(-epoch), mode="append", partition_by=["text"])
    others = [-5, -4, -3, -2, -1]
    everything = rows_of(sink)
    for base in range(6):
        found = sink.can_take_back(OWNER, (1, base))
        assert isinstance(found, TakeBack)
        assert (found.epochs, found.rows) == (5 - base, 2 * (5 - base))
        DeltaSink(sink.path).take_back(OWNER, (1, base), timeline + 1)
        kept = [n for epoch in range(1, base + 1) for n in (epoch, 10 * epoch)]
        assert numbers(sink) == sorted([*others, *kept])
        assert sink.inspect(OWNER, timeline + 1).epoch == base
        DeltaSink(sink.path).put_back(OWNER, (1, 5), timeline + 2, timeline + 1)
        assert rows_of(sink) == everything
        timeline += 2
        assert sink.set_aside(OWNER) == []


def test_going_back_is_refused_after_an_optimize(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table")
    DeltaTable(sink.path).optimize.compact()
    everything = numbers(sink)
    found = sink.can_take_back(OWNER, (1, 2))
    assert isinstance(found, CannotTakeBack)
    assert "OPTIMIZE" in found.why
    version = DeltaTable(sink.path).version()
    with pytest.raises(SinkFailed, match="OPTIMIZE"):
        DeltaSink(sink.path).take_back(OWNER, (1, 2), 2)
    assert DeltaTable(sink.path).version() == version
    assert numbers(sink) == everything
    for epoch in (5, 6):
        sink.commit(key_of(epoch), sink.prepare(frame_of(epoch), key_of(epoch)).handle)
    DeltaSink(sink.path).take_back(OWNER, (1, 4), 2)  # later epochs are as they were
    assert numbers(sink) == everything


def test_going_back_is_refused_if_an_optimize_is_faster(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table")
    everything = numbers(sink)
    other = DeltaSink(sink.path)
    _before_its_commit(other, DeltaTable(sink.path).optimize.compact)
    with pytest.raises(SinkFailed, match="OPTIMIZE"):
        other.take_back(OWNER, (1, 2), 2)
    assert numbers(sink) == everything
    assert sink.inspect(OWNER, 2).epoch == 0


def test_going_back_is_refused_after_rows_were_marked_as_deleted(tmp_path: Path) -> None:
    """delta-rs would remove such a file without its deletion vector, and the file would stay in the table."""
    sink = filled(tmp_path / "table", 3)
    log = Path(sink.path, "_delta_log")
    added = [
        json.loads(line)["add"] for line in log.joinpath(f"{3:020}.json").read_text().splitlines() if "add" in line
    ]
    removed = {"path": added[0]["path"], "dataChange": True, "deletionTimestamp": 1}
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
    actions = [
        {"protocol": newest(["deletionVectors"], ["deletionVectors"])},
        {"remove": removed},
        {"add": added[0] | {"deletionVector": vector | {"cardinality": 1}}},
    ]
    log.joinpath(f"{4:020}.json").write_text("".join(json.dumps(each) + "\n" for each in actions))
    found = sink.can_take_back(OWNER, (1, 1))
    assert isinstance(found, CannotTakeBack)
    assert "deletion vectors" in found.why
    with pytest.raises(SinkFailed, match="deletion vectors"):
        sink.take_back(OWNER, (1, 1), 2)
    assert DeltaTable(sink.path).version() == 4
    assert isinstance(sink.can_take_back(OWNER, (1, 3)), TakeBack)


def test_an_empty_epoch_replaces_no_rows_of_a_table_that_cannot_be_written(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "table")
    sink.open(context_for(OWNER, "complete"))
    sink.commit(key_of(1), sink.prepare(frame_of(1), key_of(1)).handle)
    protocol = {"protocol": newest(["deletionVectors"], ["deletionVectors"])}
    version = DeltaTable(sink.path).version() + 1
    Path(sink.path, "_delta_log", f"{version:020}.json").write_text(json.dumps(protocol) + "\n")
    handle = sink.prepare(frame_of(), key_of(2)).handle
    with pytest.raises(NotSupported, match="deletion vectors"):
        sink.commit(key_of(2), handle)
    assert DeltaTable(sink.path).version() == version


def test_an_undo_is_refused_after_a_vacuum(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table")
    sink.take_back(OWNER, (1, 2), 2)
    assert sink.cannot_be_put_back(OWNER, 2, 4) is None
    time.sleep(0.01)
    DeltaTable(sink.path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert "only 0 of the 4 rows" in (sink.cannot_be_put_back(OWNER, 2, 4) or "")
    with pytest.raises(SinkFailed, match="VACUUM"):
        sink.put_back(OWNER, (1, 4), 3, 2)
    assert numbers(sink) == [1, 2, 10, 20]
    assert sink.inspect(OWNER, 2).epoch == 2


def test_an_undo_is_refused_after_a_change_of_the_partitions(tmp_path: Path) -> None:
    """A reader would take the values of the new partition column from the log, which has none for these files."""
    sink = filled(tmp_path / "table")
    DeltaSink(sink.path).take_back(OWNER, (1, 2), 2)
    write_deltalake(sink.path, table_of(9), mode="overwrite", schema_mode="overwrite", partition_by=["text"])
    with pytest.raises(SinkFailed, match="partitioning of the table has changed"):
        DeltaSink(sink.path).put_back(OWNER, (1, 4), 3, 2)
    assert numbers(sink) == [9]


def test_a_full_vacuum_leaves_records_and_undecided_files(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table")
    handle = sink.prepare(frame_of(5), key_of(5)).handle
    DeltaTable(sink.path).vacuum(dry_run=False, full=True)
    sink.commit(key_of(5), handle)
    sink.take_back(OWNER, (1, 2), 2)
    assert numbers(sink) == [1, 2, 10, 20]


def test_an_append_only_table_cannot_go_back(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table", properties={"delta.appendOnly": "true"})
    for found in (sink.can_take_back(OWNER, (1, 2)), sink.cannot_be_taken_back()):
        assert isinstance(found, CannotTakeBack)
        assert "appendOnly" in found.why
    with pytest.raises(SinkFailed, match="appendOnly"):
        sink.take_back(OWNER, (1, 2), 2)
    sink.stamp(OWNER, (1, 2), 2)
    assert len(numbers(sink)) == 8


def test_a_lost_record_of_an_epoch_is_reported(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table")
    (record,) = Path(sink.path).glob("_holdfast/*/t1-0000000004/*.json")
    record.unlink()
    found = sink.can_take_back(OWNER, (1, 2))
    assert isinstance(found, CannotTakeBack)
    assert "record" in found.why


# --- a store ---


def test_an_outage_of_the_store(s3: S3Place) -> None:
    """The pipeline waits for its end, and the epoch is there once."""
    sink = opened(s3.url("table"))
    handle = sink.prepare(frame_of(1), key_of(1)).handle
    s3.server.kill()
    for act in (lambda: sink.commit(key_of(1), handle), lambda: opened(s3.url("table"))):
        with pytest.raises(SinkUnavailable) as found:
            act()
        assert "\x1b" not in str(found.value)
    s3.server.start()
    sink.commit(key_of(1), handle)
    assert numbers(sink) == [1]


@pytest.mark.parametrize(("name", "value"), [("AWS_SECRET_ACCESS_KEY", "wrong"), ("AWS_ENDPOINT_URL", "http://u:p@h")])
def test_a_store_that_refuses(name: str, value: str, s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(HoldfastError) as found:
        opened(s3.url("table"))
    assert isinstance(found.value, SinkFailed | BadValue)
    assert not list(s3.folder.rglob("*.json"))
    assert "Next: " in str(found.value)


def test_a_bucket_that_does_not_exist(s3: S3Place) -> None:
    with pytest.raises(SinkFailed, match="no bucket"):
        opened("s3://no-such-bucket/table")


# --- the process ---


def _tries(path: str, results: Any) -> None:
    try:
        DeltaSink(path).inspect(OWNER, 1)
    except NotSupported as error:
        results.put(str(error))


def test_a_forked_process_is_refused(tmp_path: Path) -> None:
    sink = filled(tmp_path / "table", 1)
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    child = context.Process(target=_tries, args=(sink.path, results))
    child.start()
    assert "forked process" in results.get(timeout=30)
    child.join()
