"""The contract of a sink: the second half of exactly-once.

An epoch reaches a sink in two steps. `prepare` writes it so that nobody can see it; `commit` makes it visible, once,
however often it is called. Between the two stands the durable decision, which names the handle that `prepare` returned.

What a sink must keep:

- `prepare` makes nothing visible. Whatever it leaves carries the name of its key, lease and attempt included, so that
  no two tries share a folder, a table or a transaction. The handle is small JSON, without secrets: it is kept in the
  repository. A sink that runs exactly one Dataset action on the DataFrame may say so with `one_action = True`; for all
  others the rows are frozen first, because rows that are computed twice may differ.
- `commit` is idempotent, and bears that two drivers call it at the same moment with the same handle. It remembers the
  key together with the data: in one transaction, or by what it leaves. A key at or before the last one that it
  remembers is done already, unless `key.before` shows that another copy of the repository wrote it. It checks that it
  moved exactly the rows that the handle counts. If what was prepared is gone and was never committed, it raises
  `StagedGone`. It may then clear what earlier epochs and other attempts of this one staged, and only that: what this
  epoch staged stays until the next one is committed, where it can.
- `abort` clears what one attempt staged, and is harmless when there is nothing.
- `inspect` tells what the sink holds. It is asked at every start, whatever Spark says.
- Errors of the sink's own world are raised as `SinkFailed`, without passwords. A failure may come after the change
  took effect: the caller will call again.

Not asked of a sink: any clean-up when it fails, is killed or is interrupted. The next driver does that by `abort`.
Not promised to a sink: that `prepare` is followed by `commit` or `abort` in this process, or on this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import msgspec

from holdfast._validation import checked_name
from holdfast.epoch import Attempt, Reach, unwatched
from holdfast.errors import BadValue, NotSupported, SinkBehind, SinkFailed, SinkForeign
from holdfast.formats.sealed_json import plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OutputMode: TypeAlias = Literal["append", "update", "complete"]
"""Spark's output modes."""
OUTPUT_MODES: tuple[OutputMode, ...] = get_args(OutputMode)


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """Who writes: a stream of a pipeline. The uid tells two pipelines of one name apart."""

    pipeline: str  # its name
    uid: str  # its repository's
    stream: str  # its name


@dataclass(frozen=True, slots=True)
class Link:
    """An epoch that a sink holds, and the handle by which it was committed."""

    epoch: int  # 0: none
    handle: str | None  # `handle_digest` of its handle; None: not known


@dataclass(frozen=True, slots=True)
class EpochKey:
    """What is written: one attempt at one epoch, under one lease.

    `lease` is `None` only in `abort`, where it means the attempt under any lease. `before` is set in `commit`:
    the last epoch before this one that was decided for the sink and left a trace in it. A sink that keeps the digest of
    its last handle detects by it that another copy of the repository has written there.
    """

    owner: StreamIdentity  # whose it is
    attempt: Attempt  # stream, timeline, epoch and number of the try
    lease: int | None
    before: Link | None = field(default=None, compare=False)

    @property
    def timeline(self) -> int:
        """The timeline that the epoch counts in."""
        return self.attempt.timeline

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.attempt.epoch

    @property
    def place(self) -> tuple[int, int]:
        """Timeline and epoch: what a sink's ledger is ordered by."""
        return self.timeline, self.epoch


@dataclass(frozen=True, slots=True)
class Staged:
    """What `prepare` returns.

    `handle` is all that `commit` will be given. `paths` are files and folders on a local disk that the sink has not
    synced: they are made durable before the decision. `trace` says whether `inspect` will show this epoch once it is
    committed; an epoch without rows may leave none.
    """

    handle: dict[str, Any]
    rows: int  # how many it holds
    paths: tuple[Path, ...] = ()
    trace: bool = True


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """What a sink holds of one owner in one timeline.

    `epoch` is the last committed one that left a trace, 0 for none. `foreign` is another uid under which the sink knows
    the owner's pipeline and stream, or which owns the place.
    """

    epoch: int = 0
    foreign: str | None = None


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink is told before the first epoch: who writes to it, what, and how."""

    owner: StreamIdentity
    schema: StructType  # of every DataFrame that `prepare` is given
    output_mode: str  # append, update or complete
    spark: SparkSession  # the session that the stream runs in
    local: bool = True  # the executors are on this machine
    shared: bool = False  # the user says that paths are seen alike by every machine
    folder: Path | None = None  # in the repository, for the sink's own files; the sink creates it
    folder_mode: int = 0o755  # permissions of the folders that Spark creates: Hadoop has a umask of its own
    reach: Reach = field(default=unwatched, compare=False)  # call it with `staging` and `committing`, for crash tests
    tell: Callable[[str], None] = field(default=print, compare=False)  # something a person should know, once


class Sink(ABC):
    """Where a stream's epochs go; see the contract above. Write one by subclassing.

    `target` names what is written to, where no two sinks of a pipeline may write to the same; `None` is not checked.
    """

    one_action: ClassVar[bool] = False
    target: str | None = None

    def __init__(self, name: str) -> None:
        self.name = checked_name("sink", name)
        self._setting: SinkContext | None = None

    @property
    def setting(self) -> SinkContext:
        """Who writes to this sink; there once `open` was called."""
        if self._setting is None:
            do = "give it to a stream; where it has one, let its open() begin with super().open(setting)"
            raise NotSupported(what=f"sink {self.name!r}", why="it was not opened for a stream", do=do)
        return self._setting

    def open(self, setting: SinkContext) -> None:
        """Get ready, before the first epoch and again after each restart; raise if this cannot work.

        Refuse output modes that have no meaning here; check that the other side can be reached and takes these columns.
        Overriding methods call this one first.
        """
        self._setting = setting

    @abstractmethod
    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Write the rows so that nobody can see them."""

    @abstractmethod
    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Make what was prepared visible, once; idempotent."""

    @abstractmethod
    def abort(self, key: EpochKey) -> None:
        """Clear what this attempt staged; idempotent."""

    @abstractmethod
    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Tell what the sink holds."""

    def mark(self) -> dict[str, Any]:
        """Return what a checkpoint notes of this sink at the end of an epoch: small JSON, cheap to tell; optional."""
        return {}

    def rewind(self, owner: StreamIdentity, timeline: int, epoch: int) -> None:
        """Undo what was committed after that epoch; optional, refused where a sink does not do it."""
        del owner, timeline, epoch
        raise NotSupported(what=f"rewinding sink {self.name!r}", why=f"{type(self).__name__} cannot take epochs back")

    def close(self) -> None:
        """Let go of what `open` took. Called at the end of a run, not after a crash."""
        self._setting = None


def checked_staged(sink: Sink, staged: object) -> Staged:
    """Return what a sink's `prepare` returned if the decision can keep it. Sinks are written by users."""
    if not isinstance(staged, Staged):
        why, do = "an hf.Staged is due", "let prepare() return hf.Staged(handle, rows=...)"
        raise BadValue(what=f"what prepare() of sink {sink.name!r} returned,", value=staged, why=why, do=do)
    why = "the decision keeps it as JSON, from which it would come back as something else"
    try:
        same = plain(staged.handle) == staged.handle
    except (TypeError, ValueError, RecursionError) as error:
        same, why = False, f"the decision keeps it as JSON: {error}"
    if not same:
        do = "keep to dicts with text for keys, lists, text, numbers, booleans and None"
        raise BadValue(what=f"handle of sink {sink.name!r}", value=staged.handle, why=why, do=do)
    return staged


def system_words(error: OSError) -> str:
    """Return what the operating system says, and of which file."""
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error)


@contextlib.contextmanager
def failing(sink: str, action: str) -> Iterator[None]:
    """Turn the operating system's errors into the sink's."""
    try:
        yield
    except OSError as error:
        raise SinkFailed(sink=sink, action=action, why=system_words(error)) from error


def handle_digest(handle: Mapping[str, Any]) -> str:
    """Return what tells the handles of one epoch apart: a ledger keeps it."""
    return hashlib.sha256(msgspec.json.encode(handle, order="sorted")).hexdigest()[:16]


_ONE_COPY = (
    "run only the copy that wrote the sink's last epoch, and stop this one; for a second pipeline beside it, start "
    "with an empty repository and other targets"
)


def decided_elsewhere(sink: Sink, key: EpochKey, place: str) -> SinkForeign:
    """Return the error for an epoch that the sink holds by another decision: two copies of one repository are run."""
    owner = "another copy of this repository, which has decided it too"
    return SinkForeign(sink=sink.name, place=f"epoch {key.epoch} in {place}", owner=owner, do=_ONE_COPY)


def is_past(sink: Sink, key: EpochKey, held: Link, place: str) -> bool:
    """Whether the sink holds a later epoch; raise if this repository did not decide what the sink holds.

    `held` is the last epoch that the ledger has in the key's timeline; it is not the key's own. The decision says which
    epoch the sink must hold before this one, and by which handle. Every epoch is compared with the one before it, so
    the last one stands for the whole history. A later epoch is legitimate only for a driver that was replaced, which is
    fenced whatever is raised here. A handle that the ledger or the decision does not know is not compared.
    """
    before = key.before
    if before is None:
        return held.epoch > key.epoch
    if held.epoch < before.epoch:
        raise SinkBehind(stream=key.attempt.stream, sink=sink.name, holds=held.epoch, decided=before.epoch)
    if held.epoch > before.epoch or (held.handle != before.handle and None not in (held.handle, before.handle)):
        owner = f"another copy of this repository: in this one, epoch {key.epoch} follows epoch {before.epoch}"
        raise SinkForeign(sink=sink.name, place=f"epoch {held.epoch} in {place}", owner=owner, do=_ONE_COPY)
    return False


def checked_standing(sink: Sink, standing: object) -> SinkPosition:
    """Return what a sink's `inspect` returned if it is an answer."""
    if not isinstance(standing, SinkPosition):
        why, do = "an hf.Standing is due", "let inspect() return one; of a sink that holds nothing, hf.Standing()"
        raise BadValue(what=f"what inspect() of sink {sink.name!r} returned,", value=standing, why=why, do=do)
    return standing


def refuse_mode(sink: Sink, output_mode: str, changelog: bool, do: str) -> None:
    """Refuse an output mode that would leave several versions of a row side by side, unless that is wanted."""
    if output_mode != "append" and not changelog:
        raise NotSupported(
            what=f"output mode {output_mode!r} into sink {sink.name!r}",
            why="each epoch would add its versions of the rows to the older ones",
            do=f"{do}, or pass changelog=True to keep every version",
        )
