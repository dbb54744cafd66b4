"""What the machines of the tests do to processes. `faults/test_cluster.py` starts real ones."""

from __future__ import annotations

import os
import subprocess

from machines import family


class Ended(subprocess.Popen[bytes]):
    """A process that has ended; since then, another one has got its pid."""

    def __init__(self) -> None:
        self.pid, self.returncode = os.getpid(), 0

    def __del__(self) -> None:
        """Nothing is left to close."""


def test_a_process_that_has_the_pid_of_one_that_ended_is_not_killed() -> None:
    assert family(Ended()) == []
