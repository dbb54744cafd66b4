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

DEFAULT = Path("holdfast-demo")
MARK = "demo.json"


@dataclass(frozen=True, slots=True)
class Place:
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

    def clear(self, **about: Any) -> None:
        """Make the folder, empty but for its mark; a former demo in it is replaced, anything else refused."""
        with failing_as("make", str(self.folder)):
            if self.folder.exists() and not (self.folder / MARK).is_file():
                if not self.folder.is_dir() or any(self.folder.iterdir()):
                    why = "something is there that is not a demo's"
                    do = "name another folder, or an empty one"
                    raise NotSupported(what=f"a demo in {self.folder}", why=why, do=do)
            elif self.folder.exists():
                self._remove()
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / MARK).write_text(json.dumps(about) + "\n")
            (self.folder / "logs").mkdir()

    def _remove(self) -> None:
        """Remove what a former demo left, its mark last: cut off, it can be done again."""
        for each in self.folder.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each.name != MARK:
                each.unlink()
