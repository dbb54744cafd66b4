"""What kind of failure ended a stream: it decides whose budget a restart is taken from, or that none can help.

By type where the error is ours, also where Spark tells of it: a source's is raised in another process. Else by Spark's
text: inside one job, reading, the user's functions, state and a sink's writing fail alike.
"""

from __future__ import annotations

import re
from enum import StrEnum

from pyspark.errors import AnalysisException

from holdfast.errors import BadInput, Busy, Corrupt, Mismatch, Storage
from holdfast.spark.brief import kind_told
from holdfast.spark.epochs import Failure


class Kind(StrEnum):
    """Whose failure it is."""

    SOURCE = "source"
    SINK = "sink"
    STATE = "state"
    USER = "user code"
    FENCED = "fenced"
    REFUSED = "refused"  # a restart cannot help: something must be mended or accepted first


BUDGETED = (Kind.SOURCE, Kind.SINK, Kind.STATE, Kind.USER)
_BY_TYPE: dict[Kind, tuple[type[BaseException], ...]] = {
    Kind.FENCED: (Busy,),
    Kind.REFUSED: (BadInput, Mismatch, Corrupt),
    Kind.SINK: (Storage,),
}
_BY_TEXT = {
    Kind.STATE: re.compile(r"STATE_STORE|StateStore|RocksDB|STATE_SCHEMA|STATEFUL_"),
    Kind.USER: re.compile(r"PythonException|PYTHON_EXCEPTION|FAILED_EXECUTE_UDF|USER_RAISED_EXCEPTION"),
    Kind.SOURCE: re.compile(r"FAILED_READ_FILE|FileScanRDD|KafkaException|OffsetOutOfRange|FileStreamSource"),
}


def kind_of(error: BaseException, failure: Failure | None) -> Kind:
    """Tell what kind of failure it is; `failure` says where in an epoch it happened, if it was in one."""
    on_purpose = failure is not None and not isinstance(failure.error, Exception)  # a crash in a test, or an exit
    if on_purpose or any(isinstance(each, AnalysisException) for each in (error, error.__cause__)):
        return Kind.REFUSED  # nobody wants to go on, or the same plan would fail again
    for kind, types in _BY_TYPE.items():
        if isinstance(error, types):
            return kind
    told = kind_told(error)
    if told is not None:  # by a source of ours: what a sink raises comes as it is
        return Kind.REFUSED if issubclass(told, _BY_TYPE[Kind.REFUSED]) else Kind.SOURCE
    for kind, text in _BY_TEXT.items():
        if text.search(str(error)):
            return kind
    if failure is None:
        return Kind.SOURCE
    return Kind.USER if failure.sink is None else Kind.SINK


def same(one: Failure, other: Failure) -> bool:
    """Whether two failures are the same one again: the same epoch and sink, and the same words but for numbers."""
    return (one.epoch, one.sink, _gist(one.error)) == (other.epoch, other.sink, _gist(other.error))


def _gist(error: BaseException) -> str:
    text = str(error).split("\n", 1)[0]
    return f"{type(error).__name__}: {re.sub(r'[0-9a-f-]{8,}|[0-9]+', '#', text)}"
