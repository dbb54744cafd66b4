"""The contract of a sink: the second half of exactly-once.

An epoch reaches a sink in two steps. `prepare` writes the rows where no reader sees them. `commit` makes them visible,
once, however often it is called. Between the two, a durable decision records the handle that `prepare` returned.

Rules for a sink:

- `prepare` makes nothing visible. Everything that it stages is named after its key, including lease and attempt, so no
  two attempts share a folder, a table or a transaction. The handle is small JSON without secrets: the repository stores
  it. A sink that runs exactly one Dataset action on the DataFrame may declare `one_action = True`. An action that
  follows `SinkContext.collect`, because the rows were too many, does not count. For all other sinks the rows are
  materialised first, because rows that are computed twice may differ.
- `prepare` of different sinks of a stream may run at the same time, in different threads. Their Spark jobs all belong
  to the query. One sink is never called by two threads at once. `prepare` returns the number of rows that it was given:
  the attempt fails if the sinks count different rows.
- `commit` is idempotent, and two drivers may call it at the same moment with the same handle. It records the key
  together with the data: in one transaction, or by the names of the files. A key at or before the last recorded one is
  already committed, unless `key.before` shows that another copy of the repository wrote it. `commit` checks that it
  moved exactly as many rows as the handle counts. It raises `StagedGone` if the staged data is missing and was never
  committed. Afterwards it may remove data that earlier epochs and other attempts at this epoch staged, and nothing
  else: the staged data of this epoch is kept until the next epoch is committed, where possible.
- `abort` removes the staged data of one attempt. It succeeds if there is none.
- `inspect` returns the last epoch that the sink holds. It is called at every start, regardless of Spark's log.
- A sink that can go back implements `can_take_back`, `take_back`, `put_back` and `stamp`. These four, `inspect`, and
  `commit` of a handle work without `open`. They are idempotent, and two processes may call them at the same moment. A
  stamp is a position (timeline, epoch), stored where the ledger is. It is written before any row moves, so a driver of
  an older timeline that wakes up later cannot commit: `commit` raises `TimelineEnded` for a key of an older timeline
  than the stamp's, and never skips it silently. A key at or before the stamp in the stamp's own timeline is already
  committed. `inspect` of the stamp's timeline returns at least the stamp. `take_back` looks for rows again, even if
  the stamp is there, and takes out only those with base < place < (into, 0). A stamp never moves back: the four raise
  `TimelineEnded` if the sink is stamped with a later timeline than `into`.
- Failures of the storage or server are raised as `SinkFailed`, without passwords. An operation that fails may have
  taken effect: the caller repeats it.

Not required of a sink: clean-up when it fails, is killed or is interrupted. The next driver does that with `abort`.
Not guaranteed to a sink: that `prepare` is followed by `commit` or `abort` in this process, or on this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import msgspec

from holdfast._validation import MAX_LENGTH, checked_name
from holdfast.epoch import Attempt, Reach, unwatched
from holdfast.errors import BadValue, NotSupported, SinkFailed, SinkUnavailable
from holdfast.formats.sealed_json import plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OutputMode: TypeAlias = Literal["append", "update", "complete"]
"""Spark's output modes."""
OUTPUT_MODES: tuple[OutputMode, ...] = get_args(OutputMode)


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """The stream that writes to a sink. The uid distinguishes two pipelines of the same name."""

    pipeline: str  # its name
    uid: str  # of the pipeline's repository
    stream: str  # its name

    @property
    def summary(self) -> str:
        """The stream as text, for errors."""
        return f"stream {self.stream!r} of pipeline {self.pipeline!r} with the uid {self.uid}"


@dataclass(frozen=True, slots=True)
class Link:
    """An epoch that a sink holds, and the digest of the handle that committed it."""

    epoch: int  # 0: none
    handle: str | None  # `handle_digest` of its handle; None: not known


@dataclass(frozen=True, slots=True)
class EpochKey:
    """Identifies one attempt at one epoch, under one lease.

    `lease` is `None` only in `abort`, where it means the attempt under any lease. `before` is set in `commit`: the last
    earlier epoch that was decided for the sink and left a trace in it. A sink that stores the digest of its last handle
    compares the two, and so detects that another copy of the repository has written to it.
    """

    owner: StreamIdentity
    attempt: Attempt  # stream, timeline, epoch and number of the attempt
    lease: int | None
    before: Link | None = field(default=None, compare=False)

    @property
    def timeline(self) -> int:
        """The timeline of the epoch."""
        return self.attempt.timeline

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.attempt.epoch

    @property
    def place(self) -> EpochPlace:
        """Timeline and epoch: the sort order of a sink's ledger."""
        return self.timeline, self.epoch


@dataclass(frozen=True, slots=True)
class Staged:
    """The result of `prepare`.

    `handle` is the only data that `commit` receives. `paths` are files and folders on a local disk that the sink has
    not synced: they are made durable before the decision. `trace` states whether `inspect` will show this epoch once it
    is committed; an epoch without rows may leave none.
    """

    handle: dict[str, Any]
    rows: int
    paths: tuple[Path, ...] = ()
    trace: bool = True


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """The position of one stream in a sink, within one timeline.

    `epoch` is the last committed epoch that left a trace, 0 for none. `foreign` describes another owner: one with the
    same pipeline and stream name but a different uid, or one that owns the target.
    """

    epoch: int = 0
    foreign: str | None = None


EpochPlace: TypeAlias = tuple[int, int]
"""Timeline and epoch: the order of the epochs of a stream."""


@dataclass(frozen=True, slots=True)
class TakeBack:
    """What a sink takes back: the rows of all epochs after a base."""

    epochs: int
    rows: int | None  # None: the sink does not count them
    kept: str  # where the rows are kept until an undo or a discard; empty: nowhere, there are none or they are replaced


@dataclass(frozen=True, slots=True)
class CannotTakeBack:
    """Why a sink cannot take rows back."""

    why: str
    do: str  # the setting that would have made it possible


@dataclass(frozen=True, slots=True)
class RowsAside:
    """Rows that the rewind into a timeline took back, and that a sink keeps for an undo."""

    timeline: int
    rows: int  # counted as in `TakeBack`
    kept: str  # where


CollectRows: TypeAlias = Callable[[Any, int, int], contextlib.AbstractContextManager[tuple[Any, Any]]]
"""Collects the rows of a DataFrame if they are few, with at most so many tasks and so many bytes from each.

It returns a context manager, which yields a DataFrame with the rows, and the rows as a list of Arrow batches. If a task
has more bytes, the list is `None`. Then one action on that DataFrame may follow within the `with` block.
"""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The stream that a sink is opened for, and how it runs."""

    owner: StreamIdentity
    schema: StructType  # of every DataFrame that is passed to `prepare`
    output_mode: str  # append, update or complete
    spark: SparkSession  # the session that the stream runs in
    local: bool = True  # the executors run on this machine
    shared: bool = False  # Pipeline(..., shared=True): every machine sees the same files at the same paths
    folder: Path | None = None  # in the repository, for the sink's own files; the sink creates it
    folder_mode: int = 0o755  # permissions of the folders that Spark creates: Hadoop has a separate umask
    reach: Reach = field(default=unwatched, compare=False)  # call it with `staging` and `committing`, for crash tests
    tell: Callable[[str], None] = field(default=print, compare=False)  # shows a one-time notice to the user
    collect: CollectRows | None = field(default=None, compare=False)  # for small epochs; `None`: not in this session
    # for a sink on S3: lets Spark's tasks write to a bucket, or raises an error
    connect: Callable[[str], None] = field(default=lambda _: None, compare=False)


class Sink(ABC):
    """A target for the epochs of a stream. Subclass it to write your own; `holdfast.sinks.base` states the contract.

    `target` names the place that the sink writes to. Two sinks of a pipeline must not have the same target; `None` is
    not checked.
    """

    one_action: ClassVar[bool] = False
    mark_expires: ClassVar[bool] = False  # its server may delete the record of its epochs: `stamp` writes it again
    on_executors: ClassVar[tuple[str, ...]] = ()  # packages that its tasks import: a start on a cluster looks for them
    target: str | None = None

    def __init__(self, name: str) -> None:
        self.name = checked_name("sink", name)
        self._context: SinkContext | None = None

    @property
    def context(self) -> SinkContext:
        """The stream that the sink is open for; available after `open`."""
        if self._context is None:
            do = "pass it to a stream; an open() of your own must call super().open(context) first"
            raise NotSupported(what=f"using sink {self.name!r}", why="it was not opened for a stream", do=do)
        return self._context

    def open(self, context: SinkContext) -> None:
        """Prepare for use, before the first epoch and again after each restart; raise if this cannot work.

        Reject output modes that the sink does not support; check that the server or storage can be reached and accepts
        the columns. Overriding methods call this one first.
        """
        self._context = context

    def set_folder(self, folder: Path) -> None:
        """Name the folder in the repository for the sink's own files, before the sink is used without `open`.

        Only for a sink that keeps its ledger there; `open` passes the same folder in the context.
        """
        del folder

    @abstractmethod
    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Write the rows where no reader sees them."""

    @abstractmethod
    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Make the staged rows visible, once; idempotent."""

    @abstractmethod
    def abort(self, key: EpochKey) -> None:
        """Remove the staged data of this attempt; idempotent."""

    @abstractmethod
    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Return the last epoch that the sink holds for this stream."""

    def describe(self) -> dict[str, Any]:
        """Return the settings that decide how rows are stored, without secrets: compared from run to run; optional."""
        return {}

    def row_checks(self) -> dict[str, str]:
        """Return conditions in Spark SQL, by name, that every row must meet; called after `open`; optional.

        Only conditions without which `prepare` or `commit` would refuse the whole epoch. If the stream has a dead
        letter, rows that fail one go there, and to no sink of the stream. Without a dead letter they are not used.
        """
        return {}

    def mark(self) -> dict[str, Any]:
        """Return small JSON that a checkpoint records for this sink at the end of an epoch; optional, must be cheap."""
        return {}

    def is_missing(self) -> bool:
        """Whether the target does not exist. Called before `open`, which may create it; by default false.

        A start is refused if the stream has written to the sink, and its target is gone.
        """
        return False

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what taking the stream back to a base would do, or why it is impossible. Changes nothing."""
        del owner, base
        return self._lacks_take_back()

    def take_back(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Stamp the sink with timeline `into` at the base, then set aside the rows of all epochs after the base."""
        del owner, base, into
        raise NotSupported(what=f"taking back sink {self.name!r}", why=f"{type(self).__name__} cannot do it")

    def put_back(self, owner: StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Stamp the sink with timeline `into` at the base, and put back the rows that timeline `taken` set aside."""
        del owner, base, into, taken
        raise NotSupported(what=f"undoing a rewind of sink {self.name!r}", why=f"{type(self).__name__} cannot do it")

    def stamp(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Stamp the sink with timeline `into` at the base, remove what earlier timelines staged, and move no rows."""
        del owner, base, into
        raise NotSupported(what=f"leaving sink {self.name!r} as it is", why=f"{type(self).__name__} has no stamp")

    def cannot_be_taken_back(self) -> CannotTakeBack | None:
        """Return why no epoch can ever be taken back with the settings of this sink, or `None`. Called after `open`.

        The first start of a stream reports it. By default, `None` if the sink implements `take_back`.
        """
        return self._lacks_take_back() if type(self).take_back is Sink.take_back else None

    def _lacks_take_back(self) -> CannotTakeBack:
        return CannotTakeBack(
            why=f"{type(self).__name__} does not implement take_back()",
            do=f"to go back without it, pass --leave {self.name}: its rows stay where they are",
        )

    def cannot_be_put_back(self, owner: StreamIdentity, taken: int, rows: int) -> str | None:
        """Return why the rows that timeline `taken` set aside cannot be put back, or `None`. Works without `open`.

        `rows` is how many `can_take_back` has counted before the rewind: at least as many must be left. By default
        they are those of `set_aside`; a sink that does not list what it keeps is not asked.
        """
        if type(self).set_aside is Sink.set_aside:
            return None
        left = sum(each.rows for each in self.set_aside(owner) if each.timeline == taken)
        return f"only {left} of the {rows} rows that were set aside are left" if left < rows else None

    def set_aside(self, owner: StreamIdentity) -> list[RowsAside]:
        """Return the rows that rewinds took back and that the sink keeps, by timeline. Works without `open`."""
        del owner
        return []

    def discard_aside(self, owner: StreamIdentity, timeline: int) -> None:
        """Permanently delete what the rewind into a timeline has set aside; idempotent. Works without `open`."""
        del owner, timeline

    def cannot_be_left(self, owner: StreamIdentity) -> str | None:
        """Return why a rewind must not leave the rows of this sink in place and write them again, or `None`.

        For example, a table to which rows are appended and that has a unique index. Works without `open`.
        """
        del owner
        return None

    def close(self) -> None:
        """Release the resources that `open` acquired. Called at the end of a run, not after a crash."""
        self._context = None


def checked_staged(sink: Sink, staged: object) -> Staged:
    """Return the result of a sink's `prepare` if a decision can store it; sinks may be user code."""
    if not isinstance(staged, Staged):
        do = "return hf.Staged(handle, rows=...) from prepare()"
        raise BadValue(what=f"result of prepare() of sink {sink.name!r}", value=staged, expected="an hf.Staged", do=do)
    why = "the decision stores it as JSON, and reading it back would give a different value"
    try:
        same = plain(staged.handle) == staged.handle
    except (TypeError, ValueError, RecursionError) as error:
        same, why = False, f"the decision stores it as JSON: {error}"
    if not same:
        do = "use only dicts with str keys, lists, str, numbers, booleans and None"
        raise BadValue(what=f"handle of sink {sink.name!r}", value=staged.handle, why=why, do=do)
    return staged


def checked_position(sink: Sink, position: object) -> SinkPosition:
    """Return the result of a sink's `inspect` if it is a `SinkPosition`; sinks may be user code."""
    if not isinstance(position, SinkPosition):
        what, do = f"result of inspect() of sink {sink.name!r}", "return hf.SinkPosition() if the sink holds no epoch"
        raise BadValue(what=what, value=position, expected="an hf.SinkPosition", do=do)
    return position


def os_error_text(error: OSError) -> str:
    """Return the text of an OS error, with the file that it is about."""
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error)


@contextlib.contextmanager
def failing(sink: str, action: str) -> Iterator[None]:
    """Raise OS errors as `SinkFailed`."""
    try:
        yield
    except OSError as error:
        raise SinkFailed(sink=sink, action=action, why=os_error_text(error)) from error


def raised_in_task(error: Exception, action: str) -> tuple[type[SinkFailed], str] | None:
    """Return the type and the reason of a `SinkFailed` that a task raised during an action, by Spark's text of it.

    `None` if the task failed for another reason: user code, a source or Spark itself.
    """
    pattern = rf"(SinkFailed|SinkUnavailable): sink .* could not {re.escape(action)}: (.*?)\.? Next: "
    found = re.search(pattern, str(error))
    return (SinkUnavailable if found[1] == SinkUnavailable.__name__ else SinkFailed, found[2]) if found else None


def handle_digest(handle: Mapping[str, Any]) -> str:
    """Return a digest that distinguishes the handles of one epoch: ledgers store it."""
    return hashlib.sha256(msgspec.json.encode(handle, order="sorted")).hexdigest()[:16]


def refuse_mode(sink: Sink, output_mode: str, changelog: bool, do: str) -> None:
    """Refuse an output mode that would store several versions of a row, unless `changelog` requests that."""
    if output_mode != "append" and not changelog:
        raise NotSupported(
            what=f"output mode {output_mode!r} into sink {sink.name!r}",
            why="each epoch would add its versions of the rows to the older ones",
            do=f"{do}, or pass changelog=True to keep every version",
        )


def default_name(kind: str, target: str) -> str:
    """Return the name of a sink that was created without one: its kind and its target."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", f"{kind}.{target}")[:MAX_LENGTH]
