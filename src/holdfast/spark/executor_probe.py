"""What the Python of an executor lacks. These functions are sent to executors by value.

Only the standard library is imported, because an executor may lack everything else, Holdfast included.
"""

from __future__ import annotations

import importlib
import socket
import sys
from collections.abc import Callable, Iterable, Iterator

Reach = Callable[[], object]
"""Raises an error if this executor cannot reach the object store with its own credentials."""


def probe_python(
    packages: tuple[str, ...], version: str, reach: Reach | None
) -> Callable[[Iterable[int]], Iterator[str]]:
    """Return the function of a task, which yields the problems of its executor, each after the name of the host."""

    def probed(rows: Iterable[int]) -> Iterator[str]:
        del rows
        for problem in _problems(packages, version, reach):
            yield f"{socket.gethostname()}: {problem} ({sys.executable})"

    return probed


def _problems(packages: tuple[str, ...], version: str, reach: Reach | None) -> Iterator[str]:
    missing = False
    for name in packages:
        try:
            found = importlib.import_module(name)
        except ImportError as error:
            missing = True
            yield f"the Python package {name} cannot be imported: {error}"
            continue
        if getattr(found, "__file__", None) is None:  # an empty folder of this name
            missing = True
            yield f"the Python package {name} is not installed"
        elif name == "holdfast" and found.__version__ != version:
            yield f"holdfast is version {found.__version__} there, and {version} on the driver"
    if reach is None or missing:
        return
    try:
        reach()
    except Exception as error:
        text = " ".join(str(error).split())
        yield f"Python cannot use the object store: {type(error).__name__}: {text[:300]}"
