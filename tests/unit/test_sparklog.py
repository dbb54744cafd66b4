"""Spark's checkpoint folder, as we read it."""

import json
import zlib
from pathlib import Path

import pytest

from holdfast.errors import SparkFileDamaged, SparkLogMismatch, UnsupportedVersion
from holdfast.spark.sparklog import SparkLog, last_entries
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.sparkfiles.sourcelog import log_offset
from holdfast.sparkfiles.torn_writes import is_commit, is_offsets, is_source_entry, is_torn


def folder(tmp_path: Path) -> SparkLog:
    for name in ("offsets", "commits", "sources/0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "metadata").write_text("{}")
    return SparkLog(LocalSparkFolder(tmp_path), "s")


def test_offsets_of_both_formats(tmp_path: Path) -> None:
    log = folder(tmp_path)
    head = json.dumps({"batchWatermarkMs": 7, "batchTimestampMs": 1, "conf": {}})
    (tmp_path / "offsets/0").write_text(f'v1\n{head}\n{{"logOffset":0}}\n-')
    (tmp_path / "offsets/1").write_text(f'v2\n{head}\norders:{{"logOffset":0}}')
    assert log.offsets(0).ends == ('{"logOffset":0}', None)
    assert log.offsets(0).watermark_ms == 7
    assert log.offsets(1).ends == ('orders:{"logOffset":0}',)
    assert log.position().offsets == 2


@pytest.mark.parametrize("text", ["v3\n{}\n", "\n", "{}", "v1", "v1\nnot json\n", "v1\n[]\n"])
def test_what_is_not_an_offset_log_is_refused(text: str, tmp_path: Path) -> None:
    log = folder(tmp_path)
    (tmp_path / "offsets/0").write_text(text)
    with pytest.raises((UnsupportedVersion, SparkLogMismatch)):
        log.offsets(0)
    with pytest.raises(SparkLogMismatch):
        log.offsets(1)


def test_new_entries_of_a_sources_log(tmp_path: Path) -> None:
    log = folder(tmp_path)
    for name in ("0", "1", "8", "9.compact", "10", ".10.crc", "x"):
        (tmp_path / "sources/0" / name).write_text(name)
    assert list(log.source_entries({"0": 8})) == ["0/9.compact", "0/10"]
    assert list(log.source_entries({})) == ["0/0", "0/1", "0/8", "0/9.compact", "0/10"]
    assert last_entries(["0/9.compact", "0/10"], {"0": 8, "1": 3}) == {"0": 10, "1": 3}


OFFSETS = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"logOffset":0}'


def test_files_that_lost_bytes_are_known_by_their_form(tmp_path: Path) -> None:
    path = tmp_path / "0"
    for size in range(len(OFFSETS)):
        path.write_text(OFFSETS[:size])
        assert is_torn(path, is_offsets), size
    for text in (OFFSETS, 'v2\n{}\norders:{"a:b":1}\n-', "v1\n{}\n7\n-", "v9\nwhatever"):
        path.write_text(text)
        assert not is_torn(path, is_offsets), text
    for text in ("v1", "v1\n", 'v3\n{"a":', "\0\0\0"):
        path.write_text(text)
        assert is_torn(path, is_commit), text
    for text in ("v1\n{}", 'v3\n{"a":1}', "v9\n"):
        path.write_text(text)
        assert not is_torn(path, is_commit), text
    for text in ('\0v1\n{"topic":{"0":1}}', 'v1\n{"path":"x"}\n{"path":"y"}', "a form of its own"):
        path.write_text(text)
        assert not is_torn(path, is_source_entry), text


def test_checksums_tell_where_they_can_be_read(tmp_path: Path) -> None:
    path, sums = tmp_path / "0", tmp_path / ".0.crc"
    path.write_text(OFFSETS)
    sums.write_bytes(b"crc\0" + (512).to_bytes(4, "big") + zlib.crc32(OFFSETS.encode()).to_bytes(4, "big"))
    assert not is_torn(path, is_offsets)
    path.write_text(OFFSETS.replace("0}", "1}"))
    assert is_torn(path, is_offsets)
    sums.write_bytes(b"crc\0")
    assert not is_torn(path, is_offsets)  # Hadoop takes no notice of it
    path.unlink()
    assert is_torn(path, is_offsets)  # to be cleared, before Spark writes another file of this name


def test_only_what_no_decision_needs_is_dropped(tmp_path: Path) -> None:
    log = folder(tmp_path)
    for name in ("0", "1", "2"):
        (tmp_path / "offsets" / name).write_text(OFFSETS.replace('"logOffset":0', f'"logOffset":{name}'))
        (tmp_path / "commits" / name).write_text("v1\n{}")
        (tmp_path / "sources/0" / name).write_text("v1")
    (tmp_path / "commits/2").unlink()
    assert log.drop_torn(2, {"0": 1}) == []
    for name in ("offsets/0", "offsets/1", "commits/0", "sources/0/1", "metadata"):
        (tmp_path / name).write_text("")
    assert log.drop_torn(2, {"0": 1}) == []
    (tmp_path / "sources/0/2").write_text("")
    (tmp_path / "commits/1").write_text("")
    assert log.drop_torn(2, {"0": 1}) == ["commits/1", "sources/0/2", "offsets/2"]
    assert log.drop_torn(2, {"0": 1}) == []


@pytest.mark.parametrize("ends", [["7", '{"logOffset":4}'], ['1:{"logOffset":4}', "0:7"]], ids=["v1", "v2"])
def test_entries_of_a_file_source_are_required_back_to_the_last_compacted_one(ends: list[str], tmp_path: Path) -> None:
    log = folder(tmp_path)
    (tmp_path / "sources/1").mkdir()
    for name in ("0/0", "1/1", "1/2.compact", "1/3", "1/4"):
        (tmp_path / "sources" / name).write_text(f"v1 {name}")
    assert log.require(0, ends, {"0": 0, "1": 4}) == ["1/4", "1/3", "1/2.compact"]
    digests = log.source_entries({})
    log.require_digests(digests | {"1/0": "of an entry that Spark has deleted"})
    (tmp_path / "sources/1/3").write_text("v1 another")
    with pytest.raises(SparkFileDamaged, match="sources/1/3"):
        log.require_digests(digests)
    (tmp_path / "sources/1/3").unlink()
    with pytest.raises(SparkLogMismatch, match="sources/1/3 is missing"):
        log.require(0, ends, {"0": 0, "1": 4})


@pytest.mark.parametrize(
    ("end", "last"),
    [('{"logOffset":7}', 7), ('{"logOffset":"7"}', None), ("7", None), ("not JSON", None), (None, None)],
)
def test_only_an_offset_of_files_names_an_entry(end: str | None, last: int | None) -> None:
    assert log_offset(end) == last
