"""Every interleaving of a rewind with a driver of the old timeline that does not know of it.

The model has one stream and two sinks. In `files`, a commit is a check and then a rename of the staged folder, two
steps. In `table`, a commit is one transaction, and the staged rows stay. There are four actors:

- the zombie: a driver of timeline 1 that stages, decides and commits epochs 2 and 3;
- two rewinders to epoch 1, which share nothing but the repository and the sinks. The first may stop anywhere, for ever
  or until later, so every crash and every paused process is among the paths;
- the new driver: it commits an epoch of timeline 2 once the rewind is complete.

Giving the last decided epoch to a sink may fail for a reason from outside: then it is recorded.

The order of the steps comes from `holdfast.rewind.steps`. The mutants at the end change it: the model must catch each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from holdfast.rewind.steps import SINK_STEPS, STEPS, RewindStep, SinkStep, steps_after

OLD, NEW, BASE, LAST = 1, 2, 1, 3
FILES, TABLE = 0, 1
Place = tuple[int, int]


@dataclass(frozen=True)
class SinkState:
    stamp: int = OLD
    ledger: Place = (OLD, BASE)
    staged: frozenset[Place] = frozenset()
    visible: frozenset[Place] = frozenset({(OLD, BASE)})
    aside: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class Rewinder:
    todo: tuple[str, ...]  # the steps that remain
    giving: int = BASE  # END: the newest decision that it knows of
    lacking: tuple[int, ...] = ()  # END: sinks that must still be given that epoch
    checked: bool = False  # END: the check of a commit into `files` has passed


@dataclass(frozen=True)
class World:
    slots: tuple[str, ...] = ("commit", "", "", "")  # of epochs 1 to 4 in timeline 1
    flag: bool = False
    decided: bool = False
    begun: bool = False
    recorded: frozenset[tuple[int, int]] = frozenset()  # sink, epoch
    sinks: tuple[SinkState, SinkState] = (SinkState(), SinkState())
    zombie: tuple[str, ...] = ()
    rewinders: tuple[Rewinder | None, Rewinder | None] = (None, None)
    new: tuple[str, ...] = ("stage", "check", "rename", "table")
    skipped: bool = False  # a commit of the new timeline was refused or skipped

    def sink(self, number: int, state: SinkState) -> World:
        sinks = (state, self.sinks[1]) if number == FILES else (self.sinks[0], state)
        return replace(self, sinks=sinks)

    def slot(self, epoch: int, verdict: str) -> World:
        return replace(self, slots=(*self.slots[: epoch - 1], verdict, *self.slots[epoch:]))

    def newest(self) -> int:
        return max(epoch for epoch, verdict in enumerate(self.slots, 1) if verdict == "commit")


class Ended(Exception):
    """The sink is stamped with a later timeline."""


class Gone(Exception):
    """There is nothing to make visible."""


def check(sink: SinkState, place: Place) -> bool:
    """Whether a commit into the files has something to do."""
    if sink.stamp > place[0]:
        raise Ended
    return place not in sink.visible


def rename(sink: SinkState, place: Place) -> SinkState:
    if place in sink.staged:
        return replace(sink, staged=sink.staged - {place}, visible=sink.visible | {place})
    if place in sink.visible:
        return sink
    raise Gone


def transaction(sink: SinkState, place: Place) -> SinkState:
    if sink.stamp > place[0]:
        raise Ended
    if place <= sink.ledger:
        return sink
    if place not in sink.staged:
        raise Gone
    return replace(sink, ledger=place, visible=sink.visible | {place})


def take_back(sink: SinkState, step: SinkStep) -> SinkState:
    match step:
        case SinkStep.STAMP:  # never lowers a position
            return replace(sink, stamp=max(sink.stamp, NEW), ledger=max(sink.ledger, (NEW, BASE)))
        case SinkStep.CLEAR:
            return replace(sink, staged=frozenset(each for each in sink.staged if each >= (NEW, 0)))
        case SinkStep.MOVE:
            moved = frozenset(each for each in sink.visible if (OLD, BASE) < each < (NEW, 0))
            return replace(sink, visible=sink.visible - moved, aside=sink.aside | moved)


@dataclass(frozen=True)
class Order:
    """The order of the steps, and how a timeline ends."""

    steps: tuple[RewindStep, ...] = STEPS
    sink: tuple[SinkStep, ...] = SINK_STEPS
    flag: bool = False

    def todo(self, *, decided: bool) -> tuple[str, ...]:
        found: list[str] = []
        for step in self.steps[self.steps.index(RewindStep.DECIDE) + 1 :] if decided else self.steps:
            if step is RewindStep.TAKE_BACK:
                found += [f"{sink}:{each}" for sink in (FILES, TABLE) for each in self.sink]
            else:
                found.append(step)
        return tuple(found)

    # --- the actors ---

    def zombie(self, world: World) -> Iterator[World]:
        if not world.zombie:
            return
        step, rest = world.zombie[0], world.zombie[1:]
        name, epoch = step.split(":")
        place = (OLD, int(epoch))
        after = replace(world, zombie=rest)
        files, table = world.sinks
        stopped = replace(world, zombie=())
        try:
            match name:
                case "stage":
                    after = after.sink(FILES, replace(files, staged=files.staged | {place}))
                    yield after.sink(TABLE, replace(table, staged=table.staged | {place}))
                case "look":
                    yield stopped if world.flag else after
                case "decide":
                    taken = world.slots[place[1] - 1]
                    yield stopped if taken else after.slot(place[1], "commit")
                case "check":
                    yield after if check(files, place) else replace(after, zombie=rest[1:])
                case "rename":
                    yield after.sink(FILES, rename(files, place))
                case "table":
                    yield after.sink(TABLE, transaction(table, place))
        except (Ended, Gone):
            yield stopped

    def rewinder(self, world: World, number: int) -> Iterator[World]:
        mine = world.rewinders[number]

        def become(state: Rewinder, world: World) -> World:
            pair = (state, world.rewinders[1]) if number == 0 else (world.rewinders[0], state)
            return replace(world, rewinders=pair)

        if mine is None:
            yield become(Rewinder(self.todo(decided=world.decided)), world)
            return
        if not mine.todo:
            return
        step = mine.todo[0]
        done = replace(mine, todo=mine.todo[1:])
        match step:
            case RewindStep.BUILD:
                yield become(done, world)
            case RewindStep.DECIDE:
                yield become(done, replace(world, decided=True))
            case RewindStep.END:
                yield from (become(state, after) for state, after in self.end(world, mine, done))
            case RewindStep.BASES:
                assert all(sink.stamp == NEW for sink in world.sinks)
                yield become(done, world)
            case RewindStep.BEGIN:
                yield become(done, replace(world, begun=True))
            case _:
                sink, inner = step.split(":")
                state = take_back(world.sinks[int(sink)], SinkStep(inner))
                yield become(done, world.sink(int(sink), state))

    def end(self, world: World, mine: Rewinder, done: Rewinder) -> Iterator[tuple[Rewinder, World]]:
        """Give the newest decision to its sinks, then close the next slot, or find another decision there."""
        if not self.flag and world.slots[world.newest()] == "end":
            yield done, world
            return
        if mine.giving < world.newest() or (self.flag and not world.flag):
            yield replace(mine, giving=world.newest(), lacking=(FILES, TABLE), checked=False), replace(world, flag=True)
            return
        if not mine.lacking:
            if self.flag:
                yield done, world
            else:
                slot = world.slots[mine.giving]
                yield done, world if slot else world.slot(mine.giving + 1, "end")
            return
        sink, rest = mine.lacking[0], replace(mine, lacking=mine.lacking[1:], checked=False)
        failed = replace(world, recorded=world.recorded | {(sink, mine.giving)})
        yield rest, failed  # for a reason from outside
        place = (OLD, mine.giving)
        try:
            if sink == TABLE:
                yield rest, world.sink(TABLE, transaction(world.sinks[TABLE], place))
            elif mine.checked:
                yield rest, world.sink(FILES, rename(world.sinks[FILES], place))
            elif check(world.sinks[FILES], place):
                yield replace(mine, checked=True), world
            else:
                yield rest, world
        except Ended:
            yield rest, world  # a rewinder has done this sink already, after it ended the timeline
        except Gone:
            yield rest, failed

    def new_driver(self, world: World) -> Iterator[World]:
        if not world.begun or not world.new:
            return
        place, (step, *rest) = (NEW, BASE + 1), world.new
        after, (files, table) = replace(world, new=tuple(rest)), world.sinks
        try:
            match step:
                case "stage":
                    after = after.sink(FILES, replace(files, staged=files.staged | {place}))
                    yield after.sink(TABLE, replace(table, staged=table.staged | {place}))
                case "check":
                    yield after if check(files, place) else replace(after, skipped=True)
                case "rename":
                    yield after.sink(FILES, rename(files, place))
                case "table":
                    yield after.sink(TABLE, transaction(table, place))
        except (Ended, Gone):
            yield replace(world, skipped=True, new=())

    def next(self, world: World) -> Iterator[World]:
        yield from self.zombie(world)
        yield from self.rewinder(world, 0)
        if world.rewinders[0] is not None:
            yield from self.rewinder(world, 1)
        yield from self.new_driver(world)


def wrong(world: World) -> str | None:
    """Return what is wrong with a state, once the new timeline is current."""
    if world.skipped:
        return "a commit of the new timeline was refused or skipped"
    if not world.begun:
        return None
    for number, sink in enumerate(world.sinks):
        if {each for each in sink.visible if each[0] == OLD} != {(OLD, BASE)}:
            return f"sink {number} shows an epoch after the base"
        for epoch in range(BASE + 1, LAST + 1):
            kept = (OLD, epoch) in sink.aside or (number, epoch) in world.recorded
            if world.slots[epoch - 1] == "commit" and not kept:
                return f"epoch {epoch} was decided, and sink {number} neither shows it nor keeps it aside"
        if not world.new and (NEW, BASE + 1) not in sink.visible:
            return f"the new timeline's epoch is not in sink {number}"
    return None


def explore(order: Order) -> tuple[int, str | None]:
    """Return the number of states, and what is wrong in the first wrong one."""
    epochs = range(BASE + 1, LAST + 1)
    looks = ["look"] if order.flag else []
    each = ["stage", *looks, "decide", "check", "rename", "table"]
    first = World(zombie=tuple(f"{name}:{epoch}" for epoch in epochs for name in each))
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        problem = wrong(world)
        if problem:
            return len(seen), problem
        for after in order.next(world):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return len(seen), None


def test_no_interleaving_loses_brings_back_or_skips_an_epoch() -> None:
    """The order that `apply` uses leaves the base's rows, keeps every decided epoch, and skips no new one."""
    states, found = explore(Order())
    assert found is None
    assert states > 10_000


def test_the_table_of_steps_is_complete() -> None:
    """Each step occurs once, and a rewind that was decided continues with the step after the decision."""
    assert set(STEPS) == set(RewindStep)
    assert set(SINK_STEPS) == set(SinkStep)
    assert steps_after(RewindStep.DECIDE)[0] is RewindStep.END


R, S = RewindStep, SinkStep
MUTANTS = {
    "the timeline ends after the sinks": Order(steps=(R.BUILD, R.DECIDE, R.TAKE_BACK, R.END, R.BASES, R.BEGIN)),
    "the stamp comes after the rows": Order(sink=(S.MOVE, S.STAMP, S.CLEAR)),
    "the staged output is removed after the rows": Order(sink=(S.STAMP, S.MOVE, S.CLEAR)),
    "a flag instead of a closed slot": Order(flag=True),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_model_catches_a_changed_order(mutant: str) -> None:
    """Each rule of the order prevents a wrong state: without it, the model reaches one."""
    assert explore(MUTANTS[mutant])[1] is not None
