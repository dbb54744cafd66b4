"""How a run is reported: a live view in a terminal, `key=value` lines, or JSON lines. All get the same events.

Rules:
- Only the main thread prints. Events of other threads wait in a queue until the main thread reads it.
- Lines are made for grep: first the time in UTC, then keys and values. A value with spaces is quoted as in JSON.
"""

from __future__ import annotations

import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import IO, Any

import msgspec
from rich.console import Console, ConsoleDimensions, ConsoleRenderable, RenderableType
from rich.live import Live
from rich.segment import Segment

from holdfast.cli.liveview import Errors, Moment, Rates, headline, rate, view
from holdfast.cli.runresults import RunEvent, RunStatus
from holdfast.errors import readable

_REFRESH = 4  # times per second
# The events that are printed above a live view.
_LASTING = ("recovered", "checkpoint_failed", "restart", "outage", "outage_over", "quarantine", "failed")


def utc_now() -> str:
    """Return the current time in UTC, as it begins each line."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RunReporter(ABC):
    """Reports a run while it is in progress."""

    def __init__(self) -> None:
        self.rates = Rates()

    def show_phase(self, text: str) -> None:  # noqa: B027 - only a live view shows phases
        """Show what the run is doing while it starts or stops."""

    def sample(self, status: RunStatus) -> None:
        """Record the current status; called a few times a second."""
        self.rates.add(time.monotonic(), status)

    @abstractmethod
    def report(self, event: RunEvent) -> None:
        """Report an event."""


class JsonLines(RunReporter):
    """One JSON document per line."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out = out

    def report(self, event: RunEvent) -> None:
        """Write the event as JSON."""
        self._out.write(msgspec.json.encode(event).decode() + "\n")
        self._out.flush()


class PlainLines(RunReporter):
    """Lines of `key=value`."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out = out

    def report(self, event: RunEvent) -> None:
        """Write one line; for `progress`, one per stream."""
        for line in lines(event, self.rates.by_stream()):
            self._out.write(line + "\n")
        self._out.flush()


class ResizableLive(Live):
    """A live display that erases all of its last frame, even if the terminal has become narrower.

    Most terminals then wrap each line over several rows, but rich counts lines.
    """

    def __init__(self, terminal: IO[str], **options: Any) -> None:
        super().__init__(**options)
        self._terminal = terminal
        self._lengths: list[int] = []  # of the lines on the screen

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Count the rows that the last frame occupies now, before it is erased."""
        fit(self.console, self._terminal)
        width, height = self.console.size
        if self._lengths and _reflows():
            rows = sum(max(1, -(-length // width)) for length in self._lengths)
            self._live_render._shape = (width, rows)
        frame = self.console.render_lines(self._live_render.renderable, self.console.options, pad=False)
        self._lengths = [Segment.get_line_length(line) for line in frame[:height]]
        return super().process_renderables(renderables)


def fit(console: Console, terminal: IO[str]) -> None:
    """Set a console to the current size of its terminal."""
    size = os.get_terminal_size(terminal.fileno())
    console.size = ConsoleDimensions(size.columns or 80, size.lines or 25)


def _reflows() -> bool:
    """Whether the terminal rewraps its lines when it is resized: xterm, screen and the Linux console do not."""
    kind = os.environ.get("TERM", "")
    screen = kind.startswith("screen") and "TMUX" not in os.environ
    return not (screen or kind == "linux" or "XTERM_VERSION" in os.environ)


class LiveView(RunReporter):
    """A view that is redrawn a few times a second. Some events are printed above it, where they stay."""

    def __init__(self, terminal: IO[str], *, title: str, checkpoints: bool, log: str) -> None:
        super().__init__()
        self._terminal = terminal
        self._console = Console(file=terminal, force_terminal=True, highlight=False)
        self._guard = threading.Lock()
        self._title, self._checkpoints, self._log = title, checkpoints, log
        self._phase, self._status = "loading", None
        self._began = time.monotonic()
        self._errors = Errors()
        # stderr goes to the log; what the program prints to stdout appears above the view.
        self._live = ResizableLive(
            terminal,
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=_REFRESH,
            transient=True,
            redirect_stderr=False,
        )

    _status: RunStatus | None

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show_phase(self, text: str) -> None:
        """Show the phase in the last line."""
        self._phase = text

    def sample(self, status: RunStatus) -> None:
        """Show this status from now on."""
        with self._guard:
            super().sample(status)
            self._errors.add(status)
            self._status, self._title = status, status.pipeline

    def report(self, event: RunEvent) -> None:
        """Print problems above the view. The view itself shows all other events."""
        if event.event in _LASTING:
            self._console.print(headline(event), no_wrap=True, overflow="ellipsis")

    def _draw(self) -> RenderableType:
        fit(self._console, self._terminal)
        with self._guard:
            moment = Moment(
                title=self._title,
                phase=self._phase,
                status=self._status,
                rates=self.rates.by_stream(),
                errors=self._errors.by_stream(),
                checkpoint_error=self._errors.of_checkpoints(),
                up_s=time.monotonic() - self._began,
                now_ms=int(time.time() * 1000),
                checkpoints=self._checkpoints,
                log=self._log,
            )
        return view(moment, self._console.width, self._console.height)


def lines(event: RunEvent, rates: Mapping[str, float]) -> list[str]:
    """Return an event as `key=value` lines: one line; for `progress`, one per stream."""
    if event.event != "progress" or event.status is None:
        facts = {name: value for name, value in msgspec.to_builtins(event).items() if name not in ("at", "status")}
        if event.status is not None:
            facts |= {each: getattr(event.status, each) for each in ("pipeline", "timeline", "lease")}
        return [f"{event.at} {_pairs(facts)}"]
    return [
        f"{event.at} "
        + _pairs(
            {
                "stream": each.stream,
                "state": each.state,
                "epoch": each.epoch,
                "rows": each.rows,
                "rows_per_s": rate(rates.get(each.stream)).replace(",", ""),
                "behind": each.behind,
                "behind_s": each.behind_s,
                "unread_files": each.unread.files if each.unread else None,
                "epoch_s": round(each.last_epoch.seconds, 3) if each.last_epoch else None,
                "watermark_age_s": _age_s(each.watermark_ms),
                "in_doubt": each.in_doubt,
                "restarts": each.restarts,
                "checkpoint": event.status.checkpoints.last,
            }
        )
        for each in event.status.streams.values()
    ]


def _age_s(timestamp_ms: int | None) -> int | None:
    return None if timestamp_ms is None else round(time.time() - timestamp_ms / 1000)


def _pairs(facts: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in facts.items())


def _value(value: object) -> str:
    if value is None:
        return "-"
    text = readable(str(value))
    plain = text.isprintable() and not any(each in text for each in ' "=') and text
    return text if plain else json.dumps(text, ensure_ascii=False)
