"""The gate that admits the epochs of a stream."""

import threading

import pytest

from holdfast.spark.gate import EpochGate, Stopping


def test_an_epoch_in_progress_keeps_the_gate_from_being_shut() -> None:
    gate = EpochGate()
    with gate.epoch():
        assert gate.is_busy
        assert gate.is_inside
        assert not gate.shut()
    assert not gate.is_busy
    assert not gate.is_inside
    assert gate.shut()
    assert not gate.has_refused
    with pytest.raises(Stopping), gate.epoch():
        raise AssertionError
    assert gate.has_refused


def test_a_stream_is_kept_between_two_epochs() -> None:
    gate, entered, order = EpochGate(), threading.Event(), []

    def epoch() -> None:
        entered.set()
        with gate.epoch():
            order.append("epoch")

    thread = threading.Thread(target=epoch)
    with gate.between_epochs() as idle:
        assert idle
        thread.start()
        assert entered.wait(10)
        order.append("between")
    thread.join(10)
    assert order == ["between", "epoch"]


def test_between_epochs_does_not_wait_for_an_epoch() -> None:
    gate = EpochGate()
    with gate.epoch(), gate.between_epochs() as idle:
        assert not idle


def test_an_epoch_that_waits_while_the_gate_is_shut_does_not_begin() -> None:
    gate, stopped = EpochGate(), []

    def epoch() -> None:
        try:
            with gate.epoch():
                raise AssertionError
        except Stopping:
            stopped.append(True)

    thread = threading.Thread(target=epoch)
    with gate.between_epochs():
        thread.start()
        while not gate.is_busy:
            pass
        gate.shut_here()
    thread.join(10)
    assert stopped == [True]
    assert gate.has_refused
    assert not gate.is_busy


def test_a_failed_epoch_leaves_the_gate_open() -> None:
    gate = EpochGate()
    with pytest.raises(KeyError), gate.epoch():
        raise KeyError
    with gate.epoch():
        assert not gate.is_shut


def test_a_gate_that_a_drain_shuts_stays_shut_while_another_thread_asks_whether_it_can_be_shut() -> None:
    """The other thread has read that the gate is open, and that an epoch is in progress, when the drain shuts it."""

    class Raced(EpochGate):
        racing = False

        def __getattribute__(self, name: str) -> object:
            if name == "_busy" and self.racing:
                self.racing = False
                drain.start()
                drain.join(0.2)
            return super().__getattribute__(name)

    gate = Raced()
    drain = threading.Thread(target=gate.shut_here)
    with gate.epoch():
        gate.racing = True
        assert not gate.shut()
        drain.join(10)
        assert gate.is_shut
