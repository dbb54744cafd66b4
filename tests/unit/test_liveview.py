"""What `holdfast run` draws, from made-up samples: it fits, it says what it does not know, trouble is seen."""

import io
from typing import Any

import pytest
from rich.console import Console

from holdfast.cli.liveview import WINDOW_S, Moment, Rates, rate, view
from holdfast.cli.reports import lines
from holdfast.cli.runresults import RunCheckpoints, RunEvent, RunStatus, RunStream

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
    return Moment(**{"title": "orders", "phase": "", "status": of, "up_s": 72, "now_ms": NOW_MS, **facts})


BUSY = status(
    stream("orders", behind=1_234_567, watermark_ms=NOW_MS - 65_000, rows=9_876_543_210, epoch=1_234_567),
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
        for word in ("1,234,567", "123,457", "restarting", "1234568", "12s", "checkpoint 17", "18 is"):
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
    assert found[3] == "no checkpoint yet; none are taken without --checkpoint-every 30s"


def test_before_there_is_a_status_it_says_what_it_does() -> None:
    found = drawn(Moment(title="app.py", phase="starting Spark", up_s=3), 80)
    assert found == ["app.py  up 3s", "starting Spark"]


def test_where_there_is_no_room_trouble_comes_first() -> None:
    many = [stream(f"s{n}") for n in range(40)] + [stream("bad", state="failed", last_error="x")]
    found = drawn(moment(status(*many)), 80, height=14)
    assert len(found) <= 14
    assert any(line.startswith("bad") for line in found)
    assert any("37 streams more" in line for line in found)


def test_rates_are_of_the_last_seconds_alone() -> None:
    rates = Rates()
    assert rates.by_stream() == {}
    for second in range(60):
        rates.add(float(second), status(stream("s", rows=1000 + 50 * max(second - 40, 0))))
    assert rates.by_stream()["s"] == pytest.approx(50)
    rates.add(59 + 3 * WINDOW_S, status(stream("s", rows=1000 + 50 * 19)))
    assert rates.by_stream()["s"] < 50
    assert [rate(each) for each in (None, 0, 0.25, 9.94, 1234.5)] == ["-", "0", "0.2", "9.9", "1,234"]


def test_lines_are_for_grep() -> None:
    at = "2026-01-01T00:00:00.000Z"
    progress = lines(RunEvent(event="progress", at=at, status=BUSY), {"orders": 1234.5})
    assert len(progress) == 3
    assert progress[0].startswith(f"{at} stream=orders state=running epoch=1234567 rows=9876543210 rows_per_s=1234 ")
    assert "in_doubt=1234568 restarts=12" in progress[2]
    (restart,) = lines(RunEvent(event="restart", at=at, stream="s", restarts=1, error='it said "no"\nand left'), {})
    assert restart == f'{at} event=restart stream=s restarts=1 error="it said \\"no\\"\\nand left"'
