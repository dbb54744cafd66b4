"""How every verb ends: an answer for people or for machines, an exit code, and no traceback."""

from __future__ import annotations

import contextlib
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

from holdfast._extras import missing_extra
from holdfast.cli import formatting
from holdfast.cli.results import LINES, Envelope, ErrorResult
from holdfast.errors import Corrupt, HoldfastError, NotSupported, describe_error, readable

if TYPE_CHECKING:
    from rich.console import Console
    from typer.core import TyperCommand

DEBUG = "HOLDFAST_DEBUG"
_NO_CLASSES = ("Cut", "Interrupted")  # what happened to the process, not an error of the library
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


class OutputClosed(Exception):
    """A verb was ended before its end, by a signal: the exit code, and what to say of it."""

    def __init__(self, code: Exit, message: str, next_step: str) -> None:
        super().__init__(message)
        self.code, self.message, self.next_step = code, message, next_step


def verb(app: typer.Typer, function: Callable[..., Answer], kind: type[TyperCommand], *, within: str = "") -> None:
    """Add a function to the command, or to a group within it: `ls`, or `cursor_ls` as `ls` within `cursor`.

    It has a parameter `as_json`, and its docstring is the help. A verb of `LINES` prints a document a line.
    """
    command = function.__name__.replace("_", " ")

    @functools.wraps(function)
    def called(**arguments: Any) -> None:
        finish(command, arguments["as_json"], functools.partial(function, **arguments))

    name = command.removeprefix(f"{within} ")
    app.command(name, cls=kind, help=reflowed(inspect.getdoc(function) or ""))(called)


def reflowed(text: str) -> str:
    """Return a docstring whose paragraphs are lines, to be broken by whoever knows the terminal; examples stay."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text)


def finish(command: str, as_json: bool, work: Callable[[], Answer]) -> NoReturn:
    """Do the work, say what came of it, and end the process with the exit code that it deserves."""
    try:
        found: Answer | Failed = work()
    except (typer.Exit, typer.Abort):
        raise
    except BaseException as error:  # a program that is run may raise anything
        found = _failure(error, command)
    code = found.code if isinstance(found, Failed) else Exit.FOUND if found.found else Exit.GOOD
    try:
        _say(command, as_json, code, found)
    except Exception as error:
        code = _unsaid(error, code, command)
    raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class Failed:
    """What went wrong, and what it ends the process with."""

    code: Exit
    failure: ErrorResult


def _failure(error: BaseException, command: str) -> Failed:
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code == Exit.INTERRUPTED):
        return Failed(Exit.INTERRUPTED, ErrorResult(kind="Interrupted", message="interrupted", next=""))
    if isinstance(error, OutputClosed):
        return Failed(error.code, ErrorResult(kind="Cut", message=error.message, next=error.next_step))
    error = missing_extra(error) or error
    if isinstance(error, HoldfastError):
        next_step, trace = error.next_step.format(e=error), getattr(error, "trace", None)
        told = ErrorResult(
            type(error).__name__, readable(error.summary), readable(next_step), trace and readable(trace)
        )
        return Failed(exit_code(error, command), told)
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    advice = f"run it again with {DEBUG}=1 for the traceback, and report it: this is a defect"
    if isinstance(error, BrokenPipeError):
        advice = "let somebody read what it prints, or send it to a file"
    elif isinstance(error, ImportError) and not str(error.name).startswith("holdfast"):
        advice = "reinstall the package that cannot be imported: pip install --force-reinstall <package>"
    elif isinstance(error, OSError):
        advice = "mend the storage (space, rights), then try again"
    return Failed(Exit.FAILED, ErrorResult(type(error).__name__, describe_error(error), advice))


def _say(command: str, as_json: bool, code: Exit, found: Answer | Failed) -> None:
    if isinstance(found, Failed):
        if as_json:
            print_document(Envelope(command=command, exit=code, error=found.failure), command)
        else:
            _tell(found.failure)
    elif as_json:
        print_document(Envelope(command=command, exit=code, repository=found.repository, result=found.result), command)
    else:
        found.show(console())
    sys.stdout.flush()


def _unsaid(error: Exception, code: Exit, command: str) -> Exit:
    """End where the answer could not be printed; one that nobody reads to its end is good all the same."""
    reason = _failure(error, command)
    with contextlib.suppress(Exception):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor is it tried again when Python ends
    if isinstance(error, BrokenPipeError):
        return code
    with contextlib.suppress(Exception):
        _tell(reason.failure)
    return Exit.FAILED


def exit_code(error: HoldfastError, command: str) -> Exit:
    """Return what an error ends a verb with: damage is found, but a run that damage ends has failed, as by all else."""
    return Exit.FOUND if isinstance(error, Corrupt) and command != "run" else Exit.FAILED


def _tell(failure: ErrorResult) -> None:
    from rich.text import Text  # not for those who want JSON

    errors = console(stderr=True)
    if failure.trace:
        errors.print(Text(failure.trace), soft_wrap=True)
    kind = f" [{failure.kind}]" if failure.kind not in _NO_CLASSES else ""
    message = Text.assemble(("error: ", "bold red"), formatting.harmless(failure.message), (kind, "dim"))
    errors.print(message, soft_wrap=True)
    if failure.next:
        errors.print(Text.assemble(("next:  ", "bold"), formatting.harmless(failure.next)), soft_wrap=True)
    sys.stderr.flush()


def print_document(document: Envelope, command: str) -> None:
    """Print one document as JSON, which is UTF-8 whatever the terminal speaks."""
    try:
        data = msgspec.json.encode(document)
    except UnicodeEncodeError:  # a name of the file system that is no text
        data = msgspec.json.encode(_readable(msgspec.to_builtins(document)))
    sys.stdout.flush()
    sys.stdout.buffer.write((data if command in LINES else msgspec.json.format(data, indent=2)) + b"\n")


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_readable(name): _readable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    return readable(value) if isinstance(value, str) else value


def approved(command: str, *, yes: bool, as_json: bool, show: Callable[[Console], None]) -> None:
    """Show a plan and ask whether to go on; raise where nobody is there to be asked."""
    if yes:
        if not as_json:
            show(console())
        return
    if as_json or not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        why = "nobody is there to be asked"
        do = f"look at the plan with `holdfast {command} --dry-run`, then add --yes"
        raise NotSupported(what=f"`holdfast {command}` without --yes", why=why, do=do)
    show(console())
    typer.confirm("go on?", abort=True)


def console(*, stderr: bool = False) -> Console:
    """Return where to print for people."""
    from rich.console import Console  # not for those who want JSON

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, width=width, highlight=False)
