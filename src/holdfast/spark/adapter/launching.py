"""How PySpark starts the JVM of an embedded session."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from pyspark import java_gateway


@contextlib.contextmanager
def deaf_to_sigterm() -> Iterator[None]:
    """Let a JVM that is started in this block ignore SIGTERM, as PySpark lets it ignore Ctrl-C.

    Service managers and `timeout` send SIGTERM to all processes of a group. The Python process then stops every stream
    at the end of its epoch, and needs the JVM for that. The JVM ends when the Python process has ended, in any way.
    """
    start = java_gateway.Popen

    @wraps(start)
    def popen(*args: Any, preexec_fn: Callable[[], object] | None = None, **options: Any) -> Any:
        def prepare() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Java respects a signal that is ignored at its start
            if preexec_fn is not None:
                preexec_fn()

        return start(*args, preexec_fn=prepare, **options)

    java_gateway.Popen = popen
    try:
        yield
    finally:
        java_gateway.Popen = start
