"""Which repository a command works on: the one that `--repo` names, or the only one nearby.

A command that looks, or that the holder of the lease carries out, takes any repository (`looked_at`). One that needs
files on this machine takes a folder (`located`). One that asks a running pipeline takes the only running one of several
(`located_running`).
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast._validation import is_name
from holdfast.cli.holder import holder_of
from holdfast.errors import BadValue, NotSupported, RepositoryMissing
from holdfast.eventlog._cursor_file import FOLDER as CURSORS
from holdfast.repository.base import Repository
from holdfast.repository.files import failing_as, local_path
from holdfast.repository.identity import KEY
from holdfast.repository.local import LocalRepository
from holdfast.repository.objectstore import ObjectRepository
from holdfast.repository.opening import open_repository

IDENTITY = KEY.removesuffix(".json")
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


def looked_at(repo: str | None) -> Repository:
    """Return the repository of one pipeline, on a local disk or on a store."""
    found = all_looked_at(repo)
    if len(found) > 1:
        names = ", ".join(each.where.rpartition("/")[2] for each in found)
        why = f"it contains {len(found)} pipelines: {names}"
        do = f"name one: --repo {shown(found[0].where)}"
        raise BadValue(what="repository", value=found[0].where.rpartition("/")[0], why=why, do=do)
    return found[0]


def all_looked_at(repo: str | None) -> list[Repository]:
    """Return the repository at a place, or those of all pipelines directly below it; at least one."""
    for root in [repo] if repo is not None else map(str, roots(None)):
        if found := found_at(root):
            return found
    if repo is not None and is_url(repo):
        why = f"neither it nor a folder in it has an identity (heads/{IDENTITY}/)"
        raise RepositoryMissing(key=KEY, where=open_repository(repo).where, why=why)
    raise missing(repo)


def found_at(address: str) -> list[Repository]:
    """Return the repository at an address, or those of all pipelines directly below it; maybe none."""
    if not is_url(address):
        return [LocalRepository(each) for each in _below(local_path("repository", address))]
    place = open_repository(address)
    return _stored(place) if isinstance(place, ObjectRepository) else [place]


def _stored(root: ObjectRepository) -> list[Repository]:
    """Return the repository at a place of a store, or those below it: two requests, and one per folder."""
    if root.list(root.heads.folder(IDENTITY)):
        return [root]
    below = [name.removesuffix("/") for name in root.list() if name.endswith("/") and is_name(name.removesuffix("/"))]
    places = [ObjectRepository(f"{root.where}/{name}") for name in below]
    return [place for place in places if place.list(place.heads.folder(IDENTITY))]


def is_url(repo: str) -> bool:
    """Whether a text is an address on a store, and not a path."""
    return "://" in repo and not repo.startswith("file:")


def on_disk(repository: Repository, what: str) -> LocalRepository:
    """Return a repository that is a folder; for one on a store, raise `NotSupported`. `what` names the request."""
    if not isinstance(repository, LocalRepository):
        why = f"the repository {repository.where} is on an object store"
        raise NotSupported(what=what, why=why, do="use it with a repository on a local disk")
    return repository


def located(repo: str | None, *, holds: tuple[str, ...] = (KEY,)) -> LocalRepository:
    """Return the repository of one pipeline: the folder itself, or the only one in it."""
    if repo is not None and is_url(repo):
        return on_disk(open_repository(repo), "this command")
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


def located_running(repo: str | None) -> Repository:
    """Return the repository for a command that asks a running pipeline: of several in a root, the only running one."""
    found = all_looked_at(repo)
    running = [each for each in found if holder_of(each) is not None] if len(found) > 1 else []
    return running[0] if len(running) == 1 else looked_at(repo)


def _below(root: Path) -> list[Path]:
    return [root] if os.path.lexists(root / KEY) else pipelines(root)


def missing(repo: str | None) -> RepositoryMissing:
    """Return the error for a place without a repository: which folders were searched, and what they are."""
    searched = roots(repo)
    why = f"neither it nor a folder in it has a {KEY}"
    if len(searched) > 1:
        why = f"there is no {KEY} in these two folders, nor in a folder directly below them"
    elif not searched[0].exists():
        why = "the folder does not exist"
    elif not searched[0].is_dir():
        why = "it is not a folder"
    return RepositoryMissing(key=KEY, where=" or ".join(map(str, searched)), why=why)


def located_cursors(repo: str | None) -> Repository:
    """Return a repository that contains cursors: a pipeline's, or one that only workers use."""
    if repo is not None and is_url(repo):
        return open_repository(repo)
    return located(repo, holds=(KEY, CURSORS))


def shown(path: Path | str) -> str:
    """Return a path relative to the current folder; unchanged if it is outside, or an address on a store."""
    if isinstance(path, str) and is_url(path):
        return path
    try:
        near = os.path.relpath(path)
    except OSError:  # the current folder was removed
        return str(path)
    return near if not near.startswith("..") else str(path)
