"""The plan of a rewind: a value that can be printed, compared and stored.

The id covers what the plan depends on: the pipeline's uid, its current timeline, the digest of the base, the last
decision of each stream, the answers of the sinks, and what is left. It does not cover what changes by itself, such as
sizes and free space. An outdated plan is never carried out: `apply_rewind` computes the plan again, and raises
`PlanOutdated` if the id differs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from holdfast import _figures as figures
from holdfast._html import preformatted
from holdfast.formats.sealed_json import plain

_ID_DIGITS = 16
UNLIMITED = (1 << 63) - 1  # the free space of an object store
_REPLACED = "; nothing is moved: the next epoch replaces its rows"
_UNTIL = "possible until the next run has decided an epoch"


class SinkAction(StrEnum):
    """What a rewind does with a sink."""

    TAKE_BACK = "take back"  # set its later rows aside
    PUT_BACK = "put back"  # an undo: put the rows back that the rewind set aside
    LEAVE = "leave"  # its rows stay, and are written again
    CANNOT = "cannot"  # the rewind is refused


class Readable(StrEnum):
    """Whether the input after the base can still be read."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"  # the rewind needs `accept_input`


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """One sink in the plan of a rewind."""

    sink: str  # its name
    kind: str  # its class
    target: str | None  # where it writes to
    action: SinkAction  # what is done with it
    holds: int | None  # the last epoch that it reports; null: the program lacks the sink
    epochs: int = 0  # number of epochs whose rows are moved
    rows: int | None = None  # the rows to move; null: not known
    counted: int | None = None  # the same by the decisions; null: not known
    kept: str = ""  # where the rows are kept until an undo, or until they are discarded
    why: str | None = None  # why it cannot be taken back, or is left
    do: str | None = None  # the setting that would have made it possible


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """One source in the plan of a rewind."""

    source: str  # its number in the query
    kind: str  # files, kafka, holdfast log, ...
    readable: Readable  # whether the input after the base can still be read
    why: str = ""  # why not, or why it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """One stream in the plan of a rewind."""

    stream: str  # its name
    timeline: int  # where it is
    epoch: int  # its last decided epoch
    base_timeline: int  # where it goes back to
    base_epoch: int  # 0: it begins again
    epochs: int  # number of epochs that are abandoned; of an undo, that are put back
    rows: int | None  # the rows of these epochs; null: not known
    decision: str  # the digest of its last decision; empty: none
    sinks: tuple[SinkPlan, ...] = ()  # what each sink does
    sources: tuple[SourcePlan, ...] = ()  # whether each source has the input after the base
    notes: tuple[str, ...] = ()  # what the checkpoint or the program lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPlan:
    """The plan of a rewind or of its undo: a value that can be inspected before it is applied."""

    pipeline: str  # its name
    uid: str  # of its repository
    timeline: int  # the current one
    to: str  # the base, as the user named it
    base: str  # the base as text
    checkpoint: int | None  # the id of the base; null: an undo
    digest: str  # of the base's manifest or, of an undo, of the record of the rewind
    undoes: int | None  # the timeline that is undone
    only: tuple[str, ...] | None  # the streams that were asked for; null: all
    leave: tuple[str, ...]  # sinks whose rows stay
    streams: tuple[StreamPlan, ...]  # what is done to each stream
    problems: tuple[str, ...]  # why the rewind is refused; empty: it is possible
    cursors: tuple[str, ...] = ()  # readers of event logs that are past the base
    bytes_needed: int = 0  # disk space that it needs at most
    bytes_free: int = 0  # free disk space
    no_undo: str | None = None  # why it cannot be undone; null: it can, until the new timeline has decided an epoch

    @property
    def id(self) -> str:
        """The id: equal if nothing has changed that the plan depends on."""
        covered = {
            "uid": self.uid,
            "timeline": self.timeline,
            "digest": self.digest,
            "undoes": self.undoes,
            "only": self.only,
            "leave": sorted(self.leave),
            "streams": [_covered(each) for each in self.streams],
            "problems": self.problems,
        }
        return hashlib.sha256(msgspec.json.encode(covered, order="sorted")).hexdigest()[:_ID_DIGITS]

    @property
    def unknown_input(self) -> tuple[str, ...]:
        """The sources of which it is not known whether they still have the input after the base."""
        return tuple(
            f"source {source.source} of stream {each.stream!r} ({source.kind}): {source.why}"
            for each in self.streams
            for source in each.sources
            if source.readable is Readable.UNKNOWN
        )

    def summary(self) -> str:
        """Return the plan as text."""
        lines = [f"plan {self.id}: {self.pipeline} goes back to {self.base}"]
        if self.undoes:
            lines = [f"plan {self.id}: {self.pipeline} undoes the rewind of timeline {self.undoes}"]
        for each in self.streams:
            lines += _stream_lines(each, undo=self.undoes is not None)
        lines += [f"reader past the base: {each}" for each in self.cursors]
        free = f", {figures.size(self.bytes_free)} are free" if self.bytes_free < UNLIMITED else ""
        lines.append(f"{'disk' if free else 'store'}: needs at most {figures.size(self.bytes_needed)}{free}")
        if self.undoes is None:
            lines.append(f"undo: {f'not possible, {self.no_undo}' if self.no_undo else _UNTIL}")
        lines += [f"needs --accept-input: {each}" for each in self.unknown_input]
        lines += [f"refused: {each}" for each in self.problems]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the plan as text, for notebooks."""
        return preformatted(self.summary())

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict, with the id."""
        return {"id": self.id, **plain(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindDone:
    """The result of a rewind."""

    timeline: int  # the new one
    base: str  # where the pipeline is now
    epochs: dict[str, int]  # by stream: the epoch that it continues after
    undoes: int | None = None  # the timeline that was undone

    def summary(self) -> str:
        """Return a one-line summary."""
        where = ", ".join(f"{stream} after epoch {epoch}" for stream, epoch in self.epochs.items())
        what = f"undid the rewind of timeline {self.undoes}" if self.undoes else f"went back to {self.base}"
        return f"{what}: timeline {self.timeline} continues {where}"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def _covered(each: StreamPlan) -> list[Any]:
    sinks = [
        [sink.sink, sink.kind, sink.target, sink.action, sink.holds, sink.epochs, sink.rows, sink.kept]
        for sink in each.sinks
    ]
    return [each.stream, each.timeline, each.epoch, each.decision, each.base_timeline, each.base_epoch, sinks]


def _stream_lines(each: StreamPlan, *, undo: bool) -> list[str]:
    rows = "an unknown number of rows" if each.rows is None else figures.counted(each.rows, "row")
    where = f"epoch {each.base_epoch}" if each.base_epoch else "its beginning"
    what = "are put back" if undo else "are abandoned"
    lost = f"{figures.counted(each.epochs, 'epoch')}, {rows} {what}"
    lines = [f"stream {each.stream!r}: from epoch {each.epoch} to {where}; {lost}"]
    lines += [f"  note: {note}" for note in each.notes]
    for source in each.sources:
        why = f", {source.why}" if source.why else ""
        lines.append(f"  source {source.source} ({source.kind}): can be read again: {source.readable}{why}")
    return [*lines, *(f"  {_sink_line(sink)}" for sink in each.sinks)]


def _sink_line(sink: SinkPlan) -> str:
    action = "refused" if sink.action is SinkAction.CANNOT else sink.action
    text = f"sink {sink.sink!r} ({sink.kind}): {action}"
    if sink.action is SinkAction.TAKE_BACK and not sink.epochs and sink.rows == 0:
        return f"sink {sink.sink!r} ({sink.kind}): nothing to take back"
    if sink.action in (SinkAction.TAKE_BACK, SinkAction.PUT_BACK):
        rows = "" if sink.rows is None else f", {figures.counted(sink.rows, 'row')}"
        text += f" {figures.counted(sink.epochs, 'epoch')}{rows}"
        if sink.action is SinkAction.TAKE_BACK:
            text += f"; kept in {sink.kept}" if sink.kept else _REPLACED
    return f"{text}: {sink.why}" if sink.why else text
