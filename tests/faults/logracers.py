"""What the processes do that append to one log on a store, at the same moment or until they are killed."""

from __future__ import annotations

import hashlib
import os
import signal
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from holdfast.eventlog import EventLog, NewEvent
from holdfast.eventlog.appending import StagedSegment
from holdfast.eventlog.segment import to_parquet, to_table
from holdfast.repository import ObjectRepository


def staged(log: EventLog, name: str, count: int) -> list[StagedSegment]:
    """Write one object as a task does."""
    data = to_parquet(to_table([NewEvent(name, f"{number}".encode()) for number in range(count)], log.schema))
    path = f"segments/s/{name.replace(':', '.')}/{os.getpid()}.parquet"
    ObjectRepository(str(log.path)).put_new(path, data)
    return [StagedSegment(Path(path), count, len(data), hashlib.sha256(data).digest())]


def race_to_append(url: str, name: int, rounds: int, barrier: Barrier, results: Any) -> None:
    """Append once a round at the same moment as the others; every other round, all append under the same key."""
    log = EventLog.open(url)
    outcome = []
    with log.writer() as writer:
        for number in range(rounds):
            key = f"{number}" if number % 2 else f"{number} by {name}"
            segments = staged(log, f"{number}:{name}", 1 + number % 3)
            barrier.wait(120)
            found = writer.adopt(segments, key)
            outcome.append((key, found.start, found.stop))
    results.put((name, outcome))


def killed_within(url: str, call: str, after: bool, key: str) -> None:
    """Append under a key, and end by SIGKILL before or after a request of the repository."""
    real = getattr(ObjectRepository, call)

    def dying(self: ObjectRepository, *arguments: Any) -> Any:
        if not after:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    log = EventLog.open(url)
    with log.writer() as writer:
        if call == "put_new":
            setattr(ObjectRepository, call, dying)
            writer.append([NewEvent(key, b"")])
        segments = staged(log, key, 2)
        setattr(ObjectRepository, call, dying)
        writer.adopt(segments, key)


def killed_in_a_rewind(root: str, folder: Path, point: str, act: str) -> None:
    """Take epochs back, or put them back, and end by SIGKILL at a point."""
    from handstaged import StoreLog

    def die(at: str) -> None:
        if at == point:
            os.kill(os.getpid(), signal.SIGKILL)

    contract = StoreLog()
    contract.root = root
    sink = contract._open(None, folder, reach=die)
    if act == "take back":
        sink.take_back(contract.owner, (1, 2), 2)
    elif act == "put back":
        sink.put_back(contract.owner, (1, 4), 3, 2)
    else:
        sink.commit(contract._key(5), contract._stage(None, sink, contract._key(5), 5).handle)
