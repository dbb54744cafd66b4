"""Scratch folders of the benchmarks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(module: str) -> Iterator[Path]:
    """Yield a folder in the current folder. The system's temporary folder may be in memory instead of on a disk."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{module.rpartition('.')[2]}-", dir=".") as name:
        yield Path(name).absolute()
