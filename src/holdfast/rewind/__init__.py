"""Rewind: take a pipeline back to an earlier checkpoint, with its sinks, and undo that.

Public: `plan_rewind`, `plan_undo`, `apply_rewind`, `finish_rewind`, `kept_rows` and `discard_rows`, with the values
that they take and return.
"""

from holdfast.rewind.apply import apply_rewind, finish_rewind
from holdfast.rewind.kept import KeptRows, discard_rows, kept_rows
from holdfast.rewind.plan import Readable, RewindDone, RewindPlan, SinkAction, SinkPlan, SourcePlan, StreamPlan
from holdfast.rewind.planning import plan_rewind
from holdfast.rewind.program import Program, ProgramStream, Rewindable
from holdfast.rewind.undo import plan_undo

__all__ = [
    "KeptRows",
    "Program",
    "ProgramStream",
    "Readable",
    "RewindDone",
    "RewindPlan",
    "Rewindable",
    "SinkAction",
    "SinkPlan",
    "SourcePlan",
    "StreamPlan",
    "apply_rewind",
    "discard_rows",
    "finish_rewind",
    "kept_rows",
    "plan_rewind",
    "plan_undo",
]
