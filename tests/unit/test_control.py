"""The control channel with clocks that a test moves: one process is an object here, and dies by not being called."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fabricated import Fabricated
from holdfast import control
from holdfast.control import protocol
from holdfast.control.asking import Asking, AskPhase, AskProgress, wait_for
from holdfast.control.channel import KEPT_MS, ControlChannel
from holdfast.control.observing import running_driver
from holdfast.control.protocol import AskerStep, RequestMove, RequestState, asker_step
from holdfast.control.records import (
    ControlAnswer,
    ControlRequest,
    RequestKind,
    answer_key,
    channel_folder,
    claim_key,
    read_state,
    request_key,
)
from holdfast.errors import (
    AlreadyExists,
    BadValue,
    Closed,
    Fenced,
    NotRunning,
    NotSupported,
    OutcomeUnknown,
    RequestFailed,
    RequestLost,
    RequestUnanswered,
    StorageFailed,
)
from holdfast.repository import Lease, MemoryRepository, Repository
from holdfast.testing import ManualClock
from holdfast.testing.faults import FaultyRepository
from support import rounds

KINDS = list(RequestKind)


class Driver:
    """A driver: it takes what it finds, notes what it carried out, and answers at once unless told otherwise."""

    def __init__(self, repository: Repository, clock: ManualClock, *, shared: bool = False, kinds: Any = KINDS) -> None:
        self.lease = Lease.take(repository, locker=(lambda: None) if shared else None, shared=shared)
        self.channel = ControlChannel(repository, self.lease, kinds, clock=clock, monotonic=clock)
        self.channel.open()
        self.found: list[ControlRequest] = []
        self.taken: list[ControlRequest] = []
        self.carried_out: list[str] = []

    def look(self) -> None:
        self.found += self.channel.look()

    def take(self) -> None:
        request = self.found.pop(0)
        if self.channel.take(request):
            self.carried_out.append(request.id)
            self.taken.append(request)

    def answer(self) -> None:
        request = self.taken.pop(0)
        self.channel.answer(request, ControlAnswer(at_ms=self.channel.now_ms(), result={"by": self.lease.number}))

    def turn(self) -> None:
        self.look()
        while self.found:
            self.take()
        while self.taken:
            self.answer()

    def end(self) -> None:
        self.channel.close()
        self.lease.release()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def repository() -> MemoryRepository:
    found = MemoryRepository()
    Fabricated(found)
    return found


def asking(repository: Repository, clock: ManualClock, **options: Any) -> Asking:
    given = {"kind": RequestKind.CHECKPOINT, "timeout_s": 60.0, **options}
    return Asking(repository=repository, clock=clock, monotonic=clock, **given)


# --- the table -------------------------------------------------------------------------------------------------------


def test_only_one_move_closes_a_request_and_only_a_taken_one_is_answered() -> None:
    closed = {state for (_, move), state in protocol.REQUEST_MOVES.items() if move is not RequestMove.ANSWER}
    assert closed == {RequestState.TAKEN, RequestState.WITHDRAWN, RequestState.EXPIRED}
    for state, move in itertools.product(RequestState, RequestMove):
        if (state, move) in protocol.REQUEST_MOVES:
            assert protocol.after(state, move) is protocol.REQUEST_MOVES[state, move]
        else:
            with pytest.raises(BadValue, match="does not allow"):
                protocol.after(state, move)
    assert "pending --> taken: take" in protocol.diagram()


@pytest.mark.parametrize("state", RequestState)
def test_the_asker_withdraws_only_what_nobody_has_taken(state: RequestState) -> None:
    steps = {asker_step(state, driver_ended=ended, timed_out=late) for ended in (True, False) for late in (True, False)}
    assert (AskerStep.WITHDRAW in steps) == (state is RequestState.PENDING)
    assert (AskerStep.LOST in steps) == (state is RequestState.TAKEN)
    assert (steps == {AskerStep.RETURN}) == (state is RequestState.ANSWERED)


# --- one asker, one driver -------------------------------------------------------------------------------------------


def test_a_request_is_taken_and_answered_once(repository: MemoryRepository, clock: ManualClock) -> None:
    driver, ask = Driver(repository, clock), asking(repository, clock)
    assert ask.look() is None
    assert read_state(repository, driver.lease.number, ask.request_id)[0] is RequestState.PENDING
    driver.turn()
    driver.turn()
    answer = ask.look()
    assert answer is not None and answer.result == {"by": driver.lease.number}
    assert driver.carried_out == [ask.request_id]


def test_without_a_driver_nothing_is_written(repository: MemoryRepository, clock: ManualClock) -> None:
    with pytest.raises(NotRunning, match="holdfast run"):
        asking(repository, clock).look()
    Driver(repository, clock).end()
    with pytest.raises(NotRunning):
        asking(repository, clock).look()
    assert repository.list("requests") == ["00000001/"]
    assert repository.list("requests/00000001") == ["closed.json", "open.json"]


def test_a_driver_that_still_starts_is_waited_for(repository: MemoryRepository, clock: ManualClock) -> None:
    seen: list[AskPhase] = []
    with Lease.take(repository) as lease:
        ask = asking(repository, clock, watch=lambda progress: seen.append(progress.phase))
        assert ask.look() is None and seen == [AskPhase.STARTING]
        channel = ControlChannel(repository, lease, KINDS, clock=clock, monotonic=clock)
        channel.open()
        assert ask.look() is None and seen[-1] is AskPhase.PENDING
        late = asking(repository, clock, timeout_s=1.0)
        channel.close()
        assert late.look() is None
        clock.advance(2)
        with pytest.raises(RequestUnanswered) as caught:
            late.look()
        assert not caught.value.taken


def test_a_timeout_withdraws_what_was_not_taken(repository: MemoryRepository, clock: ManualClock) -> None:
    driver, ask = Driver(repository, clock), asking(repository, clock)
    ask.look()
    driver.look()  # the driver has seen it, but its work has not begun
    clock.advance(61)
    with pytest.raises(RequestUnanswered) as caught:
        ask.look()
    assert not caught.value.taken
    clock.advance(-61)
    driver.take()
    assert driver.carried_out == []
    assert read_state(repository, driver.lease.number, ask.request_id)[0] is RequestState.WITHDRAWN


def test_a_timeout_leaves_what_was_taken(repository: MemoryRepository, clock: ManualClock) -> None:
    driver, ask = Driver(repository, clock), asking(repository, clock)
    ask.look()
    driver.look()
    driver.take()
    clock.advance(61)
    with pytest.raises(RequestUnanswered, match="it is being carried out") as caught:
        ask.look()
    assert caught.value.taken


def test_ctrl_c_withdraws(repository: MemoryRepository, clock: ManualClock) -> None:
    driver = Driver(repository, clock)

    def interrupt(progress: AskProgress) -> None:
        if progress.phase is AskPhase.PENDING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_for(asking(repository, clock, watch=interrupt))
    driver.turn()
    assert driver.carried_out == []


def test_an_interrupt_during_the_write_of_the_request_withdraws_it(
    repository: MemoryRepository, clock: ManualClock
) -> None:
    driver = Driver(repository, clock)
    real = repository.put_if_absent

    def put(key: str, data: Any) -> Any:
        done = real(key, data)
        if len(key.rpartition("/")[2]) == 37:  # the request itself: it is there, and its writer does not know
            raise KeyboardInterrupt
        return done

    repository.put_if_absent = put  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        wait_for(asking(repository, clock))
    driver.turn()
    assert driver.carried_out == []


def test_a_request_of_a_killed_asker_expires(repository: MemoryRepository, clock: ManualClock) -> None:
    driver, ask = Driver(repository, clock), asking(repository, clock)
    ask.look()
    clock.advance(61)
    driver.turn()
    assert driver.carried_out == []
    assert read_state(repository, driver.lease.number, ask.request_id)[0] is RequestState.EXPIRED


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_clocks_that_differ_never_make_a_request_late(
    repository: MemoryRepository, clock: ManualClock, ahead: float
) -> None:
    """A driver whose clock is ahead refuses; one whose clock is behind carries it out only within its own span."""
    theirs = ManualClock(clock.now + ahead)
    driver = Driver(repository, theirs)
    ask = asking(repository, clock)
    ask.look()
    driver.look()
    if ahead < 0:
        theirs.advance(61)  # by its clock, the deadline is an hour away
    driver.take()
    assert driver.carried_out == []
    with pytest.raises(RequestFailed, match="compare the clocks"):
        ask.look()


def test_a_request_dies_with_its_driver_and_the_asker_asks_the_next_one(
    repository: MemoryRepository, clock: ManualClock
) -> None:
    first, ask = Driver(repository, clock), asking(repository, clock)
    ask.look()
    first.look()
    first.lease.release()  # as a kill does
    second = Driver(repository, clock)
    second.turn()
    assert second.carried_out == []  # it is not addressed to this one
    assert ask.look() is None  # withdrawn
    assert ask.look() is None  # sent again
    second.turn()
    answer = ask.look()
    assert answer is not None and answer.result == {"by": 2}
    with pytest.raises(Exception, match=r"closed|replaced"):
        first.take()
    assert first.carried_out == []


def test_a_driver_that_dies_after_it_took_a_request_leaves_it_lost(
    repository: MemoryRepository, clock: ManualClock
) -> None:
    driver, ask = Driver(repository, clock), asking(repository, clock)
    ask.look()
    driver.look()
    driver.take()
    driver.lease.release()
    second = Driver(repository, clock)
    second.turn()
    with pytest.raises(RequestLost):
        ask.look()
    assert second.carried_out == []


def test_a_graceful_end_answers_what_was_taken_first(repository: MemoryRepository, clock: ManualClock) -> None:
    driver, ask, other = Driver(repository, clock), asking(repository, clock), asking(repository, clock)
    ask.look()
    other.look()
    driver.look()
    driver.take()
    driver.take()
    at_end = next(each for each in driver.taken if each.id == ask.request_id)
    driver.channel.answer_at_end(at_end, lambda: ControlAnswer(at_ms=1, result={"at": "end"}))
    driver.end()
    answer = ask.look()
    assert answer is not None and answer.result == {"at": "end"}
    with pytest.raises(RequestFailed, match="has ended"):
        other.look()


def test_two_askers_get_their_own_answers(repository: MemoryRepository, clock: ManualClock) -> None:
    driver = Driver(repository, clock)
    two = [asking(repository, clock) for _ in range(2)]
    for each in two:
        each.look()
    driver.turn()
    assert sorted(driver.carried_out) == sorted(each.request_id for each in two)
    assert all(each.look() is not None for each in two)


def test_the_same_id_joins_the_first_request_and_never_another(
    repository: MemoryRepository, clock: ManualClock
) -> None:
    driver = Driver(repository, clock)
    first = asking(repository, clock)
    second = asking(repository, clock, request_id=first.request_id)
    other = asking(repository, clock, request_id=first.request_id, kind=RequestKind.STOP)
    first.look()
    second.look()
    with pytest.raises(AlreadyExists, match="one request"):
        other.look()
    driver.turn()
    assert driver.carried_out == [first.request_id]
    assert first.look() == second.look() is not None


@pytest.mark.parametrize("wrong", [{"request_id": "x"}, {"why": "w" * 2000}, {"timeout_s": 0}])
def test_wrong_values_are_refused(repository: MemoryRepository, clock: ManualClock, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        asking(repository, clock, **wrong)


# --- shared pipelines ------------------------------------------------------------------------------------------------


def test_the_end_of_a_shared_driver_is_known_by_its_record(repository: MemoryRepository, clock: ManualClock) -> None:
    driver = Driver(repository, clock, shared=True)
    found = running_driver(repository)
    assert found is not None and found.pid == os.getpid()
    driver.end()
    assert running_driver(repository) is None


def test_a_driver_that_was_replaced_takes_nothing(repository: MemoryRepository, clock: ManualClock) -> None:
    old, ask = Driver(repository, clock, shared=True), asking(repository, clock)
    ask.look()
    old.look()
    new = Driver(repository, clock, shared=True)
    with pytest.raises(Fenced):
        old.take()
    assert old.carried_out == []
    ask.look()
    ask.look()
    new.turn()
    assert ask.look() is not None


# --- what others put there -------------------------------------------------------------------------------------------


def test_an_unknown_kind_gets_a_typed_answer(repository: MemoryRepository, clock: ManualClock) -> None:
    driver = Driver(repository, clock)
    ask = asking(repository, clock)
    request = ControlRequest(
        id=ask.request_id,
        kind="teleport",
        lease=driver.lease.number,
        who="me",
        pid=1,
        asked_at_ms=1,
        until_ms=2_000_000_000,
    )
    repository.put(request_key(driver.lease.number, ask.request_id), request.sealed())
    driver.turn()
    ask.sent_to = driver.lease.record
    with pytest.raises(NotSupported, match="teleport"):
        ask.look()
    few = Driver(repository, clock, shared=True, kinds=["prune"])
    with pytest.raises(NotSupported, match="carries out only: prune"):
        asking(repository, clock).look()
    few.end()


def test_garbage_is_reported_once_and_hides_nothing(
    repository: MemoryRepository, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    driver, ask = Driver(repository, clock), asking(repository, clock)
    folder = channel_folder(driver.lease.number)
    repository.put(f"{folder}/notes.txt", b"hello")
    repository.put(f"{folder}/{'0' * 32}.json", b"\xff garbage")
    repository.put(f"{folder}/{'1' * 32}.claim.json", b"garbage")
    ask.look()
    repository.put(request_key(driver.lease.number, "2" * 32), repository.read(f"{folder}/{ask.request_id}.json"))
    for _ in range(3):
        driver.turn()
    assert driver.carried_out == [ask.request_id]
    assert caplog.text.count("notes.txt") == 1
    for name in ("0" * 32, "2" * 32):
        state, answer = read_state(repository, driver.lease.number, name)
        assert state is RequestState.ANSWERED and answer is not None and answer.error == "RecordCorrupt"
    assert ask.look() is not None


def test_old_files_are_deleted_a_day_later_and_never_bring_a_request_back(
    repository: MemoryRepository, clock: ManualClock
) -> None:
    driver, ask, left = Driver(repository, clock), asking(repository, clock), asking(repository, clock)
    ask.look()
    driver.turn()
    left.look()  # its asker is killed
    driver.lease.release()
    second = Driver(repository, clock)
    second.channel.forget()
    assert len(repository.list(channel_folder(1))) == 5
    clock.advance(KEPT_MS / 1000 + 1)
    second.channel.forget()
    assert repository.list("requests") == ["00000002/"]
    again = asking(repository, clock)
    again.look()
    second.turn()
    clock.advance(KEPT_MS / 1000 + 1)
    deleted: list[str] = []
    watching = FaultyRepository(repository, lambda what, key: deleted.append(key) if what == "delete" else None)
    ControlChannel(watching, second.lease, KINDS, clock=clock, monotonic=clock).forget()
    number = second.lease.number
    assert deleted == [key(number, again.request_id) for key in (request_key, claim_key, answer_key)]


# --- full disks ------------------------------------------------------------------------------------------------------


def failing(repository: Repository, *endings: str, error: Any = StorageFailed) -> tuple[FaultyRepository, list[bool]]:
    """A repository whose disk is full for these files, until the list is emptied."""
    full = [True]

    def fail(action: str, key: str) -> None:
        if full and action.startswith("put") and key.endswith(endings):
            raise error(action="write", key=key, why="No space left on device")

    return FaultyRepository(repository, fail), full


def test_a_full_disk_delays_the_claim_and_the_answer(repository: MemoryRepository, clock: ManualClock) -> None:
    faulty, full = failing(repository, ".claim.json", ".done.json")
    driver, ask = Driver(faulty, clock), asking(repository, clock)
    ask.look()
    driver.turn()
    assert driver.carried_out == []
    full.clear()
    driver.look()
    driver.take()
    full.append(True)
    driver.answer()
    assert ask.look() is None
    full.clear()
    driver.turn()
    assert ask.look() is not None and driver.carried_out == [ask.request_id]


def test_a_claim_of_unknown_outcome_is_carried_out_once(repository: MemoryRepository, clock: ManualClock) -> None:
    """The write took effect and reported a failure: the next look finds its own claim."""
    driver, ask = Driver(repository, clock), asking(repository, clock)
    ask.look()
    real = repository.put_if_absent
    broken = [True]

    def put(key: str, data: Any) -> Any:
        done = real(key, data)
        if broken and key.endswith(".claim.json"):
            broken.clear()
            raise OutcomeUnknown(action="write", key=key, why="Input/output error")
        return done

    repository.put_if_absent = put  # type: ignore[method-assign]
    driver.look()
    request = driver.found[0]
    driver.take()
    assert driver.carried_out == []
    driver.found.append(request)
    driver.take()
    assert driver.carried_out == [ask.request_id]


def test_an_asker_on_a_full_disk_deletes_its_request(repository: MemoryRepository, clock: ManualClock) -> None:
    driver = Driver(repository, clock)
    faulty, _ = failing(repository, ".claim.json")
    ask = asking(faulty, clock)
    ask.look()
    clock.advance(61)
    with pytest.raises(StorageFailed):
        ask.look()
    clock.advance(-61)
    driver.turn()
    assert driver.carried_out == []


# --- any order, with deaths anywhere ---------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
def test_an_end_of_the_driver_between_two_reads_of_the_asker_never_looks_like_a_loss(begun: bool) -> None:
    """The driver takes, answers and ends before the n-th operation of one look, for every n."""
    for number in itertools.count():
        repository, clock = MemoryRepository(), ManualClock(1000.0)
        Fabricated(repository)
        driver, operations = Driver(repository, clock), []

        def fault(*operation: str, number: int = number, driver: Driver = driver, done: Any = operations) -> None:
            done.append(operation)
            if len(done) == number + 1:
                driver.turn()
                driver.end()

        ask = asking(repository, clock)
        ask.look()
        if begun:
            driver.look()
            driver.take()
        ask.repository = FaultyRepository(repository, fault)
        answer = ask.look()
        if len(operations) <= number:
            assert number > 3
            return
        assert answer is not None or ask.look() is not None


class Orders(RuleBasedStateMachine):
    """Two askers and a row of drivers in any order. A driver that was replaced continues to act; any may be killed."""

    def __init__(self) -> None:
        super().__init__()
        self.repository, self.clock = MemoryRepository(), ManualClock(1000.0)
        Fabricated(self.repository)
        self.shared = False
        self.drivers: list[Driver] = []
        self.askers: dict[int, Asking] = {}
        self.asked = 0
        self.deadlines: dict[str, float] = {}
        self.outcomes: dict[str, str] = {}

    @initialize(shared=st.booleans())
    def begin(self, shared: bool) -> None:
        self.shared = shared
        self.start()

    @precondition(lambda self: self.drivers)
    @rule(chance=st.integers(0, 3))
    def replace(self, chance: int) -> None:
        if self.drivers[-1].lease._released or (self.shared and not chance):
            self.start()

    def start(self) -> None:
        self.drivers.append(Driver(self.repository, self.clock, shared=self.shared))

    @rule(which=st.integers(0, 1))
    def ask(self, which: int) -> None:
        if which not in self.askers:
            self.asked += 1  # with an id of chance, the order in which a driver finds requests would differ in a replay
            request_id = f"{(self.asked * 0x9E3779B97F4A7C15) % (1 << 64):032x}"
            self.askers[which] = asking(self.repository, self.clock, timeout_s=5.0, request_id=request_id)
            self.deadlines[self.askers[which].request_id] = self.clock.now + 5.0
        ask = self.askers[which]
        outcome = None
        try:
            answer = ask.look()
            if answer is not None:
                assert ask.sent_to is not None and answer.result == {"by": ask.sent_to.number}
                outcome = "carried out"
        except (RequestLost, RequestFailed, RequestUnanswered, NotRunning) as error:
            done = isinstance(error, RequestLost) or getattr(error, "taken", False) or "has ended" in str(error)
            outcome = "carried out" if done else "refused"
        if outcome is not None:
            self.outcomes[self.askers.pop(which).request_id] = outcome

    @rule(which=st.integers(0, 1), chance=st.integers(0, 3))
    def kill_asker(self, which: int, chance: int) -> None:
        if not chance:
            self.askers.pop(which, None)

    @precondition(lambda self: self.askers)
    @rule()
    def interrupt_asker(self) -> None:
        """Ctrl-C: the asker withdraws its request before its time is over, and knows whether that succeeded."""
        which, ask = next(iter(self.askers.items()))
        if ask.sent_to is not None:
            self.outcomes[ask.request_id] = "refused" if ask.withdraw() else "carried out"
            self.askers.pop(which)

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(old=st.integers(0, 3))
    def look(self, old: int) -> None:
        self.act(old, Driver.look)

    @precondition(lambda self: any(driver.found for driver in self.drivers))
    @rule(old=st.integers(0, 3))
    def take(self, old: int) -> None:
        self.act(old, Driver.take, has="found")

    @precondition(lambda self: any(driver.taken for driver in self.drivers))
    @rule(old=st.integers(0, 3))
    def answer(self, old: int) -> None:
        self.act(old, Driver.answer, has="taken")

    def act(self, old: int, act: Any, has: str = "channel") -> None:
        """Let the newest driver act, or, with `old` 0, the oldest that can."""
        able = [driver for driver in self.drivers if getattr(driver, has)]
        if not able:
            return
        driver = able[-1 if old else 0]
        before = len(driver.carried_out)
        try:
            act(driver)
        except (Fenced, Closed):
            driver.found.clear()
        for name in driver.carried_out[before:]:
            assert self.clock.now <= self.deadlines[name], "carried out late"
            assert self.outcomes.get(name) != "refused", "carried out after its asker was told otherwise"
            newest = self.drivers[-1].lease
            assert driver.lease is newest and not newest._released, "carried out by a driver that was replaced"

    @rule(gracefully=st.booleans(), chance=st.integers(0, 3))
    def end(self, gracefully: bool, chance: int) -> None:
        driver = self.drivers[-1]
        if chance or driver.lease._released:
            return
        driver.end() if gracefully else driver.lease.release()

    @invariant()
    def each_is_carried_out_at_most_once_and_the_asker_knows(self) -> None:
        done = [name for driver in self.drivers for name in driver.carried_out]
        assert len(done) == len(set(done)), "carried out twice"
        for name, outcome in self.outcomes.items():
            assert (name in done) == (outcome == "carried out"), outcome


Orders.TestCase.settings = settings(max_examples=rounds(100, 5000), stateful_step_count=40, deadline=None)
TestAnyOrder = Orders.TestCase


def test_the_public_names_are_there() -> None:
    assert all(hasattr(control, name) for name in control.__all__)
