"""The live view of a running pipeline in a notebook cell, or as lines of text."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from holdfast import _figures as figures
from holdfast.spark.pipeline_status import PipelineStatus


class Watchable(Protocol):
    """A running pipeline."""

    def status(self) -> PipelineStatus:
        """Return its status."""

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most for this time; return whether it has ended."""


def watch(handle: Watchable, *, every: float, seconds: float | None, out: TextIO | None = None) -> None:
    """Show the status until the pipeline has ended, the time is over, or Ctrl-C ends the view."""
    show = _cell() or _lines(out or sys.stdout)
    until = None if seconds is None else time.monotonic() + seconds
    try:
        while True:
            show(handle.status())
            left = every if until is None else min(every, until - time.monotonic())
            if left <= 0 or handle.wait(left):
                break
        show(handle.status())
    except KeyboardInterrupt:
        return


def _cell() -> Callable[[PipelineStatus], None] | None:
    """Return a function that shows the status in the cell of a notebook; `None` if this is not one."""
    running = sys.modules.get("IPython")  # a notebook has imported it
    shell: Any = running.get_ipython() if running is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    shown = importlib.import_module("IPython.display").display("begins", display_id=True)
    update: Callable[[PipelineStatus], None] = shown.update
    return update


def _lines(out: TextIO) -> Callable[[PipelineStatus], None]:
    """Return a function that prints a line for the status if it has changed."""
    last = ""

    def show(status: PipelineStatus) -> None:
        nonlocal last
        text = _line(status)
        if text != last:
            print(text, file=out, flush=True)
            last = text

    return show


def _line(status: PipelineStatus) -> str:
    streams = [
        f"{each.stream} {each.state} at epoch {each.epoch}, {figures.counted(each.rows, 'row')}"
        + (f", {figures.number(each.behind)} behind" if each.behind else "")
        + (f", {figures.counted(each.restarts, 'restart')}: {each.last_error}" if each.restarts else "")
        for each in status.streams.values()
    ]
    last = status.checkpoints.last
    return f"{status.pipeline}: {'; '.join(streams)}; checkpoint {'none yet' if last is None else last}"
