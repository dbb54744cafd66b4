"""A rewind that is killed within a sink, at one of its points; then the next one, and a driver of the old timeline."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from handstaged import HandStaged
from holdfast.errors import StagedGone, TimelineEnded

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")
BASE, END = (1, 2), (1, 4)


def taken_back(contract: HandStaged, folder: Path) -> None:
    contract.make(folder).take_back(contract.owner, BASE, 2)


def put_back(contract: HandStaged, folder: Path) -> None:
    contract.make(folder).put_back(contract.owner, END, 3, 2)


def filled(contract: HandStaged, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Commit four epochs, and stage a fifth that a driver of the old timeline tries to commit later."""
    sink = contract._filled(None, folder)
    key = contract._key(5)
    handle = contract._stage(None, sink, key, 5).handle
    sink.close()
    return key, handle


def seen(contract: HandStaged, folder: Path) -> list[int]:
    return contract._seen(None, contract.make(folder))


def killed_at(point: str, contract: HandStaged, folder: Path, act: str) -> bool:
    """Run an act in a process of its own that kills itself at a point; return whether it reached the point."""
    context = SPAWN if contract.is_spawned else FORK
    child = context.Process(target=_die_at, args=(point, contract, folder, act))
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def _die_at(point: str, contract: HandStaged, folder: Path, act: str) -> None:
    def die(at: str) -> None:
        if at == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sink = contract._open(None, folder, reach=die)
    if act == "take back":
        sink.take_back(contract.owner, BASE, 2)
    else:
        sink.put_back(contract.owner, END, 3, 2)


def check_take_back(contract: HandStaged, folder: Path, point: str) -> None:
    """Whatever it leaves, a reader sees whole epochs, and a driver of the old timeline adds nothing."""
    key, handle = filled(contract, folder)
    killed_at(point, contract, folder, "take back")
    assert seen(contract, folder) in ([1, 2, 3, 4], [1, 2, 3], [1, 2])
    taken_back(contract, folder)
    assert seen(contract, folder) == [1, 2]
    with pytest.raises(TimelineEnded):
        contract.make(folder).commit(key, handle)
    contract._epoch_of(None, folder, (2, 3), 13)
    assert seen(contract, folder) == [1, 2, 13]


def check_old_commit(contract: HandStaged, folder: Path, point: str) -> None:
    """The epoch of the old timeline is refused, or taken back too."""
    key, handle = filled(contract, folder)
    killed_at(point, contract, folder, "take back")
    try:
        contract.make(folder).commit(key, handle)
    except (TimelineEnded, StagedGone):  # before the stamp is there, its transactions may have been rolled back
        assert 5 not in seen(contract, folder)
    taken_back(contract, folder)
    assert seen(contract, folder) == [1, 2]


def check_put_back(contract: HandStaged, folder: Path, point: str) -> None:
    filled(contract, folder)
    taken_back(contract, folder)
    killed_at(point, contract, folder, "put back")
    assert seen(contract, folder) in ([1, 2], [1, 2, 3], [1, 2, 3, 4])
    put_back(contract, folder)
    assert seen(contract, folder) == [1, 2, 3, 4]
    contract._epoch_of(None, folder, (3, 5), 15)
    assert seen(contract, folder) == [1, 2, 3, 4, 15]


CHECKS = {
    "a take-back is finished by the next": check_take_back,
    "a commit of the old timeline follows": check_old_commit,
    "an undo is finished by the next": check_put_back,
}
