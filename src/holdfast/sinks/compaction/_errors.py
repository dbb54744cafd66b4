"""What goes wrong in a compaction, in the sink's words: nothing was changed, and what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from holdfast._error_text import one_line
from holdfast.errors import HoldfastError, SinkFailed
from holdfast.sinks.base import system_words


def failed(root: Path, why: str) -> SinkFailed:
    """Return the error that ends a compaction."""
    do = "mend the cause (space, rights, a file from a copy), then compact again; the sink holds what it held"
    return SinkFailed(sink=root.name, action="be compacted", why=why, do=do)


@contextlib.contextmanager
def of_system(root: Path) -> Iterator[None]:
    """Turn the operating system's errors into the sink's."""
    try:
        yield
    except OSError as error:
        raise failed(root, system_words(error)) from error


@contextlib.contextmanager
def of_spark(root: Path) -> Iterator[None]:
    """Turn Spark's errors into the sink's."""
    try:
        yield
    except (HoldfastError, OSError):
        raise
    except Exception as error:  # Spark may raise anything
        raise failed(root, one_line(error)) from error
