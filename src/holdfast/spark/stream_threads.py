"""The streams of a run, each supervised in its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from holdfast.coordinator import Topology
from holdfast.errors import StreamFailed
from holdfast.spark.stream import StreamRun

_LEAST_WAIT_S = 0.2  # the least time that a drain gives each stream


class StreamThreads:
    """One thread per stream, and the ways to end them. No thread runs before `start`."""

    def __init__(self, streams: Sequence[StreamRun], topology: Topology, *, available_now: bool) -> None:
        self.streams = tuple(streams)
        self.stopping = False
        self._topology = topology
        self._available_now = available_now
        self._threads = {
            stream.name: threading.Thread(
                target=self._supervise, args=(stream,), name=f"holdfast-{stream.name}", daemon=True
            )
            for stream in streams
        }

    def start(self) -> None:
        """Start every stream, upstream first."""
        for name in self._topology.upstream_first:
            self._threads[name].start()

    def join(self) -> None:
        """Wait until every stream that was started has ended."""
        for thread in self._threads.values():
            if thread.ident is not None:
                thread.join()

    @property
    def is_inside(self) -> bool:
        """Whether the caller is in a thread of a stream, as a callback is."""
        return any(stream.is_inside for stream in self.streams)

    @property
    def failures(self) -> list[StreamFailed]:
        """The errors of the streams that failed."""
        return [stream.failed for stream in self.streams if stream.failed is not None]

    # --- ending ---

    def request_stop(self) -> None:
        """Request that every stream ends at the end of its epoch; return at once."""
        self.stopping = True
        for stream in self.streams:
            stream.ask_to_stop()

    def stop(self) -> None:
        """End every stream at the end of its epoch, and wait for it."""
        for thread in self._stop_each():
            thread.join()
        self.join()

    def kill(self) -> None:
        """End every stream at once, without waiting for it."""
        self.stopping = True
        for stream in self.streams:
            threading.Thread(target=stream.kill, daemon=True).start()

    def kill_here(self) -> None:
        """End every stream at once, in the caller's thread: no other thread can be started."""
        self.stopping = True
        for stream in self.streams:
            stream.kill()

    def end_after(self, error: BaseException) -> None:
        """End after an error that concerns the whole pipeline; return at once.

        The streams end at the end of their epochs, or at once if the error is not an `Exception` (a crash in a test).
        """
        if isinstance(error, Exception):
            self._stop_others()
        else:
            self.kill()

    def drain(self, deadline: float) -> None:
        """Process the available input and stop every stream, upstream first, so that readers get all of it.

        Input that never pauses is processed until the deadline, a time of `time.monotonic`.
        """
        self.stopping = True
        streams = {stream.name: stream for stream in self.streams}
        for name in self._topology.upstream_first:
            finishing = threading.Thread(target=streams[name].finish_available, daemon=True)
            finishing.start()
            finishing.join(max(deadline - time.monotonic(), _LEAST_WAIT_S))
            if self._available_now:
                self._threads[name].join(max(deadline - time.monotonic(), _LEAST_WAIT_S))
            streams[name].stop()
            self._threads[name].join()

    def _supervise(self, stream: StreamRun) -> None:
        if self._available_now:  # the output that its upstream streams are still to write is part of its input
            for name in self._topology.reads[stream.name]:
                self._threads[name].join()
        stream.live()
        if stream.failed is not None:
            self._stop_others()

    def _stop_others(self) -> None:
        if not self.stopping:
            self._stop_each()

    def _stop_each(self) -> list[threading.Thread]:
        self.stopping = True
        stoppers = [threading.Thread(target=stream.stop, daemon=True) for stream in self.streams]
        for thread in stoppers:
            thread.start()
        return stoppers
