"""What several tests share: damage to bytes, and events by the dozen."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.eventlog import EventLog, NewEvent
from holdfast.eventlog.segment import to_parquet, to_table
from holdfast.eventlog.writer import StagedSegment


def rounds(few: int, many: int) -> int:
    """How often to repeat what depends on chance: `make soak` sets HOLDFAST_SOAK and takes its time."""
    return many if os.environ.get("HOLDFAST_SOAK") else few


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every copy of `data` with one bit turned over, and which."""
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(changed)


def cuts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every copy of `data` that ends early, down to nothing, and its length."""
    for length in range(len(data)):
        yield length, data[:length]


def events(*names: str, scope: str = "default") -> list[NewEvent]:
    return [NewEvent(name, name.encode(), scope=scope) for name in names]


def eventually(holds: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def segment_files(folder: Path, log: EventLog, *batches: list[NewEvent]) -> list[StagedSegment]:
    """Files that lie ready to become segments of a log, one a batch."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, batch in enumerate(batches):
        data = to_parquet(to_table(batch, log.schema))
        path = folder / f"part-{number:05}.parquet"
        path.write_bytes(data)
        found.append(StagedSegment(path, len(batch), len(data), hashlib.sha256(data).digest()))
    return found


def refused_in_a_child(act: Callable[[], object], error: type[Exception]) -> bool:
    """Whether `act` raises `error` in a forked child; anything else that happens there is an answer of no."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
        except error:
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def new_log(folder: Path, *batches: list[NewEvent], **options: bool) -> EventLog:
    """A log with one append a batch."""
    log = EventLog.create(folder, **options)
    with log.writer() as writer:
        for batch in batches:
            writer.append(batch)
    log.refresh()
    return log
