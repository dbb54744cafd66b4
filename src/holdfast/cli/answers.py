"""How every verb ends: an answer for people or for machines, an exit code, and no traceback."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import typer

from holdfast.cli.results import LINES, Envelope, Failure
from holdfast.errors import Corrupt, HoldfastError, NotSupported, in_words, readable

if TYPE_CHECKING:
    from rich.console import Console

DEBUG = "HOLDFAST_DEBUG"
_WIDE = 500  # of what is no terminal: nothing is cut off on its way into a file or a pipe


class Exit(IntEnum):
    """Exit codes."""

    GOOD = 0  # done, and nothing to look at
    FOUND = 1  # something was found: damage, gaps, doubt, differences
    FAILED = 2  # wrong use, or it could not be done
    INTERRUPTED = 130  # by Ctrl-C
    TERMINATED = 143  # by a second SIGTERM


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb has found: for machines, for people, and whether it is something to look at."""

    result: msgspec.Struct
    show: Callable[[Console], None]
    found: bool = False
    repository: str | None = None


class Cut(Exception):
    """A verb was ended before its end, by a signal: the exit code, and what to say of it."""

    def __init__(self, code: Exit, message: str, next_step: str) -> None:
        super().__init__(message)
        self.code, self.message, self.next_step = code, message, next_step


def verb(app: typer.Typer, function: Callable[..., Answer], *, within: str = "") -> None:
    """Add a function to the command, or to a group within it: `ls`, or `cursor_ls` as `ls` within `cursor`.

    It has a parameter `as_json`, and its docstring is the help. A verb of `LINES` prints a document a line.
    """
    command = function.__name__.replace("_", " ")

    @functools.wraps(function)
    def called(**arguments: Any) -> None:
        finish(command, arguments["as_json"], functools.partial(function, **arguments))

    app.command(command.removeprefix(f"{within} "), help=reflowed(inspect.getdoc(function) or ""))(called)


def reflowed(text: str) -> str:
    """Return a docstring whose paragraphs are lines, to be broken by whoever knows the terminal; examples stay."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text)


def finish(command: str, as_json: bool, work: Callable[[], Answer]) -> NoReturn:
    """Do the work, say what came of it, and end the process with the exit code that it deserves."""
    try:
        code = _answered(command, as_json, work)
        sys.stdout.flush()
    except BrokenPipeError:  # `holdfast ls | head`: whoever read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.GOOD
    raise typer.Exit(code)


def _answered(command: str, as_json: bool, work: Callable[[], Answer]) -> Exit:
    try:
        answer = work()
        code = Exit.FOUND if answer.found else Exit.GOOD
        if as_json:
            _print(Envelope(command=command, exit=code, repository=answer.repository, result=answer.result), command)
        else:
            answer.show(console())
        return code
    except BrokenPipeError:
        raise
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        return _failed(command, as_json, Exit.INTERRUPTED, Failure(kind="Interrupted", message="interrupted", next=""))
    except Cut as cut:
        return _failed(command, as_json, cut.code, Failure(kind="Cut", message=cut.message, next=cut.next_step))
    except HoldfastError as error:
        code = exit_code(error)
        next_step, trace = error.next_step.format(e=error), getattr(error, "trace", None)
        return _failed(command, as_json, code, Failure(type(error).__name__, readable(error.summary), next_step, trace))
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        advice = f"run it again with {DEBUG}=1 for the traceback, and report it: this is a defect"
        if isinstance(error, OSError):
            advice = "mend the storage (space, rights), then try again"
        return _failed(command, as_json, Exit.FAILED, Failure(type(error).__name__, in_words(error), advice))


def exit_code(error: HoldfastError) -> Exit:
    """Return what an error ends the process with: damage is found, anything else is a failure."""
    return Exit.FOUND if isinstance(error, Corrupt) else Exit.FAILED


def _failed(command: str, as_json: bool, code: Exit, failure: Failure) -> Exit:
    if as_json:
        _print(Envelope(command=command, exit=code, error=failure), command)
        return code
    errors = console(stderr=True)
    if failure.trace:
        errors.print(readable(failure.trace), markup=False, highlight=False, soft_wrap=True)
    errors.print("[bold red]error:[/] ", end="")
    errors.print(failure.message, markup=False, highlight=False, soft_wrap=True)
    if failure.next:
        errors.print("[bold]next:[/]  ", end="")
        errors.print(failure.next, markup=False, highlight=False, soft_wrap=True)
    return code


def _print(document: Envelope, command: str) -> None:
    data = msgspec.json.encode(document)
    sys.stdout.write((data if command in LINES else msgspec.json.format(data, indent=2)).decode() + "\n")


def approved(command: str, *, yes: bool, as_json: bool, show: Callable[[Console], None]) -> None:
    """Show a plan and ask whether to go on; raise where nobody is there to be asked."""
    if yes:
        return
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        why = "nobody is there to be asked"
        do = f"look at the plan with `holdfast {command} --dry-run`, then add --yes"
        raise NotSupported(what=f"`holdfast {command}` without --yes", why=why, do=do)
    show(console())
    typer.confirm("go on?", abort=True)


def console(*, stderr: bool = False) -> Console:
    """Return where to print for people."""
    from rich.console import Console  # noqa: PLC0415 - not for those who want JSON

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, width=width, highlight=False)
