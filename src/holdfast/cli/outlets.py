"""Redirects stdout and stderr, down to their file descriptors, while a command shows something else.

A JVM and its workers write to the descriptors that they inherit, so the redirection must come before they start.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

from holdfast.errors import StorageFailed

STDOUT, STDERR = 1, 2


@contextlib.contextmanager
def into_stderr() -> Iterator[IO[str]]:
    """Redirect stdout to stderr; yield the original stdout, which is then for documents only."""
    with _redirected(STDOUT, STDERR) as documents:
        yield documents


@contextlib.contextmanager
def into_file(path: str | None) -> Iterator[tuple[IO[str], str]]:
    """Redirect output that would disturb a live view to a file; yield the terminal and the file's path.

    The file is kept. A stderr that is not a terminal is not redirected, because it does not disturb the view.
    """
    number, name = _log_file(path)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, number)
        terminal = undo.enter_context(_redirected(STDOUT, number))
        if os.isatty(STDERR):
            undo.enter_context(_redirected(STDERR, number))
        yield terminal, name


@contextlib.contextmanager
def _redirected(descriptor: int, to: int) -> Iterator[IO[str]]:
    """Redirect a descriptor to another one; yield the original."""
    _flush()
    with os.fdopen(os.dup(descriptor), "w", encoding="utf-8", errors="backslashreplace") as original:
        os.dup2(to, descriptor)
        try:
            yield original
        finally:
            _flush()
            os.dup2(original.fileno(), descriptor)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader is
            stream.flush()


def _log_file(path: str | None) -> tuple[int, str]:
    if path is None:
        return tempfile.mkstemp(prefix="holdfast-run-", suffix=".log")
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), path
    except OSError as error:
        raise StorageFailed(action="open", key=path, why=str(error)) from error
