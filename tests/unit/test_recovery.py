"""What a start decides from facts alone: which stories fit together, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.epoch import Attempt, Decision, Facts, Share, Verdict
from holdfast.errors import HoldfastError, SinkAhead, SinkBehind, SinksChanged, SparkLogMismatch
from holdfast.recovery import RecoveryPlan, SparkPosition, plan


def decided(epoch: int, **sinks: tuple[int, int]) -> Decision:
    shares = {name: Share(handle={}, rows=1, stands=stands, before=before) for name, (stands, before) in sinks.items()}
    facts = Facts(start=[], end=[], offsets_digest="", source_log={}, source_entries={}, sinks=shares, rows=1)
    attempt = Attempt(stream="s", timeline=1, epoch=epoch, attempt=1)
    return Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain())


def planned(
    decision: Decision | None, offsets: int, commits: int, new_sinks: bool = False, **holds: int
) -> RecoveryPlan:
    return plan("s", decision, SparkPosition("spark", offsets, commits), holds, new_sinks=new_sinks)


def test_a_first_start() -> None:
    made = planned(None, 0, 0, a=0)
    assert (made.decided, made.replays, made.finish) == (0, False, ())
    assert "begins with epoch 1" in made.summary()
    assert planned(None, 1, 0, a=0).decided == 0  # Spark had begun the first epoch, and nobody decided it


def test_all_is_well() -> None:
    made = planned(decided(5, a=(5, 4)), 5, 5, a=5)
    assert (made.replays, made.finish, made.stands) == (False, (), {"a": 5})
    assert planned(decided(5, a=(5, 4)), 6, 5, a=5) == made  # the next epoch had been begun


def test_died_between_decision_and_commit() -> None:
    made = planned(decided(5, a=(5, 4), b=(5, 4)), 5, 4, a=5, b=4)
    assert (made.replays, made.finish) == (True, ("b",))


def test_an_epoch_without_rows_leaves_no_trace_to_ask_for() -> None:
    made = planned(decided(5, a=(3, 3)), 5, 5, a=3)
    assert (made.finish, made.stands) == ((), {"a": 3})


@pytest.mark.parametrize(
    ("offsets", "commits"),
    [(4, 4), (5, 3), (7, 5), (6, 6), (0, 0)],
    ids=["offsets lost", "two commits lost", "offsets two ahead", "a commit that nobody decided", "everything lost"],
)
def test_spark_tells_another_story(offsets: int, commits: int) -> None:
    with pytest.raises(SparkLogMismatch):
        planned(decided(5, a=(5, 4)), offsets, commits, a=5)


def test_a_plain_spark_checkpoint_is_not_ours() -> None:
    with pytest.raises(SparkLogMismatch):
        planned(None, 3, 3, a=0)


def test_a_sink_that_is_behind_by_more_than_the_last_epoch() -> None:
    with pytest.raises(SinkBehind):
        planned(decided(5, a=(5, 4)), 5, 5, a=3)
    with pytest.raises(SinkBehind):
        planned(decided(5, a=(3, 3)), 5, 5, a=2)


def test_a_sink_that_is_behind_is_told_the_last_epoch_that_it_held() -> None:
    """Once Spark has committed an epoch, every sink had it. Before that, the sink surely had the one before."""
    with pytest.raises(SinkBehind, match="epoch 3 was committed to it") as caught:
        planned(decided(3, a=(3, 2)), 3, 3, a=0)
    assert caught.value.decided == 3
    with pytest.raises(SinkBehind, match="epoch 2 was committed to it"):
        planned(decided(3, a=(3, 2)), 3, 2, a=0)
    with pytest.raises(SinkBehind, match="epoch 2 was committed to it"):
        planned(decided(3, a=(2, 2)), 3, 3, a=0)


@pytest.mark.parametrize("holds", [6, 100])
def test_a_sink_that_is_ahead(holds: int) -> None:
    with pytest.raises(SinkAhead):
        planned(decided(5, a=(5, 4)), 5, 5, a=holds)
    with pytest.raises(SinkAhead):
        planned(None, 0, 0, a=holds)


def test_a_sink_that_holds_what_was_never_decided_for_it() -> None:
    """The epoch between left no trace, and yet there is one."""
    with pytest.raises(SinkAhead):
        planned(decided(5, a=(5, 3)), 5, 4, a=4)


def test_other_sinks() -> None:
    with pytest.raises(SinksChanged, match="'b'"):
        planned(decided(5, a=(5, 4)), 5, 5, a=5, b=0)
    with pytest.raises(SinksChanged, match="'a'"):
        planned(decided(5, a=(5, 4)), 5, 5, b=0)
    assert planned(decided(5, a=(5, 4)), 5, 5, True, a=5, b=0).stands == {"a": 5, "b": 0}
    with pytest.raises(SinksChanged, match="run once with the same sinks"):
        planned(decided(5, a=(5, 4)), 5, 4, True, b=0)


@given(
    epoch=st.integers(1, 6),
    spark=st.tuples(st.integers(0, 8), st.integers(0, 8)),
    holds=st.integers(0, 8),
    share=st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
def test_whatever_is_found_either_fits_or_is_refused(
    epoch: int, spark: tuple[int, int], holds: int, share: tuple[int, int]
) -> None:
    """Nothing is taken for whole that is not: what goes on has each sink at what was decided, or one epoch short."""
    (offsets, commits), (stands, before) = spark, share
    if not before <= stands <= epoch or before >= epoch or stands not in (before, epoch):
        return
    try:
        made = planned(decided(epoch, a=(stands, before)), offsets, commits, a=holds)
    except HoldfastError:
        return
    assert commits in (epoch, epoch - 1)
    assert offsets in (epoch, epoch + 1)
    assert holds in (stands, before)
    assert made.finish == (() if holds == stands else ("a",))
    assert made.replays == (commits == epoch - 1)
