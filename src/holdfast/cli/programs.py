"""A user's program and the pipeline in it: `app.py:pipeline`, `package.module:pipeline`.

Rules:
- A file is loaded as `python app.py` would load it, with its folder first on the path. Only `__name__` differs,
  because the file is imported.
- An error in the program becomes `ProgramFailed`, whose traceback has only the frames in the user's files.
- A program that runs the pipeline while it is loaded is refused, because loading it would not return.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.errors import BadValue, HoldfastError, ProgramFailed, RepositoryMissing, describe_error
from holdfast.repository.lease import LONGEST_PROGRAM

if TYPE_CHECKING:
    from holdfast.spark.pipeline import Pipeline

_LONGEST = 300  # characters of an error text; those of Spark can fill pages
_UNKNOWN_KEYWORD = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_MOST_LINES = 40  # of a traceback
_NOT_THE_USERS = tuple(
    {
        f"{Path(each).resolve()}{os.sep}"
        for each in (
            str(Path(holdfast.__file__).parent),
            *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
            *site.getsitepackages(),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Target:
    """The location of a pipeline: a file or a module, and a name in it."""

    text: str
    file: Path | None
    module: str
    name: str | None

    @property
    def program(self) -> str:
        """The file or module, as the user wrote it."""
        return self.text.removesuffix(f":{self.name}") if self.name else self.text

    @property
    def recorded(self) -> str:
        """The target as one word of a command, for the record of a run; empty if it cannot be shown on one line."""
        word = shlex.quote(self.text)
        return word if word.isprintable() and len(word) <= LONGEST_PROGRAM else ""


def find_target(text: str) -> Target:
    """Parse a target. Raises `BadValue` if it names a file that does not exist."""
    program, colon, name = text.rpartition(":")
    if not colon:
        program, name = text, ""
    if not program or (colon and not name.isidentifier()):
        raise BadValue(what="target", value=text, expected="app.py:pipeline or package.module:pipeline")
    is_module = all(part.isidentifier() for part in program.split("."))
    is_package = (Path(program) / "__init__.py").is_file()
    if is_module and not (
        program.endswith(".py") or Path(program).is_file() or (Path(program).is_dir() and not is_package)
    ):
        return Target(text, None, program, name or None)
    file = Path(program).absolute()
    if not file.is_file():
        why = "it is a folder" if file.is_dir() else "the file does not exist"
        raise BadValue(what="program", value=program, why=why, do=_nearby(file))
    return Target(text, file, file.stem, name or None)


def _nearby(file: Path) -> str:
    folder = file if file.is_dir() else file.parent
    near = sorted(each.name for each in folder.glob("*.py")) if folder.is_dir() else []
    listed = f": {', '.join(near[:8])}" if near else ""
    files = f"{len(near) or 'no'} Python file{'' if len(near) == 1 else 's'}"
    return f"name the file that defines the pipeline; the folder has {files}{listed}"


def pipeline_of(target: Target, arguments: Sequence[str] = ()) -> Pipeline:
    """Load a program and return its pipeline."""
    from holdfast.spark.loading import defining  # PySpark is slow to import, and may not be installed
    from holdfast.spark.pipeline import Pipeline

    with defining(target.program), failing_as_program(target.program):
        module = _load(target, arguments)
    given = {name: each for name, each in vars(module).items() if isinstance(each, Pipeline)}
    if target.name is None:
        return _only_one(target, given)
    try:
        value = getattr(module, target.name)
    except AttributeError:
        raise BadValue(
            what="pipeline", value=target.name, why=_why(target, given), do=_suggestion(target, given)
        ) from None
    if not isinstance(value, Pipeline) and callable(value) and not isinstance(value, type):
        _require_no_argument(target, value)
        with defining(target.program), failing_as_program(target.program):
            value = value()
    if not isinstance(value, Pipeline):
        why = f"{target.text} is of type {type(value).__name__}"
        raise BadValue(what="pipeline", value=value, expected="a Pipeline", why=why, do=_suggestion(target, given))
    return value


def _why(target: Target, given: dict[str, Pipeline]) -> str:
    return f"{target.program} has no such name" + (f"; its pipelines: {', '.join(given)}" if given else "")


def _suggestion(target: Target, given: dict[str, Pipeline]) -> str:
    if given:
        return f"pass {target.program}:{next(iter(given))}"
    return "define one: pipeline = hf.Pipeline(...), or a function without arguments that returns one"


def _only_one(target: Target, given: dict[str, Pipeline]) -> Pipeline:
    several = {id(each): each for each in given.values()}
    if len(several) == 1:
        return next(iter(several.values()))
    why = f"it has {len(several)} pipelines: {', '.join(given)}" if given else "it has no pipeline at its top level"
    raise BadValue(what="program", value=target.program, why=why, do=_suggestion(target, given))


def _require_no_argument(target: Target, function: Callable[..., Any]) -> None:
    try:
        needed = [
            each.name
            for each in inspect.signature(function).parameters.values()
            if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return  # the signature is unknown: try to call it
    if needed:
        why = f"the function needs arguments: {', '.join(needed)}"
        do = "name a Pipeline, or a function without arguments that returns one; pass values after --, in sys.argv"
        raise BadValue(what="target", value=target.text, why=why, do=do)


# --- loading ---------------------------------------------------------------------------------------------------------


def _load(target: Target, arguments: Sequence[str]) -> ModuleType:
    from holdfast.spark.session import send_by_value

    sys.argv = [str(target.file or target.module), *arguments]
    folder = str(target.file.parent if target.file else Path.cwd())
    sys.path.insert(0, folder)
    # Like spark-submit: the workers that run its functions can import the modules beside the program.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    module = _from_file(target, target.file) if target.file else _from_path(target)
    send_by_value(module)
    return module


def _from_file(target: Target, file: Path) -> ModuleType:
    name = target.module if target.module not in sys.modules else f"{target.module}__program"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadValue(what="program", value=target.program, expected="a Python file, whose name ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _from_path(target: Target) -> ModuleType:
    try:
        exists = importlib.util.find_spec(target.module) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{target.module}.".startswith(f"{error.name}."):
            raise
        exists = False
    except ValueError:
        exists = False
    if not exists:
        beside = Path(*target.module.split(".")).with_suffix(".py")
        do = "check the name, and that the module is installed or in this folder; for a file, include .py"
        if beside.is_file():
            do = f"pass {beside}"
        raise BadValue(what="module", value=target.module, why="the module does not exist", do=do)
    return importlib.import_module(target.module)


# --- errors of the program -------------------------------------------------------------------------------------------


@contextmanager
def failing_as_program(program: str) -> Iterator[None]:
    """Convert errors in user code to `ProgramFailed`; errors that Holdfast itself raises pass unchanged."""
    try:
        yield
    except SystemExit as end:
        why = f"it called sys.exit({'' if end.code is None else repr(end.code)}) while it was loaded"
        do = 'only define the pipeline at the top level; put the rest under `if __name__ == "__main__":`'
        raise ProgramFailed(program=program, why=why, trace=trace_of(end), do=do) from end
    except Exception as error:
        if isinstance(error, HoldfastError) and not is_users_error(error):
            raise
        raise as_program_error(program, error) from error


@contextmanager
def named_in_errors(target: str) -> Iterator[None]:
    """Name the program, as it was typed, in the next steps of errors."""
    try:
        yield
    except RepositoryMissing as error:
        do = (
            f"if the pipeline has run before, change to the folder where it ran: its root is relative to the current "
            f"folder; otherwise start it: holdfast run {shlex.quote(target)}"
        )
        raise RepositoryMissing(key=error.key, where=error.where, why=error.why, do=do) from error
    except HoldfastError as error:
        error.name_program(shlex.quote(target))
        raise


def as_program_error(program: str, error: Exception) -> ProgramFailed:
    """Return an error in user code as a `ProgramFailed` whose traceback has only frames in user files."""
    if isinstance(error, HoldfastError):
        why, do = error.summary, error.what_next
    else:
        why, do = _short(error), _advice(error)
    return ProgramFailed(program=program, why=why, trace=_without_message(trace_of(error), error, why), do=do)


def _without_message(trace: str, error: Exception, why: str) -> str:
    """Return a traceback without the message at its end, if the error that is printed after it has the same text."""
    message = "".join(traceback.format_exception_only(error)).rstrip()
    same = isinstance(error, HoldfastError) or message == why
    return trace.removesuffix(message).rstrip() if same else trace


def _advice(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install {error.name.partition('.')[0]!r}, or make it importable; then run the program again"
    if "PATH_NOT_FOUND" in str(error):
        return (
            "create the path or, if it is relative, run the program in the folder that it refers to; the current "
            f"folder is {Path.cwd()}"
        )
    if meant := _meant_keyword(error):
        return f"did you mean {meant!r}? Fix the program, then run it again"
    return "fix the program, then run it again"


def _meant_keyword(error: Exception) -> str | None:
    """Return the parameter of a public class that a misspelled keyword argument resembles."""
    found = _UNKNOWN_KEYWORD.match(str(error)) if isinstance(error, TypeError) else None
    kind = getattr(holdfast, found[1], None) if found else None
    if found is None or not isinstance(kind, type):
        return None
    return next(iter(difflib.get_close_matches(found[2], inspect.signature(kind).parameters, n=1)), None)


def _short(error: BaseException) -> str:
    first = next(iter(describe_error(error).splitlines()), "")
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}..."


def is_users_error(error: BaseException) -> bool:
    """Whether the traceback of an error has a frame in the user's files."""
    return isinstance(error, SyntaxError) or any(
        _is_users(each.filename) for each in traceback.extract_tb(error.__traceback__)
    )


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error, reduced to the frames in the user's files."""
    trace = traceback.TracebackException.from_exception(error, compact=True)
    _keep_users_frames(trace)
    lines = "".join(trace.format(chain=True)).rstrip().splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more lines"]
    return "\n".join(lines)


def _keep_users_frames(trace: traceback.TracebackException) -> None:
    trace.stack = traceback.StackSummary.from_list([each for each in trace.stack if _is_users(each.filename)])
    for each in (trace.__cause__, trace.__context__):
        if each is not None:
            _keep_users_frames(each)


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False  # frozen importlib, and code that was compiled from a string
    return not str(Path(file).resolve()).startswith(_NOT_THE_USERS)
