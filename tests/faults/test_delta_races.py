"""Drivers that commit to one Delta table at the same moment, and answers of the store that are lost.

`HOLDFAST_DELTA_ROUNDS` repeats each race so many times, and loses so many answers, which the faults share. The soak has
500 races and 200 lost answers.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from deltastaged import OWNER, context_for, frame_of, key_of, rows_of
from faultproxy import Fault, FaultProxy
from handstaged import table_of
from holdfast.errors import SinkFailed, TimelineEnded
from holdfast.sinks.base import Staged
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.testing.take_back import at_once
from s3fixture import S3Place

ROUNDS = int(os.environ.get("HOLDFAST_DELTA_ROUNDS", "25"))
LOST = [Fault.DROP_AFTER, Fault.APPLIED_500, Fault.APPLIED_503, Fault.APPLIED_409, Fault.DROP_BEFORE, Fault.ANSWER_409]


def opened(path: str | Path, output_mode: str = "append") -> DeltaSink:
    sink = DeltaSink(path, key="n" if output_mode == "update" else None)
    sink.open(context_for(output_mode=output_mode))
    return sink


def raced(sinks: list[DeltaSink], epoch: int) -> Staged:
    """Let all sinks commit one handle at the same moment: all of them succeed."""
    staged = sinks[0].prepare(frame_of(2 * epoch, 2 * epoch + 1), key_of(epoch))
    assert at_once([lambda sink=sink: sink.commit(key_of(epoch), staged.handle) for sink in sinks]) == []
    return staged


@pytest.mark.parametrize("mode", ["append", "complete", "update"])
def test_two_drivers_commit_one_handle_at_the_same_moment(mode: str, tmp_path: Path) -> None:
    sinks = [opened(tmp_path / "table", mode) for _ in range(2)]
    before = DeltaTable(sinks[0].path).version()
    for epoch in range(1, ROUNDS + 1):
        raced(sinks, epoch)
    first = 2 * ROUNDS if mode == "complete" else 2
    assert [n for n, _ in rows_of(sinks[0])] == list(range(first, 2 * ROUNDS + 2))
    assert DeltaTable(sinks[0].path).version() == before + ROUNDS, "each epoch is one commit"
    assert sinks[0].inspect(OWNER, 1).epoch == ROUNDS


@pytest.mark.parametrize("mode", ["append", "update"])
def test_two_drivers_and_another_writer(mode: str, tmp_path: Path) -> None:
    """A program that is not Holdfast appends all the time. No row is lost, none is there twice."""
    sinks = [opened(tmp_path / "table", mode) for _ in range(2)]
    stopped, written = threading.Event(), [0]

    def write() -> None:
        while not stopped.is_set():
            written[0] += 1
            write_deltalake(sinks[0].path, table_of(-written[0]), mode="append")
            stopped.wait(0.02 if mode == "append" else 0.5)  # a merge must be repeated after each of them

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for epoch in range(1, ROUNDS + 1):
            raced(sinks, epoch)
    finally:
        stopped.set()
        writer.join()
    found = [n for n, _ in rows_of(sinks[0])]
    assert found == [*range(-written[0], 0), *range(2, 2 * ROUNDS + 2)]


def test_a_rewind_and_a_commit_of_the_old_timeline_at_the_same_moment(tmp_path: Path) -> None:
    """Either the epoch is committed and taken back, or it is refused: its rows never stay."""
    late = opened(tmp_path / "table")
    for number in range(1, ROUNDS + 1):
        key = key_of(2 * number, timeline=number)
        handle = late.prepare(frame_of(number), key).handle
        errors: list[BaseException] = []

        def commit(key=key, handle=handle, errors=errors) -> None:  # type: ignore[no-untyped-def]
            try:
                late.commit(key, handle)
            except TimelineEnded as error:
                errors.append(error)

        back = DeltaSink(tmp_path / "table")
        base = (number, 2 * number - 1)
        assert at_once([commit, lambda: back.take_back(OWNER, base, number + 1)]) == []  # noqa: B023 - called at once
        assert rows_of(late) == []
        assert late.inspect(OWNER, number + 1).epoch == 2 * number - 1


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_a_lost_answer_of_the_store(fault: Fault, s3: S3Place, s3_faults: FaultProxy) -> None:
    """The commit of the log is applied or not, and the client cannot tell. The epoch is there once."""
    sink = opened(s3.url("table"))
    rounds = -(-ROUNDS // len(LOST))
    for epoch in range(1, rounds + 1):
        staged = sink.prepare(frame_of(epoch), key_of(epoch))
        s3_faults.reset()
        times = 1 + epoch % 3
        s3_faults.fail(fault, "CREATE", key="_delta_log/", times=times)
        key = key_of(epoch)
        for _ in range(20):
            try:
                sink.commit(key, staged.handle)
                break
            except SinkFailed:
                continue  # the next start does it again
        else:
            pytest.fail("it was never committed")
        assert any(each.fault is fault for each in s3_faults.seen), f"no write was failed in round {epoch}"
        s3_faults.clear()
        opened(s3.url("table")).commit(key, staged.handle)
        assert sink.inspect(OWNER, 1).epoch == epoch
    assert [n for n, _ in rows_of(sink)] == list(range(1, rounds + 1))


def test_delta_accepts_a_second_commit_without_our_check(tmp_path: Path) -> None:
    """The control: a fresh writer that does not look first commits the same epoch again."""
    sink = opened(tmp_path / "table")
    staged = sink.prepare(frame_of(1), key_of(1))
    sink.commit(key_of(1), staged.handle)
    path = sink.path
    version = DeltaTable(path).version()
    again = CommitProperties(app_transactions=[Transaction(f"holdfast/{OWNER.uid}/{OWNER.stream}", 1)])
    write_deltalake(path, table_of(1), mode="append", commit_properties=again)
    assert DeltaTable(path).version() == version + 1
    assert [n for n, _ in rows_of(sink)] == [1, 1]
