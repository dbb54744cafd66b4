"""Whether the files of cuts exist, and with which sizes. On an object store, one listing answers for a whole folder."""

from __future__ import annotations

from holdfast.repository.base import Repository
from holdfast.repository.checkpoint_keys import CheckpointPlace
from holdfast.repository.filelist import FileList
from holdfast.repository.objectstore import ObjectRepository


class FileSizes:
    """The sizes of files, looked up once: checkpoints share most of them. Not guaranteed: that they still exist."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._sizes: dict[str, int | None] = {}
        self._etags: dict[str, str] = {}
        self._folders: set[str] = set()

    def of(self, place: CheckpointPlace, listed: FileList) -> dict[str, int | None]:
        """Return the size of each file of a list, by key; `None` if it does not exist."""
        keys = [place.key(listed, file) for file in listed.files]
        if listed.is_placed and isinstance(self._repository, ObjectRepository):
            self._list(self._repository, listed.copies)
            if any(file.etag for file in listed.files):
                self._list(self._repository, listed.live)
        else:
            new = [key for key in dict.fromkeys(keys) if key not in self._sizes]
            self._sizes |= self._repository.sizes(new)
        return {key: self._sizes.get(key) for key in keys}

    def etag(self, key: str) -> str | None:
        """Return the ETag of a file that was looked up on an object store; `None` elsewhere."""
        return self._etags.get(key)

    def _list(self, store: ObjectRepository, folder: str) -> None:
        if folder not in self._folders:
            self._folders.add(folder)
            found = store.flat(folder)
            self._sizes |= {each.key: each.size for each in found}
            self._etags |= {each.key: each.etag for each in found}
