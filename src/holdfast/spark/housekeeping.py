"""Housekeeping between two checkpoints: retention, jobs such as a requested prune, the oldest epoch to keep, activity.

Rules:
- It runs in the thread that takes checkpoints, between two of them, so nothing is deleted while one is being taken.
- A failure is logged and tried again later; only `Fenced` is raised.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable
from dataclasses import replace

from holdfast._error_text import one_line
from holdfast.cleaning.folders import CleaningMemory
from holdfast.errors import Fenced
from holdfast.policy import Retention
from holdfast.pruning import apply_prune, plan_prune
from holdfast.repository import ObjectRepository
from holdfast.repository.activity import ENDED, STARTED
from holdfast.spark.activity import ActivityWriter, Lag, noted
from holdfast.spark.checkpoint_setup import CheckpointSetup
from holdfast.spark.stream import StreamRun

_log = logging.getLogger(__name__)
_PRUNE_S = 10.0  # the least time between two clean-ups
_ALL = (1 << 64) - 1


class Housekeeping:
    """The housekeeping of one run."""

    def __init__(self, setup: CheckpointSetup) -> None:
        self._setup = setup
        self._changed = False  # whether checkpoints were taken or aborted since the last clean-up
        self._blocked: str | None = None  # why the last clean-up collected nothing
        self._memory = CleaningMemory()
        self._pruned_at = float("-inf")
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        run = setup.run
        self._writer = ActivityWriter(run.repository, run.activity, run.lease.number)

    def note_start(self) -> None:
        """Record that all streams are recovered."""
        run = self._setup.run
        run.activity.event(noted(STARTED, run.lease.number, text=f"{len(self._setup.streams)} streams were recovered"))

    def note_end(self, why: str | None) -> None:
        """Record how the run has ended; `why` is the error, if there is one. Called when its thread has ended."""
        run = self._setup.run
        run.activity.event(noted(ENDED, run.lease.number, text=why or "stopped gracefully"))
        self._writer.work({name: _lag_of(stream) for name, stream in self._setup.streams.items()})

    def write_activity(self) -> None:
        """Write what the run did. No stream waits for it."""
        due = self._writer.is_due
        self._writer.work({name: _lag_of(each) for name, each in self._setup.streams.items()} if due else None)

    def note_change(self) -> None:
        """Record that a checkpoint was taken or aborted: the next clean-up may find files to delete."""
        self._changed = True

    def add(self, job: Callable[[], object]) -> None:
        """Add a job that may delete checkpoints. Called from any thread."""
        self._jobs.put(job)

    def work(self, *, ending: bool) -> None:
        """Clean up by the retention if it is time to, and do the jobs."""
        run = self._setup.run
        now = run.clock()
        try:
            if self._changed and (now - self._pruned_at >= _PRUNE_S or ending):
                self._pruned_at, self._changed = now, False
                self._prune()
            self._do_jobs()
        except Fenced:
            raise
        except Exception as error:  # files that could not be removed are found again
            _log.warning("pipeline %s: could not clean up: %s", run.identity.pipeline, one_line(error))

    def note_oldest(self) -> None:
        """Set the first epoch of each stream that a checkpoint needs: decisions from there on are kept."""
        kept = self._setup.checkpoints.restorable(self._setup.run.lineage)
        for name, stream in self._setup.streams.items():
            stream.oldest_kept = min((each.epochs.get(name, 0) for each in kept if each.epochs), default=None)

    def _do_jobs(self) -> None:
        if self._jobs.empty():
            return
        with self._setup.flush(), contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()()
        self.note_oldest()

    def _prune(self) -> None:
        run, streams = self._setup.run, self._setup.streams.values()
        dropped = False
        retention = self._setup.policy.retention
        if retention is None and isinstance(run.repository, ObjectRepository):
            retention = Retention(last=_ALL)  # Spark deletes nothing there: its folder is cleaned up in any case
        if retention is not None:
            found = plan_prune(run.repository, retention, retain=run.retain, memory=self._memory)
            self._report_blocked(found.blocked)
            spared = {key for stream in streams for key in stream.snapshots.kept}
            plan = replace(found, garbage=tuple(key for key in found.garbage if key not in spared))
            dropped = bool(plan.drops)
            if not plan.empty:
                with self._setup.flush():
                    apply_prune(run.repository, plan, run.lease, why=None, reach=run.reach)
        if dropped or any(stream.oldest_kept is None for stream in streams):
            self.note_oldest()

    def _report_blocked(self, why: str | None) -> None:
        """Log once why nothing is collected: until it is fixed, the repository grows."""
        if why is not None and why != self._blocked:
            do = "restore its files from a copy (holdfast verify --all lists them), or delete its manifest.json"
            name = self._setup.run.identity.pipeline
            _log.warning("pipeline %s: no objects are collected: %s. Next: %s", name, why, do)
        self._blocked = why


def _lag_of(stream: StreamRun) -> Lag:
    """Return what a stream has not processed yet. A status that cannot be determined must not end the housekeeping."""
    try:
        found = stream.status()
    except Exception:
        _log.debug("stream %s: its status cannot be determined now", stream.name, exc_info=True)
        return Lag(state=stream.state)
    unread = found.unread
    files, size = (unread.files, unread.bytes) if unread else (None, None)
    return Lag(found.state, found.behind, files, size, found.behind_s)
