"""The stage of a stream: a small state is stored in the decision, a larger one in an image that the decision names.

Rules:
- Each attempt starts from the bytes of the last decided state, decoded again. The changes of a failed attempt are lost.
- An image is written before the decision that refers to it by name and digest. It never overwrites the last decided
  state: see `stage_images`.
- Every lease writes images of its own, so a driver that was replaced cannot change a state that is in use.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import StageCorrupt, StageMismatch, StreamChanged
from holdfast.formats.decoding import Undecodable, converted
from holdfast.repository import Repository
from holdfast.spark.stage_images import KeptStage, images_of
from holdfast.stages import Stage, StageView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OnEpoch = Callable[["DataFrame", Any], "DataFrame"]
"""Turns an epoch's rows, and the `StageView` of its stage, into the rows that the sinks are given."""
INLINE = 8 * 1024  # bytes that a decision may contain


@dataclass(frozen=True, slots=True)
class Sealed:
    """A state as bytes, and its record in the decision; `None` before the first decision."""

    data: bytes
    record: dict[str, Any] | None


class StageKeeper:
    """Keeps the stage of one stream under one lease."""

    def __init__(self, stage: Stage[Any], repository: Repository, stream: str, timeline: int, lease: int) -> None:
        self._stage = stage
        self._stream = stream
        self._images = images_of(repository, stage, stream, timeline, lease)

    def load(self, record: dict[str, Any] | None) -> Sealed:
        """Return the state that a decision refers to; without a decision, the initial state."""
        if record is None:
            return Sealed(self._stage.initial, None)
        try:
            kept = converted(record, KeptStage)
        except Undecodable as error:
            raise self._corrupt("decode", f"the decision's record of it: {error}") from error
        if kept.type != self._stage.codec.type_name:
            raise StageMismatch(what="state type", found=kept.type, asked=self._stage.codec.type_name)
        data = self._images.read(kept) if kept.inline is None else self._decoded(kept.inline)
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
        return Sealed(data, {**record, **self._images.write(data, decided.record)})

    def settle(self, sealed: Sealed) -> None:
        """Remove what the decision no longer needs; never what newer leases have written."""
        self._images.settle(sealed.record or {})

    def close(self) -> None:
        """Release the file."""
        self._images.close()

    def _corrupt(self, step: str, why: str) -> StageCorrupt:
        return StageCorrupt(stage=self._stream, step=step, why=why)

    def _decoded(self, inline: str) -> bytes:
        try:
            return base64.b64decode(inline, validate=True)
        except ValueError as error:
            raise self._corrupt("decode", f"the decision's record of it: {error}") from error


def refuse_lost_stage(stream: str, record: dict[str, Any] | None) -> None:
    """Refuse a program without a stage if the last decision has one: its state would be lost silently."""
    if record is not None:
        raise StreamChanged(what=f"the stage of stream {stream!r}", before=record["type"], now="none")
