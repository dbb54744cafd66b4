"""A whole pipeline into an Iceberg table, with a fake query: rewinds, undos, what is synced, and what is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import LongType, NestedField, StringType

from fakespark import install
from handstaged import table_of
from holdfast.errors import SchemaMismatch, SinkBehind, StreamFailed
from holdfast.sinks.base import handle_digest
from holdfast.sinks.iceberg.ledger import TableLedger
from holdfast.sinks.iceberg.partitions import parsed_parts, spec_of
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.testing import CrashAt, Crashed
from icebergstaged import context_for, frame_of, key_of, sqlite_catalog, table_of_sink
from zombies import ZombieBench


def test_a_rewind_to_each_of_five_checkpoints_and_its_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is equal after each undo, and rows of another writer are never touched."""
    install(monkeypatch)
    bench = ZombieBench(tmp_path, "iceberg")
    others: list[list[int]] = []
    reader = IcebergSink("shop.rows", catalog=sqlite_catalog(tmp_path))
    for number in range(1, 6):
        bench.add([number], [10 * number, 100 * number])
        bench.take()
        table_of_sink(reader).append(table_of(-number))
        others.append([-number])
    everything = bench.seen()
    epochs = [each for number in range(1, 6) for each in ([number], [10 * number, 100 * number])]
    assert everything == bench.expected(*epochs, *others)
    for checkpoint in range(1, 6):
        bench.rewind(checkpoint)
        assert bench.seen() == bench.expected(*epochs[: 2 * checkpoint], *others)
        bench.undo()
        assert bench.seen() == everything
    bench.rewind(3)
    bench.source[:] = [*epochs[:6], [7], [8]]
    bench.run()
    assert bench.seen() == bench.expected(*epochs[:6], [7], [8], *others)


def test_a_column_that_is_dropped_while_an_epoch_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start is refused until the column is back. Then the epoch is committed, and the stream continues."""
    install(monkeypatch)
    bench = ZombieBench(tmp_path, "iceberg")
    bench.add([1])
    bench.source.append([2, 3])
    with pytest.raises((Crashed, StreamFailed)):
        bench.run(CrashAt("decided"))
    reader = IcebergSink("shop.rows", catalog=sqlite_catalog(tmp_path))
    with table_of_sink(reader).update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("text")
    for _ in range(2):
        with pytest.raises((SchemaMismatch, StreamFailed), match=r"no column 'text'.* Next: change the table"):
            bench.run()
        assert [row["n"] for row in table_of_sink(reader).scan().to_arrow().to_pylist()] == [1]
    with table_of_sink(reader).update_schema() as change:
        change.add_column("text", StringType())
    bench.add([4])
    assert bench.seen() == bench.expected([1], [2, 3], [4])


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_table_that_is_dropped_is_not_created_again(
    epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    bench = ZombieBench(tmp_path, "iceberg")
    for number in range(1, epochs + 1):
        bench.add([number])
    catalog = load_catalog("default", **sqlite_catalog(tmp_path))
    catalog.drop_table("shop.rows")
    for _ in range(2):
        with pytest.raises(SinkBehind, match=f"is missing or empty, but epoch {epochs} was committed to it"):
            bench.run()
        assert not catalog.table_exists("shop.rows")


def test_what_is_synced_before_the_decision(tmp_path: Path) -> None:
    sink = IcebergSink("shop.rows", catalog=sqlite_catalog(tmp_path))
    sink.open(context_for())
    staged = sink.prepare(frame_of(1, 2), key_of(1))
    table = tmp_path / "warehouse/shop/rows"
    written = set((table / "data").rglob("*")) | set((table / "_holdfast").rglob("*"))
    assert written <= set(staged.paths), "every new file and folder"
    assert {table, table / "data", table / "_holdfast"} <= set(staged.paths)


def test_readers_skip_files_by_their_statistics(tmp_path: Path) -> None:
    sink = IcebergSink("shop.rows", catalog=sqlite_catalog(tmp_path))
    sink.open(context_for())
    for epoch in (1, 2, 3):
        sink.commit(key_of(epoch), sink.prepare(frame_of(10 * epoch, 10 * epoch + 5), key_of(epoch)).handle)
    table = table_of_sink(sink)
    assert len(list(table.scan().plan_files())) == 6, "two files for each epoch"
    (task,) = table.scan(row_filter=EqualTo("n", 25)).plan_files()
    assert pq.read_table(task.file.file_path.removeprefix("file://"))["n"].to_pylist() == [25]
    assert task.file.value_counts == {1: 1, 2: 1}
    assert task.file.null_value_counts == {1: 0, 2: 0}


ROW = st.fixed_dictionaries(
    {"n": st.none() | st.integers(-(2**63), 2**63 - 1), "text": st.none() | st.text(max_size=40)}
)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=20))
def test_statistics_never_exclude_a_row(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """A reader skips a file by its bounds. So every value must be found by an equal comparison."""
    from icebergstaged import SCHEMA
    from lakeframe import LakeFrame

    folder = tmp_path_factory.mktemp("statistics")
    sink = IcebergSink("shop.rows", catalog=sqlite_catalog(folder))
    sink.open(context_for())
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    frame: Any = LakeFrame(pa.Table.from_pylist(rows, schema), SCHEMA)
    sink.commit(key_of(1), sink.prepare(frame, key_of(1)).handle)
    table = table_of_sink(sink)
    for name in ("n", "text"):
        for value in {row[name] for row in rows if row[name] is not None}:
            found = table.scan(row_filter=EqualTo(name, value)).to_arrow().num_rows
            assert found == sum(row[name] == value for row in rows)
    sink.close()


PLACES = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12)


@given(steps=PLACES)
def test_the_ledger_survives_its_property(steps: list[tuple[bool, int]]) -> None:
    """It keeps the last two epochs of its timeline, and nothing is lost when it is written and read."""
    ledger, key = TableLedger(pipeline="p"), key_of(1)
    epoch, timeline = 0, 1
    for is_rewind, by in steps:
        if is_rewind:
            timeline += 1
            epoch = max(0, epoch - by)
            before = ledger.place
            ledger = ledger.stamped((timeline - 1, epoch), timeline)
            assert tuple(ledger.ended) == before
        else:
            epoch += by
            key = key_of(epoch, timeline=timeline)
            ledger = ledger.with_epoch(key, {"rows": epoch})
            assert ledger.held_for(key).own is not None
            assert ledger.held[-1].handle == handle_digest({"rows": epoch})
        (text,) = ledger.property_of(key.owner).values()
        ledger = TableLedger.unsealed(text.encode(), "x")
        assert ledger.place == (timeline, epoch) or not steps
        assert len(ledger.held) <= 2


@pytest.mark.parametrize(
    ("text", "transform", "column"),
    [
        ("n", "identity", "n"),
        (" day( n ) ", "day", "n"),
        ("bucket(16, n)", "bucket[16]", "n"),
        ("truncate(4,n)", "truncate[4]", "n"),
    ],
)
def test_partitions_as_they_are_written(text: str, transform: str, column: str) -> None:
    (part,) = parsed_parts(text)
    assert (str(part.transform), part.column) == (transform, column)
    schema = Schema(NestedField(1, "n", LongType()))
    (field,) = spec_of([part], schema, "s", "t").fields
    assert field.transform == parse_transform(transform)
