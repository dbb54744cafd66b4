"""The problems of a pipeline, collected while its status is read.

Rules:
- A record that cannot be read is reported as a problem; it hides nothing else.
- Every problem names its next step, with the program as the last run was started, where that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from holdfast.errors import HoldfastError
from holdfast.errors.base import PROGRAM
from holdfast.repository import Repository
from holdfast.repository.lease import seen_leases
from holdfast.web.reading.status_lines import Problem

T = TypeVar("T")


class NextSteps:
    """Next steps of one pipeline. They name its program as it was typed, if `holdfast run` started the last run."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def of(self, text: str) -> str:
        """Return a next step with the name of the program."""
        return text.replace(PROGRAM, self._program) if PROGRAM in text else text

    @cached_property
    def _program(self) -> str:
        try:
            leases, _ = seen_leases(self._repository)
        except HoldfastError:
            return PROGRAM
        return next((each.started_as for each in reversed(leases) if each.started_as), PROGRAM)


class Problems:
    """The problems found so far."""

    def __init__(self, repository: Repository) -> None:
        self._next_steps = NextSteps(repository)
        self._found: list[Problem] = []

    def worst_first(self) -> list[Problem]:
        """Return all problems, errors before warnings."""
        return sorted(self._found, key=lambda each: each.severity != "error")

    def add(self, severity: str, what: str, do: str, *, at_ms: int = 0, stream: str = "") -> None:
        """Add a problem, unless it is known."""
        if all(each.what != what for each in self._found):
            do = self._next_steps.of(do)
            self._found.append(Problem(severity=severity, what=what, next=do, at_ms=at_ms, stream=stream))

    def guarded(self, read: Callable[[], T]) -> T | None:
        """Return what can be read; otherwise report why not, and return `None`."""
        try:
            return read()
        except HoldfastError as error:
            self.add("error", error.summary, error.what_next)
            return None

    def readable(self, read: Callable[[], tuple[T, list[HoldfastError]]]) -> T | None:
        """Return those of many records that can be read, and report the others; `None` if they cannot be listed."""
        found, bad = self.guarded(read) or (None, [])
        for error in bad:
            self.add("warning", error.summary, error.what_next)
        return found
