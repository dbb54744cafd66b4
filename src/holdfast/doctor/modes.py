"""Which processing mode wrote the logs: modes other than micro-batches leave different logs, which are not damaged.

- Continuous processing writes offsets without a record about the batch.
- Asynchronous progress tracking records only some batches, in both logs. It has no state.
- Real-time mode writes the offsets at the end of a batch, just before the commit, and a batch lasts at least five
  seconds. This is recognised by the times of the files: a copy that does not keep them looks like micro-batches.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.doctor.files import CheckpointFiles
from holdfast.doctor.findings import CheckpointFinding, Code, finding
from holdfast.doctor.logs import Logs, batches

_LEAST_HOLES = 2  # runs of missing batches: one may be damage
_SHORTEST_MS = 4500  # of a batch in real-time mode
_CLOSE = 10  # the commit follows the offsets within this fraction of the batch
_CLOCK_MS = 1000  # the clocks of the driver and of the storage may differ by this
_TRANSITIONS = 3  # batches that must look alike


class Mode(StrEnum):
    """The kind of processing."""

    MICRO_BATCH = "micro-batch"
    ASYNCHRONOUS = "asynchronous"
    CONTINUOUS = "continuous"
    REAL_TIME = "real-time"


def mode_of(files: CheckpointFiles, logs: Logs) -> Mode:
    """Return the kind of processing that wrote the logs."""
    if logs.offsets and not any(each.has_record for each in logs.offsets.values()):
        return Mode.CONTINUOUS
    if _is_asynchronous(files, logs):
        return Mode.ASYNCHRONOUS
    return Mode.REAL_TIME if _is_real_time(files, logs) else Mode.MICRO_BATCH


def note_of(mode: Mode, logs: Logs) -> CheckpointFinding | None:
    """Return the notice about a kind of processing."""
    match mode:
        case Mode.CONTINUOUS:
            return finding(Code.CONTINUOUS, "the offsets have no record about their batch", "offsets")
        case Mode.ASYNCHRONOUS:
            message = f"both logs have no entry for {batches(logs.holes()[0])}, and there is no state"
            return finding(Code.ASYNCHRONOUS, message, "offsets")
        case Mode.REAL_TIME:
            return finding(Code.REAL_TIME, "each entry of the offset log is as old as its commit", "offsets")
    return None


def _is_asynchronous(files: CheckpointFiles, logs: Logs) -> bool:
    no_offsets, _ = logs.holes()
    runs = sum(1 for batch in no_offsets if batch - 1 not in no_offsets)
    stateful = any(each.startswith("state/") for each in files.facts)
    return runs >= _LEAST_HOLES and not stateful and set(logs.committed) <= set(logs.begun)


def _is_real_time(files: CheckpointFiles, logs: Logs) -> bool:
    """Whether every batch that can be compared was begun long before its offsets were written."""
    compared = 0
    for batch in logs.committed:
        before, after = logs.offsets.get(batch), logs.offsets.get(batch + 1)
        offsets, commit = (files.facts.get(f"{log}/{batch}") for log in ("offsets", "commits"))
        if before is None or after is None or offsets is None or commit is None:
            continue
        written_ms, committed_ms = offsets.changed_ns // 10**6, commit.changed_ns // 10**6
        lasted = written_ms - before.entry.begun_at_ms
        late = lasted >= _SHORTEST_MS and committed_ms - written_ms <= lasted // _CLOSE
        if not late or written_ms > after.entry.begun_at_ms + _CLOCK_MS:
            return False  # also in a copy: its files are newer than the next batch
        compared += 1
    return compared >= _TRANSITIONS
