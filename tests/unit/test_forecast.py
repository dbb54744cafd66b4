"""Whether the next epoch of PostgresSink is expected to be small enough for the driver."""

import pytest

from holdfast.sinks.postgres.driver_copy import MOST_BYTES, Forecast, Part


@pytest.mark.parametrize(
    ("last", "small"), [(None, False), (0, True), (99, True), (100, True), (101, False), (10**9, False)]
)
def test_the_ledger_gives_the_first_forecast(last: int | None, small: bool) -> None:
    assert Forecast(100, last).is_small() is small


def test_with_no_rows_for_the_driver_no_epoch_is_small() -> None:
    forecast = Forecast(0, 0)
    forecast.record([], collected=False)
    assert not forecast.is_small()


@pytest.mark.parametrize(
    ("parts", "small"),
    [
        ([], True),
        ([Part("a", 60, 1), Part("b", 40, 1)], True),
        ([Part("a", 60, 1), Part("b", 41, 1)], False),
        ([Part("a", 2, MOST_BYTES)], True),
        ([Part("a", 2, MOST_BYTES), Part("b", 2, 1)], False),
    ],
)
@pytest.mark.parametrize("collected", [True, False])
def test_the_next_epoch_is_expected_to_be_like_the_last(parts: list[Part], small: bool, collected: bool) -> None:
    forecast = Forecast(100, 101 if small else 0)
    forecast.record(parts, collected=collected)
    assert forecast.is_small() is small


def test_after_epochs_that_were_too_large_it_is_tried_less_and_less_often() -> None:
    """Wide rows can make an epoch of few rows too large, time after time."""
    forecast, tried = Forecast(100, 0), []
    for epoch in range(300):
        if forecast.is_small():
            tried.append(epoch)
            forecast.correct()
        forecast.record([Part("a", 1, 1)], collected=False)
    assert tried == [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]
    while not forecast.is_small():
        pass
    forecast.record([Part("a", 1, 1)], collected=True)
    forecast.correct()
    assert [forecast.is_small() for _ in range(3)] == [False, True, True]
