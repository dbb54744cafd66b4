"""The folder of a demo: its layout, and the check that it may be replaced.

<folder>/
  demo.json            the mark: it shows that the folder belongs to a demo and may be replaced
  input/  products.json
  checkpoints/orders/  the repository of the Holdfast pipeline
  holdfast/            its outputs: orders/ (Parquet) and shop.db (SQLite)
  plain/               the outputs of plain Spark, and its checkpoints/
  logs/                the output of the workers, one file per run
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
_MARK_FIELD = "holdfast_demo"  # the mark must contain it: a file with the same name may belong to another program
_OURS = frozenset({MARK, LOCK, "input", "products.json", "checkpoints", "holdfast", "plain", "logs"})


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The folder of a demo."""

    folder: Path

    @property
    def input(self) -> Path:
        """The folder of input events."""
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
    def repository(self) -> Path:
        """The repository of the pipeline."""
        return self.checkpoints / "orders"

    @property
    def plain_checkpoints(self) -> Path:
        """The folder of plain Spark's checkpoints."""
        return self.folder / "plain" / "checkpoints"

    def outputs(self, job: str) -> Outputs:
        """Return the outputs of a job."""
        return Outputs(self.folder / job)

    def log(self, program: str, life: int) -> Path:
        """Return the log file of a program's worker; `life` counts its runs from 1."""
        return self.folder / "logs" / f"{program}-{life}.log"

    def locked(self) -> OsLock:
        """Create the folder and lock it against a second demo. A folder that is not of a demo is refused."""
        with failing_as("create", str(self.folder)):
            self._names()
            self.folder.mkdir(parents=True, exist_ok=True)
        return OsLock.acquire(self.folder / LOCK, f"the demo in {self.folder}")

    def clear(self, **about: Any) -> None:
        """Create the folder with nothing but its mark. An earlier demo is replaced; anything else is refused."""
        with failing_as("create", str(self.folder)):
            for name in self._names() - {MARK, LOCK}:  # the mark stays, so that this can be repeated if interrupted
                path = self.folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / MARK).write_text(json.dumps({_MARK_FIELD: True, **about}) + "\n")
            (self.folder / "logs").mkdir()

    def _names(self) -> set[str]:
        """Return the names in the folder; refuse files that are not from a demo."""
        if self.folder.exists() and not self.folder.is_dir():
            raise self._refused("it is not a folder")
        names = {each.name for each in self.folder.iterdir()} if self.folder.exists() else set()
        if names - {LOCK} and not self._is_marked():
            raise self._refused("it contains files that are not from a demo")
        if strange := sorted(names - _OURS):
            raise self._refused(f"beside an earlier demo it contains {strange[0]!r}")
        return names

    def _is_marked(self) -> bool:
        try:
            return bool(json.loads((self.folder / MARK).read_text()).get(_MARK_FIELD))
        except (OSError, ValueError, AttributeError):
            return False

    def _refused(self, why: str) -> NotSupported:
        return NotSupported(
            what=f"running a demo in {self.folder}", why=why, do="choose another folder, or an empty one"
        )
