"""What the racing processes do. Each is long-lived and takes part in every round."""

from __future__ import annotations

import os
from multiprocessing.synchronize import Barrier
from typing import Any

from holdfast.errors import Locked
from holdfast.repository import Lease, LocalRepository
from holdfast.repository.lease import newest_lease


def race_for_slots(root: str, name: str, rounds: int, barrier: Barrier, results: Any) -> None:
    """Put one's own name into the slot of each round, at the same moment as the other."""
    repository = LocalRepository(root)
    outcome = []
    for number in range(rounds):
        barrier.wait(60)
        put = repository.put_if_absent(f"epochs/{number}.1.json", f"{name} {number}".encode())
        outcome.append((put.won, put.data.decode()))
    results.put((name, outcome))


def race_for_leases(root: str, name: str, rounds: int, barrier: Barrier, results: Any) -> None:
    """Take the lease of each round, at the same moment as the other; the winner keeps it until the round is over."""
    repository = LocalRepository(root)
    outcome: list[tuple[str, int, str]] = []
    for _ in range(rounds):
        barrier.wait(60)
        try:
            lease = Lease.take(repository)
        except Locked as locked:
            barrier.wait(60)  # the winner has written its record by now
            newest = newest_lease(repository)
            assert newest is not None
            outcome.append(("lost", locked.pid, newest.token))
        else:
            barrier.wait(60)
            outcome.append(("won", os.getpid(), lease.record.token))
            lease.check()
            lease.release()
        barrier.wait(60)
    results.put((name, outcome))
