"""Stage state: the Python-side state of a stream, stored durably on a block device.

Rules:
- Creating a stage writes nothing. `checkpoint()` writes a new generation beside the last one (see `formats.blocks`). A
  stage with an initial state writes only to a blank device; if the device holds a state, the stage must be restored.
- Fail closed: a failed checkpoint raises, and the stage accepts no further checkpoint until it has been restored. A
  state that is too large or cannot be encoded is rejected before anything is written.
- An observer is called once at the start of a flush and once at its end, even if it fails. An observer cannot fail a
  flush.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast._validation import checked_bytes, checked_name
from holdfast.errors import (
    AlreadyExists,
    Closed,
    StageBlank,
    StageCorrupt,
    StageHalted,
    StageMismatch,
    StageStale,
    StageUnserializable,
)
from holdfast.formats.blocks import BlockDevice, Device, Found, Image, MemoryBlocks

__all__ = [
    "BlockDevice",
    "CallbackObserver",
    "CheckpointedStage",
    "Codec",
    "EdgeCheckpoint",
    "FlushObserver",
    "MarkerFileObserver",
    "MemoryBlocks",
    "MetricObserver",
    "MsgpackCodec",
    "Restored",
    "Stage",
    "StageView",
]
_log = logging.getLogger(__name__)
DEFAULT_NAME = "stage"

S = TypeVar("S")


# --- codecs ----------------------------------------------------------------------------------------------------------


class Codec(Protocol[S]):
    """Encodes and decodes state. `type_name` is stored in the image; an image with another type name is rejected."""

    @property
    def type_name(self) -> str:
        """The name of the state type; at most 64 bytes."""

    def encode(self, state: S) -> bytes:
        """Return the state as bytes."""

    def decode(self, data: bytes) -> S:
        """Return the state, or raise any exception if the bytes are not an encoded state."""


class MsgpackCodec(Generic[S]):
    """A MessagePack codec for any type that msgspec supports: numbers, text, lists, maps, dataclasses, Structs."""

    def __init__(self, kind: type[S], type_name: str | None = None) -> None:
        self.type_name = type_name or (kind.__name__ if isinstance(kind, type) else str(kind))
        self._encoder = msgspec.msgpack.Encoder(order="sorted")
        self._plain = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[S] = msgspec.msgpack.Decoder(kind)

    def encode(self, state: S) -> bytes:
        """Return the state as MessagePack. Raises for a state of another type, which could not be read back."""
        try:
            data = self._encoder.encode(state)
        except TypeError:  # keys that are not text cannot be sorted; or the state cannot be encoded at all
            data = self._plain.encode(state)
        self._decoder.decode(data)
        return data

    def decode(self, data: bytes) -> S:
        """Return the state; values of other types are rejected."""
        return self._decoder.decode(data)


class EdgeCheckpoint(msgspec.Struct, frozen=True):
    """The state of an edge between two systems: the input that was read, and the output that was committed."""

    input_offset: int  # how far the input was read
    output_commit: int  # how far the output is committed on the other side


# --- observers -------------------------------------------------------------------------------------------------------


class FlushObserver(Protocol):
    """Called before and after each flush, for example to keep a scheduler from preempting the process."""

    def on_flush_start(self, lease_id: int | None) -> None:
        """Handle the start of a flush."""

    def on_flush_complete(self, lease_id: int | None) -> None:
        """Handle the end of a flush, successful or not."""


class CallbackObserver:
    """Calls a function with `"start"` or `"complete"` and the lease id."""

    def __init__(self, callback: Callable[[str, int | None], Any]) -> None:
        self._callback = callback

    def on_flush_start(self, lease_id: int | None) -> None:
        """Call the function with `"start"`."""
        self._callback("start", lease_id)

    def on_flush_complete(self, lease_id: int | None) -> None:
        """Call the function with `"complete"`."""
        self._callback("complete", lease_id)


class MarkerFileObserver:
    """Creates a file that contains the lease id for the duration of a flush, for schedulers that watch files."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_flush_start(self, lease_id: int | None) -> None:
        """Create the file."""
        self._path.write_text(f"{'' if lease_id is None else lease_id}\n")

    def on_flush_complete(self, lease_id: int | None) -> None:  # noqa: ARG002 - one file for all leases
        """Remove the file."""
        self._path.unlink(missing_ok=True)


class MetricObserver:
    """Counts flushes and their total duration, measured with a caller-supplied clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: float | None = None
        self.started = 0
        self.completed = 0
        self.seconds = 0.0

    def on_flush_start(self, lease_id: int | None) -> None:  # noqa: ARG002 - counted over all leases
        """Count the start of a flush."""
        self.started += 1
        self._began = self._clock()

    def on_flush_complete(self, lease_id: int | None) -> None:  # noqa: ARG002 - counted over all leases
        """Count the end of a flush and add its duration."""
        self.completed += 1
        if self._began is not None:
            self.seconds += self._clock() - self._began
            self._began = None


@contextlib.contextmanager
def flushing(observers: Iterable[FlushObserver], lease_id: int | None) -> Iterator[None]:
    """Call every observer once before a durable step and once after it, even if the step fails."""
    notified = list(observers)
    for each in notified:
        _notify(each.on_flush_start, lease_id)
    try:
        yield
    finally:
        for each in notified:
            _notify(each.on_flush_complete, lease_id)


def _notify(method: Callable[[int | None], None], lease_id: int | None) -> None:
    try:
        method(lease_id)
    except Exception:
        _log.exception("flush observer failed; the flush continues")


# --- the stage -------------------------------------------------------------------------------------------------------


class Stage(Generic[S]):
    """The stage of a stream as the program declares it: its initial state and its codec.

    `on_epoch(df, stage)` receives a `StageView`, which is reset to the last decided state before every attempt.
    """

    def __init__(self, initial: S, codec: Codec[S] | None = None, *, observer: FlushObserver | None = None) -> None:
        self.codec: Codec[S] = MsgpackCodec(type(initial)) if codec is None else codec
        self.observer = observer
        self.initial = self.encode(initial, "initial state")

    def encode(self, state: S, what: str) -> bytes:
        """Return a state as bytes that decode to an equal state, or raise `StageUnserializable`."""
        do = "use values that decode to themselves, or pass a codec: hf.Stage(initial, hf.stages.MsgpackCodec(ItsType))"
        try:
            data = checked_bytes("encoded state", self.codec.encode(state))
            again = self.codec.decode(data)
        except Exception as error:
            raise StageUnserializable(stage=what, why=str(error), do=do) from error
        if again != state and repr(again) != repr(state):  # repr, because NaN does not equal NaN
            why = "it would be decoded to a different value, as a set inside a dict becomes a list"
            raise StageUnserializable(stage=what, why=why, do=do)
        return data


class StageView(Generic[S]):
    """The stage of a stream as one attempt at an epoch sees it: read, change or assign `state`."""

    __slots__ = ("state",)

    def __init__(self, state: S) -> None:
        self.state = state


@dataclass(frozen=True, slots=True)
class Restored(Generic[S]):
    """A restored stage, its generation, and whether a newer one may have been lost with the other slot."""

    stage: CheckpointedStage[S]
    generation: int
    fell_back: bool


class CheckpointedStage(Generic[S]):
    """State that can be checkpointed to a device and restored from it."""

    def __init__(
        self,
        state: S,
        blocks: BlockDevice,
        codec: Codec[S],
        observer: FlushObserver | None = None,
        lease_id: int | None = None,
        *,
        name: str = DEFAULT_NAME,
    ) -> None:
        self.state = state
        self._device = Device(blocks, checked_name("stage", name))
        self._codec = codec
        self._observer = observer
        self._lease_id = lease_id
        self._base: Found | None = None
        self._checked = False  # whether the contents of the device are known
        self._halted = False
        self._released = False

    @classmethod
    def restore(
        cls,
        blocks: BlockDevice,
        codec: Codec[S],
        observer: FlushObserver | None = None,
        lease_id: int | None = None,
        *,
        name: str = DEFAULT_NAME,
        generation: int | None = None,
    ) -> Restored[S]:
        """Read the newest intact state.

        With `generation`, return that generation if either slot holds it; otherwise raise `StageStale`. Without it,
        `fell_back` is true if the other slot is damaged, so that a newer state may have been lost.
        """
        device = Device(blocks, checked_name("stage", name))
        found = device.find(generation)
        image = found.image
        _require_own(image, device.name, codec.type_name)
        if generation is not None and image.generation != generation:
            raise StageStale(stage=device.name, found=image.generation, asked=generation)
        try:
            state = codec.decode(image.payload)
        except Exception as error:
            raise StageCorrupt(stage=device.name, step="decode", why=str(error)) from error
        stage = cls(state, blocks, codec, observer, lease_id, name=name)
        stage._base, stage._checked = found, True
        return Restored(stage, image.generation, found.fell_back)

    @classmethod
    def resume(
        cls,
        initial: S,
        blocks: BlockDevice,
        codec: Codec[S],
        observer: FlushObserver | None = None,
        lease_id: int | None = None,
        *,
        name: str = DEFAULT_NAME,
    ) -> Restored[S]:
        """Restore the state on the device, or start with `initial`, generation 0, if the device is blank."""
        try:
            return cls.restore(blocks, codec, observer, lease_id, name=name)
        except StageBlank:
            return Restored(cls(initial, blocks, codec, observer, lease_id, name=name), 0, fell_back=False)

    @property
    def generation(self) -> int:
        """The generation that this stage last wrote or was restored from; 0 before the first checkpoint."""
        return self._base.image.generation if self._base else 0

    def checkpoint(self) -> int:
        """Write the state durably and return its generation.

        1. Notify the observer.  2. Raise if an earlier checkpoint failed.  3. Encode.  4. Find the slot to write.
        5. Write.  6. Notify the observer, even if a step failed.
        """
        with flushing([self._observer] if self._observer is not None else [], self._lease_id):  # 1, 6
            if self._released:  # 2
                raise Closed(what=f"stage {self._device.name!r}", do="restore a new stage from its device")
            if self._halted:
                raise StageHalted(stage=self._device.name)
            self._halted = True  # until this checkpoint has succeeded
            payload = self._encoded()  # 3
            if not self._checked:  # 4
                self._require_blank()
                self._checked = True
            number = 1 + (self._base.highest if self._base else 0)
            image = Image(number, self._device.name, self._codec.type_name, payload)
            self._base = self._device.write(image, self._base)  # 5
            self._halted = False
            return image.generation

    def into_blocks(self) -> BlockDevice:
        """Release the device and return it; this stage accepts no further checkpoint."""
        self._released = True
        return self._device.blocks

    def _encoded(self) -> bytes:
        try:
            return checked_bytes("encoded state", self._codec.encode(self.state))
        except Exception as error:
            raise StageUnserializable(stage=self._device.name, why=str(error)) from error

    def _require_blank(self) -> None:
        """Raise if the device holds a state: this stage was not restored from it and would overwrite it."""
        try:
            found = self._device.find()
        except StageBlank:
            return
        _require_own(found.image, self._device.name, self._codec.type_name)
        raise AlreadyExists(
            what=f"generation {found.image.generation} of stage {self._device.name!r}",
            do="restore the stage from it (CheckpointedStage.restore or .resume), or use a new device",
        )


def _require_own(image: Image, stage: str, type_name: str) -> None:
    if image.generation == 0:
        return  # version 1 contains no names
    if image.stage != stage:
        raise StageMismatch(what="stage", found=image.stage, asked=stage)
    if image.type_name != type_name:
        raise StageMismatch(what="state type", found=image.type_name, asked=type_name)
