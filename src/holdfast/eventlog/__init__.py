"""The event log: committed events in one global sequence, cursors that read it, and workers that process the events.

The public names are those of `__all__`; the modules of this package are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import attach

_HOMES = {
    "eventlog.cursor": ["Cursor", "DurableCursor", "Gap"],
    "eventlog.log": ["EventLog"],
    "eventlog.region": ["KindFilter", "Region"],
    "eventlog.segment": ["LogEvent", "NewEvent"],
    "eventlog.worker": [
        "Action",
        "AtLeastOnce",
        "Batch",
        "CursorWorker",
        "Quarantined",
        "WorkerCallbacks",
        "WorkerHandle",
        "read_quarantine",
    ],
    "eventlog.writer": ["LogWriter"],
    "eventlog._repair": ["Repaired", "repair"],
}
_getattr, __dir__, __all__ = attach(
    "holdfast.eventlog", _HOMES, needs={"pyarrow": [home for home in _HOMES if home != "eventlog.region"]}
)

if TYPE_CHECKING:
    from holdfast.eventlog._repair import Repaired as Repaired
    from holdfast.eventlog._repair import repair as repair
    from holdfast.eventlog.cursor import Cursor as Cursor
    from holdfast.eventlog.cursor import DurableCursor as DurableCursor
    from holdfast.eventlog.cursor import Gap as Gap
    from holdfast.eventlog.log import EventLog as EventLog
    from holdfast.eventlog.region import KindFilter as KindFilter
    from holdfast.eventlog.region import Region as Region
    from holdfast.eventlog.segment import LogEvent as LogEvent
    from holdfast.eventlog.segment import NewEvent as NewEvent
    from holdfast.eventlog.worker import Action as Action
    from holdfast.eventlog.worker import AtLeastOnce as AtLeastOnce
    from holdfast.eventlog.worker import Batch as Batch
    from holdfast.eventlog.worker import CursorWorker as CursorWorker
    from holdfast.eventlog.worker import Quarantined as Quarantined
    from holdfast.eventlog.worker import WorkerCallbacks as WorkerCallbacks
    from holdfast.eventlog.worker import WorkerHandle as WorkerHandle
    from holdfast.eventlog.worker import read_quarantine as read_quarantine
    from holdfast.eventlog.writer import LogWriter as LogWriter
else:  # a type checker must see misspelt names
    __getattr__ = _getattr
