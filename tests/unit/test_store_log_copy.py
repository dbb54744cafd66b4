"""A copy of the beginning of a log on S3: the same history up to the cut, and its own from there on."""

import pytest

from holdfast.errors import LogDiverged, LogTrimmed, NotFound
from holdfast.eventlog import EventLog, Region
from holdfast.eventlog.store_home import StoreHome
from holdfast.eventlog.trimming import apply_trim, plan_trim
from holdfast.repository import ObjectRepository
from holdfast.rewind.store_logs import copy_store_log
from s3fixture import S3Place
from support import events, new_log

ALL = Region.everything()


def read(path: str, start: int = 0) -> list[str]:
    return [each.entity for each in EventLog.open(path).read(ALL, start)]


@pytest.fixture
def log(s3: S3Place) -> EventLog:
    return new_log(s3.url("log"), events("a", "b"), events("c"), events("d"))  # type: ignore[arg-type]


def test_the_copy_has_the_history_up_to_the_cut_and_goes_its_own_way(log: EventLog, s3: S3Place) -> None:
    copy_store_log(s3.url("log"), s3.url("copy"), 3)
    copy = EventLog.open(s3.url("copy"))
    assert (copy.identity, copy.tail, read(s3.url("copy"))) == (log.identity, 3, ["a", "b", "c"])
    assert copy.chain_at(2) == log.chain_at(2)
    with copy.writer() as writer:
        writer.append(events("x"))
    ObjectRepository(s3.url("log")).clear("segments")
    assert read(s3.url("copy")) == ["a", "b", "c", "x"]
    assert EventLog.open(s3.url("log")).tail == 4
    assert EventLog.open(s3.url("copy")).chain_at(3) != log.chain_at(3)


@pytest.mark.parametrize("tail", [0, 4])
def test_nothing_and_everything_can_be_copied(tail: int, log: EventLog, s3: S3Place) -> None:
    copy_store_log(s3.url("log"), s3.url("copy"), tail)
    assert read(s3.url("copy")) == ["a", "b", "c", "d"][:tail]


@pytest.mark.parametrize("tail", [1, 5])
def test_a_cut_that_the_log_does_not_have_is_refused(tail: int, log: EventLog, s3: S3Place) -> None:
    with pytest.raises(LogDiverged, match="no append of the log ends there"):
        copy_store_log(s3.url("log"), s3.url("copy"), tail)
    assert ObjectRepository(s3.url("copy")).flat() == []


def test_a_log_without_a_segment_is_not_copied(log: EventLog, s3: S3Place) -> None:
    ObjectRepository(s3.url("log")).clear("segments")
    with pytest.raises(NotFound):
        copy_store_log(s3.url("log"), s3.url("copy"), 3)
    assert not ObjectRepository(s3.url("copy")).list("log.json")


def test_a_trimmed_log_stays_trimmed_and_keeps_its_rule(log: EventLog, s3: S3Place) -> None:
    StoreHome(s3.url("log")).set_keep(0)
    trim = plan_trim(s3.url("log"), 2)
    assert trim is not None
    apply_trim(trim)
    copy_store_log(s3.url("log"), s3.url("copy"), 3)
    assert read(s3.url("copy"), 2) == ["c"]
    assert (StoreHome(s3.url("copy")).floor(), StoreHome(s3.url("copy")).keep()) == (2, 0)
    with pytest.raises(LogTrimmed):
        read(s3.url("copy"))
    assert plan_trim(s3.url("copy"), 2) is None
