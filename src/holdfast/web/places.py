"""The pipelines under the roots of a server.

Rules:
- A request names a pipeline by its slug, which is looked up among the pipelines that were found. No path is ever made
  from a request.
- A folder that leads out of its root by a symbolic link is not served.
- A repository below several roots is one pipeline: a metric must not have the same labels twice.
- While a root cannot be read, the pipelines that were found there before stay, so that open views stay too.
- A root on a store that does not answer may take a minute to search. The views of other pipelines do not wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path

from holdfast._validation import is_name
from holdfast.cli.target import found_at
from holdfast.errors import HoldfastError, readable
from holdfast.repository import LocalRepository, Repository, open_repository
from holdfast.repository.files import local_path
from holdfast.web.reading.checkpoints import CheckpointReader
from holdfast.web.reading.status_lines import Problem

_FRESH_S = 2.0  # how often the roots are searched
_WAIT_S = 1.0  # for a search; after that, what was found before is returned until it has ended


@dataclass(frozen=True, slots=True)
class Place:
    """One pipeline: its slug, its repository, and the reader of its checkpoints."""

    slug: str
    repository: Repository
    checkpoints: CheckpointReader


class Places:
    """Finds the pipelines under some roots. Any thread may call it."""

    def __init__(self, roots: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.roots = tuple(roots)
        self.unreadable: tuple[Problem, ...] = ()  # roots, as of the last search
        self._clock = clock
        self._guard = threading.Lock()
        self._found: dict[str, Place] = {}
        self._below: dict[str, list[tuple[str, Repository]]] = {}  # by root: what was found there
        self._searched_at = float("-inf")
        self._search: Future[None] | None = None  # under way

    def all(self) -> dict[str, Place]:
        """Return all pipelines by slug: the name of the folder, with a number where several roots have the same."""
        with self._guard:
            is_first = self._searched_at == float("-inf")
            begins = self._search is None and self._clock() - self._searched_at > _FRESH_S
            if begins:
                search = Future[None]()
                threading.Thread(target=self._run, args=(search,), name="holdfast-roots", daemon=True).start()
                self._search = search
            under_way = self._search
        if under_way is not None and (begins or is_first):
            wait([under_way], None if is_first else _WAIT_S)
            if under_way.done():
                under_way.result()  # raises what the search has raised
        return self._found

    def get(self, slug: str) -> Place | None:
        """Return the pipeline of a slug, or `None`."""
        return self.all().get(slug)

    def _run(self, search: Future[None]) -> None:
        """Search, and end the search in any case."""
        try:
            found = self._named()
        except BaseException as error:
            with self._guard:
                self._search = None
            search.set_exception(error)
            return
        with self._guard:
            self._found, self._searched_at, self._search = found, self._clock(), None
        search.set_result(None)

    def _named(self) -> dict[str, Place]:
        known = {each.repository.where: each for each in self._found.values()}
        found: dict[str, Place] = {}
        for name, repository in self._searched():
            slug, number = name, 2
            while slug in found:
                slug, number = f"{name}~{number}", number + 1
            old = known.get(repository.where)
            found[slug] = old if old and old.slug == slug else _place(slug, repository)
        return found

    def _searched(self) -> list[tuple[str, Repository]]:
        found: dict[str, tuple[str, Repository]] = {}
        unreadable = []
        for root in self.roots:
            try:
                self._below[root] = _pipelines(root)
            except HoldfastError as error:  # it is searched again
                what = f"the pipelines below {root} cannot be listed: {error.summary}"
                unreadable.append(Problem(severity="error", what=what, next=error.what_next))
            for name, repository in self._below.get(root, []):
                found.setdefault(repository.where, (name, repository))
        self.unreadable = tuple(unreadable)
        return list(found.values())


def _place(slug: str, repository: Repository) -> Place:
    return Place(slug, repository, CheckpointReader(repository))


def _pipelines(address: str) -> list[tuple[str, Repository]]:
    """Return the pipelines in a root, or the root itself if it is one."""
    found = found_at(address)
    named = [(_last_part(each.where), each) for each in found]
    if len(found) == 1 and _is_root(address, found[0]):
        return named
    return [(name, each) for name, each in named if is_name(name) and _is_inside(address, each)]


def _is_root(address: str, repository: Repository) -> bool:
    return repository.where == open_repository(address).where


def _is_inside(address: str, repository: Repository) -> bool:
    """Whether a repository is below its root. On a local disk, a symbolic link may lead anywhere."""
    if not isinstance(repository, LocalRepository):
        return True
    try:
        return repository.root.resolve().is_relative_to(local_path("root", address).resolve())
    except OSError:
        return False


def _last_part(where: str) -> str:
    return readable(Path(where).name) or "pipeline"
