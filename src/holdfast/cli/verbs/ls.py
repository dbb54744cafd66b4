"""`holdfast ls`."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import REPO_VARIABLE, Answer
from holdfast.cli.holder import Holder, readable_holder
from holdfast.cli.options import Json, Last, Repos
from holdfast.cli.tables import TableRows, print_damaged, print_problems, verdict_text
from holdfast.cli.target import all_looked_at, shown
from holdfast.cli.timelines import TimelineLine, print_timelines, timeline_lines, unfinished_text
from holdfast.errors import BadValue, Corrupt, StorageFailed, UnsupportedVersion
from holdfast.repository import Checkpoints, Lineage, Repository, Status, Summary
from holdfast.repository.rewinds import unfinished_rewind
from holdfast.repository.verdicts import LastVerify, Verdicts

_COLOURS = {Status.RESTORABLE: "green", Status.OPEN: "yellow", Status.ABORTED: "dim", Status.DAMAGED: "bold red"}


class CheckpointLine(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint or savepoint in a list."""

    checkpoint: int  # its id; 0 for a damaged savepoint whose id cannot be read
    timeline: int  # the timeline that it was taken in
    status: Status  # open: being taken, or left unfinished by a driver that died
    timestamp_ms: int  # when it was started; 0 if unknown
    epochs: dict[str, int] | None  # by stream: the last epoch that it includes
    rows: int  # rows written to each sink up to this point, over all streams
    file_count: int  # number of files needed to restore it
    file_bytes: int  # total size of these files
    digest: str | None  # SHA-256 of its manifest
    parent: str | None  # digest of the previous checkpoint
    savepoint: str | None  # its name, for a savepoint
    why: str | None  # why it was aborted, or what is damaged
    aborted_at_ms: int | None = None  # when it was aborted or removed
    abandoned: bool = False  # a rewind has abandoned it: you cannot go back to it
    seconds: float | None = None  # how long it took; null: not recorded
    phases: dict[str, float] | None = None  # when all streams had reached each step, in seconds since the start
    new_files: int | None = None  # files that no earlier checkpoint of the same run had kept
    new_bytes: int | None = None  # their total size
    last_verify: LastVerify | None = None  # the verdict that `holdfast verify --record` has recorded; null: none


class PipelineListing(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline and its checkpoints, oldest first."""

    pipeline: str  # its name
    uid: str  # distinguishes pipelines of the same name
    timeline: int  # the current one
    where: str  # the folder or the address of its repository
    holder: Holder | None  # null if it is not running on this machine
    checkpoints: list[CheckpointLine]  # oldest first; aborted attempts only with `--all`
    damaged: str | None = None  # why the identity of the repository cannot be read
    holder_unknown: str | None = None  # why it is unknown whether the pipeline is running
    timelines: list[TimelineLine] = []  # all timelines, by number
    unfinished: str | None = None  # a rewind that was interrupted, and what finishes it


class Ls(msgspec.Struct, frozen=True):
    """The pipelines that were found, and their checkpoints."""

    pipelines: list[PipelineListing]  # one per repository, sorted by name


SHAPES = {"ls": Ls}


def ls(
    root: Annotated[
        str | None,
        typer.Argument(metavar="ROOT", help="A pipeline's repository, or a root with several; the same as --repo."),
    ] = None,
    repo: Repos = None,
    last: Last = None,
    every: Annotated[bool, typer.Option("--all", help="Include aborted attempts.")] = False,
    as_json: Json = False,
) -> Answer:
    """List checkpoints and savepoints, oldest first.

    If --repo names a root with several pipelines, all of them are listed. After a rewind, the timelines are shown as a
    tree, and the checkpoints that the rewind has abandoned are marked. Exits with 1 if a checkpoint is damaged or a
    rewind is unfinished. Reads manifests only: to check the files that a checkpoint needs, run holdfast verify.

    [bold]Examples[/]

        holdfast ls -r ./checkpoints/orders
        holdfast ls --last 5
        holdfast ls s3://bucket/pipelines
        holdfast ls --json | jq '.result.pipelines[].checkpoints[-1].checkpoint'
    """
    if root is not None and repo is not None and repo != os.environ.get(REPO_VARIABLE):
        raise BadValue(what="ROOT", value=root, why="--repo was given as well", do="remove one of them")
    places = all_looked_at(root or repo)
    found = [listing_of(each, last, every, alone=len(places) == 1) for each in places]
    damaged = any(
        each.damaged or each.holder_unknown or each.unfinished or _has_damage(each.checkpoints) for each in found
    )

    def print_it(console: Console) -> None:
        for number, each in enumerate(found):
            if number:
                console.print()
            _print_listing(console, each)

    return Answer(Ls(found), print_it, found=damaged, repository=found[0].where if len(found) == 1 else None)


def listing_of(
    repository: Repository, last: int | None = None, every: bool = False, *, alone: bool = True
) -> PipelineListing:
    """Return the checkpoints of one pipeline. If it is not alone, a damaged identity is reported in the listing."""
    try:
        lineage = Lineage.load(repository)
    except (Corrupt, UnsupportedVersion, StorageFailed) as error:
        if alone:
            raise
        return PipelineListing(  # the other pipelines are listed nevertheless
            pipeline=repository.where.rpartition("/")[2],
            uid="",
            timeline=0,
            where=repository.where,
            holder=None,
            checkpoints=[],
            damaged=error.summary,
        )
    found = [each for each in Checkpoints(repository).all() if every or each.status is not Status.ABORTED]
    holder, unknown = readable_holder(repository)
    rewinding = unfinished_rewind(repository, lineage)
    verdicts = Verdicts(repository).shown()
    return PipelineListing(
        pipeline=lineage.identity.pipeline,
        uid=lineage.identity.uid,
        timeline=lineage.current,
        where=repository.where,
        holder=holder,
        checkpoints=[_line(each, lineage, verdicts.get(str(each.name))) for each in found[-(last or 0) :]],
        holder_unknown=unknown,
        timelines=timeline_lines(repository, lineage),
        unfinished=None if rewinding is None else unfinished_text(rewinding),
    )


def _line(each: Summary, lineage: Lineage, verdict: LastVerify | None) -> CheckpointLine:
    abandoned = not lineage.holds_checkpoint(each.timeline, each.checkpoint) and each.checkpoint > 0
    line = msgspec.convert({**each.to_dict(), "abandoned": abandoned}, CheckpointLine)
    return msgspec.structs.replace(line, last_verify=verdict)


def _print_listing(console: Console, listing: PipelineListing) -> None:
    state = _state(listing.holder) if listing.holder_unknown is None else "unknown whether it is running"
    console.print(Text.assemble((listing.pipeline, "bold"), f"  timeline {listing.timeline}  {state}"))
    console.print(Text(formatting.harmless(shown(listing.where)), "dim"), soft_wrap=True)
    if listing.damaged:
        console.print(Text(formatting.harmless(listing.damaged), "bold red"), soft_wrap=True)
        return
    print_damaged(console, [listing.holder_unknown] if listing.holder_unknown else [])
    print_problems(console, [listing.unfinished] if listing.unfinished else [])
    print_timelines(console, listing.timelines)
    if listing.checkpoints:
        _checkpoint_rows(listing.checkpoints).print(console)
        return
    console.print("no checkpoints yet: a running pipeline takes one every minute and one when it stops,")
    console.print("unless checkpoints are turned off (checkpoint_every=None, --no-checkpoints)")


def _checkpoint_rows(checkpoints: list[CheckpointLine]) -> TableRows:
    rows = TableRows(
        *("id", "name", "status", "taken (UTC)", "age", "files", "size", "last verify", "epochs"),
        right=("id", "files", "size"),
        wide_only=("taken (UTC)", "files", "last verify"),
    )
    for each in checkpoints:
        epochs = ", ".join(f"{stream} {epoch}" for stream, epoch in (each.epochs or {}).items())
        restorable = each.status is Status.RESTORABLE
        rows.add(
            str(each.checkpoint) if each.checkpoint else "?",
            each.savepoint or "",
            _status_text(each),
            formatting.moment(each.timestamp_ms) if each.timestamp_ms else "",
            formatting.age(each.timestamp_ms) if each.timestamp_ms else "",
            formatting.number(each.file_count) if restorable else "",
            formatting.size(each.file_bytes) if restorable else "",
            verdict_text(each.last_verify) if each.last_verify else "",
            each.why or epochs,
        )
    return rows


def _has_damage(checkpoints: list[CheckpointLine]) -> bool:
    return any(each.status is Status.DAMAGED for each in checkpoints)


def _status_text(each: CheckpointLine) -> Text:
    if _is_left(each):
        return Text("abandoned", "dim")
    unsound = each.status is Status.RESTORABLE and each.last_verify is not None and each.last_verify.is_unsound
    return Text("unsound", _COLOURS[Status.DAMAGED]) if unsound else Text(each.status, _COLOURS[each.status])


def _is_left(each: CheckpointLine) -> bool:
    return each.abandoned and each.status is Status.RESTORABLE


def _state(holder: Holder | None) -> str:
    if holder is None:
        return "not running"
    if not holder.runs and holder.certain:
        return f"not running; process {holder.pid} on {holder.host} holds lease {holder.lease}: {holder.why}"
    if holder.shared:
        where, how = ("this machine", "is alive") if holder.certain else (holder.host, "cannot be checked from here")
        return f"shared: process {holder.pid} on {where}, lease {holder.lease}, {how}"
    state = "running" if holder.stopping is None else f"stopping on request of {holder.stopping}; running"
    return (
        f"{state} for {formatting.age(holder.taken_at_ms)}: process {holder.pid} on {holder.host}, lease {holder.lease}"
    )
