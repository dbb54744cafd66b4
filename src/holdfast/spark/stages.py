"""The stage of a stream: a small state is stored in the decision, a larger one in a block file that the decision names.

Rules:
- Each attempt starts from the bytes of the last decided state, decoded again. The changes of a failed attempt are lost.
- A state in a block file is written before the decision that refers to it by file, generation and digest. It never
  overwrites the last decided state, which is in the other slot of the file.
- Every lease writes to its own file, so a driver that was replaced cannot change a state that is in use.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import StageCorrupt, StageMismatch, StreamChanged
from holdfast.formats.blocks import BLOCK_SIZE, MemoryBlocks
from holdfast.formats.decoding import Undecodable, converted
from holdfast.repository import FileBlocks, LocalRepository
from holdfast.repository.files import failing_as, make_folder
from holdfast.stages import CheckpointedStage, Stage, StageView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OnEpoch = Callable[["DataFrame", Any], "DataFrame"]
"""Turns an epoch's rows, and the `StageView` of its stage, into the rows that the sinks are given."""
FOLDER = "stages"
INLINE = 8 * 1024  # bytes that a decision may contain
_BLOCKS = re.compile(r"[A-Za-z0-9_.-]+\.blocks", re.ASCII)  # of checked names
_HEADERS = 4  # blocks that two slots need in addition to their data, with some reserve


class _Kept(msgspec.Struct):
    """The record of a state in a decision: its bytes, or the file and the generation that contain them."""

    type: str
    sha256: str
    inline: str | None = None
    blocks: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Sealed:
    """A state as bytes, and its record in the decision; `None` before the first decision."""

    data: bytes
    record: dict[str, Any] | None


class _Bytes:
    """A codec that stores bytes unchanged, under the name of the state's type."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def encode(self, state: bytes) -> bytes:
        return state

    def decode(self, data: bytes) -> bytes:
        return data


class StageKeeper:
    """Keeps the stage of one stream under one lease."""

    def __init__(self, stage: Stage[Any], repository: LocalRepository, stream: str, timeline: int, lease: int) -> None:
        self._stage = stage
        self._stream = stream
        self._own = f"{stream}.t{timeline}.l{lease}."
        self._ours = re.compile(rf"{re.escape(stream)}\.t{timeline}\.l(\d+)\.\d+\.blocks")  # a name may contain dots
        self._lease = lease
        self._folder = repository.root / FOLDER
        self._kept: CheckpointedStage[bytes] | None = None
        self._blocks: FileBlocks | None = None
        self._name = ""

    def load(self, record: dict[str, Any] | None) -> Sealed:
        """Return the state that a decision refers to; without a decision, the initial state."""
        if record is None:
            return Sealed(self._stage.initial, None)
        try:
            kept = converted(record, _Kept)
        except Undecodable as error:
            raise self._corrupt("decode", f"the decision's record of it: {error}") from error
        if kept.type != self._stage.codec.type_name:
            raise StageMismatch(what="state type", found=kept.type, asked=self._stage.codec.type_name)
        data = self._read(kept) if kept.inline is None else self._decoded(kept.inline)
        if hashlib.sha256(data).hexdigest() != kept.sha256:
            raise self._corrupt("checksum", "it is not the state that was decided")
        return Sealed(data, record)

    def view(self, sealed: Sealed) -> StageView[Any]:
        """Return a view of a state for one attempt."""
        try:
            return StageView(self._stage.codec.decode(sealed.data))
        except Exception as error:
            raise StageCorrupt(stage=self._stream, step="decode", why=str(error)) from error

    def seal(self, view: StageView[Any], decided: Sealed) -> Sealed:
        """Store the state of an attempt durably, beside the decided one."""
        data = self._stage.encode(view.state, self._stream)
        if decided.record is not None and data == decided.data:
            return decided  # nothing has changed
        record: dict[str, Any] = {"type": self._stage.codec.type_name, "size": len(data)}
        record["sha256"] = hashlib.sha256(data).hexdigest()
        if len(data) <= INLINE:
            return Sealed(data, {**record, "inline": base64.b64encode(data).decode()})
        return Sealed(data, {**record, **self._write(data, decided.record)})

    def settle(self, sealed: Sealed) -> None:
        """Remove block files that the decision no longer needs; never those of newer leases."""
        named = (sealed.record or {}).get("blocks")
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

    def _write(self, data: bytes, decided: dict[str, Any] | None) -> dict[str, Any]:
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

    def _corrupt(self, step: str, why: str) -> StageCorrupt:
        return StageCorrupt(stage=self._stream, step=step, why=why)

    def _decoded(self, inline: str) -> bytes:
        try:
            return base64.b64decode(inline, validate=True)
        except ValueError as error:
            raise self._corrupt("decode", f"the decision's record of it: {error}") from error

    def _read(self, kept: _Kept) -> bytes:
        """Read a state from its file without its lock: the driver that wrote it may still be running."""
        if not _BLOCKS.fullmatch(kept.blocks):
            raise self._corrupt("read", f"the decision names the file {kept.blocks!r}")
        path = self._folder / kept.blocks
        with failing_as("read", str(path)):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                raise self._corrupt("read", f"{path} is missing") from None
        blocks = MemoryBlocks(len(data) // BLOCK_SIZE)
        blocks.data[:] = data[: len(blocks.data)]
        found = CheckpointedStage.restore(blocks, self._codec, name=self._stream, generation=kept.generation)
        return found.stage.state

    @property
    def _codec(self) -> _Bytes:
        return _Bytes(self._stage.codec.type_name)


def refuse_lost_stage(stream: str, record: dict[str, Any] | None) -> None:
    """Refuse a program without a stage if the last decision has one: its state would be lost silently."""
    if record is not None:
        raise StreamChanged(what=f"the stage of stream {stream!r}", before=record["type"], now="none")
