"""The actions, each as a row: its form, its plan, and what it calls.

Rules:
- `plan` changes nothing. It raises the error that the command would raise.
- `carry_out` calls the function that the command calls, with the id of the job as the id of the request.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from holdfast import _figures as figures
from holdfast._validation import checked_name
from holdfast.cli.answers import Answer
from holdfast.cli.asking import progress_text
from holdfast.cli.holder import holder_of
from holdfast.cli.options import checkpoint_of
from holdfast.cli.verbs.cancel import cancelled_answer
from holdfast.cli.verbs.checkpoint import taken_answer
from holdfast.cli.verbs.prune import print_prune_plan, retention_of
from holdfast.cli.verbs.stop import stopped_answer
from holdfast.cli.verbs.verify import record_verdicts, verified_answer
from holdfast.control import request_cancel, request_checkpoint, request_prune, request_savepoint, request_stop
from holdfast.control.records import MAX_WHY
from holdfast.errors import BadValue, NotRunning
from holdfast.policy import Retention, seconds_of
from holdfast.pruning import plan_prune
from holdfast.repository import Checkpoints, Identity, Repository
from holdfast.repository.checkpoints import LATEST
from holdfast.repository.rewinds import require_finished
from holdfast.verification import Grade, verify, verify_all
from holdfast.web.acting.jobs import Report
from holdfast.web.acting.plans import ActionEnd, ActionPlan, end_of, printed
from holdfast.web.places import Place

_FROM_PAGE = "on the page"
_SOON_S, _LATE_S = 300.0, 1800.0
_DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of the form of an action."""

    name: str
    label: str
    hint: str = ""
    required: bool = False
    kind: str = "text"  # text, checkpoint, tick
    longest: int = 64


WHY = FormField("why", "Why", "recorded in the history", longest=MAX_WHY - 100)
Values = Mapping[str, str]


class PageAction(ABC):
    """An action of the page."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    fields: ClassVar[Sequence[FormField]] = (WHY,)
    typed: ClassVar[bool] = False  # whether the name of the pipeline must be typed to confirm

    def given(self, form: Values) -> dict[str, str]:
        """Return the values of this action's fields, checked; other fields of the form are ignored."""
        found = {}
        for field in self.fields:
            value = form.get(field.name, "").strip()
            if field.required and not value:
                raise BadValue(what=field.label, value="", why="it is empty", do="fill in the form")
            if len(value) > field.longest:
                raise BadValue(what=field.label, value=value[:40], expected=f"at most {field.longest} characters")
            found[field.name] = value
        return found

    @abstractmethod
    def plan(self, place: Place, values: Values) -> ActionPlan:
        """Return what the action would do."""

    @abstractmethod
    def carry_out(self, place: Place, values: Values, plan: ActionPlan, job: str, report: Report) -> ActionEnd:
        """Do it, and return how it ended."""


class _Request(PageAction):
    """An action that asks the running pipeline."""

    does: ClassVar[str]

    def plan(self, place: Place, values: Values) -> ActionPlan:
        """Return which process is asked, and what it does then."""
        repository = place.repository
        holder = holder_of(repository)
        pipeline = Identity.load(repository).pipeline
        if holder is None:
            raise NotRunning(pipeline=pipeline, where=repository.where, kind=self.name)
        who = f"process {holder.pid} on {holder.host} (lease {holder.lease}), which runs pipeline {pipeline},"
        text = f"{who}\n{self.does}"
        if values.get("savepoint"):
            name = checked_name("savepoint", values["savepoint"])
            text += f"\nThe name of the savepoint is {name}."
        return ActionPlan(text=text, command=_command(self._words(values), repository, values))

    def carry_out(self, place: Place, values: Values, plan: ActionPlan, job: str, report: Report) -> ActionEnd:
        """Send the request, and wait for its answer."""
        del plan
        return end_of(self._ask(place.repository, values, job, report))

    @abstractmethod
    def _words(self, values: Values) -> list[str]:
        """Return the command and its own options."""

    @abstractmethod
    def _ask(self, repository: Repository, values: Values, job: str, report: Report) -> Answer:
        """Send the request, and return the answer."""


class TakeCheckpoint(_Request):
    """`holdfast checkpoint`."""

    name = "checkpoint"
    title = "Take a checkpoint"
    about = "The streams are not stopped."
    does = "takes a checkpoint of all streams now. The streams are not stopped."

    def _words(self, values: Values) -> list[str]:
        del values
        return ["checkpoint"]

    def _ask(self, repository: Repository, values: Values, job: str, report: Report) -> Answer:
        why = _why(values)
        taken = request_checkpoint(
            repository, why=why, timeout_s=_SOON_S, request_id=job, watch=lambda each: report(progress_text(each))
        )
        return taken_answer(taken, repository.where)


class TakeSavepoint(_Request):
    """`holdfast savepoint`."""

    name = "savepoint"
    title = "Take a savepoint"
    about = "A named checkpoint with its own copy of every file. It is kept until it is deleted."
    fields = (FormField("savepoint", "Name", "letters, digits, _ . and -", required=True), WHY)
    does = "takes a savepoint of all streams now. The streams are not stopped."

    def _words(self, values: Values) -> list[str]:
        return ["savepoint", values["savepoint"]]

    def _ask(self, repository: Repository, values: Values, job: str, report: Report) -> Answer:
        why, name = _why(values), values["savepoint"]
        taken = request_savepoint(
            repository, name, why=why, timeout_s=_LATE_S, request_id=job, watch=lambda each: report(progress_text(each))
        )
        return taken_answer(taken, repository.where)


class StopPipeline(_Request):
    """`holdfast stop`."""

    name = "stop"
    title = "Stop"
    about = "Each stream finishes its epoch, and a last checkpoint is taken. The page cannot start the pipeline again."
    fields = (FormField("savepoint", "Savepoint", "optional: makes the last checkpoint a savepoint of this name"), WHY)
    does = "finishes the epoch of each stream, takes a last checkpoint, and ends."
    drain: ClassVar[bool] = False

    def _words(self, values: Values) -> list[str]:
        named = ["--savepoint", values["savepoint"]] if values["savepoint"] else []
        return ["stop", *(["--drain"] if self.drain else []), *named]

    def _ask(self, repository: Repository, values: Values, job: str, report: Report) -> Answer:
        done = request_stop(
            repository,
            drain=self.drain,
            savepoint=values["savepoint"] or None,
            drain_timeout_s=_DRAIN_S,
            why=_why(values),
            timeout_s=_LATE_S,
            request_id=job,
            watch=lambda each: report(progress_text(each)),
        )
        return stopped_answer(done, repository)


class DrainPipeline(StopPipeline):
    """`holdfast stop --drain`."""

    name = "drain"
    title = "Drain and stop"
    about = "The available input is processed first, for at most a minute, then the pipeline stops."
    does = "processes the available input, for at most a minute, takes a last checkpoint, and ends."
    drain = True


class CancelCheckpoint(_Request):
    """`holdfast cancel`."""

    name = "cancel"
    title = "Cancel the checkpoint"
    about = "Aborts the checkpoint or savepoint that is being taken. No row is affected."
    does = "aborts the checkpoint or savepoint that it is taking, if it is taking one. The streams continue."

    def _words(self, values: Values) -> list[str]:
        del values
        return ["cancel"]

    def _ask(self, repository: Repository, values: Values, job: str, report: Report) -> Answer:
        why = _why(values)
        done = request_cancel(
            repository, why=why, timeout_s=60.0, request_id=job, watch=lambda each: report(progress_text(each))
        )
        return cancelled_answer(done, repository.where)


class VerifyCheckpoint(PageAction):
    """`holdfast verify --record`."""

    name = "verify"
    title = "Verify"
    about = "Reads the files of a checkpoint and compares them with their digests. Records the verdict."
    fields = (
        FormField("checkpoint", "Checkpoint", "empty: the newest one", kind="checkpoint"),
        FormField("every", "All checkpoints and savepoints", kind="tick"),
        FormField("quick", "Records and sizes only", kind="tick"),
    )

    def plan(self, place: Place, values: Values) -> ActionPlan:
        """Return what is read."""
        repository = place.repository
        words, text, name = ["verify", "--record"], "", ""
        if values["every"]:
            words.insert(1, "--all")
            taken = place.checkpoints.all()
            text = f"reads {figures.counted(len(taken), 'checkpoint')}, each file once"
        else:
            manifest = Checkpoints(repository).read(checkpoint_of(repository, values["checkpoint"] or LATEST))
            files = sum(cut.file_count for cut in manifest.streams.values())
            size = figures.size(sum(cut.file_bytes for cut in manifest.streams.values()))
            name = str(manifest.savepoint or manifest.checkpoint_id)
            words.insert(1, name)
            text = f"reads checkpoint {name}: {figures.counted(files, 'file')}, {size}"
        if values["quick"]:
            words.append("--quick")
            text += "; only records and sizes, not the contents"
        text += "\nrecords the verdict in the repository, and changes nothing else"
        return ActionPlan(text=text, command=_command(words, repository, {}), checkpoint=name)

    def carry_out(self, place: Place, values: Values, plan: ActionPlan, job: str, report: Report) -> ActionEnd:
        """Read the files of the checkpoint that the plan names, although there may be a newer one."""
        del job
        grade = Grade.STRUCTURE if values["quick"] else Grade.DIGESTS

        def progress(done: int, total: int) -> None:
            report(f"read {figures.size(done)} of {figures.size(total)}")

        if values["every"]:
            found = verify_all(place.repository, grade=grade, progress=progress)
        else:
            asked = checkpoint_of(place.repository, plan.checkpoint)
            found = [verify(place.repository, asked, grade=grade, progress=progress)]
        record_verdicts(place.repository, found)
        return end_of(verified_answer(found, place.repository.where, every=bool(values["every"])))


class PruneCheckpoints(PageAction):
    """`holdfast prune`."""

    name = "prune"
    title = "Prune"
    about = "Removes old checkpoints, and the files that only they need. Savepoints are kept. It cannot be undone."
    typed = True
    fields = (
        FormField("last", "Keep the last", "a number; 10 if no rule is given", longest=9),
        FormField("hourly", "Keep one for each of the last hours", "a number", longest=9),
        FormField("daily", "Keep one for each of the last days", "a number", longest=9),
        FormField("within", "Keep all younger than", "30m, 12h, 7d", longest=20),
        FormField("abandoned", "Also those that rewinds have abandoned", kind="tick"),
    )

    def plan(self, place: Place, values: Values) -> ActionPlan:
        """Return what would be removed and kept."""
        repository = place.repository
        require_finished(repository)
        plan = plan_prune(repository, _retention(values), abandoned=bool(values["abandoned"]))
        text = printed(lambda console: print_prune_plan(console, plan))
        words = ["prune"]
        for name in ("last", "hourly", "daily", "within"):
            words += [f"--{name}", values[name]] if values[name] else []
        words += ["--abandoned"] if values["abandoned"] else []
        refused = "there is nothing to prune" if plan.empty else ""
        note = "\nThe plan is made again when it is carried out: checkpoints that are taken meanwhile count."
        return ActionPlan(text=text + note, command=_command(words, repository, {}), refused=refused)

    def carry_out(self, place: Place, values: Values, plan: ActionPlan, job: str, report: Report) -> ActionEnd:
        """Prune here, or ask the running pipeline to."""
        del plan, job
        repository = place.repository
        report("prunes, or waits for the pipeline to prune between two checkpoints")
        abandoned = bool(values["abandoned"])
        done = request_prune(repository, _retention(values), timeout_s=_SOON_S, abandoned=abandoned)
        return ActionEnd(text=done.summary())


def _why(values: Values) -> str:
    return f"{_FROM_PAGE}: {values['why']}" if values["why"] else _FROM_PAGE


def _command(words: Sequence[str], repository: Repository, values: Values) -> str:
    why = ["--why", values["why"]] if values.get("why") else []
    return shlex.join(["holdfast", *words, "-r", repository.where, *why])


def _retention(values: Values) -> Retention:
    last, hourly, daily = (_number(values, name) for name in ("last", "hourly", "daily"))
    within = seconds_of("within", values["within"]) if values["within"] else None
    if last == 0:
        raise BadValue(what="last", value=0, expected="at least 1")
    return retention_of(last, hourly, daily, within)


def _number(values: Values, name: str) -> int | None:
    text = values[name]
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise BadValue(what=name, value=text, expected="a number")
    return int(text)
