"""`holdfast cursor`: the read positions of event-log consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, approved
from holdfast.cli.options import Json, Repo, Yes
from holdfast.cli.tables import TableRows, fields
from holdfast.cli.target import located_cursors
from holdfast.errors import Corrupt, CursorLogMismatch, CursorMissing, StorageFailed, UnsupportedVersion
from holdfast.eventlog._cursor_reset import apply_reset, plan_reset
from holdfast.eventlog._cursor_slot import cursor_names, owner_of_cursor, read_cursor
from holdfast.repository import Repository

if TYPE_CHECKING:
    from holdfast.eventlog.log import EventLog


class CursorLine(msgspec.Struct, frozen=True, kw_only=True):
    """A cursor as last saved."""

    cursor: str  # its name
    position: int | None = None  # sequence number of the last event that was read; null before the first
    version: int | None = None  # format version of its file
    region: str | None = None  # the region that it was saved for
    log: str | None = None  # identity of the log that it reads
    owner_pid: int | None = None  # the process that is using it now; 0 if the process is alive but its pid is unknown
    behind: int | None = None  # with `--log`: its lag, as the number of sequence numbers in the log after it
    damaged: str | None = None  # why it cannot be read; the other fields are then unknown


class CursorLs(msgspec.Struct, frozen=True):
    """The cursors of a repository."""

    cursors: list[CursorLine]  # sorted by name


class CursorShow(msgspec.Struct, frozen=True):
    """One cursor."""

    cursor: CursorLine  # the requested one


class CursorResetDone(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cursor was moved to."""

    cursor: str  # its name
    before: int  # the sequence number that it would have read next
    after: int  # the sequence number that it reads next
    done: bool  # false in a dry run, or if there was nothing to do


SHAPES = {"cursor ls": CursorLs, "cursor show": CursorShow, "cursor reset": CursorResetDone}


def cursor_ls(repo: Repo = None, as_json: Json = False) -> Answer:
    """List the cursors of a repository.

    Exits with 1 if a cursor is damaged.

    [bold]Example[/]

        holdfast cursor ls -r ./state
    """
    repository = located_cursors(repo)
    found = [_line(repository, name) for name in cursor_names(repository)]

    def print_it(console: Console) -> None:
        if not found:
            console.print("no cursors yet: a CursorWorker or a DurableCursor creates one at its first commit")
            return
        rows = TableRows("cursor", "position", "owner", "region", "log", right=("position",))
        for each in found:
            position = Text(each.damaged, "bold red") if each.damaged else Text(_position(each))
            rows.add(each.cursor, position, _owner(each), each.region or "", each.log or "")
        rows.print(console)

    damaged = any(each.damaged for each in found)
    return Answer(CursorLs(found), print_it, found=damaged, repository=repository.where)


def cursor_show(
    cursor: Annotated[str, typer.Argument(metavar="NAME", help="The cursor's name.")],
    repo: Repo = None,
    log: Annotated[
        str | None, typer.Option(metavar="PATH", help="The cursor's event log, to calculate the lag. Needs pyarrow.")
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Show one cursor: its position, region and log, and the process that is using it.

    With `--log`, also shows its lag: how many sequence numbers the log has after the cursor.

    [bold]Examples[/]

        holdfast cursor show billing -r ./state
        holdfast cursor show billing -r ./state --log orders.log
    """
    repository = located_cursors(repo)
    record = read_cursor(repository, cursor)
    if record is None:
        raise CursorMissing(cursor=cursor, where=repository.where)
    found = _line(repository, cursor, log)

    def print_it(console: Console) -> None:
        console.print(Text.assemble("cursor ", (found.cursor, "bold")))
        pairs = [("position", _position(found)), ("owner", _owner(found) or "not in use")]
        pairs += [("region", found.region or "not recorded"), ("log", found.log or "not recorded")]
        if found.behind is not None:
            pairs.append(("lag", f"{formatting.number(found.behind)} sequence numbers"))
        fields(console, list(pairs))

    return Answer(CursorShow(found), print_it, repository=repository.where)


def cursor_reset(
    cursor: Annotated[str, typer.Argument(metavar="NAME", help="The cursor's name.")],
    repo: Repo = None,
    log: Annotated[
        str | None, typer.Option(metavar="PATH", help="The cursor's event log. Needs pyarrow. Not needed for --to 0.")
    ] = None,
    to: Annotated[
        int | None,
        typer.Option(
            metavar="SEQUENCE",
            min=0,
            help="The sequence number to read next. Default: the first one that a rewind has changed.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan without changing anything.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> Answer:
    """Move a cursor, for example to before the events that a rewind has taken back.

    Stop the reader of the cursor first. It gets the events from the given sequence number on again, so reverse what it
    did with them. Without `--to`, the cursor is moved only if a rewind has changed events that it has already read.

    [bold]Examples[/]

        holdfast cursor reset billing -r ./state --log orders.log
        holdfast cursor reset billing -r ./state --to 0 --yes
    """
    repository = located_cursors(repo)
    opened = None if log is None else _opened(log)
    plan = plan_reset(repository, cursor, opened, to)
    moves = plan.before != plan.after

    def print_it(console: Console) -> None:
        if not moves:
            console.print(f"cursor {cursor} reads sequence {plan.after} next; it is not moved")
            return
        console.print(f"cursor {cursor} reads sequence {plan.after} next, instead of {plan.before}")
        if dry_run:
            console.print("next: to carry out this plan, run the same command without --dry-run")

    if moves and not dry_run:
        approved("cursor reset", yes=yes, as_json=as_json, show=print_it)
        apply_reset(repository, plan, opened)
    done = CursorResetDone(cursor=cursor, before=plan.before, after=plan.after, done=moves and not dry_run)
    return Answer(done, print_it, repository=repository.where)


def _opened(log: str) -> EventLog:
    from holdfast.eventlog.log import EventLog  # needs pyarrow, which may not be installed

    return EventLog.open(log)


def _line(repository: Repository, name: str, log: str | None = None) -> CursorLine:
    owner = owner_of_cursor(repository, name)
    try:
        record = read_cursor(repository, name)
    except (Corrupt, UnsupportedVersion, StorageFailed) as error:
        return CursorLine(cursor=name, owner_pid=owner, damaged=error.summary)
    if record is None:  # removed at this moment
        return CursorLine(cursor=name, owner_pid=owner)
    position = record.position if record.started else None
    return CursorLine(
        cursor=name,
        position=position,
        version=record.version,
        region=record.region_identity,
        log=record.log_identity,
        owner_pid=owner,
        behind=None if log is None else _lag(log, record.log_identity, position, name),
    )


def _lag(path: str, identity: str | None, position: int | None, name: str) -> int:
    log = _opened(path)
    if identity not in (None, log.identity):
        raise CursorLogMismatch(cursor=name, saved=str(identity), asked=log.identity)
    return max(log.tail - (0 if position is None else position + 1), 0)


def _position(each: CursorLine) -> str:
    return "nothing read yet" if each.position is None else str(each.position)


def _owner(each: CursorLine) -> str:
    if each.owner_pid is None:
        return ""
    return f"process {each.owner_pid}" if each.owner_pid else "a live process"
