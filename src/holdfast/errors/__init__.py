"""Every error of Holdfast, grouped by what the caller does next.

    HoldfastError
    ├── BadInput (ValueError)        correct the call: nothing was changed
    │   ├── BadName                  a name or key that must not become part of a path
    │   ├── BadValue                 an argument of the wrong type or outside its range
    │   ├── ClockNotKept             a region filters by entity clock, but the log does not store clocks
    │   ├── SaveTooOld               the bounded store would evict this state immediately
    │   ├── StageTooLarge            the state does not fit on its device: nothing was written
    │   ├── StageUnserializable      the codec could not encode the state: nothing was written
    │   ├── NotSupported             the request cannot be carried out safely, or the feature does not exist
    │   ├── ProgramFailed            a user program could not be loaded, or one of its functions raised
    │   └── MissingExtra             an optional dependency is not installed
    ├── Absent (LookupError)         create it, or correct the path
    │   ├── NotFound                 no such key in the repository
    │   │   └── RepositoryMissing    no pipeline repository in this folder
    │   ├── BlocksMissing            no block file at this path
    │   ├── CheckpointMissing        no checkpoint with this id, or no savepoint with this name
    │   ├── CursorMissing            no cursor with this name
    │   ├── LogMissing               no event log in this folder
    │   ├── SinkMissing              no FileSink folder at this path
    │   ├── JavaMissing              no Java that Spark can run on
    │   └── StageBlank               the device holds no image yet
    ├── Busy                         wait, or stop the other process
    │   ├── Locked                   another live process holds the lock
    │   ├── AppendOpen               another append to this log is still open
    │   ├── CommitOpen               a commit into this folder did not finish in time
    │   ├── LeaseTaken               another writer took the lease at the same time
    │   ├── RequestUnanswered        the lease holder did not carry out a request in time
    │   ├── EpochClosed              the epoch was decided while this writer was paused: it must stop
    │   └── Fenced                   a newer lease was taken: this writer must stop
    ├── Mismatch                     open the right thing: this is intact, but not what was asked for
    │   ├── AlreadyExists            something already exists where a new one was to be created
    │   ├── UnsupportedVersion       written by a newer version of Holdfast
    │   ├── ManifestRefused          a manifest whose validation found errors
    │   ├── PlanOutdated             the repository has changed since the plan was made
    │   ├── CompactionOutdated       a sink's folder has changed since its compaction was planned
    │   ├── StateMismatch            the checkpoint state belongs to another stream
    │   ├── CursorRegionMismatch     the cursor was saved for another region
    │   ├── CursorLogMismatch        the cursor was saved for another log
    │   ├── CursorDiverged           the log has another history at the cursor's position
    │   ├── CursorAhead              the cursor is past the end of its log
    │   ├── LogDiverged              a stream has read a history that its event log does not contain
    │   ├── StageMismatch            the image belongs to another stage or type
    │   ├── StageStale               the image is older than the generation that was asked for
    │   ├── OffsetsDiverged          a decided epoch was replayed with different input
    │   ├── OffsetsGap               an epoch does not start where the last one ended
    │   ├── ReplayDiverged           replaying a decided epoch produced different rows
    │   ├── SparkLogMismatch         Spark's checkpoint folder and the decisions contradict each other
    │   ├── SinkBehind               a sink does not hold an epoch that was decided for it
    │   ├── SinkAhead                a sink holds epochs that this repository never decided
    │   ├── SinkForeign              a sink's target belongs to another pipeline, or to an earlier one of this name
    │   ├── SinksChanged             the stream's sinks are not those of its last decision
    │   ├── StreamChanged            the program declares a stream or sink differently than at its first start
    │   ├── SchemaMismatch           a table cannot store the columns of the stream
    │   └── StagedGone               the staged rows of an epoch no longer exist
    ├── Corrupt                      restore from a copy: bytes are damaged
    │   ├── StateCorrupt             a checkpoint state
    │   ├── ManifestCorrupt          a manifest
    │   ├── OperatorStateCorrupt     one operator's state inside a manifest or its sidecar
    │   ├── StageCorrupt             a stage image
    │   ├── BlocksCut                a block file with the wrong size
    │   ├── CursorCorrupt            a cursor file
    │   ├── LogCorrupt               an event log
    │   ├── CheckpointDamaged        a checkpoint: its manifest, or a file that it needs
    │   ├── StagedDamaged            a file that a sink staged for a decided epoch
    │   ├── SparkFileDamaged         a log or state file in Spark's checkpoint folder
    │   └── RecordCorrupt            a sealed record: lease, decision, identity, history
    ├── Storage                      fix the storage, then try again
    │   ├── StorageFailed            nothing was changed
    │   ├── BlockFailed              one block of a device could not be read or written
    │   ├── SinkFailed               a sink or its server failed
    │   │   └── SinkUnavailable      an outage: the server cannot be reached, or its disk is full
    │   ├── InDoubt                  an epoch is decided, but a sink could not commit it yet
    │   └── OutcomeUnknown           the change may or may not have taken effect: check before you try again
    └── Halted                       find the cause: work ended with an error
        ├── Closed                   the object was closed or released
        ├── StageHalted              an earlier checkpoint failed; the stage must be restored first
        ├── LogHalted                an earlier append failed; the log must be opened again first
        ├── WorkerFailed             a worker's handler failed and its restart budget is exhausted
        ├── PersistFailed            a worker could not save its position
        ├── CheckpointFailed         a checkpoint was aborted: nothing else has changed
        ├── CheckpointsFailed        more consecutive checkpoints failed than the policy tolerates
        ├── RequestFailed            the lease holder could not carry out a request
        ├── SessionFailed            Spark could not be started
        ├── SessionLost              the Spark session of a running pipeline ended
        ├── QueryFailed              Spark ended a stream's query with an error
        ├── DemoFailed               a job of the demo ended with an error
        └── StreamFailed             a stream failed and its restart budget is exhausted, or a restart could not help
            └── OutageTooLong        an outage lasted longer than the stream's policy allows

Each error carries its facts as attributes; its text ends with the next step. All of them can be pickled, because
they cross process boundaries on a cluster.

Import every name from `holdfast.errors`. Each family has a module of its own in this package; the modules are private.
"""

from holdfast.errors.absent import (
    Absent,
    BlocksMissing,
    CheckpointMissing,
    CursorMissing,
    JavaMissing,
    LogMissing,
    NotFound,
    RepositoryMissing,
    SinkMissing,
    StageBlank,
)
from holdfast.errors.bad_input import (
    BadInput,
    BadName,
    BadValue,
    ClockNotKept,
    MissingExtra,
    NotSupported,
    ProgramFailed,
    SaveTooOld,
    StageTooLarge,
    StageUnserializable,
)
from holdfast.errors.base import HoldfastError, describe_error, readable
from holdfast.errors.busy import (
    AppendOpen,
    Busy,
    CommitOpen,
    EpochClosed,
    Fenced,
    LeaseTaken,
    Locked,
    RequestUnanswered,
)
from holdfast.errors.corrupt import (
    BlocksCut,
    CheckpointDamaged,
    Corrupt,
    CursorCorrupt,
    LogCorrupt,
    ManifestCorrupt,
    OperatorStateCorrupt,
    RecordCorrupt,
    SparkFileDamaged,
    StageCorrupt,
    StagedDamaged,
    StateCorrupt,
)
from holdfast.errors.halted import (
    CheckpointFailed,
    CheckpointsFailed,
    Closed,
    DemoFailed,
    Halted,
    LogHalted,
    OutageTooLong,
    PersistFailed,
    QueryFailed,
    RequestFailed,
    SessionFailed,
    SessionLost,
    StageHalted,
    StreamFailed,
    WorkerFailed,
)
from holdfast.errors.mismatch import (
    AlreadyExists,
    CompactionOutdated,
    CursorAhead,
    CursorDiverged,
    CursorLogMismatch,
    CursorRegionMismatch,
    LogDiverged,
    ManifestRefused,
    Mismatch,
    OffsetsDiverged,
    OffsetsGap,
    PlanOutdated,
    ReplayDiverged,
    SchemaMismatch,
    SinkAhead,
    SinkBehind,
    SinkForeign,
    SinksChanged,
    SparkLogMismatch,
    StagedGone,
    StageMismatch,
    StageStale,
    StateMismatch,
    StreamChanged,
    UnsupportedVersion,
)
from holdfast.errors.storage import (
    BlockFailed,
    InDoubt,
    OutcomeUnknown,
    SinkFailed,
    SinkUnavailable,
    Storage,
    StorageFailed,
)

__all__ = [
    "Absent",
    "AlreadyExists",
    "AppendOpen",
    "BadInput",
    "BadName",
    "BadValue",
    "BlockFailed",
    "BlocksCut",
    "BlocksMissing",
    "Busy",
    "CheckpointDamaged",
    "CheckpointFailed",
    "CheckpointMissing",
    "CheckpointsFailed",
    "ClockNotKept",
    "Closed",
    "CommitOpen",
    "CompactionOutdated",
    "Corrupt",
    "CursorAhead",
    "CursorCorrupt",
    "CursorDiverged",
    "CursorLogMismatch",
    "CursorMissing",
    "CursorRegionMismatch",
    "DemoFailed",
    "EpochClosed",
    "Fenced",
    "Halted",
    "HoldfastError",
    "InDoubt",
    "JavaMissing",
    "LeaseTaken",
    "Locked",
    "LogCorrupt",
    "LogDiverged",
    "LogHalted",
    "LogMissing",
    "ManifestCorrupt",
    "ManifestRefused",
    "Mismatch",
    "MissingExtra",
    "NotFound",
    "NotSupported",
    "OffsetsDiverged",
    "OffsetsGap",
    "OperatorStateCorrupt",
    "OutageTooLong",
    "OutcomeUnknown",
    "PersistFailed",
    "PlanOutdated",
    "ProgramFailed",
    "QueryFailed",
    "RecordCorrupt",
    "ReplayDiverged",
    "RepositoryMissing",
    "RequestFailed",
    "RequestUnanswered",
    "SaveTooOld",
    "SchemaMismatch",
    "SessionFailed",
    "SessionLost",
    "SinkAhead",
    "SinkBehind",
    "SinkFailed",
    "SinkForeign",
    "SinkMissing",
    "SinkUnavailable",
    "SinksChanged",
    "SparkFileDamaged",
    "SparkLogMismatch",
    "StageBlank",
    "StageCorrupt",
    "StageHalted",
    "StageMismatch",
    "StageStale",
    "StageTooLarge",
    "StageUnserializable",
    "StagedDamaged",
    "StagedGone",
    "StateCorrupt",
    "StateMismatch",
    "Storage",
    "StorageFailed",
    "StreamChanged",
    "StreamFailed",
    "UnsupportedVersion",
    "WorkerFailed",
    "describe_error",
    "readable",
]
