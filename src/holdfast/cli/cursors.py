"""`holdfast cursor`: where the durable readers of event logs stand."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json, Repo
from holdfast.cli.tables import TableRows, fields
from holdfast.cli.target import located_cursors
from holdfast.errors import Corrupt, CursorMissing, StorageFailed, UnsupportedVersion
from holdfast.eventlog._cursor_file import cursor_names, lock_key, read_cursor
from holdfast.repository import LocalRepository


class CursorLine(msgspec.Struct, frozen=True, kw_only=True):
    """A cursor as it was last saved."""

    cursor: str  # its name
    position: int | None = None  # the sequence of the last event that it is past; null before the first
    version: int | None = None  # of the format of its file
    region: str | None = None  # what it was saved for
    log: str | None = None  # the identity of the log that it reads
    owner_pid: int | None = None  # who reads by it now; 0: somebody whose pid cannot be told
    behind: int | None = None  # with `--log`: how many sequences the log has after it
    damaged: str | None = None  # why it cannot be read; then nothing else is known


class CursorLs(msgspec.Struct, frozen=True):
    """The cursors of a repository."""

    cursors: list[CursorLine]  # by name


class CursorShow(msgspec.Struct, frozen=True):
    """One cursor."""

    cursor: CursorLine  # the one that was asked for


SHAPES = {"cursor ls": CursorLs, "cursor show": CursorShow}


def cursor_ls(repo: Repo = None, as_json: Json = False) -> Answer:
    """List the cursors of a repository.

    Exits with 1 where one is damaged.

    [bold]Example[/]

        holdfast cursor ls -r ./state
    """
    repository = located_cursors(repo)
    found = [_line(repository, name) for name in cursor_names(repository)]

    def print_it(console: Console) -> None:
        if not found:
            console.print("no cursor yet: a CursorWorker or a DurableCursor makes one at its first commit")
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
        str | None, typer.Option(metavar="PATH", help="Its event log, to tell how far behind it is. Needs pyarrow.")
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Show one cursor: its position, its region and its log, and who reads by it now.

    With `--log` it is also told how many events the log has after it.

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
        pairs = [("position", _position(found)), ("owner", _owner(found) or "nobody reads by it now")]
        pairs += [("region", found.region or "not recorded"), ("log", found.log or "not recorded")]
        if found.behind is not None:
            pairs.append(("behind", f"{formatting.number(found.behind)} sequences"))
        fields(console, list(pairs))

    return Answer(CursorShow(found), print_it, repository=repository.where)


def _line(repository: LocalRepository, name: str, log: str | None = None) -> CursorLine:
    owner = repository.locked_by(lock_key(name))
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
        behind=None if log is None else _behind(log, record.log_identity, position, name),
    )


def _behind(path: str, identity: str | None, position: int | None, name: str) -> int:
    from holdfast import EventLog  # needs pyarrow; says so where it is missing
    from holdfast.errors import CursorLogMismatch

    log = EventLog.open(path)
    if identity not in (None, log.identity):
        raise CursorLogMismatch(cursor=name, saved=str(identity), asked=log.identity)
    return max(log.tail - (0 if position is None else position + 1), 0)


def _position(each: CursorLine) -> str:
    return "nothing read yet" if each.position is None else str(each.position)


def _owner(each: CursorLine) -> str:
    if each.owner_pid is None:
        return ""
    return f"process {each.owner_pid}" if each.owner_pid else "a live process"
