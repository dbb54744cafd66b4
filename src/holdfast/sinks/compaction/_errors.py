"""Errors of a compaction, raised as `SinkFailed`: the folder is unchanged, and the text names the next step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from holdfast._error_text import one_line
from holdfast.errors import HoldfastError, SinkFailed
from holdfast.sinks.base import os_error_text


def failed(root: Path, why: str) -> SinkFailed:
    """Return the error that ends a compaction."""
    do = "fix the cause (disk space, permissions, a damaged file), then compact again; the sink's data is unchanged"
    return SinkFailed(sink=root.name, action="be compacted", why=why, do=do)


@contextlib.contextmanager
def os_errors(root: Path) -> Iterator[None]:
    """Raise OS errors as `SinkFailed`."""
    try:
        yield
    except OSError as error:
        raise failed(root, os_error_text(error)) from error


@contextlib.contextmanager
def spark_errors(root: Path) -> Iterator[None]:
    """Raise errors from Spark as `SinkFailed`."""
    try:
        yield
    except (HoldfastError, OSError):
        raise
    except Exception as error:  # Spark may raise anything
        raise failed(root, one_line(error)) from error
