import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Backoff, IntervalPolicy, RestartPolicy
from holdfast.errors import BadValue
from holdfast.policy import Progress, RestartBudget


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
    with pytest.raises(ValueError, match="refused"):
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
