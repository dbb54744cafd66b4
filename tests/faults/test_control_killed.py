"""Requests from other processes to a real driver; askers and drivers are killed: none is carried out late or twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds
import pytest

from holdfast.control import running_driver
from holdfast.control.protocol import RequestState
from holdfast.control.records import FOLDER, REQUEST_NAME, read_request, read_state
from holdfast.repository import Checkpoints, History, LocalRepository
from support import eventually, rounds

pytestmark = pytest.mark.jvm  # its processes start Spark
PATIENCE_S = 300
DRIVER = Path(__file__).with_name("controlled.py")

Requests = dict[tuple[int, str], tuple[str, RequestState, str | None]]
"""By lease and id: the kind of a request, its state, and the error in its answer."""


class Controlled:
    """A driver in a process of its own, and commands that talk to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = LocalRepository(folder / "root" / "ticks")
        self.driver = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen([sys.executable, str(DRIVER), str(self.folder)], stdout=log, stderr=log)

    def kill_driver(self) -> None:
        """Kill the driver and its JVM."""
        for each in [*psutil.Process(self.driver.pid).children(recursive=True), psutil.Process(self.driver.pid)]:
            each.kill()
        self.driver.wait(60)

    def ask(self, *words: str) -> subprocess.Popen[str]:
        where = ["-r", self.repository.where, "--json"]
        command = [sys.executable, "-m", "holdfast", *words, *where]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert out, (err, (self.folder / "driver.log").read_text()[-2000:])
        found: dict[str, Any] = json.loads(out)
        return found

    def listens(self) -> bool:
        """Whether a driver listens: its lease is the newest, and it has opened its channel and not closed it."""
        driver = running_driver(self.repository) if (self.repository.root / "lease").exists() else None
        assert self.driver.poll() is None, (self.folder / "driver.log").read_text()[-2000:]
        if driver is None:
            return False
        names = self.repository.list(f"{FOLDER}/{driver.number:08}")
        return "open.json" in names and "closed.json" not in names

    def requests(self) -> Requests:
        """Return every request."""
        found = {}
        for folder in self.repository.list(FOLDER):
            lease = int(folder.rstrip("/"))
            for name in self.repository.list(f"{FOLDER}/{folder}"):
                if match := REQUEST_NAME.fullmatch(name):
                    state, answer = read_state(self.repository, lease, match[1])
                    kind = read_request(self.repository, lease, match[1]).kind
                    found[lease, match[1]] = (kind, state, answer.error if answer else None)
        return found


def later(chance: random.Random, process: subprocess.Popen[str]) -> None:
    """Kill an asker at some moment: while it starts, before or after the driver takes its request, or not at all."""
    time.sleep(chance.uniform(0.2, 1.5))
    process.kill()
    process.communicate()


class Round:
    """A savepoint, a cancel and two stops, asked by processes of their own; some of them, or the driver, are killed."""

    def __init__(self, made: Controlled, number: int, chance: random.Random, done: Counter[str]) -> None:
        self._made = made
        self._number = number
        self._chance = chance
        self._done = done
        self._driver_killed = False

    def play(self) -> None:
        """Ask, kill, and check each answer."""
        name = f"s{self._number}"
        eventually(self._made.listens, PATIENCE_S)
        saving, cancelling = self._made.ask("savepoint", name), self._made.ask("cancel")
        self._maybe_kill_driver(4)
        if self._number % 3 == 1:
            later(self._chance, saving)
        else:
            self._check_savepoint(name, self._answer("savepoint", saving))
        if self._number % 4 == 3:
            later(self._chance, cancelling)
        else:
            answer = self._answer("cancel", cancelling)
            assert answer["exit"] in (0, 1) or self._is_lost(answer), answer
            if "result" in answer:
                self._done[f"cancelled: {answer['result']['cancelled']}"] += 1
        eventually(self._made.listens, PATIENCE_S)  # a stop that finds no driver proves nothing
        stopping = [self._made.ask("stop", "--why", name) for _ in range(2)]
        self._maybe_kill_driver(2)
        if self._number % 2:
            later(self._chance, stopping.pop())
        for process in stopping:
            answer = self._answer("stop", process)
            assert answer["exit"] == 0, answer

    def _answer(self, what: str, process: subprocess.Popen[str]) -> dict[str, Any]:
        answer = self._made.answer(process)
        self._done[f"{what} {answer['exit']}"] += 1
        return answer

    def _check_savepoint(self, name: str, answer: dict[str, Any]) -> None:
        if answer["exit"] == 0:
            assert Checkpoints(self._made.repository).read(name).request == answer["result"]["request"]
        else:
            assert "it was cancelled" in answer["error"]["message"] or self._is_lost(answer), answer

    def _is_lost(self, answer: dict[str, Any]) -> bool:
        """Whether an asker reports that its driver was killed after it took the request, or that none has followed."""
        return self._driver_killed and answer["error"]["kind"] in ("RequestLost", "NotRunning")

    def _maybe_kill_driver(self, turn: int) -> None:
        """Kill the driver in every fifth round, and start another one."""
        if self._number % 5 == turn:
            time.sleep(self._chance.uniform(0.2, 2.0))
            self._made.kill_driver()
            self._made.driver = self._made.start()
            self._driver_killed = True
            self._done["drivers killed"] += 1


def test_no_request_is_carried_out_late_or_twice_though_askers_and_drivers_are_killed(tmp_path: Path) -> None:
    chance = random.Random(7)
    made = Controlled(tmp_path)
    done: Counter[str] = Counter()
    try:
        for number in range(rounds(5, 50)):
            Round(made, number, chance, done).play()
        eventually(made.listens, PATIENCE_S)
        assert made.answer(made.ask("stop", "--drain"))["exit"] == 0
    finally:
        made.kill_driver()
    print(dict(done))
    require_consistent(made)
    if rounds(0, 1):  # of 50 cancels, some find a checkpoint under way, and some do not
        assert done["cancelled: True"] and done["cancelled: False"]


def require_consistent(made: Controlled) -> None:
    """Compare requests, history, savepoints and rows."""
    requests = made.requests()
    entries = [each for each in History(made.repository).entries() if "request" in each.facts]
    carried_out = Counter(each.facts["request"] for each in entries)
    assert carried_out and max(carried_out.values()) == 1, carried_out
    for each in entries:  # by the driver that it was addressed to, after that driver took it
        _, state, _ = requests[each.facts["lease"], each.facts["request"]]
        assert state in (RequestState.TAKEN, RequestState.ANSWERED), each
    closed = {ident for (_, ident), (_, state, _) in requests.items() if state is RequestState.WITHDRAWN}
    taken = {ident for (_, ident), (_, state, _) in requests.items() if state.name in ("TAKEN", "ANSWERED")}
    manifests = [Checkpoints(made.repository).read(each.name) for each in Checkpoints(made.repository).standing()]
    made_for = [each.request for each in manifests if each.request is not None]
    assert len(made_for) == len(set(made_for)) and set(made_for) <= taken
    assert all((each.lease, each.request) in requests for each in manifests if each.request is not None)
    require_asked(made, requests)
    assert not (closed - taken) & (set(made_for) | set(carried_out))
    values = sorted(ds.dataset(made.folder / "out", format="parquet").to_table(["value"])["value"].to_pylist())
    assert values == list(range(len(values))) and values


def require_asked(made: Controlled, requests: Requests) -> None:
    """Every driver that was stopped, and every cancelled savepoint, had a request of its own that it took."""
    taken = {(lease, kind) for (lease, _), (kind, state, _) in requests.items() if state.name in ("TAKEN", "ANSWERED")}
    stopped = [int(line) for line in (made.folder / "runs").read_text().splitlines()]
    assert stopped and all((lease, "stop") in taken for lease in stopped), stopped
    for each in History(made.repository).entries():
        if each.what == "savepoint" and "cancelled" in each.facts.get("failed", ""):
            assert (each.facts["lease"], "cancel") in taken, each
