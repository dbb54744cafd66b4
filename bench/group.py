"""A process group: a process and everything that it starts, such as its JVM."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_ENDING_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")  # per second, in the kernel's CPU times
_REAPER = """
import os, signal, sys
sys.stdin.read()
for kill in (os.killpg, os.kill):  # it may not have created its process group yet
    try:
        kill(int(sys.argv[1]), signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Group:
    """The process group of a leader that this process has started.

    A suspended process cannot end by itself. So a third process waits for the end of this one, however it ends, and
    then kills the group.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._reaper = subprocess.Popen(
            [sys.executable, "-c", _REAPER, str(leader)], stdin=subprocess.PIPE, start_new_session=True
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._leader, number)

    def suspend(self) -> None:
        """Stop all processes until `resume`: an idle query polls for input and would disturb what is measured."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the processes continue."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill all processes. `wait` waits for their end."""
        self.signal(signal.SIGKILL)

    def is_alive(self) -> bool:
        """Whether a process of the group is alive."""
        return bool(self._members())

    def cpu_s(self) -> float:
        """Return the CPU time of the group so far, in seconds, including ended processes that their parents waited for.

        Not included: the time of a process that ended after its parent.
        """
        return sum(sum(map(int, fields[11:15])) for fields in self._members()) / _TICKS

    def wait(self) -> None:
        """Wait until all processes have been killed, so that their files can be removed. The leader was waited for."""
        end = time.monotonic() + _ENDING_S
        while self.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        self._reaper.communicate()  # it waits for the end of its input

    def _members(self) -> list[list[str]]:
        """Return the fields of /proc/PID/stat, from the state on, of the processes that have not ended."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just ended
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self._leader and fields[0] not in "ZX":
                    found.append(fields)
        return found
