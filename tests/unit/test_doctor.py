"""Folders written by hand after the documented formats: Spark 3.5 and 4.0, Kafka, Delta, other kinds of processing."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from handmade import HDFS, KAFKA, Handmade
from holdfast.doctor import Examination, examine
from holdfast.doctor.findings import RULES, Code
from holdfast.doctor.offsets import described, goes_back
from holdfast.errors import BadValue, NotSupported, SparkCheckpointMissing, StorageFailed

DELTA = '{"sourceVersion":1,"reservoirId":"9a","reservoirVersion":%d,"index":-1,"isStartingVersion":false}'


def codes(found: Examination) -> list[str]:
    return [each.code for each in found.findings]


def archive(*files: tuple[str, int]) -> bytes:
    listed = [{"localFileName": "1.sst", "dfsSstFileName": name, "sizeBytes": size} for name, size in files]
    target = BytesIO()
    with zipfile.ZipFile(target, "w") as made:
        made.writestr("metadata", "v1\n" + json.dumps({"sstFiles": listed, "numKeys": 1}))
    return target.getvalue()


# --- sound folders ---------------------------------------------------------------------------------------------------


def kafka(at: Handmade) -> None:
    at.batches(3, KAFKA)
    at.put("sources/0/0", '\0v1\n{"orders":{"0":0,"1":0}}')


def spark_3_5(at: Handmade) -> None:
    """No description of operators; snapshots beside deltas; an old commit without a record."""
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.stateStore.providerClass": HDFS}
    at.batches(4, '{"logOffset":%d}', conf=conf)
    at.put("commits/3", "v1\n{}")
    for number in range(4):
        at.put(f"sources/0/{number}", f'v1\n{{"path":"file:///in/{number}","timestamp":1,"batchId":{number}}}')
    for partition in range(2):
        for version in (1, 2, 3, 4):
            at.put(f"state/0/{partition}/{version}.delta", "x")
        at.put(f"state/0/{partition}/3.snapshot", "x")
    at.put("state/0/0/_metadata/schema", "v1\nschema")


def rocksdb_3_5(at: Handmade) -> None:
    at.batches(2, "%d")
    for version in (1, 2):
        at.put(f"state/0/0/{version}.zip", archive((f"{version}-a.sst", 3)))
        at.put(f"state/0/0/SSTs/{version}-a.sst", "sst")


def format_2(at: Handmade) -> None:
    """The failed attempt 2_bb was left; the commits name the versions."""
    for batch, name in enumerate(("aa", "cc")):
        at.begin(batch, str(batch))
        at.commit(batch, "v2", stateUniqueIds={"0": [[name]]})
    for name in ("1_aa", "2_bb", "2_cc"):
        at.put(f"state/0/0/{name}.changelog", "x")


def named_sources(at: Handmade) -> None:
    at.batches(2, 'left:{"logOffset":%d}', "right:-", version="v2")
    for number in range(2):
        at.put(f"sources/left/{number}", "v1")


def compacted(at: Handmade) -> None:
    """Other intervals than ten: every three entries, old ones deleted."""
    at.batches(12, '{"logOffset":%d}')
    for name in ("5.compact", "6", "7", "8.compact", "9", "10", "11.compact"):
        at.put(f"sources/0/{name}", "v1")


def source_one_ahead(at: Handmade) -> None:
    """The query ended between the entry of the source's log and the offsets."""
    at.batches(2, '{"logOffset":%d}')
    for number in range(3):
        at.put(f"sources/0/{number}", "v1")


def repartitioned(at: Handmade) -> None:
    """Two partitions where four were: the folders of the others are left, with old versions."""
    at.batches(3, "%d", conf={"spark.sql.shuffle.partitions": "2"})
    stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 4}]
    record = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}, "stateStoreInfo": stores}
    at.put("state/0/_metadata/metadata", "v1\n" + json.dumps(record))
    for partition in range(4):
        at.put(f"state/0/{partition}/1.delta", "x")
        at.put(f"state/0/{partition}/2.delta", "x")
    for partition in range(2):
        at.put(f"state/0/{partition}/3.delta", "x")


SOUND: dict[str, Callable[[Handmade], object]] = {
    "kafka": kafka,
    "delta": lambda at: at.batches(3, DELTA),
    "rate": lambda at: at.batches(3, "%d"),
    "a source without rows": lambda at: at.batches(3, "-", KAFKA),
    "an unknown source": lambda at: at.batches(3, '{"shard":"x-%d"}'),
    "spark 3.5": spark_3_5,
    "rocksdb 3.5": rocksdb_3_5,
    "format 2": format_2,
    "named sources": named_sources,
    "compacted": compacted,
    "source one ahead": source_one_ahead,
    "repartitioned": repartitioned,
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_in_sound_folders(name: str, tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c")
    SOUND[name](at)
    found = at.examined()
    assert codes(found) == [], found.summary()
    assert found.ok and found.looks == 1 and found.verdict() == "is sound"


def test_offsets_are_shown_in_words_and_unknown_ones_verbatim() -> None:
    assert described(KAFKA % (5, 7)) == ("kafka", "topic orders, partition 0 at 5, 1 at 7")
    many = json.dumps({"t": {str(n): n for n in range(9)}})
    assert described(many) == ("kafka", "topic t, 9 partitions at 0 to 8")
    assert described(DELTA % 12) == ("delta", "version 12, index -1 of table 9a")
    assert described('{"version":1,"snapshot_id":5,"position":2,"scan_all_files":false}')[0] == "iceberg"
    assert described('{"log":"ab","sequence":9}') == ("holdfast log", "sequence 9 of log ab")
    assert described("17") == ("number", "17")
    assert described("true")[0] == described('{"a":{"b":1}}')[0] == described("{")[0] == "unknown"
    assert described('{"shard":"x"}') == ("unknown", '{"shard":"x"}')
    assert described(None) == ("unknown", "its beginning")


@pytest.mark.parametrize(
    ("before", "after", "back"),
    [
        (KAFKA % (5, 7), KAFKA % (5, 8), False),
        (KAFKA % (5, 7), KAFKA % (4, 9), True),
        (KAFKA % (5, 7), '{"orders":{"0":6}}', False),
        (KAFKA % (5, 7), '{"other":{"0":1}}', False),
        (DELTA % 3, DELTA % 2, True),
        (DELTA % 3, (DELTA % 4).replace("9a", "9b"), True),
        ("5", "4", True),
        ('{"a":5}', '{"a":4}', False),
        (None, "4", False),
    ],
)
def test_offsets_that_go_back(before: str | None, after: str, back: bool) -> None:
    assert goes_back(before, after) is back


# --- other kinds of processing ---------------------------------------------------------------------------------------


def test_asynchronous_progress_is_recognised_and_its_gaps_are_no_holes(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c")
    for batch in (0, 2, 5, 9):
        at.begin(batch, KAFKA % (batch, batch))
    for batch in (0, 2, 5):
        at.commit(batch)
    found = at.examined()
    assert (codes(found), found.mode, found.ok) == (["asynchronous"], "asynchronous", True)
    at.put("state/0/0/1.delta", "x")  # it has no state: these are holes
    assert {"offsets-ahead", "offsets-previous-missing", "commits-hole"} <= set(codes(at.examined()))


def test_continuous_processing_is_recognised(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c")
    for epoch in range(4):
        at.put(f"offsets/{epoch}", f"v1\n\n{KAFKA % (epoch, epoch)}")
    for epoch in range(2):
        at.commit(epoch)
    found = at.examined()
    assert (codes(found), found.mode, found.ok) == (["continuous"], "continuous", True)
    at.put("offsets/3", "v1\n\n{")
    assert "log-file-torn" in codes(at.examined())


def test_real_time_mode_is_recognised_by_its_times_and_a_copy_is_not(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c")
    for batch in range(6):
        begun = 10**12 + batch * 10_000
        at.begin(batch, KAFKA % (batch, batch), begun=begun)
        at.commit(batch, "v2", stateUniqueIds={})
        for log, late in (("offsets", 9_500), ("commits", 9_600)):
            moment = (begun + late) * 10**6
            os.utime(at.folder / log / str(batch), ns=(moment, moment))
    found = at.examined()
    assert (codes(found), found.mode, found.ok) == (["real-time"], "real-time", True)
    shutil.copytree(at.folder, tmp_path / "copy", copy_function=shutil.copyfile)
    assert examine(tmp_path / "copy", pause=0).mode == "micro-batch"


# --- damage that real folders do not show ----------------------------------------------------------------------------


def test_a_batch_in_doubt_is_a_notice(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c").batches(3, "%d")
    at.begin(3, "9")
    found = at.examined()
    assert (codes(found), found.in_doubt, found.next_batch, found.ok) == (["batch-in-doubt"], 3, 3, True)


def test_a_folder_in_which_nothing_has_begun(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c")
    found = at.examined()
    assert (codes(found), found.committed, found.next_batch) == (["nothing-committed"], None, 0)
    at.put("offsets/.0.0b2cbd0c-98f1-4b3b-8a6d-0f2f6d8a0a11.tmp")
    assert "start-refused" in codes(at.examined())


def test_spark_derives_the_interval_of_compaction_from_the_last_two(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c").batches(12, '{"logOffset":35}')
    for name in (
        "9.compact",
        *map(str, range(10, 19)),
        *map(str, range(20, 29)),
        "29.compact",
        *map(str, range(30, 36)),
    ):
        at.put(f"sources/0/{name}", "v1")
    found = at.examined()
    assert codes(found) == ["source-compaction-broken"], found.summary()
    assert found.findings[0].where == "sources/0/19.compact"


def test_sizes_that_a_zip_lists_are_compared(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c")
    rocksdb_3_5(at)
    at.put("state/0/0/SSTs/2-a.sst", "ss")
    found = at.examined()
    assert codes(found) == ["state-file-torn"] and "2 bytes instead of 3" in found.findings[0].message


def test_a_damaged_commit_does_not_hide_the_rest(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c")
    spark_3_5(at)
    at.put("commits/3", "")
    at.put("sources/0/3", "")
    assert codes(at.examined()) == ["log-file-torn", "source-entry-torn"]


def test_numbers_without_end_do_not_take_without_end(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c").batches(2, f'{{"logOffset":{10**17}}}')
    at.begin(10**17, "1")
    at.put("sources/0/0", "v1")
    assert "offsets-ahead" in codes(at.examined())


def test_names_and_values_that_are_too_large_for_spark(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c").batches(2, "%d")
    at.put(f"offsets/{'9' * 200}", "v1")
    at.put(f"state/0/{'9' * 200}/{'9' * 200}.delta", "x")
    at.begin(2, "7", begun=10**30)
    found = at.examined()
    assert codes(found) == ["log-file-torn", "state-missing", "batch-in-doubt"], found.summary()
    json.dumps(found.to_dict())


def test_state_may_be_on_another_disk(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c")
    spark_3_5(at)
    (at.folder / "state").rename(tmp_path / "disk")
    (at.folder / "state").symlink_to(tmp_path / "disk")
    found = at.examined()
    assert (codes(found), found.operators[0].partitions) == ([], 2)


def test_many_leftovers_are_one_finding_per_folder(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c").batches(3, "%d")
    for number in range(5):
        at.put(f"commits/.{number}.0b2cbd0c-98f1-4b3b-8a6d-0f2f6d8a0a1{number}.tmp")
        at.put(f"commits/..{number}.0b2cbd0c-98f1-4b3b-8a6d-0f2f6d8a0a1{number}.tmp.crc")
    found = at.examined()
    assert codes(found) == ["temporary-left"] and found.findings[0].message.startswith("5 temporary files were left")
    assert found.ok


def test_a_checkpoint_of_a_pipeline_is_named_as_such(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "shop/timelines/1/streams/orders/spark").batches(2, "%d")
    (tmp_path / "shop/holdfast.json").write_text("{}")
    found = at.examined()
    assert codes(found) == ["of-holdfast"] and str(tmp_path / "shop") in found.findings[0].message


# --- two looks -------------------------------------------------------------------------------------------------------


def test_what_changes_between_two_looks_is_not_reported(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c").batches(3, "%d")
    at.put("commits/.3.0b2cbd0c-98f1-4b3b-8a6d-0f2f6d8a0a11.tmp", "v1")
    at.begin(3, "9")
    at.put("offsets/4", "")

    def goes_on(_: float) -> None:
        at.commit(3)
        at.begin(4, "12")
        (at.folder / "commits/.3.0b2cbd0c-98f1-4b3b-8a6d-0f2f6d8a0a11.tmp").unlink()

    found = examine(at.folder, sleep=goes_on)
    assert (codes(found), found.committed, found.in_doubt) == ([], 3, None)
    assert (found.live, found.looks) == (True, 2)
    at.put("commits/1", "")
    again = examine(at.folder, sleep=lambda _: at.commit(4))
    assert codes(again) == ["old-log-file-torn"]  # both looks saw it
    assert again.committed == 4


def test_a_file_that_is_still_being_written_is_not_reported(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c").batches(3, "%d")
    name = "commits/.9.0b2cbd0c-98f1-4b3b-8a6d-0f2f6d8a0a11.tmp"
    at.put(name, "v")
    assert codes(examine(at.folder, sleep=lambda _: at.put(name, "v1"))) == []
    assert codes(at.examined()) == ["temporary-left"]


# --- the wrong folder ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["s3://b/c", "s3a://b/c", "hdfs://n/c", "gs://b/c", "abfss://c@a/x", "dbfs:/c"])
def test_an_address_that_is_not_local_is_refused(address: str) -> None:
    with pytest.raises(NotSupported, match="copy the folder to a local disk"):
        examine(address)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(NotSupported) as refused:
        examine("ftp://user:hunter2@host/c")
    assert "hunter2" not in str(refused.value)


def test_a_folder_that_is_something_else_is_named(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "ck/orders").batches(2, "%d")
    (tmp_path / "out/_spark_metadata").mkdir(parents=True)
    (tmp_path / "root/shop/timelines/1").mkdir(parents=True)
    (tmp_path / "root/shop/holdfast.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for place, words in {
        "absent": "does not exist",
        "file": "not a folder",
        "empty": "neither offsets nor commits",
        "out": "output folder of a file sink.*checkpointLocation",
        "out/_spark_metadata": "output folder",
        "root/shop": "holdfast ls --repo .*shop; or check them: holdfast verify",
        "root/shop/timelines/1": "holdfast ls --repo .*shop",
        "root": "root of Holdfast repositories.*holdfast ls",
        "ck": "contains 1 checkpoint folders.*orders",
        "ck/orders/offsets": "part of a checkpoint folder.*ck/orders",
    }.items():
        with pytest.raises(SparkCheckpointMissing, match=words):
            examine(tmp_path / place)
    assert examine(f"file://{at.folder}").committed == 1


@pytest.mark.parametrize("pause", [-1, True, "1", 1e9, float("nan")])
def test_a_wrong_pause_is_refused(pause: Any, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="pause"):
        examine(tmp_path, pause=pause)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c").batches(2, "%d")
    (at.folder / "offsets").chmod(0)
    with pytest.raises(StorageFailed):
        at.examined()


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_code_has_a_rule_with_whole_sentences() -> None:
    assert RULES.keys() == set(Code)
    for rule in RULES.values():
        assert rule.meaning.endswith(".") and not rule.next.endswith(".")


def test_every_code_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    for code, rule in RULES.items():
        assert f"| `{code}` | {rule.severity} | {rule.meaning} | {rule.next} |\n" in page, code
    assert page.count("\n| `") == len(RULES)


def test_the_command_needs_neither_spark_nor_arrow(tmp_path: Path) -> None:
    at = Handmade(tmp_path / "c")
    format_2(at)
    (at.folder / "commits/0").unlink()
    program = "import sys; sys.modules.update(dict.fromkeys(['pyspark', 'py4j', 'pyarrow', 'pandas']))\n"
    program += "from holdfast.cli import main; main()"
    command = [sys.executable, "-c", program, "doctor", str(at.folder), "--json", "--pause", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["result"]["operators"][0]["format"] == 2
