"""What the doctor can find in a checkpoint folder: a table with the severity, the meaning and the next step of each.

- An **error** prevents the next start, makes it fail in its first batch, or makes it lose or repeat data.
- A **warning** does not prevent a start, but part of the history is damaged or the folder was changed by hand.
- A **notice** explains what is normal: a batch in doubt, leftovers that Spark ignores, another processing mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingSeverity(StrEnum):
    """How serious a finding is."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


class Code(StrEnum):
    """The codes of findings: never renamed."""

    METADATA_MISSING = "metadata-missing"
    METADATA_UNREADABLE = "metadata-unreadable"
    NOTHING_COMMITTED = "nothing-committed"
    IN_DOUBT = "batch-in-doubt"
    OFFSETS_HOLE = "offsets-hole"
    OFFSETS_PREVIOUS = "offsets-previous-missing"
    COMMITS_HOLE = "commits-hole"
    COMMITS_AHEAD = "commits-ahead"
    OFFSETS_AHEAD = "offsets-ahead"
    LOG_TORN = "log-file-torn"
    OLD_LOG_TORN = "old-log-file-torn"
    FORMAT_UNKNOWN = "format-unknown"
    OFFSETS_MIXED = "offsets-mixed"
    COMMITS_MIXED = "commits-mixed"
    BACKWARDS = "offsets-backwards"
    SOURCES_CHANGED = "sources-changed"
    FEW_BATCHES = "few-batches"
    SOURCE_MISSING = "source-entry-missing"
    SOURCE_TORN = "source-entry-torn"
    SOURCE_COMPACTION = "source-compaction-broken"
    SOURCE_AHEAD = "source-ahead"
    SOURCE_SHARED = "source-shared"
    STATE_MISSING = "state-missing"
    STATE_PARTITION = "state-partition-missing"
    STATE_VERSION = "state-version-missing"
    STATE_FILE = "state-file-missing"
    STATE_TORN = "state-file-torn"
    STATE_AHEAD = "state-ahead"
    STATE_PROVIDERS = "state-providers-mixed"
    STATE_FORMATS = "state-formats-mixed"
    STATE_PROVIDER = "state-provider-differs"
    CHECKSUM_STALE = "checksum-stale"
    CHECKSUM_ORPHAN = "checksum-orphan"
    CHECKSUM_BLOCKS = "checksum-blocks-write"
    TEMPORARY = "temporary-left"
    START_REFUSED = "start-refused"
    ASYNCHRONOUS = "asynchronous"
    CONTINUOUS = "continuous"
    REAL_TIME = "real-time"
    OF_HOLDFAST = "of-holdfast"


@dataclass(frozen=True, slots=True)
class Rule:
    """What is true of all findings with one code."""

    severity: FindingSeverity
    meaning: str  # what it means for the next start
    next: str  # what to do


@dataclass(frozen=True, slots=True)
class CheckpointFinding:
    """One finding."""

    code: str  # a stable code such as `commits-ahead`: never renamed
    severity: FindingSeverity  # an error or a warning makes the exit code 1
    message: str  # what was found
    where: str  # the file or folder, relative to the checkpoint folder
    meaning: str  # what it means for the next start of the query
    next: str  # what to do about it

    def __str__(self) -> str:
        return f"{self.severity}: {self.message} [{self.code}, {self.where}]. {self.meaning} Next: {self.next}."


def finding(code: Code, message: str, where: str) -> CheckpointFinding:
    """Return a finding with the severity, meaning and next step of its code."""
    rule = RULES[code]
    return CheckpointFinding(code.value, rule.severity, message, where, rule.meaning, rule.next)


_E, _W, _N = FindingSeverity.ERROR, FindingSeverity.WARNING, FindingSeverity.NOTICE
_RESTORE = "restore the file from a copy of the folder; otherwise start the query in a new folder"
_NEW_STATE = "restore the file from a copy of the folder; without one, the state is lost: start in a new folder"

RULES = {
    Code.METADATA_MISSING: Rule(
        _E,
        "From Spark 4.2 on the query does not start. Older versions start it with a new id, and sinks that recognise "
        "repeated batches by the id write the next batch twice.",
        "restore `metadata` from a copy, or write it by hand with the query's id from old logs of the driver",
    ),
    Code.METADATA_UNREADABLE: Rule(
        _E,
        "Spark reads the query's id from this file first and does not start without it.",
        "restore `metadata` from a copy, or write it by hand with the query's id from old logs of the driver",
    ),
    Code.NOTHING_COMMITTED: Rule(
        _N, "The query has not completed a batch in this folder.", "nothing, unless the query ran here before"
    ),
    Code.IN_DOUBT: Rule(
        _N,
        "The batch is running, or the query ended during it. At the next start Spark runs it again with the same "
        "offsets. Its rows may be in the sink already: a sink that cannot recognise the batch gets them twice.",
        "nothing if the sink recognises repeated batches; otherwise compare the sink with the offsets of this batch",
    ),
    Code.OFFSETS_HOLE: Rule(
        _W,
        "Spark starts, because it needs only the last two entries. Spark never leaves a hole: files were lost or "
        "deleted by hand.",
        "find out what deleted the files; restore them from a copy if you want to go back to these batches",
    ),
    Code.OFFSETS_PREVIOUS: Rule(
        _E,
        "Spark needs the last two entries of the offset log to start, and stops with `batch N doesn't exist`.",
        "restore the file from a copy; without one, start in a new folder from the offsets of the last committed batch",
    ),
    Code.COMMITS_HOLE: Rule(
        _W,
        "Spark starts, because it needs only the last commit. Spark never leaves a hole: files were lost or deleted "
        "by hand.",
        "find out what deleted the files; restore them from a copy if you want to go back to these batches",
    ),
    Code.COMMITS_AHEAD: Rule(
        _E,
        "Spark runs the last batch of the offset log again and then fails, because its commit exists. Its rows reach "
        "the sink twice. Entries of the offset log were lost or deleted by hand.",
        "restore the missing entries of `offsets` from a copy. To go back by hand, delete the later commits too, and "
        "the state of later batches",
    ),
    Code.OFFSETS_AHEAD: Rule(
        _E,
        "Spark runs only the last batch of the offset log. The batches between the last commit and that one are "
        "skipped without a message, and a stateful query does not find its state.",
        "restore the missing entries of `commits` from a copy. If these batches did not run, delete the entries of "
        "`offsets` after the first one that is not committed",
    ),
    Code.LOG_TORN: Rule(
        _E,
        "Spark reads this file at the start and fails. Spark does not sync its files: after a power failure, or on a "
        "full disk, a file can be empty or cut off.",
        "restore the file from a copy. Without one: a torn last entry of `offsets` that is not committed can be "
        "deleted with its .crc file, and Spark plans the batch again; after a torn last entry of `commits` is deleted, "
        "Spark repeats that batch",
    ),
    Code.OLD_LOG_TORN: Rule(
        _W,
        "Spark does not read this file at the start, but it was damaged. Other files may be damaged too.",
        "check the disk; restore the file from a copy if you want to go back to this batch",
    ),
    Code.FORMAT_UNKNOWN: Rule(
        _E,
        "A newer version of Spark wrote this file, or it is damaged. Older versions refuse it.",
        "start the query with the version of Spark that wrote the folder; if that works, upgrade Holdfast to examine "
        "the folder",
    ),
    Code.OFFSETS_MIXED: Rule(
        _W,
        "Spark does not change the format of an existing offset log. Two programs, or two versions of Spark with "
        "different settings, have written to this folder.",
        "make sure that only one query uses the folder; check spark.sql.streaming.offsetLog.formatVersion",
    ),
    Code.COMMITS_MIXED: Rule(
        _W,
        "The first commit determines the format. Two programs, or two versions of Spark with different settings, have "
        "written to this folder.",
        "make sure that only one query uses the folder; check spark.sql.streaming.stateStore.checkpointFormatVersion",
    ),
    Code.BACKWARDS: Rule(
        _W,
        "A source never goes back by itself. The topic or table was recreated, or the files were mixed with those of "
        "another checkpoint. Rows may be read twice or skipped.",
        "compare the offsets with the source; start in a new folder if the source was recreated",
    ),
    Code.SOURCES_CHANGED: Rule(
        _W,
        "Spark assigns the offsets to the sources in their order. The program was changed, and its next start may fail "
        "or assign an offset to the wrong source.",
        "run the program with the sources of the last entry, in the same order",
    ),
    Code.FEW_BATCHES: Rule(
        _W,
        "The query cannot go back further than this. A backup that copies the folder while the query runs will find "
        "files missing.",
        "raise spark.sql.streaming.minBatchesToRetain (default 100)",
    ),
    Code.SOURCE_MISSING: Rule(
        _E,
        "The log of a file source lists the files that were read. Spark fails, or reads the files of this entry again.",
        _RESTORE,
    ),
    Code.SOURCE_TORN: Rule(
        _E,
        "Spark reads this entry at the start and fails.",
        _RESTORE,
    ),
    Code.SOURCE_COMPACTION: Rule(
        _E,
        "Spark calculates the number of the compacted entry that it must read, and fails if that file does not exist.",
        _RESTORE,
    ),
    Code.SOURCE_AHEAD: Rule(
        _W,
        "Files are recorded as read, but they are not in the offsets of any batch. The next batch will read them all "
        "at once. Usually entries of `offsets` were deleted by hand.",
        "restore the entries of `offsets` from a copy, or remove the later entries of the source's log as well",
    ),
    Code.SOURCE_SHARED: Rule(
        _N,
        "A query that uses one DataFrame twice has two equal offsets and one log of its source. If these are two "
        "sources, the log of one of them was lost, and Spark reads its files again.",
        "nothing if the program reads one source twice; otherwise restore the folder from a copy",
    ),
    Code.STATE_MISSING: Rule(
        _E,
        "After its first batch, a stateful query cannot start without its state.",
        "restore `state` from a copy of the folder; without one, start in a new folder",
    ),
    Code.STATE_PARTITION: Rule(
        _E,
        "The first batch fixes the number of state partitions. Spark fails when it loads this one.",
        "restore the folder from a copy; without one, the state is lost: start in a new folder",
    ),
    Code.STATE_VERSION: Rule(
        _E,
        "The next batch loads the state of the last committed batch: a snapshot, if there is one, and all changes "
        "since. Spark fails when it loads this partition.",
        _NEW_STATE,
    ),
    Code.STATE_FILE: Rule(
        _E,
        "The zip file of the state lists this file. Spark fails when it loads the partition.",
        _NEW_STATE,
    ),
    Code.STATE_TORN: Rule(
        _E,
        "The next batch needs this file, and Spark fails when it loads the partition, or loads incomplete state.",
        _NEW_STATE,
    ),
    Code.STATE_AHEAD: Rule(
        _W,
        "Entries of the logs were deleted by hand to go back, but the state of the later batches is still there. With "
        "state format 1, Spark may load a stale snapshot later without a message, and results are wrong.",
        "stop the query and delete the state files of later versions, or start from a copy that has none",
    ),
    Code.STATE_PROVIDERS: Rule(
        _E,
        "The files of two state store providers are in one store. Spark reads one kind only, and ignores the other.",
        "restore the folder from a copy; never change the provider of an existing checkpoint",
    ),
    Code.STATE_FORMATS: Rule(
        _W,
        "Files of both state formats are in one store: two programs with different settings have written to it.",
        "check spark.sql.streaming.stateStore.checkpointFormatVersion, and that only one query uses the folder",
    ),
    Code.STATE_PROVIDER: Rule(
        _E,
        "Spark starts with the provider that the offset log records, which does not read these files.",
        "restore `offsets` and `state` from the same copy of the folder",
    ),
    Code.CHECKSUM_STALE: Rule(
        _E,
        "The file seems to be complete, but Hadoop compares it with the checksum file and fails. The file was edited "
        "or copied without its checksum file.",
        "delete the .crc file if you trust the content; otherwise restore both files from a copy",
    ),
    Code.CHECKSUM_ORPHAN: Rule(
        _N,
        "The file that the checksum file belongs to does not exist. Spark will not write a file of this name again, so "
        "this does no harm.",
        "nothing; it can be deleted",
    ),
    Code.CHECKSUM_BLOCKS: Rule(
        _E,
        "Spark writes a file of this name next, and fails because the checksum file exists: `Multiple streaming "
        "queries are concurrently using` the folder.",
        "make sure that no other query uses the folder, then delete the .crc file",
    ),
    Code.TEMPORARY: Rule(
        _N,
        "A write was interrupted before the file was renamed. Spark ignores such files, and never removes them.",
        "nothing; they can be deleted while the query is stopped",
    ),
    Code.START_REFUSED: Rule(
        _E,
        "The offset log is empty, and Spark refuses to begin in a folder whose `offsets`, `commits` or `state` contain "
        "files: a first start was interrupted, or the offset log was lost.",
        "if the query never completed a batch, delete the folder; otherwise restore `offsets` from a copy",
    ),
    Code.ASYNCHRONOUS: Rule(
        _N,
        "The query uses asynchronous progress tracking (asyncProgressTrackingEnabled): it does not record every "
        "batch, so gaps are normal. After a failure, Spark repeats all batches since the last recorded one: rows can "
        "reach the sink more than once.",
        "nothing if the query has this option; otherwise entries were deleted: restore them from a copy",
    ),
    Code.CONTINUOUS: Rule(
        _N,
        "The query uses continuous processing: entries are epochs, and the offsets are written at the end of an "
        "epoch. After a failure, rows since the last committed epoch reach the sink again.",
        "nothing; start it with the continuous trigger",
    ),
    Code.REAL_TIME: Rule(
        _N,
        "The offsets are written at the end of each batch, as real-time mode does. Rows of a batch that is not in the "
        "log may be in the sink already; they are written again after a failure.",
        "nothing; start it with the real-time trigger",
    ),
    Code.OF_HOLDFAST: Rule(
        _N,
        "The folder is inside a Holdfast repository, which has its own records of every epoch. What a restart does "
        "depends on these records, not only on this folder.",
        "check the repository: holdfast verify --repo <repository>",
    ),
}
