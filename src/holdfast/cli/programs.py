"""A user's program and the pipeline in it: `app.py:pipeline`, `package.module:pipeline`.

Rules:
- A file is loaded as `python app.py` would have it, its folder first on the path, but for `__name__`: it is imported.
- What the program raises is `ProgramFailed`, with the frames of the user's own files and no others.
- A program that would run the pipeline while it is loaded is refused: it would never come back.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
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
from holdfast.errors import BadValue, HoldfastError, ProgramFailed, in_words

if TYPE_CHECKING:
    from holdfast.spark.pipeline import Pipeline

_LONGEST = 300  # of what an error says of itself; Spark's go on for pages
_MOST_LINES = 40
_FOREIGN = tuple(
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
    """Where a pipeline is: a file or a module, and a name in it."""

    text: str
    file: Path | None
    module: str
    name: str | None

    @property
    def program(self) -> str:
        """The file or module, as the user wrote it."""
        return self.text.removesuffix(f":{self.name}") if self.name else self.text


def found(text: str) -> Target:
    """Return what a user's word means, or raise where no such file is."""
    program, colon, name = text.rpartition(":")
    if not colon:
        program, name = text, ""
    if not program or (colon and not name.isidentifier()):
        why = "it names no pipeline"
        raise BadValue(what="target", value=text, why=why, do="write it as app.py:pipeline or package.module:pipeline")
    is_module = all(part.isidentifier() for part in program.split("."))
    is_package = (Path(program) / "__init__.py").is_file()
    if is_module and not (
        program.endswith(".py") or Path(program).is_file() or (Path(program).is_dir() and not is_package)
    ):
        return Target(text, None, program, name or None)
    file = Path(program).absolute()
    if not file.is_file():
        why = "it is a folder" if file.is_dir() else "there is no such file"
        raise BadValue(what="program", value=program, why=why, do=_look(file))
    return Target(text, file, file.stem, name or None)


def _look(file: Path) -> str:
    folder = file if file.is_dir() else file.parent
    near = sorted(each.name for each in folder.glob("*.py")) if folder.is_dir() else []
    listed = f": {', '.join(near[:8])}" if near else ""
    files = "1 Python file" if len(near) == 1 else f"{len(near)} Python files"
    return f"name the file with the pipeline; the folder has {files}{listed}"


def pipeline_of(target: Target, arguments: Sequence[str] = ()) -> Pipeline:
    """Load a program and return its pipeline."""
    kind = holdfast.Pipeline  # or MissingExtra
    from holdfast.spark.loading import defining  # pyspark takes its time, and need not be there

    with defining(target.program), failing_as_theirs(target.program):
        module = _loaded(target, arguments)
    given = {name: each for name, each in vars(module).items() if isinstance(each, kind)}
    if target.name is None:
        return _the_only(target, given)
    try:
        value = getattr(module, target.name)
    except AttributeError:
        raise BadValue(what="pipeline", value=target.name, why=_why(target, given), do=_which(target, given)) from None
    if not isinstance(value, kind) and callable(value) and not isinstance(value, type):
        _require_no_argument(target, value)
        with defining(target.program), failing_as_theirs(target.program):
            value = value()
    if not isinstance(value, kind):
        why = f"it is of type {type(value).__name__}, and no Pipeline"
        raise BadValue(what=f"what {target.text!r} names,", value=value, why=why, do=_which(target, given))
    return value


def _why(target: Target, given: dict[str, Pipeline]) -> str:
    return f"{target.program} has no such name" + (f"; its pipelines: {', '.join(given)}" if given else "")


def _which(target: Target, given: dict[str, Pipeline]) -> str:
    if given:
        return f"holdfast run {target.program}:{next(iter(given))}"
    return "define one: pipeline = hf.Pipeline(...), or a function without arguments that returns one"


def _the_only(target: Target, given: dict[str, Pipeline]) -> Pipeline:
    several = {id(each): each for each in given.values()}
    if len(several) == 1:
        return next(iter(several.values()))
    why = f"it has {len(several)} pipelines: {', '.join(given)}" if given else "it has no pipeline at its top level"
    raise BadValue(what="program", value=target.program, why=why, do=_which(target, given))


def _require_no_argument(target: Target, function: Callable[..., Any]) -> None:
    try:
        needed = [
            each.name
            for each in inspect.signature(function).parameters.values()
            if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return  # it cannot be told: it is called
    if needed:
        why = f"the function needs arguments: {', '.join(needed)}"
        do = "name a Pipeline, or a function without arguments that returns one; sys.argv has what comes after --"
        raise BadValue(what="target", value=target.text, why=why, do=do)


# --- loading ---------------------------------------------------------------------------------------------------------


def _loaded(target: Target, arguments: Sequence[str]) -> ModuleType:
    from holdfast.spark.session import send_by_value

    sys.argv = [str(target.file or target.module), *arguments]
    folder = str(target.file.parent if target.file else Path.cwd())
    sys.path.insert(0, folder)
    # As spark-submit does: what lies beside the program can be imported where its functions run.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    module = _from_file(target, target.file) if target.file else _from_path(target)
    send_by_value(module)
    return module


def _from_file(target: Target, file: Path) -> ModuleType:
    name = target.module if target.module not in sys.modules else f"{target.module}__program"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        why = "it is no Python file"
        raise BadValue(what="program", value=target.program, why=why, do="name a file that ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _from_path(target: Target) -> ModuleType:
    try:
        there = importlib.util.find_spec(target.module) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{target.module}.".startswith(f"{error.name}."):
            raise
        there = False
    except ValueError:
        there = False
    if not there:
        beside = Path(*target.module.split(".")).with_suffix(".py")
        do = "check the name, and that it is installed or lies here; a file is named with its .py"
        if beside.is_file():
            do = f"holdfast run {beside}"
        raise BadValue(what="module", value=target.module, why="there is no such module", do=do)
    return importlib.import_module(target.module)


# --- what the program raises -----------------------------------------------------------------------------------------


@contextmanager
def failing_as_theirs(program: str) -> Iterator[None]:
    """Turn whatever a user's code raises into `ProgramFailed`; what Holdfast says of the target stays as it is."""
    try:
        yield
    except SystemExit as end:
        why = f"it called sys.exit({'' if end.code is None else repr(end.code)}) while it was loaded"
        do = 'let it only define the pipeline; put the rest under `if __name__ == "__main__":`'
        raise ProgramFailed(program=program, why=why, trace=trace_of(end), do=do) from end
    except Exception as error:
        if isinstance(error, HoldfastError) and not is_theirs(error):
            raise
        raise as_theirs(program, error) from error


def as_theirs(program: str, error: Exception) -> ProgramFailed:
    """Return what a user's code raised as an error that shows their frames."""
    if isinstance(error, HoldfastError):
        why, do = error.summary, error.next_step.format(e=error)
    else:
        why, do = _short(error), _advice(error)
    return ProgramFailed(program=program, why=why, trace=trace_of(error), do=do)


def _advice(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install {error.name.partition('.')[0]!r}, or run it where it can be imported; then run it again"
    return "mend the program, then run it again"


def _short(error: BaseException) -> str:
    first = next(iter(in_words(error).splitlines()), "")
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}..."


def is_theirs(error: BaseException) -> bool:
    """Whether an error came by way of a file of the user's."""
    return isinstance(error, SyntaxError) or any(
        _is_users(each.filename) for each in traceback.extract_tb(error.__traceback__)
    )


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error, cut to the user's own frames."""
    told = traceback.TracebackException.from_exception(error, compact=True)
    _cut(told)
    lines = "".join(told.format(chain=True)).rstrip().splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} lines more"]
    return "\n".join(lines)


def _cut(told: traceback.TracebackException) -> None:
    told.stack = traceback.StackSummary.from_list([each for each in told.stack if _is_users(each.filename)])
    for each in (told.__cause__, told.__context__):
        if each is not None:
            _cut(each)


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False  # frozen importlib, and what was made of text
    return not str(Path(file).resolve()).startswith(_FOREIGN)
