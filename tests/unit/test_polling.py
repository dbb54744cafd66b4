"""How often an idle stream looks for new input."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.polling import LONGEST_MS, SHORTEST_MS, checked_delay_ms, chosen_delay_ms


def test_one_stream_looks_as_often_as_in_plain_spark() -> None:
    assert chosen_delay_ms(1) == SHORTEST_MS == 10


@given(st.integers(1, 1000))
def test_more_streams_do_not_look_more_often_in_total_up_to_a_longest_delay(streams: int) -> None:
    delay = chosen_delay_ms(streams)
    assert SHORTEST_MS <= delay <= LONGEST_MS
    assert delay == LONGEST_MS or streams / delay == 1 / SHORTEST_MS


def test_a_store_is_not_polled_faster_than_every_50_ms() -> None:
    assert chosen_delay_ms(1, on_store=True) == 50
    assert chosen_delay_ms(6, on_store=True) == 60
    assert chosen_delay_ms(1000, on_store=True) == LONGEST_MS


@pytest.mark.parametrize("path", ["s3a://bucket/in", "S3A://bucket/in", "gs://bucket/in", "abfss://x@y/in"])
def test_an_input_on_a_store_is_polled_as_seldom_as_many_streams_are(path: str) -> None:
    assert chosen_delay_ms(1, ["/in", path]) == LONGEST_MS
    assert chosen_delay_ms(1, [path], on_store=True) == LONGEST_MS


@pytest.mark.parametrize("path", ["", "/in", "file:///in", "hdfs://name/in", "/s3a:/in"])
def test_other_inputs_are_polled_as_often_as_in_plain_spark(path: str) -> None:
    assert chosen_delay_ms(1, [path]) == SHORTEST_MS


@pytest.mark.parametrize(
    ("given_", "ms"), [(None, None), ("50ms", 50), ("1s", 1000), (0.25, 250), (timedelta(milliseconds=20), 20)]
)
def test_a_delay_may_be_given_as_any_duration(given_: object, ms: int | None) -> None:
    assert checked_delay_ms(given_) == ms


@pytest.mark.parametrize("wrong", [0, -1, "0s", "often", 0.0001, "2m", True, [], float("nan"), float("inf")])
def test_a_delay_that_is_out_of_range_is_refused_before_spark_starts(wrong: object, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="poll_every"):
        checked_delay_ms(wrong)
    with pytest.raises(BadValue, match="poll_every"):
        Pipeline("p", tmp_path).start(poll_every=wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
