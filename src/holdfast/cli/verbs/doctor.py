"""`holdfast doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json
from holdfast.cli.tables import TableRows, fields
from holdfast.cli.target import shown
from holdfast.doctor import (
    CheckpointFinding,
    Examination,
    FindingSeverity,
    FolderSize,
    LogEntries,
    SourcePosition,
    StateSize,
    examine,
)
from holdfast.doctor.examining import PAUSE_S

_COLOURS = {FindingSeverity.ERROR: "bold red", FindingSeverity.WARNING: "yellow", FindingSeverity.NOTICE: "cyan"}
_SHOWN = 3  # findings of one kind; JSON has all of them
_INDENT = 9


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a checkpoint folder, and what is wrong with it."""

    path: str  # the folder
    ok: bool  # whether there is no error and no warning; there may be notices
    query: str | None  # the query's id
    mode: str  # micro-batch, asynchronous, continuous or real-time
    committed: int | None  # the last committed batch
    in_doubt: int | None  # the batch that was begun and not committed
    next_batch: int | None  # the batch that the next start runs first; null if there is an error
    offsets: LogEntries
    commits: LogEntries
    watermark_ms: int | None  # event-time watermark of the last begun batch
    begun_at_ms: int | None  # when the last batch was begun
    written_at_ms: int | None  # when a file of the folder was last written
    live: bool | None  # whether files changed between two looks; null after one look
    looks: int  # how many times the folder was looked at
    sources: list[SourcePosition]  # where the last begun batch ends
    operators: list[StateSize]  # the state
    folders: list[FolderSize]  # files and bytes
    settings: dict[str, str]  # Spark settings that the offset log pins: they override those of the session
    findings: list[CheckpointFinding]  # errors first, then warnings and notices


SHAPES = {"doctor": Examined}


def doctor(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The checkpointLocation of a query: a local folder.")],
    pause: Annotated[
        float,
        typer.Option("--pause", metavar="SECONDS", help="Time until the folder is read a second time, up to 3600."),
    ] = PAUSE_S,
    as_json: Json = False,
) -> Answer:
    """Examine the checkpoint folder of any Structured Streaming query.

    Shows the last committed batch, a batch in doubt, the offsets of each source and the size of the state. Reports
    what prevents a restart, such as missing or torn files, holes in the logs or missing state, and explains what it
    means and what to do. Reads folders of Spark 3.5 to 4.3, needs no Spark, and writes nothing. The query may be
    running: after a pause, the folder is read a second time, and only what was found both times is reported.

    Exits with 1 if there are errors or warnings. Notices do not change the exit code.

    [bold]Examples[/]

        holdfast doctor /data/checkpoints/orders
        holdfast doctor ./copy --json | jq '.result.findings[].code'
    """
    found = examine(path, pause=pause)
    result = msgspec.convert(found.to_dict(), Examined)
    return Answer(result, lambda console: _print(console, found), found=not found.ok)


def _print(console: Console, found: Examination) -> None:
    verdict = "green" if found.ok else "bold red" if found.count(FindingSeverity.ERROR) else "yellow"
    title = ("checkpoint ", ""), (shown(Path(found.path)), "bold"), " ", (found.verdict(), verdict)
    console.print(Text.assemble(*title), soft_wrap=True)
    fields(console, _facts(found))
    _print_tables(console, found)
    if found.findings:
        console.print()
    hidden = 0
    for severity in FindingSeverity:
        codes: dict[str, int] = {}
        for each in found.findings:
            if each.severity is severity:
                codes[each.code] = codes.get(each.code, 0) + 1
                if codes[each.code] <= _SHOWN:
                    _print_finding(console, each, explained=codes[each.code] == 1)
                else:
                    hidden += 1
    if hidden:
        console.print(f"{formatting.number(hidden)} more findings of the same kinds: add --json to see all")


def _facts(found: Examination) -> list[tuple[str, str | Text]]:
    facts: list[tuple[str, str | Text]] = [("query", found.query or "unknown"), ("mode", found.mode)]
    committed = "none" if found.committed is None else f"batch {found.committed}"
    facts.append(("last commit", committed))
    if found.in_doubt is not None:
        facts.append(("in doubt", Text(f"batch {found.in_doubt}: begun and not committed", "cyan")))
    if found.next_batch is not None:
        again = "again, with the same offsets" if found.next_batch == found.in_doubt else "with new offsets"
        facts.append(("next start", f"runs batch {found.next_batch} {again}"))
    facts += [("offsets", _log(found.offsets)), ("commits", _log(found.commits))]
    if found.begun_at_ms:
        begun = f"{formatting.moment(found.begun_at_ms)} UTC, {formatting.age(found.begun_at_ms)} ago"
        facts.append(("last begun", begun))
    if found.watermark_ms:
        facts.append(("watermark", f"{formatting.moment(found.watermark_ms)} UTC"))
    if found.live:
        facts.append(("live", "files changed during the examination: the query is running"))
    return facts


def _log(log: LogEntries) -> str:
    if log.first is None:
        return "empty"
    kinds = " and ".join(log.versions)
    return f"batches {log.first} to {log.last}, {formatting.number(log.count)} entries" + (
        f", {kinds}" if kinds else ""
    )


def _print_tables(console: Console, found: Examination) -> None:
    if found.sources:
        console.print()
        rows = TableRows("source", "kind", "position", "entries", right=("entries",))
        for each in found.sources:
            entries = "" if each.log_entries is None else formatting.number(each.log_entries)
            rows.add(each.source, each.kind, each.position, entries)
        rows.print(console)
    if found.operators:
        console.print()
        _print_operators(console, found.operators)
    console.print()
    sizes = TableRows("folder", "files", "size", right=("files", "size"))
    for folder in found.folders:
        sizes.add(folder.folder, formatting.number(folder.files), formatting.size(folder.bytes))
    sizes.print(console)


def _print_operators(console: Console, operators: tuple[StateSize, ...]) -> None:
    numbers = ("partitions", "stores", "files", "size", "needed", "per version")
    rows = TableRows("operator", "name", "store", *numbers, right=numbers, wide_only=("stores", "files"))
    for each in operators:
        kind = f"{each.provider or '?'} {each.format or ''}".rstrip()
        per_version = sum(size.bytes for size in each.growth) // len(each.growth) if each.growth else 0
        rows.add(
            each.operator,
            each.name or "",
            kind,
            formatting.number(each.partitions),
            formatting.number(each.stores),
            formatting.number(each.files),
            formatting.size(each.bytes),
            formatting.size(each.needed_bytes),
            formatting.size(per_version),
        )
    rows.print(console)


def _print_finding(console: Console, finding: CheckpointFinding, *, explained: bool) -> None:
    """Print a finding; its meaning and the next step only once for each kind."""
    severity = (f"{finding.severity:{_INDENT}}", _COLOURS[finding.severity])
    message = formatting.harmless(finding.message)
    head = Text.assemble(severity, message, (f" [{finding.code}]", "dim"))
    parts = [Text(finding.meaning), Text.assemble(("next: ", "bold"), finding.next)] if explained else []
    if not console.is_terminal:
        for line in (head, *(Text.assemble(" " * _INDENT, each) for each in parts)):
            console.print(line, soft_wrap=True)
        return
    grid = Table.grid()
    grid.add_column(width=_INDENT, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(head[:_INDENT], head[_INDENT:])
    for each in parts:
        grid.add_row("", each)
    console.print(grid)
