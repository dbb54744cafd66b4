"""The live view of `holdfast run`: a pure function from the status of a pipeline to the lines on the screen.

Rules:
- It fits 80 columns. There, the error of a stream has its own line; a wide terminal shows it in a column.
- A column that is empty for all streams is omitted. An unknown value is "-", never 0.
- If the terminal is too short for all streams, those with problems come first.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.runresults import RunCheckpoints, RunEvent, RunStatus, RunStream
from holdfast.cli.tables import NARROW
from holdfast.errors import readable

WINDOW_S = 10.0  # rows per second are averaged over this window
_OTHER_LINES = 6  # lines that are not streams
_COLOURS = {"running": "green", "restarting": "yellow", "waiting": "yellow", "failed": "bold red", "starting": "dim"}
_UNKNOWN = "-"
_PREFIX = re.compile(r"^QueryFailed: the Spark query of stream '[^']*' failed: ")
_GAP = "  "
_SHORTEST = 8  # minimum width of a stream's name
_ERROR = "LAST ERROR"
_ERROR_WIDTH = 50  # reserved for an error before a stream's name may be wider than its minimum
_LEFT = ("STATE", _ERROR)  # left-aligned; all other columns are numbers


@dataclass(slots=True)
class Rates:
    """Rows per second of each stream, over the last seconds."""

    _samples: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)

    def add(self, now: float, status: RunStatus) -> None:
        """Record the current row counts."""
        self._samples.append((now, {name: each.rows for name, each in status.streams.items()}))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_S:
            self._samples.popleft()

    def by_stream(self) -> dict[str, float]:
        """Return the rates; none until there are two samples that are a second apart."""
        if not self._samples:
            return {}
        (began, first), (now, last) = self._samples[0], self._samples[-1]
        if now - began < 1:
            return {}
        return {name: (rows - first.get(name, 0)) / (now - began) for name, rows in last.items()}


@dataclass(slots=True)
class Errors:
    """The last error of each stream, until it commits an epoch, and of checkpoints, until one succeeds."""

    _noted: dict[str, tuple[tuple[int, str], int]] = field(
        default_factory=dict
    )  # the error, and the epoch at that time
    _checkpoints: tuple[int, int] = (0, 0)  # counts at the last failure: failed and taken
    _status: RunStatus | None = None

    def add(self, status: RunStatus) -> None:
        """Update with the current status."""
        self._status = status
        for name, each in status.streams.items():
            what = (each.restarts, each.last_error or "")
            if each.last_error and self._noted.get(name, (None, 0))[0] != what:
                self._noted[name] = (what, each.epoch)
        if status.checkpoints.failed > self._checkpoints[0]:
            self._checkpoints = (status.checkpoints.failed, status.checkpoints.taken)

    def by_stream(self) -> dict[str, str]:
        """Return the errors of streams that have not committed an epoch since their error."""
        streams = self._status.streams if self._status else {}
        return {name: what[1] for name, (what, epoch) in self._noted.items() if not _recovered(streams[name], epoch)}

    def of_checkpoints(self) -> str | None:
        """Return why the last checkpoint failed, or `None` if one was taken since."""
        status = self._status.checkpoints if self._status else RunCheckpoints()
        failed, taken = self._checkpoints
        return status.last_error if failed and status.taken <= taken else None


def _recovered(stream: RunStream, epoch: int) -> bool:
    return stream.state not in ("restarting", "waiting", "failed") and stream.in_doubt is None and stream.epoch > epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Everything that one frame shows."""

    title: str  # the pipeline's name, or the program's while it is loaded
    phase: str  # what the run is doing while it starts or stops; empty while it runs
    status: RunStatus | None = None  # none until the streams have started
    rates: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)  # by stream, until it recovers
    checkpoint_error: str | None = None  # until a checkpoint succeeds
    up_s: float = 0.0
    now_ms: int = 0
    checkpoints: bool = True  # whether checkpoints are taken
    log: str | None = None  # path of Spark's log


def view(moment: Moment, width: int, height: int = 1000) -> RenderableType:
    """Return the frame for a terminal of this size."""
    status, parts = moment.status, [_header(moment)]
    if status is not None:
        parts += [*_streams(moment, status, width, height), _checkpoints(moment, status.checkpoints)]
    parts.append(_footer(moment, width))
    for each in parts:
        each.no_wrap, each.overflow = True, "ellipsis"
    return Group(*parts)


def _header(moment: Moment) -> Text:
    status = moment.status
    facts = f"  timeline {status.timeline}  lease {status.lease}" if status else ""
    return Text.assemble((moment.title, "bold"), facts, f"  up {formatting.span(moment.up_s)}")


def _footer(moment: Moment, width: int) -> Text:
    if moment.phase:
        return Text(moment.phase, "yellow")
    text = "press Ctrl-C to stop; each stream finishes its epoch"
    return Text(f"{text}; Spark's log: {moment.log}" if moment.log and width >= NARROW else text, "dim")


# --- streams ---------------------------------------------------------------------------------------------------------


def _streams(moment: Moment, status: RunStatus, width: int, height: int) -> list[Text]:
    wide, streams = width >= NARROW, list(status.streams.values())
    fit = max(height - _OTHER_LINES, 1)
    lines = len(streams) if wide else len(streams) + len(moment.errors)
    shown = streams if lines <= fit else sorted(streams, key=lambda each: not _has_problem(each))[: max(fit // 2, 1)]
    columns = _columns(moment, shown, wide)
    errors = {each.stream: _line(error) for each in shown if (error := moment.errors.get(each.stream))}
    if wide and errors:
        columns[_ERROR] = [Text(errors.get(each.stream, ""), "red") for each in shown]
    drawn = _layout([each.stream for each in shown], columns, width)
    if not wide:
        drawn += [Text.assemble((f"  {name}: ", "dim"), (error, "red")) for name, error in errors.items()]
    if len(shown) < len(streams):
        drawn.append(
            Text(f"  and {len(streams) - len(shown)} more streams; make the terminal taller to see them", "dim")
        )
    return drawn


def _layout(names: list[str], columns: Mapping[str, list[Text]], width: int) -> list[Text]:
    """Return a heading and one line per stream. Long names are shortened; errors get the remaining width."""
    widths = {name: max(len(name), *(each.cell_len for each in cells)) for name, cells in columns.items()}
    taken = sum(min(each, _ERROR_WIDTH if name == _ERROR else each) + len(_GAP) for name, each in widths.items())
    room = max(min(max(map(len, names)), width - taken), _SHORTEST)
    lines = [Text("STREAM".ljust(room), "dim"), *(Text(_shortened(each, room).ljust(room)) for each in names)]
    for name, cells in columns.items():
        for line, cell in zip(lines, [Text(name, "dim"), *cells], strict=True):
            blanks = " " * (widths[name] - cell.cell_len)
            line.append(_GAP)
            line.append_text(cell + blanks if name in _LEFT else Text(blanks) + cell)
    for line in lines:
        line.rstrip()
    return lines


def _shortened(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _columns(moment: Moment, streams: list[RunStream], wide: bool) -> dict[str, list[Text]]:
    number = formatting.number if wide else short
    columns = {
        "STATE": [Text(each.state, _COLOURS.get(each.state, "")) for each in streams],
        "EPOCH": [Text(str(each.epoch)) for each in streams],
        "ROWS": [Text(number(each.rows)) for each in streams],
        "ROWS/S": [Text(rate(moment.rates.get(each.stream), number)) for each in streams],
        "LAG": [Text(lag(each, moment.now_ms, number)) for each in streams],
    }
    problems = any(each.in_doubt or each.restarts for each in streams)  # their columns need the width
    if any(each.last_epoch for each in streams) and (wide or not problems):
        columns["TOOK"] = [Text(took(each)) for each in streams]
    if wide and any(each.behind is not None and each.watermark_ms for each in streams):
        columns["EVENT TIME"] = [Text(_event_time(each, moment.now_ms)) for each in streams]
    if any(each.in_doubt for each in streams):
        columns["IN DOUBT"] = [Text(str(each.in_doubt) if each.in_doubt else "", "bold red") for each in streams]
    if any(each.restarts for each in streams):
        columns["RESTARTS"] = [
            Text(formatting.number(each.restarts) if each.restarts else "", "yellow") for each in streams
        ]
    return columns


def _has_problem(stream: RunStream) -> bool:
    return stream.state in ("restarting", "waiting", "failed") or stream.in_doubt is not None


def short(count: int) -> str:
    """Format a number in at most nine characters."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if count >= 10 * size:
            return f"{count / size:.1f}{unit}"
    return formatting.number(count) if count < 10**7 else f"{count / 10**6:.0f}M"


def rate(rows_per_s: float | None, number: Callable[[int], str] = formatting.number) -> str:
    """Format rows per second; small rates have one decimal."""
    if rows_per_s is None:
        return _UNKNOWN
    return f"{rows_per_s:.1f}" if 0 < rows_per_s < 10 else number(round(rows_per_s))


def lag(stream: RunStream, now_ms: int, number: Callable[[int], str] = formatting.number) -> str:
    """Return the lag of a stream: in events or records, in files, or as the age of its watermark; "-" if unknown."""
    if stream.behind is not None:
        return number(stream.behind)
    if stream.unread is not None:
        return f"{number(stream.unread.files)} file{'' if stream.unread.files == 1 else 's'}"
    return _event_time(stream, now_ms)


def took(stream: RunStream) -> str:
    """Return the duration of a stream's last epoch."""
    if stream.last_epoch is None:
        return _UNKNOWN
    seconds = stream.last_epoch.seconds
    return f"{seconds:.1f}s" if seconds < 10 else formatting.span(seconds)


def _event_time(stream: RunStream, now_ms: int) -> str:
    return formatting.span((now_ms - stream.watermark_ms) / 1000) if stream.watermark_ms else _UNKNOWN


def _line(text: str) -> str:
    """Return an error as one line, without the prefix that only names the stream."""
    line = " ".join(_PREFIX.sub("", readable(text)).split())
    return line.rpartition(" ... ")[2] if line.startswith("PythonException") else line  # the cause is at the end


def headline(event: RunEvent) -> Text:
    """Return an event as one readable line. If the terminal cuts it off, the log has the full text."""
    if event.event == "recovered":
        return Text(formatting.harmless(f"{event.at[11:19]}Z  {event.found}"), "green")
    next_try = formatting.span(event.next_try_s or 0)
    what = {
        "restart": f"is restarting ({formatting.number(event.restarts or 0)} so far)",
        "outage": f"is waiting for an outage to end ({event.kind}), next try in {next_try}",
        "outage_over": f"continues: the outage ({event.kind}) ended after {formatting.span(event.waited_s or 0)}",
        "failed": "failed",
        "quarantine": f"skipped epoch {event.epoch}",
        "checkpoint_failed": "checkpoint failed",
    }.get(event.event, event.event)
    subject = f"stream {event.stream} " if event.stream else ""
    why = f": {_line(event.error)}" if event.error else ""
    line = f"{event.at[11:19]}Z  {subject}{what}{why}"
    return Text(formatting.harmless(line), "green" if event.event == "outage_over" else "red")


# --- checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoints(moment: Moment, status: RunCheckpoints) -> Text:
    if status.last is None:
        text = Text("no checkpoints yet")
    else:
        age = formatting.span((moment.now_ms - (status.last_at_ms or 0)) / 1000)
        text = Text.assemble("checkpoint ", (str(status.last), "bold"), f" taken {age} ago")
    if moment.checkpoints:
        text.append(f"; {formatting.number(status.taken)} in this run, ")
        text.append(f"{formatting.number(status.failed)} failed", "red" if status.failed else "")
    else:
        text.append("; turned off (--no-checkpoints)")
    if status.under_way is not None:
        text.append(f"; {status.under_way} is in progress", "yellow")
    if moment.checkpoint_error:
        text.append(f"; {_line(moment.checkpoint_error)}", "red")
    return text
