"""What a real run leaves for the page, and the page that is served with it."""

import http.client
import re
import shutil
import time
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

import holdfast as hf
from holdfast.errors import BadValue
from holdfast.repository.activity import Activity
from holdfast.web.reading.epochs import epochs_of
from holdfast.web.reading.runs import runs_of
from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import RunState
from sparkfixture import session


def pipeline(folder: Path) -> hf.Pipeline:
    (folder / "in").mkdir(exist_ok=True)
    made = hf.Pipeline("orders", folder / "root")
    made.stream(
        lambda spark: spark.readStream.schema("n long").json(str(folder / "in")),
        name="orders",
        sinks=[hf.FileSink(folder / "out"), hf.SqliteSink(folder / "out.db", table="orders")],
    )
    return made


def give(folder: Path, number: int) -> None:
    (folder / "in" / f"{number}.json").write_text('{"n": 1}\n{"n": 2}\n')


def get(address: str) -> tuple[int, str]:
    host, port = re.findall(r"http://([\d.]+):(\d+)/", address)[0]
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request("GET", "/p/orders")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_real_run_records_its_phases_and_is_shown_on_its_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("starlette", reason="the extra `page` is not installed")
    made = pipeline(tmp_path)
    with made.start(session(), page=0, checkpoint_every=None) as handle:
        for number in (1, 2, 3):
            give(tmp_path, number)
            while handle.status().streams["orders"].epoch < number:
                time.sleep(0.02)
        manifest = handle.checkpoint()
        until = time.monotonic() + 60
        while not (found := re.findall(r"page: (http://\S+)", caplog.text)) and time.monotonic() < until:
            time.sleep(0.1)
        address = found[0]
        status, text = get(address)
        assert status == 200
        assert 's-running">running' in text
        assert "orders" in handle._repr_html_()
        running = status_of(made.repository)
        assert (running.state, running.streams[0].epoch) == (RunState.RUNNING, 3)
        assert set(running.streams[0].sinks) == {"files", "sqlite"} or len(running.streams[0].sinks) == 2
    with pytest.raises(OSError):  # noqa: PT011 - refused, or reset
        get(address)
    assert manifest.times is not None
    assert 0 < manifest.times.streams["orders"].acknowledged <= manifest.times.streams["orders"].held
    assert manifest.times.seconds < 60
    epochs = epochs_of(made.repository, "orders").epochs
    assert [each.epoch for each in epochs] == [3, 2, 1]
    assert set(epochs[1].phases) == {"open", "prepare", "harden", "decide", "commit"}
    assert len(epochs[1].prepare) == len(epochs[1].commit) == 2
    line = status_of(made.repository)
    assert (line.state, line.problems) == (RunState.STOPPED, [])
    (run,) = runs_of(made.repository).runs
    assert (run.end, [each.stream for each in run.recoveries]) == ("stopped gracefully", ["orders"])
    (period,) = Activity(made.repository).periods()[0]
    assert (period.streams["orders"].epochs, period.streams["orders"].rows, period.checkpoints) == (3, 6, 1)
    assert "not running here" in made._repr_html_()


def test_a_start_that_fails_is_recorded_with_its_next_step(tmp_path: Path) -> None:
    made = pipeline(tmp_path)
    give(tmp_path, 1)
    made.run(session(), available_now=True)
    other = hf.Pipeline("orders", tmp_path / "root")
    other.stream(
        lambda spark: spark.readStream.schema("n long").json(str(tmp_path / "in")),
        name="orders",
        sinks=[hf.FileSink(tmp_path / "out")],
    )
    with pytest.raises(hf.errors.SinksChanged):
        other.start(session())
    line = status_of(other.repository)
    assert line.state is RunState.FAILED
    assert line.problems[0].severity == "error"
    assert "sinks" in line.problems[0].what
    assert line.problems[0].next


def test_a_function_that_fails_is_recorded_as_such_and_not_as_a_kill(tmp_path: Path) -> None:
    made = pipeline(tmp_path)
    give(tmp_path, 1)
    made.run(session(), available_now=True)
    shutil.rmtree(tmp_path / "in")
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        made.start(session())
    line = status_of(made.repository)
    assert line.state is RunState.FAILED
    assert [each.what.count(str(tmp_path / "in")) for each in line.problems] == [1]
    assert "holdfast run" in line.problems[0].next


@pytest.mark.parametrize("port", [-1, 70000, "8321", True])
def test_a_port_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, port: object) -> None:
    with pytest.raises(BadValue, match="page"):
        pipeline(tmp_path).start(session(), page=port)
    assert not (tmp_path / "root").exists()
