"""`holdfast run` as people and services meet it: in a terminal, in a pipe, as JSON; signals, failures, exit codes."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.jvm  # its processes start Spark
PATIENCE_S = 300  # a busy machine takes its time to start Spark
APP = """
import sys, time
from pathlib import Path
import holdfast as hf
from pyspark.sql import functions as f

HERE = Path(__file__).parent
print("the program says", *sys.argv[1:])
backoff = hf.Backoff(first=0.1)
told = hf.StreamCallbacks(on_restart=lambda *_: (HERE / "told").touch())


class Shaky(hf.FileSink):
    bad = 0  # how many attempts of the second epoch fail
    def prepare(self, rows, key):
        if key.epoch == 2 and self.bad > 0:
            self.bad -= 1
            raise OSError("the disk was away")
        if (HERE / "slow").exists():
            (HERE / "is_slow").touch()
            time.sleep(600)
        return super().prepare(rows, key)


def doubled(value):
    return 2 * value


def ticking(name, bad=0, **options):
    pipeline = hf.Pipeline(name, root=HERE / "root", backoff=backoff, callbacks=told)
    sink = Shaky(HERE / "out" / name)
    sink.bad = bad

    @pipeline.stream(sinks=[sink], **options)
    def ticks(spark):
        print("master", spark.sparkContext.master)
        rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
        return rows.withColumn("twice", f.udf(doubled, "long")("value"))  # doubled travels to a worker

    return pipeline


ticks = ticking("ticks", bad=1)


def holed():
    pipeline = hf.Pipeline("holed", root=HERE / "root", backoff=backoff)
    (HERE / "in").mkdir(exist_ok=True)
    for number in range(4):
        (HERE / "in" / f"{number}.json").write_text('{"n": 1}')
    sink = Shaky(HERE / "out" / "holed")
    sink.bad = 2

    @pipeline.stream(sinks=[sink, hf.LogSink(HERE / "log")], quarantine_after=2)
    def numbers(spark):
        return spark.readStream.schema("n int").option("maxFilesPerTrigger", 1).json(str(HERE / "in"))

    return pipeline


class Away(hf.FileSink):
    def prepare(self, rows, key):
        if not hasattr(self, "left"):
            self.left = 3
        if self.left:
            self.left -= 1
            raise ConnectionRefusedError(111, "Connection refused")
        return super().prepare(rows, key)


def away():
    pipeline = hf.Pipeline("away", root=HERE / "root", backoff=backoff, restart=hf.RestartPolicy.never(), outage=0)
    (HERE / "in").mkdir(exist_ok=True)
    (HERE / "in" / "0.json").write_text('{"n": 1}')

    @pipeline.stream(sinks=[Away(HERE / "out" / "away")])
    def numbers(spark):
        return spark.readStream.schema("n int").json(str(HERE / "in"))

    return pipeline


def poisoned():
    pipeline = hf.Pipeline("poisoned", root=HERE / "root", backoff=backoff, restart=hf.RestartPolicy.bounded(2, 600))
    (HERE / "in").mkdir(exist_ok=True)
    (HERE / "in" / "0.json").write_text('{"n": 1}')

    @pipeline.stream(sinks=[hf.FileSink(HERE / "out" / "poisoned"), hf.LogSink(HERE / "log")])
    def numbers(spark):
        rows = spark.readStream.schema("n int").json(str(HERE / "in"))
        return rows.withColumn("n", f.udf(lambda n: n // 0, "int")("n"))

    return pipeline


def failing():
    return ticking("failing", bad=99, restart=hf.RestartPolicy.never())
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "holdfast", "run", *map(str, arguments)]


def started(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        **options,
    )


def done(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,
    )


def read_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if re.search(pattern, line):
            return seen
    raise AssertionError(("".join(seen), process.stderr.read() if process.stderr else ""))


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.1)


class Terminal:
    """A process in a terminal of a size, and all that it has shown."""

    def __init__(self, columns: int, *arguments: object) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(sys.executable, command(*arguments), {**os.environ, "TERM": "xterm"})  # noqa: S606 - ours
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._raw = b""

    def read(self, until: Callable[[str], object] = lambda _: False) -> str:
        """Read until something is shown, or to the end; return all of it."""
        end = time.monotonic() + PATIENCE_S
        while not until(self.text) and time.monotonic() < end:
            try:
                self._raw += os.read(self._fd, 65_536)
            except OSError:
                break
        return self.text

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._raw.decode(errors="replace")).replace("\r", "\n")

    def press(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def code(self) -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._fd)
        return code


def test_a_terminal_shows_it_live_and_ctrl_c_ends_it_well(app: Path) -> None:
    terminal = Terminal(80, f"{app}:ticks", "--checkpoint-every", "1s", "--", "--day", "3")
    text = terminal.read(lambda text: re.search(r"ticks +running +[3-9] .* 1\n", text) and "checkpoint 1 taken" in text)
    refused = done(f"{app}:ticks")  # Spark is not even started
    terminal.press(b"\x03")
    text = terminal.read()
    assert terminal.code() == 0, text
    assert refused.returncode == 2
    assert f"held by process {terminal.pid}" in refused.stderr

    assert "the program says --day 3" in text
    assert "Z  stream ticks is restarting (1 so far): " in text  # it stays above the view
    assert "event=restart" not in text
    assert (app.parent / "told").exists()  # the program's own callbacks are called too
    assert "OSError: the disk was away" in text
    assert "stopping: each stream finishes its epoch; press Ctrl-C again to end at once" in text
    assert re.search(r"ticks +stopped +\d+ +\d+ +1 +\d+", text)
    assert text.rstrip().splitlines()[-1].startswith("next: holdfast ls -r")
    assert "WARN" not in text and "Traceback" not in text and "MicroBatchExecution" not in text
    wide = [line for line in text.splitlines() if len(line) > 80 and "next:" not in line]
    assert wide == []


def test_json_is_a_document_a_line_and_a_hole_is_exit_1(app: Path) -> None:
    found = done(f"{app}:holed", "--once", "--checkpoint-every", "1s", "--json", "--interval", "1s")
    assert found.returncode == 1, found.stderr
    *events, last = [json.loads(line) for line in found.stdout.splitlines()]
    kinds = {each["event"] for each in events}
    assert kinds >= {"started", "restart", "quarantine", "checkpoint", "progress", "over"}
    assert [each["restarts"] for each in events if each["event"] == "restart"] == [1]
    assert last["command"] == "run" and last["exit"] == 1 and last["repository"].endswith("root/holed")
    assert last["result"]["stopped"] is False
    assert [(each["epoch"], each["kind"]) for each in last["result"]["gaps"]] == [(2, "quarantined")]
    numbers = last["result"]["status"]["streams"]["numbers"]
    epoch, progress = numbers.pop("last_epoch"), numbers.pop("last_progress")
    assert (epoch["epoch"], progress["batchId"]) == (4, 3) and epoch["seconds"] > 0
    assert numbers.pop("rows_per_s") > 0
    assert numbers.pop("processed_rows_per_s") == progress["processedRowsPerSecond"]
    assert numbers.pop("input_rows_per_s") == progress.get("inputRowsPerSecond")
    assert numbers | {"last_error": ""} == {
        "stream": "numbers",
        "state": "ended",
        "epoch": 4,
        "rows": 3,
        "restarts": 1,
        "in_doubt": None,
        "last_error": "",
        "behind": None,
        "behind_s": None,
        "watermark_ms": None,
        "unread": None,
        "outage": None,
    }
    assert "the program says" in found.stderr

    again = done(f"{app}:holed", "--once", "--json")
    [recovered] = [each for each in map(json.loads, again.stdout.splitlines()) if each.get("event") == "recovered"]
    assert (recovered["stream"], recovered["epoch"]) == ("numbers", 4)
    assert recovered["found"] == "stream 'numbers' continues after epoch 4"


def test_a_pipe_gets_lines_and_sigterm_ends_it_well(app: Path) -> None:
    env = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--master local[3] pyspark-shell", "PYTHONUNBUFFERED": "1"}
    process = started(f"{app}:ticks", "--interval", "500ms", env=env)
    seen = read_until(process, r"stream=ticks state=running epoch=[3-9]")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    lines = [*seen, *out.splitlines()]
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z event=started pipeline=ticks timeline=1 lease=1$", lines[2])
    assert lines[1] == "master local[3]\n"  # as the environment says
    assert any(re.search(r" event=restart stream=ticks restarts=1 error=\".*the disk was away", each) for each in lines)
    stopping = next(number for number, each in enumerate(lines) if each.rstrip().endswith(" event=stopping"))
    assert any(" event=checkpoint checkpoint=" in each for each in lines[stopping:])  # a last one
    assert lines[-1].startswith("next: holdfast ls -r ")


def by_spark(stderr: str) -> list[str]:
    """Return the lines that are Spark's: its errors, and frames of Java."""
    return [line for line in stderr.splitlines() if re.match(r"[\d/]+ [\d:]+ ERROR |\s+at [\w.$]+\(|Caused by: ", line)]


def shown(port: int, path: str) -> str | None:
    """Return a view of the page; `None` if no page is served."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except OSError:
        return None
    finally:
        connection.close()


def test_the_page_is_served_while_it_runs_and_ends_with_a_driver_that_is_killed(app: Path) -> None:
    pytest.importorskip("starlette", reason="the extra `page` is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = started(f"{app}:ticks", "--page", port)
    until = time.monotonic() + PATIENCE_S
    try:
        while 's-running">running' not in (shown(port, "/p/ticks") or ""):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.2)
        assert "Not found" in (shown(port, "/p/ticks/actions") or ""), "it only reads"
    finally:
        process.kill()
        out, err = process.communicate()
    assert f"page: http://127.0.0.1:{port}/" in out + err
    while shown(port, "/") is not None:
        assert time.monotonic() < until
        time.sleep(0.2)


def test_an_outage_is_reported_apart_from_restarts(app: Path) -> None:
    """The program handles outages as failures, and grants no restart; the command says otherwise."""
    found = done(f"{app}:away", "--once", "--outage", "10m", "--outage", "sink=1h")
    assert found.returncode == 0, found.stderr
    events = re.findall(r"event=(\w+)(?: stream=numbers kind=(\w+) tries=(\d))?", found.stdout)
    assert [each for each in events if each[0].startswith("outage")] == [
        ("outage", "sink", "1"),
        ("outage", "sink", "2"),
        ("outage", "sink", "3"),
        ("outage_over", "sink", "3"),
    ]
    assert "event=restart" not in found.stdout
    assert found.stderr.count("waits for an outage to end (sink") == 3
    assert by_spark(found.stderr) == []


@pytest.mark.parametrize("bad", ["soon", "sinks=1h", "sink="])
def test_a_limit_of_outages_that_makes_no_sense_is_refused(bad: str, app: Path) -> None:
    found = done(f"{app}:away", "--outage", bad)
    assert found.returncode == 2
    assert "outage" in found.stderr and "Traceback" not in found.stderr


def test_a_batch_that_fails_again_and_again_is_a_line_each_time(app: Path) -> None:
    found = done(f"{app}:poisoned", "--once")
    assert found.returncode == 2
    assert found.stderr.count("restarts in ") == 2
    assert found.stderr.count("ZeroDivisionError") <= 2 + 1 + 2  # each restart, the end, and the user's own frames
    assert by_spark(found.stderr) == []


def test_sigterm_as_soon_as_it_runs_writes_no_errors_of_sparks(app: Path) -> None:
    process = started(f"{app}:ticks", env={**os.environ, "PYTHONUNBUFFERED": "1"})
    read_until(process, "event=started")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert by_spark(err) == []


def test_sigterm_for_all_processes_is_a_graceful_stop(app: Path) -> None:
    """As `timeout` and service managers send it: the JVM gets it too, and must not end before the streams."""
    process = started(f"{app}:ticks", env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True)
    read_until(process, "event=started")
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "event=stopping" in out and "SessionLost" not in err and "Traceback" not in err
    assert by_spark(err) == []


def test_sigterm_while_spark_starts_ends_it_at_once(app: Path) -> None:
    process = started(f"{app}:ticks", env={**os.environ, "PYTHONUNBUFFERED": "1"})
    read_until(process, "the program says")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (143, "")
    assert "error: the run was ended at once" in err and "Traceback" not in err


def test_a_second_signal_ends_it_at_once(app: Path) -> None:
    slow = app.parent / "slow"
    slow.touch()
    process = started(f"{app}:ticks")
    wait_for(app.parent / "is_slow")
    process.send_signal(signal.SIGINT)
    read_until(process, "event=stopping")
    assert process.poll() is None  # it waits for the epoch's end
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)  # not for the time that the epoch takes
    assert process.returncode == 130, err
    assert "error: the run was ended at once\nnext:  run it again" in err
    assert "Traceback" not in err


def test_a_failure_shows_the_users_own_frames_and_where_to_look(app: Path) -> None:
    found = done(f"{app}:failing", "--interval", "1s")
    assert found.returncode == 2
    assert " event=failed stream=ticks error=" in found.stdout
    tail = found.stderr[found.stderr.index("look:  holdfast doubt -r") :]
    assert "holdfast log -r " in tail
    assert f'File "{app}", line' in tail
    assert "epochs.py" not in tail
    assert "error: stream 'ticks' of pipeline 'failing' failed at epoch 2" in tail
    assert tail.rstrip().splitlines()[-1].startswith("next:  fix the cause, then run the pipeline again")


def test_what_cannot_be_run_is_said_before_spark_is_started(app: Path) -> None:
    assert "the file does not exist" in done("nowhere.py:x").stderr
    assert "invalid --interval 'soon'" in done(f"{app}:ticks", "--interval", "soon").stderr
    assert "invalid --poll-every '2m'" in done(f"{app}:ticks", "--poll-every", "2m").stderr
    app.with_name("bad.py").write_text("def f():\n    return 1 / 0\nf()\n")
    found = done(app.with_name("bad.py"), "--json")
    assert found.returncode == 2
    failure = json.loads(found.stdout)["error"]
    assert failure["kind"] == "ProgramFailed"
    assert failure["trace"].count("File ") == 2
    shown = done(app.with_name("bad.py"))
    assert "ZeroDivisionError: division by zero" in shown.stderr
    assert shown.stderr.rstrip().splitlines()[-1] == "next:  fix the program, then run it again"


def test_damage_that_keeps_it_from_starting_is_a_failure_and_not_a_hole(app: Path) -> None:
    (app.parent / "root/ticks").mkdir(parents=True)
    (app.parent / "root/ticks/holdfast.json").write_text("{}")
    found = done(f"{app}:ticks", "--json")
    assert found.returncode == 2
    assert json.loads(found.stdout)["error"]["kind"] == "RecordCorrupt"


def test_no_java_is_said_in_a_line(app: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    found = done(f"{app}:ticks", env={**bare, "PATH": str(app.parent)})
    assert found.returncode == 2
    assert found.stderr.startswith(
        "error: Spark needs Java 17 or newer: no `java` is on the PATH [JavaMissing]\nnext:  install Java"
    )
    found = done(f"{app}:ticks", env={**bare, "JAVA_HOME": str(app.parent)})
    assert "which has no bin/java" in found.stderr
    old = app.parent / "java11"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "java").write_text("#!/bin/sh\n")
    (old / "bin" / "java").chmod(0o755)
    (old / "release").write_text('JAVA_VERSION="11.0.2"\n')
    found = done(f"{app}:ticks", env={**bare, "JAVA_HOME": str(old)})
    assert "is Java 11" in found.stderr


def test_no_pyspark_is_said_in_a_line(app: Path) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from holdfast.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", program, "run", f"{app}:ticks"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "pip install 'holdfast-spark[spark]'" in found.stderr


def test_a_function_that_leaves_by_sys_exit_was_ended_by_nobody(tmp_path: Path) -> None:
    program = tmp_path / "leaving.py"
    program.write_text(
        f"""import sys, holdfast as hf
pipeline = hf.Pipeline("leaving", root={str(tmp_path / "root")!r})
@pipeline.stream(sinks=hf.FileSink({str(tmp_path / "out")!r}))
def s(spark):
    sys.exit(3)
"""
    )
    process = started(str(program), "--once", "--json")
    out, _ = process.communicate(timeout=PATIENCE_S)
    failure = json.loads(out.splitlines()[-1])
    assert (process.returncode, failure["error"]["kind"]) == (2, "ProgramFailed")
    assert "sys.exit(3)" in failure["error"]["message"]


def test_a_run_whose_reader_goes_away_ends_and_does_not_say_that_all_is_well(app: Path) -> None:
    with started(f"{app}:ticks", "--interval", "500ms", "--json") as process:
        read_until(process, '"event":"started"')
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.read()
    assert process.returncode == 2
