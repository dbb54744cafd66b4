"""How a run is told of: a live view in a terminal, `key=value` lines, or JSON lines. All get the same events.

Rules:
- Only the main thread prints. What other threads have to tell waits in a queue until it looks.
- Lines are for grep: time in UTC first, then keys and values; a value with blanks in it is quoted, as JSON does.
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

_REFRESH = 4  # a second
_TROUBLE = (
    "checkpoint_failed",
    "restart",
    "outage",
    "outage_over",
    "quarantine",
    "failed",
)  # printed above a live view


def utc_now() -> str:
    """Return the time, in UTC, as lines begin with it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Report(ABC):
    """Tells of a run while it goes on."""

    def __init__(self) -> None:
        self.rates = Rates()

    def phase(self, text: str) -> None:  # noqa: B027 - lines have nothing to say of it
        """Say what is being done, before there is a status and while it is being stopped."""

    def sampled(self, status: RunStatus) -> None:
        """Take in how it is doing; called a few times a second."""
        self.rates.add(time.monotonic(), status)

    @abstractmethod
    def happened(self, event: RunEvent) -> None:
        """Tell of something that has happened."""


class JsonLines(Report):
    """One JSON document a line."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out = out

    def happened(self, event: RunEvent) -> None:
        """Write the event as it is."""
        self._out.write(msgspec.json.encode(event).decode() + "\n")
        self._out.flush()


class PlainLines(Report):
    """Lines of `key=value`."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out = out

    def happened(self, event: RunEvent) -> None:
        """Write a line; of a status, one a stream."""
        for line in lines(event, self.rates.by_stream()):
            self._out.write(line + "\n")
        self._out.flush()


class ResizableLive(Live):
    """A live display that erases all of its last frame, even after the terminal was made narrower.

    Most terminals then wrap each line over several rows, but rich counts lines.
    """

    def __init__(self, terminal: IO[str], **options: Any) -> None:
        super().__init__(**options)
        self._terminal = terminal
        self._lengths: list[int] = []  # of the lines that are shown

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Count the rows that the last frame takes now, before it is erased."""
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
    """Whether the terminal wraps its lines again when it is resized: xterm, screen and the Linux console do not."""
    kind = os.environ.get("TERM", "")
    screen = kind.startswith("screen") and "TMUX" not in os.environ
    return not (screen or kind == "linux" or "XTERM_VERSION" in os.environ)


class LiveView(Report):
    """A view that is drawn anew a few times a second, and trouble above it as it comes."""

    def __init__(self, terminal: IO[str], *, title: str, checkpoints: bool, log: str) -> None:
        super().__init__()
        self._terminal = terminal
        self._console = Console(file=terminal, force_terminal=True, highlight=False)
        self._guard = threading.Lock()
        self._title, self._checkpoints, self._log = title, checkpoints, log
        self._phase, self._status = "loading", None
        self._began = time.monotonic()
        self._errors = Errors()
        # stderr is the log's; what the program prints to stdout comes above the view.
        self._live = ResizableLive(
            terminal,
            console=self._console,
            get_renderable=self._drawn,
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

    def phase(self, text: str) -> None:
        """Show it in the last line."""
        self._phase = text

    def sampled(self, status: RunStatus) -> None:
        """Show it from now on."""
        with self._guard:
            super().sampled(status)
            self._errors.add(status)
            self._status, self._title = status, status.pipeline

    def happened(self, event: RunEvent) -> None:
        """Print trouble above the view, to stay; all else the view shows."""
        if event.event in _TROUBLE:
            self._console.print(headline(event), no_wrap=True, overflow="ellipsis")

    def _drawn(self) -> RenderableType:
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
    """Return an event as lines of `key=value`: one, and for `progress` one a stream."""
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
