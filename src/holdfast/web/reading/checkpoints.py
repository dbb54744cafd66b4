"""The checkpoints of a pipeline for readers that ask repeatedly: manifests are read only when something changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.repository import Checkpoints, Repository, Status, Summary

_FRESH_S = 30.0  # after this time everything is read again: a manifest may have been damaged meanwhile
_OPEN_S = 1.0  # the same while a checkpoint is being taken


class CheckpointReader:
    """Lists the checkpoints of one repository. Any thread may call it."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.monotonic) -> None:
        self._checkpoints = Checkpoints(repository)
        self._repository = repository
        self._clock = clock
        self._guard = threading.Lock()
        self._names: object = None
        self._found: list[Summary] = []
        self._read_at = float("-inf")

    def all(self) -> list[Summary]:
        """Return all checkpoints and savepoints in the order of their ids, including damaged and aborted ones."""
        with self._guard:
            names = self._listed()
            pending = any(each.status is Status.OPEN for each in self._found)
            limit = _OPEN_S if pending else _FRESH_S
            if names != self._names or self._clock() - self._read_at > limit:
                self._found = self._checkpoints.all()
                self._names, self._read_at = names, self._clock()
            return self._found

    def _listed(self) -> object:
        """Return the names of all checkpoints: a change in them means that something was begun, aborted or deleted."""
        found = [self._repository.list("savepoints")]
        for timeline in self._checkpoints.timelines():
            folder = f"timelines/{timeline}/checkpoints"
            found += [[str(timeline)], self._repository.list(folder), self._repository.list(f"{folder}/aborted")]
        return found
