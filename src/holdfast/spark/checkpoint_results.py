"""The results of checkpoints: counted, logged, and reported to the caller, the schedule and the callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.coordinator import CheckpointRequest, FinalCheckpoint, Schedule
from holdfast.errors import CheckpointFailed, CheckpointMissing, CheckpointsFailed, Corrupt
from holdfast.formats.manifest import Manifest
from holdfast.formats.sealed_json import digest_of
from holdfast.repository import activity
from holdfast.repository.checkpoint_keys import place_of
from holdfast.spark.activity import noted
from holdfast.spark.attempt import Restorable
from holdfast.spark.checkpoint_setup import CheckpointSetup, LoopControl
from holdfast.spark.pipeline_status import CheckpointStatus
from holdfast.spark.tickets import Tickets

_log = logging.getLogger(__name__)


class CheckpointResults:
    """The results of one run, and the newest restorable checkpoint."""

    def __init__(
        self, setup: CheckpointSetup, loop: LoopControl, schedule: Schedule, final: FinalCheckpoint, tickets: Tickets
    ) -> None:
        self.last: Manifest | None = None
        self.parent: str | None = None  # the digest of the newest manifest
        self._setup = setup
        self._loop = loop
        self._schedule = schedule
        self._final = final
        self._tickets = tickets
        self._taken = self._failed = 0
        self._last_error: str | None = None

    def find_last(self) -> None:
        """Find the newest checkpoint of earlier runs."""
        setup = self._setup
        try:
            self.last = last = setup.checkpoints.latest(setup.run.lineage)
            data = setup.run.repository.read(place_of(last.timeline, last.checkpoint_id).manifest)
            self.parent = digest_of(data)
        except CheckpointMissing:
            pass
        except Corrupt as error:
            _log.warning("the newest checkpoint cannot be the parent of the next: %s", error.summary)

    @property
    def is_outdated(self) -> bool:
        """Whether a stream has advanced since the newest checkpoint."""
        last, streams = self.last.streams if self.last else {}, self._setup.streams
        there = {name: last[name].epoch if name in last else 0 for name in streams}
        return {name: stream.progress[1] for name, stream in streams.items()} != there

    def status(self, under_way: int | None) -> CheckpointStatus:
        """Return the status of the checkpoints."""
        last = self.last
        return CheckpointStatus(
            last=last.checkpoint_id if last else None,
            last_at_ms=last.timestamp_ms if last else None,
            taken=self._taken,
            failed=self._failed,
            under_way=under_way,
            last_error=self._last_error,
        )

    def succeeded(self, request: CheckpointRequest, outcome: Restorable) -> None:
        """Report a checkpoint that is restorable. A savepoint is not the parent of a checkpoint."""
        manifest = outcome.manifest
        if manifest.savepoint is None:
            self.parent, self.last = outcome.digest, manifest
        self._taken += 1
        self._setup.run.activity.checkpoint(restorable=True)
        epochs = ", ".join(f"{name} at epoch {cut.epoch}" for name, cut in manifest.streams.items())
        _log.info("checkpoint %d is restorable: %s", manifest.checkpoint_id, epochs)
        self._schedule.ended(self._setup.progress, restorable=True)
        if request.ticket is not None:
            self._tickets.answer(request.ticket, manifest)
        self._notify(self._setup.run.callbacks.on_checkpoint, manifest)

    def failed(
        self, request: CheckpointRequest, error: CheckpointFailed, *, cancelled: bool = False
    ) -> CheckpointsFailed | None:
        """Report a checkpoint that failed; return the error that must end the pipeline, if it was one too many."""
        self._failed += 1
        self._last_error = error.summary
        self._setup.run.activity.checkpoint(restorable=False)
        event = noted(activity.CHECKPOINT_FAILED, self._setup.run.lease.number, error=error)
        self._setup.run.activity.event(event)
        _log.warning("%s", error)
        if self._loop.is_ending:
            self._final.mark_tried()
        counts = not cancelled and self._is_to_blame()
        tolerable = self._schedule.ended(self._setup.progress, restorable=False, counts=counts)
        if request.ticket is not None:
            self._tickets.answer(request.ticket, error)
        self._notify(self._setup.run.callbacks.on_checkpoint_failed, error)
        if tolerable:
            return None
        pipeline = self._setup.run.identity.pipeline
        return CheckpointsFailed(pipeline=pipeline, failures=self._schedule.failures, why=error.why)

    def _is_to_blame(self) -> bool:
        """Whether a failure now counts: not if a stream has failed or waits for an outage, nor during a stop."""
        if self._loop.time_is_up or (self._loop.is_ending and not self._setup.run.available_now):
            return False
        return not any(stream.failed is not None or stream.waits for stream in self._setup.streams.values())

    def _notify(self, callback: Callable[[str, Any], object], fact: Manifest | CheckpointFailed) -> None:
        pipeline = self._setup.run.identity.pipeline
        try:
            callback(pipeline, fact)
        except Exception:
            _log.exception("a callback of pipeline %s failed; the pipeline continues", pipeline)
