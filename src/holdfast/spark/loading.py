"""Programs that are only being loaded must not run their pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from holdfast.errors import NotSupported

_loading: ContextVar[str | None] = ContextVar("loading", default=None)


@contextlib.contextmanager
def defining(program: str) -> Iterator[None]:
    """Load a program whose pipeline the caller will run: the program is refused if it runs the pipeline itself."""
    token = _loading.set(program)
    try:
        yield
    finally:
        _loading.reset(token)


def require_running_allowed(pipeline: str) -> None:
    """Refuse to run a pipeline while its program is only being loaded."""
    program = _loading.get()
    if program is not None:
        why = f"{program} is only being loaded; the command that loads it runs the pipeline"
        do = 'put that line under `if __name__ == "__main__":`'
        raise NotSupported(what=f"running pipeline {pipeline!r} here", why=why, do=do)
