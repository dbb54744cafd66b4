"""One stream of a running pipeline, as the pipeline and its checkpoints see it."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from holdfast.barriers import BarrierInjector
from holdfast.errors import StreamFailed
from holdfast.program.description import StreamDescription
from holdfast.recovery import RecoveryPlan
from holdfast.spark import adapter
from holdfast.spark.acknowledging import Acknowledger
from holdfast.spark.context import RunContext
from holdfast.spark.describing import store_program
from holdfast.spark.epoch_times import EpochTimes
from holdfast.spark.gate import EpochGate
from holdfast.spark.parts import StreamParts
from holdfast.spark.query import StreamQuery
from holdfast.spark.recovering import RecoveredStream
from holdfast.spark.snapshot import snapshots_of
from holdfast.spark.sources import ComparedSources
from holdfast.spark.spec import StreamSpec
from holdfast.spark.status import EpochTally, StatusReporter, StreamStatus
from holdfast.spark.supervisor import Supervisor
from holdfast.spark.topic_lag import TopicLag

_log = logging.getLogger(__name__)
_LIVE = ("starting", "running", "restarting", "waiting")
_MOMENT_S = 0.05


class StreamRun:
    """One stream of a running pipeline: recovered, started, supervised, checkpointed and stopped."""

    def __init__(self, spec: StreamSpec, run: RunContext) -> None:
        self.spec = spec
        self.name = spec.name
        self.injector = BarrierInjector()
        self.oldest_kept: int | None = None  # the first epoch that a checkpoint needs
        self._parts = parts = StreamParts.of(spec, run)
        self.snapshots = snapshots_of(run.repository, spec.name, parts.timeline)
        self._gate = gate = EpochGate()
        self._acknowledger = Acknowledger(parts, gate, self.injector.handle(), self._drained)
        self._query = StreamQuery(parts, gate)
        self._tally = tally = EpochTally(run.clock)
        self._sources = ComparedSources(parts)
        self._stores_program = True  # until the first new epoch of the run is decided
        self._supervisor = Supervisor(
            parts,
            gate=gate,
            acknowledger=self._acknowledger,
            query=self._query,
            sources=self._sources,
            epoch_ended=self._epoch_ended,
            oldest_kept=lambda: self.oldest_kept,
        )
        open_reader = partial(adapter.KafkaUnread, run.spark, stream=spec.name)
        self._topic_lag = TopicLag(spec.name, gate, self._sources.kafka_inputs, open_reader)
        self._reporter = StatusReporter(
            parts,
            supervisor=self._supervisor,
            acknowledger=self._acknowledger,
            query=self._query,
            tally=tally,
            topic_lag=self._topic_lag,
        )

    # --- its life ---

    def recover(self) -> RecoveredStream:
        """Prepare to continue after the last decided epoch."""
        return self._supervisor.recover()

    def live(self) -> None:
        """Run until the stream ends, is stopped, or gives up: then `failed` is set."""
        self._supervisor.live()

    def stop(self) -> None:
        """Stop at the end of an epoch."""
        self._query.stop()

    def ask_to_stop(self) -> None:
        """Make the epoch in progress the last one, without waiting for it."""
        self._gate.stopping.set()

    def kill(self) -> None:
        """Stop at once, even within an epoch: as safe as a kill of the process."""
        self._query.kill()

    def finish_available(self) -> None:
        """Return when the input that is available now has been processed, or the stream has ended."""
        if self._parts.run.available_now:
            return  # it ends by itself
        if self._query.trigger.get("availableNow"):  # so does this one, perhaps after several queries
            while self.state in _LIVE:
                time.sleep(_MOMENT_S)
        else:
            self._query.finish_available(lambda: self.state in _LIVE)

    def close(self) -> None:
        """Release the sinks, the stage and the connections of the sources."""
        for sink in self.spec.sinks:
            try:
                sink.close()
            except Exception:
                _log.exception("sink %s could not be closed", sink.name)
        if self._parts.stage is not None:
            self._parts.stage.close()
        self._sources.close()
        self._topic_lag.close()

    def _epoch_ended(self, times: EpochTimes) -> None:
        """Count an epoch that is in every sink. The first new one of a run stores the description of the program."""
        self._tally.add(times)
        self._sources.epoch_ended(self._acknowledger.last)
        recovered = self._supervisor.recovered
        if self._stores_program and recovered is not None and times.epoch > recovered.plan.decided:
            self._stores_program = False
            store_program(self._parts, times.epoch, recovered.description)

    def _drained(self) -> None:
        """Stop after the epoch at which a barrier has ended the stream."""
        self.ask_to_stop()
        if not self.is_inside:
            threading.Thread(target=self.stop, name=f"holdfast-drain-{self.name}", daemon=True).start()

    # --- checkpoints ---

    def acknowledge_idle(self) -> bool:
        """Acknowledge a pending barrier if the stream is between two epochs, or has ended; return whether it did."""
        return self._acknowledger.acknowledge_idle()

    @property
    def can_acknowledge(self) -> bool:
        """Whether a stream that has ended is at a cut: no epoch of it is decided and missing in a sink."""
        return self._acknowledger.at_cut

    def is_committed(self, epoch: int) -> bool:
        """Whether Spark has committed an epoch."""
        return self._parts.log.is_committed(epoch - 1)

    @property
    def commit_poll_s(self) -> float:
        """How long to wait between two looks for a commit of Spark."""
        return self._parts.log.folder.poll_s

    # --- what it is doing ---

    def status(self) -> StreamStatus:
        """Return the status of the stream."""
        return self._reporter.status()

    @property
    def state(self) -> str:
        """Its state, as in `StreamStatus`."""
        return self._supervisor.state

    @property
    def failed(self) -> StreamFailed | None:
        """The error with which the stream gave up, if it did."""
        return self._supervisor.failed

    @property
    def waits(self) -> bool:
        """Whether the stream waits for an outage to end."""
        return self._supervisor.outages.current is not None

    @property
    def is_inside(self) -> bool:
        """Whether the caller is in the thread of an epoch or of the supervisor, as a callback of this stream is."""
        return self._supervisor.is_inside or self._gate.is_inside

    @property
    def progress(self) -> tuple[int, int]:
        """The rows that each sink was given, and the number of epochs, since the first epoch."""
        last = self._acknowledger.last
        return last.rows, last.epoch

    @property
    def plan(self) -> RecoveryPlan | None:
        """What the last recovery found and did."""
        recovered = self._supervisor.recovered
        return recovered.plan if recovered else None

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of its streaming sources; empty before the first recovery."""
        recovered = self._supervisor.recovered
        return recovered.sources if recovered else ()

    @property
    def description(self) -> StreamDescription | None:
        """How the program describes this stream; `None` before the first recovery."""
        recovered = self._supervisor.recovered
        return recovered.description if recovered else None
