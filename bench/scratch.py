"""Where benchmarks write."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(module: str) -> Iterator[Path]:
    """Give a folder, below where one is: on a disk, not in memory, as a folder for temporary files may be."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{module.rpartition('.')[2]}-", dir=".") as name:
        yield Path(name).absolute()
