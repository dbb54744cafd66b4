"""A program as a person runs it, on the embedded session, and ends it: by SIGTERM, by Ctrl-C, by Ctrl-C twice."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jvm  # its processes start Spark
PROGRAM = """
import json, sys, time
from pathlib import Path
import holdfast as hf

folder = Path(sys.argv[1])
callbacks = hf.StreamCallbacks(on_epoch=lambda *told: print(*told, flush=True))
pipeline = hf.Pipeline("signals", root=folder / "root", callbacks=callbacks)

@pipeline.stream(sinks=[hf.FileSink(folder / "out")])
def ticks(spark):
    spark.sparkContext.setLogLevel("OFF")
    return spark.readStream.format("rate").option("rowsPerSecond", 20).load()

def reach(point):
    if point == "all prepared" and (folder / "slow").exists():
        print("slow", flush=True)
        time.sleep(600)

status = pipeline.run(reach=reach, available_now="drain" in sys.argv)
print(json.dumps(status.to_dict()))
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, str(program), str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


def test_one_signal_ends_it_at_an_epochs_end(tmp_path: Path) -> None:
    process = start(tmp_path)
    read_until(process, "ticks 2")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    status = json.loads(out.strip().splitlines()[-1])["streams"]["ticks"]
    assert status["state"] == "stopped"
    commits = sorted(int(each.name) for each in tmp_path.rglob("commits/*") if each.name.isdigit())
    assert commits[-1] + 1 == status["epoch"]  # Spark has committed the last epoch too: nothing to replay


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    process = start(tmp_path)
    read_until(process, "slow")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    heard = next((line for line in process.stderr if "a second signal stops at once" in line), None)
    assert heard is not None
    assert process.poll() is None  # it waits for the epoch's end
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)  # not for the time that the epoch takes
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
