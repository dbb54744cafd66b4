"""Every error of Holdfast, sorted by what the caller does next.

    HoldfastError
    ├── BadInput (ValueError)        correct the call: nothing was touched
    │   ├── BadName                  a name or key that may not become part of a path
    │   ├── BadValue                 an argument outside its range
    │   ├── ClockNotKept             a region asks for entity clocks of a log that keeps none
    │   ├── SaveTooOld               the bounded store would evict this state at once
    │   ├── StageTooLarge            the state does not fit its device: nothing was written
    │   ├── StageUnserializable      the codec could not turn the state into bytes: nothing was written
    │   ├── NotSupported             asked for something that would not hold, or is not there
    │   ├── ProgramFailed            a program that was to be loaded, or a function of it, raised
    │   └── MissingExtra             an optional dependency is not installed
    ├── Absent (LookupError)         create it, or correct the path
    │   ├── NotFound                 no such key in the repository
    │   │   └── RepositoryMissing    no pipeline repository in this folder
    │   ├── BlocksMissing            no file of blocks at this path
    │   ├── CheckpointMissing        no checkpoint or savepoint of this id or name
    │   ├── CursorMissing            no cursor of this name
    │   ├── LogMissing               no event log in this folder
    │   ├── SinkMissing              no FileSink's folder at this path
    │   ├── JavaMissing              no Java that Spark could run on
    │   └── StageBlank               the device holds no image yet
    ├── Busy                         somebody else has it: wait, or stop the other
    │   ├── Locked                   another live process holds the lock
    │   ├── AppendOpen               an append to this log is under way already
    │   ├── CommitOpen               a commit into this folder does not end
    │   ├── LeaseTaken               another writer took the lease at the same moment
    │   ├── RequestUnanswered        the holder of the lease did not do in time what it was asked for
    │   ├── EpochClosed              the epoch was decided long ago: this writer was paused, and must stop
    │   └── Fenced                   a newer lease was taken: this writer must stop
    ├── Mismatch                     sound, but not what was asked for: open the right thing
    │   ├── AlreadyExists            something stands where a new thing was to be made
    │   ├── UnsupportedVersion       written by a newer Holdfast
    │   ├── ManifestRefused          a manifest whose validation found errors
    │   ├── PlanOutdated             a plan was made before something else was done
    │   ├── CompactionOutdated       a sink's folder is not any more what its compaction was planned for
    │   ├── StateMismatch            the checkpoint state is another stream's
    │   ├── CursorRegionMismatch     the cursor was saved for another region
    │   ├── CursorLogMismatch        the cursor was saved for another log
    │   ├── CursorDiverged           the log went back and took another course before the cursor's position
    │   ├── CursorAhead              the cursor stands past the end of its log
    │   ├── LogDiverged              a stream has read a history that its event log does not have
    │   ├── StageMismatch            the image belongs to another stage or type
    │   ├── StageStale               the image is older than the generation asked for
    │   ├── OffsetsDiverged          a decided epoch came back with other input
    │   ├── OffsetsGap               an epoch does not begin where the last one ended
    │   ├── ReplayDiverged           a decided epoch came back with other rows: the state is not the same
    │   ├── SparkLogMismatch         Spark's checkpoint folder and the decisions tell different stories
    │   ├── SinkBehind               a sink does not hold what was decided for it
    │   ├── SinkAhead                a sink holds epochs that this repository never decided
    │   ├── SinkForeign              a sink's place belongs to another pipeline, or to an earlier one of this name
    │   ├── SinksChanged             the stream's sinks are not those of its last decision
    │   ├── StreamChanged            the program says something else of a stream or sink than when it began
    │   ├── SchemaMismatch           a table does not take the columns of the stream
    │   └── StagedGone               what was prepared for an epoch is not there any more
    ├── Corrupt                      bytes are damaged: restore them from a copy
    │   ├── StateCorrupt             a checkpoint state
    │   ├── ManifestCorrupt          a manifest
    │   ├── OperatorStateCorrupt     one operator's state inside a manifest or its sidecar
    │   ├── StageCorrupt             a stage image
    │   ├── BlocksCut                a file of blocks that has not its size any more
    │   ├── CursorCorrupt            a cursor file
    │   ├── LogCorrupt               an event log
    │   ├── CheckpointDamaged        a checkpoint: its manifest, or a file that it needs
    │   ├── StagedDamaged            a file that a sink staged for a decided epoch
    │   ├── SparkFileDamaged         a file of Spark's own checkpoint folder: a log or state
    │   └── RecordCorrupt            a sealed record: lease, decision, identity, history
    ├── Storage                      the storage said no: mend it, then try again
    │   ├── StorageFailed            nothing was changed
    │   ├── BlockFailed              one block of a device could not be read or written
    │   ├── SinkFailed               a sink, or the server behind it, failed
    │   │   └── SinkUnavailable      its server cannot be reached, or its disk is full: an outage
    │   ├── InDoubt                  an epoch is decided, and a sink could not take it yet
    │   └── OutcomeUnknown           it may or may not have happened: look before trying again
    └── Halted                       work ended for a reason: look at the cause
        ├── Closed                   it was closed or given back; somebody else may have it now
        ├── StageHalted              a checkpoint failed earlier; the stage must be restored first
        ├── LogHalted                an append failed earlier; the log must be opened again first
        ├── WorkerFailed             a worker's handler failed and its restart budget is used up
        ├── PersistFailed            a worker could not save its position
        ├── CheckpointFailed         a checkpoint was given up: nothing else has changed
        ├── CheckpointsFailed        more checkpoints in a row failed than are tolerable
        ├── RequestFailed            the holder of the lease could not do what it was asked for
        ├── SessionFailed            Spark could not be started
        ├── SessionLost              the Spark session ended under a running pipeline
        ├── QueryFailed              Spark ended a stream's query with an error
        ├── DemoFailed               a worker of the demo ended by itself, with an error
        └── StreamFailed             a stream failed and its restart budget is used up, or a restart could not help
            └── OutageTooLong        a stream waited for an outage to end as long as its policy allows

Each error carries its facts as attributes; its text ends with the next step. All of them can be pickled, because
they cross process boundaries on a cluster.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import ClassVar, dataclass_transform


def _rebuild(cls: type[HoldfastError], facts: dict[str, object]) -> HoldfastError:
    error = cls.__new__(cls)
    error.__dict__.update(facts)
    return error


def _shown(value: object) -> str:
    try:
        text = ascii(value)
    except Exception as error:  # a number of 5,000 digits refuses, and anything of the user's may
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


_RETRIED = "_retried"


def _ended(text: str) -> str:
    """Return a text with a full stop, unless it ends with a mark of its own."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


@dataclass_transform(kw_only_default=True, eq_default=False)
class HoldfastError(Exception):
    """The root of all errors that Holdfast raises on purpose.

    A subclass declares its facts as fields and its text as two templates, in which `e` is the error itself.
    """

    says: ClassVar[str] = "Holdfast failed"
    next_step: ClassVar[str] = "read the cause"

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(eq=False, repr=False, kw_only=True)(cls)

    @property
    def summary(self) -> str:
        """What is wrong, without the next step: for a text that goes on, or has a next step of its own."""
        return self.says.format(e=self)

    def __str__(self) -> str:
        return f"{_ended(self.summary)} Next: {_ended(vars(self).get(_RETRIED) or self.next_step.format(e=self))}"

    def retried(self, how: str) -> None:
        """Replace the next step: the work is retried automatically; `how` says when."""
        vars(self)[_RETRIED] = f"nothing to do now, {how}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), dict(vars(self)))


def readable(text: str) -> str:
    """Return text that can be written as UTF-8, whatever was in it."""
    return text.encode("utf-8", "backslashreplace").decode()


def in_words(error: BaseException) -> str:
    """Return an exception's type and text, whatever its text does."""
    try:
        text = error.summary if isinstance(error, HoldfastError) else str(error)
    except Exception:  # a text that cannot be made must not hide the failure
        text = "(its text cannot be shown)"
    return readable(f"{type(error).__name__}: {text}")


# --- correct the call ------------------------------------------------------------------------------------------------


class BadInput(HoldfastError, ValueError):
    """The call was wrong; nothing was touched."""


class BadName(BadInput):
    """A name or key that may not become part of a path."""

    kind: str
    name: object
    why: str
    says = "{e.kind} name {e.shown} is refused: {e.why}"
    next_step = "{e.rule}"
    rule: str = "use 1 to 64 of the characters A-Z a-z 0-9 _ . - and begin with a letter or digit"

    @property
    def shown(self) -> str:
        """The name, safe to print: escaped, and cut where it is long."""
        return _shown(self.name)


class BadValue(BadInput):
    """An argument of the wrong type or outside its range.

    `expected` names what would be valid; `why` gives the reason. One of them, or both, is given.
    """

    what: str
    value: object
    why: str | None = None
    expected: str | None = None
    do: str = "correct the argument"
    says = "invalid {e.what} {e.shown}: {e.reason}"
    next_step = "{e.do}"

    @property
    def reason(self) -> str:
        """What would be valid, and why this value is not; whichever of them is known."""
        parts = [self.expected and f"expected {self.expected}", self.why]
        return "; ".join(part for part in parts if part) or "not valid here"

    @property
    def shown(self) -> str:
        """The value, safe to print: escaped, and cut where it is long."""
        return _shown(self.value)


class ClockNotKept(BadInput):
    """A region filters by entity clock, but the log keeps none."""

    log: str
    says = "the event log {e.log} keeps no entity clock, so a region cannot filter by it"
    next_step = "leave the clock out of the region, or create the log with keep_clock=True"


class SaveTooOld(BadInput):
    """The bounded store would evict this state at once."""

    stream: str
    sequence: int
    oldest: int
    limit: int
    says = (
        "state {e.sequence} of stream {e.stream!r} would be evicted at once: the store keeps {e.limit} "
        "and its oldest is {e.oldest}"
    )
    next_step = "save a newer state, or make a store that keeps more"


class StageTooLarge(BadInput):
    """The state does not fit its device. Nothing was written; the previous state is untouched."""

    stage: str
    size: int
    capacity: int
    step: str = "too large"
    says = "stage {e.stage!r}: {e.step}: {e.size} bytes where the device holds {e.capacity}"
    next_step = "use a larger device; the last checkpoint on this one still stands"


class StageUnserializable(BadInput):
    """The codec could not turn the state into bytes. Nothing was written."""

    stage: str
    why: str
    step: str = "serialize"
    do: str = "correct the state or its codec, then restore the stage"
    says = "stage {e.stage!r}: {e.step}: {e.why}"
    next_step = "{e.do}"


class NotSupported(BadInput):
    """What was asked for would not hold, or is not there. `why` gives the reason."""

    what: str
    why: str
    do: str = "choose another way"
    says = "{e.what} is refused: {e.why}"
    next_step = "{e.do}"


class ProgramFailed(BadInput):
    """A user's program could not be loaded, or a function of it raised. `trace` holds their own frames, no others."""

    program: str
    why: str
    trace: str
    do: str = "mend the program, then run it again"
    says = "{e.program} could not be run: {e.why}"
    next_step = "{e.do}"


class MissingExtra(BadInput, ImportError):
    """An optional dependency is not installed."""

    extra: str
    module: str
    says = "the Python package {e.module!r} is needed for this and is not installed"
    next_step = "pip install 'holdfast-spark[{e.extra}]'"


# --- create it, or correct the path ----------------------------------------------------------------------------------


class Absent(HoldfastError, LookupError):
    """There is nothing there."""


class NotFound(Absent):
    """No such key in the repository."""

    key: str
    where: str
    says = "{e.key!r} is not in {e.where}"
    next_step = "check the name and the repository's root"


class RepositoryMissing(NotFound):
    """There is no pipeline repository at this place: a folder with a `holdfast.json`."""

    why: str = "it has no holdfast.json"
    says = "there is no pipeline repository at {e.where}: {e.why}"
    next_step = (
        "name the pipeline's own folder, which it makes when it is first started: holdfast ls --repo <root>/<pipeline>"
    )


class BlocksMissing(Absent):
    """No file of blocks at this path."""

    path: str
    says = "there is no file of blocks at {e.path}"
    next_step = "check the path, or make one with FileBlocks.create"


class CheckpointMissing(Absent):
    """No checkpoint of this id, or no savepoint of this name."""

    checkpoint: int | str
    where: str
    why: str = ""  # why it is not there any more
    says = "there is no {e.kind} in {e.where}{e.reason}"
    next_step = "{e.advice}"

    @property
    def reason(self) -> str:
        """Why it is not there, where that is known."""
        return f": {self.why}" if self.why else ""

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.checkpoint == 0:
            return "run the pipeline, without --no-checkpoints or checkpoint_every=None: holdfast run app.py:pipeline"
        text = f"list what there is: holdfast ls --repo {shlex.quote(self.where)}"
        named = isinstance(self.checkpoint, str) and self.checkpoint.isdecimal()
        return f"{text}; an id is a number, not text" if named else text

    @property
    def kind(self) -> str:
        """What was asked for, for people."""
        if self.checkpoint == 0:
            return "checkpoint that could be restored"
        is_id = isinstance(self.checkpoint, int)
        return f"checkpoint {self.checkpoint}" if is_id else f"savepoint {self.checkpoint!r}"


class CursorMissing(Absent):
    """No cursor of this name was ever saved."""

    cursor: str
    where: str
    says = "there is no cursor {e.cursor!r} in {e.where}"
    next_step = "{e.advice}"

    @property
    def advice(self) -> str:
        """What to type next."""
        return f"list what there is: holdfast cursor ls --repo {shlex.quote(self.where)}"


class LogMissing(Absent):
    """No event log in this folder."""

    path: str
    says = "there is no event log at {e.path}"
    next_step = "check the path, or run the pipeline that writes it, or make one with EventLog.create"


class SinkMissing(Absent):
    """No FileSink's folder at this path."""

    path: str
    why: str
    says = "there is no FileSink's folder at {e.path}: {e.why}"
    next_step = "name the folder that the pipeline's FileSink was given"


class JavaMissing(Absent):
    """Spark runs on Java, and there is none where it looks, or one that is too old."""

    why: str
    says = "Spark needs Java 17 or newer: {e.why}"
    next_step = (
        "install one (`apt install openjdk-17-jre-headless`, `dnf install java-17-openjdk-headless`), "
        "or say where it is: export JAVA_HOME=/path/to/java"
    )


class StageBlank(Absent):
    """The device holds no image yet: every header is blank."""

    stage: str
    says = "the device of stage {e.stage!r} holds no image"
    next_step = "start the stage with an initial state and call checkpoint()"


# --- wait, or stop the other -----------------------------------------------------------------------------------------


class Busy(HoldfastError):
    """Somebody else has it."""


class Locked(Busy):
    """Another live process, or another holder in this one, has the lock. `pid` is 0 where the system does not tell."""

    what: str
    pid: int
    own: bool = False  # this process has it already
    do: str = "close or release the one that you have, or go on with that"  # where this process has it
    says = "{e.what} is held by {e.holder}"
    next_step = "{e.advice}"

    @property
    def holder(self) -> str:
        """Who has it, for people."""
        if self.own:
            return f"process {self.pid}, which is this one"
        return f"process {self.pid}" if self.pid else "another process"

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.own:
            return self.do
        return "stop that process, or wait until it ends"


class AppendOpen(Busy):
    """An append to this log is under way already; there is one at a time."""

    path: str
    says = "an append to event log {e.path} is open already"
    next_step = "commit or abort that one first"


class CommitOpen(Busy):
    """A commit into a sink's folder does not end: its driver was paused. Nothing was changed."""

    path: str
    seconds: float
    says = "a commit into {e.path} did not end within {e.seconds} s"
    next_step = "look for a driver that is paused, and wake or end it; then compact again"


class LeaseTaken(Busy):
    """Another writer took this lease number at the same moment."""

    number: int
    holder: str
    says = "lease {e.number} was taken by {e.holder} at the same moment"
    next_step = "leave the pipeline to that process; take the lease again only to replace it"


class Fenced(Busy):
    """A newer lease was taken: this writer has been replaced and must stop."""

    number: int
    newer: int
    holder: str
    says = "lease {e.number} was replaced by lease {e.newer}, held by {e.holder}"
    next_step = "end this process; the newer one goes on with the pipeline"


class RequestUnanswered(Busy):
    """The holder of the lease did not answer in time. It may still be at it, and will pass the request over later."""

    request: str
    holder: str
    seconds: float
    shared: bool = False
    says = "request {e.request} was not answered within {e.seconds:g} s by {e.holder}, which has the lease"
    next_step = "{e.advice}"

    @property
    def advice(self) -> str:
        """What to do about it."""
        text = "see that it takes checkpoints, between which it answers, and ask again: holdfast prune --timeout 30m"
        return f"{text}; if it has ended: holdfast prune --take-over" if self.shared else text


class EpochClosed(Busy):
    """The epoch was decided, and its slots pruned, while this writer was paused. Nothing was changed."""

    stream: str
    epoch: int
    floor: int
    says = "epoch {e.epoch} of stream {e.stream!r} was closed long ago: decisions before epoch {e.floor} are pruned"
    next_step = "end this process; a newer one has gone on with the pipeline"


# --- open the right thing --------------------------------------------------------------------------------------------


class Mismatch(HoldfastError):
    """What was found is sound, but it is not what was asked for."""


class AlreadyExists(Mismatch):
    """Something stands where a new thing was to be made."""

    what: str
    do: str = "open it instead, or choose another path"
    says = "{e.what} exists already"
    next_step = "{e.do}"


class UnsupportedVersion(Mismatch):
    """Written by a newer Holdfast, or by a program that is not Holdfast."""

    what: str
    found: int
    known: str
    step: str = "unsupported version"
    says = "{e.what}: {e.step} {e.found}; this Holdfast reads {e.known}"
    next_step = "upgrade Holdfast, or open it with the version that wrote it"


class ManifestRefused(Mismatch):
    """A manifest whose validation found errors. `issues` holds all of them."""

    checkpoint: int
    issues: tuple[str, ...]
    says = "checkpoint {e.checkpoint} cannot be restored: {e.listed}"
    next_step = "restore an older checkpoint; see which are sound: holdfast verify --all"

    @property
    def listed(self) -> str:
        """The issues in one line."""
        return "; ".join(self.issues)


class PlanOutdated(Mismatch):
    """A plan was made before another checkpoint was begun. Nothing was changed."""

    planned: int
    highest: int
    says = "the plan was made when {e.planned} was the highest checkpoint id, and now it is {e.highest}"
    next_step = "make the plan again, and apply that: holdfast prune"


class CompactionOutdated(Mismatch):
    """A sink's folder is not any more what its compaction was planned for. Nothing was changed."""

    path: str
    why: str
    says = "the compaction of {e.path} was given up: {e.why}"
    next_step = "make the plan again, and apply that"


class StateMismatch(Mismatch):
    """The checkpoint state is sound, and another stream's."""

    found: str
    asked: str
    says = "the checkpoint state is of stream {e.found!r}, not {e.asked!r}"
    next_step = "read it under its own stream, or the state of the stream that you want"


class CursorRegionMismatch(Mismatch):
    """The cursor was saved for another region, or for none."""

    cursor: str
    saved: str | None
    asked: str
    says = "cursor {e.cursor!r} was saved for region {e.saved} and is opened for {e.asked}"
    next_step = "open it with the region that it was saved for, or choose another cursor name"


class CursorLogMismatch(Mismatch):
    """The cursor was saved for another log."""

    cursor: str
    saved: str
    asked: str
    says = "cursor {e.cursor!r} belongs to log {e.saved} and is opened on log {e.asked}"
    next_step = "open it on its own log, or choose another cursor name"


class CursorDiverged(Mismatch):
    """The log was restored from an older copy and written to since: the cursor's position is now another event's."""

    cursor: str
    position: int
    says = "cursor {e.cursor!r} stands at sequence {e.position} of a history that its log no longer has"
    next_step = "restore the log, or, where it was meant to go back, delete the cursor to read it anew"


class CursorAhead(Mismatch):
    """The cursor stands past the end of its log: the log was restored from a backup, or it is another one."""

    cursor: str
    position: int
    tail: int
    says = "cursor {e.cursor!r} stands at sequence {e.position}, but its log ends before sequence {e.tail}"
    next_step = "restore the log, or, where it was meant to go back, delete the cursor to read it anew"


class LogDiverged(Mismatch):
    """A stream has read a history that its event log does not have: it is another log, or went back."""

    path: str
    sequence: int
    why: str
    says = "event log {e.path}: the stream has read up to sequence {e.sequence}, and {e.why}"
    next_step = "restore the log, or, where it was meant to go back, read it anew by a stream of another name"


class StageMismatch(Mismatch):
    """The image belongs to another stage or holds another type of state."""

    what: str
    found: str
    asked: str
    says = "the stage image's {e.what} is {e.found!r}, not {e.asked!r}"
    next_step = "open the device that belongs to this stage"


class StageStale(Mismatch):
    """The newest image that can be read is not the generation asked for."""

    stage: str
    found: int
    asked: int
    says = "stage {e.stage!r}: generation {e.asked} was asked for and the device gives {e.found}"
    next_step = "restore the device from a copy that holds generation {e.asked}"


class OffsetsDiverged(Mismatch):
    """A decided epoch came back with other input than it was decided with: Spark's log was lost, or changed."""

    stream: str
    epoch: int
    what: str
    says = "epoch {e.epoch} of stream {e.stream!r} is decided, and came back with another {e.what}"
    next_step = "put the stream's spark/ folder back as it was; do not delete the decision: sinks may hold its rows"


class OffsetsGap(Mismatch):
    """An epoch does not begin where the last decided one ended: input was skipped, or would be read twice."""

    stream: str
    epoch: int
    source: int
    partition: str
    ended: str
    begins: str
    says = (
        "epoch {e.epoch} of stream {e.stream!r} begins at {e.begins} of source {e.source}{e.of_partition}, "
        "but the epoch before it ended at {e.ended}"
    )
    next_step = (
        "put the stream's spark/ folder back as it was, or record the gap and go on by holdfast run --accept gaps, or "
        "pipeline.run(accept=['gaps'])"
    )

    @property
    def of_partition(self) -> str:
        """The partition, where the source tells one."""
        return f" partition {self.partition}" if self.partition else ""


class ReplayDiverged(Mismatch):
    """A decided epoch gave other rows when its state was rebuilt: sinks hold the first ones, the state the second."""

    stream: str
    epoch: int
    decided: str
    found: str
    says = (
        "epoch {e.epoch} of stream {e.stream!r} gave other rows when its state was rebuilt "
        "({e.decided} when decided, {e.found} now): the query is not deterministic"
    )
    next_step = (
        "make the query deterministic, or keep the rebuilt state, which is recorded, by holdfast run --accept replay "
        "or pipeline.run(accept=['replay'])"
    )


class SparkLogMismatch(Mismatch):
    """Spark's checkpoint folder and the decisions tell different stories."""

    stream: str
    path: str
    why: str
    says = "the Spark checkpoint {e.path} of stream {e.stream!r} does not fit its decisions: {e.why}"
    next_step = (
        "put the folder back from the same moment as the decisions: a copy, or a checkpoint at the last decided epoch "
        "(holdfast ls shows the epochs, restore_stream writes the folder); nothing was changed"
    )


class SinkBehind(Mismatch):
    """A sink does not hold what was decided for it: it was restored from an older copy, or lost a write."""

    stream: str
    sink: str
    holds: int
    decided: int
    committed: bool = True  # False: it may be that the epoch was only decided
    says = "sink {e.sink!r} of stream {e.stream!r} holds epoch {e.holds}, but epoch {e.decided} was {e.what}"
    next_step = (
        "restore {e.lost} from a copy that holds epoch {e.decided}, the last one with rows for it: what was staged is "
        "not there any more; or give the sink up by another name and an empty target, with holdfast run --accept sinks"
    )

    @property
    def what(self) -> str:
        """What was done with the epoch."""
        return "committed to it" if self.committed else "decided, and what was staged for it is gone"

    @property
    def lost(self) -> str:
        """What can be restored."""
        return "the sink" if self.committed else "the sink or its staging folder"


class SinkAhead(Mismatch):
    """A sink holds epochs that this repository never decided: the repository was restored from an older copy."""

    stream: str
    sink: str
    holds: int
    decided: int
    says = (
        "sink {e.sink!r} of stream {e.stream!r} holds epoch {e.holds}, but the last decision here is epoch {e.decided}"
    )
    next_step = "restore the repository's newest copy, or the sink from the same moment as the repository"


class SinkForeign(Mismatch):
    """A sink's place belongs to another pipeline, or to an earlier one of the same name."""

    sink: str
    place: str
    owner: str
    do: str = (
        "use that pipeline's repository, or choose another place: appending here would write rows twice; "
        "to begin again from nothing, remove what the sink holds and its ledger (see docs/howto.md)"
    )
    says = "sink {e.sink!r}: {e.place} belongs to {e.owner}"
    next_step = "{e.do}"


class SinksChanged(Mismatch):
    """The stream's sinks are not those of its last decision."""

    stream: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    in_doubt: int = 0  # the epoch that a removed sink may not hold yet
    says = "the sinks of stream {e.stream!r} changed since its last decision: {e.changes}"
    next_step = "{e.advice}"

    @property
    def changes(self) -> str:
        """What has changed, for people."""
        both = (("added", self.added), ("removed", self.removed))
        return "; ".join(f"{what} {', '.join(map(repr, names))}" for what, names in both if names)

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.in_doubt:
            return f"run once with the same sinks first: epoch {self.in_doubt} may not be in the removed ones yet"
        return (
            "give the same sinks (by name), or go on with these by holdfast run --accept sinks, or "
            "pipeline.run(accept=['sinks']): an added sink begins with the next epoch, a removed one gets nothing more"
        )


class StreamChanged(Mismatch):
    """The program says something else of a stream, or of one of its sinks, than when it began."""

    what: str
    before: str
    now: str
    says = "{e.what} was {e.before} when it began, and is {e.now} now"
    next_step = "put it back as it was, or begin anew under another name and with another target"


class SchemaMismatch(Mismatch):
    """A table does not take the columns of the stream."""

    sink: str
    table: str
    why: str
    do: str = "change the table or the stream's columns; nothing was written"
    says = "sink {e.sink!r}: table {e.table} does not take the stream's rows: {e.why}"
    next_step = "{e.do}"


class StagedGone(Mismatch):
    """What was prepared for an epoch is not there any more, and the epoch was never made visible."""

    sink: str
    epoch: int
    says = "sink {e.sink!r}: what was staged for epoch {e.epoch} is gone, and the epoch is not visible"
    next_step = "restore the sink from a copy that holds it"


# --- restore from a copy ---------------------------------------------------------------------------------------------


class Corrupt(HoldfastError):
    """Bytes are damaged. They are never replaced by defaults."""


class StateCorrupt(Corrupt):
    """A checkpoint state cannot be decoded; `offset` is the byte where reading stopped."""

    offset: int
    why: str
    where: str = "checkpoint state"
    says = "{e.where} is damaged at byte {e.offset}: {e.why}"
    next_step = "restore the file from a copy, or recover from the state before it"


class ManifestCorrupt(Corrupt):
    """A manifest, or its sidecar as a whole, cannot be trusted."""

    why: str
    says = "manifest is damaged: {e.why}"
    next_step = "restore the file from a copy, or recover from the checkpoint before it"


class OperatorStateCorrupt(Corrupt):
    """One operator's state cannot be trusted. It is never replaced by an empty one."""

    operator: str
    why: str
    says = "state of operator {e.operator!r} is damaged: {e.why}"
    next_step = "restore the checkpoint's files from a copy, or recover from the checkpoint before it"


class StageCorrupt(Corrupt):
    """No slot of a stage image can be trusted. `step` says where reading failed."""

    stage: str
    step: str
    why: str
    says = "stage {e.stage!r}: {e.step}: {e.why}"
    next_step = "restore the device from a copy"


class BlocksCut(Corrupt):
    """A file of blocks has not its size any more: it was cut, or is no such file."""

    path: str
    size: int
    says = "file of blocks {e.path} is damaged: {e.size} bytes are no whole blocks"
    next_step = "restore it from a copy, or check the path"


class CursorCorrupt(Corrupt):
    """A cursor file cannot be decoded."""

    cursor: str
    file: str
    why: str
    says = "cursor {e.cursor!r} is damaged: {e.file}: {e.why}"
    next_step = "restore {e.file} from a copy; deleting it would read the log from its beginning"


class CheckpointDamaged(Corrupt):
    """A checkpoint cannot be restored: its manifest is damaged, or a file that it needs. Others may be sound."""

    checkpoint: int | str
    why: str
    offered: int | None = None  # the one before it that seems sound
    says = "checkpoint {e.checkpoint} is damaged: {e.why}"
    next_step = "{e.advice}"

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.offered is None:
            return "there is no checkpoint before it: restore the repository from a copy, then holdfast verify --all"
        return f"restore the files from a copy, or use the one before it: holdfast verify {self.offered}"


class SparkFileDamaged(Corrupt):
    """A file in a stream's Spark checkpoint folder is damaged or missing: of a log, or of its state."""

    stream: str
    path: str
    why: str = "its bytes are not those that Spark wrote"
    says = "Spark's file {e.path} of stream {e.stream!r} is damaged: {e.why}"
    next_step = (
        "restore the file from a copy of the repository, or the folder from a checkpoint at the last decided epoch "
        "(holdfast ls lists the epochs, restore_stream writes the folder); nothing was changed"
    )


class LogCorrupt(Corrupt):
    """An event log's index, head or segment is damaged; `part` says which."""

    path: str
    part: str
    why: str
    says = "event log {e.path}: {e.part} is damaged: {e.why}"
    next_step = "restore the log from a copy; for a torn head alone, holdfast.logwriter.repair(path) rebuilds it"


class StagedDamaged(Corrupt):
    """What was staged for a decided epoch is damaged, incomplete or mixed with other files; none of it is visible."""

    sink: str
    epoch: int
    path: str
    why: str
    do: str = (
        "restore this file from a copy and run again: the epoch is then committed. A decided epoch is never computed "
        "again, so without such a copy restore the repository and all sinks from one earlier moment (docs/howto.md, "
        "'Back up and restore a repository'); see which epoch it is: holdfast doubt"
    )
    says = "sink {e.sink!r}: {e.path}, staged for epoch {e.epoch}, is damaged: {e.why}"
    next_step = "{e.do}"


class RecordCorrupt(Corrupt):
    """A sealed record of the repository (lease, decision, identity, history) fails its digest or its form."""

    key: str
    why: str
    says = "record {e.key!r} is damaged: {e.why}"
    next_step = "restore the file from a copy; see what else is damaged: holdfast verify --all"


# --- mend the storage ------------------------------------------------------------------------------------------------


class Storage(HoldfastError):
    """The storage said no."""


class StorageFailed(Storage):
    """A read or write failed, and nothing was changed."""

    action: str
    key: str
    why: str
    says = "{e.action} {e.key!r} failed: {e.why}"
    next_step = "mend the storage (space, rights, connection), then try again"


class BlockFailed(Storage):
    """One block of a device could not be read or written; `block` counts from the header, which is 0."""

    stage: str
    action: str
    block: int
    why: str
    says = "stage {e.stage!r}: {e.step}: {e.why}"
    next_step = "mend the device, then restore the stage"

    @property
    def step(self) -> str:
        """What was being done, as in `write block 3`; a flush is of the whole device."""
        return self.action if self.action == "flush" else f"{self.action} block {self.block}"


class SinkFailed(Storage):
    """A sink, or the server behind it, failed. Whether the change took effect may be open: the epoch knows."""

    sink: str
    action: str
    why: str
    do: str = "mend the sink (server, rights, space), then run again: the epoch goes on where it was"
    says = "sink {e.sink!r} could not {e.action}: {e.why}"
    next_step = "{e.do}"


class SinkUnavailable(SinkFailed):
    """The server of a sink cannot be reached, or its storage is full, read-only or locked. A running pipeline waits.

    Raise it from a sink of your own for a problem that ends without a change to the program, its rows or the table.
    """


class InDoubt(Storage):
    """An epoch is decided, and a sink could not take it yet. Nothing is lost: it is committed at the next start."""

    stream: str
    epoch: int
    sinks: tuple[str, ...]
    why: str
    says = (
        "epoch {e.epoch} of stream {e.stream!r} is decided but in doubt: not yet committed to {e.listed}: {e.why}; "
        "nothing is lost"
    )
    next_step = "mend the sink, then run the pipeline again: it finishes the epoch first; see: holdfast doubt"

    @property
    def listed(self) -> str:
        """The sinks in one line."""
        return ", ".join(self.sinks)


class OutcomeUnknown(Storage):
    """The change may or may not be durable: the failure came after the point where it could take effect."""

    action: str
    key: str
    why: str
    says = "{e.action} {e.key!r} may or may not have taken effect: {e.why}"
    next_step = "read it back before trying again"


# --- look at the cause -----------------------------------------------------------------------------------------------


class Halted(HoldfastError):
    """Work ended for a reason; the cause is chained."""


class Closed(Halted):
    """It was closed or given back, so that somebody else may have it now."""

    what: str
    do: str = "open it again"
    says = "{e.what} was closed, or is not this process's"
    next_step = "{e.do}"


class StageHalted(Halted):
    """A checkpoint failed earlier, so what the device holds is in doubt until it is read back."""

    stage: str
    says = "stage {e.stage!r} takes no checkpoint: an earlier one failed"
    next_step = "restore it: CheckpointedStage.restore(stage.into_blocks(), ...)"


class LogHalted(Halted):
    """An append failed earlier, so what the log holds is in doubt until it is opened again."""

    path: str
    says = "event log {e.path} takes no append: an earlier one failed"
    next_step = "close it and open it again, and look at its tail before repeating the append"


class WorkerFailed(Halted):
    """A handler failed and the restart budget is used up."""

    worker: str
    restarts: int
    policy: str
    position: int | None
    why: str
    says = (
        "worker {e.worker!r} gave up after {e.restarts} restarts (its policy: {e.policy}): {e.why}; "
        "its last position is {e.position}"
    )
    next_step = "mend the cause, then start the worker again: it goes on after that position"


class PersistFailed(Halted):
    """A worker could not save its position. It rolled back to the last saved one and stopped."""

    worker: str
    position: int | None
    why: str
    says = "worker {e.worker!r} could not save its position: {e.why}; the last saved one is {e.position}"
    next_step = "mend the storage, then start the worker again: it repeats the last batch"


class CheckpointFailed(Halted):
    """A checkpoint was given up. Its id is burnt; nothing else has changed, and the next one is tried as planned."""

    checkpoint: int
    why: str
    late: tuple[str, ...] = ()
    says = "{e.which}: {e.why}"
    next_step = "{e.advice}"

    @property
    def which(self) -> str:
        """Which one it was; one that could not take an id is none."""
        return f"checkpoint {self.checkpoint} was given up" if self.checkpoint else "a checkpoint could not be begun"

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.late:
            return f"look at {', '.join(self.late)}: give a longer timeout, or make its epochs shorter"
        return "fix the cause; no row is affected, and the previous checkpoint remains restorable"


class CheckpointsFailed(Halted):
    """More checkpoints in a row failed than the policy tolerates: the pipeline was stopped."""

    pipeline: str
    failures: int
    why: str
    says = "pipeline {e.pipeline!r} was stopped: {e.failures} checkpoints in a row failed, the last because {e.why}"
    next_step = "mend the cause and start again: no row is lost, and the last checkpoint stands"


class RequestFailed(Halted):
    """The holder of the lease tried what it was asked for, and could not do it."""

    request: str
    why: str
    says = "request {e.request} failed at the holder of the lease: {e.why}"
    next_step = "mend the cause, then ask again"


class QueryFailed(Halted):
    """Spark ended a stream's query with an error."""

    stream: str
    why: str
    says = "the Spark query of stream {e.stream!r} failed: {e.why}"
    next_step = "mend the cause, then run the pipeline again: it goes on after the last committed epoch"


class DemoFailed(Halted):
    """A worker of the demo ended with an error, and not because the demo killed it. `tail` is the end of its log."""

    job: str
    code: int
    log: str
    tail: str
    says = "{e.tail}\n\nThe demo's {e.job} worker ended by itself with code {e.code}; these were its last words"
    next_step = "read all of them in {e.log}"


class SessionFailed(Halted):
    """Spark could not be started. The cause is chained."""

    why: str
    says = "Spark could not be started: {e.why}"
    next_step = (
        "read what it wrote to stderr; check the master and the settings that spark-submit or the environment gave"
    )


class SessionLost(Halted):
    """The Spark session ended under a running pipeline: its JVM died, or another part of the program stopped it."""

    why: str
    says = "the Spark session is gone: {e.why}"
    next_step = (
        "start the program again: it first finishes what was under way; if the JVM died, look for the reason in the "
        "kernel's log (out of memory) and in hs_err_pid*.log"
    )


class StreamFailed(Halted):
    """A stream failed and its restart budget is used up, or a restart could not help. The cause is chained."""

    pipeline: str
    stream: str
    epoch: int | None
    sink: str | None
    failure: str  # its class: source, sink, state, user code, repository, executors, fenced, refused
    restarts: int
    policy: str
    why: str
    do: str = "mend the cause, then run the pipeline again: it goes on after the last committed epoch"
    says = (
        "stream {e.stream!r} of pipeline {e.pipeline!r} failed{e.where} ({e.failure}) and gave up after "
        "{e.restarts} restarts (policy: {e.policy}): {e.why}"
    )
    next_step = "{e.do}"

    @property
    def where(self) -> str:
        """Epoch and sink, where they are known."""
        epoch = f" at epoch {self.epoch}" if self.epoch else ""
        return f"{epoch}, sink {self.sink!r}" if self.sink else epoch


class OutageTooLong(StreamFailed):
    """A stream waited for an outage to end for as long as its policy allows. The cause is chained."""

    waited: float = 0.0  # seconds
    tries: int = 0
    says = (
        "stream {e.stream!r} of pipeline {e.pipeline!r} gave up{e.where}: an outage ({e.failure}) has lasted "
        "{e.waited:.0f} s and {e.tries} tries, and its limit is {e.policy}: {e.why}"
    )
