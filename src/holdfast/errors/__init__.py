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
    │   ├── LastBatchUnknown         whether a sink has the last batch of a plain Spark query must be stated
    │   ├── ProgramFailed            a user program could not be loaded, or one of its functions raised
    │   └── MissingExtra             an optional dependency is not installed
    ├── Absent (LookupError)         create it, or correct the path
    │   ├── NotFound                 no such key in the repository
    │   │   └── RepositoryMissing    no pipeline repository in this folder
    │   ├── NotRunning               no process runs the pipeline
    │   ├── BlocksMissing            no block file at this path
    │   ├── CheckpointMissing        no checkpoint with this id, or no savepoint with this name
    │   ├── CursorMissing            no cursor with this name
    │   ├── LogMissing               no event log in this folder
    │   ├── SinkMissing              no FileSink folder at this path
    │   ├── SparkCheckpointMissing   no checkpoint folder of a Spark query at this path
    │   ├── JavaMissing              no Java that Spark can run on
    │   ├── ExecutorsUnfit           executors lack a package, a Java class, or access to the object store
    │   └── StageBlank               the device holds no image yet
    ├── Busy                         wait, or stop the other process
    │   ├── Locked                   another live process holds the lock
    │   ├── SparkQueryLive           a plain Spark query is still running
    │   ├── AppendOpen               another append to this log is still open
    │   ├── CommitOpen               a commit into this folder did not finish in time
    │   ├── LeaseHeld                the holder of the lease is alive, on this machine or another one
    │   ├── LeaseTaken               another writer took the lease at the same time
    │   ├── RequestUnanswered        the lease holder did not carry out a request in time
    │   ├── EpochClosed              the epoch was decided while this writer was paused: it must stop
    │   └── Fenced                   a newer lease was taken: this writer must stop
    │       └── CursorFenced         another process uses the cursor: this owner must stop
    ├── Mismatch                     resolve the difference: this is intact, but not what was expected
    │   ├── AlreadyExists            something already exists where a new one was to be created
    │   ├── UnsupportedVersion       written by a newer version of Holdfast
    │   ├── ManifestRefused          a manifest whose validation found errors
    │   ├── PlanOutdated             the repository or a sink has changed since the plan was made
    │   ├── RewindRefused            a rewind is not possible as it was requested
    │   ├── RewindUnfinished         a rewind was decided and did not finish; another program cannot finish it
    │   ├── CompactionOutdated       a sink's folder has changed since its compaction was planned
    │   ├── StateMismatch            the checkpoint state belongs to another stream
    │   ├── CursorRegionMismatch     the cursor was saved for another region
    │   ├── CursorLogMismatch        the cursor was saved for another log
    │   ├── CursorDiverged           the log has another history at the cursor's position
    │   ├── CursorAhead              the cursor is past the end of its log
    │   ├── LogTrimmed               a reader needs events that were removed from an event log
    │   ├── LogDiverged              a stream has read a history that its event log does not contain
    │   ├── LogRewound               a rewind has changed events that a reader has already read
    │   ├── StageMismatch            the image belongs to another stage or type
    │   ├── StageStale               the image is older than the generation that was asked for
    │   ├── OffsetsDiverged          a decided epoch was replayed with different input
    │   ├── OffsetsGap               an epoch does not start where the last one ended
    │   ├── SourceGap                a source no longer has the input that follows the last epoch, or was replaced
    │   ├── ReplayDiverged           replaying a decided epoch produced different rows
    │   ├── StoresDiffer             Spark's connector for S3 and Holdfast do not work on the same bucket
    │   ├── SparkLogMismatch         Spark's checkpoint folder and the decisions contradict each other
    │   ├── SourcesDiffer            a stream does not read what a plain Spark checkpoint has read
    │   ├── SinkBehind               a sink does not hold an epoch that was decided for it
    │   ├── SinkAhead                a sink holds epochs that this repository never decided
    │   ├── SinkForeign              a sink's target belongs to another pipeline, or to an earlier one of this name
    │   ├── MarkerLost               a Kafka topic no longer records which epochs it holds, or was created again
    │   ├── SinksChanged             the stream's sinks are not those of its last decision
    │   ├── StreamChanged            the program declares a stream or sink differently than at its first start
    │   ├── BackfillIncomplete       a sink lacks rows of its stream: a new sink cannot be filled from it
    │   ├── TimelineEnded            a rewind continues the stream in another timeline: this driver must stop
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
    │   ├── SparkCheckpointDamaged   a plain Spark checkpoint that no stream can continue
    │   ├── SparkFileDamaged         a log or state file in Spark's checkpoint folder
    │   └── RecordCorrupt            a sealed record: lease, decision, identity, history
    ├── Storage                      fix the storage, then try again
    │   ├── StorageFailed            nothing was changed
    │   │   ├── BucketMissing        there is no bucket of this name
    │   │   ├── StoreDenied          the object store refused the credentials or the request
    │   │   ├── StoreUnreachable     the object store could not be reached, or cannot answer now
    │   │   └── WrongRegion          the bucket is in another region
    │   ├── BucketUnsuitable         the object store lacks what a repository needs
    │   ├── BlockFailed              one block of a device could not be read or written
    │   ├── SinkFailed               a sink or its server failed
    │   │   └── SinkUnavailable      an outage: the server cannot be reached, or its disk is full
    │   ├── SourceFailed             a source could not be compared with the position of its stream
    │   │   └── SourceUnavailable    an outage: its server cannot be reached
    │   ├── FrozenRowsLost           the rows of an epoch were computed again between its sinks: nothing is decided
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
        ├── RequestLost              the lease holder took a request and ended before it answered
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
    ExecutorsUnfit,
    JavaMissing,
    LogMissing,
    NotFound,
    NotRunning,
    RepositoryMissing,
    SinkMissing,
    SparkCheckpointMissing,
    StageBlank,
)
from holdfast.errors.bad_input import (
    BadInput,
    BadName,
    BadValue,
    ClockNotKept,
    LastBatchUnknown,
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
    CursorFenced,
    EpochClosed,
    Fenced,
    LeaseHeld,
    LeaseTaken,
    Locked,
    RequestUnanswered,
    SparkQueryLive,
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
    SparkCheckpointDamaged,
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
    RequestLost,
    SessionFailed,
    SessionLost,
    StageHalted,
    StreamFailed,
    WorkerFailed,
)
from holdfast.errors.mismatch import (
    AlreadyExists,
    BackfillIncomplete,
    CompactionOutdated,
    CursorAhead,
    CursorDiverged,
    CursorLogMismatch,
    CursorRegionMismatch,
    LogDiverged,
    LogRewound,
    LogTrimmed,
    ManifestRefused,
    MarkerLost,
    Mismatch,
    OffsetsDiverged,
    OffsetsGap,
    PlanOutdated,
    ReplayDiverged,
    RewindRefused,
    RewindUnfinished,
    SchemaMismatch,
    SinkAhead,
    SinkBehind,
    SinkForeign,
    SinksChanged,
    SourceGap,
    SourcesDiffer,
    SparkLogMismatch,
    StagedGone,
    StageMismatch,
    StageStale,
    StateMismatch,
    StoresDiffer,
    StreamChanged,
    TimelineEnded,
    UnsupportedVersion,
)
from holdfast.errors.storage import (
    BlockFailed,
    BucketMissing,
    BucketUnsuitable,
    FrozenRowsLost,
    InDoubt,
    OutcomeUnknown,
    SinkFailed,
    SinkUnavailable,
    SourceFailed,
    SourceUnavailable,
    Storage,
    StorageFailed,
    StoreDenied,
    StoreUnreachable,
    WrongRegion,
)

__all__ = [
    "Absent",
    "AlreadyExists",
    "AppendOpen",
    "BackfillIncomplete",
    "BadInput",
    "BadName",
    "BadValue",
    "BlockFailed",
    "BlocksCut",
    "BlocksMissing",
    "BucketMissing",
    "BucketUnsuitable",
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
    "CursorFenced",
    "CursorLogMismatch",
    "CursorMissing",
    "CursorRegionMismatch",
    "DemoFailed",
    "EpochClosed",
    "ExecutorsUnfit",
    "Fenced",
    "FrozenRowsLost",
    "Halted",
    "HoldfastError",
    "InDoubt",
    "JavaMissing",
    "LastBatchUnknown",
    "LeaseHeld",
    "LeaseTaken",
    "Locked",
    "LogCorrupt",
    "LogDiverged",
    "LogHalted",
    "LogMissing",
    "LogRewound",
    "LogTrimmed",
    "ManifestCorrupt",
    "ManifestRefused",
    "MarkerLost",
    "Mismatch",
    "MissingExtra",
    "NotFound",
    "NotRunning",
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
    "RequestLost",
    "RequestUnanswered",
    "RewindRefused",
    "RewindUnfinished",
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
    "SourceFailed",
    "SourceGap",
    "SourceUnavailable",
    "SourcesDiffer",
    "SparkCheckpointDamaged",
    "SparkCheckpointMissing",
    "SparkFileDamaged",
    "SparkLogMismatch",
    "SparkQueryLive",
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
    "StoreDenied",
    "StoreUnreachable",
    "StoresDiffer",
    "StreamChanged",
    "StreamFailed",
    "TimelineEnded",
    "UnsupportedVersion",
    "WorkerFailed",
    "WrongRegion",
    "describe_error",
    "readable",
]
