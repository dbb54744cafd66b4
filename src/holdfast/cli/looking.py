"""The verbs that only look: ls, show, log, gaps, doubt."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import CheckpointName, Json, Repo, checkpoint_of
from holdfast.cli.tables import TableRows, fields, print_damaged
from holdfast.cli.target import located, missing, pipelines, roots, shown
from holdfast.errors import Corrupt, StorageFailed, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.formats.manifest import INHERITED, Manifest, StreamCut
from holdfast.in_doubt import Doubt, in_doubt
from holdfast.policy import seconds_of
from holdfast.repository import (
    Checkpoints,
    FileList,
    GapRecord,
    Gaps,
    History,
    Identity,
    LocalRepository,
    Status,
    Summary,
)
from holdfast.repository.base import read_each
from holdfast.repository.decisions import streams_of
from holdfast.repository.identity import KEY
from holdfast.repository.lease import held_lease, newest_lease, seen_leases

SETTLES_S = 10.0  # an epoch that a running pipeline has decided so recently is being committed, not in trouble
Last = Annotated[int | None, typer.Option("--last", "-n", metavar="N", min=1, help="Show only the newest N.")]
_SHOWN_GAPS = 5  # of a checkpoint's newest
_COLOURS = {Status.RESTORABLE: "green", Status.OPEN: "yellow", Status.ABORTED: "dim", Status.DAMAGED: "bold red"}


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that has the lease of a pipeline."""

    lease: int  # the number of its lease
    host: str  # the name of its machine
    pid: int  # its process id there
    taken_at_ms: int  # when it took the lease
    certain: bool  # whether it is known to be alive; false for a shared pipeline that was last started elsewhere
    shared: bool = False  # runs without an OS lock: only a process on this machine can be checked


class CheckpointLine(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint or savepoint in a list."""

    checkpoint: int  # its id; 0 where a damaged savepoint does not tell
    timeline: int  # the timeline that it was taken in
    status: Status  # open: being taken, or left by a driver that died
    timestamp_ms: int  # when it was begun; 0 if that is not known
    epochs: dict[str, int] | None  # by stream: the last epoch in it
    rows: int  # given to each sink up to it, of all streams
    file_count: int  # files that it needs to be restored
    file_bytes: int  # their size
    digest: str | None  # SHA-256 of its manifest
    parent: str | None  # the digest of the checkpoint before it
    savepoint: str | None  # its name, of a savepoint alone
    why: str | None  # why it is aborted or damaged
    aborted_at_ms: int | None = None  # when it was given up or dropped


class PipelineListing(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline and its checkpoints, oldest first."""

    pipeline: str  # its name
    uid: str  # tells two pipelines of one name apart
    timeline: int  # the current one
    where: str  # the folder of its repository
    holder: Holder | None  # null where it does not run on this machine
    checkpoints: list[CheckpointLine]  # oldest first; attempts that were given up only with `--all`
    damaged: str | None = None  # why it cannot be told whose repository it is
    holder_unknown: str | None = None  # why it is not known whether it runs


class Ls(msgspec.Struct, frozen=True):
    """The pipelines that were found, and their checkpoints."""

    pipelines: list[PipelineListing]  # one for each repository that was found, by name


class FileLine(msgspec.Struct, frozen=True):
    """A file that a cut needs."""

    path: str  # below the stream's Spark checkpoint folder
    size: int  # in bytes
    sha256: str  # digest of its bytes


class Show(msgspec.Struct, frozen=True):
    """One checkpoint, as its manifest tells it."""

    manifest: dict[str, Any]  # as it stands in its file, see docs/formats.md
    files: dict[str, list[FileLine]] | None = None  # with `--files`: every stream's
    notes: dict[str, str] = {}  # meanings of manifest fields that are kept for tools of the original system


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done to a pipeline."""

    at: str  # when, as ISO 8601 in UTC
    who: str  # user, machine and process
    what: str  # as in `prune` or `lease`
    why: str  # in the words of whoever did it
    facts: dict[str, Any]  # more about it, by name


class Log(msgspec.Struct, frozen=True):
    """The history of a pipeline."""

    entries: list[LogLine]  # oldest first
    damaged: list[str] = []  # what is wrong with records that could not be read


class GapsFound(msgspec.Struct, frozen=True):
    """The gap ledger of a pipeline."""

    gaps: list[GapRecord]  # by timeline, stream and epoch
    damaged: list[str] = []  # what is wrong with records that could not be read


class DoubtsFound(msgspec.Struct, frozen=True, kw_only=True):
    """The epochs of a pipeline that are in doubt."""

    settling: bool  # the pipeline runs and has decided all of them in the last seconds: no trouble
    holder: Holder | None  # null where it does not run on this machine
    doubts: list[Doubt]  # one a stream at most
    damaged: list[str] = []  # what is wrong with records that could not be read


SHAPES = {"ls": Ls, "show": Show, "log": Log, "gaps": GapsFound, "doubt": DoubtsFound}


# --- ls --------------------------------------------------------------------------------------------------------------


def ls(
    repo: Repo = None,
    last: Last = None,
    every: Annotated[bool, typer.Option("--all", help="Attempts that were given up, too.")] = False,
    as_json: Json = False,
) -> Answer:
    """List checkpoints and savepoints, oldest first.

    A root that holds several pipelines is listed pipeline by pipeline. Exits with 1 where a checkpoint is damaged.

    [bold]Examples[/]

        holdfast ls -r ./checkpoints/orders
        holdfast ls --last 5
        holdfast ls --json | jq '.result.pipelines[].checkpoints[-1].checkpoint'
    """
    folders = _folders(repo)
    found = [_listing(LocalRepository(each), last, every, alone=len(folders) == 1) for each in folders]
    damaged = any(
        each.damaged or each.holder_unknown or any(line.status is Status.DAMAGED for line in each.checkpoints)
        for each in found
    )

    def show(console: Console) -> None:
        for number, each in enumerate(found):
            if number:
                console.print()
            _show_listing(console, each)

    return Answer(Ls(found), show, found=damaged, repository=found[0].where if len(found) == 1 else None)


def _folders(repo: str | None) -> list[Path]:
    for root in roots(repo):
        found = [root] if os.path.lexists(root / KEY) else pipelines(root)
        if found:
            return found
    raise missing(repo)


def _listing(repository: LocalRepository, last: int | None, every: bool, *, alone: bool) -> PipelineListing:
    try:
        identity = Identity.load(repository)
    except (Corrupt, UnsupportedVersion, StorageFailed) as error:
        if alone:
            raise
        name = Path(repository.where).name  # the others are there to be seen all the same
        return PipelineListing(
            pipeline=name,
            uid="",
            timeline=0,
            where=repository.where,
            holder=None,
            checkpoints=[],
            damaged=error.summary,
        )
    found = [each for each in Checkpoints(repository).all() if every or each.status is not Status.ABORTED]
    holder, unknown = _seen_holder(repository)
    return PipelineListing(
        pipeline=identity.pipeline,
        uid=identity.uid,
        timeline=identity.timeline,
        where=repository.where,
        holder=holder,
        checkpoints=[_line(each) for each in found[-(last or 0) :]],
        holder_unknown=unknown,
    )


def _line(each: Summary) -> CheckpointLine:
    return msgspec.convert(each.to_dict(), CheckpointLine)


def holder_of(repository: LocalRepository) -> Holder | None:
    """Return the process that has the lease of a repository; `None` if none has it on this machine.

    Not promised for a shared pipeline: that the process still runs it. It may have ended the run and live on.
    """
    held = held_lease(repository)
    lease = held or newest_lease(repository)
    if lease is None or not (held or lease.shared):
        return None
    alive = True if held else lease.is_alive()
    if alive is False:
        return None
    return Holder(
        lease=lease.number,
        host=lease.host,
        pid=lease.pid,
        taken_at_ms=lease.taken_at_ms,
        certain=alive is True,
        shared=lease.shared,
    )


def _seen_holder(repository: LocalRepository) -> tuple[Holder | None, str | None]:
    """Return the holder of the lease, or why it is not known: the rest is listed even then."""
    try:
        return holder_of(repository), None
    except (Corrupt, UnsupportedVersion, StorageFailed) as error:
        return None, error.summary


def _show_listing(console: Console, listing: PipelineListing) -> None:
    running = _running(listing.holder) if listing.holder_unknown is None else "it is unknown whether it runs"
    console.print(Text.assemble((listing.pipeline, "bold"), f"  timeline {listing.timeline}  {running}"))
    console.print(Text(formatting.harmless(shown(Path(listing.where))), "dim"), soft_wrap=True)
    if listing.damaged:
        console.print(Text(formatting.harmless(listing.damaged), "bold red"), soft_wrap=True)
        return
    print_damaged(console, [listing.holder_unknown] if listing.holder_unknown else [])
    if not listing.checkpoints:
        console.print("no checkpoint yet: a running pipeline takes one every minute and when it is stopped,")
        console.print("unless checkpoints are turned off (checkpoint_every=None, --no-checkpoints)")
        return
    rows = TableRows(
        *("id", "name", "status", "taken (UTC)", "age", "files", "size", "epochs"),
        right=("id", "files", "size"),
        wide_only=("taken (UTC)", "files"),
    )
    for each in listing.checkpoints:
        epochs = ", ".join(f"{stream} {epoch}" for stream, epoch in (each.epochs or {}).items())
        restorable = each.status is Status.RESTORABLE
        rows.add(
            str(each.checkpoint) if each.checkpoint else "?",
            each.savepoint or "",
            Text(each.status, _COLOURS[each.status]),
            formatting.moment(each.timestamp_ms) if each.timestamp_ms else "",
            formatting.age(each.timestamp_ms) if each.timestamp_ms else "",
            formatting.number(each.file_count) if restorable else "",
            formatting.size(each.file_bytes) if restorable else "",
            each.why or epochs,
        )
    rows.print(console)


def _running(holder: Holder | None) -> str:
    if holder is None:
        return "not running"
    if holder.shared:
        where, how = ("this machine", "is alive") if holder.certain else (holder.host, "cannot be checked from here")
        return f"shared: process {holder.pid} on {where}, lease {holder.lease}, {how}"
    return (
        f"running for {formatting.age(holder.taken_at_ms)}: process {holder.pid} on {holder.host}, lease {holder.lease}"
    )


# --- show ------------------------------------------------------------------------------------------------------------


def show(
    checkpoint: CheckpointName = None,
    repo: Repo = None,
    files: Annotated[bool, typer.Option("--files", help="Every file that each stream's cut needs, too.")] = False,
    as_json: Json = False,
) -> Answer:
    """Show a checkpoint: where each stream stood, what its sinks and its state hold.

    Without an ID it is the newest of the current timeline.

    [bold]Examples[/]

        holdfast show                 the newest one
        holdfast show 12 --files
        holdfast show before-upgrade --json | jq .result.manifest.streams
    """
    repository = located(repo)
    checkpoints = Checkpoints(repository)
    if checkpoint is None:
        manifest = checkpoints.latest(Identity.load(repository).timeline)
        place, _ = checkpoints.find(manifest.checkpoint_id)
    else:
        asked = checkpoint_of(repository, checkpoint)
        manifest = checkpoints.read(asked)
        place, _ = checkpoints.find(asked)
    name = manifest.savepoint or manifest.checkpoint_id
    lists = {stream: checkpoints.files(place, cut, name) for stream, cut in manifest.streams.items()} if files else {}
    try:
        stands = from_json(repository.read(place.manifest), dict[str, Any])
    except Undecodable as error:  # in a field that this version does not know
        raise checkpoints.damaged(name, f"its manifest: {error}") from error
    result = Show(
        stands,
        {stream: _lines_of(each) for stream, each in lists.items()} if files else None,
        {name: text for name, text in INHERITED.items() if name in stands},
    )

    def print_it(console: Console) -> None:
        _show_manifest(
            console, manifest, str(result.manifest.get("digest", "")), f"{repository.where}/{place.manifest}"
        )
        for stream, each in lists.items():
            console.print()
            rows = TableRows("path", "size", "sha256", right=("size",))
            for file in each.files:
                rows.add(f"{stream}: {file.path}", formatting.size(file.size), file.sha256)
            rows.print(console)

    return Answer(result, print_it, repository=repository.where)


def _lines_of(files: FileList) -> list[FileLine]:
    return [FileLine(each.path, each.size, each.sha256) for each in files.files]


def _show_manifest(console: Console, manifest: Manifest, digest: str, where: str) -> None:
    kind = f"savepoint {manifest.savepoint}, checkpoint" if manifest.savepoint else "checkpoint"
    title = (f"{kind} {manifest.checkpoint_id}", "bold")
    console.print(Text.assemble(title, f" of pipeline {manifest.pipeline or '?'}"))
    fields(
        console,
        [
            ("taken", f"{formatting.moment(manifest.timestamp_ms)} UTC, {formatting.age(manifest.timestamp_ms)} ago"),
            ("timeline", f"{manifest.timeline}, lease {manifest.lease}"),
            ("digest", digest or "none"),
            ("parent", manifest.parent or "none: the first of its chain"),
            ("file", shown(Path(where))),
            *_gap_fields(manifest),
        ],
    )
    for stream, cut in manifest.streams.items():
        console.print()
        console.print(Text.assemble("stream ", (stream, "bold")))
        fields(console, _cut_fields(cut))


def _gap_fields(manifest: Manifest) -> list[tuple[str, str | Text]]:
    gaps = manifest.gaps
    if gaps is None:
        return []
    shown_gaps = gaps.newest[-_SHOWN_GAPS:]
    found: list[tuple[str, str | Text]] = [
        ("gap", Text(formatting.harmless(f"{each.stream} epoch {each.epoch}, {each.kind}: {each.why}"), "red"))
        for each in shown_gaps
    ]
    more = gaps.total - len(shown_gaps)
    return [*found, *([("gaps", f"{formatting.number(more)} more: holdfast gaps")] if more else [])] or [
        ("gaps", "none")
    ]


def _cut_fields(cut: StreamCut) -> list[tuple[str, str | Text]]:
    if not cut.epoch:
        return [("epoch", "none: it had not started")]
    found: list[tuple[str, str | Text]] = [
        ("epoch", f"{cut.epoch}, {cut.output_mode}; {formatting.number(cut.rows)} rows so far to each sink"),
    ]
    if cut.watermark_ms:
        found.append(("watermark", f"{formatting.moment(cut.watermark_ms)} UTC"))
    if cut.reads:
        found.append(("reads", ", ".join(cut.reads)))
    for number, offset in enumerate(cut.offsets):
        source = cut.sources[number] if number < len(cut.sources) else str(number)
        found.append(("source", f"{source} at {offset or 'its beginning'}"))
    found += [("sink", f"{name}  {_noted(note)}".rstrip()) for name, note in cut.sinks.items()]
    if cut.state_format:
        found.append(("state", cut.state_format))
    found.append(("files", f"{formatting.number(cut.file_count)}, {formatting.size(cut.file_bytes)}"))
    return found


def _noted(note: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in note.items())


# --- log -------------------------------------------------------------------------------------------------------------


def log(
    repo: Repo = None,
    last: Last = None,
    as_json: Json = False,
) -> Answer:
    """Tell the history of a pipeline: who did what, when and why.

    Starts are known by the leases that they took; the last sixteen are kept. Exits with 1 if a record is damaged; the
    others are listed.

    [bold]Example[/]

        holdfast log -r ./checkpoints/orders --last 20
    """
    repository = located(repo)
    Identity.load(repository)
    history, bad_lines = History(repository).seen()
    taken, bad_leases = seen_leases(repository)
    damaged = [error.summary for error in [*bad_lines, *bad_leases]]
    entries = [LogLine(at=each.at, who=each.who, what=each.what, why=each.why, facts=each.facts) for each in history]
    entries += [
        LogLine(
            at=formatting.iso(each.taken_at_ms),
            who=each.holder,
            what=each.why or "lease",
            why=f"took lease {each.number}",
            facts={"number": each.number, "shared": each.shared},
        )
        for each in taken
    ]
    entries = sorted(entries, key=lambda each: each.at)[-(last or 0) :]

    def print_it(console: Console) -> None:
        if not entries and not damaged:
            console.print("nothing was done yet")
            return
        rows = TableRows("when (UTC)", "who", "what", "why")
        for each in entries:
            rows.add(each.at[:19].replace("T", " "), each.who, each.what, each.why or _told(each.facts))
        if entries:
            rows.print(console)
        print_damaged(console, damaged)

    return Answer(Log(entries, damaged), print_it, found=bool(damaged), repository=repository.where)


def _told(facts: dict[str, Any]) -> str:
    """Return the facts that fit a line."""
    return ", ".join(f"{name}: {value}" for name, value in facts.items() if isinstance(value, str | int))


# --- gaps and doubt --------------------------------------------------------------------------------------------------


def gaps(
    repo: Repo = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="SPAN", help="Only those recorded in this last while: 2h, 90m.")
    ] = None,
    as_json: Json = False,
) -> Answer:
    """List input that should have reached the sinks and did not: the gap ledger.

    Quarantined epochs, offsets that were skipped with your consent, states that were rebuilt otherwise. A gap stays
    in the ledger for good. Exits with 1 where there are any, or if a record is damaged; the others are listed.

    [bold]Examples[/]

        holdfast gaps -r ./checkpoints/orders
        holdfast gaps --since 2h    for a check that runs every hour
    """
    oldest_ms = 0.0 if since is None else (time.time() - seconds_of("--since", since)) * 1000
    repository = located(repo)
    Identity.load(repository)
    ledger = Gaps(repository)
    found: list[GapRecord] = []
    damaged: list[str] = []
    for timeline in Checkpoints(repository).timelines():
        for stream in streams_of(repository, timeline):
            gaps, bad = ledger.seen(stream, timeline)
            found += [gap for gap in gaps if gap.at_ms >= oldest_ms]
            damaged += [error.summary for error in bad]

    def print_it(console: Console) -> None:
        if not found and not damaged:
            console.print("no gaps" if since is None else f"no gaps in the last {since}", markup=False)
            return
        rows = TableRows("stream", "timeline", "epoch", "kind", "when (UTC)", "why", right=("timeline", "epoch"))
        for gap in found:
            rows.add(gap.stream, str(gap.timeline), str(gap.epoch), gap.kind, formatting.moment(gap.at_ms), gap.why)
        if found:
            rows.print(console)
        print_damaged(console, damaged)

    result = GapsFound(found, damaged)
    return Answer(result, print_it, found=bool(found or damaged), repository=repository.where)


def doubt(repo: Repo = None, as_json: Json = False) -> Answer:
    """List epochs in doubt, by sink and age: decided, and not yet known to be in every sink.

    Nothing is lost: the next start finishes them first. Exits with 1 where there are any, but for those that a running
    pipeline has decided in the last ten seconds. Also exits with 1 if a record is damaged; the others are listed.

    [bold]Example[/]

        holdfast doubt -r ./checkpoints/orders
    """
    repository = located(repo)
    timeline = Identity.load(repository).timeline
    seen, bad = read_each(lambda stream: in_doubt(repository, stream, timeline), streams_of(repository, timeline))
    found = [each for each in seen if each is not None]
    holder, unknown = _seen_holder(repository)
    damaged = [*(error.summary for error in bad), *([unknown] if unknown else [])]
    young = all(time.time() - each.decided_at_ms / 1000 < SETTLES_S for each in found)
    settling = bool(found) and holder is not None and holder.certain and young

    def print_it(console: Console) -> None:
        print_damaged(console, damaged)
        if not found:
            console.print("nothing else is in doubt" if damaged else "nothing is in doubt")
            return
        rows = TableRows("stream", "epoch", "sink", "rows", "age", right=("epoch", "rows"))
        for each in found:
            for sink, count in (each.sinks or {"none": 0}).items():
                rows.add(
                    each.stream, str(each.epoch), sink, formatting.number(count), formatting.age(each.decided_at_ms)
                )
        rows.print(console)
        console.print(_advice(holder, settling=settling))

    result = DoubtsFound(settling=settling, holder=holder, doubts=found, damaged=damaged)
    trouble = bool(damaged) or (bool(found) and not settling)
    return Answer(result, print_it, found=trouble, repository=repository.where)


def _advice(holder: Holder | None, *, settling: bool) -> str:
    if settling:
        return "the pipeline runs, and is committing them now"
    if holder is not None and holder.certain:
        return f"the pipeline runs as process {holder.pid}: look at what its sinks say, and at its log"
    return "next: start the pipeline again, it finishes them first; `holdfast run app.py:pipeline`"
