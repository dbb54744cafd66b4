"""How every verb ends: a result for people or for machines, an exit code, and never a traceback."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import shlex
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
_SIGNALS = ("Cut", "Interrupted")  # kinds that stand for a signal; no class of the library has these names
REPO_VARIABLE = "HOLDFAST_REPO"
VERBS_WITH_REPO = (  # those that take `--repo`
    *("ls", "show", "verify", "diff", "log", "gaps", "doubt", "epochs", "runs", "status", "top", "checkpoint"),
    *("savepoint", "stop", "cancel", "prune", "compact", "fork"),
)
_WITHOUT_REPO = re.compile(rf"\bholdfast (?:{'|'.join(VERBS_WITH_REPO)})\b(?![^;,:)]* (?:--repo|-r) )")
_UNLIMITED = 500  # columns if the output is not a terminal: nothing is truncated in a file or a pipe


class Exit(IntEnum):
    """Exit codes."""

    GOOD = 0  # success, and no problems were found
    FOUND = 1  # something was found: damage, gaps, epochs in doubt, differences
    FAILED = 2  # usage error or failure
    INTERRUPTED = 130  # interrupted by Ctrl-C
    TERMINATED = 143  # terminated by SIGTERM


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a verb: as a document, as text, and whether it found something that needs attention."""

    result: msgspec.Struct
    show: Callable[[Console], None]
    found: bool = False
    repository: str | None = None


class RunInterrupted(Exception):
    """A signal ended a verb before it was finished. Carries the exit code and the error text."""

    def __init__(self, code: Exit, message: str, next_step: str) -> None:
        super().__init__(message)
        self.code, self.message, self.next_step = code, message, next_step


def verb(app: typer.Typer, function: Callable[..., Answer], kind: type[TyperCommand], *, within: str = "") -> None:
    """Add a function to the command, or to a group within it: `ls`, or `cursor_ls` as `ls` within `cursor`.

    The function has a parameter `as_json`, and its docstring is the help. A verb of `LINES` prints one document per
    line.
    """
    command = function.__name__.replace("_", " ")

    @functools.wraps(function)
    def called(**arguments: Any) -> None:
        finish(command, arguments["as_json"], functools.partial(function, **arguments), repo=arguments.get("repo"))

    name = command.removeprefix(f"{within} ")
    app.command(name, cls=kind, help=reflowed(inspect.getdoc(function) or ""))(called)


def reflowed(text: str) -> str:
    """Join the lines of each paragraph, because the terminal's width decides where to wrap. Examples keep theirs."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text)


def with_repo(text: str, repo: str | None) -> str:
    """Return a next step whose commands name the repository as it was typed, unless the environment names it."""
    if not repo or repo == os.environ.get(REPO_VARIABLE):
        return text
    return _WITHOUT_REPO.sub(lambda found: f"{found[0]} --repo {shlex.quote(repo)}", text)


def finish(command: str, as_json: bool, work: Callable[[], Answer], *, repo: str | None = None) -> NoReturn:
    """Run a verb, print its result, and exit with the matching code."""
    try:
        outcome: Answer | Failed = work()
    except (typer.Exit, typer.Abort):
        raise
    except BaseException as error:  # a user's program may raise anything
        outcome = _failure(error, command).naming(repo)
    code = outcome.code if isinstance(outcome, Failed) else Exit.FOUND if outcome.found else Exit.GOOD
    try:
        _print_outcome(command, as_json, code, outcome)
    except Exception as error:
        code = _print_failed(error, code, command)
    raise typer.Exit(code)


def envelope_of(command: str, work: Callable[[], Answer]) -> Envelope:
    """Run a verb and return its document, as `--json` prints it. An error is a document too."""
    try:
        found = work()
    except Exception as error:
        failed = _failure(error, command)
        return Envelope(command=command, exit=failed.code, error=failed.failure)
    code = Exit.FOUND if found.found else Exit.GOOD
    return Envelope(command=command, exit=code, repository=found.repository, result=found.result)


def failure_of(error: BaseException, command: str) -> ErrorResult:
    """Return an error as `--json` prints it."""
    return _failure(error, command).failure


@dataclass(frozen=True, slots=True)
class Failed:
    """An error and the exit code for it."""

    code: Exit
    failure: ErrorResult

    def naming(self, repo: str | None) -> Failed:
        """Return the error with a next step that names the repository."""
        return Failed(self.code, msgspec.structs.replace(self.failure, next=with_repo(self.failure.next, repo)))


def _failure(error: BaseException, command: str) -> Failed:
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code == Exit.INTERRUPTED):
        return Failed(Exit.INTERRUPTED, ErrorResult(kind="Interrupted", message="interrupted", next=""))
    if isinstance(error, RunInterrupted):
        return Failed(error.code, ErrorResult(kind="Cut", message=error.message, next=error.next_step))
    error = missing_extra(error) or error
    if isinstance(error, HoldfastError):
        next_step, trace = error.what_next, getattr(error, "trace", None)
        failure = ErrorResult(
            type(error).__name__, readable(error.summary), readable(next_step), trace and readable(trace)
        )
        return Failed(exit_code(error, command), failure)
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    return Failed(Exit.FAILED, ErrorResult(type(error).__name__, describe_error(error), _advice(error)))


def _advice(error: BaseException) -> str:
    """Return the next step for an error that is not one of Holdfast's own."""
    if isinstance(error, BrokenPipeError):
        return "keep the reader of the output open, or write the output to a file"
    if isinstance(error, ImportError) and not str(error.name).startswith("holdfast"):
        return "reinstall the package that cannot be imported: pip install --force-reinstall <package>"
    if isinstance(error, OSError):
        return "fix the storage (free space, permissions), then try again"
    return f"this is a defect: run the command again with {DEBUG}=1 to see the traceback, and report it"


def _print_outcome(command: str, as_json: bool, code: Exit, outcome: Answer | Failed) -> None:
    if isinstance(outcome, Failed):
        if as_json:
            print_document(Envelope(command=command, exit=code, error=outcome.failure), command)
        else:
            _print_error(outcome.failure)
    elif as_json:
        document = Envelope(command=command, exit=code, repository=outcome.repository, result=outcome.result)
        print_document(document, command)
    else:
        outcome.show(console())
    sys.stdout.flush()


def _print_failed(error: Exception, code: Exit, command: str) -> Exit:
    """Return the exit code if the result could not be printed. A reader that closed the pipe is not an error."""
    reason = _failure(error, command)
    with contextlib.suppress(Exception):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python does not try again at exit
    if isinstance(error, BrokenPipeError):
        return code
    with contextlib.suppress(Exception):
        _print_error(reason.failure)
    return Exit.FAILED


def exit_code(error: HoldfastError, command: str) -> Exit:
    """Return the exit code for an error: 1 for damage, 2 for all others. A `run` that damage ends has failed: 2."""
    return Exit.FOUND if isinstance(error, Corrupt) and command != "run" else Exit.FAILED


def _print_error(failure: ErrorResult) -> None:
    from rich.text import Text  # not needed for JSON

    errors = console(stderr=True)
    if failure.trace:
        errors.print(Text(failure.trace), soft_wrap=True)
    kind = f" [{failure.kind}]" if failure.kind not in _SIGNALS else ""
    message = Text.assemble(("error: ", "bold red"), formatting.harmless(failure.message), (kind, "dim"))
    errors.print(message, soft_wrap=True)
    if failure.next:
        errors.print(Text.assemble(("next:  ", "bold"), formatting.harmless(failure.next)), soft_wrap=True)
    sys.stderr.flush()


def print_document(document: Envelope, command: str) -> None:
    """Print one document as JSON, in UTF-8 regardless of the terminal's encoding."""
    data = encoded(document)
    sys.stdout.flush()
    sys.stdout.buffer.write((data if command in LINES else msgspec.json.format(data, indent=2)) + b"\n")


def encoded(document: Envelope) -> bytes:
    """Return a document as JSON on one line."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:  # a file name that is not valid Unicode
        return msgspec.json.encode(_readable(msgspec.to_builtins(document)))


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_readable(name): _readable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    return readable(value) if isinstance(value, str) else value


def require_approval(command: str, *, yes: bool, as_json: bool, look: str = "with --dry-run") -> None:
    """Raise if the command needs a confirmation and there is no terminal to ask in.

    `look` says how the same command only shows its plan.
    """
    if yes or not (as_json or not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty())):
        return
    why = "--json never asks for confirmation" if as_json else "there is no terminal to ask for confirmation"
    do = f"run the same command {look} to see the plan, then with --yes to carry it out"
    raise NotSupported(what=f"running `holdfast {command}` here without --yes", why=why, do=do)


def approved(
    command: str, *, yes: bool, as_json: bool, show: Callable[[Console], None], look: str = "with --dry-run"
) -> None:
    """Show a plan and ask for confirmation. Raises if there is no terminal to ask in."""
    require_approval(command, yes=yes, as_json=as_json, look=look)
    if not (yes and as_json):
        show(console())
    if not yes:
        typer.confirm("Carry out this plan?", abort=True)


def console(*, stderr: bool = False) -> Console:
    """Return a console for text output."""
    from rich.console import Console  # not needed for JSON

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _UNLIMITED
    return Console(stderr=stderr, width=width, highlight=False)
