"""The errors that a failed stream raises: a more specific one where the cause is known, and the one that ends it."""

from __future__ import annotations

import contextlib
from typing import Any

from holdfast._error_text import one_line
from holdfast.epoch import is_decided
from holdfast.errors import HoldfastError, OutageTooLong, SessionLost, SparkFileDamaged, StreamFailed
from holdfast.errors.base import PROGRAM
from holdfast.policy import RestartBudget
from holdfast.rewind.way_back import way_back
from holdfast.spark import adapter
from holdfast.spark.failures import BUDGETED, Diagnosis, EpochFailure, Kind, Remedy, damaged_file, or_fenced
from holdfast.spark.gate import Stopping
from holdfast.spark.last_decided import LastDecided
from holdfast.spark.outages import Outage
from holdfast.spark.parts import StreamParts
from holdfast.sparkfiles.folder import SparkFolder, files_below
from holdfast.sparkfiles.statefiles import VERSIONED

_STATE = "state"
_SECOND = (
    "epoch {before} was quarantined just before, so epoch {epoch} is not: both may have failed because of the same "
    "outage; fix it, then run again. If the rows themselves are bad, filter them out, or quarantine this epoch too: "
    f"holdfast run {PROGRAM} --accept gaps, or pipeline.run(accept=['gaps'])"
)


def explained(parts: StreamParts, raised: Exception) -> Exception:
    """Return a more specific error for a failure, if one is known."""
    error = or_fenced(parts.lease, raised)
    if not isinstance(error, Exception):
        return raised
    if error is not raised or isinstance(error, Stopping):
        return error
    found: HoldfastError | None = None
    if why := adapter.session_end(parts.run.spark):
        found = SessionLost(why=why)
    elif path := damaged_file(error, parts.log.folder):
        found = _damage(parts, path)
        with contextlib.suppress(HoldfastError):  # the damage is what must be reported
            found.do = way_back(parts.run.repository, parts.run.lineage) or found.do
    if found is None:
        return error
    found.__cause__ = raised
    return found


def _damage(parts: StreamParts, path: str) -> SparkFileDamaged:
    """Return the error for a file that Spark could not read. If all state is gone, it names the folder.

    Spark 4.1 names the first file that it misses; later versions check the folder.
    """
    folder = parts.log.folder
    if path == _STATE or (path.startswith(f"{_STATE}/") and not _has_state_files(folder)):
        why = "it is missing or empty; it was deleted, or the query had no stateful operator before"
        return SparkFileDamaged(stream=parts.name, path=folder.place(_STATE), why=why)
    why_of = {} if folder.exists(path) else {"why": "it is missing"}
    return SparkFileDamaged(stream=parts.name, path=folder.place(path), **why_of)


def _has_state_files(folder: SparkFolder) -> bool:
    return any(VERSIONED.fullmatch(path.rpartition("/")[2]) for path in files_below(folder.listed(), _STATE))


def final_error(
    parts: StreamParts,
    error: Exception,
    found: Diagnosis,
    failure: EpochFailure | None,
    *,
    restarts: int,
    budget: RestartBudget | None,
    outage: Outage | None,
    last: LastDecided,
) -> StreamFailed:
    """Return the error with which a stream gives up."""
    kind = found.kind
    blamed = kind in (Kind.SINK, Kind.REFUSED)
    facts: dict[str, Any] = {
        "pipeline": parts.owner.pipeline,
        "stream": parts.name,
        "epoch": failure.epoch if failure else getattr(error, "epoch", None),
        "sink": ((failure.sink if failure else None) or getattr(error, "sink", None)) if blamed else None,
        "failure": str(kind),
        "restarts": restarts,
        "why": one_line(error),
        **_advice(parts, error, found, failure, last),
    }
    if outage is not None and found.remedy is Remedy.WAIT:
        limit = f"{outage.limit_s:g} s"
        failed: StreamFailed = OutageTooLong(waited=outage.waited_s, tries=outage.tries, policy=limit, **facts)
    else:
        failed = StreamFailed(policy=str(budget.policy) if budget else "a restart cannot help", **facts)
    failed.__cause__ = error
    return failed


def _advice(
    parts: StreamParts, error: Exception, found: Diagnosis, failure: EpochFailure | None, last: LastDecided
) -> dict[str, str]:
    """Return specific advice, if there is any."""
    if found.do is not None:
        return {"do": found.do}
    undecided = failure is not None and not is_decided(failure.state)
    wanted = parts.spec.quarantine_after and not parts.accepts("gaps")
    if wanted and undecided and found.kind in BUDGETED and last.quarantined:
        return {"do": _SECOND.format(before=last.epoch, epoch=last.epoch + 1)}
    return {"do": error.next_step.format(e=error)} if isinstance(error, HoldfastError) else {}
