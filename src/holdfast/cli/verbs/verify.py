"""`holdfast verify`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, console, with_repo
from holdfast.cli.options import CheckpointName, Json, Repo, checkpoint_of
from holdfast.cli.tables import TableRows
from holdfast.cli.target import looked_at, on_disk
from holdfast.errors import BadValue
from holdfast.formats.manifest_parts import Severity
from holdfast.repository import Repository
from holdfast.repository.checkpoints import LATEST
from holdfast.repository.verdicts import LastVerify, Verdicts
from holdfast.verification import Finding, Grade, Progress, ReadData, Verification, verify_all
from holdfast.verification import verify as verify_one


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one checkpoint."""

    checkpoint: int | str  # its id, or the name of a savepoint
    grade: str  # how thoroughly it was checked: structure, digests, read data
    ok: bool  # whether it can be restored: no errors, although there may be warnings
    files: int  # number of files that it needs
    bytes: int  # their total size
    seconds: float  # how long the check took
    findings: list[Finding]  # errors and warnings


class Verify(msgspec.Struct, frozen=True):
    """The result for each checkpoint that was checked."""

    verifications: list[Verified]  # one; with `--all` one per checkpoint, oldest first


SHAPES = {"verify": Verify}


def verify(
    checkpoint: CheckpointName = None,
    repo: Repo = None,
    every: Annotated[
        bool, typer.Option("--all", help="Check all checkpoints and savepoints. Each file is read only once.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check records and file sizes only; do not read file contents.")
    ] = False,
    read_data: Annotated[bool, typer.Option("--read-data", help="Also load the state with Spark. Needs Java.")] = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Record the verdict in the repository, so that ls, show and the page show it."),
    ] = False,
    as_json: Json = False,
) -> Answer:
    """Check that a checkpoint can be restored.

    Reads its records and every byte of its files, and compares them with the recorded digests. Exits with 1 if there
    is an error. Warnings do not change the exit code.

    [bold]Examples[/]

        holdfast verify                   the newest checkpoint, every byte
        holdfast verify --all --quick
        holdfast verify 12 --read-data
    """
    if every and checkpoint is not None:
        why = f"the ID {checkpoint} was given as well"
        raise BadValue(what="option", value="--all", why=why, do="remove one of them")
    if quick and read_data:
        raise BadValue(what="option", value="--quick", why="--read-data was given as well", do="remove one of them")
    repository = looked_at(repo)
    grade = Grade.STRUCTURE if quick else Grade.READ_DATA if read_data else Grade.DIGESTS
    with _reader(repository, read_data) as reader, _bar("reading", as_json) as progress:
        if every:
            found = verify_all(repository, grade=grade, progress=progress, read_data=reader)
        else:
            asked = None if checkpoint in (None, LATEST) else checkpoint_of(repository, checkpoint)
            found = [verify_one(repository, asked, grade=grade, progress=progress, read_data=reader)]
    if record:
        record_verdicts(repository, found)
    return verified_answer(found, repository.where, every=every, repo=repo)


def verified_answer(found: list[Verification], where: str, *, every: bool, repo: str | None = None) -> Answer:
    """Return the result of a verification: of `every` checkpoint, or of one. `repo` names it in the next step."""
    bad = any(not each.ok for each in found)

    def print_it(console: Console) -> None:
        _print_table(console, found)
        _print_findings(console, found, every=every, repo=repo)

    result = Verify([msgspec.convert(each.to_dict(), Verified) for each in found])
    return Answer(result, print_it, found=bad, repository=where)


def record_verdicts(repository: Repository, found: list[Verification]) -> None:
    """Record the verdicts, so that the page and `holdfast ls` show them."""
    at_ms = int(time.time() * 1000)
    Verdicts(repository).record(
        LastVerify(
            checkpoint=str(each.checkpoint),
            ok=each.ok,
            conclusive=each.ok or each.is_unsound,
            grade=each.grade.word,
            at_ms=at_ms,
            text=next(map(str, sorted(each.findings, key=_importance)), "sound"),
        )
        for each in found
    )


def _importance(finding: Finding) -> tuple[bool, bool]:
    return not finding.is_conclusive, finding.severity is not Severity.ERROR


def _print_table(console: Console, found: list[Verification]) -> None:
    rows = TableRows("id", "verdict", "grade", "files", "size", "time", right=("files", "size", "time"))
    for each in found:
        unsound = Text("CANNOT BE RESTORED", "bold red") if each.is_unsound else Text("unknown", "bold yellow")
        verdict = Text("sound", "green") if each.ok else unsound
        files, total = formatting.number(each.files), formatting.size(each.bytes)
        rows.add(str(each.checkpoint), verdict, each.grade.word, files, total, f"{each.seconds:.2f} s")
    rows.print(console)


def _print_findings(console: Console, found: list[Verification], *, every: bool, repo: str | None) -> None:
    for each in found:
        for finding in each.findings:
            colour = "bold red" if finding.severity is Severity.ERROR else "yellow"
            where = (f" [{finding.code}, {finding.where}]", "dim")
            console.print(
                Text.assemble(f"{each.checkpoint}: ", (finding.severity, colour), f" {finding.message}", where),
                soft_wrap=True,
            )
    if any(not each.ok for each in found):
        sound = [each.checkpoint for each in found if each.ok]
        if sound:
            advice = f"use a sound one: holdfast show {sound[-1]}"
        elif every:
            advice = "take a new checkpoint: holdfast checkpoint, while the pipeline runs"
        else:
            advice = "find a sound one: holdfast verify --all"
        do = with_repo(f"restore the files from a copy, or {advice}", repo)
        console.print(f"next: {do}", soft_wrap=True, markup=False)


@contextlib.contextmanager
def _reader(repository: Repository, wanted: bool) -> Iterator[ReadData | None]:
    if not wanted:
        yield None
        return
    folder = on_disk(repository, "--read-data")
    from holdfast.spark.session import borrowed  # Spark takes seconds to start, and may not be installed
    from holdfast.spark.statereader import read_data

    with borrowed() as spark:
        yield read_data(spark, folder)


@contextlib.contextmanager
def _bar(what: str, as_json: bool) -> Iterator[Progress | None]:
    """Show a progress bar if stderr is a terminal."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console(stderr=True), transient=True) as bars:
        task = bars.add_task(what)
        yield lambda done, total: bars.update(task, completed=done, total=total)
