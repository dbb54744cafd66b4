"""Checkpoints are taken, pruned and read by processes of their own, which are killed: nothing that is needed goes."""

import multiprocessing
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the processes import their part by name

from prunerace import KEPT, ask, hold, read, read_all

from fabricated import Fabricated
from holdfast import Retention
from holdfast.control import request_prune
from holdfast.pruning import plan_prune
from holdfast.repository import LocalRepository

KILLS = ["hold", "ask", "hold", "hold", "ask", "hold"]
SIGN_OF_LIFE = {"hold": "took", "ask": "pruned"}


def wait_for_two_of(what: str, notes: Path) -> None:
    """Wait until something has happened twice more: the one to be killed is at work."""

    def count() -> int:
        return notes.read_text().count(f"{what} ") if notes.exists() else 0

    before, until = count(), time.monotonic() + 200
    while count() < before + 2:
        assert time.monotonic() < until, f"nothing was {what} for 200 s"
        time.sleep(0.005)


def test_no_kill_at_any_moment_takes_away_what_a_manifest_needs(tmp_path: Path) -> None:
    root, notes = str(tmp_path / "root"), str(tmp_path / "notes")
    Fabricated(LocalRepository(root)).take("first")
    context = multiprocessing.get_context("spawn")
    roles: dict[str, Any] = {"hold": (hold, root, notes, 7), "ask": (ask, root, notes), "read": (read, root, notes)}

    def start(role: str) -> Any:
        target, *args = roles[role]
        process = context.Process(target=target, args=args)
        process.start()
        return process

    running = {role: start(role) for role in roles}
    try:
        for role in KILLS:
            wait_for_two_of(SIGN_OF_LIFE[role], Path(notes))
            time.sleep(random.uniform(0, 0.1))
            running[role].kill()
            running[role].join(10)
            running[role] = start(role)
            assert running["read"].is_alive(), Path(notes).read_text()[-500:]
    finally:
        for process in running.values():
            process.kill()
            process.join(10)
    found = [line.split(" ", 1) for line in Path(notes).read_text().splitlines()]
    assert [what for kind, what in found if kind == "broken"] == []
    repository = LocalRepository(root)
    assert read_all(repository) >= 1
    request_prune(repository, Retention(last=KEPT), timeout_s=5)
    assert 1 <= read_all(repository) <= KEPT
    assert plan_prune(repository, Retention(last=KEPT)).empty
    dropped = sum(int(count) for kind, count in found if kind == "pruned")
    print(f"{dropped} dropped, {sum(kind == 'read' for kind, _ in found)} readings")
    assert dropped > 0
