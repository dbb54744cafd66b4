"""The lock between processes: refused at once with the holder's pid, free the moment the holder is gone."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import Locked, StorageFailed
from holdfast.repository import LocalRepository
from holdfast.repository.oslock import OsLock
from support import refused_in_a_child

HOLDER = """
import sys, time
from pathlib import Path
from holdfast.repository.oslock import OsLock
OsLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


PROBE = """
import sys
from pathlib import Path
from holdfast.repository.oslock import OsLock
OsLock.acquire(Path(sys.argv[1]))
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_another_process_is_named_by_its_pid_and_its_death_frees_the_lock(
    holder: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    for _ in range(3):
        with pytest.raises(Locked) as caught:
            OsLock.acquire(tmp_path / "lock", "the pipeline")
        assert caught.value.pid == holder.pid
        assert str(holder.pid) in str(caught.value)
        assert "the pipeline" in str(caught.value)
    os.kill(holder.pid, signal.SIGSTOP)  # a paused holder is a holder
    with pytest.raises(Locked):
        OsLock.acquire(tmp_path / "lock")
    holder.kill()
    holder.wait()
    OsLock.acquire(tmp_path / "lock").release()


def test_asking_twice_in_one_process_is_refused_and_does_not_drop_the_lock(tmp_path: Path) -> None:
    """POSIX would grant the second one, and closing it would drop the first."""
    path = tmp_path / "lock"
    lock = OsLock.acquire(path)
    (tmp_path / "alias").symlink_to(path)
    for name in (path, tmp_path / "alias"):
        with pytest.raises(Locked) as caught:
            OsLock.acquire(name)
        assert caught.value.pid == os.getpid()
    refused = subprocess.run([sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"held by process {os.getpid()}" in refused.stderr
    lock.release()
    subprocess.run([sys.executable, "-c", PROBE, str(path)], check=True)


def test_reading_or_copying_the_lock_file_does_not_drop_the_lock(tmp_path: Path) -> None:
    """As a back-up inside the process does; a lock of the older kind would be gone."""
    path = tmp_path / "lock"
    with OsLock.acquire(path):
        path.read_bytes()
        shutil.copy(path, tmp_path / "copy")
        with path.open("r+b"):
            pass
        refused = subprocess.run([sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, check=False)
        assert "Locked" in refused.stderr


def test_a_fork_while_another_thread_locks_does_not_hang_the_child(tmp_path: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            OsLock.acquire(tmp_path / "churn").release()

    thread = threading.Thread(target=churn, daemon=True)
    thread.start()
    for number in range(20):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                OsLock.acquire(tmp_path / f"child-{number}").release()
                code = 0
            finally:
                os._exit(code)  # whatever was raised, the child must not go on with the tests
        deadline = time.monotonic() + 100
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail("the child hangs")
            time.sleep(0.001)
        assert os.waitstatus_to_exitcode(ended[1]) == 0, f"child {number} could not take a free lock"
    stop.set()
    thread.join()


def test_a_child_that_lives_on_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    program = """
import os, sys, time
from pathlib import Path
from holdfast.repository.oslock import OsLock
lock = OsLock.acquire(Path(sys.argv[1]))
if os.fork() == 0:
    time.sleep(30)
    os._exit(0)
print("held", flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "lock")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "held\n"
            parent.kill()
            parent.wait()
            OsLock.acquire(tmp_path / "lock").release()
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_forked_child_does_not_hold_what_its_parent_holds(tmp_path: Path) -> None:
    with OsLock.acquire(tmp_path / "lock") as lock:

        def take() -> None:
            assert not lock.held
            with pytest.raises(Locked) as caught:
                OsLock.acquire(tmp_path / "lock")
            assert caught.value.pid == os.getppid()
            raise caught.value

        assert refused_in_a_child(take, Locked)


def test_a_lock_file_that_was_replaced_is_another_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = OsLock.acquire(path)
    path.unlink()
    other = OsLock.acquire(path)
    lock.release()
    with pytest.raises(Locked):
        OsLock.acquire(path)
    other.release()


def test_a_file_replaced_between_open_and_lock_is_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    real, opened = os.open, []

    def swap(name: Path, *args: int) -> int:
        descriptor = real(name, *args)
        opened.append(name)
        if len(opened) == 1:
            path.unlink()
            path.touch()
        return descriptor

    monkeypatch.setattr(os, "open", swap)
    with OsLock.acquire(path):
        assert len(opened) > 1
        with pytest.raises(Locked):
            OsLock.acquire(path)


@pytest.mark.parametrize("left", [b"", b"0", b"999999999", b"9" * 20, b"rubbish"])
def test_a_pid_that_is_not_the_holders_is_not_told(tmp_path: Path, left: bytes) -> None:
    """As between the moment of locking and the moment of writing, where a killed holder has left its own."""
    path = tmp_path / "lock"
    with OsLock.acquire(path):
        path.write_bytes(left)
        with pytest.raises(Locked, match="held by another process") as caught:
            OsLock.acquire(path)
        assert caught.value.pid == 0


def test_a_child_forked_at_the_worst_moment_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Locks come and go in one thread while another forks children that live on."""
    stop = threading.Event()
    refused: list[Locked] = []

    def churn() -> None:
        while not stop.is_set():
            try:
                OsLock.acquire(tmp_path / "lock").release()
            except Locked as locked:
                refused.append(locked)

    thread = threading.Thread(target=churn, daemon=True)
    thread.start()
    children = []
    for _ in range(60):
        child = os.fork()
        if child == 0:
            time.sleep(0.2)
            os._exit(0)
        children.append(child)
        time.sleep(0.005)
    stop.set()
    thread.join()
    for child in children:
        os.waitpid(child, 0)
    assert refused == []


def test_a_lock_where_no_file_can_be_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed):
        OsLock.acquire(tmp_path / "missing" / "lock")
    LocalRepository(tmp_path).lock("deep/er/lock").release()
