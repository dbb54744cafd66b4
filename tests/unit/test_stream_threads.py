"""The threads of a pipeline's streams, with streams that are made up: no Spark runs here."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from holdfast.coordinator import Topology
from holdfast.spark.stream_threads import StreamThreads


class MadeUpStream:
    """A stream that runs until it is ended, and notes in which order things happened."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.failed: Exception | None = None
        self.is_inside = False
        self.ended = threading.Event()
        self._events = events

    def live(self) -> None:
        self._events.append(f"{self.name} began")
        assert self.ended.wait(30)
        self._events.append(f"{self.name} ended")

    def stop(self) -> None:
        self.ended.set()

    kill = ask_to_stop = stop

    def finish_available(self) -> None:
        self._events.append(f"{self.name} drained")


def made(available_now: bool = False) -> tuple[StreamThreads, list[MadeUpStream], list[str]]:
    events: list[str] = []
    streams = [MadeUpStream("b", events), MadeUpStream("a", events)]
    topology = Topology({"b": ("a",), "a": ()})
    return StreamThreads(cast(Any, streams), topology, available_now=available_now), streams, events


def test_nothing_runs_before_the_start_and_a_stop_ends_all() -> None:
    threads, _, events = made()
    assert events == [] and not threads.stopping
    threads.start()
    threads.stop()
    assert threads.stopping and sorted(events[2:]) == ["a ended", "b ended"]


def test_a_stream_that_fails_stops_the_others() -> None:
    threads, (_, a), events = made()
    threads.start()
    a.failed = OSError("down")
    a.ended.set()
    threads.join()
    assert threads.stopping and "b ended" in events
    assert threads.failures == [a.failed]


@pytest.mark.parametrize("error", [OSError("down"), KeyboardInterrupt()])
def test_an_error_of_the_whole_pipeline_ends_all_without_waiting(error: BaseException) -> None:
    threads, _, events = made()
    threads.start()
    threads.end_after(error)
    threads.join()
    assert threads.stopping and {"a ended", "b ended"} <= set(events)


def test_a_drain_goes_upstream_first() -> None:
    threads, _, events = made()
    threads.start()
    threads.drain(time.monotonic() + 10)
    rest = [each for each in events if "began" not in each]
    assert rest == ["a drained", "a ended", "b drained", "b ended"]


def test_with_what_is_available_now_a_reader_begins_when_its_upstream_has_ended() -> None:
    threads, (b, a), events = made(available_now=True)
    threads.start()
    b.ended.set()
    a.ended.set()
    threads.join()
    assert events == ["a began", "a ended", "b began", "b ended"]
