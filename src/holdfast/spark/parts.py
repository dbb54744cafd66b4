"""The parts that one stream works with, from its first recovery to the end of the run."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.epoch import Reach
from holdfast.repository import Decisions, Gaps, Lease
from holdfast.repository.decisions import stream_folder
from holdfast.sinks.base import Sink, StreamIdentity
from holdfast.spark.context import RunContext
from holdfast.spark.sparklog import SparkLog
from holdfast.spark.spec import StreamSpec
from holdfast.spark.stages import StageKeeper
from holdfast.sparkfiles.places import spark_folder


@dataclass(frozen=True, slots=True)
class StreamParts:
    """The definition of a stream, and the objects that read and write its records."""

    spec: StreamSpec
    run: RunContext
    owner: StreamIdentity
    timeline: int
    folder: str  # of the stream in the repository
    decisions: Decisions
    gaps: Gaps
    log: SparkLog
    stage: StageKeeper | None

    @classmethod
    def of(cls, spec: StreamSpec, run: RunContext) -> StreamParts:
        """Put the parts of one stream of a run together; nothing is read or written."""
        timeline, repository = run.lineage.timeline_of(spec.name), run.repository
        folder = stream_folder(spec.name, timeline)
        stage = None
        if spec.stage is not None:
            stage = StageKeeper(spec.stage, repository, spec.name, timeline, run.lease.number)
        return cls(
            spec=spec,
            run=run,
            owner=StreamIdentity(run.identity.pipeline, run.identity.uid, spec.name),
            timeline=timeline,
            folder=folder,
            decisions=Decisions(repository),
            gaps=Gaps(repository),
            log=SparkLog(spark_folder(repository, spec.name, timeline), spec.name),
            stage=stage,
        )

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.spec.name

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks, in the order of the program."""
        return self.spec.sinks

    @property
    def lease(self) -> Lease:
        """The lease of the run."""
        return self.run.lease

    @property
    def reach(self) -> Reach:
        """The function to call at each point of the protocol."""
        return self.run.reach

    def accepts(self, change: str) -> bool:
        """Whether the user accepts a change of this kind."""
        return change in self.run.accept
