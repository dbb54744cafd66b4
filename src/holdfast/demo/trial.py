"""One job under test: its worker is started, killed at random times, and restarted until it is done.

Rules:
- The time of a kill depends only on the visible outputs, by the same rule for every job: a few milliseconds after a
  given number of new outputs has appeared. At that time, a kill harms a job that is not protected.
- A kill sends SIGKILL to all processes of the worker's session, and to no others: Python, Java, Spark's Python workers.
- The next run starts only when all of them have ended: a surviving process could continue to write for seconds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.demo.place import DemoFolder
from holdfast.errors import DemoFailed

PLACES = ("Parquet", "SQLite")
MOST_SIGHTINGS = 2  # with more, a run takes longer and its kill proves no more
_LONGEST_DELAY_S = 0.06
_TAIL_LINES = 12
_GONE_S = 10.0


@dataclass(frozen=True, slots=True)
class Strike:
    """When to kill: `delay` seconds after this run's new output number `sightings` was seen in `place`."""

    place: str
    sightings: int
    delay: float


def draw(seed: int, kills: int, most: int = MOST_SIGHTINGS) -> tuple[Strike, ...]:
    """Choose the times of the kills at random, each at one of the first `most` sightings.

    The places alternate, so that none is left out by chance.
    """
    chance = random.Random(f"strikes {seed}")
    return tuple(
        Strike(PLACES[number % len(PLACES)], chance.randint(1, most), chance.uniform(0.0, _LONGEST_DELAY_S))
        for number in range(kills)
    )


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill that was carried out, and the number of rows that were visible then."""

    job: str
    number: int
    pid: int
    processes: int
    place: str
    delay_ms: int
    parquet: int
    sqlite: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return asdict(self)


class Trial:
    """A job, its worker, and the remaining kills. The worker runs the job's own program, or another version of it."""

    def __init__(self, job: str, place: DemoFolder, strikes: tuple[Strike, ...], program: str | None = None) -> None:
        self.job = job
        self.program = program or job
        self.outputs = place.outputs(job)
        self.kills: list[Kill] = []
        self.state = "starting"
        self.life = 0
        self._place = place
        self._strikes = strikes
        self._process: subprocess.Popen[bytes] | None = None
        self._seen = 0
        self._stamp: object = None
        self._sightings = 0
        self._kill_at: float | None = None

    @property
    def done(self) -> bool:
        """Whether the worker has finished."""
        return self.state == "done"

    @property
    def log(self) -> Path:
        """The log file of the current run."""
        return self._place.log(self.program, self.life)

    def start(self) -> None:
        """Start the worker."""
        self.life += 1
        self.state = "starting" if self.life == 1 else "recovering"
        self._stamp = None
        self._seen, self._sightings, self._kill_at = self._shown() or 0, 0, None
        command = [sys.executable, "-m", "holdfast.demo.worker", self.program, str(self._place.folder)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # the worker ends when this pipe is closed
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={"SPARK_LOCAL_IP": "127.0.0.1"} | os.environ,
            )

    def step(self) -> Kill | None:
        """Check the worker once: kill it if it is time, and return the kill; raise if the worker has failed."""
        assert self._process is not None, "start it first"  # noqa: S101
        code = self._process.poll()
        if code is not None:
            self.end()
            if code:
                raise DemoFailed(job=self.program, code=code, log=str(self.log), tail=_tail(self.log))
            self.state = "done"
            return None
        self._watch_outputs()
        if self._kill_at is None or time.monotonic() < self._kill_at:
            return None
        return self._kill(self._process.pid)

    def _watch_outputs(self) -> None:
        """Count new outputs, and set the time of the kill when there are enough."""
        shown = self._shown()
        if shown is None or shown <= self._seen:
            return
        self._seen = shown
        self._sightings += 1
        self.state = "running"
        if (strike := self._strike()) and self._sightings == strike.sightings:
            self._kill_at = time.monotonic() + strike.delay

    def _strike(self) -> Strike | None:
        return self._strikes[len(self.kills)] if len(self.kills) < len(self._strikes) else None

    def _shown(self) -> int | None:
        strike = self._strike()
        if strike is not None and strike.place == "Parquet":
            return self.outputs.parquet_shown()
        if self.outputs.stamp() == self._stamp:
            return self._seen  # opening the database a hundred times a second would slow the jobs down
        stamp = self.outputs.stamp()
        shown = self.outputs.sqlite_shown()
        self._stamp = None if shown is None else stamp
        return shown

    def _kill(self, pid: int) -> Kill:
        strike = self._strike()
        assert strike is not None, "the time of the kill was set"  # noqa: S101
        processes = self.end()
        kill = Kill(
            self.job,
            len(self.kills) + 1,
            pid,
            processes,
            strike.place,
            round(strike.delay * 1000),
            self.outputs.parquet_count(),
            self.outputs.sqlite_shown(),
        )
        self.kills.append(kill)
        return kill

    def end(self) -> int:
        """Kill all processes of the worker, wait until they have ended, and return how many were killed."""
        process, self._process = self._process, None
        if process is None:
            return 0
        killed: set[int] = set()
        deadline = time.monotonic() + _GONE_S
        # A dead worker that is not reaped yet keeps its pid, so no other process can have it.
        while (alive := set(_alive(process.pid))) and time.monotonic() < deadline:
            for pid in alive:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                except ProcessLookupError:
                    pass
            time.sleep(0.005)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return len(killed)


def _alive(session: int) -> Iterator[int]:
    """Yield the pids of the live processes of a session."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, of, *_ = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue  # it has just ended
        if int(of) == session and state not in "ZX":
            yield int(entry.name)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:]) or "(its log is empty)"
