"""When a stream may be cut, and what it answers to a barrier."""

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.barriers import BarrierFlags, BarrierInjector
from holdfast.coordinator import StreamPosition
from holdfast.recovery import RecoveryPlan
from holdfast.spark.acknowledging import Acknowledger
from holdfast.spark.gate import EpochGate, Stopping
from holdfast.spark.last_decided import LastDecided


class Stream:
    """An acknowledger with fake parts; it records what is sent."""

    def __init__(self, mark: Any = dict) -> None:
        self.sent: list[tuple[int, StreamPosition | Exception]] = []
        self.drained: list[bool] = []
        self.injector, self.gate = BarrierInjector(), EpochGate()
        sink = SimpleNamespace(name="out", mark=mark)
        run = SimpleNamespace(acknowledge=lambda *each: self.sent.append(each))
        parts: Any = SimpleNamespace(name="orders", sinks=(sink,), run=run)
        drained = lambda: self.drained.append(self.gate.is_shut)  # noqa: E731
        self.acknowledger = Acknowledger(parts, self.gate, self.injector.handle(), drained)


def plan(decided: int, *finish: str) -> RecoveryPlan:
    return RecoveryPlan("orders", decided, replays=False, finish=finish, stands={})


def test_there_is_no_cut_before_the_first_recovery_is_done_nor_during_another() -> None:
    stream = Stream()
    stream.injector.trigger(1)
    assert not stream.acknowledger.acknowledge_idle()
    stream.acknowledger.begin_recovery()
    assert not stream.acknowledger.acknowledge_idle()
    stream.acknowledger.recovered(LastDecided(epoch=4, stands={"out": 3}))
    assert stream.acknowledger.acknowledge_idle()
    ((checkpoint, position),) = stream.sent
    assert isinstance(position, StreamPosition)
    assert (checkpoint, position.epoch, position.sinks) == (1, 4, {"out": {"epoch": 3}})
    stream.acknowledger.begin_recovery()
    stream.injector.trigger(2)
    assert not stream.acknowledger.acknowledge_idle()


def test_an_epoch_that_may_be_decided_allows_no_cut_until_every_sink_has_it() -> None:
    stream = Stream()
    stream.acknowledger.recovered(LastDecided(epoch=1))
    stream.injector.trigger(1)
    stream.acknowledger.begin_decision()
    stream.acknowledger.fail()
    stream.acknowledger.stop_after_failure()
    assert not stream.acknowledger.at_cut
    assert not stream.acknowledger.acknowledge_idle()
    stream.acknowledger.advance(LastDecided(epoch=2))
    assert [(checkpoint, position.epoch) for checkpoint, position in stream.sent] == [(1, 2)]


def test_a_stop_after_an_undecided_failure_allows_a_last_cut() -> None:
    stream = Stream()
    stream.acknowledger.recovered(LastDecided(epoch=1))
    stream.acknowledger.fail()
    assert not stream.acknowledger.at_cut
    stream.acknowledger.begin_recovery()
    stream.acknowledger.planned(plan(1))  # and the recovery fails afterwards
    stream.acknowledger.stop_after_failure()
    assert stream.acknowledger.at_cut


@pytest.mark.parametrize("found", [plan(2), plan(1, "out")])
def test_a_recovery_that_found_a_decision_allows_no_cut_until_it_is_done(found: RecoveryPlan) -> None:
    stream = Stream()
    stream.acknowledger.recovered(LastDecided(epoch=1))
    stream.acknowledger.begin_recovery()
    stream.acknowledger.planned(found)
    stream.acknowledger.begin_recovery()
    stream.acknowledger.planned(plan(1))
    stream.acknowledger.stop_after_failure()
    assert not stream.acknowledger.at_cut


def test_a_busy_stream_acknowledges_itself() -> None:
    stream = Stream()
    stream.acknowledger.recovered(LastDecided(epoch=1))
    stream.injector.trigger(1)
    with stream.gate.epoch():
        assert not stream.acknowledger.acknowledge_idle()
        stream.acknowledger.advance(LastDecided(epoch=2))
    assert [position.epoch for _, position in stream.sent] == [2]
    assert not stream.acknowledger.acknowledge_idle()


def test_a_drain_shuts_an_idle_stream_before_it_is_stopped() -> None:
    stream = Stream()
    stream.acknowledger.recovered(LastDecided(epoch=1))
    stream.injector.trigger(1, BarrierFlags.DRAIN)
    assert stream.acknowledger.acknowledge_idle()
    assert stream.drained == [True]


def test_a_drain_lets_no_epoch_begin_after_the_one_that_acknowledges_it() -> None:
    """Even if the query cannot be stopped from within, because its start has not returned yet."""
    stream = Stream()
    stream.acknowledger.recovered(LastDecided(epoch=1))
    stream.injector.trigger(1, BarrierFlags.DRAIN)
    with stream.gate.epoch():
        stream.acknowledger.advance(LastDecided(epoch=2))
    assert stream.drained == [True]
    with pytest.raises(Stopping), stream.gate.epoch():
        raise AssertionError


def test_a_failure_of_a_sinks_mark_is_the_answer_to_the_barrier() -> None:
    def broken() -> dict[str, Any]:
        raise ConnectionError("down")

    stream = Stream(broken)
    stream.acknowledger.recovered(LastDecided(epoch=1))
    stream.injector.trigger(1)
    assert stream.acknowledger.acknowledge_idle()
    assert isinstance(stream.sent[0][1], ConnectionError)
    assert stream.acknowledger.at_cut


def test_a_cancelled_barrier_is_not_acknowledged() -> None:
    stream = Stream()
    stream.acknowledger.recovered(LastDecided(epoch=1))
    stream.injector.trigger(1, BarrierFlags.CANCEL)
    assert not stream.acknowledger.acknowledge_idle()
    assert stream.sent == []
