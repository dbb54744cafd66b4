"""What an action would do, and what it did: values that the page shows."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from holdfast.cli.answers import Answer, failure_of
from holdfast.cli.results import ErrorResult

_WIDTH = 96  # columns of a text that a command prints


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPlan:
    """What an action would do."""

    text: str  # as the command prints it
    command: str  # the same action in a shell
    refused: str = ""  # why it cannot be carried out from the page; empty: it can
    id: str = ""  # of a rewind: it is refused if the plan has another id then
    checkpoint: str = ""  # of a verification: the one that is read; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionEnd:
    """How an action has ended."""

    text: str = ""  # what the command prints
    found: bool = False  # something needs attention: damage, a run that failed
    error: ErrorResult | None = None  # why it failed


def printed(show: Callable[[Console], None]) -> str:
    """Return what a command prints in a terminal."""
    out = io.StringIO()
    show(Console(file=out, width=_WIDTH, color_system=None, highlight=False))
    return out.getvalue().rstrip()


def end_of(answer: Answer) -> ActionEnd:
    """Return the end of an action that is a command."""
    return ActionEnd(text=printed(answer.show), found=answer.found)


def failed_end(command: str, error: BaseException) -> ActionEnd:
    """Return the end of an action that raised, as the command reports it."""
    return ActionEnd(error=failure_of(error, command))
