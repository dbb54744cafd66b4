"""The thread that takes checkpoints, with streams that are made up: no Spark runs here."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.barriers import BarrierFlags, BarrierInjector
from holdfast.coordinator import CheckpointRequest, StreamPosition, Topology
from holdfast.errors import AlreadyExists, CheckpointFailed, CheckpointsFailed, Closed, Fenced, StorageFailed
from holdfast.policy import Backoff, CheckpointPolicy, Retention
from holdfast.repository import Checkpoints, Identity, Lease, Lineage, LocalRepository, Status
from holdfast.spark import checkpoints as checkpoints_module
from holdfast.spark import housekeeping
from holdfast.spark.attempt import Inbox
from holdfast.spark.checkpoint_setup import CheckpointSetup
from holdfast.spark.checkpoints import Checkpointing
from holdfast.spark.context import RunContext, StreamCallbacks
from holdfast.spark.snapshot import Snapshots
from holdfast.testing import CrashAt, Crashed
from support import eventually

Acknowledge = Any


class MadeUp:
    """A stream as the loop sees it. It acknowledges when it is idle; its files are those of two batches."""

    def __init__(self, name: str, root: Path, repository: LocalRepository, acknowledge: Acknowledge) -> None:
        self.name = name
        self.folder = root / f"timelines/1/streams/{name}/spark"
        self.spec = SimpleNamespace(output_mode="append")
        self.sources = ("made up",)
        self.injector = BarrierInjector()
        self.snapshots: Any = Snapshots(self.folder, repository)
        self.epoch = 0
        self.failed: Exception | None = None
        self.waits = self.is_inside = False
        self.can_acknowledge = self.idle = self.committed = True
        self.oldest_kept: int | None = None
        self._acknowledge = acknowledge
        self._barrier = self.injector.handle()

    @property
    def progress(self) -> tuple[int, int]:
        return self.epoch * 10, self.epoch

    def advance(self) -> None:
        """Complete one epoch: its files are there before the loop can see it."""
        batch = self.epoch
        files = {"metadata": "{}", f"offsets/{batch}": f'v1\n{{"conf":{{}}}}\n{batch}', f"commits/{batch}": "v1\n{}"}
        for path, text in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)
        self.epoch = batch + 1

    def acknowledge_idle(self) -> bool:
        barrier = self._barrier.poll(self.epoch) if self.idle and self.can_acknowledge else None
        if barrier is not None and not barrier.is_cancel:
            sinks = {"sink": {"epoch": self.epoch}}
            at = StreamPosition(stream=self.name, epoch=self.epoch, offsets=("1",), sinks=sinks, stage=b"s")
            self._acknowledge(barrier.checkpoint_id, at)
        return barrier is not None

    commit_poll_s = 0.0

    def is_committed(self, epoch: int) -> bool:
        return self.committed and epoch <= self.epoch


class World:
    """A repository, two streams in a row, and the loop."""

    def __init__(self, folder: Path) -> None:
        self.repository = LocalRepository(folder / "root")
        self.checkpoints = Checkpoints(self.repository)
        self.fatal: list[BaseException] = []
        self.failures: list[Exception] = []
        self.loop: Checkpointing | None = None
        self.streams: dict[str, MadeUp] = {}
        self.identity = Identity.create(self.repository, "p")
        self.folder = folder

    def start(self, policy: CheckpointPolicy, reach: Any = lambda _: None, **options: Any) -> Checkpointing:
        inbox: Inbox = queue.SimpleQueue()
        acknowledge = lambda checkpoint, at: inbox.put((checkpoint, at))  # noqa: E731
        epochs = {name: stream.epoch for name, stream in self.streams.items()}
        root = self.repository.root
        self.streams = {name: MadeUp(name, root, self.repository, acknowledge) for name in ("a", "b")}
        for name, epoch in epochs.items():
            self.streams[name].epoch = epoch
        run = RunContext(
            spark=cast(Any, None),
            repository=self.repository,
            lineage=Lineage(self.identity),
            lease=Lease.take(self.repository, locker=lambda: None, shared=True),
            retain=100,
            shared=True,
            available_now=options.pop("available_now", False),
            accept=frozenset(),
            backoff=Backoff(),
            callbacks=StreamCallbacks(on_checkpoint_failed=lambda _, error: self.failures.append(error)),
            reach=reach,
        )
        setup = CheckpointSetup(
            run=run,
            streams=cast(Any, self.streams),
            topology=Topology({"a": (), "b": ("a",)}),
            policy=policy,
            checkpoints=self.checkpoints,
            program=7,
        )
        self.loop = Checkpointing(setup, inbox, on_fatal=self.fatal.append)
        self.loop.prepare()
        assert not self.loop._thread.is_alive()
        self.loop.start()
        return self.loop

    def ids(self, status: Status = Status.RESTORABLE) -> list[int]:
        return [each.checkpoint for each in self.checkpoints.all() if each.status is status]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    if made.loop is not None:
        made.loop.kill()
        made.loop._thread.join(30)
        assert not made.loop._thread.is_alive()


OFF = CheckpointPolicy(every=None)


def test_a_request_is_answered_with_its_manifest(world: World) -> None:
    loop = world.start(OFF)
    world.streams["a"].advance()
    manifest = loop.request(CheckpointRequest()).result(30)
    assert {name: cut.epoch for name, cut in manifest.streams.items()} == {"a": 1, "b": 0}
    assert manifest.streams["a"].file_count == 3 and manifest.streams["b"].files is None
    assert manifest.streams["b"].reads == ("a",)
    assert set(manifest.operator_states) == {"a/stage", "b/stage"}
    assert (manifest.pipeline_hash, manifest.parent, manifest.sink_epochs["a/sink"]) == (7, None, 1)
    eventually(lambda: loop.status().last == 1)
    second = loop.request(CheckpointRequest()).result(30)
    assert second.parent is not None
    assert world.streams["a"].oldest_kept in (None, 1)
    assert loop.status().taken == 2 and loop.status().under_way is None


def test_periodic_checkpoints_are_taken_only_after_progress(world: World) -> None:
    loop = world.start(CheckpointPolicy(every=0.01))
    world.streams["a"].advance()
    eventually(lambda: loop.status().taken == 1)
    threading.Event().wait(0.2)
    assert loop.status().taken == 1
    world.streams["a"].advance()
    eventually(lambda: loop.status().taken == 2)


def test_a_graceful_end_takes_one_last_checkpoint_if_a_stream_has_advanced(world: World) -> None:
    loop = world.start(CheckpointPolicy(every="1h"))
    world.streams["a"].advance()
    loop.finish()
    assert world.ids() == [1]
    loop = world.start(CheckpointPolicy(every="1h"))
    loop.finish()
    assert world.ids() == [1]
    with pytest.raises(Closed, match="has ended"):
        loop.request(CheckpointRequest())


def test_a_drain_gets_its_checkpoint_though_a_periodic_one_is_due_at_the_same_moment(world: World) -> None:
    """The periodic one is skipped because no stream has advanced; the drain must not be skipped with it."""
    loop = world.start(CheckpointPolicy(every=0.001))
    world.streams["a"].advance()
    eventually(lambda: loop.status().taken == 1)
    ticket = loop.request_at_end(CheckpointRequest(BarrierFlags.DRAIN))
    with pytest.raises(AlreadyExists, match="last checkpoint"):
        loop.request_at_end(CheckpointRequest(BarrierFlags.DRAIN))
    loop.finish()
    assert ticket.result(0).checkpoint_id == 2


def test_a_late_stream_is_named_and_the_next_attempt_has_another_id(world: World) -> None:
    loop = world.start(CheckpointPolicy(every=None, timeout=0.1))
    world.streams["a"].idle = False
    with pytest.raises(CheckpointFailed, match="a did not acknowledge") as late:
        loop.request(CheckpointRequest()).result(30)
    assert late.value.late == ("a",) and world.ids(Status.ABORTED) == [1]
    world.streams["a"].idle = True
    assert loop.request(CheckpointRequest()).result(30).checkpoint_id == 2
    assert world.failures == [late.value] and loop.status().failed == 1


def test_a_cancelled_attempt_does_not_count_as_a_failure_and_a_later_one_does(world: World) -> None:
    loop = world.start(CheckpointPolicy(every=None, tolerable_failures=0))
    world.streams["a"].idle = False
    ticket = loop.request(CheckpointRequest())
    eventually(lambda: loop.status().under_way == 1)
    loop.cancel()
    with pytest.raises(CheckpointFailed, match="cancelled"):
        ticket.result(30)
    assert world.fatal == []

    def full_disk(*_: object) -> int:
        raise StorageFailed(action="write", key="attempt.json", why="No space left on device")

    world.checkpoints.claim = full_disk  # type: ignore[method-assign]
    with pytest.raises(CheckpointFailed, match="No space left"):
        loop.request(CheckpointRequest()).result(30)
    eventually(lambda: len(world.fatal) == 1)
    assert isinstance(world.fatal[0], CheckpointsFailed) and loop.error is world.fatal[0]


@pytest.mark.parametrize("trouble", ["failed", "waits"])
def test_a_failure_does_not_count_while_a_stream_fails_or_waits(world: World, trouble: str) -> None:
    loop = world.start(CheckpointPolicy(every=None, timeout=0.05, tolerable_failures=0))
    stream = world.streams["a"]
    stream.idle = False
    setattr(stream, trouble, OSError("down") if trouble == "failed" else True)
    with pytest.raises(CheckpointFailed):
        loop.request(CheckpointRequest()).result(30)
    assert world.fatal == []


@pytest.mark.parametrize("wrong", ["acknowledge", "commit"])
def test_an_end_does_not_wait_for_what_cannot_happen(world: World, wrong: str) -> None:
    loop = world.start(CheckpointPolicy(every="1h", timeout="1h", tolerable_failures=0))
    stream = world.streams["a"]
    stream.advance()
    if wrong == "commit":
        stream.committed = False
    else:
        stream.can_acknowledge = False
    loop.finish()
    (error,) = world.failures
    expected = "before Spark committed epoch 1" if wrong == "commit" else "not in every sink"
    assert expected in str(error) and world.fatal == [] and world.ids(Status.ABORTED) == [1]


def test_a_kill_gives_up_the_attempt_that_is_under_way(world: World) -> None:
    loop = world.start(OFF)
    world.streams["a"].idle = False
    ticket = loop.request(CheckpointRequest())
    waiting = loop.request(CheckpointRequest())
    eventually(lambda: loop.status().under_way == 1)
    loop.kill()
    with pytest.raises(CheckpointFailed, match="the pipeline was ended"):
        ticket.result(30)
    with pytest.raises(Closed):
        waiting.result(30)


def test_what_waits_at_the_end_has_the_time_of_the_policy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_module, "_UNDER_WAY_S", 0.0)
    loop = world.start(CheckpointPolicy(every=None, timeout=60))
    world.streams["a"].advance()
    gate, keep = threading.Event(), world.streams["a"].snapshots.keep
    monkeypatch.setattr(world.streams["a"].snapshots, "keep", lambda pinned: keep(pinned) if gate.is_set() else None)
    ticket = loop.request(CheckpointRequest())
    eventually(lambda: loop.status().under_way == 1)
    ending = threading.Thread(target=loop.finish)
    ending.start()
    ending.join(0.3)
    assert ending.is_alive()
    gate.set()
    ending.join(30)
    assert ticket.result(0).checkpoint_id == 1


def test_a_replaced_driver_takes_no_more_checkpoints_and_deletes_nothing(world: World) -> None:
    loop = world.start(OFF)
    world.streams["a"].idle = False
    ticket = loop.request(CheckpointRequest(BarrierFlags.FULL_SNAPSHOT, "x"))
    eventually(lambda: loop.status().under_way == 1)
    Lease.take(world.repository, locker=lambda: None, shared=True)
    loop.cancel()
    with pytest.raises(Closed):
        ticket.result(30)
    assert world.fatal == [] and loop.error is None
    assert world.ids(Status.ABORTED) == []


@pytest.mark.parametrize("point", ["checkpoint claimed", "barrier sent", "aligned", "files held", "manifest written"])
def test_a_crash_ends_the_loop_answers_every_ticket_and_leaves_no_link(world: World, point: str) -> None:
    loop = world.start(OFF, reach=CrashAt(point))
    world.streams["a"].advance()
    ticket = loop.request(CheckpointRequest())
    with pytest.raises(Closed):
        ticket.result(30)
    loop._thread.join(30)
    assert isinstance(loop.error, Crashed) and world.fatal == [loop.error]
    assert not list(world.repository.root.rglob(".pinned/*"))
    again = world.start(OFF)
    assert again.request(CheckpointRequest()).result(30).checkpoint_id == 2
    assert world.ids(Status.OPEN) == []


def test_retention_is_applied_between_checkpoints_and_streams_learn_what_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_PRUNE_S", 0.0)
    loop = world.start(CheckpointPolicy(every=None, retention=Retention(last=2)))
    for _ in range(4):
        world.streams["a"].advance()
        loop.request(CheckpointRequest()).result(30)
    eventually(lambda: world.ids() == [3, 4])
    eventually(lambda: world.streams["a"].oldest_kept == 3)


def test_housekeeping_that_is_fenced_ends_the_loop_and_any_other_failure_does_not(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    loop = world.start(OFF)

    def fails() -> None:
        raise OSError("no list")

    loop.between(fails)
    eventually(lambda: "no list" in caplog.text)
    assert loop.request(CheckpointRequest()).result(30).checkpoint_id == 1

    def fenced() -> None:
        raise Fenced(number=1, newer=2, holder="another driver")

    loop.between(fenced)
    loop._thread.join(30)
    assert not loop._thread.is_alive() and loop.error is None


def test_a_loop_that_could_not_start_is_not_waited_for(world: World) -> None:
    running = world.start(OFF)
    never = Checkpointing(running._setup, queue.SimpleQueue(), on_fatal=world.fatal.append)
    never.kill()
    never.finish()
    assert not never._thread.is_alive()


def test_the_setup_is_frozen(world: World) -> None:
    loop = world.start(OFF)
    with pytest.raises(dataclasses.FrozenInstanceError):
        loop._setup.policy = OFF  # type: ignore[misc]
