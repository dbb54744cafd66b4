"""`holdfast top` in a real terminal, and the verdicts of `holdfast verify --record`."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.repository.verdicts import Verdicts
from webfixture import Sample

HOLDFAST = [sys.executable, "-m", "holdfast"]


def test_top_draws_the_status_until_ctrl_c(tmp_path: Path) -> None:
    Sample(tmp_path).healthy()
    failed = Sample(tmp_path, "failing").healthy(3, 1)
    failed.event("failed", "no disk", stream="orders", next="free some space", error="StorageFailed", ago_s=0.5)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*HOLDFAST, "top", "-r", str(tmp_path), "--every", "0.2s"], stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    output, until = b"", time.monotonic() + 60
    while b"free some space" not in output and time.monotonic() < until:
        if select.select([master], [], [], 0.2)[0]:
            output += os.read(master, 65536)
    process.send_signal(signal.SIGINT)
    while select.select([master], [], [], 1)[0]:
        try:
            if not os.read(master, 65536):
                break
        except OSError:
            break
    assert process.wait(30) == 1, "an error was shown"
    os.close(master)
    assert b"orders" in output
    assert b"no disk" in output


def test_a_verdict_is_recorded_only_on_request(tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy()

    def verify(*options: str) -> dict[str, object]:
        done = subprocess.run(
            [*HOLDFAST, "verify", "3", "-r", str(sample.folder), "--json", *options], capture_output=True, check=False
        )
        found: dict[str, object] = json.loads(done.stdout)
        return found

    verify()
    assert Verdicts(sample.repository).shown() == {}
    verify("--record")
    assert Verdicts(sample.repository).shown()["3"].ok
    for path in (sample.folder / "objects").rglob("*/*"):
        if path.is_file() and not path.read_bytes().startswith(b"{"):  # not a file list
            path.write_bytes(b"x" * path.stat().st_size)
    assert verify("--record")["exit"] == 1
    found = Verdicts(sample.repository).shown()["3"]
    assert not found.ok
    assert found.grade == "digests"
    assert found.text
