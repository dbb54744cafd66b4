"""The root of the error tree, and the functions that turn any exception into text."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, dataclass_transform

_PACKAGE = "holdfast.errors"
PROGRAM = "app.py:pipeline"  # stands for the user's program in a next step
RESTORE_FOLDER = (  # the next step if Spark's checkpoint folder of a stream is damaged, and no checkpoint is known
    f"go back to a checkpoint (holdfast ls lists them): holdfast rewind {PROGRAM} --to ID; or restore the folder "
    "from a copy of the repository; nothing was changed"
)
RUN_AGAIN = (
    f"fix the cause, then run the pipeline again (holdfast run {PROGRAM}): it continues after the last committed epoch"
)
_NEXT_STEP = "_next_step"  # the instance attribute that replaces the next step of the class
_OF_PROGRAM = "_of_program"  # the instance attribute that replaces `PROGRAM`


def _rebuild(cls: type[HoldfastError], facts: dict[str, object]) -> HoldfastError:
    error = cls.__new__(cls)
    error.__dict__.update(facts)
    return error


def shown(value: object) -> str:
    """Return a value that is safe to print: escaped, and truncated to 80 characters."""
    try:
        text = ascii(value)
    except Exception as error:  # an integer of 5,000 digits raises, and a user-defined `__repr__` may
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _with_full_stop(text: str) -> str:
    """Return a text with a full stop, unless it already ends with a punctuation mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


@dataclass_transform(kw_only_default=True, eq_default=False)
class HoldfastError(Exception):
    """The base class of all errors that Holdfast raises on purpose.

    A subclass declares its facts as fields and its text as two templates, in which `e` is the error itself.
    """

    says: ClassVar[str] = "Holdfast failed"
    next_step: ClassVar[str] = "read the cause"

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(eq=False, repr=False, kw_only=True)(cls)
        if cls.__module__.startswith(f"{_PACKAGE}."):
            cls.__module__ = _PACKAGE  # the name that users import, in tracebacks and in pickles

    @property
    def summary(self) -> str:
        """What is wrong, without the next step."""
        return self.says.format(e=self)

    def __str__(self) -> str:
        next_step = vars(self).get(_NEXT_STEP) or self.what_next
        return f"{_with_full_stop(self.summary)} Next: {_with_full_stop(next_step)}"

    @property
    def what_next(self) -> str:
        """The next step."""
        return self.next_step.format(e=self).replace(PROGRAM, vars(self).get(_OF_PROGRAM, PROGRAM))

    def name_program(self, program: str) -> None:
        """Name the user's program in the next step, as it was typed on the command line."""
        vars(self)[_OF_PROGRAM] = program

    def retried(self, how: str) -> None:
        """Replace the next step, because the work is retried automatically; `how` states when."""
        vars(self)[_NEXT_STEP] = f"no action is needed: {how}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), dict(vars(self)))


HoldfastError.__module__ = _PACKAGE


def readable(text: str) -> str:
    """Return text that can be encoded as UTF-8; lone surrogates are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an exception; never raises."""
    try:
        text = error.summary if isinstance(error, HoldfastError) else str(error)
    except Exception:  # a text that cannot be built must not hide the failure
        text = "(its text cannot be shown)"
    return readable(f"{type(error).__name__}: {text}")
