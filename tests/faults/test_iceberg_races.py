"""Drivers that commit to one Iceberg table at the same moment, and answers of the store that are lost.

`HOLDFAST_ICEBERG_ROUNDS` repeats each race so many times, and loses so many answers, which the faults share. The soak
has 500 races and 200 lost answers.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from faultproxy import Fault, FaultProxy
from handstaged import table_of
from holdfast.errors import SinkFailed, TimelineEnded
from holdfast.sinks.iceberg.changes import is_own
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.testing.take_back import at_once
from icebergstaged import OWNER, context_for, frame_of, key_of, rows_of, sqlite_catalog, table_of_sink
from s3fixture import S3Place

ROUNDS = int(os.environ.get("HOLDFAST_ICEBERG_ROUNDS", "25"))
LOST = [Fault.DROP_AFTER, Fault.APPLIED_500, Fault.APPLIED_503, Fault.DROP_BEFORE, Fault.ANSWER_503]
METADATA = [r"-m\d+\.avro", "/snap-", r"\.metadata\.json"]  # files that each commit writes, in this order


def made(folder: Path, warehouse: str | None = None) -> IcebergSink:
    return IcebergSink("shop.rows", catalog=sqlite_catalog(folder, warehouse))


def opened(folder: Path, warehouse: str | None = None) -> IcebergSink:
    sink = made(folder, warehouse)
    sink.open(context_for())
    return sink


def raced(sinks: list[IcebergSink], epoch: int) -> None:
    """Let all sinks commit one handle at the same moment: all of them succeed."""
    staged = sinks[0].prepare(frame_of(2 * epoch, 2 * epoch + 1), key_of(epoch))
    assert at_once([lambda sink=sink: sink.commit(key_of(epoch), staged.handle) for sink in sinks]) == []


def seen(sink: IcebergSink) -> list[int]:
    return sorted(n for n, _ in rows_of(sink))


def test_two_drivers_commit_one_handle_at_the_same_moment(tmp_path: Path) -> None:
    sinks = [opened(tmp_path) for _ in range(2)]
    for epoch in range(1, ROUNDS + 1):
        raced(sinks, epoch)
    assert seen(sinks[0]) == list(range(2, 2 * ROUNDS + 2))
    table = table_of_sink(sinks[0])
    assert table.metadata.last_sequence_number == ROUNDS, "each epoch is one snapshot"
    assert len([each for each in table.metadata.snapshots if is_own(each, OWNER)]) <= 20
    assert sinks[0].inspect(OWNER, 1).epoch == ROUNDS


def test_two_drivers_and_another_writer(tmp_path: Path) -> None:
    """A program that is not Holdfast appends all the time. No row is lost, none is there twice."""
    sinks = [opened(tmp_path) for _ in range(2)]
    stopped, written = threading.Event(), [0]

    def write() -> None:
        while not stopped.is_set():
            try:
                table_of_sink(sinks[0]).append(table_of(-written[0] - 1))
                written[0] += 1
            except CommitFailedException:
                continue
            stopped.wait(0.5)  # its snapshots are not expired, so it must not fill the table

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for epoch in range(1, ROUNDS + 1):
            raced(sinks, epoch)
    finally:
        stopped.set()
        writer.join()
    assert seen(sinks[0]) == [*range(-written[0], 0), *range(2, 2 * ROUNDS + 2)]


def test_a_rewind_and_a_commit_of_the_old_timeline_at_the_same_moment(tmp_path: Path) -> None:
    """Either the epoch is committed and taken back, or it is refused: its rows never stay."""
    late = opened(tmp_path)
    for number in range(1, ROUNDS + 1):
        key = key_of(2 * number, timeline=number)
        handle = late.prepare(frame_of(number), key).handle

        def commit(key: Any = key, handle: Any = handle) -> None:
            with contextlib.suppress(TimelineEnded):
                late.commit(key, handle)

        back = made(tmp_path)
        base = (number, 2 * number - 1)
        assert at_once([commit, lambda: back.take_back(OWNER, base, number + 1)]) == []  # noqa: B023 - called at once
        back.close()
        assert rows_of(late) == []
        assert late.inspect(OWNER, number + 1).epoch == 2 * number - 1


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_a_lost_answer_of_the_store(fault: Fault, s3: S3Place, s3_faults: FaultProxy, tmp_path: Path) -> None:
    """A write of metadata is applied or not, and the client cannot tell. The epoch is there once."""
    warehouse = s3.url("warehouse")
    sink = opened(tmp_path, warehouse)
    rounds = -(-ROUNDS // len(LOST))
    for epoch in range(1, rounds + 1):
        staged = sink.prepare(frame_of(epoch), key_of(epoch))
        s3_faults.reset()
        file = METADATA[epoch % len(METADATA)]
        s3_faults.fail(fault, "MULTIPART", key=file, times=1 + epoch % 4)  # PyArrow writes each file in parts
        if epoch % 2:
            s3_faults.fail(fault, "GET", key="/metadata/")
        key = key_of(epoch)
        for _ in range(20):
            try:
                sink.commit(key, staged.handle)
                break
            except SinkFailed:
                continue  # the next start does it again
        else:
            pytest.fail("it was never committed")
        failed = [each for each in s3_faults.seen if each.fault is fault and each.kind == "MULTIPART"]
        assert failed, f"no write of {file} was failed in round {epoch}"
        s3_faults.clear()
        again = opened(tmp_path, warehouse)
        again.commit(key, staged.handle)
        again.close()
        assert sink.inspect(OWNER, 1).epoch == epoch
    assert seen(sink) == list(range(1, rounds + 1))


def test_pyiceberg_doubles_rows_without_our_check(tmp_path: Path) -> None:
    """The control: two writers that read the table at the same moment both add the same file."""
    sink = opened(tmp_path)
    staged = sink.prepare(frame_of(1), key_of(1))
    assert staged.rows == 1
    tables = [table_of_sink(sink) for _ in range(2)]
    files = [str(path) for path in (tmp_path / "warehouse/shop/rows/data/hf").rglob("*.parquet")]
    for table in tables:
        table.add_files([f"file://{each}" for each in files])
    assert [n for n, _ in rows_of(sink)] == [1, 1]
