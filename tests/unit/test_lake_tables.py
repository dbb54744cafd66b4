"""Lake tables as sources, without Spark: what does not fit the position of a stream is named."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from holdfast._lake_tables import (
    DeltaNow,
    DeltaPosition,
    IcebergNow,
    IcebergPosition,
    LostTableInput,
    TableLossKind,
    lost_in_delta,
    lost_in_iceberg,
)
from holdfast.program.description import SourceDescription, StreamDescription
from holdfast.program.records import Programs
from holdfast.repository import Identity, Lineage, LocalRepository
from holdfast.rewind.lake_tables import TableQuestions
from holdfast.rewind.plan import Readable


def delta_offset(id_: str, version: int, index: int = -1, *, starting: bool = False) -> str:
    facts = {"sourceVersion": 1, "reservoirId": id_, "reservoirVersion": version, "index": index}
    return json.dumps({**facts, "isStartingVersion": starting})


def lost(offset: str, now: DeltaNow | None) -> LostTableInput | None:
    position = DeltaPosition.of(offset)
    assert position is not None
    return lost_in_delta("/t", position, now)


@pytest.mark.parametrize(
    ("offset", "now", "kind"),
    [
        (delta_offset("a", 3), DeltaNow("a", range(3)), None),  # all is read: version 3 does not exist yet
        (delta_offset("a", 3), DeltaNow("a", range(6)), None),
        (delta_offset("a", 3), DeltaNow("a", range(3, 6)), None),  # what was read may be gone
        (delta_offset("a", 3), DeltaNow("a", range(4, 6)), TableLossKind.EXPIRED),
        (delta_offset("a", 3), DeltaNow("a", {0, 1, 2, 3, 5}), TableLossKind.EXPIRED),
        (delta_offset("a", 3), DeltaNow("a", range(2)), TableLossKind.TRUNCATED),
        (delta_offset("a", 3, 0), DeltaNow("a", range(3)), TableLossKind.TRUNCATED),  # a part of version 3 was read
        (delta_offset("a", 3, 0), DeltaNow("a", range(4, 6)), TableLossKind.EXPIRED),
        (delta_offset("a", 3, starting=True), DeltaNow("a", range(3)), TableLossKind.TRUNCATED),
        (delta_offset("a", 3), DeltaNow("b", range(9)), TableLossKind.RECREATED),
        (delta_offset("a", 3), None, TableLossKind.GONE),
    ],
)
def test_a_delta_table_has_what_follows_a_position_or_not(
    offset: str, now: DeltaNow | None, kind: TableLossKind | None
) -> None:
    found = lost(offset, now)
    assert (found and found.kind) == kind


def test_a_loss_names_the_first_and_the_last_version() -> None:
    found = lost(delta_offset("a", 3), DeltaNow("a", range(6, 9)))
    assert found is not None
    assert found.summary == "table '/t': versions 3 to 5 are no longer in its log"
    assert found.facts() == {"kind": "expired", "table": "/t", "position": 3, "versions": [3, 5]}


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (IcebergNow(known=True, in_history=True), None),
        (IcebergNow(known=False, in_history=False), TableLossKind.EXPIRED),
        (IcebergNow(known=True, in_history=False), TableLossKind.NOT_IN_HISTORY),
        (None, TableLossKind.GONE),
    ],
)
def test_an_iceberg_table_has_what_follows_a_position_or_not(
    now: IcebergNow | None, kind: TableLossKind | None
) -> None:
    found = lost_in_iceberg("lake.db.t", IcebergPosition(7), now)
    assert (found and found.kind) == kind


@pytest.mark.parametrize("offset", [None, "", "{", "7", '{"logOffset":3}', '{"topic":{"0":5}}', "[]"])
def test_the_offset_of_another_source_is_no_position(offset: str | None) -> None:
    assert DeltaPosition.of(offset) is None
    assert IcebergPosition.of(offset) is None


def test_the_offset_before_any_snapshot_is_no_position() -> None:
    text = '{"version":1,"snapshot_id":%d,"position":0,"scan_all_files":false}'
    assert IcebergPosition.of(text % -1) is None
    assert IcebergPosition.of(text % 7) == IcebergPosition(7)


# --- a rewind ---------------------------------------------------------------------------------------------------------


class Story:
    """A stream that reads a Delta table of three versions, as its last program recorded it."""

    def __init__(self, folder: Path, kind: str = "delta", reads: str | None = None) -> None:
        self.table = folder / "table"
        self.kind = kind
        self.append()
        self.append()
        self.append()
        repository = LocalRepository(folder / "root")
        lineage = Lineage(Identity.create(repository, "orders"))
        source = SourceDescription(kind=kind, reads=reads or str(self.table))
        program = StreamDescription(sources=[source], sinks={}, columns=[], state=[], output_mode="append")
        Programs(repository).store("rows", 1, 1, program)
        self.questions = TableQuestions(repository, lineage, "rows")

    def append(self) -> None:
        write_deltalake(self.table, pa.table({"n": [1]}), mode="append")

    def id(self) -> str:
        return str(DeltaTable(self.table).metadata().id)

    def readable(self, version: int, id_: str | None = None) -> tuple[Readable, str]:
        return self.questions.readable(0, self.kind, delta_offset(id_ or self.id(), version), offsets=1)


def test_a_rewind_finds_the_versions_after_its_base(tmp_path: Path) -> None:
    story = Story(tmp_path)
    assert story.readable(1) == (Readable.YES, "")


def test_a_rewind_is_told_that_versions_after_its_base_are_lost(tmp_path: Path) -> None:
    story = Story(tmp_path)
    DeltaTable(story.table).create_checkpoint()
    (story.table / "_delta_log" / f"{1:020}.json").unlink()
    readable, why = story.readable(1)
    assert readable is Readable.NO
    assert "versions 1 to 1 are no longer in its log" in why


def test_a_rewind_can_be_accepted_if_no_table_is_where_it_is_looked_for(tmp_path: Path) -> None:
    """The driver may have another folder for relative paths, or run on another machine."""
    story = Story(tmp_path, reads="tables/orders")
    readable, why = story.readable(1)
    assert (readable, "there is no table at" in why) == (Readable.UNKNOWN, True)


def test_the_path_of_a_table_may_contain_a_colon(tmp_path: Path) -> None:
    story = Story(tmp_path / "profile:v2")
    assert story.readable(1) == (Readable.YES, "")


def test_a_rewind_is_told_that_the_table_is_another_one(tmp_path: Path) -> None:
    story = Story(tmp_path)
    before = story.id()
    shutil.rmtree(story.table)
    story.append()
    readable, why = story.readable(1, before)
    assert (readable, f"has read the table with id {before}" in why) == (Readable.NO, True)


def test_a_table_that_the_program_reads_twice_has_one_offset(tmp_path: Path) -> None:
    """Spark reads it once, and the tables after it have lower numbers than in the program."""
    first, second = Story(tmp_path / "first"), Story(tmp_path / "second")
    repository = LocalRepository(tmp_path / "root")
    lineage = Lineage(Identity.create(repository, "orders"))
    sources = [SourceDescription(kind="delta", reads=str(each.table)) for each in (first, first, second)]
    program = StreamDescription(sources=sources, sinks={}, columns=[], state=[], output_mode="append")
    Programs(repository).store("rows", 1, 1, program)
    questions = TableQuestions(repository, lineage, "rows")
    start = delta_offset(second.id(), 1)
    assert questions.readable(1, "delta", start, offsets=2) == (Readable.YES, "")
    assert questions.readable(2, "delta", start, offsets=3) == (Readable.YES, "")
    assert questions.readable(1, "delta", start, offsets=4)[0] is Readable.UNKNOWN


@pytest.mark.parametrize("reads", ["s3://bucket/table", "lake.db.t"])
def test_a_table_that_cannot_be_looked_at_here_is_unknown(tmp_path: Path, reads: str) -> None:
    story = Story(tmp_path, kind="iceberg" if "." in reads else "delta", reads=reads)
    readable, why = story.readable(1)
    assert readable is Readable.UNKNOWN
    assert why.endswith("the next start compares it before a query runs")
