"""Which repository a command works on: the one that `--repo` names, or the only one nearby."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import BadValue, RepositoryMissing
from holdfast.eventlog._cursor_file import FOLDER as CURSORS
from holdfast.repository.files import failing_as, local_path
from holdfast.repository.identity import KEY
from holdfast.repository.local import LocalRepository

DEFAULT_ROOT = "checkpoints"  # the root that the docs and examples use


def pipelines(root: Path) -> list[Path]:
    """Return the pipeline repositories directly below a root."""
    with failing_as("list", str(root)):
        try:
            return sorted(each for each in root.iterdir() if os.path.lexists(each / KEY))
        except (FileNotFoundError, NotADirectoryError):
            return []


def roots(repo: str | None) -> list[Path]:
    """Return the folders to search: the given one, or the current folder and `./checkpoints`."""
    if repo is not None:
        return [local_path("repository", repo)]
    return [Path.cwd(), Path.cwd() / DEFAULT_ROOT]


def located(repo: str | None, *, holds: tuple[str, ...] = (KEY,)) -> LocalRepository:
    """Return the repository of one pipeline: the folder itself, or the only one in it."""
    for root in roots(repo):
        if any(os.path.lexists(root / each) for each in holds):
            return LocalRepository(root)
        found = pipelines(root)
        if len(found) > 1:
            names = ", ".join(each.name for each in found)
            why = f"it contains {len(found)} pipelines: {names}"
            raise BadValue(what="repository", value=str(root), why=why, do=f"name one: --repo {shown(found[0])}")
        if found:
            return LocalRepository(found[0])
    raise missing(repo)


def missing(repo: str | None) -> RepositoryMissing:
    """Return the error for a place without a repository: which folders were searched, and what they are."""
    searched = roots(repo)
    why = f"neither it nor a folder in it has a {KEY}"
    if len(searched) > 1:
        why = f"neither has a {KEY}, nor has a folder in them"
    elif not searched[0].exists():
        why = "the folder does not exist"
    elif not searched[0].is_dir():
        why = "it is not a folder"
    return RepositoryMissing(key=KEY, where=" or ".join(map(str, searched)), why=why)


def located_cursors(repo: str | None) -> LocalRepository:
    """Return a repository that contains cursors: a pipeline's, or one that only workers use."""
    return located(repo, holds=(KEY, CURSORS))


def shown(path: Path) -> str:
    """Return a path relative to the current folder, or unchanged if it is outside."""
    try:
        near = os.path.relpath(path)
    except OSError:  # the current folder was removed
        return str(path)
    return near if not near.startswith("..") else str(path)
