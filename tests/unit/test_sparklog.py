"""Spark's checkpoint folder, as we read it."""

import json
from pathlib import Path

import pytest

from holdfast.errors import SparkLogMismatch, UnsupportedVersion
from holdfast.spark.sparklog import SparkLog, last_entries


def folder(tmp_path: Path) -> SparkLog:
    for name in ("offsets", "commits", "sources/0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "metadata").write_text("{}")
    return SparkLog(tmp_path, "s")


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
