"""A cursor worker as a real process, killed at random moments: nothing skipped, the position never goes back."""

import random
import subprocess
import sys
import time
from pathlib import Path

from holdfast.eventlog import NewEvent
from holdfast.eventlog._cursor_slot import read_cursor
from holdfast.repository import LocalRepository
from support import eventually, new_log, rounds

ROUNDS = rounds(8, 50)
PROGRAM = """
import os, sys, time
import holdfast as hf

log = hf.eventlog.EventLog.open(sys.argv[1])
repository = hf.repository.LocalRepository(sys.argv[2])
out = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
last = int(sys.argv[4])

def handle(batch, log, witness):
    for event in batch:
        time.sleep(0.0005)
        os.write(out, f"{event.sequence} {event.payload.decode()}\\n".encode())
    return hf.eventlog.Action.STOP if batch[-1].sequence >= last else hf.eventlog.Action.CONTINUE

os.write(out, b"start\\n")
region = hf.eventlog.Region(entity="order")
worker = hf.eventlog.CursorWorker(region, handle, log=log, repository=repository, cursor="orders", batch=7)
worker.start().join()
"""


def batch_of(first: int, count: int) -> list[NewEvent]:
    """Every third event belongs to somebody else."""
    return [
        NewEvent("other" if number % 3 == 2 else f"order:{number}", str(number).encode())
        for number in range(first, first + count)
    ]


def test_kills_at_random_moments(tmp_path: Path) -> None:
    rng = random.Random(20260101)
    log = new_log(tmp_path / "log", batch_of(0, 300))
    repository = LocalRepository(tmp_path / "repository")
    out = tmp_path / "handled"
    out.touch()
    command = [sys.executable, "-c", PROGRAM, str(log.path), str(repository.root), str(out)]
    position, struck, appended = -1, 0, 300
    with log.writer() as writer:
        for _ in range(ROUNDS):
            before = out.stat().st_size
            process = subprocess.Popen([*command, str(10**9)], stderr=subprocess.PIPE, text=True)
            writer.append(batch_of(appended, 90))
            appended += 90
            while out.stat().st_size < before + 7 and process.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.random() * 0.03)
            assert process.poll() is None, process.stderr and process.stderr.read()
            process.kill()
            process.communicate()
            record = read_cursor(repository, "orders")
            saved = record.position if record else -1
            struck += saved < writer.tail - 3
            assert saved >= position, "the position went back"
            position = saved
        writer.append(batch_of(appended, 4))
        appended += 4
    last = max(number for number in range(appended) if number % 3 != 2)
    end = subprocess.run([*command, str(last)], capture_output=True, text=True, check=False, timeout=300)
    assert end.returncode == 0, end.stderr

    runs = [
        [tuple(map(int, line.split())) for line in run.splitlines()] for run in out.read_text().split("start\n")[1:]
    ]
    assert len(runs) == ROUNDS + 1
    mine = [number for number in range(appended) if number % 3 != 2]
    done = -1
    for run in runs:
        sequences = [sequence for sequence, _ in run]
        assert [payload for _, payload in run] == sequences
        assert sequences == mine[mine.index(sequences[0]) :][: len(sequences)] if sequences else True, "out of order"
        if sequences:
            assert sequences[0] <= next(number for number in [*mine, 10**9] if number > done), "events were skipped"
            done = max(done, sequences[-1])
    assert {sequence for run in runs for sequence, _ in run} == set(mine), "an event was never handled"
    repeated = sum(map(len, runs)) - len(mine)
    print(f"{ROUNDS} kills, {struck} with work left, {len(mine)} events, {repeated} handled again")
    assert struck >= ROUNDS // 4, "the kills came too late to prove anything"


def test_the_second_process_on_a_cursor_is_refused_with_the_firsts_pid(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", batch_of(0, 3))
    command = [sys.executable, "-c", PROGRAM, str(log.path), str(tmp_path / "r"), str(tmp_path / "out"), str(10**9)]
    with subprocess.Popen(command) as first:
        try:
            eventually((tmp_path / "r/cursors/orders.ckpt").exists)
            second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        finally:
            first.kill()
    assert second.returncode == 1
    assert "Locked" in second.stderr
    assert f"process {first.pid}" in second.stderr


def test_a_full_disk_is_a_typed_error_and_nothing_is_half_done(tmp_path: Path) -> None:
    """The limit on file sizes makes the operating system refuse a write in its middle, as a full disk does."""
    program = """
import resource, signal, sys
from pathlib import Path
import holdfast as hf
from holdfast.errors import StorageFailed
root = Path(sys.argv[1])
repository = hf.repository.LocalRepository(root / "r")
repository.put("small", b"old")
log = hf.eventlog.EventLog.create(root / "log")
writer = log.writer()
writer.append([hf.eventlog.NewEvent("a", b"a")])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
import os
refused = 0
for act in (
    lambda: repository.put("small", os.urandom(100_000)),
    lambda: repository.put_if_absent("slot", os.urandom(100_000)),
    lambda: writer.append([hf.eventlog.NewEvent("b", os.urandom(100_000))]),
    lambda: hf.repository.FileBlocks.create(root / "blocks", 1000),
):
    try:
        act()
    except StorageFailed as error:
        assert "large" in str(error) or "space" in str(error), error
        refused += 1
assert repository.read("small") == b"old"
assert repository.put_if_absent("slot", b"fits").won
assert writer.append([hf.eventlog.NewEvent("c", b"c")]) == range(1, 2)
assert [event.entity for event in log.read()] == ["a", "c"]
assert not (root / "blocks").exists()
assert not list(root.rglob(".tmp-*"))
print("refused", refused)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused 4\n"
