"""Where a program's own words go while a command shows something else: stdout and stderr, down to their descriptors.

A JVM and its workers write to what they inherit, so this must be done before they are started.
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
    """Let all that is printed go to stderr; give what stdout was, for documents alone."""
    with _moved(STDOUT, STDERR) as documents:
        yield documents


@contextlib.contextmanager
def into_file(path: str | None) -> Iterator[tuple[IO[str], str]]:
    """Let what would disturb a view go to a file; give the terminal, and where the file is. It is not removed.

    A stderr that is no terminal disturbs nothing, and stays as it is.
    """
    number, name = _log_file(path)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, number)
        terminal = undo.enter_context(_moved(STDOUT, number))
        if os.isatty(STDERR):
            undo.enter_context(_moved(STDERR, number))
        yield terminal, name


@contextlib.contextmanager
def _moved(one: int, to: int) -> Iterator[IO[str]]:
    """Let a descriptor be another one for a while; give what it was."""
    _flush()
    with os.fdopen(os.dup(one), "w", encoding="utf-8", errors="backslashreplace") as before:
        os.dup2(to, one)
        try:
            yield before
        finally:
            _flush()
            os.dup2(before.fileno(), one)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads any more
            stream.flush()


def _log_file(path: str | None) -> tuple[int, str]:
    if path is None:
        return tempfile.mkstemp(prefix="holdfast-run-", suffix=".log")
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), path
    except OSError as error:
        raise StorageFailed(action="open", key=path, why=str(error)) from error
