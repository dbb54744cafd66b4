"""Find the cause: work ended with an error."""

from __future__ import annotations

from holdfast.errors.base import RUN_AGAIN, HoldfastError


class Halted(HoldfastError):
    """Work ended with an error; the cause is chained."""


class Closed(Halted):
    """The object was closed or released, so another process or thread may be using the resource now."""

    what: str
    do: str = "open it again"
    says = "{e.what} is closed, or was opened by another process"
    next_step = "{e.do}"


class StageHalted(Halted):
    """An earlier checkpoint failed, so the contents of the device are unknown until they are read back."""

    stage: str
    says = "stage {e.stage!r} does not accept checkpoints: an earlier one failed"
    next_step = "restore it: CheckpointedStage.restore(stage.into_blocks(), ...)"


class LogHalted(Halted):
    """An earlier append failed, so the contents of the log are unknown until it is opened again."""

    path: str
    says = "event log {e.path} does not accept appends: an earlier one failed"
    next_step = "close the log and open it again, and check its tail before you repeat the append"


class WorkerFailed(Halted):
    """A handler failed and the restart budget is exhausted."""

    worker: str
    restarts: int
    policy: str
    position: int | None
    why: str
    says = (
        "worker {e.worker!r} failed after {e.restarts} restarts (restart policy: {e.policy}): {e.why}; "
        "its last committed position is {e.position}"
    )
    next_step = "fix the cause, then start the worker again: it continues after that position"


class PersistFailed(Halted):
    """A worker could not save its position. It rolled back to the last saved one and stopped."""

    worker: str
    position: int | None
    why: str
    says = "worker {e.worker!r} could not save its position: {e.why}; the last saved position is {e.position}"
    next_step = "fix the storage, then start the worker again: it repeats the last batch"


class CheckpointFailed(Halted):
    """A checkpoint was aborted. Its id is not used again; nothing else has changed. The next is taken on schedule."""

    checkpoint: int
    why: str
    late: tuple[str, ...] = ()
    says = "{e.which}: {e.why}"
    next_step = "{e.advice}"

    @property
    def which(self) -> str:
        """The checkpoint, as text; one that failed before it took an id has no number."""
        return f"checkpoint {self.checkpoint} was aborted" if self.checkpoint else "a checkpoint could not be started"

    @property
    def advice(self) -> str:
        """The next step."""
        if self.late:
            return f"increase the timeout, or shorten the epochs of {', '.join(self.late)}"
        return "fix the cause; no row is affected, and the previous checkpoint remains restorable"


class CheckpointsFailed(Halted):
    """More consecutive checkpoints failed than the policy tolerates: the pipeline was stopped."""

    pipeline: str
    failures: int
    why: str
    says = "pipeline {e.pipeline!r} was stopped: {e.failures} checkpoints in a row failed, the last because {e.why}"
    next_step = "fix the cause and run the pipeline again: no row is lost, and the last checkpoint is still valid"


class RequestFailed(Halted):
    """The lease holder did not carry out a request, or tried to and failed. `error` is the class of its error."""

    request: str
    why: str
    error: str = ""
    do: str = "fix the cause, then repeat the request"
    says = "request {e.request} failed at the lease holder: {e.why}"
    next_step = "{e.do}"


class RequestLost(Halted):
    """The lease holder took a request and ended before it answered. The request is not carried out again."""

    request: str
    kind: str
    holder: str
    says = "{e.kind} request {e.request} has no answer: {e.holder} took it, and ended before it answered"
    next_step = "see what was done (holdfast log, holdfast ls), then repeat the request if it is still needed"


class QueryFailed(Halted):
    """Spark ended a stream's query with an error."""

    stream: str
    why: str
    says = "the Spark query of stream {e.stream!r} failed: {e.why}"
    next_step = RUN_AGAIN


class DemoFailed(Halted):
    """A job of the demo ended with an error that the demo did not cause. `tail` is the end of its log."""

    job: str
    code: int
    log: str
    tail: str
    says = "{e.tail}\n\nThe demo's {e.job} job ended with exit code {e.code}; its last log lines are above"
    next_step = "read the whole log: {e.log}"


class SessionFailed(Halted):
    """Spark could not be started. The cause is chained."""

    why: str
    says = "Spark could not be started: {e.why}"
    next_step = (
        "read Spark's messages on stderr; check the master and the settings from spark-submit or the environment"
    )


class SessionLost(Halted):
    """The Spark session of a running pipeline ended: its JVM died, or another part of the program stopped it."""

    why: str
    says = "the Spark session has ended: {e.why}"
    next_step = (
        "start the program again: it first finishes the epochs that were in flight; if the JVM died, look for the "
        "reason in the kernel log (out of memory) and in hs_err_pid*.log"
    )


class StreamFailed(Halted):
    """A stream failed and its restart budget is exhausted, or a restart could not help. The cause is chained."""

    pipeline: str
    stream: str
    epoch: int | None
    sink: str | None
    failure: str  # its kind: source, sink, state, user code, repository, executors, fenced, refused
    restarts: int
    policy: str
    why: str
    do: str = RUN_AGAIN
    says = (
        "stream {e.stream!r} of pipeline {e.pipeline!r} failed{e.where} ({e.failure}) after {e.restarts} restarts "
        "(restart policy: {e.policy}): {e.why}"
    )
    next_step = "{e.do}"

    @property
    def where(self) -> str:
        """The epoch and the sink, if known."""
        epoch = f" at epoch {self.epoch}" if self.epoch else ""
        return f"{epoch}, sink {self.sink!r}" if self.sink else epoch


class OutageTooLong(StreamFailed):
    """An outage lasted longer than the stream's policy allows. The cause is chained."""

    waited: float = 0.0  # seconds
    tries: int = 0
    says = (
        "stream {e.stream!r} of pipeline {e.pipeline!r} failed{e.where}: an outage ({e.failure}) has lasted "
        "{e.waited:.0f} s and {e.tries} tries; the limit of the stream is {e.policy}: {e.why}"
    )
