"""SIGTERM and Ctrl-C while a pipeline runs: the first one stops it gracefully, the second one at once."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from holdfast.spark.handle import PipelineHandle
from holdfast.spark.pipeline_status import PipelineStatus

_log = logging.getLogger(__name__)
_LOOK_S = 0.2  # how often the main thread stops waiting, so that Python can handle signals


class StopSignals:
    """Counts the signals that have requested the end."""

    def __init__(self) -> None:
        self.signals = 0
        self.end: BaseException = KeyboardInterrupt()  # the exception that ends the program

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Count one signal; called by Python as its handler."""
        del frame
        self.signals += 1
        self.end = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


@contextlib.contextmanager
def counted_signals() -> Iterator[StopSignals]:
    """Count SIGTERM and Ctrl-C instead of ending the process; only possible in the main thread."""
    counted = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield counted
        return
    before = {each: signal.signal(each, counted) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield counted
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def run_to_end(
    handle: PipelineHandle, counted: StopSignals, watch: Callable[[PipelineHandle], object]
) -> PipelineStatus:
    """Wait until a pipeline has ended; stop it on a signal, and at once on a second one or an error of `watch`."""
    try:
        watch(handle)
        while not handle.wait(_LOOK_S):
            watch(handle)
            if counted.signals == 1 and not handle.stopping:
                _log.warning("stopping at the end of each stream's epoch; a second signal stops at once")
                threading.Thread(target=handle.stop, name="holdfast-stop", daemon=True).start()
            elif counted.signals > 1:
                raise counted.end
    except BaseException:
        handle.kill()
        raise
    return handle.await_termination()
