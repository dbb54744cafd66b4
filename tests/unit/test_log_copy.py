"""A copy of the beginning of a log: the same history up to the cut, and its own from there on."""

from pathlib import Path

import pytest

from holdfast.errors import LogCorrupt, LogDiverged, LogTrimmed
from holdfast.eventlog import EventLog, Region
from holdfast.eventlog.copying import copy_log
from holdfast.eventlog.keeping import set_keep
from holdfast.eventlog.trimming import apply_trim, plan_trim
from support import events, new_log

ALL = Region.everything()


def read(path: Path, start: int = 0) -> list[str]:
    return [each.entity for each in EventLog.open(path).read(ALL, start)]


def test_the_copy_has_the_history_up_to_the_cut_and_goes_its_own_way(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a", "b"), events("c"), events("d"))
    copy_log(log.path, tmp_path / "copy", 3)
    copy = EventLog.open(tmp_path / "copy")
    assert (copy.identity, copy.tail, read(copy.path)) == (log.identity, 3, ["a", "b", "c"])
    assert copy.chain_at(2) == log.chain_at(2)
    with copy.writer() as writer:
        writer.append(events("x"))
    assert read(copy.path) == ["a", "b", "c", "x"]
    assert read(log.path) == ["a", "b", "c", "d"]
    assert EventLog.open(copy.path).chain_at(3) != log.chain_at(3)


@pytest.mark.parametrize("tail", [0, 4])
def test_nothing_and_everything_can_be_copied(tail: int, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a", "b"), events("c"), events("d"))
    copy_log(log.path, tmp_path / "copy", tail)
    assert read(tmp_path / "copy") == ["a", "b", "c", "d"][:tail]


@pytest.mark.parametrize("tail", [1, 5])
def test_a_cut_that_the_log_does_not_have_is_refused(tail: int, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a", "b"), events("c"), events("d"))
    with pytest.raises(LogDiverged, match="no append of the log ends there"):
        copy_log(log.path, tmp_path / "copy", tail)
    assert not (tmp_path / "copy" / "log.json").exists()


def test_a_damaged_index_is_refused_and_a_trimmed_log_stays_trimmed(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events("a", "b"), events("c"), events("d"))
    set_keep(log.path, 0)
    trim = plan_trim(log.path, 2)
    assert trim is not None
    apply_trim(trim)
    copy_log(log.path, tmp_path / "copy", 3)
    assert read(tmp_path / "copy", 2) == ["c"]
    with pytest.raises(LogTrimmed):
        read(tmp_path / "copy")
    index = bytearray((log.path / "index").read_bytes())
    index[20] ^= 1
    (log.path / "index").write_bytes(index)
    with pytest.raises(LogCorrupt):
        copy_log(log.path, tmp_path / "other", 3)
