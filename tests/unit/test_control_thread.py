"""The thread that carries out requests, with the real checkpoint loop and made-up streams: no Spark runs here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_checkpoint_loop import OFF, World

from holdfast import Retention
from holdfast.control import (
    AskPhase,
    AskProgress,
    CheckpointCancelled,
    CheckpointTaken,
    PipelineStopped,
    request_cancel,
    request_checkpoint,
    request_prune,
    request_savepoint,
    request_stop,
)
from holdfast.control.channel import ControlChannel
from holdfast.control.records import RequestKind
from holdfast.errors import (
    AlreadyExists,
    CheckpointFailed,
    HoldfastError,
    RequestFailed,
    RequestLost,
    RequestUnanswered,
    StorageFailed,
)
from holdfast.formats.manifest import Manifest
from holdfast.policy import CheckpointPolicy
from holdfast.pruning import Pruned
from holdfast.repository import Checkpoints, History, Lease, LocalRepository, Status
from holdfast.spark import control_thread
from holdfast.spark.checkpoints import Checkpointing
from holdfast.spark.control_thread import ControlThread, StopRequest
from holdfast.spark.handle import _final_checkpoint
from support import eventually


class Handle:
    """The handle as the thread sees it; a stop ends the loop and releases the lease, as the real one does."""

    def __init__(self, world: World, loop: Checkpointing, channel: ControlChannel) -> None:
        self.stopping = False
        self.stops: list[StopRequest] = []
        self.over = threading.Event()
        self.thread: ControlThread | None = None
        self._world, self._loop, self._channel = world, loop, channel

    def stop_on_request(self, stop: StopRequest) -> Future[Manifest] | None:
        ticket = None
        if stop.drain or stop.savepoint:
            final = _final_checkpoint(drain=stop.drain, savepoint=stop.savepoint, request=stop.request)
            ticket = self._loop.request_at_end(final)
        self.stops.append(stop)
        self.stopping = True
        threading.Thread(target=self.close).start()
        return ticket

    def close(self) -> None:
        assert self.thread is not None
        self._loop.finish()
        self.thread.finish()
        self._channel.close()
        self._loop._setup.run.lease.release()
        self.over.set()

    def outcome(self) -> PipelineStopped:
        epochs = {name: stream.epoch for name, stream in self._world.streams.items()}
        return PipelineStopped(epochs=epochs, last_checkpoint=self._loop.status().last)


class Driver:
    """A driver without Spark: the loop, the channel and the thread."""

    def __init__(self, folder: Path, policy: CheckpointPolicy = OFF) -> None:
        self.world = World(folder)
        self.loop = self.world.start(policy)
        self.repository = self.world.repository
        self.lease = self.loop._setup.run.lease
        self.channel = ControlChannel(self.repository, self.lease, RequestKind)
        self.handle = Handle(self.world, self.loop, self.channel)
        self.thread = ControlThread(self.loop._setup.run, self.channel, self.loop, self.handle)
        self.handle.thread = self.thread
        self.thread.start()

    def hold(self) -> None:
        """Let the next checkpoint wait for a stream."""
        self.world.streams["a"].idle = False

    def release(self) -> None:
        self.world.streams["a"].idle = True

    def history(self) -> list[tuple[str, str]]:
        return [(each.what, each.why) for each in History(self.repository).entries()]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(control_thread, "LOOK_S", 0.01)
    made = Driver(tmp_path)
    yield made
    made.loop.kill()
    made.loop._thread.join(30)
    made.thread.finish()
    assert not made.thread._thread.is_alive()


class Asked:
    """A request in a thread of its own, as in another process."""

    def __init__(self, ask: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        self.result: Any = None
        self.phase: AskPhase | None = None
        self.give_up = False
        given = {"poll_s": 0.01, "timeout_s": 60, "watch": self._watch, **options}
        self._thread = threading.Thread(target=self._run, args=(ask, arguments, given))
        self._thread.start()

    def _watch(self, progress: AskProgress) -> None:
        self.phase = progress.phase
        if self.give_up and progress.phase is AskPhase.PENDING:
            raise KeyboardInterrupt

    def _run(self, ask: Callable[..., Any], arguments: Any, options: Any) -> None:
        try:
            self.result = ask(*arguments, **options)
        except BaseException as error:
            self.result = error

    def join(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.result


def test_a_checkpoint_and_a_savepoint_carry_the_id_of_their_request(driver: Driver) -> None:
    driver.world.streams["a"].advance()
    ident = "ab" * 16
    taken = request_checkpoint(driver.repository, why="lunch", poll_s=0.01)
    assert isinstance(taken, CheckpointTaken) and (taken.checkpoint, taken.epochs) == (1, {"a": 1, "b": 0})
    assert Checkpoints(driver.repository).read(1).request == taken.request is not None
    named = request_savepoint(driver.repository, "x", request_id=ident, poll_s=0.01)
    assert Checkpoints(driver.repository).read("x").request == named.request == ident
    assert request_savepoint(driver.repository, "x", request_id=ident, poll_s=0.01) == named
    with pytest.raises(AlreadyExists):
        request_savepoint(driver.repository, "x", poll_s=0.01)
    assert driver.history() == [("checkpoint", "lunch"), ("savepoint", "")]


def test_a_cancel_works_during_a_checkpoint_and_names_it(driver: Driver) -> None:
    assert request_cancel(driver.repository, poll_s=0.01) == CheckpointCancelled(checkpoint=None, cancelled=False)
    driver.hold()
    asked = Asked(request_checkpoint, driver.repository)
    eventually(lambda: driver.loop.status().under_way == 1)
    assert request_cancel(driver.repository, poll_s=0.01) == CheckpointCancelled(checkpoint=1, cancelled=True)
    found = asked.join()
    assert isinstance(found, RequestFailed) and found.error == CheckpointFailed.__name__
    assert "it was cancelled" in str(found)
    assert driver.world.ids(Status.ABORTED) == [1]


def test_a_checkpoint_that_waits_for_another_can_be_withdrawn(driver: Driver) -> None:
    driver.hold()
    first = Asked(request_checkpoint, driver.repository)
    eventually(lambda: first.phase is AskPhase.TAKEN)
    second = Asked(request_savepoint, driver.repository, "late")
    third = Asked(request_savepoint, driver.repository, "short", timeout_s=0.3)
    eventually(lambda: second.phase is AskPhase.PENDING)
    second.give_up = True
    assert isinstance(second.join(), KeyboardInterrupt)
    unanswered = third.join()
    assert isinstance(unanswered, RequestUnanswered) and not unanswered.taken
    driver.release()
    assert isinstance(first.join(), CheckpointTaken)
    assert request_checkpoint(driver.repository, poll_s=0.01).checkpoint == 2
    assert driver.world.checkpoints.savepoints() == []


def test_a_prune_waits_for_the_checkpoint_that_is_being_taken(driver: Driver) -> None:
    for _ in range(3):
        driver.world.streams["a"].advance()
        request_checkpoint(driver.repository, poll_s=0.01)
    driver.hold()
    under_way = Asked(request_checkpoint, driver.repository)
    eventually(lambda: driver.loop.status().under_way == 4)
    found: list[Any] = []
    pruning = threading.Thread(
        target=lambda: found.append(request_prune(driver.repository, Retention(last=1), timeout_s=60, poll_s=0.01))
    )
    pruning.start()
    pruning.join(0.3)
    assert pruning.is_alive() and driver.world.ids() == [1, 2, 3]
    driver.release()
    under_way.join()
    pruning.join(60)
    assert isinstance(found[0], Pruned) and found[0].dropped == (1, 2, 3)


@pytest.mark.parametrize("how", [{}, {"drain": True}, {"savepoint": "last"}])
def test_a_stop_returns_when_everything_has_ended(driver: Driver, how: dict[str, Any]) -> None:
    driver.world.streams["a"].advance()
    stopped = request_stop(driver.repository, why="deploy", poll_s=0.01, **how)
    assert driver.handle.over.wait(30) and stopped.epochs == {"a": 1, "b": 0}
    assert (stopped.taken is not None) == bool(how)
    assert stopped.taken is None or stopped.taken.savepoint == how.get("savepoint")
    (stop,) = driver.handle.stops
    assert stop.why == "deploy" and "(process" in stop.who
    assert driver.history()[-1] == ("stop", "deploy")


def test_a_repeated_stop_waits_for_the_first_one_and_returns_its_savepoint(driver: Driver) -> None:
    driver.hold()
    under_way = Asked(request_checkpoint, driver.repository)
    eventually(lambda: driver.loop.status().under_way == 1)
    ident = "cd" * 16
    first = Asked(request_stop, driver.repository, savepoint="x", request_id=ident)
    eventually(lambda: first.phase is AskPhase.TAKEN)
    second = Asked(request_stop, driver.repository, savepoint="x", request_id=ident)
    eventually(lambda: second.phase is AskPhase.TAKEN)
    driver.release()
    under_way.join()
    assert first.join() == second.join() and len(driver.handle.stops) == 1
    again = request_stop(driver.repository, savepoint="x", request_id=ident)
    assert again.taken == first.result.taken
    with pytest.raises(AlreadyExists):
        request_stop(driver.repository, savepoint="x")


def test_the_id_of_a_savepoint_stops_nothing(driver: Driver) -> None:
    ident = "ef" * 16
    request_savepoint(driver.repository, "x", request_id=ident, poll_s=0.01)
    with pytest.raises(AlreadyExists, match="another request"):
        request_stop(driver.repository, savepoint="x", request_id=ident, poll_s=0.01)
    assert not driver.handle.stops


def test_a_name_that_is_taken_stops_nothing(driver: Driver, tmp_path: Path) -> None:
    request_savepoint(driver.repository, "x", poll_s=0.01)
    with pytest.raises(AlreadyExists):
        request_stop(driver.repository, savepoint="x", poll_s=0.01)
    assert not driver.handle.stops


def test_two_stops_are_both_answered_and_a_drain_that_comes_second_is_refused(driver: Driver) -> None:
    driver.hold()
    under_way = Asked(request_checkpoint, driver.repository)
    eventually(lambda: driver.loop.status().under_way == 1)
    first = Asked(request_stop, driver.repository)
    eventually(lambda: first.phase is AskPhase.TAKEN)
    second, third = Asked(request_stop, driver.repository), Asked(request_stop, driver.repository, drain=True)
    eventually(lambda: second.phase is AskPhase.TAKEN)
    refused = third.join()
    assert isinstance(refused, RequestFailed) and refused.error == AlreadyExists.__name__
    driver.release()
    assert isinstance(first.join(), PipelineStopped) and isinstance(second.join(), PipelineStopped)
    under_way.join()


def test_a_savepoint_whose_answer_was_lost_is_recognised(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver dies between the manifest and the answer."""
    monkeypatch.setattr(driver.channel, "answer", lambda *_: None)
    driver.world.streams["a"].advance()
    asked = Asked(request_savepoint, driver.repository, "x")
    plain = Asked(request_checkpoint, driver.repository)
    eventually(lambda: driver.loop.status().taken == 2)
    Lease.take(driver.repository, locker=lambda: None, shared=True)  # as the next driver does
    assert asked.join().savepoint == "x"
    assert plain.join().savepoint is None


def test_a_stop_with_a_savepoint_of_a_driver_that_died_is_lost(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(stop: StopRequest) -> None:
        driver.handle.stops.append(stop)

    monkeypatch.setattr(driver.handle, "stop_on_request", never)
    asked = Asked(request_stop, driver.repository, savepoint="x")
    plain = Asked(request_stop, driver.repository)
    eventually(lambda: len(driver.handle.stops) == 2)
    Lease.take(driver.repository, locker=lambda: None, shared=True)
    assert isinstance(asked.join(), RequestLost)
    assert plain.join() == PipelineStopped(answered=False)


@pytest.mark.parametrize("arguments", [{"savepoint": "../x"}, {"savepoint": 7}, {}])
def test_arguments_that_make_no_sense_are_answered(driver: Driver, arguments: dict[str, Any]) -> None:
    from holdfast.control.asking import Asking, wait_for

    ask = Asking(repository=driver.repository, kind=RequestKind.SAVEPOINT, arguments=arguments)
    with pytest.raises(HoldfastError, match="savepoint"):
        wait_for(ask, 0.01)


def test_a_defect_in_one_request_is_answered_and_delays_no_other(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: Any) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setitem(driver.thread._actions, RequestKind.CANCEL, broken)
    asked = [Asked(request_cancel, driver.repository), Asked(request_checkpoint, driver.repository)]
    found = asked[0].join()
    assert isinstance(found, RequestFailed) and "a defect" in str(found)
    assert isinstance(asked[1].join(), CheckpointTaken)


def test_a_lease_that_cannot_be_checked_delays_a_request_and_ends_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = Lease.check, threading.Event()
    broken.set()
    failed = threading.Event()

    def check(self: Lease) -> None:
        if broken.is_set():
            failed.set()
            raise StorageFailed(action="list", key="lease", why="Stale file handle")
        real(self)

    monkeypatch.setattr(Lease, "check", check)
    asked = Asked(request_checkpoint, driver.repository)
    assert failed.wait(30)
    broken.clear()
    assert isinstance(asked.join(), CheckpointTaken)
    assert driver.world.fatal == [] and driver.loop.error is None


def test_a_folder_that_cannot_be_listed_is_reported_once_and_looked_at_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, broken = LocalRepository.list, threading.Event()
    broken.set()

    def listed(self: LocalRepository, folder: str = "") -> list[str]:
        if broken.is_set() and folder.startswith("requests"):
            raise OSError("no list")
        return real(self, folder)

    monkeypatch.setattr(LocalRepository, "list", listed)
    eventually(lambda: "no list" in caplog.text)
    threading.Event().wait(0.1)
    assert caplog.text.count("no list") == 1
    broken.clear()
    assert request_checkpoint(driver.repository, poll_s=0.01).checkpoint == 1
