"""`holdfast log`."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json, Last, Repo
from holdfast.cli.tables import TableRows, print_damaged
from holdfast.cli.target import looked_at
from holdfast.repository import History, Identity, Repository
from holdfast.repository.lease import seen_leases


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One action on a pipeline."""

    at: str  # when, as ISO 8601 in UTC
    who: str  # user, machine and process
    what: str  # the action, such as `prune` or `lease`
    why: str  # the reason that was recorded with it
    facts: dict[str, Any]  # further details, by name


class Log(msgspec.Struct, frozen=True):
    """The history of a pipeline."""

    entries: list[LogLine]  # oldest first
    damaged: list[str] = []  # what is wrong with records that could not be read


SHAPES = {"log": Log}


def log(
    repo: Repo = None,
    last: Last = None,
    as_json: Json = False,
) -> Answer:
    """Show the history of a pipeline: who did what, when and why.

    Includes the last sixteen starts of the pipeline, each with the lease that it took. If a record is damaged, the
    others are still shown, and the command exits with 1.

    [bold]Example[/]

        holdfast log -r ./checkpoints/orders --last 20
    """
    repository = looked_at(repo)
    result = history_of(repository, last)
    entries, damaged = result.entries, result.damaged

    def print_it(console: Console) -> None:
        if not entries and not damaged:
            console.print("no history yet")
            return
        rows = TableRows("when (UTC)", "who", "what", "why")
        for each in entries:
            rows.add(each.at[:19].replace("T", " "), each.who, each.what, each.why or _short_facts(each.facts))
        if entries:
            rows.print(console)
        print_damaged(console, damaged)

    return Answer(result, print_it, found=bool(damaged), repository=repository.where)


def history_of(repository: Repository, last: int | None = None) -> Log:
    """Return the history of a pipeline, with its last starts."""
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
    return Log(sorted(entries, key=lambda each: each.at)[-(last or 0) :], damaged)


def _short_facts(facts: dict[str, Any]) -> str:
    """Return the facts that fit on one line."""
    return ", ".join(f"{name}: {value}" for name, value in facts.items() if isinstance(value, str | int))
