"""The steps of a rewind as tables, without any I/O. `apply` goes through them in this order.

Rules:
- Before *decide*, nothing has changed: the files that *build* has written are garbage. From *decide* on, a rewind can
  only be completed.
- Every step is idempotent. After a crash, the next rewind or run repeats all steps after *decide*.
- *End* comes before any sink is changed. A driver of the old timeline that resumes later finds its slot closed, so it
  cannot decide an epoch that the sinks never get.
- In each sink, the stamp comes first, then the staged output is removed, then the rows are moved. A driver that was
  paused inside a commit may make rows visible between the stamp and the removal: these rows are moved too, because the
  move comes last. After the removal, the driver finds nothing to make visible: a rename cannot be made conditional,
  but it fails if its source is gone.

`tests/unit/test_rewind_model.py` explores every interleaving of these steps with a driver of the old timeline.
"""

from __future__ import annotations

from enum import StrEnum


class RewindStep(StrEnum):
    """A step of a rewind. The lease is taken, and the plan compared, before the first one."""

    BUILD = "build"  # write Spark's folders of the new timeline
    DECIDE = "decide"  # write rewind.json, by a write that only one process can win
    END = "end"  # close the next slot of each stream in the old timeline; complete the epoch before it
    TAKE_BACK = "take back"  # in each sink: `SINK_STEPS`
    BASES = "bases"  # ask each sink for its position, and write the base decisions
    BEGIN = "begin"  # write lineage.json, then the history


STEPS = (
    RewindStep.BUILD,
    RewindStep.DECIDE,
    RewindStep.END,
    RewindStep.TAKE_BACK,
    RewindStep.BASES,
    RewindStep.BEGIN,
)


class SinkStep(StrEnum):
    """A step of `Sink.take_back` and `Sink.put_back`."""

    STAMP = "stamp"  # record the new timeline where the ledger is
    CLEAR = "clear"  # remove what the old timelines have staged
    MOVE = "move"  # move the rows, newest first


SINK_STEPS = (SinkStep.STAMP, SinkStep.CLEAR, SinkStep.MOVE)

POINTS = {
    # the crash points of a rewind, in order, and what has been done by then
    "rewind planned": "nothing has changed",
    "rewind built": "Spark's folders of the new timeline exist; without a decision they are garbage",
    "rewind decided": "rewind.json exists: the rewind can only be completed",
    "stream ended": "after each stream: its slot in the old timeline is closed",
    "sink taken back": "after each sink: its rows are set aside or, in an undo, put back",
    "base written": "after each stream: the new timeline has its base decision",
    "timeline begun": "lineage.json exists: the new timeline is current; the history lacks the rewind",
    "rewound": "everything is done",
}


def steps_after(step: RewindStep) -> tuple[RewindStep, ...]:
    """Return the steps that follow one, in order."""
    return STEPS[STEPS.index(step) + 1 :]
