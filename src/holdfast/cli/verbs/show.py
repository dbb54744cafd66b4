"""`holdfast show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import CheckpointName, Json, Repo, checkpoint_of
from holdfast.cli.tables import TableRows, fields, print_problems, verdict_text
from holdfast.cli.target import looked_at, shown
from holdfast.cli.timelines import TimelineLine, print_timelines, timeline_lines, unfinished_text
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.formats.manifest import INHERITED, Manifest
from holdfast.formats.manifest_parts import StreamCut
from holdfast.repository import Checkpoints, FileList, Lineage, Repository
from holdfast.repository.checkpoints import LATEST
from holdfast.repository.rewinds import unfinished_rewind
from holdfast.repository.verdicts import LastVerify, Verdicts

_SHOWN_GAPS = 5  # the newest ones


class FileLine(msgspec.Struct, frozen=True):
    """A file that a cut needs."""

    path: str  # relative to the stream's Spark checkpoint folder
    size: int  # in bytes
    sha256: str  # digest of its contents


class Show(msgspec.Struct, frozen=True):
    """One checkpoint, with its manifest."""

    manifest: dict[str, Any]  # exactly as stored, see docs/formats.md
    files: dict[str, list[FileLine]] | None = None  # with `--files`: the files of each stream
    abandoned: bool = False  # a rewind has abandoned it: you cannot go back to it
    unfinished: str | None = None  # a rewind that was interrupted, and what finishes it
    timelines: list[TimelineLine] = []  # all timelines of the pipeline, by number
    notes: dict[str, str] = {}  # explains manifest fields that are kept for tools of an earlier system
    last_verify: LastVerify | None = None  # the verdict that `holdfast verify --record` has recorded; null: none


SHAPES = {"show": Show}


def show(
    checkpoint: CheckpointName = None,
    repo: Repo = None,
    files: Annotated[bool, typer.Option("--files", help="List every file that each stream needs.")] = False,
    as_json: Json = False,
) -> Answer:
    """Show the offsets, sinks, state and files of one checkpoint.

    Without an ID, shows the newest checkpoint. A savepoint is shown by its name.

    [bold]Examples[/]

        holdfast show                 the newest checkpoint
        holdfast show 12 --files
        holdfast show before-upgrade --json | jq .result.manifest.streams
    """
    repository = looked_at(repo)
    found = shown_checkpoint(repository, checkpoint, files=files)

    def print_it(console: Console) -> None:
        result, manifest = found.result, found.manifest
        print_problems(console, [result.unfinished] if result.unfinished else [])
        if result.abandoned:
            text = "a rewind has abandoned this checkpoint: you cannot go back to it"
            print_problems(console, [text], "choose one that is restorable: holdfast ls")
        _print_manifest(console, result, manifest, f"{repository.where}/{found.key}")
        _print_files(console, found.lists)
        if len(result.timelines) > 1:
            console.print()
        print_timelines(console, result.timelines)

    return Answer(found.result, print_it, repository=repository.where)


class ShownCheckpoint(NamedTuple):
    """A checkpoint as it is shown: the document, the manifest, its key, and its file lists if they were read."""

    result: Show
    manifest: Manifest
    key: str
    lists: dict[str, FileList]


def shown_checkpoint(repository: Repository, checkpoint: str | None, *, files: bool = False) -> ShownCheckpoint:
    """Read one checkpoint: the newest one, or one by its id or name."""
    checkpoints = Checkpoints(repository)
    if checkpoint in (None, LATEST):
        manifest = checkpoints.latest()
        place, _ = checkpoints.find(manifest.checkpoint_id)
    else:
        asked = checkpoint_of(repository, checkpoint)
        manifest = checkpoints.read(asked)
        place, _ = checkpoints.find(asked)
    name = manifest.savepoint or manifest.checkpoint_id
    lists = {stream: checkpoints.files(place, cut, name) for stream, cut in manifest.streams.items()} if files else {}
    try:
        stored = from_json(repository.read(place.manifest), dict[str, Any])
    except Undecodable as error:  # in a field that this version does not know
        raise checkpoints.damaged(name, f"its manifest: {error}") from error
    place_in = _history_of(repository, manifest)
    result = Show(
        stored,
        {stream: _file_lines(each) for stream, each in lists.items()} if files else None,
        place_in.abandoned,
        place_in.unfinished,
        place_in.timelines,
        {name: text for name, text in INHERITED.items() if name in stored},
        Verdicts(repository).shown().get(str(name)),
    )
    return ShownCheckpoint(result, manifest, place.manifest, lists)


class _History(NamedTuple):
    """Where a checkpoint stands in the history of its pipeline."""

    abandoned: bool
    unfinished: str | None
    timelines: list[TimelineLine]


def _history_of(repository: Repository, manifest: Manifest) -> _History:
    lineage = Lineage.load(repository)
    rewinding = unfinished_rewind(repository, lineage)
    return _History(
        manifest.timeline > 0 and not lineage.holds_checkpoint(manifest.timeline, manifest.checkpoint_id),
        None if rewinding is None else unfinished_text(rewinding),
        timeline_lines(repository, lineage),
    )


def _file_lines(files: FileList) -> list[FileLine]:
    return [FileLine(each.path, each.size, each.sha256) for each in files.files]


def _print_files(console: Console, lists: Mapping[str, FileList]) -> None:
    for stream, each in lists.items():
        console.print()
        rows = TableRows("path", "size", "sha256", right=("size",))
        for file in each.files:
            rows.add(f"{stream}: {file.path}", formatting.size(file.size), file.sha256)
        rows.print(console)


def _print_manifest(console: Console, result: Show, manifest: Manifest, where: str) -> None:
    kind = f"savepoint {manifest.savepoint}, checkpoint" if manifest.savepoint else "checkpoint"
    title = (f"{kind} {manifest.checkpoint_id}", "bold")
    console.print(Text.assemble(title, f" of pipeline {manifest.pipeline or '?'}"))
    fields(
        console,
        [
            ("taken", f"{formatting.moment(manifest.timestamp_ms)} UTC, {formatting.age(manifest.timestamp_ms)} ago"),
            ("timeline", f"{manifest.timeline}, lease {manifest.lease}"),
            ("digest", str(result.manifest.get("digest") or "none")),
            ("parent", manifest.parent or "none: the first of its chain"),
            ("file", shown(where)),
            *_verify_fields(result.last_verify),
            *_gap_fields(manifest),
        ],
    )
    for stream, cut in manifest.streams.items():
        console.print()
        console.print(Text.assemble("stream ", (stream, "bold")))
        fields(console, _cut_fields(cut))


def _verify_fields(verdict: LastVerify | None) -> list[tuple[str, str | Text]]:
    if verdict is None:
        return []
    finding = "" if verdict.ok else f": {verdict.text}"
    return [("last verify", verdict_text(verdict).append(formatting.harmless(f", {verdict.grade}{finding}")))]


def _gap_fields(manifest: Manifest) -> list[tuple[str, str | Text]]:
    gaps = manifest.gaps
    if gaps is None:
        return []
    newest = gaps.newest[-_SHOWN_GAPS:]
    found: list[tuple[str, str | Text]] = [
        ("gap", Text(formatting.harmless(f"{each.stream} epoch {each.epoch}, {each.kind}: {each.why}"), "red"))
        for each in newest
    ]
    if more := gaps.total - len(newest):
        found.append(("gaps", f"{formatting.number(more)} more: holdfast gaps"))
    return found or [("gaps", "none")]


def _cut_fields(cut: StreamCut) -> list[tuple[str, str | Text]]:
    if not cut.epoch:
        return [("epoch", "none: the stream had not started")]
    found: list[tuple[str, str | Text]] = [
        ("epoch", f"{cut.epoch}, {cut.output_mode}; {formatting.counted(cut.rows, 'row')} written to each sink so far"),
    ]
    if cut.watermark_ms:
        found.append(("watermark", f"{formatting.moment(cut.watermark_ms)} UTC"))
    if cut.reads:
        found.append(("reads", ", ".join(cut.reads)))
    for number, offset in enumerate(cut.offsets):
        source = cut.sources[number] if number < len(cut.sources) else str(number)
        found.append(("source", f"{source} at {offset or 'its beginning'}"))
    found += [("sink", f"{name}  {_sink_note(note, cut)}".rstrip()) for name, note in cut.sinks.items()]
    if cut.state_format:
        found.append(("state", cut.state_format))
    found.append(("files", f"{formatting.number(cut.file_count)}, {formatting.size(cut.file_bytes)}"))
    return found


def _sink_note(note: Any, cut: StreamCut) -> str:
    text = ", ".join(f"{name} {value}" for name, value in note.items())
    epoch = note.get("epoch")
    if not isinstance(epoch, int) or not 0 < epoch < cut.epoch:
        return text
    later = f"epoch {cut.epoch}" if epoch + 1 == cut.epoch else f"epochs {epoch + 1} to {cut.epoch}"
    return f"{text}; it got no rows of {later}"
