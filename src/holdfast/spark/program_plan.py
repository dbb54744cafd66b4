"""Is this program safe on that state? Compares a program with the one that the repository describes; only looks."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast._html import h, table
from holdfast.errors import RepositoryMissing
from holdfast.formats.sealed_json import plain
from holdfast.program.changes import ChangeEffect, ProgramChange, changes
from holdfast.program.records import Programs
from holdfast.repository import Lineage
from holdfast.spark.chain import Chain
from holdfast.spark.describing import described, movable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.starting import PipelineDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """The differences between a program and the one that ran last."""

    pipeline: str
    since: dict[str, int]  # by stream that has a stored description: the first epoch of that program
    changes: tuple[ProgramChange, ...]

    @property
    def possible(self) -> bool:
        """Whether the program can continue the state."""
        return not any(each.effect is ChangeEffect.IMPOSSIBLE for each in self.changes)

    def _repr_html_(self) -> str:
        """Return a table of the changes, for notebooks."""
        if not self.changes:
            return h("<p>{}</p>", "no changes" if self.since else "no earlier program is recorded")
        return table(("effect", "change"), [(str(each.effect), each.summary) for each in self.changes])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def plan_program(pipeline: PipelineDefinition, session: SparkSession) -> ProgramPlan:
    """Compare a program with the stored descriptions. Nothing is written to the repository or to a sink."""
    repository = pipeline.repository
    try:
        lineage = Lineage.load(repository)
    except RepositoryMissing:
        return ProgramPlan(pipeline=pipeline.name, since={}, changes=())
    programs = Programs(repository)
    stored = {name: programs.newest(name, lineage) for name in programs.streams()}
    known = {name: record for name, record in stored.items() if record is not None}
    with tempfile.TemporaryDirectory(prefix="holdfast-plan-") as scratch:
        chain = Chain(pipeline.name, pipeline.streams, repository.where, session, scratch=Path(scratch))
        _, specs = chain.join()
        now = {spec.name: described(spec, chain.build(spec), *movable(repository), Path(scratch)) for spec in specs}
    found = [
        change
        for name in sorted(known.keys() | now.keys())
        if known  # a repository without descriptions judges nothing
        for change in changes(name, known[name].description if name in known else None, now.get(name))
    ]
    order = [ChangeEffect.IMPOSSIBLE, ChangeEffect.TAKES_EFFECT, ChangeEffect.SAFE]
    found.sort(key=lambda each: order.index(each.effect))
    return ProgramPlan(
        pipeline=pipeline.name, since={name: record.epoch for name, record in known.items()}, changes=tuple(found)
    )
