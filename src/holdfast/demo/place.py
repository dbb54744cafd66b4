"""The folder of a demo: what lies where in it, and who may write over it.

<folder>/
  demo.json            the mark: whoever finds it knows that the folder is a demo's, and may be replaced
  input/  products.json
  checkpoints/orders/  the repository of the Holdfast pipeline
  holdfast/            its outputs: orders/ (Parquet) and shop.db (SQLite)
  plain/               those of plain Spark, and its checkpoints/
  logs/                what each worker said, one file a life
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.demo.outputs import Outputs
from holdfast.errors import NotSupported
from holdfast.repository.files import failing_as
from holdfast.repository.oslock import OsLock

DEFAULT = Path("holdfast-demo")
MARK = "demo.json"
LOCK = "demo.lock"
_SAYS = "holdfast_demo"  # what the mark must say: a name alone may be anybody's
_OURS = frozenset({MARK, LOCK, "input", "products.json", "checkpoints", "holdfast", "plain", "logs"})


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The folder of a demo."""

    folder: Path

    @property
    def input(self) -> Path:
        """Where the events are."""
        return self.folder / "input"

    @property
    def products(self) -> Path:
        """The table of products."""
        return self.folder / "products.json"

    @property
    def checkpoints(self) -> Path:
        """The root of the pipeline's repository."""
        return self.folder / "checkpoints"

    @property
    def plain_checkpoints(self) -> Path:
        """Where plain Spark has its checkpoints."""
        return self.folder / "plain" / "checkpoints"

    def outputs(self, job: str) -> Outputs:
        """Return where a job writes to."""
        return Outputs(self.folder / job)

    def log(self, job: str, life: int) -> Path:
        """Return what a job's worker says into, in its so-many-th life."""
        return self.folder / "logs" / f"{job}-{life}.log"

    def locked(self) -> OsLock:
        """Make the folder and keep a second demo out of it: `Locked`. What is not a demo's is refused."""
        with failing_as("make", str(self.folder)):
            self._names()
            self.folder.mkdir(parents=True, exist_ok=True)
        return OsLock.acquire(self.folder / LOCK, f"the demo in {self.folder}")

    def clear(self, **about: Any) -> None:
        """Make the folder, empty but for its mark; a former demo in it is replaced, anything else refused."""
        with failing_as("make", str(self.folder)):
            for name in self._names() - {MARK, LOCK}:  # the mark stays: cut off, it can be done again
                path = self.folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / MARK).write_text(json.dumps({_SAYS: True, **about}) + "\n")
            (self.folder / "logs").mkdir()

    def _names(self) -> set[str]:
        """Return the names in the folder; refuse those that no demo made."""
        if self.folder.exists() and not self.folder.is_dir():
            raise self._refused("it is no folder")
        names = {each.name for each in self.folder.iterdir()} if self.folder.exists() else set()
        if names - {LOCK} and not self._is_marked():
            raise self._refused("something is there that is not a demo's")
        if strange := sorted(names - _OURS):
            raise self._refused(f"beside a former demo there is {strange[0]!r}")
        return names

    def _is_marked(self) -> bool:
        try:
            return bool(json.loads((self.folder / MARK).read_text()).get(_SAYS))
        except (OSError, ValueError, AttributeError):
            return False

    def _refused(self, why: str) -> NotSupported:
        return NotSupported(what=f"a demo in {self.folder}", why=why, do="name another folder, or an empty one")
