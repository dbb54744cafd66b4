"""Iceberg tables, without Spark: other writers, expiry, races, lost answers, and everything that is refused."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from pyiceberg import types as ice
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import types as t

from faultproxy import Answer, FaultProxy
from handstaged import table_of
from holdfast.errors import (
    BadValue,
    HoldfastError,
    NotSupported,
    RecordCorrupt,
    SchemaMismatch,
    SinkBehind,
    SinkFailed,
    SinkForeign,
    SinkUnavailable,
    StagedDamaged,
    StagedGone,
    TimelineEnded,
)
from holdfast.sinks.base import CannotTakeBack, EpochKey, Link, StreamIdentity, handle_digest
from holdfast.sinks.iceberg.changes import is_own
from holdfast.sinks.iceberg.sink import IcebergSink
from icebergstaged import (
    OWNER,
    SCHEMA,
    context_for,
    created_iceberg,
    frame_of,
    key_of,
    rows_of,
    sqlite_catalog,
    table_of_sink,
)
from lakeframe import LakeFrame, LongFrame
from s3fixture import S3Place

OTHER = StreamIdentity("contract", "0" * 31 + "2", "rows")


def made(folder: Path, **options: Any) -> IcebergSink:
    return IcebergSink("shop.rows", catalog=sqlite_catalog(folder), **options)


def opened(folder: Path, **options: Any) -> IcebergSink:
    sink = made(folder, **options)
    sink.open(context_for())
    return sink


def epoch(sink: IcebergSink, key: EpochKey, *numbers: int) -> dict[str, Any]:
    """Stage and commit an epoch."""
    handle = sink.prepare(frame_of(*numbers), key).handle
    sink.commit(key, handle)
    return handle


def filled(folder: Path, epochs: int = 4, **options: Any) -> IcebergSink:
    sink = opened(folder, **options)
    for number in range(1, epochs + 1):
        epoch(sink, key_of(number), number)
    return sink


def seen(sink: IcebergSink) -> list[int]:
    return sorted(n for n, _ in rows_of(sink))


def appended(sink: IcebergSink, *numbers: int) -> None:
    """Append rows with a program that is not a pipeline."""
    table_of_sink(sink).append(table_of(*numbers))


def created(folder: Path, *fields: ice.NestedField, **options: Any) -> Table:
    """Create the table before the sink does."""
    return created_iceberg(folder, *(fields or (N, TEXT)), **options)


def field(number: int, name: str, kind: ice.IcebergType, *, required: bool = False) -> ice.NestedField:
    return ice.NestedField(number, name, kind, required=required)


N, TEXT = field(1, "n", ice.LongType()), field(2, "text", ice.StringType())


# --- other writers ---


def test_rows_of_other_writers_stay_whatever_a_rewind_does(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    appended(sink, 100)
    for number in (1, 2, 3, 4):
        epoch(sink, key_of(number), number)
        appended(sink, 100 + number)
    others = [100, 101, 102, 103, 104]
    assert seen(sink) == [1, 2, 3, 4, *others]
    sink.take_back(OWNER, (1, 2), 2)
    assert seen(sink) == [1, 2, *others]
    appended(sink, 105)
    sink.put_back(OWNER, (1, 4), 3, 2)
    assert seen(sink) == [1, 2, 3, 4, *others, 105]
    appended(sink, 106)
    epoch(sink, key_of(5, timeline=3), 5)
    assert seen(sink) == [1, 2, 3, 4, 5, *others, 105, 106]


def test_going_back_to_each_of_five_checkpoints_and_undoing_it(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for number in range(1, 6):
        epoch(sink, key_of(number), number, number + 10)
        appended(sink, 100 + number)
    before = sorted(rows_of(sink))
    timeline = 1
    for base in (4, 3, 2, 1, 0):
        sink.take_back(OWNER, (1, base), timeline + 1)
        assert seen(sink) == sorted([*range(1, base + 1), *range(11, base + 11), *range(101, 106)])
        sink.put_back(OWNER, (1, 5), timeline + 2, timeline + 1)
        assert sorted(rows_of(sink)) == before
        timeline += 2
    assert table_of_sink(sink).metadata.refs.keys() == {"main"}, "the tags are gone"


def compacted(sink: IcebergSink, *numbers: int) -> None:
    """Rewrite the files of some rows as one file, as a compaction does."""
    table = table_of_sink(sink)
    tasks = [
        task
        for task in table.scan().plan_files()
        if set(numbers) & {row["n"] for row in read(task.file.file_path).to_pylist()}
    ]
    rows = pa.concat_tables([read(task.file.file_path) for task in tasks])
    with table.transaction() as change, change.update_snapshot().overwrite() as overwrite:
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        for each in _dataframe_to_data_files(table.metadata, rows, table.io):
            overwrite.append_data_file(each)
        for task in tasks:
            overwrite.delete_data_file(task.file)


def read(path: str) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(path.removeprefix("file://"))


def test_a_rewind_is_refused_after_a_compaction_that_rewrote_the_epochs(tmp_path: Path) -> None:
    sink = filled(tmp_path)
    compacted(sink, 2, 3)
    found = sink.can_take_back(OWNER, (1, 1))
    assert isinstance(found, CannotTakeBack)
    assert "2 epochs from 2 to 3" in found.why
    before = table_of_sink(sink).metadata_location
    with pytest.raises(SinkFailed, match="as a compaction does"):
        sink.take_back(OWNER, (1, 1), 2)
    assert table_of_sink(sink).metadata_location == before, "nothing was changed"
    assert seen(sink) == [1, 2, 3, 4]
    assert not isinstance(sink.can_take_back(OWNER, (1, 3)), CannotTakeBack), "epoch 4 was not rewritten"
    sink.take_back(OWNER, (1, 3), 2)
    assert seen(sink) == [1, 2, 3]
    epoch(sink, key_of(4, timeline=2), 14)
    assert seen(sink) == [1, 2, 3, 14]


def move(sink: IcebergSink, folder: Path) -> None:
    """Change the location of the table, as another program can; no file is moved."""
    metadata = Path(table_of_sink(sink).metadata_location.removeprefix("file://"))
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"location": f"file://{folder}"}))


def test_a_rewind_is_refused_if_the_table_has_moved(tmp_path: Path) -> None:
    """The records of the stream are found in the folder of the table."""
    sink = filled(tmp_path, 3)
    folder = Path(table_of_sink(sink).location().removeprefix("file://"))
    move(sink, tmp_path / "elsewhere")
    found = sink.can_take_back(OWNER, (1, 1))
    assert isinstance(found, CannotTakeBack)
    assert "the location of the table was changed" in found.why
    assert "set the location" in found.do
    with pytest.raises(SinkFailed, match="the location of the table was changed"):
        sink.take_back(OWNER, (1, 1), 2)
    assert not isinstance(sink.can_take_back(OWNER, (1, 3)), CannotTakeBack)
    move(sink, folder)
    sink.take_back(OWNER, (1, 1), 2)
    assert seen(sink) == [1]


def test_a_rewind_is_refused_if_neither_files_nor_records_are_in_the_folder(tmp_path: Path) -> None:
    """Another program has rewritten the files, and then changed the location of the table."""
    sink = filled(tmp_path, 3)
    table_of_sink(sink).overwrite(table_of(1, 2, 3))
    move(sink, tmp_path / "elsewhere")
    found = sink.can_take_back(OWNER, (1, 1))
    assert isinstance(found, CannotTakeBack)
    assert "neither files nor records" in found.why


def test_a_rewind_is_refused_if_some_of_its_epochs_are_in_another_folder(tmp_path: Path) -> None:
    """Epochs 1 to 3 were written before the location was changed, and epoch 4 after it."""
    sink = filled(tmp_path, 3)
    moved = tmp_path / "elsewhere"
    move(sink, moved)
    sink = opened(tmp_path)
    epoch(sink, key_of(4), 4)
    assert list(moved.rglob("*.parquet")), "epoch 4 is in the new folder"
    assert seen(sink) == [1, 2, 3, 4]
    found = sink.can_take_back(OWNER, (1, 1))
    assert isinstance(found, CannotTakeBack)
    assert "files of 2 epochs from 2 to 3 are not in" in found.why
    assert found.do.startswith("go back to a checkpoint after these epochs, or pass --leave ")
    with pytest.raises(SinkFailed, match="the location of the table was changed"):
        sink.take_back(OWNER, (1, 1), 2)
    assert seen(sink) == [1, 2, 3, 4], "nothing was changed"
    sink.take_back(OWNER, (1, 3), 2)
    assert seen(sink) == [1, 2, 3]


def test_a_rewind_is_refused_after_another_program_has_deleted_rows(tmp_path: Path) -> None:
    sink = filled(tmp_path)
    table_of_sink(sink).delete("n = 3")
    assert isinstance(sink.can_take_back(OWNER, (1, 2)), CannotTakeBack)
    assert not isinstance(sink.can_take_back(OWNER, (1, 3)), CannotTakeBack)


def test_rows_that_are_set_aside_are_kept_by_a_tag(tmp_path: Path) -> None:
    """Other programs expire snapshots and delete what no snapshot names."""
    sink = filled(tmp_path)
    sink.take_back(OWNER, (1, 2), 2)
    kept = sink.set_aside(OWNER)
    tag = kept[0].kept.removeprefix("tag ")
    table = table_of_sink(sink)
    assert sorted(table.scan(snapshot_id=table.metadata.refs[tag].snapshot_id).to_arrow()["n"].to_pylist()) == [
        1,
        2,
        3,
        4,
    ]
    for number in range(3, 40):
        epoch(sink, key_of(number, timeline=2), number + 100)
    sink.put_back(OWNER, (1, 4), 3, 2)
    assert seen(sink) == [1, 2, 3, 4, *range(103, 140)]


def test_an_undo_is_refused_if_the_tag_or_a_file_is_gone(tmp_path: Path) -> None:
    sink = filled(tmp_path)
    sink.take_back(OWNER, (1, 2), 2)
    tag = sink.set_aside(OWNER)[0].kept.removeprefix("tag ")
    table = table_of_sink(sink)
    paths = [task.file.file_path for task in table.scan(snapshot_id=table.metadata.refs[tag].snapshot_id).plan_files()]
    lost = Path(next(path for path in paths if "/t1-0000000004/" in path).removeprefix("file://"))
    held = lost.read_bytes()
    lost.unlink()
    with pytest.raises(SinkFailed, match="has deleted"):
        sink.put_back(OWNER, (1, 4), 3, 2)
    lost.write_bytes(held)
    table.manage_snapshots().remove_tag(tag).commit()
    assert "only 0 of the 2 rows" in (sink.cannot_be_put_back(OWNER, 2, 2) or "")
    with pytest.raises(SinkFailed, match="removed the tag"):
        sink.put_back(OWNER, (1, 4), 3, 2)
    assert seen(sink) == [1, 2]


def test_discarded_rows_are_deleted_unless_a_snapshot_names_them(tmp_path: Path) -> None:
    sink = filled(tmp_path, keep_snapshots=1)
    sink.take_back(OWNER, (1, 2), 2)
    data = tmp_path / "warehouse/shop/rows/data/hf"
    assert len(list(data.rglob("*.parquet"))) == 4
    sink.discard_aside(OWNER, 2)
    sink.discard_aside(OWNER, 2)
    assert sink.set_aside(OWNER) == []
    assert table_of_sink(sink).metadata.refs.keys() == {"main"}
    for number in (3, 4, 5):
        epoch(sink, key_of(number, timeline=2), 10 + number)
    sink.take_back(OWNER, (1, 1), 3)
    assert seen(sink) == [1]
    assert sink.set_aside(OWNER)[0].rows == 4


# --- the number of snapshots, manifests and files ---


def test_a_commit_stays_flat(tmp_path: Path) -> None:
    """Snapshots, manifests and metadata files are bounded; those of other writers and those with a tag stay."""
    created(
        tmp_path,
        **{
            "commit.manifest.min-count-to-merge": "5",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "10",
        },
    )
    sink = opened(tmp_path, keep_snapshots=4)
    appended(sink, 1000)
    epoch(sink, key_of(1), 1)
    table = table_of_sink(sink)
    named = table.metadata.current_snapshot_id
    table.manage_snapshots().create_tag(named, "release").commit()
    sizes = []
    for number in range(2, 41):
        epoch(sink, key_of(number), number)
        table = table_of_sink(sink)
        own = [each for each in table.metadata.snapshots if is_own(each, OWNER)]
        assert len(own) <= 5, "four, and the one with the tag"
        assert len(table.metadata.snapshot_log) <= 7
        assert len(table.current_snapshot().manifests(table.io)) <= 6
        sizes.append(len(Path(table.metadata_location.removeprefix("file://")).read_bytes()))
    assert {named} <= {each.snapshot_id for each in table.metadata.snapshots}
    assert len([each for each in table.metadata.snapshots if not is_own(each, OWNER)]) == 1
    assert sizes[-1] < sizes[9] * 1.05
    assert len(list((tmp_path / "warehouse/shop/rows/metadata").glob("*.metadata.json"))) <= 12
    assert seen(sink) == [*range(1, 41), 1000]


def test_the_metadata_is_durable_before_the_catalog_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    import holdfast.sinks.iceberg.synced_io as synced

    sink = opened(tmp_path)
    handle = sink.prepare(frame_of(1), key_of(1)).handle
    done: set[str] = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        done.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    folder = tmp_path / "warehouse/shop/rows/metadata"
    before = set(map(str, folder.iterdir()))
    catalog = type(sink._at._catalog)
    write = catalog._write_metadata
    monkeypatch.setattr(synced.os, "fsync", watched)
    durable: list[set[str]] = []

    def written(*args: Any, **options: Any) -> None:
        write(*args, **options)
        durable.append(set(done))  # the database is changed after this call

    monkeypatch.setattr(catalog, "_write_metadata", staticmethod(written))
    sink.commit(key_of(1), handle)
    new = set(map(str, folder.iterdir())) - before
    assert len(new) == 3, "a manifest, a list of manifests, and the metadata of the table"
    assert new <= durable[0]


# --- several drivers, and answers that get lost ---


def at_once(*acts: Callable[[], object]) -> list[BaseException]:
    start, failures = threading.Barrier(len(acts)), []

    def run(act: Callable[[], object]) -> None:
        start.wait()
        try:
            act()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_two_drivers_commit_the_same_handle_while_another_program_appends(tmp_path: Path) -> None:
    sinks = [opened(tmp_path) for _ in range(2)]
    others = made(tmp_path)
    before = Link(0, None)
    for number in range(1, 26):
        key = replace(key_of(number), before=before)
        handle = sinks[0].prepare(frame_of(number), key).handle
        acts: list[Callable[[], object]] = [partial(sink.commit, key, handle) for sink in sinks]
        if number % 5 == 0:
            acts.append(partial(appended, others, 1000 + number))
        failures = [each for each in at_once(*acts) if not isinstance(each, CommitFailedException)]
        assert failures == []
        before = Link(number, handle_digest(handle))
    assert [n for n in seen(sinks[0]) if n < 1000] == list(range(1, 26))


def test_the_retries_of_pyiceberg_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They add the same files again. Here each first try is refused after another driver has committed the handle."""
    sink, other = opened(tmp_path), opened(tmp_path)
    key = key_of(1)
    handle = sink.prepare(frame_of(1), key).handle
    commit = type(sink._at).commit

    def late(self: Any, *args: Any, **options: Any) -> None:
        monkeypatch.setattr(type(sink._at), "commit", commit)
        other.commit(key, handle)
        commit(self, *args, **options)

    monkeypatch.setattr(type(sink._at), "commit", late)
    sink.commit(key, handle)
    assert seen(sink) == [1]


@pytest.mark.parametrize("error", [requests.ConnectionError("lost"), CommitFailedException("lost"), OSError("lost")])
@pytest.mark.parametrize("applied", [True, False])
def test_an_answer_of_the_catalog_that_gets_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, applied: bool
) -> None:
    """Whether the catalog has done it or not, the rows are there once, and the table can be read."""
    sink = filled(tmp_path, 1)
    catalog = sink._at._catalog
    commit = catalog.commit_table
    lost = [True]

    def losing(*args: Any) -> Any:
        if lost and not applied:
            lost.clear()
            raise error
        found = commit(*args)
        if lost:
            lost.clear()
            raise error
        return found

    monkeypatch.setattr(catalog, "commit_table", losing)
    epoch(sink, key_of(2), 2)
    assert not lost
    assert seen(sink) == [1, 2]
    lost.append(True)
    sink.take_back(OWNER, (1, 1), 2)
    assert seen(sink) == [1]
    lost.append(True)
    sink.put_back(OWNER, (1, 2), 3, 2)
    assert seen(sink) == [1, 2]


def test_a_catalog_that_fails_is_an_outage_and_the_next_try_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = filled(tmp_path, 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle

    def fails(*_: Any) -> Any:
        raise requests.ConnectionError("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(sink._at._catalog, "commit_table", fails)
        with pytest.raises(SinkUnavailable, match="no route to host"):
            sink.commit(key_of(2), handle)
    assert seen(sink) == [1]
    sink.commit(key_of(2), handle)
    assert seen(sink) == [1, 2]


# --- what the ledger refuses ---


def test_another_copy_of_the_repository_is_refused(tmp_path: Path) -> None:
    sink = filled(tmp_path, 2)
    key = replace(key_of(3), before=Link(2, "another handle"))
    handle = sink.prepare(frame_of(3), key).handle
    with pytest.raises(SinkForeign, match="another copy"):
        sink.commit(key, handle)
    with pytest.raises(SinkBehind):
        sink.commit(replace(key_of(4), before=Link(3, None)), handle)
    with pytest.raises(SinkForeign, match="another copy"):
        sink.commit(key_of(2), handle)
    assert seen(sink) == [1, 2]


def test_an_abort_never_deletes_what_the_table_holds(tmp_path: Path) -> None:
    """A copy of the repository may have committed an attempt that this one has aborted."""
    sink = filled(tmp_path, 2)
    for lease in (1, None):
        with pytest.raises(SinkFailed, match="part of the table"):
            sink.abort(key_of(2, lease=lease))
    sink.abort(key_of(2, attempt=2))
    sink.abort(key_of(7))
    assert seen(sink) == [1, 2]


def test_a_table_of_another_stream_is_not_touched(tmp_path: Path) -> None:
    sink = filled(tmp_path, 2)
    other = made(tmp_path)
    other.open(context_for(OTHER))
    found = other.inspect(OTHER, 1)
    assert found.epoch == 0
    assert "stream 'rows' of pipeline 'contract'" in (found.foreign or "")
    key = replace(key_of(1), owner=OTHER)
    handle = other.prepare(frame_of(9), key).handle
    with pytest.raises(SinkForeign):
        other.commit(key, handle)
    for act in (lambda: other.take_back(OTHER, (1, 0), 2), lambda: other.stamp(OTHER, (1, 0), 2)):
        with pytest.raises(SinkForeign):
            act()
    assert isinstance(other.can_take_back(OTHER, (1, 0)), CannotTakeBack)
    assert seen(sink) == [1, 2]


def test_a_late_claim_does_not_reset_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is paused while it opens a table resumes after another one has committed to it."""
    created(tmp_path)
    late, sink = made(tmp_path), made(tmp_path)
    commit = type(late._at).commit
    handles = []

    def paused(self: Any, *args: Any) -> None:
        monkeypatch.setattr(type(late._at), "commit", commit)
        sink.open(context_for())
        handles.append(epoch(sink, key_of(1), 1))
        commit(self, *args)

    monkeypatch.setattr(type(late._at), "commit", paused)
    late.open(context_for())
    assert sink.inspect(OWNER, 1).epoch == 1
    late.commit(key_of(1), handles[0])
    assert seen(sink) == [1]


def test_a_table_that_was_created_again_is_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    handle = sink.prepare(frame_of(1), key_of(1)).handle
    sink._at._catalog.drop_table("shop.rows")
    assert sink.is_missing()
    with pytest.raises(SinkFailed, match="does not exist"):
        sink.commit(key_of(1), handle)
    created(tmp_path)
    with pytest.raises(SinkFailed, match="created again"):
        sink.commit(key_of(1), handle)


def test_a_damaged_ledger_is_reported(tmp_path: Path) -> None:
    sink = filled(tmp_path, 2)
    table = table_of_sink(sink)
    name = next(name for name in table.properties if name.startswith("holdfast."))
    with table.transaction() as change:
        change.set_properties({name: table.properties[name].replace('"timeline":1', '"timeline":0')})
    for act in (lambda: sink.inspect(OWNER, 1), lambda: sink.commit(key_of(3), {"rows": 1, "digest": ""})):
        with pytest.raises(RecordCorrupt, match="table property holdfast"):
            act()


def test_metadata_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    sink = filled(tmp_path, 1)
    path = Path(table_of_sink(sink).metadata_location.removeprefix("file://"))
    data = path.read_bytes()
    for damage in (data[: len(data) // 2], b""):
        path.write_bytes(damage)
        with pytest.raises(SinkFailed, match="Next: "):
            sink.inspect(OWNER, 1)
    path.unlink()
    with pytest.raises(SinkFailed, match="Next: "):
        sink.inspect(OWNER, 1)
    path.write_bytes(data)
    assert sink.inspect(OWNER, 1).epoch == 1


def test_a_staged_file_that_was_damaged_is_not_committed(tmp_path: Path) -> None:
    sink = filled(tmp_path, 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    file = next((tmp_path / "warehouse/shop/rows/data/hf").rglob("t1-0000000002/**/*.parquet"))
    file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(StagedDamaged):
        made(tmp_path).commit(key_of(2), handle)
    assert seen(sink) == [1]


def test_the_partitioning_must_not_change_while_an_epoch_is_staged(tmp_path: Path) -> None:
    sink = filled(tmp_path, 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    with table_of_sink(sink).update_spec() as change:
        change.add_identity("text")
    with pytest.raises(SinkFailed, match=r"partitioning of table shop\.rows was changed"):
        sink.commit(key_of(2), handle)
    with table_of_sink(sink).update_spec() as change:
        change.remove_field("text")
    sink.commit(key_of(2), handle)
    assert seen(sink) == [1, 2]


def test_a_column_that_is_renamed_while_an_epoch_is_staged_keeps_its_rows(tmp_path: Path) -> None:
    sink = filled(tmp_path, 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    with table_of_sink(sink).update_schema() as change:
        change.rename_column("n", "number")
    sink.commit(key_of(2), handle)
    found = table_of_sink(sink).scan().to_arrow().to_pylist()
    assert sorted(row["number"] for row in found) == [1, 2]


# --- columns that another program changes while the stream runs ---


def drop_column(sink: IcebergSink) -> None:
    with table_of_sink(sink).update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("text")


def add_column(sink: IcebergSink, kind: ice.IcebergType) -> None:
    with table_of_sink(sink).update_schema() as change:
        change.add_column("text", kind)


def replace_column(sink: IcebergSink) -> None:
    drop_column(sink)
    add_column(sink, ice.LongType())


def restore_replaced_column(sink: IcebergSink) -> None:
    drop_column(sink)
    add_column(sink, ice.StringType())


def require_another(sink: IcebergSink) -> None:
    with table_of_sink(sink).update_schema(allow_incompatible_changes=True) as change:
        change.add_column("more", ice.LongType(), required=True)


def make_another_optional(sink: IcebergSink) -> None:
    with table_of_sink(sink).update_schema() as change:
        change.make_column_optional("more")


def require_text(sink: IcebergSink) -> None:
    with table_of_sink(sink).update_schema(allow_incompatible_changes=True) as change:
        change.update_column("text", required=True)


def make_text_optional(sink: IcebergSink) -> None:
    with table_of_sink(sink).update_schema() as change:
        change.make_column_optional("text")


def set_mapping(sink: IcebergSink, names: str) -> None:
    mapping = '[{"field-id": 1, "names": ["n"]}, {"field-id": 2, "names": ["' + names + '"]}]'
    with table_of_sink(sink).transaction() as change:
        change.set_properties({"schema.name-mapping.default": mapping})


Change: TypeAlias = Callable[[IcebergSink], None]
# what another program does while the stream runs, what reverts it, and what the error contains
CHANGED_TABLES: dict[str, tuple[Change, Change, str]] = {
    "a dropped column": (drop_column, partial(add_column, kind=ice.StringType()), "no longer has the column 'text'"),
    "a replaced column": (replace_column, restore_replaced_column, "column 'text' is long, but the stream's is string"),
    "a required column": (require_another, make_another_optional, "it requires the column 'more'"),
    "null in a column that is now required": (require_text, make_text_optional, "it requires the column 'text'"),
    "a name mapping without the column": (
        partial(set_mapping, names="other"),
        partial(set_mapping, names="text"),
        "does not name the column 'text'",
    ),
}


def with_null(number: int) -> Any:
    rows = {"n": pa.array([number, number + 1], pa.int64()), "text": [f"row {number}", None]}
    return LakeFrame(pa.table(rows), SCHEMA)


@pytest.mark.parametrize("case", CHANGED_TABLES)
def test_columns_that_change_while_an_epoch_is_staged_lose_no_value(case: str, tmp_path: Path) -> None:
    """Readers would find nothing in place of the values of such a file."""
    act, revert, why = CHANGED_TABLES[case]
    sink = filled(tmp_path, 1)
    handle = sink.prepare(with_null(2), key_of(2)).handle
    act(sink)
    before = table_of_sink(sink).metadata_location
    for each in (sink, made(tmp_path)):  # the same object, and one after a restart
        with pytest.raises(SchemaMismatch, match=why) as caught:
            each.commit(key_of(2), handle)
        assert "Next: " in str(caught.value)
        assert "epoch 2 was decided" in str(caught.value)
    assert table_of_sink(sink).metadata_location == before, "nothing was changed"
    revert(sink)
    sink.commit(key_of(2), handle)
    sink.commit(key_of(2), handle)
    found = table_of_sink(sink).scan().to_arrow().to_pylist()
    assert sorted((row["n"], row["text"] or "") for row in found) == [(1, "row 1"), (2, "row 2"), (3, "")]


@pytest.mark.parametrize("case", CHANGED_TABLES)
def test_columns_that_change_between_epochs_are_found_before_the_decision(case: str, tmp_path: Path) -> None:
    act, _, why = CHANGED_TABLES[case]
    sink = filled(tmp_path, 1)
    act(sink)
    with pytest.raises(SchemaMismatch, match=why) as caught:
        sink.prepare(with_null(2), key_of(2))
    assert "Next: change the table or the stream's columns" in str(caught.value)
    sink.abort(key_of(2, lease=None))
    assert not list((tmp_path / "warehouse").rglob("t1-0000000002/**/*.parquet"))


def test_a_column_that_is_dropped_at_the_moment_of_a_commit_is_found(tmp_path: Path) -> None:
    """A change of columns does not move the branch, so the catalog is asked to compare them too."""
    sink = filled(tmp_path, 1)
    late = made(tmp_path)
    late.open(context_for(reach=lambda point: drop_column(sink) if point == "committing" else None))
    handle = late.prepare(frame_of(2), key_of(2)).handle
    with pytest.raises(SchemaMismatch, match="no longer has the column 'text'"):
        late.commit(key_of(2), handle)
    assert [row["n"] for row in table_of_sink(sink).scan().to_arrow().to_pylist()] == [1]


def test_changes_that_lose_nothing_do_not_stop_the_stream(tmp_path: Path) -> None:
    """New optional columns, wider types, and columns that are required and have no null."""
    created(tmp_path, field(1, "n", ice.IntegerType()), TEXT)
    sink = made(tmp_path)
    schema = t.StructType([t.StructField("n", t.IntegerType()), t.StructField("text", t.StringType())])
    sink.open(context_for(schema=schema))

    def frame(number: int) -> Any:
        return LakeFrame(pa.table({"n": pa.array([number], pa.int32()), "text": [f"row {number}"]}), schema)

    handle = sink.prepare(frame(1), key_of(1)).handle
    with table_of_sink(sink).update_schema(allow_incompatible_changes=True) as change:
        change.update_column("n", ice.LongType())
        change.update_column("text", required=True)
        change.add_column("more", ice.DateType())
    sink.commit(key_of(1), handle)
    key = replace(key_of(2), before=Link(1, handle_digest(handle)))
    sink.commit(key, sink.prepare(frame(2), key).handle)
    found = table_of_sink(sink).scan().to_arrow().to_pylist()
    assert sorted(found, key=lambda row: row["n"]) == [
        {"n": 1, "text": "row 1", "more": None},
        {"n": 2, "text": "row 2", "more": None},
    ]


def test_fields_of_nested_columns_that_change_while_an_epoch_is_staged(tmp_path: Path) -> None:
    """A field may become wider. Without a field, its values would be lost."""
    inner = t.StructType([t.StructField("a", t.IntegerType()), t.StructField("b", t.StringType())])
    columns = {"one": inner, "many": t.ArrayType(inner), "named": t.MapType(t.StringType(), inner)}
    schema = t.StructType([t.StructField(name, kind) for name, kind in columns.items()])
    sink = made(tmp_path)
    sink.open(context_for(schema=schema))
    value = {"a": 1, "b": "x"}
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    rows = pa.table(
        {
            "one": pa.array([value], kind),
            "many": pa.array([[value, None]], pa.list_(kind)),
            "named": pa.array([[("k", value)]], pa.map_(pa.string(), kind)),
        }
    )
    frame: Any = LakeFrame(rows, schema)
    handle = sink.prepare(frame, key_of(1)).handle
    paths = ("one", "many", "named.value")
    with table_of_sink(sink).update_schema() as change:
        for path in paths:
            change.update_column((*path.split("."), "a"), ice.LongType())
    for path in paths:
        with table_of_sink(sink).update_schema(allow_incompatible_changes=True) as change:
            change.delete_column((*path.split("."), "b"))
        with pytest.raises(SchemaMismatch, match="no longer has the column"):
            sink.commit(key_of(1), handle)
        with table_of_sink(sink).update_schema() as change:
            change.add_column((*path.split("."), "b"), ice.StringType())
    sink.commit(key_of(1), handle)
    found = table_of_sink(sink).scan().to_arrow().to_pylist()
    assert found == [{"one": value, "many": [value, None], "named": [("k", value)]}]


def test_a_name_that_another_column_gets_takes_no_wrong_statistics_along(tmp_path: Path) -> None:
    """The old column is null in the file. Readers that skip files by its statistics would miss that."""
    sink = filled(tmp_path, 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    with table_of_sink(sink).update_schema() as change:
        change.rename_column("n", "old")
    with table_of_sink(sink).update_schema() as change:
        change.add_column("n", ice.LongType())
    sink.commit(key_of(2), handle)
    found = table_of_sink(sink).scan(row_filter="old IS NULL").to_arrow().to_pylist()
    assert {"n": 2, "text": "row 2", "old": None} in found


def rename(sink: IcebergSink, *names: tuple[str, str]) -> None:
    for before, after in names:
        with table_of_sink(sink).update_schema() as change:
            change.rename_column(before, after)


def test_two_columns_of_a_file_that_would_be_read_as_one_are_refused(tmp_path: Path) -> None:
    """One column gets the former name of another one. The values of one of the two would be lost."""
    created(tmp_path, field(1, "text", ice.StringType()), field(2, "other", ice.StringType()))
    schema = t.StructType([t.StructField(name, t.StringType()) for name in ("text", "other")])
    sink = made(tmp_path)
    sink.open(context_for(schema=schema))
    frame: Any = LakeFrame(pa.table({"text": ["a"], "other": ["b"]}), schema)
    sink.commit(key_of(1), sink.prepare(frame, key_of(1)).handle)
    handle = sink.prepare(frame, key_of(2)).handle
    rename(sink, ("text", "kept"), ("other", "text"))
    for each in (sink, made(tmp_path)):
        with pytest.raises(SchemaMismatch, match="would be read as its column 'text'") as caught:
            each.commit(key_of(2), handle)
        assert "Next: restore the column" in str(caught.value)
    with pytest.raises(SchemaMismatch, match="two columns of the stream"):
        sink.prepare(frame, key_of(3))
    assert table_of_sink(sink).scan().to_arrow().num_rows == 1
    rename(sink, ("text", "other"), ("kept", "text"))
    sink.commit(key_of(2), handle)
    assert table_of_sink(sink).scan().to_arrow().to_pylist() == [{"text": "a", "other": "b"}] * 2


def test_two_fields_of_a_struct_that_would_be_read_as_one_are_refused(tmp_path: Path) -> None:
    inner = t.StructType([t.StructField(name, t.StringType()) for name in ("a", "b")])
    schema = t.StructType([t.StructField("s", inner)])
    sink = made(tmp_path)
    sink.open(context_for(schema=schema))
    frame: Any = LakeFrame(pa.table({"s": [{"a": "x", "b": "y"}]}), schema)
    sink.commit(key_of(1), sink.prepare(frame, key_of(1)).handle)
    handle = sink.prepare(frame, key_of(2)).handle
    rename(sink, ("s.a", "c"), ("s.b", "a"))
    with pytest.raises(SchemaMismatch, match=r"two columns of the stream would be read as its column 's\.a'"):
        sink.commit(key_of(2), handle)


def test_a_table_whose_location_is_changed_is_found_before_the_decision(tmp_path: Path) -> None:
    sink = filled(tmp_path, 1)
    move(sink, tmp_path / "elsewhere")
    with pytest.raises(SinkFailed, match="its partitioning or its location was changed") as caught:
        sink.prepare(frame_of(2), key_of(2))
    assert "Next: run again: this epoch was not decided" in str(caught.value)
    sink.abort(key_of(2, lease=None))
    sink = opened(tmp_path)
    epoch(sink, key_of(2, attempt=2), 2)
    assert seen(sink) == [1, 2]


def test_a_table_whose_location_is_changed_after_the_decision(tmp_path: Path) -> None:
    """The error names the folder with the staged files, also after a restart."""
    sink = filled(tmp_path, 1)
    folder = Path(table_of_sink(sink).location().removeprefix("file://"))
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    move(sink, tmp_path / "elsewhere")
    for each in (sink, made(tmp_path)):
        with pytest.raises(SinkFailed, match=r"location of table shop\.rows was changed after the epoch") as caught:
            each.commit(key_of(2), handle)
        assert f"Next: set the location back to file://{folder}, run again" in str(caught.value)
    earlier = {name: value for name, value in handle.items() if name != "location"}
    with pytest.raises(StagedGone):
        made(tmp_path).commit(key_of(2), earlier)
    move(sink, folder)
    sink.commit(key_of(2), handle)
    assert seen(sink) == [1, 2]


@pytest.mark.parametrize("name", ["a ü", "50%"])
@pytest.mark.parametrize("as_url", [Path.as_uri, lambda path: f"file://{path}", lambda path: f"file:{path}", str])
def test_the_name_of_a_warehouse(name: str, as_url: Callable[[Path], str], tmp_path: Path) -> None:
    """PyIceberg and Hadoop take a percent sign in a location literally, so the files must be where they look."""
    sink = IcebergSink("shop.rows", catalog=sqlite_catalog(tmp_path, as_url(tmp_path / name)))
    sink.open(context_for())
    epoch(sink, key_of(1), 1, 2)
    table = table_of_sink(sink)
    assert table.scan().to_arrow().num_rows == 2
    assert all(table.io.new_input(each.file.file_path).exists() for each in table.scan().plan_files())
    sink.take_back(OWNER, (1, 0), 2)
    sink.put_back(OWNER, (1, 1), 3, 2)
    assert table_of_sink(sink).scan().to_arrow().num_rows == 2
    assert len(list(tmp_path.iterdir())) == 2, "the catalog and one warehouse"


def test_staged_files_that_are_gone_are_reported(tmp_path: Path) -> None:
    """The location of the table is the same, so it is not named."""
    sink = filled(tmp_path, 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    for file in (tmp_path / "warehouse").rglob("t1-0000000002/**/*.parquet"):
        file.unlink()
    with pytest.raises(StagedGone):
        sink.commit(key_of(2), handle)


def test_a_table_that_is_partitioned_in_another_way_is_found_before_the_decision(tmp_path: Path) -> None:
    sink = filled(tmp_path, 1)
    with table_of_sink(sink).update_spec() as change:
        change.add_identity("text")
    with pytest.raises(SinkFailed, match="Next: run again"):
        sink.prepare(frame_of(2), key_of(2))
    sink.abort(key_of(2, lease=None))
    assert seen(sink) == [1]


# --- tables that are refused ---

REFUSED_TABLES: dict[str, tuple[list[ice.NestedField], str]] = {
    "a missing column": ([N], "it has no column 'text'"),
    "another type": ([field(1, "n", ice.StringType()), TEXT], "column 'n' is string, but the stream's is long"),
    "a narrower type": ([field(1, "n", ice.IntegerType()), TEXT], "column 'n' is int, but the stream's is long"),
    "a uuid": ([N, field(2, "text", ice.UUIDType())], "column 'text' is uuid, but the stream's is string"),
    "a required column": (
        [N, TEXT, field(3, "more", ice.LongType(), required=True)],
        "it requires the column 'more', which the stream does not have",
    ),
}


@pytest.mark.parametrize("case", REFUSED_TABLES)
def test_a_table_that_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    fields, why = REFUSED_TABLES[case]
    table = created(tmp_path, *fields)
    with pytest.raises(SchemaMismatch, match=why) as caught:
        opened(tmp_path)
    assert "Next: " in str(caught.value)
    assert table_of_sink(made(tmp_path)).metadata_location == table.metadata_location, "nothing was changed"


@pytest.mark.parametrize("version", ["1", "3"])
def test_other_versions_of_the_format_are_refused(version: str, tmp_path: Path) -> None:
    table = created(tmp_path, **{"format-version": "1" if version == "1" else "2"})
    if version == "3":  # PyIceberg cannot write it
        path = Path(table.metadata_location.removeprefix("file://"))
        path.write_text(path.read_text().replace('"format-version":2', '"format-version":3,"next-row-id":0'))
    with pytest.raises(NotSupported, match=f"format version {version}"):
        opened(tmp_path)


def test_null_in_a_required_column_fails_before_the_decision(tmp_path: Path) -> None:
    created(tmp_path, field(1, "n", ice.LongType(), required=True), TEXT)
    sink = opened(tmp_path)
    epoch(sink, key_of(1), 1)
    nothing: Any = LakeFrame(pa.table({"n": pa.array([2, None], pa.int64()), "text": ["row 2", "x"]}), SCHEMA)
    with pytest.raises(SchemaMismatch, match="requires the column 'n'"):
        sink.prepare(nothing, key_of(2))
    sink.abort(key_of(2, lease=None))
    assert seen(sink) == [1]


def test_null_in_a_nested_column_that_is_required(tmp_path: Path) -> None:
    """Files do not show it, so the type of the stream must exclude it."""
    inner = ice.StructType(field(3, "a", ice.LongType()))
    created(tmp_path, N, field(2, "s", inner, required=True))
    kind = t.StructType([t.StructField("a", t.LongType())])

    def schema(*, nullable: bool) -> t.StructType:
        return t.StructType([SCHEMA["n"], t.StructField("s", kind, nullable)])

    with pytest.raises(SchemaMismatch, match="it requires 's', which may be null in the stream"):
        made(tmp_path).open(context_for(schema=schema(nullable=True)))
    sink = made(tmp_path)
    sink.open(context_for(schema=schema(nullable=False)))
    row = {"n": 1, "s": {"a": 1}}
    frame: Any = LakeFrame(pa.Table.from_pylist([row]), schema(nullable=False))
    sink.commit(key_of(1), sink.prepare(frame, key_of(1)).handle)
    assert table_of_sink(sink).scan().to_arrow().to_pylist() == [row]


def test_a_nested_column_that_is_required_while_the_stream_runs(tmp_path: Path) -> None:
    kind = t.StructType([t.StructField("a", t.LongType())])
    schema = t.StructType([SCHEMA["n"], t.StructField("s", kind)])
    sink = made(tmp_path)
    sink.open(context_for(schema=schema))
    frame: Any = LakeFrame(pa.Table.from_pylist([{"n": 1, "s": {"a": 1}}, {"n": 2, "s": None}]), schema)
    handle = sink.prepare(frame, key_of(1)).handle
    with table_of_sink(sink).update_schema(allow_incompatible_changes=True) as change:
        change.update_column("s", required=True)
    with pytest.raises(SchemaMismatch, match="it requires 's', which may be null in the stream"):
        sink.commit(key_of(1), handle)


@pytest.mark.parametrize("name", ["write.metadata.metrics.default", "write.metadata.metrics.column.n"])
def test_a_required_column_without_statistics(name: str, tmp_path: Path) -> None:
    required = field(1, "n", ice.LongType(), required=True)
    created_iceberg(tmp_path, required, TEXT, spec=PartitionSpec(), **{name: "none"})
    sink = opened(tmp_path)
    epoch(sink, key_of(1), 1)
    nothing: Any = LakeFrame(pa.table({"n": pa.array([2, None], pa.int64()), "text": ["row 2", "x"]}), SCHEMA)
    with pytest.raises(SchemaMismatch, match="requires the column 'n'"):
        sink.prepare(nothing, key_of(2))
    assert seen(sink) == [1]


FAR: dict[str, tuple[t.DataType, pa.Array]] = {
    "a date": (t.DateType(), pa.array([5_000_000, 0, -1_000_000], pa.int32()).cast(pa.date32())),
    "a timestamp": (t.TimestampType(), pa.array([10**18, 0, -(10**17)], pa.int64()).cast(pa.timestamp("us", "UTC"))),
    "one without a zone": (t.TimestampNTZType(), pa.array([10**18, 0], pa.int64()).cast(pa.timestamp("us"))),
}


@pytest.mark.parametrize("kind", FAR)
def test_dates_that_python_cannot_represent(kind: str, tmp_path: Path) -> None:
    """Spark and Iceberg have dates after the year 9999, and before the year 1."""
    spark_type, values = FAR[kind]
    schema = t.StructType([t.StructField("at", spark_type)])
    sink = made(tmp_path)
    sink.open(context_for(schema=schema))
    frame: Any = LakeFrame(pa.table({"at": values}), schema)
    sink.commit(key_of(1), sink.prepare(frame, key_of(1)).handle)
    found = table_of_sink(sink).scan().to_arrow()["at"]
    plain = pa.int32() if pa.types.is_date(values.type) else pa.int64()
    assert sorted(found.cast(plain).to_pylist()) == sorted(values.cast(plain).to_pylist())
    assert [each.file.null_value_counts[1] for each in table_of_sink(sink).scan().plan_files()] == [0, 0]


def test_a_bound_that_pyiceberg_cannot_cut(tmp_path: Path) -> None:
    """It increments the last character that it keeps, and there is none with the number after U+D7FF."""
    sink = opened(tmp_path)
    texts = pa.table({"n": pa.array([1, 2], pa.int64()), "text": ["a", "b" * 15 + "\ud7ff" * 2]})
    sink.commit(key_of(1), sink.prepare(LakeFrame(texts, SCHEMA), key_of(1)).handle)
    assert table_of_sink(sink).scan(row_filter="text > 'b'").to_arrow()["n"].to_pylist() == [2]


def test_bounds_that_a_part_of_a_file_lacks(tmp_path: Path) -> None:
    """A reader that skips the file by the bounds of its other parts would miss rows."""
    schema = t.StructType([t.StructField("at", t.StringType())])
    sink = made(tmp_path)
    sink.open(context_for(schema=schema))

    class InParts(LakeFrame):
        def save(self, address: str) -> None:
            path = Path(address.removeprefix("file:"))
            path.mkdir(parents=True, exist_ok=True)
            pq.write_table(self.table, path / "part-0.parquet", row_group_size=1)

    long = "x" * 5000  # too long for the statistics of a file
    frame: Any = InParts(pa.table({"at": [long, "a", None]}), schema)
    sink.commit(key_of(1), sink.prepare(frame, key_of(1)).handle)
    found = table_of_sink(sink).scan(row_filter="at > 'c'").to_arrow()["at"].to_pylist()
    assert found == [long]


LONG = "x" * 5000  # too long for the statistics of a file


def long_frame(*texts: str | None) -> Any:
    rows = {"n": pa.array(range(len(texts)), pa.int64()), "text": pa.array(texts, pa.string())}
    return LongFrame(pa.table(rows), SCHEMA)


def test_nulls_that_a_part_of_a_file_does_not_count_are_found(tmp_path: Path) -> None:
    """A reader that trusts the counts of the other parts would skip the file."""
    sink = opened(tmp_path)
    sink.commit(key_of(1), sink.prepare(long_frame("a", "b", LONG, None), key_of(1)).handle)
    (task,) = table_of_sink(sink).scan().plan_files()
    assert task.file.null_value_counts == {1: 0}
    assert task.file.value_counts == {1: 4, 2: 4}
    found = table_of_sink(sink).scan(row_filter="text IS NULL").to_arrow()["n"].to_pylist()
    assert found == [3]
    assert table_of_sink(sink).scan(row_filter="text IS NOT NULL").to_arrow().num_rows == 3


def test_a_required_column_with_long_values(tmp_path: Path) -> None:
    """The footer of a file has no count of its nulls, so the column is read."""
    created(tmp_path, N, field(2, "text", ice.StringType(), required=True))
    sink = opened(tmp_path)
    sink.commit(key_of(1), sink.prepare(long_frame("a", "b", LONG, "c"), key_of(1)).handle)
    (task,) = table_of_sink(sink).scan().plan_files()
    assert task.file.null_value_counts == {1: 0, 2: 0}
    with pytest.raises(SchemaMismatch, match="requires the column 'text', and a row has no value there"):
        sink.prepare(long_frame("a", "b", LONG, None), key_of(2))
    assert [row["n"] for row in table_of_sink(sink).scan().to_arrow().to_pylist()] == [0, 1, 2, 3]


def test_a_column_with_long_values_that_is_required_while_an_epoch_is_staged(tmp_path: Path) -> None:
    """Its nulls were not counted when the epoch was staged."""
    sink = opened(tmp_path)
    handle = sink.prepare(long_frame("a", "b", LONG, "c"), key_of(1)).handle
    require_text(sink)
    with pytest.raises(SchemaMismatch, match="'text', whose nulls were not counted when the epoch was staged"):
        sink.commit(key_of(1), handle)
    make_text_optional(sink)
    sink.commit(key_of(1), handle)
    assert table_of_sink(sink).scan().to_arrow().num_rows == 4


def test_a_format_that_is_raised_while_the_stream_runs(tmp_path: Path) -> None:
    sink = filled(tmp_path, 1)
    handle = sink.prepare(frame_of(2), key_of(2)).handle
    metadata = Path(table_of_sink(sink).metadata_location.removeprefix("file://"))
    raised = json.loads(metadata.read_text()) | {"format-version": 3, "next-row-id": 0}
    metadata.write_text(json.dumps(raised))  # PyIceberg itself cannot raise it
    with pytest.raises(NotSupported, match="format version 3"):
        sink.commit(key_of(2), handle)
    with pytest.raises(NotSupported, match="format version 3"):
        sink.prepare(frame_of(3), key_of(3))


def test_required_columns_are_checked_by_the_names_of_the_stream(tmp_path: Path) -> None:
    created(tmp_path, field(1, "N", ice.LongType(), required=True), TEXT)
    assert opened(tmp_path).row_checks() == {"n is null": "`n` IS NOT NULL"}


def test_columns_that_only_the_table_has_are_null(tmp_path: Path) -> None:
    created(tmp_path, N, TEXT, field(3, "more", ice.LongType()))
    sink = filled(tmp_path, 1)
    assert table_of_sink(sink).scan().to_arrow().to_pylist() == [{"n": 1, "text": "row 1", "more": None}]


def test_a_name_mapping_that_lacks_a_column_is_refused(tmp_path: Path) -> None:
    created(tmp_path, **{"schema.name-mapping.default": '[{"field-id": 1, "names": ["n"]}]'})
    with pytest.raises(SchemaMismatch, match="does not name the column 'text'"):
        opened(tmp_path)


def test_another_partitioning_is_refused(tmp_path: Path) -> None:
    created(tmp_path, spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "text")))
    with pytest.raises(SchemaMismatch, match="and not by bucket") as caught:
        opened(tmp_path, partition_by="bucket(4, n)")
    assert "it is partitioned by identity of text" in str(caught.value)
    assert "Next: leave partition_by out" in str(caught.value)
    opened(tmp_path, partition_by="text")
    opened(tmp_path)


@pytest.mark.parametrize(
    ("partition_by", "why"),
    [("day(n)", "day is not possible for a column of type long"), ("missing", "the column 'missing'")],
)
def test_a_partitioning_that_is_impossible_creates_no_table(partition_by: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match=why):
        opened(tmp_path, partition_by=partition_by)
    assert made(tmp_path).is_missing()


def test_a_table_is_not_created_unless_that_was_requested(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="no such table"):
        opened(tmp_path, create=False)
    assert made(tmp_path).is_missing()


UNFIT = [
    t.DayTimeIntervalType(),
    t.YearMonthIntervalType(),
    t.CalendarIntervalType(),
    t.VariantType(),
    t.NullType(),
    t.StructType([]),
    t.ArrayType(t.ShortType()),
    t.MapType(t.StringType(), t.DayTimeIntervalType()),
]


@pytest.mark.parametrize("kind", UNFIT, ids=lambda kind: kind.simpleString())
def test_types_that_iceberg_lacks_are_refused_by_name(kind: t.DataType, tmp_path: Path) -> None:
    schema = t.StructType([t.StructField("n", t.LongType()), t.StructField("odd", kind)])
    sink = made(tmp_path)
    with pytest.raises(SchemaMismatch, match="column 'odd"):
        sink.open(context_for(schema=schema))
    assert sink.is_missing()


def test_a_column_that_has_the_path_of_a_field_is_refused(tmp_path: Path) -> None:
    inner = t.StructType([t.StructField("b", t.LongType())])
    schema = t.StructType([t.StructField("a", inner), t.StructField("a.b", t.LongType())])
    with pytest.raises(SchemaMismatch, match=r"multiple fields for name a\.b"):
        made(tmp_path).open(context_for(schema=schema))


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_modes_that_replace_rows_are_refused(mode: str, tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="changelog=True"):
        made(tmp_path).open(context_for(output_mode=mode))
    made(tmp_path, changelog=True).open(context_for(output_mode=mode))


# --- arguments, and secrets ---

SECRET = "s3cr3t-v4lue"  # noqa: S105
WRONG: dict[str, Callable[[], object]] = {
    "no namespace": lambda: IcebergSink("rows", catalog="c"),
    "an empty part": lambda: IcebergSink("shop..rows", catalog="c"),
    "no table": lambda: IcebergSink(5, catalog="c"),  # type: ignore[arg-type]
    "an empty catalog": lambda: IcebergSink("shop.rows", catalog={}),
    "a catalog that is a list": lambda: IcebergSink("shop.rows", catalog=[SECRET]),  # type: ignore[arg-type]
    "a value that is not text": lambda: IcebergSink("shop.rows", catalog={"uri": 5, "token": SECRET}),  # type: ignore[dict-item]
    "no snapshots": lambda: IcebergSink("shop.rows", catalog="c", keep_snapshots=0),
    "a transform that does not exist": lambda: IcebergSink("shop.rows", catalog="c", partition_by="week(at)"),
    "a bucket without a width": lambda: IcebergSink("shop.rows", catalog="c", partition_by="bucket(n)"),
    "a width of zero": lambda: IcebergSink("shop.rows", catalog="c", partition_by="bucket(0, n)"),
    "a catalog that is not configured": lambda: IcebergSink("shop.rows", catalog="nowhere").is_missing(),
    "an unknown type": lambda: IcebergSink("shop.rows", catalog={"type": "x", "uri": "y"}).is_missing(),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case: str) -> None:
    with pytest.raises(BadValue) as caught:
        WRONG[case]()
    assert "Next: " in str(caught.value)
    if "list" not in case:
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("properties", [{"type": "in-memory"}, {"type": "sql", "uri": "sqlite:///:memory:"}])
def test_a_catalog_in_memory_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(NotSupported, match="in memory"):
        IcebergSink("shop.rows", catalog=properties).is_missing()


OTHER_TYPES = {
    "glue": {"type": "glue"},
    "Glue": {"type": "Glue"},
    "hive": {"uri": "thrift://127.0.0.1:9"},
    "dynamodb": {"type": "dynamodb"},
    "bigquery": {"type": "bigquery"},
}


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_a_catalog_of_another_type_is_refused_by_its_name_and_not_for_a_package(kind: str) -> None:
    sink = IcebergSink("shop.rows", catalog=OTHER_TYPES[kind])
    with pytest.raises(NotSupported) as caught:
        sink.is_missing()
    text = str(caught.value)
    assert f"a catalog of the type {kind} for sink 'iceberg.shop.rows' is not supported" in text
    assert "Next: use a catalog of the type sql or rest." in text
    assert "install" not in text


def secret_catalog(folder: Path) -> Iterator[dict[str, str]]:
    yield {"type": "rest", "uri": "http://127.0.0.1:9", "token": SECRET}
    yield {"type": "rest", "uri": f"http://user:{SECRET}@127.0.0.1:9"}
    yield {"type": "sql", "uri": f"postgresql+psycopg://user:{SECRET}@127.0.0.1:9/none", "warehouse": str(folder)}
    yield {
        "type": "rest",
        "uri": "http://127.0.0.1:9",
        "credential": f"client:{SECRET}",
        "oauth2-server-uri": "http://127.0.0.1:9/t",
    }


@pytest.mark.parametrize("number", range(4))
def test_secrets_reach_no_text(number: int, tmp_path: Path) -> None:
    sink = IcebergSink("shop.rows", catalog=list(secret_catalog(tmp_path))[number])
    texts = [repr(sink), str(sink.target), str(sink.describe()), str(sink.name)]
    with pytest.raises(HoldfastError) as caught:
        sink.is_missing()
    texts += [
        str(caught.value),
        repr(caught.value),
        str(caught.value.__cause__),
        str(caught.value.__suppress_context__),
    ]
    assert not [text for text in texts if SECRET in text]
    assert isinstance(caught.value, SinkUnavailable)


class Refusing(BaseHTTPRequestHandler):
    """A REST catalog that refuses every request, or all but the one for its configuration."""

    status, answers_config = 401, False

    def do_GET(self) -> None:
        """Answer as the specification of the catalog requires it."""
        if self.answers_config and self.path.startswith("/v1/config"):
            self._answer(200, {"defaults": {}, "overrides": {}})
        else:
            problem = {"message": f"not for {SECRET}", "type": "NotAuthorizedException", "code": self.status}
            self._answer(self.status, {"error": problem})

    do_POST = do_HEAD = do_GET  # noqa: N815 - the names are given

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.mark.parametrize("answers_config", [True, False])
@pytest.mark.parametrize("status", [401, 403])
def test_a_catalog_that_refuses_the_token(status: int, answers_config: bool) -> None:
    """It is no outage: the pipeline does not wait, and the error names what to check."""
    handler = type("Handler", (Refusing,), {"status": status, "answers_config": answers_config})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            uri = f"http://127.0.0.1:{server.server_port}"
            sink = IcebergSink("shop.rows", catalog={"type": "rest", "uri": uri, "token": SECRET})
            for act in (lambda: sink.open(context_for()), sink.is_missing):
                with pytest.raises(SinkFailed, match="Next: check the catalog's credential or token") as caught:
                    act()
                assert type(caught.value) is SinkFailed
                assert SECRET not in str(caught.value)
        finally:
            server.shutdown()
            thread.join()


def test_a_bucket_that_does_not_exist(s3: S3Place, tmp_path: Path) -> None:
    sink = IcebergSink("shop.rows", catalog=sqlite_catalog(tmp_path, "s3://no-such-bucket/warehouse"))
    with pytest.raises(SinkFailed, match="Next: ") as caught:
        sink.open(context_for())
    assert type(caught.value) is SinkFailed
    assert "bucket" in str(caught.value)
    assert sink.is_missing()


def test_a_store_that_denies_access(s3: S3Place, s3_faults: FaultProxy, tmp_path: Path) -> None:
    """Nothing of the epoch is visible, and it is committed once the permission is back."""
    sink = IcebergSink("shop.rows", catalog=sqlite_catalog(tmp_path, s3.url("warehouse")))
    sink.open(context_for())
    handle = sink.prepare(frame_of(1), key_of(1)).handle
    for kind in ("MULTIPART", "GET"):
        s3_faults.fail(Answer(403, "AccessDenied"), kind, key="/metadata/", times=None)
        with pytest.raises(SinkFailed, match=r"Next: fix .*permissions") as caught:
            sink.commit(key_of(1), handle)
        assert type(caught.value) is SinkFailed
        s3_faults.clear()
    assert seen(sink) == []
    sink.commit(key_of(1), handle)
    assert seen(sink) == [1]


def test_the_handle_has_no_secrets(tmp_path: Path) -> None:
    sink = IcebergSink("shop.rows", catalog={**sqlite_catalog(tmp_path), "s3.secret-access-key": SECRET})
    sink.open(context_for())
    staged = sink.prepare(frame_of(1), key_of(1))
    sink.commit(key_of(1), staged.handle)
    assert SECRET not in str(staged.handle)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_two_sinks_of_one_table_have_the_same_target(tmp_path: Path) -> None:
    assert made(tmp_path).target == made(tmp_path, keep_snapshots=3).target
    assert made(tmp_path).target != IcebergSink("shop.other", catalog=sqlite_catalog(tmp_path)).target


def test_a_driver_of_an_ended_timeline_is_refused_by_a_stamp_that_moved_nothing(tmp_path: Path) -> None:
    """Catalogs compare only the branch, so a stamp adds a snapshot even if no rows move."""
    sink = filled(tmp_path, 2)
    paused, resumed = threading.Event(), threading.Event()

    def pause(point: str) -> None:
        if point == "committing":
            paused.set()
            resumed.wait(30)

    late = made(tmp_path)
    late.open(context_for(reach=pause))
    handle = late.prepare(frame_of(3), key_of(3)).handle
    failures: list[BaseException] = []
    thread = threading.Thread(target=lambda: failures.extend(at_once(lambda: late.commit(key_of(3), handle))))
    thread.start()
    assert paused.wait(30)
    sink.stamp(OWNER, (1, 2), 2)
    resumed.set()
    thread.join()
    assert [type(each) for each in failures] == [TimelineEnded]
    assert seen(sink) == [1, 2]
    assert sink.inspect(OWNER, 2).epoch == 2
