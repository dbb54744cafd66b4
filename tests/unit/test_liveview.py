"""What `holdfast run` draws, from made-up samples: it fits, it says what it does not know, trouble is seen."""

import fcntl
import io
import os
import pty
import re
import struct
import termios
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType

from holdfast.cli.liveview import WINDOW_S, Errors, Moment, Rates, headline, rate, view
from holdfast.cli.reports import ResizableLive, fit, lines
from holdfast.cli.runresults import RunCheckpoints, RunEpoch, RunEvent, RunStatus, RunStream, RunUnread

NOW_MS = 1_700_000_100_000
ERROR = "SinkFailed: sink 'out' could not commit: the server\nhas gone away " + "and away " * 40


def stream(name: str, **facts: Any) -> RunStream:
    return RunStream(**{"stream": name, "state": "running", "epoch": 12, "rows": 123_456, "restarts": 0, **facts})


def status(*streams: RunStream, **checkpoints: Any) -> RunStatus:
    return RunStatus(
        pipeline="orders",
        uid="u",
        timeline=1,
        lease=3,
        streams={each.stream: each for each in streams},
        checkpoints=RunCheckpoints(**checkpoints),
    )


def drawn(moment: Moment, width: int, height: int = 24) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(view(moment, width, height))
    return out.getvalue().splitlines()


def moment(of: RunStatus, **facts: Any) -> Moment:
    errors = Errors()
    errors.add(of)
    known = {"errors": errors.by_stream(), "checkpoint_error": errors.of_checkpoints()}
    return Moment(**{"title": "orders", "phase": "", "status": of, "up_s": 72, "now_ms": NOW_MS, **known, **facts})


EPOCH = RunEpoch(epoch=12, rows=3, ended_at_ms=NOW_MS, seconds=3725.4, phases={"prepare": 1.0})
BUSY = status(
    stream(
        "orders", behind=1_234_567, watermark_ms=NOW_MS - 65_000, rows=9_876_543_210, epoch=1_234_567, last_epoch=EPOCH
    ),
    stream("a_stream_with_quite_a_long_name_of_its_own", watermark_ms=NOW_MS - 12_000),
    stream("totals", state="restarting", restarts=12, in_doubt=1_234_568, last_error=ERROR),
    last=17,
    last_at_ms=NOW_MS - 4_000,
    taken=12,
    failed=1,
    under_way=18,
    last_error=ERROR,
)


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_every_line_fits_and_trouble_is_seen(width: int) -> None:
    found = drawn(moment(BUSY, rates={"orders": 123_456.7}), width)
    assert max(map(len, found)) <= width
    assert found[0].startswith("orders  timeline 1  lease 3")
    assert any("SinkFailed: sink" in line for line in found) or width == 40
    if width >= 80:
        text = "\n".join(found)
        for word in ("1,234,567", "123,457", "restarting", "1234568", "12s", "checkpoint 17", "18 is in progress"):
            assert word in text, word


def test_a_wide_terminal_has_errors_in_a_column_and_a_narrow_one_in_lines_of_their_own() -> None:
    wide, narrow = drawn(moment(BUSY), 160), drawn(moment(BUSY), 80)
    assert "LAST ERROR" in wide[1] and "EVENT TIME" in wide[1] and "RESTARTS" in wide[1]
    assert "LAST ERROR" not in narrow[1]
    assert any(line.startswith("  totals: SinkFailed") for line in narrow)
    assert len(narrow) == len(wide) + 1


def test_what_is_not_known_is_a_dash_and_what_says_nothing_is_left_out() -> None:
    found = drawn(moment(status(stream("orders")), checkpoints=False), 80)
    assert found[1].split() == ["STREAM", "STATE", "EPOCH", "ROWS", "ROWS/S", "LAG"]
    assert found[2].split() == ["orders", "running", "12", "123,456", "-", "-"]
    assert found[3] == "no checkpoints yet; turned off (--no-checkpoints)"


@pytest.mark.parametrize("width", [80, 160])
def test_unread_files_are_a_lag_and_the_last_epoch_has_its_duration(width: int) -> None:
    quick = msgspec.structs.replace(EPOCH, seconds=0.26)
    streams = [
        stream("a_stream_with_quite_a_long_name_of_its_own", last_epoch=EPOCH, epoch=1_234_567, rows=9_876_543_210),
        stream("files", unread=RunUnread(files=1_234_567, bytes=5), last_epoch=quick),
        stream("one", unread=RunUnread(files=1, bytes=5)),
    ]
    found = drawn(moment(status(*streams), rates={"files": 123_456.7}), width)
    assert max(map(len, found)) <= width
    assert found[1].split()[-2:] == ["LAG", "TOOK"]
    assert [line.split()[-3:] for line in found[3:5]] == [["1,234,567", "files", "0.3s"], ["1", "file", "-"]]
    assert found[2].endswith("  1h 2m")


def test_before_there_is_a_status_it_says_what_it_does() -> None:
    found = drawn(Moment(title="app.py", phase="starting Spark", up_s=3), 80)
    assert found == ["app.py  up 3s", "starting Spark"]


def test_where_there_is_no_room_trouble_comes_first() -> None:
    many = [stream(f"s{n}") for n in range(40)] + [stream("bad", state="failed", last_error="x")]
    found = drawn(moment(status(*many)), 80, height=14)
    assert len(found) <= 14
    assert any(line.startswith("bad") for line in found)
    assert any("37 more streams" in line for line in found)


def test_rates_are_of_the_last_seconds_alone() -> None:
    rates = Rates()
    assert rates.by_stream() == {}
    for second in range(60):
        rates.add(float(second), status(stream("s", rows=1000 + 50 * max(second - 40, 0))))
    assert rates.by_stream()["s"] == pytest.approx(50)
    rates.add(59 + 3 * WINDOW_S, status(stream("s", rows=1000 + 50 * 19)))
    assert rates.by_stream()["s"] < 50
    assert [rate(each) for each in (None, 0, 0.25, 9.94, 1234.5)] == ["-", "0", "0.2", "9.9", "1,234"]


def test_an_error_is_shown_until_the_stream_has_gone_on() -> None:
    errors = Errors()

    def after(**facts: Any) -> list[str]:
        errors.add(status(stream("orders", **facts), stream("totals")))
        return list(errors.by_stream())

    assert after(epoch=4) == []
    assert after(epoch=4, state="restarting", restarts=1, last_error="x") == ["orders"]
    assert after(epoch=4, restarts=1, last_error="x") == ["orders"]  # runs, and has done nothing yet
    assert after(epoch=5, in_doubt=5, restarts=1, last_error="x") == ["orders"]
    assert after(epoch=5, restarts=1, last_error="x") == []
    assert after(epoch=9, restarts=1, last_error="x") == []
    assert after(epoch=9, state="restarting", restarts=2, last_error="x") == ["orders"]  # the same again
    assert after(epoch=10, restarts=2, last_error="x") == []
    assert after(epoch=10, state="failed", restarts=2, last_error="y") == ["orders"]
    found = drawn(moment(status(stream("orders", last_error="x", restarts=1)), errors={}), 160)
    assert "LAST ERROR" not in found[1]


def test_why_a_checkpoint_failed_is_shown_until_the_next_one_is_taken() -> None:
    errors = Errors()
    for taken, failed, shown in ((1, 0, None), (1, 1, "no"), (1, 1, "no"), (2, 1, None), (2, 2, "no")):
        errors.add(status(stream("orders"), taken=taken, failed=failed, last_error="no" if failed else None))
        assert errors.of_checkpoints() == shown


@pytest.mark.parametrize("width", [60, 200])
@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            {"event": "restart", "stream": "s", "restarts": 2},
            "10:20:30Z  stream s is restarting (2 so far): OSError: gone",
        ),
        ({"event": "failed", "stream": "s"}, "10:20:30Z  stream s failed: OSError: gone"),
        (
            {"event": "quarantine", "stream": "s", "epoch": 1234},
            "10:20:30Z  stream s skipped epoch 1234: OSError: gone",
        ),
        ({"event": "checkpoint_failed"}, "10:20:30Z  checkpoint failed: OSError: gone"),
        (
            {"event": "outage", "stream": "s", "kind": "sink", "tries": 3, "waited_s": 9.0, "next_try_s": 4.0},
            "10:20:30Z  stream s is waiting for an outage to end (sink), next try in 4s: OSError: gone",
        ),
    ],
)
def test_trouble_is_one_readable_line_above_the_view(event: dict[str, Any], text: str, width: int) -> None:
    line = headline(RunEvent(at="2026-01-01T10:20:30.123Z", error="OSError: gone\nand " + "away " * 60, **event))
    out = io.StringIO()
    Console(file=out, width=width).print(line, no_wrap=True, overflow="ellipsis")
    [shown] = out.getvalue().splitlines()
    assert shown.startswith(text[: width - 1])
    assert len(shown) <= width


def test_the_end_of_an_outage_is_one_line_without_an_error() -> None:
    facts = {"event": "outage_over", "stream": "s", "kind": "sink", "tries": 3, "waited_s": 61.0}
    shown = headline(RunEvent(at="2026-01-01T10:20:30.123Z", **facts)).plain
    assert shown == "10:20:30Z  stream s continues: the outage (sink) ended after 1m 1s"


def test_what_a_start_found_is_one_line() -> None:
    facts = {"event": "recovered", "stream": "s", "epoch": 4, "found": "stream 's' continues after epoch 4"}
    shown = headline(RunEvent(at="2026-01-01T10:20:30.123Z", **facts)).plain
    assert shown == "10:20:30Z  stream 's' continues after epoch 4"


class Reflowing:
    """A terminal that breaks its lines anew when it is resized, as most do. `rows` is what a person sees."""

    def __init__(self, width: int, *lines: str) -> None:
        self.width = width
        self.rows = [(line, False) for line in lines] + [("", False)]  # text, and whether it goes on in the next row
        self.row, self.column = len(self.rows) - 1, 0

    def feed(self, data: str) -> None:
        for found in re.finditer(r"\x1b\[\??([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)", data):
            count, code, move, text = found.groups()
            if code == "A":
                self.row = max(self.row - int(count or 1), 0)
            elif code == "K":
                self.rows[self.row] = ("", False)
            elif move == "\r":
                self.column = 0
            elif move == "\n":
                self.row, self.column = self.row + 1, 0
                self.rows += [("", False)] * (self.row == len(self.rows))
            elif text:
                before = self.rows[self.row][0]
                self.rows[self.row] = (before[: self.column].ljust(self.column) + text, False)
                self.column += len(text)
                assert self.column <= self.width

    def text(self) -> list[str]:
        return "\n".join(text for text, _ in self.rows).rstrip("\n").split("\n")

    def resize(self, width: int) -> None:
        joined, whole = [""], []
        for number, (text, goes_on) in enumerate(self.rows):
            joined[-1] += text
            if number == self.row:
                at = len(joined) - 1
            if not goes_on:
                joined.append("")
        self.width, self.rows = width, []
        for number, line in enumerate(joined[:-1]):
            whole = [line[begin : begin + width] for begin in range(0, len(line), width)] or [""]
            self.rows += [(text, text is not whole[-1]) for text in whole]
            if number == at:
                self.row = len(self.rows) - 1


@pytest.mark.parametrize("widths", [(120, 60), (120, 40, 61), (80, 50, 120, 40), (60, 120), (100, 99, 98, 33)])
def test_nothing_of_the_view_stays_when_the_terminal_is_resized(
    widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XTERM_VERSION", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    master, slave = pty.openpty()
    busy = moment(BUSY, log="/var/log/holdfast-run.log")

    class Terminal(io.StringIO):
        def fileno(self) -> int:
            return slave  # its size is the terminal's

    def resize(width: int) -> None:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))

    resize(widths[0])
    terminal = Terminal()
    console = Console(file=terminal, force_terminal=True, highlight=False)

    def draw() -> RenderableType:
        fit(console, terminal)
        return view(busy, console.width)

    live = ResizableLive(terminal, console=console, get_renderable=draw, auto_refresh=False, transient=True)
    shown, above = Reflowing(widths[0], "$ holdfast run app.py"), ["$ holdfast run app.py"]
    live.start(refresh=True)
    for number, width in enumerate(widths):
        resize(width)
        shown.feed(written(terminal))
        shown.resize(width)
        if number % 2:
            above.append(f"trouble {number}")
            console.print(above[-1])  # before it is drawn again
        live.refresh()
        shown.feed(written(terminal))
        assert shown.text() == [*above, *drawn(busy, width, 40)]
    live.stop()
    shown.feed(written(terminal))
    assert shown.text() == above
    os.close(slave)
    os.close(master)


def written(terminal: io.StringIO) -> str:
    """Take what was written since it was last asked for."""
    text = terminal.getvalue()
    terminal.seek(0)
    terminal.truncate()
    return text


def test_lines_are_for_grep() -> None:
    at = "2026-01-01T00:00:00.000Z"
    progress = lines(RunEvent(event="progress", at=at, status=BUSY), {"orders": 1234.5})
    assert len(progress) == 3
    assert progress[0].startswith(f"{at} stream=orders state=running epoch=1234567 rows=9876543210 rows_per_s=1234 ")
    assert "in_doubt=1234568 restarts=12" in progress[2]
    (restart,) = lines(RunEvent(event="restart", at=at, stream="s", restarts=1, error='it said "no"\nand left'), {})
    assert restart == f'{at} event=restart stream=s restarts=1 error="it said \\"no\\"\\nand left"'
