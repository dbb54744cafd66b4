"""What ended a stream: what failed, and whether a restart, waiting or neither can help.

Rules:
- An error of Holdfast is classified by its type, even if Spark reports it from another process. Any other error is
  classified by Spark's text, because reading, user code, state and a sink's writing all fail inside the same job.
- An outage is not a failure of the program: a server that cannot be reached, a lost executor, a full disk. It does not
  use the restart budget, and an epoch is never quarantined for it.
- A driver that was replaced may write one more entry of Spark's log. The new driver then fails on this entry, and
  continues from it after a restart.
- A missing module or a damaged file stays as it is however often the stream is restarted.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pyspark.errors import AnalysisException

from holdfast._error_text import reported_kind
from holdfast.epoch import State
from holdfast.errors import (
    BadInput,
    Busy,
    Corrupt,
    Fenced,
    FrozenRowsLost,
    HoldfastError,
    InDoubt,
    Mismatch,
    SessionLost,
    SinkFailed,
    SinkUnavailable,
    SourceFailed,
    SourceUnavailable,
    SparkFileDamaged,
    Storage,
    StoreUnreachable,
)
from holdfast.repository import Lease
from holdfast.spark import adapter
from holdfast.sparkfiles.folder import SparkFolder

_log = logging.getLogger(__name__)


class Kind(StrEnum):
    """The part that failed."""

    SOURCE = "source"
    SINK = "sink"
    STATE = "state"
    USER = "user code"
    REPOSITORY = "repository"
    EXECUTORS = "executors"
    FENCED = "fenced"
    REFUSED = "refused"  # something must be corrected or accepted first


class Remedy(StrEnum):
    """What can help."""

    RESTART = "restart"
    WAIT = "wait"  # it is an outage
    AGAIN = "again"  # a driver that this one has replaced was in the way: at once, and without using the budget
    NONE = "none"


@dataclass(frozen=True, slots=True)
class EpochFailure:
    """Where an epoch failed."""

    error: BaseException
    epoch: int
    state: State  # of the epoch when it failed
    sink: str | None  # the sink that failed; `None` if the failure was outside of all sinks


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What failed, what can help, and what to do about it if that is known."""

    kind: Kind
    remedy: Remedy
    do: str | None = None


BUDGETED = (Kind.SOURCE, Kind.SINK, Kind.STATE, Kind.USER, Kind.REPOSITORY, Kind.EXECUTORS)
REFUSED = (BadInput, Mismatch, Corrupt, SessionLost)  # something must be corrected or accepted first
_OUTAGE_ERRNO = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.ESTALE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
}
_OUTAGE = re.compile(
    r"No space left on device|Disk quota exceeded|Input/output error|Read-only file system|Stale file handle"
    r"|Connection(?: to \S+)? refused|Connection reset|Connection timed out|No route to host|Network is unreachable"
    r"|UnknownHostException|SocketTimeoutException|Temporary failure in name resolution|Communications link failure"
    r"|kafka\.common\.errors\.\w*(?:Timeout|Disconnect|Network|NotAvailable|NotLeaderOrFollower)\w*Exception"
    r"|s3a\.AWS(?:ServiceThrottled|Status500|NoResponse|ApiCallTimeout)Exception|Unable to execute HTTP request"
    r"|holdfast\.errors\.(?:StoreUnreachable|SinkUnavailable): "
)
_LOST_EXECUTOR = re.compile(
    r"ExecutorLostFailure|CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|FetchFailed|MetadataFetchFailed|heartbeat timed out"
)
_OTHER_DRIVER = re.compile(
    r"Concurrent update to the log|CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using"
    r"|was written by another driver"
)
_WORKER_CRASHED = "Python worker exited unexpectedly"  # its socket is reset then, which is not an outage
_MODULE = re.compile(r"(?:ModuleNotFoundError: )?No module named '([\w.]+)'")
_IMPORT = re.compile(r"\b(?:ModuleNotFoundError|ImportError|PySparkImportError)\b")
_BY_TEXT = {
    Kind.STATE: re.compile(r"STATE_STORE|StateStore|RocksDB|STATE_SCHEMA|STATEFUL_"),
    Kind.USER: re.compile(r"PythonException|PYTHON_EXCEPTION|FAILED_EXECUTE_UDF|USER_RAISED_EXCEPTION|Python worker"),
    Kind.SOURCE: re.compile(r"FAILED_READ_FILE|FileScanRDD|KafkaException|OffsetOutOfRange|FileStreamSource"),
}
_PLACES = (  # of Spark's code, by what it writes to
    ("sql.execution.streaming.checkpointing.", Kind.REPOSITORY),
    ("sql.execution.streaming.state.", Kind.REPOSITORY),
    ("storage.", Kind.EXECUTORS),
    ("shuffle.", Kind.EXECUTORS),
    ("util.collection.", Kind.EXECUTORS),
)
_FRAME = re.compile(r"^\s+at (?:\S+/)?org\.apache\.spark\.([\w.$]+)\(", re.MULTILINE)
_CAUSED = "\nCaused by: "
_DAMAGE = re.compile(r"Checksum error|does not exist|doesn't exist|FileNotFoundException|MISSING_METADATA_FILE")


def diagnose(error: BaseException, failure: EpochFailure | None, step: Kind = Kind.SOURCE) -> Diagnosis:
    """Return what failed and what can help.

    `failure` is where in an epoch it happened, if it was in one; otherwise `step` is what was in progress.
    """
    if (refused := _refused(error, failure)) is not None:
        return Diagnosis(refused, Remedy.NONE)
    text = _text(error)
    kind = _kind(error, failure, step, text)
    if _OTHER_DRIVER.search(_said(text)):
        return Diagnosis(Kind.REPOSITORY, Remedy.AGAIN)
    if _LOST_EXECUTOR.search(text):
        return Diagnosis(Kind.EXECUTORS, Remedy.WAIT)
    if _is_outage(error, text):
        return Diagnosis(kind, Remedy.WAIT)
    said = _said(text)
    if kind is Kind.USER and (_IMPORT.search(said) or any(isinstance(each, ImportError) for each in _chain(error))):
        return Diagnosis(Kind.USER, Remedy.NONE, _install(said))
    return Diagnosis(kind, Remedy.RESTART)


def _refused(error: BaseException, failure: EpochFailure | None) -> Kind | None:
    """Return the kind of a failure that neither a restart nor waiting can fix; `None` for all others."""
    if isinstance(error, Busy):
        return Kind.FENCED
    if isinstance(error, SparkFileDamaged):
        return Kind.STATE if "/spark/state/" in f"{error.path}/" else Kind.REPOSITORY
    on_purpose = failure is not None and not isinstance(failure.error, Exception)  # a crash in a test, or an exit
    if on_purpose or any(isinstance(each, AnalysisException) for each in _chain(error)):
        return Kind.REFUSED  # the same plan would fail again
    told = reported_kind(error)
    return Kind.REFUSED if isinstance(error, REFUSED) or (told and issubclass(told, REFUSED)) else None


def is_final(error: BaseException) -> bool:
    """Whether no later try of the same step can succeed."""
    return isinstance(error, (*REFUSED, Fenced))


def to_report(failed: Mapping[str, BaseException]) -> str:
    """Return the sink whose failure is reported, of several that failed in one step.

    First one that is not an `Exception`, such as a crash in a test; then one that no later try can fix; then any other.
    """
    rank = {name: 0 if not isinstance(each, Exception) else 1 if is_final(each) else 2 for name, each in failed.items()}
    return min(rank, key=lambda name: rank[name])


def or_fenced(lease: Lease, error: BaseException) -> BaseException:
    """Return `Fenced` if this driver was replaced, which may be why the failure happened; otherwise the error."""
    try:
        lease.check()
    except Fenced as fenced:
        if not isinstance(error, Fenced):
            fenced.__cause__ = error
            return fenced
    except Exception:
        _log.debug("the lease cannot be checked", exc_info=True)  # the failure itself says more
    return error


def damaged_file(error: BaseException, folder: SparkFolder) -> str | None:
    """Return the path in Spark's checkpoint folder of a file that is missing or damaged, where Spark names it."""
    said = _said(_text(error))
    if "STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY" in said:
        return "state"
    if not _DAMAGE.search(said) or _is_outage(error, said):
        return None
    if "MISSING_METADATA_FILE" in said:
        return "metadata"
    place = folder.address.partition(":")[2]  # Spark names some files without the scheme
    found = re.search(re.escape(f"{place}/") + r"((?:state|metadata|offsets|commits|sources)[\w./-]*)", said)
    return found[1].rstrip(".") if found else None


def same(one: EpochFailure, other: EpochFailure) -> bool:
    """Whether two failures are the same one again: the same epoch and sink, and the same text except for numbers."""
    return (one.epoch, one.sink, _gist(one.error)) == (other.epoch, other.sink, _gist(other.error))


def _kind(error: BaseException, failure: EpochFailure | None, step: Kind, text: str) -> Kind:
    inside = failure.sink is not None if failure is not None else step is Kind.SINK
    if isinstance(error, SinkFailed | InDoubt | FrozenRowsLost):
        return Kind.EXECUTORS if isinstance(error, FrozenRowsLost) else Kind.SINK
    if isinstance(error, Storage) and not isinstance(error, SourceFailed):
        return Kind.SINK if inside else Kind.REPOSITORY
    if isinstance(error, SourceFailed) or reported_kind(error) is not None:
        return Kind.SOURCE  # an error of Holdfast from another process: those of sinks arrive unwrapped
    if (found := _kind_said(text)) is not None:
        return found
    if failure is None:
        return step
    trouble = Kind.REPOSITORY if isinstance(failure.error, OSError) else Kind.USER
    return Kind.SINK if inside else trouble


def _kind_said(text: str) -> Kind | None:
    """Return what failed by Spark's text, if that is clear."""
    said = _said(text)
    place = next((kind for name, kind in _PLACES if _raised_in(text).startswith(name)), None)
    if place is not None and _OUTAGE.search(said):
        return place
    return next((kind for kind, pattern in _BY_TEXT.items() if pattern.search(said)), None)


def _is_outage(error: BaseException, text: str) -> bool:
    for each in _chain(error):
        if isinstance(each, SinkUnavailable | SourceUnavailable | StoreUnreachable | ConnectionError | TimeoutError):
            return True
        if isinstance(each, OSError) and each.errno in _OUTAGE_ERRNO:
            return True
    if any(isinstance(each, Storage) and not isinstance(each, InDoubt) for each in _chain(error)):
        return False  # it would be one of those above, or have the operating system's error as its cause
    return _OUTAGE.search(_said(text)) is not None and _WORKER_CRASHED not in text


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__


def _text(error: BaseException) -> str:
    """Return the text of errors of Spark and of user code. Errors of Holdfast are classified by type."""
    others = [adapter.full_text(each) for each in _chain(error) if not isinstance(each, HoldfastError)]
    return "\n".join(others) or str(error)


def _said(text: str) -> str:
    """Return a text without Java stack frames: those of state and sources are in every trace of such a query."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("at "))


def _raised_in(text: str) -> str:
    """Return the Spark method that raised the innermost exception of a Java trace, without `org.apache.spark.`."""
    for block in reversed(text.split(_CAUSED)):
        if found := _FRAME.search(block):
            return found[1]
    return ""


def _install(said: str) -> str:
    found = _MODULE.search(said)
    what = f"the Python package that provides {found[1]!r}" if found else "the Python package that it names"
    return f"install {what} where the stream runs, on executors too (PYSPARK_PYTHON), then run the pipeline again"


def _gist(error: BaseException) -> str:
    text = (error.summary if isinstance(error, HoldfastError) else str(error)).split("\n", 1)[0]
    return f"{type(error).__name__}: {re.sub(r'[0-9a-f-]{8,}|[0-9]+', '#', text)}"
