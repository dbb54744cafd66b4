"""Doctor: examine the checkpoint folder of any Structured Streaming query, without Spark.

Public: `examine`, and the values `Examination`, `CheckpointFinding`, `FindingSeverity`, `LogEntries`, `SourcePosition`,
`StateSize`, `VersionSize` and `FolderSize`. Everything else is internal.
"""

from holdfast.doctor.examination import (
    Examination,
    FolderSize,
    LogEntries,
    SourcePosition,
    StateSize,
    VersionSize,
)
from holdfast.doctor.examining import examine
from holdfast.doctor.findings import CheckpointFinding, FindingSeverity

__all__ = [
    "CheckpointFinding",
    "Examination",
    "FindingSeverity",
    "FolderSize",
    "LogEntries",
    "SourcePosition",
    "StateSize",
    "VersionSize",
    "examine",
]
