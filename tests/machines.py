"""Machines that share nothing but the network: processes in mount and UTS namespaces of their own.

Every machine has its own hostname and, at the same path, a disk of its own that is empty at first. The programs that
are installed on this machine (Python, Java, Spark) can be read on all of them. A machine of another user reads them by
a capability, because they may lie in the home folder of the user who runs the tests; it cannot write to them.

The namespaces live as long as the process that made them, which sleeps until the machine is removed. Whatever runs on a
machine dies with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

import psutil

NOBODY = 65534
TEMPORARY, WORK = "tmp", "work"  # folders on the disk of each machine
_SET_UP = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=1777 none "$1"
hostname "$2"
mkdir -m 1777 "$1/tmp" "$1/work"
echo "127.0.0.1 localhost $2" > "$1/hosts"
mount --bind "$1/hosts" /etc/hosts
shift 2
for folder in "$@"; do mount -t tmpfs -o mode=755 none "$folder"; done
echo ready
exec sleep infinity
"""


@cache
def why_not() -> str | None:
    """Return why there are no such machines here, or `None`."""
    if os.geteuid():
        return "only root can make machines that share nothing"
    command = ["unshare", "-m", "-u", "sh", "-c", "mount -t tmpfs none /mnt && hostname elsewhere"]
    try:
        made = subprocess.run(command, capture_output=True, check=False)
        tools = [
            subprocess.run([tool, "--version"], capture_output=True, check=False) for tool in ("nsenter", "setpriv")
        ]
    except OSError as error:
        return f"no namespaces here: {error}"
    if made.returncode:
        return f"namespaces are not permitted here: {made.stderr.decode(errors='replace').strip()}"
    return "nsenter or setpriv fails here" if any(tool.returncode for tool in tools) else None


def until(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.05)


class Machine:
    """One machine. `disk` is its own; `hidden` are folders of installed software that this machine lacks."""

    def __init__(self, name: str, disk: Path, *, user: int | None = None, hidden: Sequence[Path] = ()) -> None:
        self.name = name
        self.disk = disk
        self._user = user
        disk.mkdir(exist_ok=True)
        words = ["unshare", "-m", "-u", "sh", "-c", _SET_UP, "sh", str(disk), name, *map(str, hidden)]
        self._holder = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of libc
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n", f"{name} was not made"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], output: int | IO[bytes] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program here, with nothing of this process's environment but PATH, JAVA_HOME and its locale."""
        inherited = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
        temporary = str(self.disk / TEMPORARY)
        own = {
            "HOME": str(self.disk),
            "TMPDIR": temporary,
            "SPARK_LOCAL_DIRS": temporary,
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        where = ["nsenter", "-t", str(self.holder), "-m", "-u", "--", "env", "-C", str(self.disk / WORK)]
        started = subprocess.Popen(
            [*where, *self._as_user(), *command],
            env={**inherited, **own, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if output is None else output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of libc
        )
        self._started.append(started)
        return started

    def _as_user(self) -> list[str]:
        if self._user is None:
            return []
        read_only = "-all,+dac_read_search"
        who = ["--reuid", str(self._user), "--regid", str(self._user), "--clear-groups"]
        kinds = ("--bounding-set", "--inh-caps", "--ambient-caps")
        return ["setpriv", "--pdeathsig", "KILL", *who, *(word for kind in kinds for word in (kind, read_only)), "--"]

    @property
    def holder(self) -> int:
        """The process that has the namespaces."""
        return self._holder.pid

    @property
    def root(self) -> Path:
        """The root folder of this machine, as other machines see it."""
        return Path(f"/proc/{self.holder}/root")

    def remove(self) -> None:
        """Kill everything that was started here, and give up the namespaces."""
        for process in self._started:
            kill_all(process)
        self._holder.kill()
        self._holder.communicate()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return a process and everything below it; nothing if it has ended, because another process may have its pid."""
    if process.poll() is not None:
        return []
    try:
        found = psutil.Process(process.pid)
        return [found, *found.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def send_all(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and everything below it, as to one machine: first the parents."""
    for each in family(process):
        try:
            each.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and everything below it, and wait until all are gone."""
    found = family(process)
    for each in found:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(60)
    psutil.wait_procs([each for each in found if each.pid != process.pid], timeout=60)


def command_of(process: psutil.Process) -> str:
    """Return the command line of a process; empty if it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def free_port() -> int:
    """Return a port on loopback that is free now."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def listens(port: int) -> bool:
    """Whether a server listens on a port on loopback."""
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
