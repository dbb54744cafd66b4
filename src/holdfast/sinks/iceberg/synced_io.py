"""PyIceberg's access to files, with durable writes on a local disk.

PyIceberg does not sync the files that it writes. A catalog that survives a power failure would then name metadata that
did not. So each file is synced, with its folder, before the catalog names it. On S3 a file is durable as soon
as the store has confirmed it.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import cast

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from holdfast.repository.files import make_folder, sync_folder


class SyncedFileIO(PyArrowFileIO):
    """Files by PyArrow; those on a disk are synced when they are closed. Catalogs load it by its name."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write to."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _SyncedFile(location, path, self.fs_by_scheme(scheme, netloc))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        make_folder(path.parent)
        return cast("OutputStream", _SyncedStream(path, overwrite=overwrite))


class _SyncedStream(io.BufferedWriter):
    def __init__(self, path: Path, *, overwrite: bool) -> None:
        super().__init__(io.FileIO(path, "w" if overwrite else "x"))
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()
        sync_folder(self._path.parent)
