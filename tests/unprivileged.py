"""A user without privileges, for tests that run as root: permissions of files do not bind root."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[None]:
    """Act as a user who owns nothing. Where the tests do not run as root, they are such a user if a mode forbids."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every user can enter: those of pytest are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="hfopen"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        set_modes(folder, folders=0o755, files=0o644)
        shutil.rmtree(folder)


def make_read_only(folder: Path) -> None:
    """Forbid everyone to change a folder and everything in it."""
    set_modes(folder, folders=0o555, files=0o444)


def set_modes(folder: Path, *, folders: int, files: int) -> None:
    """Set the modes of a folder and of everything in it."""
    for each in [folder, *folder.rglob("*")]:
        each.chmod(folders if each.is_dir() else files)
