"""Correct the call: an argument was invalid, and nothing was changed."""

from __future__ import annotations

from holdfast.errors.base import HoldfastError, shown


class BadInput(HoldfastError, ValueError):
    """The call was invalid; nothing was changed."""


class BadName(BadInput):
    """A name or key that must not become part of a path."""

    kind: str
    name: object
    why: str
    rule: str = "use 1 to 64 of the characters A-Z a-z 0-9 _ . - and begin with a letter or digit"
    says = "invalid {e.kind} name {e.shown}: {e.why}"
    next_step = "{e.rule}"

    @property
    def shown(self) -> str:
        """The name, safe to print: escaped, and truncated if it is long."""
        return shown(self.name)


class BadValue(BadInput):
    """An argument of the wrong type or outside its range.

    `expected` states what would be valid; `why` gives the reason. One of them, or both, is given.
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
        """What would be valid, and why this value is not, as far as they are known."""
        parts = [self.expected and f"expected {self.expected}", self.why]
        return "; ".join(part for part in parts if part) or "not valid here"

    @property
    def shown(self) -> str:
        """The value, safe to print: escaped, and truncated if it is long."""
        return shown(self.value)


class ClockNotKept(BadInput):
    """A region filters by entity clock, but the log does not store clocks."""

    log: str
    says = "event log {e.log} does not store entity clocks, so a region cannot filter by clock"
    next_step = "remove the clock from the region, or create the log with keep_clock=True"


class SaveTooOld(BadInput):
    """The bounded store would evict this state immediately."""

    stream: str
    sequence: int
    oldest: int
    limit: int
    says = (
        "state {e.sequence} of stream {e.stream!r} would be evicted immediately: the store keeps {e.limit} states "
        "and the oldest is {e.oldest}"
    )
    next_step = "save a newer state, or create a store with a higher limit"


class StageTooLarge(BadInput):
    """The state does not fit on its device. Nothing was written; the previous state is unchanged."""

    stage: str
    size: int
    capacity: int
    step: str = "too large"
    says = "stage {e.stage!r}: {e.step}: {e.size} bytes on a device that holds {e.capacity}"
    next_step = "use a larger device; the last checkpoint on this one is still valid"


class StageUnserializable(BadInput):
    """The codec could not encode the state. Nothing was written."""

    stage: str
    why: str
    step: str = "serialize"
    do: str = "correct the state or its codec, then restore the stage"
    says = "stage {e.stage!r}: {e.step}: {e.why}"
    next_step = "{e.do}"


class NotSupported(BadInput):
    """The request cannot be carried out safely, or the feature does not exist. `why` gives the reason."""

    what: str
    why: str
    do: str = "change the call or the settings"
    says = "{e.what} is not supported: {e.why}"
    next_step = "{e.do}"


class ProgramFailed(BadInput):
    """A user program could not be loaded, or one of its functions raised. `trace` has only the user's own frames."""

    program: str
    why: str
    trace: str
    do: str = "fix the program, then run it again"
    says = "{e.program} could not be run: {e.why}"
    next_step = "{e.do}"


class LastBatchUnknown(BadInput):
    """A batch of a plain Spark query was begun and not committed: its rows may be in a sink. Nothing was changed."""

    path: str
    batch: int
    sinks: tuple[str, ...]  # for which there is no answer
    input: str  # what the batch read
    says = (
        "batch {e.batch} of {e.path} was begun and not committed, and plain Spark does not record whether its rows are "
        "in the target of {e.listed}"
    )
    next_step = (
        "look in each target of the old query for rows of this batch ({e.input}), then add {e.options}; 'written' "
        "means that all of its rows are there, 'not-written' that none is"
    )

    @property
    def listed(self) -> str:
        """The sinks in one line."""
        return f"sink{'s' if len(self.sinks) > 1 else ''} {', '.join(self.sinks)}"

    @property
    def options(self) -> str:
        """The options that are missing."""
        return " ".join(f"--last-batch {name}=written|not-written" for name in self.sinks)


class MissingExtra(BadInput, ImportError):
    """An optional dependency is not installed."""

    extra: str
    module: str
    says = "the Python package {e.module!r} is required for this feature and is not installed"
    next_step = "pip install 'holdfast-spark[{e.extra}]'"
