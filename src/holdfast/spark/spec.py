"""The definition of a stream, checked once: its sinks, its output mode, its trigger, its options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from holdfast._validation import checked_name, checked_positive
from holdfast.errors import BadValue, NotSupported
from holdfast.policy import RestartPolicy, seconds_of
from holdfast.sinks.base import OUTPUT_MODES, Sink
from holdfast.spark.dead_letters import DeadLetter, checked_dead_letter
from holdfast.spark.failures import BUDGETED, Kind
from holdfast.spark.stages import OnEpoch
from holdfast.stages import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Accept: TypeAlias = Literal["gaps", "replay", "sinks"]
"""A change that the user accepts; see `Pipeline.start`."""
ACCEPTABLE: tuple[Accept, ...] = get_args(Accept)
_TRIGGERS = ("processingTime", "availableNow", "once")
_REFUSED_TRIGGERS = {
    "continuous": "continuous processing has no batches, and each decision is about a batch",
    "realTime": "in real-time mode rows leave a batch before it ends, so before the epoch is decided",
}
_REFUSED_OPTIONS = {
    "asyncprogress": "with asynchronous progress tracking, Spark can lose a batch that was decided",
    "checkpointlocation": "the repository keeps Spark's checkpoint",
    "path": "sinks= defines where rows are written",
}
OutageLimits: TypeAlias = float | str | timedelta | Mapping[str, float | str | timedelta]
"""How long a stream waits for an outage to end: a time span, or one by kind of failure. 0 means no wait."""
RestartPolicies: TypeAlias = RestartPolicy | Mapping[str, RestartPolicy]
"""How often a stream that failed is restarted: one policy, or one by kind of failure."""
Build = Callable[["SparkSession"], "DataFrame"]
"""A function that makes a stream: from a session to a streaming DataFrame."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream as the user defined it."""

    name: str
    build: Build
    sinks: tuple[Sink, ...]
    output_mode: str
    trigger: dict[str, Any]
    options: dict[str, str]
    restart: Mapping[Kind, RestartPolicy]
    quarantine_after: int | None
    reads: tuple[str, ...] = ()
    stage: Stage[Any] | None = None
    on_epoch: OnEpoch | None = None
    outage: Mapping[Kind, float | None] = field(default_factory=dict)
    commit_group: str | None = None  # of Kafka: the consumer group that each epoch's offsets are committed to
    dead_letter: DeadLetter | None = None  # its sink is one of `sinks`

    @property
    def outputs(self) -> tuple[Sink, ...]:
        """The sinks that get the rows of the stream: all but that of the dead letter."""
        dead = self.dead_letter
        return self.sinks if dead is None else tuple(sink for sink in self.sinks if sink is not dead.sink)


def defined_twice(one: Build, other: Build) -> bool:
    """Whether a program defines two streams with one name: a mistake, because one of them would never run.

    A notebook cell that is run again, or a module that is reloaded, defines the same stream again.
    """
    if getattr(sys.modules.get(getattr(other, "__module__", "")), "__file__", None) is None:
        return False  # a notebook, or a shell
    first, second = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if first is second or not isinstance(first, CodeType) or not isinstance(second, CodeType):
        return True
    return (first.co_filename, first.co_firstlineno) != (second.co_filename, second.co_firstlineno)


def checked_sinks(stream: str, sinks: object) -> tuple[Sink, ...]:
    """Return the sinks: at least one, with distinct names."""
    found = (sinks,) if isinstance(sinks, Sink) else sinks
    if not isinstance(found, Sequence) or not found or not all(isinstance(each, Sink) for each in found):
        do = "pass sinks=[hf.FileSink(...)]"
        raise BadValue(what=f"sinks of stream {stream!r}", value=sinks, expected="a non-empty list of sinks", do=do)
    for each in found:
        if not hasattr(each, "name"):
            why = "it has no name: Sink.__init__ was not called"
            do = f"call super().__init__(name) in {type(each).__name__}.__init__"
            raise BadValue(what=f"sink of stream {stream!r}", value=type(each), why=why, do=do)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise BadValue(
                what="sink name",
                value=name,
                why=f"stream {stream!r} has two sinks with this name",
                do="pass name=... to one",
            )
    return tuple(found)


def checked_output_mode(mode: object) -> str:
    """Return one of Spark's output modes."""
    if mode not in OUTPUT_MODES:
        raise BadValue(what="output_mode", value=mode, expected=f"one of {', '.join(OUTPUT_MODES)}")
    return str(mode)


def checked_trigger(trigger: object) -> dict[str, Any]:
    """Return a trigger as Spark's `trigger()` takes it; text is a processing time, as in "10 seconds"."""
    if trigger is None:
        return {}
    if isinstance(trigger, str):
        return {"processingTime": trigger}
    if not isinstance(trigger, Mapping) or len(trigger) != 1:
        expected = 'a processing time such as "10 seconds", or one of Spark\'s triggers as a dict'
        do = 'pass, for example, trigger={"availableNow": True}'
        raise BadValue(what="trigger", value=trigger, expected=expected, do=do)
    (kind,) = trigger
    if kind in _REFUSED_TRIGGERS:
        raise NotSupported(what=f"the trigger {kind!r}", why=_REFUSED_TRIGGERS[kind], do="use a processing time")
    if kind not in _TRIGGERS:
        raise BadValue(what="trigger", value=kind, expected=f"one of {', '.join(_TRIGGERS)}")
    return dict(trigger)


def checked_options(options: object) -> dict[str, str]:
    """Return options for Spark's `writeStream`; refuse those that would break a guarantee."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise BadValue(what="options", value=options, expected="a dict")
    for name in options:
        for start, why in _REFUSED_OPTIONS.items():
            if str(name).lower().startswith(start):
                raise NotSupported(what=f"the option {name!r}", why=why, do="leave it out")
    return {str(name): str(value) for name, value in options.items()}


def checked_restart(restart: object) -> dict[Kind, RestartPolicy]:
    """Return a policy for each kind of failure, from one for all or from a dict by kind."""
    if isinstance(restart, RestartPolicy):
        return dict.fromkeys(BUDGETED, restart)
    if not isinstance(restart, Mapping):
        raise BadValue(what="restart", value=restart, expected="a RestartPolicy, or a dict of them by kind")
    kinds = {str(kind): kind for kind in BUDGETED}
    for kind, policy in restart.items():
        if str(kind) not in kinds or not isinstance(policy, RestartPolicy):
            raise BadValue(what="restart", value={kind: policy}, why=f"kinds are {', '.join(kinds)}")
    given = {kinds[str(kind)]: policy for kind, policy in restart.items()}
    return {kind: given.get(kind, DEFAULT_RESTART) for kind in BUDGETED}


def checked_outage(outage: object) -> dict[Kind, float | None]:
    """Return the longest wait in seconds for each given kind of failure; `None` means no wait."""
    if not isinstance(outage, Mapping):
        return dict.fromkeys(BUDGETED, _span(outage))
    kinds = {str(kind): kind for kind in BUDGETED}
    for kind in outage:
        if str(kind) not in kinds:
            raise BadValue(what="outage", value=kind, why=f"kinds are {', '.join(kinds)}")
    return {kinds[str(kind)]: _span(span) for kind, span in outage.items()}


def _span(span: object) -> float | None:
    return None if span in (0, "0", "0s") else seconds_of("outage", span)


def checked_reads(stream: str, reads: object) -> tuple[str, ...]:
    """Return the names of the streams that this one reads by a channel outside the pipeline."""
    names = [reads] if isinstance(reads, str) else reads
    if not isinstance(names, Sequence):
        raise BadValue(what=f"reads of stream {stream!r}", value=reads, expected="a list of stream names")
    return tuple(checked_name("stream", each) for each in names)


def checked_stage(stream: str, stage: object, on_epoch: object) -> tuple[Stage[Any] | None, OnEpoch | None]:
    """Return stage and function: both, or none. A value that is not a `Stage` is the initial state of one."""
    if (stage is None) != (on_epoch is None):
        given = "stage=" if on_epoch is None else "on_epoch="
        why = f"stage= and on_epoch= belong together, and it has only {given}"
        raise BadValue(what="stream", value=stream, why=why, do="pass both, or neither")
    if stage is None or on_epoch is None:
        return None, None
    if not callable(on_epoch):
        raise BadValue(what="on_epoch", value=on_epoch, expected="a function of (df, stage)")
    try:
        inspect.signature(on_epoch).bind(None, None)
    except TypeError as error:
        raise BadValue(what="on_epoch", value=on_epoch, why=f"it cannot be called with (df, stage): {error}") from None
    except ValueError:
        pass  # a builtin has no signature
    return stage if isinstance(stage, Stage) else Stage(stage), on_epoch


def _checked_group(group: object) -> str | None:
    if group is not None and (not isinstance(group, str) or not group.strip()):
        raise BadValue(what="commit_group", value=group, expected="the name of a Kafka consumer group")
    return group


DEFAULT_RESTART = RestartPolicy.bounded(5, within=600)
DEFAULT_OUTAGE = 3600.0  # seconds


def _require_argument(stream: str, build: Build) -> None:
    """Refuse a function that cannot be called with the session alone."""
    try:
        inspect.signature(build).bind(None)
    except TypeError as error:
        what, do = f"function of stream {stream!r}", f"define it with one argument, as in `def {stream}(spark):`"
        raise BadValue(what=what, value=build, why=f"it cannot be called with the session: {error}", do=do) from None
    except ValueError:
        pass  # a builtin has no signature


def checked_spec(
    name: object,
    build: Build,
    *,
    sinks: object,
    output_mode: object,
    trigger: object,
    options: object,
    restart: object,
    quarantine_after: int | None,
    reads: object = (),
    stage: object = None,
    on_epoch: object = None,
    outage: object = DEFAULT_OUTAGE,
    commit_group: object = None,
    dead_letter: object = None,
    valid: object = None,
) -> StreamSpec:
    """Check the definition of a stream."""
    if name == "<lambda>":
        raise BadValue(what="stream", value=name, why="a lambda has no name", do="pass name=... to stream()")
    checked = checked_name("stream", name)
    if not callable(build):
        raise BadValue(what=f"stream {checked!r}", value=build, expected="a function of a SparkSession")
    _require_argument(checked, build)
    kept, each = checked_stage(checked, stage, on_epoch)
    outputs, dead = checked_sinks(checked, sinks), checked_dead_letter(checked, dead_letter, valid)
    return StreamSpec(
        name=checked,
        build=build,
        sinks=outputs if dead is None else checked_sinks(checked, (*outputs, dead.sink)),
        output_mode=checked_output_mode(output_mode),
        trigger=checked_trigger(trigger),
        options=checked_options(options),
        restart=checked_restart(restart),
        quarantine_after=None if quarantine_after is None else checked_positive("quarantine_after", quarantine_after),
        reads=checked_reads(checked, reads),
        stage=kept,
        on_epoch=each,
        outage={**checked_outage(DEFAULT_OUTAGE), **checked_outage(outage)},
        commit_group=_checked_group(commit_group),
        dead_letter=dead,
    )
