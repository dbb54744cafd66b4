"""Rewind and its undo.

A rewind needs the sinks of the program: only they can take rows back. The page never loads a program itself. If the
server was started with `--program NAME=TARGET`, it starts `holdfast rewind TARGET` as a process of its own, first with
`--dry-run`, then with the id of the plan that was shown: the command refuses if anything has changed since. Without a
program, the page shows the command to type.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from holdfast.cli.holder import holder_of
from holdfast.cli.options import checkpoint_of
from holdfast.cli.results import ErrorResult
from holdfast.cli.verbs.rewind import Rewind
from holdfast.errors import BadValue, describe_error
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.repository import Checkpoints, Repository
from holdfast.web.acting.actions import WHY, FormField, PageAction, Values
from holdfast.web.acting.jobs import Report
from holdfast.web.acting.plans import ActionEnd, ActionPlan
from holdfast.web.places import Place

_PLAN_S, _APPLY_S = 120.0, 3600.0
_BEFORE = "before:"
_IN_TERMINAL = "run the same command in a terminal, on the machine of the pipeline"
NO_PROGRAM = (
    "The server does not know the program of this pipeline, and only the program has the sinks that take rows back. "
    "Type the command on the machine of the pipeline, with your program in place of app.py:pipeline; or start the "
    "server with --program {slug}=app.py:pipeline."
)


class RewindPipeline(PageAction):
    """`holdfast rewind`."""

    name = "rewind"
    title = "Rewind"
    about = "Takes the stopped pipeline back to a checkpoint, with its sinks. The next run continues from there."
    typed = True
    fields: ClassVar[Sequence[FormField]] = (
        FormField("to", "To", "a checkpoint, a savepoint, or before:STREAM:EPOCH", required=True, kind="checkpoint"),
        FormField("only", "Only these streams", "names with spaces between them; empty: all", longest=400),
        FormField("leave", "Leave these sinks", "their rows stay, and are written a second time", longest=400),
        FormField("accept_input", "Go back even if it is not known whether the input still exists", kind="tick"),
        WHY,
    )
    undo: ClassVar[bool] = False

    def __init__(self, programs: Mapping[str, str]) -> None:
        self._programs = programs  # by slug: the target of `holdfast rewind`

    def plan(self, place: Place, values: Values) -> ActionPlan:
        """Return the plan that the command makes or, without a program, what the repository alone shows."""
        program = self._programs.get(place.slug)
        command = shlex.join(["holdfast", *self._words(program or "app.py:pipeline", values), *_reason(values["why"])])
        if program is None:
            text = "" if self.undo else _from_repository(place.repository, values["to"])
            return ActionPlan(text=text, command=command, refused=NO_PROGRAM.format(slug=place.slug))
        done = _run([*self._words(program, values), "--dry-run"], _PLAN_S)
        plan = done.result.plan if done.result else None
        if done.error is not None or plan is None:
            refused = f"{done.error.message}. {done.error.next}" if done.error else ""
            return ActionPlan(text="", command=command, refused=refused)
        refusals = [*plan.problems, *([] if values.get("accept_input") else plan.unknown_input)]
        refused = f"The command refuses this plan: {'; '.join(refusals)}" if refusals else ""
        refused = _running(place.repository) or refused
        if done.repository != place.repository.where:
            refused = f"{program} is the program of another pipeline: {done.repository}"
        return ActionPlan(text=plan.summary(), command=command, refused=refused, id=plan.id)

    def carry_out(self, place: Place, values: Values, plan: ActionPlan, job: str, report: Report) -> ActionEnd:
        """Start the command with the id of the plan."""
        del job
        program = self._programs[place.slug]
        words = self._words(program, values)
        report("the command runs; if it is interrupted, the next run or rewind completes it")
        why = f"on the page: {values['why']}" if values["why"] else "on the page"
        done = _run([*words, "--plan", plan.id, "--yes", *_reason(why)], _APPLY_S)
        if done.error is not None:
            return ActionEnd(error=done.error)
        summary = done.result.rewound.summary() if done.result and done.result.rewound else ""
        return ActionEnd(text=f"{summary}\nnext: {shlex.join(['holdfast', 'run', program])}")

    def _words(self, program: str, values: Values) -> list[str]:
        words = ["rewind", program, "--to", values["to"]]
        for name in ("only", "leave"):
            for each in values[name].split():
                words += [f"--{name}", each]
        return [*words, "--accept-input"] if values["accept_input"] else words


class UndoRewind(RewindPipeline):
    """`holdfast rewind --undo`."""

    name = "undo"
    title = "Undo the last rewind"
    about = "Possible until the next run has decided an epoch."
    fields = (WHY,)
    undo = True

    def _words(self, program: str, values: Values) -> list[str]:
        del values
        return ["rewind", program, "--undo"]


class _Document(msgspec.Struct, frozen=True):
    """What `holdfast rewind --json` prints."""

    result: Rewind | None = None
    repository: str | None = None
    error: ErrorResult | None = None


def _run(words: Sequence[str], seconds: float) -> _Document:
    """Run the command; return its document, which contains a result or an error."""
    command = [sys.executable, "-m", "holdfast", *words, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL)
        found = from_json(done.stdout, _Document)
    except (OSError, Undecodable, subprocess.TimeoutExpired) as error:
        return _Document(error=ErrorResult(type(error).__name__, describe_error(error), _IN_TERMINAL))
    if found.result is None and found.error is None:
        return _Document(error=ErrorResult("Undecodable", "the command has printed no result", _IN_TERMINAL))
    return found


def _from_repository(repository: Repository, to: str) -> str:
    """Return what is known without the program: how many epochs of each stream come after the checkpoint."""
    if to.startswith(_BEFORE):
        return ""
    manifest = Checkpoints(repository).read(checkpoint_of(repository, to))
    lines = [f"{manifest.title}: the streams continue after these epochs"]
    lines += [f"  {name}: epoch {cut.epoch}, timeline {cut.timeline}" for name, cut in manifest.streams.items()]
    return "\n".join([*lines, *filter(None, [_running(repository)])])


def _running(repository: Repository) -> str:
    """Return what to do first if the pipeline runs; the command would be refused too."""
    holder = holder_of(repository)
    if holder is None:
        return ""
    stop = shlex.join(["holdfast", "stop", "-r", repository.where])
    return f"The pipeline runs (process {holder.pid} on {holder.host}). Stop it first: {stop}"


def _reason(why: str) -> list[str]:
    return ["--why", why] if why else []


def checked_programs(given: Sequence[str]) -> dict[str, str]:
    """Return the programs by pipeline, from `NAME=TARGET`."""
    found = {}
    for each in given:
        name, equals, target = each.partition("=")
        if not (name and equals and target) or target.startswith("-"):
            raise BadValue(
                what="--program", value=each, expected="NAME=app.py:pipeline, the name of the pipeline first"
            )
        found[name] = target
    return found
