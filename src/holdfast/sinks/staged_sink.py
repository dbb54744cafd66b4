"""What sinks of user code have in common: rows are staged as Parquet, in the repository or in a folder of the user."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from holdfast.errors import NotSupported
from holdfast.sinks import base
from holdfast.sinks.base import EpochKey, SinkContext, failing
from holdfast.sinks.staged_files import refuse_file, require_seen_by_all
from holdfast.sinks.staging import Staging

_STAGING = "staging"


class StagedSink(base.Sink):
    """A sink that stages its rows in a folder of its own: in the repository, unless `chosen` names another one."""

    one_action = True
    folder_option: ClassVar[str] = "path"  # the argument with which the user chooses the folder

    def __init__(self, name: str, *, chosen: Path | None) -> None:
        super().__init__(name)
        self._chosen = chosen
        self._staging: Staging | None = None
        self._given: Path | None = None

    def open(self, context: SinkContext) -> None:
        """Create the folder."""
        super().open(context)
        require_seen_by_all(self.name, context)
        self._staging = None
        with failing(self.name, "create its folder"):
            refuse_file("sink path", self.folder)
            self._staged.make()

    def set_folder(self, folder: Path) -> None:
        """Name the folder in the repository, which is used unless the user has chosen another one."""
        self._given = folder

    @property
    def folder(self) -> Path:
        """The folder for the staged rows and other files of this sink."""
        found = self._chosen or (self._given if self._context is None else None) or self.context.folder
        if found is None:
            why, do = "it has no folder for its rows", f"pass {self.folder_option}=..."
            raise NotSupported(what=f"using sink {self.name!r}", why=why, do=do)
        return found

    @property
    def _staged(self) -> Staging:
        if self._staging is None:
            self._staging = Staging(self.folder / _STAGING)
        return self._staging

    def abort(self, key: EpochKey) -> None:
        """Remove the attempt's folder."""
        self._staged.clear(key)

    def _reach(self, point: str) -> None:
        if self._context is not None:
            self._context.reach(point)
