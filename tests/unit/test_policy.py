import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Backoff, CheckpointPolicy, RestartPolicy, Retention
from holdfast.errors import BadValue
from holdfast.policy import DEFAULT_RETENTION, IntervalPolicy, Progress, RestartBudget


def test_due_when_the_sequence_reaches_the_mark_and_the_next_counts_from_there() -> None:
    policy = IntervalPolicy(sequences=100)
    assert not policy.due("s", Progress(99))
    assert policy.due("s", Progress(100))
    policy.taken("s", Progress(137))
    assert not policy.due("s", Progress(236))
    assert policy.due("s", Progress(237))


def test_each_stream_has_a_mark_of_its_own() -> None:
    policy = IntervalPolicy(sequences=10)
    assert policy.due("a", Progress(10))
    policy.taken("a", Progress(10))
    assert policy.due("b", Progress(10))
    assert not policy.due("a", Progress(19))


def test_time_and_epochs_count_too_and_any_of_them_is_enough() -> None:
    policy = IntervalPolicy(sequences=1000, epochs=5, seconds=30)
    assert not policy.due("s", Progress(1, 1, 100.0))
    assert policy.due("s", Progress(1, 5, 100.0))
    assert policy.due("s", Progress(1, 1, 130.0))
    policy.taken("s", Progress(1, 5, 130.0))
    assert not policy.due("s", Progress(1, 9, 159.9))
    assert policy.due("s", Progress(1, 10, 159.9))


def test_a_recovered_stream_is_not_due_at_once() -> None:
    policy = IntervalPolicy(sequences=100)
    policy.taken("s", Progress(5_000))
    assert not policy.due("s", Progress(5_001))
    assert policy.due("s", Progress(5_100))


@pytest.mark.parametrize(
    "bad", [{}, {"sequences": 0}, {"epochs": -1}, {"seconds": 0}, {"seconds": float("nan")}, {"seconds": float("inf")}]
)
def test_intervals_that_never_or_always_fire_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="interval"):
        IntervalPolicy(**bad)


def test_once_means_once_in_a_life() -> None:
    budget = RestartBudget(RestartPolicy.once())
    assert budget.spend(0.0)
    assert not budget.spend(1e9)
    assert budget.restarts == 1
    assert not RestartBudget(RestartPolicy.never()).spend(0.0)


def test_a_bounded_budget_rolls() -> None:
    """Three within ten seconds, over a window that moves with each restart and does not begin anew every ten."""
    budget = RestartBudget(RestartPolicy.bounded(3, within=10))
    assert [budget.spend(now) for now in (0, 8, 9, 9.5)] == [True, True, True, False]
    assert budget.spend(10.0)  # the one at 0 has left the window
    assert not budget.spend(17.9)  # 8, 9 and 10 are still in it
    assert budget.spend(18.0)


@given(
    st.integers(1, 4),
    st.floats(0.5, 10),
    st.lists(st.floats(0, 3), min_size=1, max_size=60),
)
def test_no_window_ever_holds_more_than_the_budget(most: int, within: float, steps: list[float]) -> None:
    budget = RestartBudget(RestartPolicy.bounded(most, within))
    now, granted = 0.0, []
    for step in steps:
        now += step
        recent = [each for each in granted if now - each < within]
        allowed = budget.spend(now)
        assert allowed == (len(recent) < most)
        if allowed:
            granted.append(now)
    assert budget.restarts == len(granted)


@pytest.mark.parametrize(("most", "within"), [(0, 1), (-1, 1), (1, 0), (1, -5), (1, float("inf"))])
def test_budgets_out_of_range_are_refused(most: int, within: float) -> None:
    with pytest.raises(ValueError, match="invalid"):
        RestartPolicy.bounded(most, within)


def test_policies_tell_what_they_are() -> None:
    assert [str(each) for each in (RestartPolicy.never(), RestartPolicy.once(), RestartPolicy.bounded(3, 60))] == [
        "never",
        "once",
        "at most 3 in 60 s",
    ]


def test_waits_grow_up_to_a_limit_and_are_never_quite_the_same() -> None:
    backoff = Backoff(first=1, factor=2, longest=10, jitter=0.5)
    assert [backoff.seconds(n, 0.5) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    assert (backoff.seconds(1, 0), backoff.seconds(1, 1)) == (0.5, 1.5)
    assert backoff.seconds(10_000, 1) == 15


@pytest.mark.parametrize("wrong", [{"first": 0}, {"longest": -1}, {"factor": 0.5}, {"jitter": 2}])
def test_a_backoff_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadValue):
        Backoff(**wrong)


# --- retention -------------------------------------------------------------------------------------------------------

HOUR, DAY = 3_600_000, 86_400_000


def test_the_last_ones_are_kept_and_the_newest_always() -> None:
    times = {number: number * 1000 for number in range(1, 21)}
    assert list(Retention().keeps(times, 0)) == list(range(11, 21))
    assert Retention(last=0).keeps(times, 10**15) == {20: "the newest"}
    assert Retention(last=2).keeps(times, 0) == {19: "one of the last 2", 20: "the newest"}
    assert Retention().keeps({}, 0) == {}


def test_with_hours_and_days_a_run_keeps_a_week_of_days_a_day_of_hours_and_the_last_ten_minutes() -> None:
    assert CheckpointPolicy().retention == DEFAULT_RETENTION == Retention(last=10)
    minute = 60_000
    times = {number: number * minute for number in range(10 * DAY // minute)}
    kept = [times[id_] // minute for id_ in Retention(last=10, hourly=24, daily=7).keeps(times, 10 * DAY)]
    newest = len(times) - 1
    assert kept[-10:] == list(range(newest - 9, newest + 1))
    hours = [at for at in kept if at > newest - 24 * 60]
    assert len(hours) == 9 + 24
    assert [at // (24 * 60) for at in kept if at % (24 * 60) == 24 * 60 - 1] == [3, 4, 5, 6, 7, 8, 9]
    assert len(kept) == 9 + 24 + 6


def test_hours_and_days_that_have_none_do_not_count() -> None:
    times = {1: 0, 2: 10, 3: HOUR - 1, 4: HOUR, 5: 30 * HOUR, 6: 30 * HOUR + 5, 7: 50 * HOUR, 8: 50 * HOUR + 1}
    assert list(Retention(last=0, hourly=3).keeps(times, 51 * HOUR)) == [4, 6, 8]
    assert Retention(last=0, daily=2).keeps(times, 51 * HOUR) == {6: "the newest of its day", 8: "the newest"}
    assert list(Retention(last=0, hourly=9).keeps(times, 51 * HOUR)) == [3, 4, 6, 8]


def test_all_that_are_young_are_kept() -> None:
    times = {1: 0, 2: 5_000, 3: 5_001, 4: 9_000}
    assert list(Retention(last=0, within=5).keeps(times, 10_000)) == [3, 4]
    assert Retention(last=0, within=timedelta(seconds=5)) == Retention(last=0, within=5.0)
    assert Retention(last=0, within=5).keeps(times, 10_000)[3] == "younger than 5 s"


def test_a_retention_says_what_it_keeps() -> None:
    assert Retention().summary() == "the last 10"
    both = Retention(last=0, hourly=24, daily=7, within=timedelta(minutes=1)).summary()
    assert both == "the last 1, one an hour for 24 hours, one a day for 7 days, all younger than 1m"


@pytest.mark.parametrize(
    "wrong",
    [
        *({what: value} for what in ("last", "hourly", "daily") for value in (-1, 1.5, "1", True, None)),
        *({"within": value} for value in (0, -1, "1h", float("nan"), float("inf"), True)),
    ],
    ids=str,
)
def test_a_retention_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="retention"):
        Retention(**wrong)


def kept_in_other_words(retention: Retention, times: dict[int, int], now_ms: int) -> set[int]:
    """Each rule as it is said, asked of one checkpoint at a time."""

    def in_spans(id_: int, span: int, count: int) -> bool:
        mine = times[id_] // span
        is_newest = not any(other > id_ and times[other] // span == mine for other in times)
        later = {times[other] // span for other in times if times[other] // span > mine}
        return is_newest and len(later) < count

    return {
        id_
        for id_ in times
        if sum(other > id_ for other in times) < max(retention.last, 1)
        or in_spans(id_, HOUR, retention.hourly)
        or in_spans(id_, DAY, retention.daily)
        or (retention.within is not None and now_ms - times[id_] < retention.within * 1000)
    }


def test_retention_is_what_its_rules_say_in_every_small_case() -> None:
    moments = (0, HOUR // 2, HOUR, DAY)
    rules = [Retention(*each) for each in itertools.product((0, 1, 2), (0, 1, 2), (0, 1, 2), (None, HOUR / 1000))]
    for stamps in itertools.chain.from_iterable(itertools.product(moments, repeat=n) for n in range(5)):
        times = dict(enumerate(stamps, 1))
        for retention in rules:
            assert set(retention.keeps(times, DAY)) == kept_in_other_words(retention, times, DAY)


@given(
    st.builds(
        Retention,
        last=st.integers(0, 5),
        hourly=st.integers(0, 5),
        daily=st.integers(0, 5),
        within=st.none() | st.floats(1, 1e6),
    ),
    st.dictionaries(st.integers(1, 10_000), st.integers(0, 10 * DAY), max_size=40),
    st.integers(0, 12 * DAY),
)
def test_retention_keeps_the_newest_and_what_its_rules_say(
    retention: Retention, times: dict[int, int], now_ms: int
) -> None:
    kept = retention.keeps(times, now_ms)
    assert set(kept) == kept_in_other_words(retention, times, now_ms)
    assert not times or max(times) in kept
    again = retention.keeps({id_: times[id_] for id_ in kept}, now_ms)
    assert set(again) == set(kept), "what was kept once is kept again: pruning twice is pruning once"
    assert all(kept.values())
