"""Resolve the difference: what was found is intact, but it is not what was expected."""

from __future__ import annotations

from holdfast.errors.base import PROGRAM, RESTORE_FOLDER, HoldfastError


class Mismatch(HoldfastError):
    """What was found is intact, but it is not what was expected."""


class AlreadyExists(Mismatch):
    """Something already exists where a new one was to be created."""

    what: str
    do: str = "open it instead, or choose another path"
    says = "{e.what} already exists"
    next_step = "{e.do}"


class UnsupportedVersion(Mismatch):
    """Written by a newer version of Holdfast, or by another program."""

    what: str
    found: int
    known: str
    step: str = "unsupported version"
    says = "{e.what}: {e.step} {e.found}; this version of Holdfast reads {e.known}"
    next_step = "upgrade Holdfast, or open it with the version that wrote it"


class LogTrimmed(Mismatch):
    """A reader needs events that were removed from an event log."""

    path: str
    sequence: int
    floor: int
    says = "event log {e.path} no longer has the event with sequence {e.sequence}: it begins with {e.floor}"
    next_step = (
        "restore the log from a backup, or read the rows from another sink of the stream; to keep events longer, pass "
        "LogSink(..., keep=...), and register a reader of your own as a durable cursor"
    )


class ManifestRefused(Mismatch):
    """A manifest whose validation found errors. `issues` contains all of them."""

    checkpoint: int
    issues: tuple[str, ...]
    says = "checkpoint {e.checkpoint} cannot be restored: {e.listed}"
    next_step = "restore an older checkpoint; find an intact one: holdfast verify --all"

    @property
    def listed(self) -> str:
        """The issues in one line."""
        return "; ".join(self.issues)


class PlanOutdated(Mismatch):
    """The repository or a sink has changed since a plan was made. Nothing was changed by the plan."""

    why: str
    command: str = "prune"
    says = "the plan is outdated: {e.why}"
    next_step = "make a new plan and apply it: holdfast {e.command}"


class RewindRefused(Mismatch):
    """A rewind is not possible as it was requested. Nothing was changed."""

    to: str
    problems: tuple[str, ...]
    do: str = (
        "solve each problem, or choose another checkpoint (holdfast ls); run the same command with --dry-run to see "
        "the whole plan"
    )
    says = "the pipeline cannot go back to {e.to}: {e.listed}"
    next_step = "{e.do}"

    @property
    def listed(self) -> str:
        """The problems in one line."""
        return "; ".join(self.problems)


class RewindUnfinished(Mismatch):
    """A rewind was begun and is not complete. Only a program with the same sinks can complete it."""

    timeline: int
    to: str
    why: str
    says = "the rewind to {e.to}, timeline {e.timeline}, is unfinished: {e.why}"
    next_step = (
        "run the program that the rewind was started with (holdfast run): it completes the rewind first. If the target "
        f"of a sink is lost for good, remove the sink from the program, then: holdfast rewind {PROGRAM} --lost SINK"
    )


class CompactionOutdated(Mismatch):
    """A sink's folder has changed since its compaction was planned. Nothing was changed."""

    path: str
    why: str
    says = "the compaction of {e.path} was not carried out: {e.why}"
    next_step = "make a new plan and apply it: holdfast compact"


class StateMismatch(Mismatch):
    """The checkpoint state is intact, but belongs to another stream."""

    found: str
    asked: str
    says = "the checkpoint state belongs to stream {e.found!r}, not {e.asked!r}"
    next_step = "pass the stream id {e.found!r}, or read the state of stream {e.asked!r}"


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


_RESET_CURSOR = (
    "restore the log; or, if the log was rolled back on purpose, read it again from the beginning: "
    "holdfast cursor reset {e.cursor} --to 0"
)


class CursorDiverged(Mismatch):
    """The log was restored from an older copy and then appended to: another event is now at the cursor's position."""

    cursor: str
    position: int
    says = "cursor {e.cursor!r} is at sequence {e.position} of a history that its log no longer contains"
    next_step = _RESET_CURSOR


class CursorAhead(Mismatch):
    """The cursor is past the end of its log: the log was restored from a backup, or it is another log."""

    cursor: str
    position: int
    tail: int
    says = "cursor {e.cursor!r} is at sequence {e.position}, but its log ends before sequence {e.tail}"
    next_step = _RESET_CURSOR


class LogDiverged(Mismatch):
    """A stream has read a history that its event log does not contain: another log, or one that was rolled back."""

    path: str
    sequence: int
    why: str
    says = "event log {e.path}: the stream has read up to sequence {e.sequence}, and {e.why}"
    next_step = (
        "restore the log; or, if the log was rolled back on purpose, read it from the beginning with a stream of "
        "another name"
    )


class LogRewound(Mismatch):
    """A rewind, or its undo, has changed events of a log that a reader has already read."""

    path: str
    reader: str
    position: int  # the last sequence that the reader has read
    changed: int  # the first sequence that was taken back or put back
    do: str = "read the log again from there"
    says = (
        "event log {e.path}: {e.reader} has read up to sequence {e.position}, and a rewind has changed the log from "
        "sequence {e.changed} on"
    )
    next_step = "reverse what the reader did with the events from sequence {e.changed} on; then {e.do}"


class StageMismatch(Mismatch):
    """The image belongs to another stage or contains another type of state."""

    what: str
    found: str
    asked: str
    says = "the {e.what} of the stage image is {e.found!r}, not {e.asked!r}"
    next_step = "open the device that belongs to this stage"


class StageStale(Mismatch):
    """The newest readable image is not the generation that was asked for."""

    stage: str
    found: int
    asked: int
    says = "stage {e.stage!r}: expected generation {e.asked}, but the device holds {e.found}"
    next_step = "restore the device from a copy that holds generation {e.asked}"


class OffsetsDiverged(Mismatch):
    """A decided epoch was replayed with different input: Spark's log was lost or changed."""

    stream: str
    epoch: int
    what: str
    says = "epoch {e.epoch} of stream {e.stream!r} is decided, but was replayed with a different {e.what}"
    next_step = "restore the stream's spark/ folder; do not delete the decision, because sinks may hold its rows"


class OffsetsGap(Mismatch):
    """An epoch does not start where the last decided one ended: input was skipped, or would be read twice."""

    stream: str
    epoch: int
    source: int
    partition: str
    ended: str
    begins: str
    says = (
        "epoch {e.epoch} of stream {e.stream!r} starts at {e.begins} of source {e.source}{e.of_partition}, "
        "but the previous epoch ended at {e.ended}"
    )
    next_step = (
        f"restore the stream's spark/ folder, or record the gap and continue: holdfast run {PROGRAM} --accept gaps, or "
        "pipeline.run(accept=['gaps'])"
    )

    @property
    def of_partition(self) -> str:
        """The partition, if the source reports one."""
        return f" partition {self.partition}" if self.partition else ""


class SourceGap(Mismatch):
    """A source no longer has the input that follows the last epoch, or was replaced. Nothing was started."""

    stream: str
    epoch: int
    source: int
    what: str
    do: str = (
        "restore the topic; or continue without these records, and record a gap: run once with "
        "holdfast run app.py:pipeline --accept gaps or pipeline.run(accept=['gaps']); if the stream uses Spark's own "
        "reader and not hf.read_kafka, also set its option failOnDataLoss to false for this run"
    )
    says = "epoch {e.epoch} of stream {e.stream!r} cannot continue in source {e.source}: {e.what}"
    next_step = "{e.do}"


class ReplayDiverged(Mismatch):
    """Replaying a decided epoch produced other rows: the sinks hold the original ones, the state has the new ones."""

    stream: str
    epoch: int
    decided: str
    found: str
    says = (
        "epoch {e.epoch} of stream {e.stream!r} produced different rows when its state was rebuilt "
        "({e.decided} when decided, {e.found} now): the query is not deterministic"
    )
    next_step = (
        "make the query deterministic; or keep the rebuilt state, and record a gap: "
        f"holdfast run {PROGRAM} --accept replay, or pipeline.run(accept=['replay'])"
    )


class StoresDiffer(Mismatch):
    """Spark's connector for S3 and Holdfast's own client do not work on the same bucket. Nothing was started."""

    where: str
    why: str
    says = "Spark and Holdfast do not work on {e.where} in the same way: {e.why}"
    next_step = (
        "give the Spark session the same endpoint, region and credentials as the AWS_ variables have (settings "
        "spark.hadoop.fs.s3a.*); without spark-submit, set the AWS_ variables before the session starts"
    )


class SparkLogMismatch(Mismatch):
    """Spark's checkpoint folder and the decisions contradict each other."""

    stream: str
    path: str
    why: str
    do: str = RESTORE_FOLDER
    says = "the Spark checkpoint {e.path} of stream {e.stream!r} does not match its decisions: {e.why}"
    next_step = "{e.do}"


class SourcesDiffer(Mismatch):
    """A stream does not read what the query of a plain Spark checkpoint has read. Nothing was changed."""

    stream: str
    path: str
    why: str
    says = "stream {e.stream!r} does not read what the Spark checkpoint {e.path} has read: {e.why}"
    next_step = "correct the source in the program, or pass the checkpoint of the query that read this source"


class SinkBehind(Mismatch):
    """A sink does not hold an epoch that was decided for it: it was restored from an older copy, or lost a write."""

    stream: str
    sink: str
    holds: int
    decided: int
    committed: bool = True  # False: the epoch may have been decided and not committed
    says = "sink {e.sink!r} of stream {e.stream!r} {e.state}, but {e.what}"
    next_step = (
        "restore {e.lost} from a copy that holds epoch {e.decided}, because its staged rows no longer exist. Or go "
        f"back to a checkpoint that the sink still holds: holdfast rewind {PROGRAM} --to latest --dry-run names it. Or "
        "replace the sink: give it another name (name=NEW) and an empty target, and fill it from a FileSink or an "
        "event log of the stream, if one holds every row: "
        f"holdfast backfill {PROGRAM} --stream {{e.stream}} --sink NEW --accept sinks. If none does, start it empty, "
        f"without the earlier rows: holdfast run {PROGRAM} --accept sinks"
    )

    @property
    def state(self) -> str:
        """What the sink holds."""
        return f"holds epoch {self.holds}" if self.holds else "is missing or empty"

    @property
    def what(self) -> str:
        """The last step of the epoch that is known."""
        if self.holds >= self.decided:
            return "it was restored from a copy that was made before the last rewind"
        step = "committed to it" if self.committed else "decided, and its staged rows are missing"
        return f"epoch {self.decided} was {step}"

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
    next_step = "restore the newest copy of the repository, or restore the sink to the same point in time"


class SinkForeign(Mismatch):
    """A sink's target belongs to another pipeline, or to an earlier one with the same name."""

    sink: str
    place: str
    owner: str
    do: str = (
        "if the stream was renamed, restore its name; otherwise use that pipeline's repository, or choose another "
        "target: appending here would write rows twice; "
        "to start again from scratch, remove the sink's data and its ledger"
    )
    says = "sink {e.sink!r}: {e.place} belongs to {e.owner}"
    next_step = "{e.do}"


class MarkerLost(Mismatch):
    """A Kafka topic no longer records which epochs it holds, or was created again. Nothing was written."""

    sink: str
    topic: str
    why: str
    says = "sink {e.sink!r}: the record of the epochs in topic {e.topic} is lost: {e.why}"
    next_step = (
        "check whether the topic holds the last rows of the stream. If it does, go back to the latest checkpoint: "
        f"holdfast rewind {PROGRAM} --to latest --leave {{e.sink}}. This writes the record again; the rows of epochs "
        "after that checkpoint are written a second time. Otherwise, use another topic and fill it: holdfast backfill"
    )


class SinksChanged(Mismatch):
    """The stream's sinks are not those of its last decision."""

    stream: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    in_doubt: int = 0  # the epoch that a removed sink may not hold yet
    fills: str = ""  # the sink that a backfill was to fill
    says = "the sinks of stream {e.stream!r} have changed since its last decision: {e.changes}"
    next_step = "{e.advice}"

    @property
    def changes(self) -> str:
        """The added and removed sinks, as text."""
        both = (("added", self.added), ("removed", self.removed))
        return "; ".join(f"{what} {', '.join(map(repr, names))}" for what, names in both if names)

    @property
    def advice(self) -> str:
        """The next step."""
        if self.in_doubt:
            return f"run once with the same sinks: the removed ones may not hold epoch {self.in_doubt} yet"
        if self.fills:
            return (
                f"add the removed sinks to the program again, or accept that they get no more rows: "
                f"{self._backfill(self.fills)}, or pipeline.backfill(..., accept=['sinks'])"
            )
        fill = f"give an added sink all earlier rows first: {self._backfill(self.added[0])}; or " if self.added else ""
        return (
            f"pass the same sinks (by name); or {fill}accept the change: holdfast run {PROGRAM} --accept sinks, or "
            "pipeline.run(accept=['sinks']): an added sink starts with the next epoch, a removed one gets no more rows"
        )

    def _backfill(self, sink: str) -> str:
        accept = " --accept sinks" if self.removed else ""
        return f"holdfast backfill {PROGRAM} --stream {self.stream} --sink {sink}{accept}"


class StreamChanged(Mismatch):
    """The program now declares a stream, or one of its sinks, so differently that it cannot continue its state."""

    what: str
    before: str
    now: str
    why: str = ""
    says = "{e.what} changed from {e.before} to {e.now}{e.reason}"
    next_step = "revert the change, or start a new stream under another name and with another target"

    @property
    def reason(self) -> str:
        """Why that is impossible, if it is known."""
        return f": {self.why}" if self.why else ""


class BackfillIncomplete(Mismatch):
    """A sink does not hold every row of its stream, so a new sink cannot be filled from it. Nothing was written."""

    stream: str
    source: str
    found: int
    expected: int
    says = "sink {e.source!r} holds {e.found} rows, but stream {e.stream!r} has written {e.expected} rows to each sink"
    next_step = (
        "name a sink that holds every row with --source (the event log that pipeline.read uses keeps only rows that "
        "its readers need); or start with the new sink empty, without the earlier rows: "
        f"holdfast run {PROGRAM} --accept sinks. For epochs that were skipped, see holdfast gaps"
    )


class TimelineEnded(Mismatch):
    """The timeline of this driver has ended: a rewind continues the stream in another one. Nothing was changed."""

    stream: str
    timeline: int
    says = "timeline {e.timeline} of stream {e.stream!r} has ended: a rewind continues the stream in a later one"
    next_step = "stop this process, and start the pipeline again: it continues in the current timeline"


class SchemaMismatch(Mismatch):
    """A table cannot store the columns of the stream."""

    sink: str
    table: str
    why: str
    do: str = "change the table or the stream's columns; nothing was written"
    says = "sink {e.sink!r}: table {e.table} cannot store the stream's rows: {e.why}"
    next_step = "{e.do}"


class StagedGone(Mismatch):
    """The staged rows of an epoch no longer exist, and the epoch was never made visible."""

    sink: str
    epoch: int
    says = "sink {e.sink!r}: the staged rows of epoch {e.epoch} no longer exist, and the epoch is not visible"
    next_step = "restore the sink from a copy that holds epoch {e.epoch} or its staged rows"
