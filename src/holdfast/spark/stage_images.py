"""Where a stage's state is stored if it is too large for a decision: in a block file, or as an object on a store.

On a store every state is an object of its own, under the lease and with a name that is never used again, because
nothing is overwritten there. Objects of this and of earlier leases that the last decision does not name are deleted
after it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.errors import NotFound, StageCorrupt
from holdfast.formats.blocks import BLOCK_SIZE, MemoryBlocks
from holdfast.repository import FileBlocks, LocalRepository, ObjectRepository, Repository
from holdfast.repository.files import failing_as, make_folder
from holdfast.repository.opening import local_repository
from holdfast.stages import CheckpointedStage, Stage

FOLDER = "stages"
_BLOCKS = re.compile(r"[A-Za-z0-9_.-]+\.blocks", re.ASCII)  # of checked names
_OBJECT = re.compile(r"l(\d+)/[0-9a-f]{32}\.state")
_HEADERS = 4  # blocks that two slots need in addition to their data, with some reserve


class KeptStage(msgspec.Struct):
    """The record of a state in a decision: its bytes, or where they are."""

    type: str
    sha256: str
    inline: str | None = None
    blocks: str = ""  # a block file, and the generation in it
    generation: int = 0
    object: str = ""  # on an object store


class StageImages(Protocol):
    """Stores large states of one stream under one lease."""

    def write(self, data: bytes, decided: dict[str, Any] | None) -> dict[str, Any]:
        """Store a state durably beside the decided one; return the part of its record that names it."""

    def read(self, kept: KeptStage) -> bytes:
        """Return a state, or raise `StageCorrupt`."""

    def settle(self, decided: dict[str, Any]) -> None:
        """Delete what the decision no longer needs; never what newer leases have written."""

    def close(self) -> None:
        """Release what is held."""


def images_of(repository: Repository, stage: Stage[Any], stream: str, timeline: int, lease: int) -> StageImages:
    """Return where the states of a stream are stored."""
    if isinstance(repository, ObjectRepository):
        return ObjectImages(repository, stream, timeline, lease)
    return BlockImages(local_repository(repository, "a stage"), stage, stream, timeline, lease)


class _Bytes:
    """A codec that stores bytes unchanged, under the name of the state's type."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def encode(self, state: bytes) -> bytes:
        return state

    def decode(self, data: bytes) -> bytes:
        return data


class BlockImages:
    """Block files on a local disk. A state never overwrites the decided one, which is in the other slot of the file."""

    def __init__(self, repository: LocalRepository, stage: Stage[Any], stream: str, timeline: int, lease: int) -> None:
        self._stage = stage
        self._stream = stream
        self._own = f"{stream}.t{timeline}.l{lease}."
        self._ours = re.compile(rf"{re.escape(stream)}\.t{timeline}\.l(\d+)\.\d+\.blocks")  # a name may contain dots
        self._lease = lease
        self._folder = repository.root / FOLDER
        self._kept: CheckpointedStage[bytes] | None = None
        self._blocks: FileBlocks | None = None
        self._name = ""

    def write(self, data: bytes, decided: dict[str, Any] | None) -> dict[str, Any]:
        """Write to the slot that does not contain the decided state, in a larger file if necessary."""
        needed = 2 * (-(-len(data) // BLOCK_SIZE) + _HEADERS)
        if self._blocks is None or self._kept is None or self._blocks.num_blocks < needed:
            self._blocks, self._kept = self._grown(needed)
        if decided is not None and decided.get("blocks") == self._name:
            self._kept = self._back_to(self._kept, self._blocks, int(decided["generation"]))
        self._kept.state = data
        try:
            return {"blocks": self._name, "generation": self._kept.checkpoint()}
        except BaseException:
            self.close()  # it takes no further checkpoint; the next attempt opens the file again
            raise

    def read(self, kept: KeptStage) -> bytes:
        """Read a state from its file without its lock: the driver that wrote it may still be running."""
        if not _BLOCKS.fullmatch(kept.blocks):
            raise _unreadable(self._stream, f"the decision names the file {kept.blocks!r}")
        path = self._folder / kept.blocks
        with failing_as("read", str(path)):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                raise _unreadable(self._stream, f"{path} is missing") from None
        blocks = MemoryBlocks(len(data) // BLOCK_SIZE)
        blocks.data[:] = data[: len(blocks.data)]
        found = CheckpointedStage.restore(blocks, self._codec, name=self._stream, generation=kept.generation)
        return found.stage.state

    def settle(self, decided: dict[str, Any]) -> None:
        """Remove block files that the decision no longer needs."""
        named = decided.get("blocks")
        if not self._folder.is_dir():
            return
        with failing_as("clear", FOLDER):
            for path in self._folder.iterdir():
                found = self._ours.fullmatch(path.name)
                if found and int(found[1]) <= self._lease and path.name not in (named, self._name):
                    path.unlink(missing_ok=True)
                    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)

    def close(self) -> None:
        """Release the file."""
        if self._blocks is not None:
            self._blocks.close()
        self._blocks = self._kept = None

    def _grown(self, needed: int) -> tuple[FileBlocks, CheckpointedStage[bytes]]:
        self.close()
        blocks = 1 << (needed - 1).bit_length()
        with failing_as("make", FOLDER):
            make_folder(self._folder)
        self._name = f"{self._own}{blocks}.blocks"
        device = FileBlocks.open_or_create(self._folder / self._name, blocks)
        return device, CheckpointedStage.resume(
            b"", device, self._codec, self._stage.observer, self._lease, name=self._stream
        ).stage

    def _back_to(self, kept: CheckpointedStage[bytes], device: FileBlocks, generation: int) -> CheckpointedStage[bytes]:
        """Return to the decided state: what a failed attempt has written is overwritten."""
        if kept.generation == generation:
            return kept
        return CheckpointedStage.restore(
            device, self._codec, self._stage.observer, self._lease, name=self._stream, generation=generation
        ).stage

    @property
    def _codec(self) -> _Bytes:
        return _Bytes(self._stage.codec.type_name)


class ObjectImages:
    """Objects on a store, one for each state: `stages/<stream>/t<timeline>/l<lease>/<32 hex>.state`."""

    def __init__(self, repository: ObjectRepository, stream: str, timeline: int, lease: int) -> None:
        self._repository = repository
        self._stream = stream
        self._folder = f"{FOLDER}/{stream}/t{timeline}"
        self._lease = lease
        self._written: list[str] = []  # and not deleted yet, by this process
        self._swept = False  # whether the objects of earlier leases were deleted

    def write(self, data: bytes, decided: dict[str, Any] | None) -> dict[str, Any]:
        """Write an object with a new name."""
        del decided  # it has a name of its own
        key = f"{self._folder}/l{self._lease}/{uuid.uuid4().hex}.state"
        self._written.append(key)
        self._repository.put_new(key, data)
        return {"object": key}

    def read(self, kept: KeptStage) -> bytes:
        """Read the object."""
        if not self._is_ours(kept.object, lambda _: True):
            raise _unreadable(self._stream, f"the decision names the object {kept.object!r}")
        try:
            return self._repository.read(kept.object)
        except NotFound:
            raise _unreadable(self._stream, f"{kept.object} is missing") from None

    def settle(self, decided: dict[str, Any]) -> None:
        """Delete the objects that the decision no longer needs. Those of earlier leases are listed once."""
        gone, named = set(self._written), str(decided.get("object", ""))
        if not self._swept:
            found = (each.key for each in self._repository.flat(self._folder))
            gone |= {key for key in found if self._is_ours(key, lambda lease: lease < self._lease)}
        gone.discard(named)
        if gone:
            self._repository.delete_all(sorted(gone))
        self._written, self._swept = [key for key in self._written if key == named], True

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _is_ours(self, key: str, lease: Callable[[int], bool]) -> bool:
        found = _OBJECT.fullmatch(key.removeprefix(f"{self._folder}/"))
        return key.startswith(f"{self._folder}/") and found is not None and lease(int(found[1]))


def _unreadable(stream: str, why: str) -> StageCorrupt:
    return StageCorrupt(stage=stream, step="read", why=why)
