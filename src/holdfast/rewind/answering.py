"""One question to a sink. Sinks may be user code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast._error_text import one_line
from holdfast.errors import HoldfastError, SinkFailed
from holdfast.sinks.base import Sink

T = TypeVar("T")


def asked(sink: Sink, action: str, question: Callable[[], T]) -> T:
    """Ask a sink that may be user code: anything that it raises becomes an error of Holdfast."""
    try:
        return question()
    except HoldfastError:
        raise
    except Exception as error:
        raise SinkFailed(sink=sink.name, action=action, why=one_line(error)) from error
