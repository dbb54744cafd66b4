"""A whole pipeline into a Delta table, with a fake query: rewinds, undos, and what is synced when."""

from __future__ import annotations

import json
import os
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltastaged import context_for, frame_of, key_of
from fakespark import install
from handstaged import table_of
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.delta.statistics import _bounds, null_count, statistics_of
from zombies import ZombieBench


def test_a_rewind_to_each_of_five_checkpoints_and_its_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is equal after each undo, and rows of another writer are never touched."""
    install(monkeypatch)
    bench = ZombieBench(tmp_path, "delta append")
    others: list[list[int]] = []
    for number in range(1, 6):
        bench.add([number], [10 * number, 100 * number])
        bench.take()
        write_deltalake(tmp_path / "table", table_of(-number), mode="append")
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


def test_what_is_synced_before_the_decision_and_after_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(tmp_path / "table", partition_by="text")
    sink.open(context_for())
    staged = sink.prepare(frame_of(1, 2), key_of(1))
    written = set((tmp_path / "table/hf").rglob("*")) | set((tmp_path / "table/_holdfast").rglob("*"))
    assert written <= set(staged.paths), "every new file and folder"
    assert {tmp_path / "table", tmp_path / "table/hf", tmp_path / "table/_holdfast"} <= set(staged.paths)
    synced: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.path.relpath(os.path.realpath(f"/proc/self/fd/{descriptor}"), tmp_path / "table"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    sink.commit(key_of(1), staged.handle)
    assert f"_delta_log/{1:020}.json" in synced
    assert synced[-1] == "_delta_log"


@pytest.mark.parametrize("feed", ["false", "true"])
def test_the_files_of_an_upsert_are_synced(feed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink(tmp_path / "table", key="n", properties={"delta.enableChangeDataFeed": feed})
    sink.open(context_for())
    staged = sink.prepare(frame_of(1, 2), key_of(1))
    synced: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.path.relpath(os.path.realpath(f"/proc/self/fd/{descriptor}"), tmp_path / "table"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    sink.commit(key_of(1), staged.handle)
    files = {each.name for each in (tmp_path / "table").glob("*.parquet")}
    changes = {f"_change_data/{each.name}" for each in (tmp_path / "table/_change_data").glob("*")}
    assert files
    assert bool(changes) == (feed == "true")
    assert files | changes <= set(synced)


COLUMNS = {
    "long": st.integers(-(2**63), 2**63 - 1),
    "text": st.text(max_size=40),
    "day": st.dates(),
    "at": st.datetimes(),
    "flag": st.booleans(),
    "price": st.decimals(-99_999, 99_999, places=2),
    "sum": st.decimals(-(10**27), 10**27, places=10),
    "real": st.floats(),
}
KINDS = [
    *(pa.int64(), pa.string(), pa.date32(), pa.timestamp("us"), pa.bool_()),
    *(pa.decimal128(7, 2), pa.decimal128(38, 10), pa.float64()),
]


@settings(max_examples=100)
@example(rows=[dict.fromkeys(COLUMNS) | {"at": datetime.max}])
@example(rows=[dict.fromkeys(COLUMNS) | {"text": "\ud7ff" * 33}])
@example(rows=[dict.fromkeys(COLUMNS) | {"text": "\U0010ffff" * 33}])
@given(rows=st.lists(st.fixed_dictionaries({name: st.none() | each for name, each in COLUMNS.items()}), max_size=30))
def test_statistics_never_exclude_a_row(rows: list[dict[str, Any]]) -> None:
    """A reader skips a file by its bounds. So they must include every value, whatever it is.

    If one column with values lacks bounds, no column has them.
    """
    schema = pa.schema([pa.field(name, kind) for name, kind in zip(COLUMNS, KINDS, strict=True)])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema), sink, row_group_size=7, store_decimal_as_integer=True)
    text = statistics_of(pq.read_metadata(pa.BufferReader(sink.getvalue())), {})
    found = json.loads(text, parse_float=Decimal)
    assert found["numRecords"] == len(rows)
    used = {name for name in COLUMNS if any(row[name] is not None for row in rows)}
    lows, highs = found.get("minValues", {}), found.get("maxValues", {})
    if lows:
        assert set(lows) == set(highs) == used
    else:
        too_late = any((row["at"] or datetime.min) > datetime.max.replace(microsecond=999_000) for row in rows)
        highest = any((row["text"] or "").startswith("\U0010ffff" * 32) for row in rows)
        assert not used or "real" in used or too_late or highest
    for name in COLUMNS:
        values = [row[name] for row in rows if row[name] is not None]
        if (nulls := null_count(text, name)) is not None:
            assert nulls == len(rows) - len(values)
        if name not in lows:
            continue
        shown = [each.isoformat(timespec="microseconds") if name == "at" else each for each in values]
        shown = [each.isoformat() if name == "day" else each for each in shown]
        low, high = lows[name], highs[name]
        high = high + "999" if name == "at" else high
        assert all(low <= each <= high for each in shown)


def test_a_decimal_whose_bounds_pyarrow_cannot_read_has_none() -> None:
    """PyArrow 18 reads no bounds of decimals that are stored as integers, as Spark stores short ones."""

    class Unreadable:
        num_values, has_min_max, has_null_count, null_count = 1, True, True, 0

        @property
        def min(self) -> Any:
            raise pa.ArrowNotImplementedError("Cannot extract statistics for type")

        max = min

    assert _bounds([Unreadable()]) is None
