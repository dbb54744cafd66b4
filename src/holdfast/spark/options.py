"""The options of a pipeline, of its streams and of a run: each with its type and its default, written once.

`Pipeline`, `Pipeline.stream` and `Pipeline.start` document them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypedDict, TypeVar, cast

from holdfast.epoch import Reach, unwatched
from holdfast.policy import CHECKPOINT_EVERY, Backoff, CheckpointPolicy
from holdfast.sinks.base import OutputMode, Sink
from holdfast.spark.context import StreamCallbacks
from holdfast.spark.spec import DEFAULT_OUTAGE, DEFAULT_RESTART, Accept, OutageLimits, RestartPolicies
from holdfast.spark.stages import OnEpoch
from holdfast.stages import FlushObserver, Stage

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class PipelineOptions(TypedDict, total=False):
    """Options of `Pipeline` and `exactly_once`."""

    shared: bool
    restart: RestartPolicies
    outage: OutageLimits
    backoff: Backoff | None
    callbacks: StreamCallbacks | None
    observers: Sequence[FlushObserver]


class StreamOptions(TypedDict, total=False):
    """Options of `Pipeline.stream` and `exactly_once`."""

    output_mode: OutputMode
    trigger: str | Mapping[str, Any] | None
    options: Mapping[str, str] | None
    quarantine_after: int | None
    stage: Stage[Any] | Any
    on_epoch: OnEpoch | None
    commit_group: str | None
    valid: str | Mapping[str, str] | None
    dead_letter: Sink | None


class SingleStreamOptions(PipelineOptions, StreamOptions):
    """Options of `exactly_once`: those of a pipeline and of its one stream."""


class StartOptions(TypedDict, total=False):
    """Options of `Pipeline.start` and `Pipeline.run`."""

    available_now: bool
    checkpoint_every: CheckpointPolicy | float | str | timedelta | None
    accept: Accept | Collection[Accept]
    outage: OutageLimits | None
    poll_every: float | str | timedelta | None
    take_over: bool
    callbacks: StreamCallbacks | None
    page: int | None
    program: str
    reach: Reach


PIPELINE_DEFAULTS: PipelineOptions = {
    "shared": False,
    "restart": DEFAULT_RESTART,
    "outage": DEFAULT_OUTAGE,
    "backoff": None,
    "callbacks": None,
    "observers": (),
}
STREAM_DEFAULTS: StreamOptions = {
    "output_mode": "append",
    "trigger": None,
    "options": None,
    "quarantine_after": None,
    "stage": None,
    "on_epoch": None,
    "commit_group": None,
    "valid": None,
    "dead_letter": None,
}
SINGLE_STREAM_DEFAULTS: SingleStreamOptions = {**STREAM_DEFAULTS, **PIPELINE_DEFAULTS}
START_DEFAULTS: StartOptions = {
    "available_now": False,
    "checkpoint_every": CHECKPOINT_EVERY,
    "accept": (),
    "outage": None,
    "poll_every": None,
    "take_over": False,
    "callbacks": None,
    "page": None,
    "program": "",
    "reach": unwatched,
}


def takes(kind: type, defaults: Mapping[str, object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function with `**options: Unpack[kind]` accept each option as a keyword argument with its default.

    The function always gets all options. `help()` and `inspect.signature` show them, and an unknown one is a
    `TypeError`, as if they were written in the signature.
    """
    shown = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind.__annotations__[name].__forward_arg__
        )
        for name, default in defaults.items()
    ]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(function)
        named = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        known = {each.name for each in (*named, *shown)}

        @functools.wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            for name in given:
                if name not in known:
                    text = f"{function.__qualname__}() got an unexpected keyword argument {name!r}"
                    near = difflib.get_close_matches(name, known, n=1)
                    raise TypeError(f"{text}. Did you mean {near[0]!r}?" if near else text)
            return function(*args, **cast(Any, {**defaults, **given}))

        signature = own.replace(parameters=[*named, *shown])
        call.__signature__ = signature  # type: ignore[attr-defined] # `inspect.signature` reads it
        call.__annotations__ = {each.name: each.annotation for each in signature.parameters.values() if each.annotation}
        call.__annotations__["return"] = own.return_annotation
        return call

    return decorate


def part_of(kind: type[T], options: SingleStreamOptions) -> T:
    """Return the options that belong to one kind."""
    return cast(T, {name: value for name, value in options.items() if name in kind.__annotations__})
