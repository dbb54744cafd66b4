"""The plan of an adoption, and its result, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast._html import preformatted
from holdfast.errors import BadValue, LastBatchUnknown
from holdfast.formats.sealed_json import plain
from holdfast.plainspark.inputs import AdoptedSource
from holdfast.plainspark.looking import FolderLook
from holdfast.plainspark.records import LastBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptPlan:
    """What an adoption would do: a value that can be inspected before it is applied."""

    pipeline: str  # its name
    stream: str  # its name
    checkpoint: str  # the folder of the plain Spark query
    query: str  # the id of that query
    committed: int | None  # its last committed batch
    in_doubt: int | None  # the batch after it, if it had begun
    last_batch: Mapping[str, LastBatch]  # by sink: whether it has the rows of that batch; empty: none is in doubt
    sinks: tuple[str, ...]  # of the stream
    sources: tuple[AdoptedSource, ...]  # where each one continues
    state: tuple[str, ...]  # providers and formats of its state, such as rocksdb-2; empty: no state
    settings: Mapping[str, str]  # of the state, from the old logs: the stream keeps them
    files: int  # in the old folder; only those that the last committed batch needs are copied
    look: FolderLook = field(repr=False, compare=False)

    @property
    def first_epoch(self) -> int:
        """The first epoch that the stream decides itself: the batch id plus 1."""
        replayed = self.in_doubt is not None and self.all_written
        return (-1 if self.committed is None else self.committed) + 2 + int(replayed)

    @property
    def all_written(self) -> bool:
        """Whether every sink has the rows of the batch in doubt."""
        return bool(self.last_batch) and set(self.last_batch.values()) == {LastBatch.WRITTEN}

    def summary(self) -> str:
        """Return the plan as text: one line, and one more per source and per sink."""
        last = "no batch is committed" if self.committed is None else f"last committed batch {self.committed}"
        lines = [
            f"stream {self.stream!r} of pipeline {self.pipeline!r} continues the query of {self.checkpoint} ({last})"
        ]
        lines += [f"  source {each.source}: {each.kind} {each.place}, after {each.position}" for each in self.sources]
        if self.state:
            lines.append(f"  state: {', '.join(self.state)}")
        for name in self.sinks:
            lines.append(f"  sink {name}: {self.given(name)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the plan as text, for notebooks."""
        return preformatted(self.summary())

    def given(self, sink: str) -> str:
        """Return which epochs a sink is given, as text."""
        if self.in_doubt is None:
            return f"gets epochs from {self.first_epoch} on"
        epoch = self.in_doubt + 1
        if self.last_batch[sink] is LastBatch.WRITTEN:
            return f"already has batch {self.in_doubt}; gets epochs from {epoch + 1} on"
        return f"gets batch {self.in_doubt} as epoch {epoch}, and all later epochs"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        names = (name for name in self.__dataclass_fields__ if name != "look")
        return {**plain({name: getattr(self, name) for name in names}), "first_epoch": self.first_epoch}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """A stream that was adopted."""

    stream: str  # its name
    epoch: int  # the last epoch that the stream does not decide itself; 0: none
    first_epoch: int  # the first one that it decides
    files: int  # copied
    bytes: int  # their size
    already: bool = False  # an earlier call had adopted it, and nothing was done

    def summary(self) -> str:
        """Return a one-line summary."""
        if self.already:
            return f"stream {self.stream!r} was adopted already; it continues with epoch {self.first_epoch}"
        return f"adopted stream {self.stream!r}: it continues with epoch {self.first_epoch}"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def checked_last_batch(
    path: str, in_doubt: int | None, sinks: tuple[str, ...], given: Mapping[str, str], read: str
) -> dict[str, LastBatch]:
    """Return the answer for each sink; raise if one is missing. There is no default: both mistakes damage the data."""
    answers = [each.value for each in LastBatch]
    for name, answer in given.items():
        if name not in sinks:
            why = f"the stream has no such sink; it has {', '.join(sinks)}"
            raise BadValue(what="sink of --last-batch", value=name, why=why)
        if answer not in answers:
            raise BadValue(what=f"--last-batch {name}", value=answer, expected=" or ".join(answers))
    if in_doubt is None:
        if given:
            why = "every begun batch of the checkpoint is committed"
            raise BadValue(what="--last-batch", value=dict(given), why=why, do="leave it out")
        return {}
    missing = tuple(name for name in sinks if name not in given)
    if missing:
        raise LastBatchUnknown(path=path, batch=in_doubt, sinks=missing, input=read)
    return {name: LastBatch(given[name]) for name in sinks}
