"""The verbs that check and compare: verify, diff."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, console
from holdfast.cli.options import CheckpointName, FirstName, Json, Repo, SecondName, checkpoint_of
from holdfast.cli.tables import TableRows, fields
from holdfast.cli.target import located
from holdfast.difference import Difference
from holdfast.difference import diff as compare
from holdfast.errors import BadValue
from holdfast.formats.manifest import Severity
from holdfast.repository import Checkpoints, Identity, LocalRepository
from holdfast.verification import Finding, Grade, Progress, ReadData, Verification, verify_all
from holdfast.verification import verify as verify_one


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one checkpoint."""

    checkpoint: int | str  # its id, or the name of a savepoint
    grade: str  # how closely it was looked at: structure, digests, read data
    ok: bool  # whether it can be restored: there is no error, though there may be warnings
    files: int  # how many it needs
    bytes: int  # their size
    seconds: float  # how long that took
    findings: list[Finding]  # errors and warnings


class Verify(msgspec.Struct, frozen=True):
    """What was found of each checkpoint that was looked at."""

    verifications: list[Verified]  # one, or with `--all` one for each, oldest first


class Diff(msgspec.Struct, frozen=True):
    """Two checkpoints compared."""

    same: bool  # whether nothing but the time has changed
    difference: Difference  # what has changed, from the first to the second


SHAPES = {"verify": Verify, "diff": Diff}


# --- verify ----------------------------------------------------------------------------------------------------------


def verify(
    checkpoint: CheckpointName = None,
    repo: Repo = None,
    every: Annotated[
        bool, typer.Option("--all", help="All checkpoints and savepoints; each file is read once.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Records and sizes alone; no file's bytes are read.")] = False,
    read_data: Annotated[
        bool, typer.Option("--read-data", help="Let Spark load the state for real. Needs Java.")
    ] = False,
    as_json: Json = False,
) -> Answer:
    """Check that a checkpoint can be restored: its records, its files, every byte of them.

    Exits with 1 where one cannot be restored as it is; warnings alone do not count.

    [bold]Examples[/]

        holdfast verify                   the newest checkpoint, every byte
        holdfast verify --all --quick
        holdfast verify 12 --read-data
    """
    if every and checkpoint is not None:
        raise BadValue(what="--all", value=checkpoint, why="an ID is given too", do="leave one of them out")
    if quick and read_data:
        raise BadValue(what="--quick", value=True, why="--read-data is given too", do="leave one of them out")
    repository = located(repo)
    grade = Grade.STRUCTURE if quick else Grade.READ_DATA if read_data else Grade.DIGESTS
    with _reader(repository, read_data) as reader, _bar("reading", as_json) as progress:
        if every:
            found = verify_all(repository, grade=grade, progress=progress, read_data=reader)
        else:
            asked = None if checkpoint is None else checkpoint_of(repository, checkpoint)
            found = [verify_one(repository, asked, grade=grade, progress=progress, read_data=reader)]
    bad = any(not each.ok for each in found)

    def print_it(console: Console) -> None:
        _show_verifications(console, found)

    return Answer(Verify([_verified(each) for each in found]), print_it, found=bad, repository=repository.where)


def _verified(each: Verification) -> Verified:
    return msgspec.convert(each.to_dict(), Verified)


def _show_verifications(console: Console, found: list[Verification]) -> None:
    rows = TableRows("id", "verdict", "grade", "files", "size", "time", right=("files", "size", "time"))
    for each in found:
        verdict = Text("sound", "green") if each.ok else Text("CANNOT BE RESTORED", "bold red")
        files, total = formatting.number(each.files), formatting.size(each.bytes)
        rows.add(str(each.checkpoint), verdict, each.grade.word, files, total, f"{each.seconds:.2f} s")
    rows.print(console)
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
        advice = (
            f"go by a sound one: holdfast show {sound[-1]}" if sound else "see which are sound: holdfast verify --all"
        )
        console.print(f"next: put the files back from a copy, or {advice}")


@contextlib.contextmanager
def _reader(repository: LocalRepository, wanted: bool) -> Iterator[ReadData | None]:
    if not wanted:
        yield None
        return
    from holdfast import read_data  # Spark takes seconds, and may be missing
    from holdfast.spark.session import borrowed

    with borrowed() as spark:
        yield read_data(spark, repository)


@contextlib.contextmanager
def _bar(what: str, as_json: bool) -> Iterator[Progress | None]:
    """Show how far reading is, where somebody sits before it."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console(stderr=True), transient=True) as bars:
        task = bars.add_task(what)
        yield lambda done, total: bars.update(task, completed=done, total=total)


# --- diff ------------------------------------------------------------------------------------------------------------


def diff(
    a: FirstName = None,
    b: SecondName = None,
    repo: Repo = None,
    keys: Annotated[bool, typer.Option("--keys", help="Count the keys of the state that changed. Needs Java.")] = False,
    as_json: Json = False,
) -> Answer:
    """Compare two checkpoints: offsets, rows, watermark, lag, sizes, settings.

    With A alone it is compared with the newest; with neither, the newest with the one before it. Exits with 1 where
    they differ, as diff does.

    [bold]Examples[/]

        holdfast diff
        holdfast diff 11 12
        holdfast diff before-upgrade 12 --keys
    """
    repository = located(repo)
    first, second = _two(repository, a, b)
    found = compare(repository, first, second)  # before Spark takes its seconds
    if keys:
        from holdfast import diff_keys  # Spark takes seconds, and may be missing
        from holdfast.spark.session import borrowed

        with borrowed() as spark:
            found = diff_keys(spark, repository, first, second)
    same = _is_same(found)

    def print_it(console: Console) -> None:
        for line in found.head():
            console.print(line, markup=False, soft_wrap=True)
        for name, stream in found.streams.items():
            lines = list(stream.lines())
            console.print(Text.assemble("stream ", (name, "bold"), "" if lines else ": nothing has changed"))
            fields(console, list(lines))

    return Answer(Diff(same, found), print_it, found=not same, repository=repository.where)


def _two(repository: LocalRepository, a: str | None, b: str | None) -> tuple[int | str, int | str]:
    """Return what is to be compared: the two that are named, one and the newest, or the last two."""
    if a is not None and b is not None:
        return checkpoint_of(repository, a), checkpoint_of(repository, b)
    checkpoints = Checkpoints(repository)
    timeline = Identity.load(repository).timeline
    newest = checkpoints.latest(timeline).checkpoint_id
    if a is not None:
        return checkpoint_of(repository, a), newest
    before = checkpoints.before(timeline, newest)
    if before is None:
        why = "there is only one checkpoint"
        raise BadValue(what="diff", value=newest, why=why, do="name two: holdfast ls shows what there is")
    return before, newest


def _is_same(found: Difference) -> bool:
    """Whether nothing but the time has changed."""
    if found.streams_added or found.streams_removed or not (found.timeline.same and found.pipeline_hash.same):
        return False
    return not any(list(each.lines()) for each in found.streams.values())
