"""A process that ends before each of its calls to the operating system, one after the other.

Each act runs in a forked child that ends, without any clean-up, just before its n-th call; for every n, until it gets
through. Then the parent looks.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ["open", "write", "pwrite", "fsync", "fdatasync", "link", "rename", "replace", "unlink", "mkdir", "rmdir"]
CALLS += ["ftruncate", "close", "posix_fallocate", "utime", "chmod", "scandir"]
_CRASHED = 77


def die_before(number: int) -> None:
    """Make this process end just before its n-th call."""
    counter = itertools.count()

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def counted(*args: Any, **options: Any) -> Any:
            if next(counter) == number:
                os._exit(_CRASHED)
            return real(*args, **options)

        setattr(os, name, counted)

    for name in CALLS:
        wrap(name)


def crash_everywhere(folder: Path, prepare: Callable[[Path], object], act: Callable[[Path], object]) -> list[Path]:
    """Run `act` with a death before each of its calls. Returns the places that it left, the last one whole."""
    places = []
    for number in itertools.count():
        place = folder / str(number)
        place.mkdir()
        prepare(place)
        child = os.fork()
        if child == 0:
            try:
                die_before(number)
                act(place)
            except BaseException:
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, _CRASHED), f"the act failed by itself before call {number}"
        places.append(place)
        if code == 0:
            assert len(places) > 3, "nothing was struck"
            return places
    raise AssertionError
