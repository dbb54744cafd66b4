"""Create it, or correct the path: nothing was found there."""

from __future__ import annotations

import shlex

from holdfast.errors.base import HoldfastError


class Absent(HoldfastError, LookupError):
    """Nothing was found under this name or path."""


class NotFound(Absent):
    """No such key in the repository."""

    key: str
    where: str
    says = "{e.key!r} does not exist in {e.where}"
    next_step = "check the name and the root of the repository"


class RepositoryMissing(NotFound):
    """There is no pipeline repository at this location: a folder that contains `holdfast.json`."""

    why: str = "it does not contain holdfast.json"
    do: str = "pass the pipeline's own folder, which its first start creates: holdfast ls --repo <root>/<pipeline>"
    says = "there is no pipeline repository at {e.where}: {e.why}"
    next_step = "{e.do}"


class NotRunning(Absent):
    """No process runs the pipeline, so none can carry out a request. Nothing was changed."""

    pipeline: str
    where: str
    kind: str = ""  # the request
    says = "pipeline {e.pipeline!r} is not running: no process holds the lease of {e.where}"
    next_step = "{e.advice}"

    @property
    def advice(self) -> str:
        """The next step."""
        start = "start it: holdfast run app.py:pipeline"
        if self.kind in ("checkpoint", "savepoint"):
            return f"{start}; or use its last checkpoint, which holdfast ls lists"
        return f"{start}, or list its checkpoints: holdfast ls" if self.kind != "cancel" else "nothing needs to be done"


class BlocksMissing(Absent):
    """No block file at this path."""

    path: str
    says = "there is no block file at {e.path}"
    next_step = "check the path, or create the file with FileBlocks.create"


class CheckpointMissing(Absent):
    """No checkpoint with this id, or no savepoint with this name."""

    checkpoint: int | str
    where: str
    why: str = ""  # why it no longer exists
    asked: str = ""  # what was requested, if it is neither an id nor a name
    says = "there is no {e.kind} in {e.where}{e.reason}"
    next_step = "{e.advice}"

    @property
    def reason(self) -> str:
        """Why it does not exist, if known."""
        return f": {self.why}" if self.why else ""

    @property
    def advice(self) -> str:
        """The next step."""
        if self.checkpoint == 0:
            return "run the pipeline, without --no-checkpoints or checkpoint_every=None: holdfast run app.py:pipeline"
        text = f"list the checkpoints: holdfast ls --repo {shlex.quote(self.where)}"
        if isinstance(self.checkpoint, int):
            return text
        if self.checkpoint.isdecimal():
            return f"{text}; pass the id as an integer, not as text"
        forms = "an id, the name of a savepoint, or latest; rewind and fork also accept before:STREAM:EPOCH"
        return f"{text}; pass {forms}"

    @property
    def kind(self) -> str:
        """What was requested, as text."""
        if self.checkpoint == 0:
            return "checkpoint that can be restored"
        if self.asked:
            return self.asked
        is_id = isinstance(self.checkpoint, int)
        return f"checkpoint {self.checkpoint}" if is_id else f"savepoint {self.checkpoint!r}"


class CursorMissing(Absent):
    """No cursor with this name was ever saved."""

    cursor: str
    where: str
    says = "there is no cursor {e.cursor!r} in {e.where}"
    next_step = "{e.advice}"

    @property
    def advice(self) -> str:
        """The next step."""
        return f"list the cursors: holdfast cursor ls --repo {shlex.quote(self.where)}"


class LogMissing(Absent):
    """No event log in this folder."""

    path: str
    says = "there is no event log at {e.path}"
    next_step = "check the path, or run the pipeline that writes the log, or create one with EventLog.create"


class SinkMissing(Absent):
    """No FileSink folder at this path."""

    path: str
    why: str
    says = "there is no FileSink folder at {e.path}: {e.why}"
    next_step = "pass the path that was given to the pipeline's FileSink"


class SparkCheckpointMissing(Absent):
    """No checkpoint folder of a Structured Streaming query at this path."""

    path: str
    why: str
    do: str = "pass the checkpointLocation of the query"
    says = "{e.path} is not a Spark checkpoint folder: {e.why}"
    next_step = "{e.do}"


class JavaMissing(Absent):
    """Spark requires Java, and none was found where Spark looks, or it is too old."""

    why: str
    says = "Spark needs Java 17 or newer: {e.why}"
    next_step = (
        "install Java (`apt install openjdk-17-jre-headless`, `dnf install java-17-openjdk-headless`), "
        "or set its location: export JAVA_HOME=/path/to/java"
    )


class ExecutorsUnfit(Absent):
    """Executors of the cluster lack a package, a Java class, or access to the object store.

    Nothing was changed: the lease that the start had taken is released.
    """

    problems: tuple[str, ...]  # each begins with the name of its host
    says = "executors cannot run this pipeline: {e.listed}"
    next_step = (
        "install the same packages in the same versions on all machines, send the jar of Holdfast to executors "
        "(spark-submit $(holdfast jar --submit) …), and give every machine credentials for the store"
    )

    @property
    def listed(self) -> str:
        """All problems, as one text."""
        return "; ".join(self.problems)


class StageBlank(Absent):
    """The device holds no image yet: every header is blank."""

    stage: str
    says = "the device of stage {e.stage!r} holds no image"
    next_step = "start the stage with an initial state and call checkpoint()"
