"""The epoch protocol as a table: every path through it keeps the promises, whatever order things happen in."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.epoch import (
    HOLDS,
    MOVES,
    POINTS,
    EpochProgress,
    Extent,
    Facts,
    Move,
    Share,
    State,
    after,
    diagram,
    is_decided,
)
from holdfast.errors import BadValue


def test_a_move_that_is_not_in_the_table_raises() -> None:
    for state in State:
        for move in Move:
            if (state, move) in MOVES:
                assert after(state, move) is MOVES[state, move]
            else:
                with pytest.raises(BadValue):
                    after(state, move)


def test_every_state_but_the_ends_leads_on_and_all_can_be_reached() -> None:
    assert {state for state in State if not any(start is state for start, _ in MOVES)} == {State.DONE, State.FENCED}
    reached, pending = {State.UNTRIED}, [State.UNTRIED]
    while pending:
        state = pending.pop()
        for (start, _), end in MOVES.items():
            if start is state and end not in reached:
                reached.add(end)
                pending.append(end)
    assert reached == set(State)


def test_nothing_is_visible_before_the_decision_and_there_is_no_way_back_after_it() -> None:
    decided = {state for state in State if is_decided(state)}
    for state, (_, visible) in HOLDS.items():
        assert (visible is not Extent.NONE) == (state in decided)
    for (start, _), end in MOVES.items():
        assert start not in decided or end in decided


def test_the_only_ways_to_a_decision_are_to_decide_and_to_find_it() -> None:
    ways = {
        (start, move) for (start, move), end in MOVES.items() if end is State.DECIDED and start is not State.DECIDED
    }
    assert ways == {(State.DURABLE, Move.DECIDE), (State.UNTRIED, Move.FIND)}


@given(st.lists(st.sampled_from(list(Move)), max_size=60))
def test_any_course_of_events_keeps_to_the_promises(moves: list[Move]) -> None:
    """Illegal moves change nothing; commits come after a decision, decisions after everything is durable."""
    state, trail = State.UNTRIED, [State.UNTRIED]
    for move in moves:
        try:
            state = after(state, move)
        except BadValue:
            continue
        trail.append(state)
    for earlier, later in itertools.pairwise(trail):
        assert not (later is State.VISIBLE and earlier is not State.DECIDED)
        assert not (later is State.DECIDED and earlier not in (State.DURABLE, State.UNTRIED, State.DECIDED))


def test_only_a_legal_move_changes_an_epochs_state() -> None:
    heard: list[tuple[Move, State]] = []
    progress = EpochProgress(lambda *each: heard.append(each))
    with pytest.raises(BadValue):
        progress.move(Move.DECIDE)
    assert (progress.state, heard) == (State.UNTRIED, [])
    progress.move(Move.OPEN)
    assert (progress.state, heard) == (State.OPEN, [(Move.OPEN, State.OPEN)])
    with pytest.raises(AttributeError):
        progress.state = State.DECIDED


def test_a_sink_that_raises_stays_marked() -> None:
    progress = EpochProgress()
    with progress.inside("good"):
        assert progress.sink == "good"
    assert progress.sink is None
    with pytest.raises(KeyError), progress.inside("bad"):
        raise KeyError
    assert progress.sink == "bad"


def test_every_point_has_a_state_and_the_diagram_has_every_move() -> None:
    assert set(POINTS.values()) <= set(State)
    assert all(f"{start} --> {end}: {move}" in diagram() for (start, move), end in MOVES.items())


def test_facts_come_back_as_they_were_written() -> None:
    share = Share(handle={"rows": 1}, rows=1, stands=3, before=2)
    facts = Facts(
        start=[None],
        end=['{"logOffset":0}'],
        offsets_digest="ab",
        source_log={"0": 0},
        source_entries={"0/0": "cd"},
        sinks={"files.out": share},
        rows=1,
    )
    from holdfast.epoch import Attempt, Decision, Verdict

    attempt = Attempt(stream="s", timeline=1, epoch=3, attempt=1)
    decision = Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain())
    assert Facts.of(Decision.unsealed(decision.sealed(), "3.1")) == facts
