"""Counts, sizes and spans of time, and every text of the library that has one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._figures import counted, number, size, span
from holdfast.difference import Change
from holdfast.policy import Retention
from holdfast.pruning import Pruned
from holdfast.repository import Status, Summary
from holdfast.sinks.compaction.apply import Compacted
from holdfast.sinks.compaction.plan import CompactPlan, MergeRun
from holdfast.verification import Grade, Verification


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (26_637, "26.6 kB"),
        (99_940, "99.9 kB"),
        (99_960, "100 kB"),
        (123_456, "123 kB"),
        (999_500, "1.0 MB"),
        (5_000_000, "5.0 MB"),
        (7 * 10**15, "7,000.0 TB"),
        (-26_637, "-26.6 kB"),
    ],
)
def test_a_size_has_three_digits_or_so(count: int, text: str) -> None:
    assert size(count) == text


def test_counts_and_spans() -> None:
    assert [number(each) for each in (0, 999, 20_000)] == ["0", "999", "20,000"]
    assert [counted(each, "row") for each in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert [span(each) for each in (0.9, 61, 90_061, 7 * 86_400)] == ["0s", "1m 1s", "1d 1h", "7d"]


@given(st.integers(min_value=0, max_value=2**63))
def test_no_size_has_four_digits_in_a_row(count: int) -> None:
    assert not re.search(r"\d{4}", size(count))


RUN = MergeRun(
    timeline=1,
    first=12_345,
    last=12_999,
    folders=(),
    digests=(),
    epochs=655,
    rows=20_000,
    files=16_000,
    into=1_000,
    bytes=26_637,
)
TEXTS = [
    Summary(checkpoint=1, timeline=1, status=Status.RESTORABLE, file_count=16_000, file_bytes=26_637).summary(),
    Verification(checkpoint=1, grade=Grade.DIGESTS, files=16_000, bytes=26_637, seconds=1.5, findings=()).summary(),
    Pruned(dropped=(1,), closed=(), objects=16_000, bytes=26_637).summary(),
    Compacted(
        path="out",
        epochs=20_000,
        folders=1_000,
        files_before=16_000,
        files_after=1_000,
        rows=20_000,
        bytes_before=26_637,
        bytes_after=16_000,
    ).summary(),
    CompactPlan(path="out", stream="s", format="json", target_bytes=1, runs=(), folders=20_000, files=16_000).summary(),
    RUN.summary().replace("12345", "").replace("12999", ""),  # epochs are names
    Change(20_000, 16_000).summary(number),
    Change(26_637, 16_000).summary(size),
    Retention(within=7 * 86_400).summary(),
]


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_has_them_the_same_way(text: str) -> None:
    assert not re.search(r"\d{4}", text.removeprefix("1  timeline 1  restorable  1970-01-01"))
    assert "bytes" not in text


def test_a_change_has_its_difference_and_a_name_stays_as_it_is() -> None:
    assert Change(20_000, 26_000).summary(number) == "20,000 -> 26,000 (+6,000)"
    assert Change(26_637, 16_000).summary(size) == "26.6 kB -> 16.0 kB (-10.6 kB)"
    assert Change(12_345, 12_346).summary() == "12345 -> 12346 (+1)"
    assert Change(None, 20_000).summary(number) == "none -> 20,000"
