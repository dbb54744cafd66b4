"""Stage state: Python-side state of a stream, kept durably on a device of blocks.

Rules:
- Making a stage writes nothing. `checkpoint()` writes a new generation beside the last one (see `blocks`). A stage made
  with an initial state writes to a blank device only; over a state that is there it must be restored.
- Fail closed: a failed checkpoint raises, and the stage takes no further one until it has been restored. A state that
  is too large or cannot be encoded is refused before anything is written.
- An observer is told once before anything else and once on every way out. It cannot fail a flush.
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
from holdfast.formats.blocks import BlockDevice, Device, Found, Image

_log = logging.getLogger(__name__)
DEFAULT_NAME = "stage"

S = TypeVar("S")


# --- codecs ----------------------------------------------------------------------------------------------------------


class Codec(Protocol[S]):
    """Turns state into bytes and back. `type_name` goes into the image, and another one is refused."""

    @property
    def type_name(self) -> str:
        """The name of the type of state; at most 64 bytes."""

    def encode(self, state: S) -> bytes:
        """Return the state as bytes."""

    def decode(self, data: bytes) -> S:
        """Return the state, or raise any exception where the bytes are not its own."""


class MsgpackCodec(Generic[S]):
    """MessagePack for anything that msgspec can describe: numbers, text, lists, maps, dataclasses, Structs."""

    def __init__(self, kind: type[S], type_name: str | None = None) -> None:
        self.type_name = type_name or (kind.__name__ if isinstance(kind, type) else str(kind))
        self._encoder = msgspec.msgpack.Encoder(order="sorted")
        self._plain = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[S] = msgspec.msgpack.Decoder(kind)

    def encode(self, state: S) -> bytes:
        """Return the state as MessagePack. A state of another type is refused here: it could never be read back."""
        try:
            data = self._encoder.encode(state)
        except TypeError:  # keys that are no text have no order; or what cannot be encoded at all
            data = self._plain.encode(state)
        self._decoder.decode(data)
        return data

    def decode(self, data: bytes) -> S:
        """Return the state; values of other types are refused."""
        return self._decoder.decode(data)


class EdgeCheckpoint(msgspec.Struct, frozen=True):
    """The state of an edge between two systems: what was read, and what of it was committed on the other side."""

    input_offset: int  # how far was read
    output_commit: int  # how far is committed on the other side


# --- observers -------------------------------------------------------------------------------------------------------


class FlushObserver(Protocol):
    """Is told around each flush; tells a scheduler, say, not to preempt now."""

    def on_flush_start(self, lease_id: int | None) -> None:
        """A flush begins."""

    def on_flush_complete(self, lease_id: int | None) -> None:
        """A flush has ended, well or not."""


class CallbackObserver:
    """Calls a function with `"start"` or `"complete"` and the lease."""

    def __init__(self, callback: Callable[[str, int | None], Any]) -> None:
        self._callback = callback

    def on_flush_start(self, lease_id: int | None) -> None:
        """Call it with `"start"`."""
        self._callback("start", lease_id)

    def on_flush_complete(self, lease_id: int | None) -> None:
        """Call it with `"complete"`."""
        self._callback("complete", lease_id)


class MarkerFileObserver:
    """Keeps a file in place while a flush is under way; it holds the lease. For schedulers that look at files."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_flush_start(self, lease_id: int | None) -> None:
        """Make the file."""
        self._path.write_text(f"{'' if lease_id is None else lease_id}\n")

    def on_flush_complete(self, lease_id: int | None) -> None:  # noqa: ARG002 - one file whatever the lease
        """Remove the file."""
        self._path.unlink(missing_ok=True)


class MetricObserver:
    """Counts flushes and the time that they took, by a clock of the caller's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: float | None = None
        self.started = 0
        self.completed = 0
        self.seconds = 0.0

    def on_flush_start(self, lease_id: int | None) -> None:  # noqa: ARG002 - counted over all leases
        """Count a start."""
        self.started += 1
        self._began = self._clock()

    def on_flush_complete(self, lease_id: int | None) -> None:  # noqa: ARG002 - counted over all leases
        """Count an end."""
        self.completed += 1
        if self._began is not None:
            self.seconds += self._clock() - self._began
            self._began = None


@contextlib.contextmanager
def flushing(observers: Iterable[FlushObserver], lease_id: int | None) -> Iterator[None]:
    """Tell every observer once before a durable step and once on every way out of it."""
    told = list(observers)
    for each in told:
        _tell(each.on_flush_start, lease_id)
    try:
        yield
    finally:
        for each in told:
            _tell(each.on_flush_complete, lease_id)


def _tell(told: Callable[[int | None], None], lease_id: int | None) -> None:
    try:
        told(lease_id)
    except Exception:
        _log.exception("flush observer failed; the flush goes on")


# --- the stage -------------------------------------------------------------------------------------------------------


class Stage(Generic[S]):
    """The stage of a stream as its program declares it: the state that it begins with, and how it becomes bytes.

    `on_epoch(df, stage)` is given a `StageView` of it: set back to the last decided state before every attempt.
    """

    def __init__(self, initial: S, codec: Codec[S] | None = None, *, observer: FlushObserver | None = None) -> None:
        self.codec: Codec[S] = MsgpackCodec(type(initial)) if codec is None else codec
        self.observer = observer
        self.initial = self.encode(initial, "initial state")

    def encode(self, state: S, what: str) -> bytes:
        """Return a state as bytes that are known to come back as they were, or raise `StageUnserializable`."""
        do = "keep to values that come back the same, or give hf.Stage(initial, hf.MsgpackCodec(ItsType))"
        try:
            data = checked_bytes("encoded state", self.codec.encode(state))
            again = self.codec.decode(data)
        except Exception as error:
            raise StageUnserializable(stage=what, why=str(error), do=do) from error
        if again != state and repr(again) != repr(state):  # the second is for numbers that are none: nan is not nan
            why = "it would come back as something else, as a set inside a dict does: as a list"
            raise StageUnserializable(stage=what, why=why, do=do)
        return data


class StageView(Generic[S]):
    """What one attempt at an epoch sees of its stream's stage: `state`, to be read, changed and assigned."""

    __slots__ = ("state",)

    def __init__(self, state: S) -> None:
        self.state = state


@dataclass(frozen=True, slots=True)
class Restored(Generic[S]):
    """A stage read back: which generation, and whether a newer one may have been lost with the other slot."""

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
        self._looked = False
        self._halted = False
        self._given_back = False

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
        """Read the newest state that can be trusted.

        Where the caller knows which generation it must be, that one is given if either slot holds it; else the device
        is `StageStale`. Without it, `fell_back` says that the other slot is damaged, so that this may not be the newest
        state that there was.
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
        stage._base, stage._looked = found, True
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
        """Restore what the device holds, or begin with `initial`, generation 0, where it is blank."""
        try:
            return cls.restore(blocks, codec, observer, lease_id, name=name)
        except StageBlank:
            return Restored(cls(initial, blocks, codec, observer, lease_id, name=name), 0, fell_back=False)

    @property
    def generation(self) -> int:
        """The generation that this stage last wrote or was restored from; 0 before the first."""
        return self._base.image.generation if self._base else 0

    def checkpoint(self) -> int:
        """Write the state durably and return its generation.

        1. Tell the observer.  2. Refuse if an earlier one failed.  3. Encode.  4. Find the slot to write.  5. Write.
        6. Tell the observer, on every way out.
        """
        with flushing([self._observer] if self._observer is not None else [], self._lease_id):  # 1, 6
            if self._given_back:  # 2
                raise Closed(what=f"stage {self._device.name!r}", do="make another on its device")
            if self._halted:
                raise StageHalted(stage=self._device.name)
            self._halted = True  # until this one has succeeded
            payload = self._encoded()  # 3
            if not self._looked:  # 4
                self._require_blank()
                self._looked = True
            number = 1 + (self._base.highest if self._base else 0)
            image = Image(number, self._device.name, self._codec.type_name, payload)
            self._base = self._device.write(image, self._base)  # 5
            self._halted = False
            return image.generation

    def into_blocks(self) -> BlockDevice:
        """Give the device back; this stage takes no further checkpoint."""
        self._given_back = True
        return self._device.blocks

    def _encoded(self) -> bytes:
        try:
            return checked_bytes("encoded state", self._codec.encode(self.state))
        except Exception as error:
            raise StageUnserializable(stage=self._device.name, why=str(error)) from error

    def _require_blank(self) -> None:
        """Refuse a device that holds a state already: it would be written over by one that was not restored from it."""
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
        return  # version 1 names nothing
    if image.stage != stage:
        raise StageMismatch(what="stage", found=image.stage, asked=stage)
    if image.type_name != type_name:
        raise StageMismatch(what="state type", found=image.type_name, asked=type_name)
