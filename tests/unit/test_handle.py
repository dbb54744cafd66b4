"""The handle of a running pipeline, with streams and checkpoints that are made up: no Spark runs here."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.control.channel import ControlChannel
from holdfast.control.records import RequestKind
from holdfast.coordinator import Topology
from holdfast.repository import Lease, MemoryRepository
from holdfast.spark.handle import PipelineHandle
from holdfast.spark.stream_threads import StreamThreads


class MadeUpStream:
    """A stream that runs until it is stopped. A stop takes effect only when the test permits it."""

    name = "a"
    failed = None

    def __init__(self) -> None:
        self.is_inside = False
        self.asked = threading.Event()
        self.may_stop = threading.Event()
        self._ended = threading.Event()

    def live(self) -> None:
        assert self._ended.wait(30)

    def ask_to_stop(self) -> None:
        self.asked.set()

    def stop(self) -> None:
        assert self.may_stop.wait(30)
        self._ended.set()

    kill = stop


class MadeUpCheckpoints:
    """Takes no checkpoints, and notes what it was asked to do."""

    error = None

    def __init__(self) -> None:
        self.is_inside = False
        self.events: list[str] = []

    def start(self) -> None:
        self.events.append("started")

    def kill(self) -> None:
        self.events.append("killed")

    def finish(self) -> None:
        self.events.append("finished")

    def record_end(self, why: str | None) -> None:
        self.events.append(f"recorded {why}")


def made_up_handle(stream: MadeUpStream, checkpoints: MadeUpCheckpoints, closed: threading.Event) -> PipelineHandle:
    """Return a handle that is not started; `closed` is set when it releases its resources."""
    threads = StreamThreads(cast(Any, [stream]), Topology({"a": ()}), available_now=False)
    undo = contextlib.ExitStack()
    undo.callback(closed.set)
    run: Any = SimpleNamespace(identity=SimpleNamespace(pipeline="p"))
    repository = MemoryRepository()
    channel = ControlChannel(repository, Lease.take(repository), RequestKind)
    return PipelineHandle(run, threads, cast(Any, checkpoints), channel, undo)


@pytest.mark.parametrize("caller", ["a stream", "the checkpoints"])
def test_a_stop_inside_a_callback_returns_at_once_and_is_visible(caller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, checkpoints, closed = MadeUpStream(), MadeUpCheckpoints(), threading.Event()
    handle = made_up_handle(stream, checkpoints, closed)
    handle._start()

    # The thread that completes the stop is held back: what is seen afterwards was done by the call itself.
    later: list[threading.Thread] = []

    def hold_back(thread: threading.Thread) -> None:
        later.append(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", hold_back)
        inside: MadeUpStream | MadeUpCheckpoints = stream if caller == "a stream" else checkpoints
        inside.is_inside = True
        handle.stop()
        inside.is_inside = False
    assert handle.stopping and stream.asked.is_set() and not handle.wait(0)

    stream.may_stop.set()
    for thread in later:
        thread.start()
    assert handle.wait(30) and closed.is_set()


@pytest.mark.parametrize("refused", ["holdfast-a", "holdfast-closer"])
def test_a_thread_that_cannot_start_leaves_neither_a_thread_nor_a_resource(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, checkpoints, closed = MadeUpStream(), MadeUpCheckpoints(), threading.Event()
    stream.may_stop.set()
    handle = made_up_handle(stream, checkpoints, closed)
    before, start = threading.active_count(), threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        handle._start()
    assert checkpoints.events == ["started", "killed", "finished", "recorded ended at once"]
    assert closed.is_set() and handle.stopping and handle.wait(0)
    assert threading.active_count() == before
