"""The checkpoint protocol in a simulated pipeline: thousands of schedules, and the order that must not be broken."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import coordinator
from holdfast.barriers import BarrierFlags, BarrierInjector
from holdfast.coordinator import (
    MOVES,
    POINTS,
    CheckpointAttempt,
    CheckpointRequest,
    FinalCheckpoint,
    Phase,
    Schedule,
    Step,
    StreamPosition,
    Topology,
)
from holdfast.errors import BadValue
from holdfast.policy import CheckpointPolicy, Progress

CHAIN = {"a": (), "b": ("a",), "c": ("b",)}
DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def position(stream: str, epoch: int = 1) -> StreamPosition:
    return StreamPosition(stream=stream, epoch=epoch)


# --- the simulated pipeline ---


@dataclass
class Channel:
    """A stream's durable output: how many rows are visible in it."""

    visible: int = 0


@dataclass
class Simulated:
    """A stream that runs epochs in small steps: read, make visible, finish."""

    name: str
    reads: tuple[str, ...]
    out: Channel = field(default_factory=Channel)
    taken: dict[str, int] = field(default_factory=dict)  # as of the last finished epoch
    given: int = 0
    epoch: int = 0
    step: int = 0
    doing: dict[str, int] = field(default_factory=dict)
    failed: bool = False

    def __post_init__(self) -> None:
        self.injector = BarrierInjector()
        self.handle = self.injector.handle()
        self.taken = dict.fromkeys(self.reads, 0)

    @property
    def busy(self) -> bool:
        return self.step > 0

    @property
    def in_doubt(self) -> bool:
        """Its output is visible and its epoch not finished."""
        return self.step == 2

    def advance(self, world: World) -> None:
        if self.step == 0:
            self.doing = {each: world.streams[each].out.visible for each in self.reads}
            self.step = 1
        elif self.step == 1:
            self.out.visible += 1
            self.step = 2
        else:
            self.step, self.failed = 0, False
            self.taken, self.given, self.epoch = self.doing, self.out.visible, self.epoch + 1
            barrier = self.handle.poll(self.epoch)
            if barrier is not None and not barrier.is_cancel:
                world.acknowledged(barrier.checkpoint_id, self)


class World:
    """A pipeline, a coordinator, and a schedule drawn by chance."""

    def __init__(self, reads: dict[str, tuple[str, ...]], chance: random.Random) -> None:
        self.topology = Topology(reads)
        self.streams = {name: Simulated(name, above) for name, above in reads.items()}
        self.chance = chance
        self.cut: CheckpointAttempt | None = None
        self.cuts: dict[str, tuple[dict[str, int], int]] = {}
        self.complete: list[dict[str, tuple[dict[str, int], int]]] = []

    def acknowledged(self, checkpoint: int, stream: Simulated) -> None:
        if self.cut is not None and self.cut.acknowledge(checkpoint, position(stream.name, stream.epoch)):
            self.cuts[stream.name] = (dict(stream.taken), stream.given)

    def run(self, steps: int, due: Callable[[CheckpointAttempt], list[str]], *, careless: bool = False) -> None:
        for number in range(steps):
            self.streams[self.chance.choice(list(self.streams))].advance(self)
            if self.cut is None or self.cut.phase is Phase.ALIGNED:
                if self.cut is not None:
                    self.complete.append(self.cuts)
                self.cut, self.cuts = CheckpointAttempt(number + 1, BarrierFlags.NONE, self.topology, 0.0, 1e9), {}
            for name in due(self.cut):
                self.cut._triggered.add(name)
                self.streams[name].injector.trigger(self.cut.checkpoint)
            self._for_idle(careless)

    def _for_idle(self, careless: bool) -> None:
        assert self.cut is not None
        for name in self.cut.awaited:
            stream = self.streams[name]
            idle = not stream.busy or (careless and stream.in_doubt)
            if idle and self.chance.random() < 0.5 and stream.handle.poll(stream.epoch) is not None:
                self.acknowledged(self.cut.checkpoint, stream)

    def broken(self) -> list[str]:
        """Return every place where a reader holds more than its upstream has given."""
        return [
            f"{name} holds {count} of {above}, which has {cuts[above][1]}"
            for cuts in self.complete
            for name, (taken, _) in cuts.items()
            for above, count in taken.items()
            if count > cuts[above][1]
        ]


@pytest.mark.parametrize("reads", [CHAIN, DIAMOND])
def test_the_cut_is_consistent_in_whatever_order_things_happen(reads: dict[str, tuple[str, ...]]) -> None:
    complete = 0
    for seed in range(1500):
        world = World(reads, random.Random(seed))
        world.run(120, lambda cut: cut.due())
        assert world.broken() == []
        complete += len(world.complete)
    assert complete > 5000


def test_a_barrier_sent_upstream_before_its_reader_has_acknowledged_breaks_the_cut() -> None:
    broken = 0
    for seed in range(300):
        world = World(CHAIN, random.Random(seed))
        world.run(120, lambda cut: [each for each in CHAIN if each not in cut._triggered])
        broken += bool(world.broken())
    assert broken > 5


def test_acknowledging_for_a_stream_whose_last_epoch_is_in_doubt_breaks_the_cut() -> None:
    broken = 0
    for seed in range(300):
        world = World(CHAIN, random.Random(seed))
        world.run(120, lambda cut: cut.due(), careless=True)
        broken += bool(world.broken())
    assert broken > 20


# --- one attempt ---


def begun(reads: dict[str, tuple[str, ...]] | None = None, timeout: float = 10.0) -> CheckpointAttempt:
    return CheckpointAttempt(7, BarrierFlags.NONE, Topology(reads or CHAIN), 100.0, timeout)


def test_readers_come_first() -> None:
    attempt = begun(DIAMOND)
    assert attempt.due() == ["d"]
    attempt.trigger("d")
    assert attempt.due() == []
    assert attempt.acknowledge(7, position("d"))
    assert set(attempt.due()) == {"b", "c"}
    attempt.trigger("b")
    attempt.trigger("c")
    assert attempt.acknowledge(7, position("b"))
    assert attempt.due() == []
    assert attempt.acknowledge(7, position("c"))
    attempt.trigger("a")
    assert attempt.acknowledge(7, position("a"))
    assert attempt.phase is Phase.ALIGNED


def test_a_stream_is_not_triggered_before_its_readers() -> None:
    attempt = begun()
    with pytest.raises(BadValue, match="has not acknowledged"):
        attempt.trigger("a")
    assert attempt.awaited == ()


def test_what_is_not_awaited_does_not_count() -> None:
    attempt = begun()
    attempt.trigger("c")
    assert not attempt.acknowledge(6, position("c"))
    assert not attempt.acknowledge(7, position("a"))
    assert attempt.acknowledge(7, position("c"))
    assert not attempt.acknowledge(7, position("c", 2))
    assert attempt.positions["c"].epoch == 1


def test_it_says_who_was_late() -> None:
    attempt = begun()
    assert attempt.overdue(109.9) is None
    attempt.trigger("c")
    attempt.acknowledge(7, position("c"))
    attempt.trigger("b")
    why = attempt.overdue(110.0)
    assert why is not None and why.startswith("b did not acknowledge within 10 s")
    assert attempt.late == ("b",)
    assert attempt.abort(why) == ("b",)
    assert attempt.phase is Phase.ABORTED
    assert not attempt.acknowledge(7, position("b"))
    assert attempt.overdue(200.0) is None


def test_files_are_held_before_or_after_the_alignment() -> None:
    attempt = begun({"a": (), "b": ("a",)})
    attempt.trigger("b")
    attempt.acknowledge(7, position("b"))
    assert attempt.to_hold == ("b",)
    attempt.hold("b")
    attempt.trigger("a")
    attempt.acknowledge(7, position("a"))
    assert attempt.phase is Phase.ALIGNED
    assert "Spark did not commit the epoch of a" in str(attempt.overdue(110.0))
    attempt.hold("a")
    assert attempt.phase is Phase.HELD
    attempt.write()
    assert attempt.phase is Phase.RESTORABLE
    with pytest.raises(BadValue):
        attempt.abort("too late")


@given(st.lists(st.sampled_from(list(Step)), max_size=12))
def test_a_step_that_is_not_in_the_table_raises(steps: list[Step]) -> None:
    phase = Phase.ALIGNING
    for step in steps:
        if (phase, step) in MOVES:
            phase = coordinator.after(phase, step)
        else:
            with pytest.raises(BadValue):
                coordinator.after(phase, step)


def test_every_phase_is_reached_and_left_but_the_last_two() -> None:
    assert {phase for phase, _ in MOVES} == set(Phase) - {Phase.RESTORABLE, Phase.ABORTED}
    assert set(MOVES.values()) == set(Phase)
    assert set(POINTS.values()) <= set(Phase)
    assert all(f": {step}" in coordinator.diagram() for step in Step)


# --- who reads from whom ---


def test_a_cycle_is_refused_and_named() -> None:
    with pytest.raises(BadValue, match="reads from") as found:
        Topology({"a": ("c",), "b": ("a",), "c": ("b",)})
    assert all(name in str(found.value) for name in "abc")


def test_a_stream_that_reads_itself_or_an_unknown_one_is_refused() -> None:
    with pytest.raises(BadValue, match="cycle"):
        Topology({"a": ("a",)})
    with pytest.raises(BadValue, match="no such stream"):
        Topology({"a": ("b",)})


def test_upstream_comes_first_in_the_order() -> None:
    order = Topology(DIAMOND).upstream_first
    assert order.index("a") == 0 and order.index("d") == 3


# --- when ---


def at(now: float, rows: int = 0, epochs: int = 0) -> Progress:
    return Progress(sequence=rows, epoch=epochs, now=now)


def test_one_is_due_by_time_rows_or_epochs_from_where_the_last_one_began() -> None:
    schedule = Schedule(CheckpointPolicy(every="30s", rows=100, epochs=5))
    schedule.begin_with(at(0))
    assert schedule.next(at(29)) is None
    assert schedule.next(at(30)) == CheckpointRequest()
    assert schedule.ended(at(31, rows=40), restorable=True)
    assert schedule.next(at(40, rows=99)) is None
    assert schedule.next(at(40, rows=100, epochs=3)) == CheckpointRequest()
    schedule.ended(at(41, rows=150, epochs=3), restorable=True)
    assert schedule.next(at(42, rows=151, epochs=7)) is None
    assert schedule.next(at(42, rows=151, epochs=8)) == CheckpointRequest()
    assert schedule.next(at(71, rows=151, epochs=8)) is None
    assert schedule.next(at(72, rows=151, epochs=8)) == CheckpointRequest()


def test_the_pause_is_kept_and_what_is_asked_for_waits_for_none() -> None:
    schedule = Schedule(CheckpointPolicy(every=1, min_pause=10))
    schedule.begin_with(at(0))
    schedule.ended(at(1), restorable=True)
    assert schedule.next(at(10.9)) is None
    schedule.add(CheckpointRequest(BarrierFlags.FULL_SNAPSHOT, "one"))
    schedule.add(CheckpointRequest(BarrierFlags.DRAIN))
    assert schedule.next(at(3)) == CheckpointRequest(BarrierFlags.FULL_SNAPSHOT, "one")
    assert schedule.next(at(3)) == CheckpointRequest(BarrierFlags.DRAIN)
    assert schedule.next(at(10.9)) is None
    assert schedule.next(at(11)) == CheckpointRequest()


def test_failures_in_a_row_are_counted() -> None:
    schedule = Schedule(CheckpointPolicy(every=1, tolerable_failures=1))
    assert schedule.ended(at(1), restorable=False)
    assert schedule.ended(at(2), restorable=True)
    assert schedule.ended(at(3), restorable=False)
    assert schedule.ended(at(4), restorable=False, counts=False)
    assert not schedule.ended(at(5), restorable=False)
    assert Schedule(CheckpointPolicy(every=None)).next(at(1e9)) is None


class _DrainAtTheEnd(FinalCheckpoint):
    """A drain adds its request just after the loop has looked for one."""

    drain = CheckpointRequest(BarrierFlags.DRAIN)
    stored: CheckpointRequest | None = None
    looked = False

    @property
    def _request(self) -> CheckpointRequest | None:  # type: ignore[override]
        found, late = self.stored, not self.looked
        self.looked = True
        self.stored = self.drain if late else found
        return found

    @_request.setter
    def _request(self, request: CheckpointRequest | None) -> None:
        self.stored = request


def test_the_request_of_a_drain_is_not_lost_though_it_comes_with_the_last_checkpoint() -> None:
    final = _DrainAtTheEnd()
    assert final.next(wanted=True) == CheckpointRequest()
    assert final.next(wanted=True) == _DrainAtTheEnd.drain
    assert final.next(wanted=True) is None


@pytest.mark.parametrize(
    "wrong",
    [{"every": "soon"}, {"every": 0}, {"rows": 0}, {"timeout": -1}, {"tolerable_failures": -1}, {"epochs": 1.5}],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadValue):
        CheckpointPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h", 3600), (2, 2)])
def test_spans_of_time_are_read(text: object, seconds: float) -> None:
    assert CheckpointPolicy(timeout=text).timeout_s == seconds  # type: ignore[arg-type]
