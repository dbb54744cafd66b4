"""Copies of plain Spark folders, and the comparison of their sources, on folders that were written by hand."""

import json
import os
import re
from pathlib import Path

import pytest

from handmade import HDFS, KAFKA, Handmade
from holdfast.doctor import SourcePosition
from holdfast.errors import (
    LastBatchUnknown,
    NotSupported,
    SourcesDiffer,
    SparkCheckpointDamaged,
    SparkCheckpointMissing,
    SparkQueryLive,
)
from holdfast.plainspark.adoption import checked_last_batch
from holdfast.plainspark.folders import FolderCopy, copy_folder
from holdfast.plainspark.inputs import ProgramSource, compared
from holdfast.plainspark.looking import FolderLook, examined
from holdfast.spark.sparklog import SparkLog
from holdfast.sparkfiles.localfolder import LocalSparkFolder


@pytest.fixture
def old(tmp_path: Path) -> Handmade:
    """Three committed batches of a file source with state, and a fourth that was begun."""
    made = Handmade(tmp_path / "old")
    conf = {"spark.sql.streaming.stateStore.providerClass": HDFS, "spark.sql.shuffle.partitions": "1"}
    for batch in range(4):
        made.begin(batch, f'{{"logOffset":{batch}}}', conf=conf)
        made.put(f"sources/0/{batch}", f'v1\n{{"path":"file:///in/{batch}.json","timestamp":1,"batchId":{batch}}}')
        made.put(f"state/0/0/{batch + 1}.delta", f"state {batch + 1}")
        if batch < 3:
            made.commit(batch)
    made.put("state/0/0/_metadata/schema", "v1\nschema")
    return made


def names(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_only_the_closure_of_the_last_committed_batch_is_copied(old: Handmade, tmp_path: Path) -> None:
    """State of the begun batch would be loaded once the copy reaches it; a stale checksum would break the start."""
    old.put("offsets/.2.crc", "stale")
    old.put("sources/0/4", "v1")
    copied = copy_folder(FolderCopy(old.folder, 2), tmp_path / "new", tmp_path / "new")
    state = [f"state/0/0/{version}.delta" for version in (1, 2, 3)]
    sources = [f"sources/0/{each}" for each in (0, 1, 2)]
    expected = ["commits/2", "metadata", "offsets/1", "offsets/2", *sources, *state, "state/0/0/_metadata/schema"]
    assert names(tmp_path / "new") == sorted(expected)
    assert copied.files == len(expected)
    assert copied.closure is not None and copied.closure.formats == ("hdfs-1",)
    ids = [json.loads((folder / "metadata").read_text())["id"] for folder in (old.folder, tmp_path / "new")]
    assert ids[0] != ids[1]


def test_a_begun_batch_brings_its_offsets_and_its_source_entries_and_no_state(old: Handmade, tmp_path: Path) -> None:
    copy_folder(FolderCopy(old.folder, 2, 3), tmp_path / "new", tmp_path / "new")
    found = names(tmp_path / "new")
    assert {"offsets/3", "sources/0/3"} <= set(found)
    assert not {"state/0/0/4.delta", "commits/3"} & set(found)


def test_nothing_committed_means_offsets_alone(old: Handmade, tmp_path: Path) -> None:
    copy_folder(FolderCopy(old.folder, None, 0), tmp_path / "new", tmp_path / "new")
    assert names(tmp_path / "new") == ["metadata", "offsets/0", "sources/0/0"]


def test_a_copy_shares_no_bytes_with_the_original(old: Handmade, tmp_path: Path) -> None:
    copy_folder(FolderCopy(old.folder, 2), tmp_path / "new", tmp_path / "new")
    assert (tmp_path / "new/state/0/0/1.delta").stat().st_nlink == 1


def test_schema_paths_refer_to_the_final_folder_and_later_descriptions_stay_behind(
    old: Handmade, tmp_path: Path
) -> None:
    schema = f"file:{old.folder}/state/0/_stateSchema/default/0_a"
    for batch in (0, 3):
        record = {"operatorInfo": {}, "stateStoreInfo": [{"stateSchemaFilePaths": [schema]}]}
        old.put(f"state/0/_metadata/v2/{batch}", "v2\n" + json.dumps(record))
    old.put("state/0/_stateSchema/default/0_a", "schema")
    copy_folder(FolderCopy(old.folder, 2, 3), tmp_path / "new", tmp_path / "final")
    text = (tmp_path / "new/state/0/_metadata/v2/0").read_text()
    assert f"file:{tmp_path}/final/state/0/_stateSchema/default/0_a" in text
    assert str(old.folder) not in text
    assert not (tmp_path / "new/state/0/_metadata/v2/3").exists()


@pytest.mark.parametrize("gone", ["state/0/0/2.delta", "sources/0/1", "offsets/1", "commits/2"])
def test_a_missing_file_is_named(old: Handmade, tmp_path: Path, gone: str) -> None:
    (old.folder / gone).unlink()
    with pytest.raises(SparkCheckpointDamaged, match=gone):
        copy_folder(FolderCopy(old.folder, 2), tmp_path / "new", tmp_path / "new")


# --- the folder ------------------------------------------------------------------------------------------------------


def test_a_folder_that_can_be_adopted(old: Handmade) -> None:
    found = examined(old.folder)
    assert (found.committed, found.in_doubt) == (2, 3)


def test_damage_that_the_doctor_finds_is_refused(old: Handmade) -> None:
    (old.folder / "state/0/0/2.delta").unlink()
    with pytest.raises(SparkCheckpointDamaged, match=r"2\.delta is missing.*holdfast doctor"):
        examined(old.folder)


def test_a_checksum_without_a_file_is_harmless_because_hidden_files_stay_behind(old: Handmade) -> None:
    old.put("commits/.3.crc", "left by a killed process")
    assert examined(old.folder).in_doubt == 3


def test_other_kinds_of_processing_are_refused_by_name(tmp_path: Path) -> None:
    gaps = Handmade(tmp_path / "async")
    for batch in (0, 3, 6, 9):
        gaps.begin(batch, KAFKA % (batch, batch))
        gaps.commit(batch)
    with pytest.raises(NotSupported, match="asynchronous progress tracking"):
        examined(gaps.folder)
    blank = Handmade(tmp_path / "continuous")
    for batch in range(3):
        blank.put(f"offsets/{batch}", f"v1\n\n{KAFKA % (batch, batch)}")
        blank.commit(batch)
    with pytest.raises(NotSupported, match="continuous processing"):
        examined(blank.folder)
    late = Handmade(tmp_path / "late")
    for batch in range(5):
        late.begin(batch, KAFKA % (batch, batch), begun=batch * 5000)
        late.commit(batch)
        for log in ("offsets", "commits"):
            at = (batch * 5000 + 4900) * 10**6
            os.utime(late.folder / log / str(batch), ns=(at, at))
    with pytest.raises(NotSupported, match="real-time mode"):
        examined(late.folder)


def test_what_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(SparkCheckpointMissing):
            examined(path)
    unbegun = Handmade(tmp_path / "unbegun")
    with pytest.raises(SparkCheckpointMissing, match="no batch was begun"):
        examined(unbegun.folder)


def test_the_folder_of_a_holdfast_stream_is_refused(old: Handmade) -> None:
    (old.folder.parent / "holdfast.json").write_text("{}")
    with pytest.raises(SparkCheckpointMissing, match="belongs to a Holdfast repository"):
        examined(old.folder)


def test_unknown_and_named_offset_logs_are_refused(tmp_path: Path) -> None:
    named = Handmade(tmp_path / "named").batches(2, 'left:{"logOffset":%d}', version="v2")
    for number in range(2):
        named.put(f"sources/left/{number}", "v1")
    with pytest.raises(NotSupported, match="format v2"):
        examined(named.folder)
    later = Handmade(tmp_path / "later").batches(2, KAFKA, version="v9")
    with pytest.raises(SparkCheckpointDamaged, match="unknown format"):
        examined(later.folder)


@pytest.mark.parametrize("change", ["offsets/4", "state/0/0/5.delta", "commits/3"])
def test_a_file_that_appears_between_two_looks_shows_a_live_query(old: Handmade, change: str) -> None:
    look = FolderLook.take(old.folder)
    look.require_same()
    with pytest.raises(SparkQueryLive, match=re.escape(change)):
        look.require_same(pause=60, sleep=lambda _: old.put(change, "v1"))


def test_the_second_look_waits(old: Handmade) -> None:
    waited: list[float] = []
    FolderLook.take(old.folder).require_same(pause=60, sleep=waited.append)
    assert 59 < waited[0] <= 60


# --- the sources -----------------------------------------------------------------------------------------------------


def files_at(place: str) -> ProgramSource:
    return ProgramSource("files", place)


@pytest.mark.parametrize(
    "place",
    [
        "/in",
        "/in/",
        "file:/in",
        "file:///in",
        "/in/*.json",
        "/i?/*",
        "/{in,out}/*",
        "/[h-j]n",
        "/in/{0,1,2,3}.json",
    ],
)
def test_files_below_the_path_of_the_program_are_the_same_source(old: Handmade, place: str) -> None:
    found = compared("orders", old.folder, examined(old.folder).sources, [files_at(place)])
    assert [(each.kind, each.place) for each in found] == [("files", place)]


@pytest.mark.parametrize("place", ["/", "/inn", "/in/0.json", "/other", "in", "/in/*.csv", "/{out,on}", "s3a://in"])
def test_another_path_is_another_source(old: Handmade, place: str) -> None:
    with pytest.raises(SourcesDiffer, match=r"has read /in/\d\.json, the stream reads"):
        compared("orders", old.folder, examined(old.folder).sources, [files_at(place)])


def test_a_parent_folder_is_another_source_unless_spark_would_find_the_files_there(old: Handmade) -> None:
    sources = examined(old.folder).sources
    compared("orders", old.folder, sources, [ProgramSource("files", "/", recursive=True)])
    for number in range(4):
        line = f'{{"path":"file:///in/day=1/hour=2/{number}.json","timestamp":1,"batchId":{number}}}'
        old.put(f"sources/0/{number}", f"v1\n{line}")
    compared("orders", old.folder, sources, [files_at("/in")])
    with pytest.raises(SourcesDiffer):
        compared("orders", old.folder, sources, [files_at("/")])


def test_paths_with_spaces_are_compared_as_they_are_on_disk(old: Handmade) -> None:
    old.put("sources/0/0", 'v1\n{"path":"file:///in/a%20b.json","timestamp":1,"batchId":0}')
    compared("orders", old.folder, examined(old.folder).sources, [files_at("/in")])
    with pytest.raises(SourcesDiffer, match=r"a b\.json"):
        compared("orders", old.folder, examined(old.folder).sources, [files_at("/in/[0-9].json")])


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"subscribe": "orders"}, True),
        ({"subscribe": "other, orders"}, True),
        ({"subscribe": "other"}, False),
        ({"subscribepattern": "ord.*"}, True),
        ({"subscribepattern": "ord"}, False),
        ({"assign": '{"orders":[0,1]}'}, True),
        ({"assign": '{"other":[0]}'}, False),
    ],
)
def test_topics_are_compared(tmp_path: Path, options: dict[str, str], same: bool) -> None:
    old = Handmade(tmp_path / "old").batches(3, KAFKA)
    source = ProgramSource("kafka", "topic x", options)
    if same:
        compared("orders", old.folder, examined(old.folder).sources, [source])
        return
    with pytest.raises(SourcesDiffer, match="does not read topic orders"):
        compared("orders", old.folder, examined(old.folder).sources, [source])


@pytest.mark.parametrize(
    ("offset", "program", "why"),
    [
        ("7", [ProgramSource("rate", "")], "neither a path nor topics"),
        ('{"reservoirId":"9a","reservoirVersion":1}', [ProgramSource("delta", "/t")], "neither a path nor topics"),
        ('{"t":{"0":1}}', [files_at("/in")], "continues in kafka"),
        ('{"log":"a","sequence":1}', [ProgramSource("holdfast log", "b")], "event log a, not b"),
        ('{"t":{"0":1}}', [], "has 1 sources, the stream 0"),
        ('{"t":{"0":1}}', [files_at("/in"), files_at("/in")], "has 1 sources, the stream 2"),
    ],
)
def test_what_differs_or_cannot_be_compared_is_refused(
    tmp_path: Path, offset: str, program: list[ProgramSource], why: str
) -> None:
    old = Handmade(tmp_path / "old").batches(2, offset)
    with pytest.raises(SourcesDiffer, match=why):
        compared("orders", old.folder, examined(old.folder).sources, program)


@pytest.mark.parametrize("place", ["/{in", "/[z-a]"])
def test_a_pattern_that_cannot_be_read_is_refused(old: Handmade, place: str) -> None:
    with pytest.raises(SourcesDiffer, match="pattern"):
        compared("orders", old.folder, examined(old.folder).sources, [files_at(place)])


def test_a_source_that_has_read_nothing_has_no_position_to_compare(tmp_path: Path) -> None:
    position = SourcePosition("0", "unknown", None, "its beginning", None)
    assert compared("orders", tmp_path, [position], [ProgramSource("rate", "")])[0].position == "its beginning"


def test_a_source_that_is_read_twice_has_one_log(tmp_path: Path) -> None:
    old = Handmade(tmp_path / "old")
    for batch in range(2):
        old.begin(batch, *[f'{{"logOffset":{batch}}}'] * 2)
        old.put(f"sources/0/{batch}", f'v1\n{{"path":"file:///in/{batch}","timestamp":1,"batchId":{batch}}}')
        old.commit(batch)
    copy_folder(FolderCopy(old.folder, 1), tmp_path / "new", tmp_path / "new")
    assert {"sources/0/0", "sources/0/1"} < set(names(tmp_path / "new"))
    found = examined(old.folder)
    assert [each.code for each in found.findings] == ["source-shared"]
    compared("orders", old.folder, found.sources, [files_at("/in"), files_at("/in")])
    with pytest.raises(SourcesDiffer, match=r"sources/1 is missing"):
        compared("orders", old.folder, found.sources, [files_at("/in"), files_at("/")])
    log = SparkLog(LocalSparkFolder(old.folder), "orders")
    assert not log._lacks_entry(1)
    (old.folder / "sources/0/1").unlink()
    assert log._lacks_entry(1)


# --- the batch in doubt ----------------------------------------------------------------------------------------------


def test_each_sink_needs_an_answer() -> None:
    with pytest.raises(LastBatchUnknown) as raised:
        checked_last_batch("/old", 7, ("a", "b", "c"), {"b": "written"}, "source 0 up to entry 7")
    assert raised.value.sinks == ("a", "c")
    assert "--last-batch a=written|not-written --last-batch c=written|not-written" in str(raised.value)


@pytest.mark.parametrize("given", [{"x": "written"}, {"a": "yes"}, {"a": ""}])
def test_wrong_answers_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="last-batch"):
        checked_last_batch("/old", 7, ("a",), given, "")


def test_an_answer_without_a_question_is_refused() -> None:
    assert checked_last_batch("/old", None, ("a",), {}, "") == {}
    with pytest.raises(ValueError, match="every begun batch"):
        checked_last_batch("/old", None, ("a",), {"a": "written"}, "")
