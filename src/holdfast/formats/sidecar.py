"""Operator states in a checkpoint: small ones inline as base64, larger ones one after another in the sidecar.

Rules:
- A state of at most `threshold` bytes is stored inline; a larger one is a range of `state.bin`. Its buffer is not
  copied.
- Each state has a digest of its own bytes. Damaged state is never replaced by empty state: reading it raises an error
  that names the operator.
- Base64 is strict: alphabet, padding, no unused bits set.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from holdfast._validation import checked_type
from holdfast.errors import BadValue, OperatorStateCorrupt

DEFAULT_THRESHOLD = 64 * 1024

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class OperatorState:
    """One operator's state: inline as base64, or a range of the sidecar. `sha256` is of the state's own bytes."""

    state_b64: str | None = None
    external: bool = False
    external_offset: int = 0
    external_length: int = 0
    sha256: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PackedStates:
    """States ready to be recorded: entries for the manifest, and the sidecar as a sequence of the callers' buffers.

    Pass the buffers to a repository directly: `repository.put("…/state.bin", packed.sidecar)`.
    """

    entries: dict[str, OperatorState]
    sidecar: tuple[memoryview, ...]
    checksum: str | None


def pack_states(states: Mapping[str, Buffer], threshold: int = DEFAULT_THRESHOLD) -> PackedStates:
    """Put states of at most `threshold` bytes inline and append the others to the sidecar without copying them."""
    entries: dict[str, OperatorState] = {}
    sidecar: list[memoryview] = []
    whole = hashlib.sha256()
    offset = 0
    for name in sorted(states):
        checked_type("operator name", name, str)
        view = _view(f"state of operator {name!r}", states[name])
        digest = hashlib.sha256(view).hexdigest()
        if len(view) <= threshold:
            entries[name] = OperatorState(state_b64=base64.b64encode(view).decode(), sha256=digest)
            continue
        entries[name] = OperatorState(external=True, external_offset=offset, external_length=len(view), sha256=digest)
        sidecar.append(view)
        whole.update(view)
        offset += len(view)
    return PackedStates(entries, tuple(sidecar), whole.hexdigest() if sidecar else None)


def _view(what: str, data: object) -> memoryview:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadValue(what=what, value=data, expected=f"bytes, not {type(data).__name__}")
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise BadValue(what=what, value=data, why=str(error)) from error  # the buffer is not contiguous


def read_state(name: str, state: OperatorState, sidecar: memoryview | None) -> memoryview:
    """Check one operator's state and return it: a view into the sidecar, or the decoded inline bytes."""

    def refuse(why: str) -> NoReturn:
        raise OperatorStateCorrupt(operator=name, why=why)

    if state.external:
        end = state.external_offset + state.external_length
        if state.state_b64 is not None:
            refuse("it is both inline and external")
        if sidecar is None:
            refuse("it is stored in the sidecar state.bin, which is missing")
        if end > len(sidecar):
            refuse(f"it ends at byte {end}, but the sidecar has {len(sidecar)} bytes")
        found = sidecar[state.external_offset : end]
    elif state.state_b64 is None:
        refuse("it is neither inline nor external")
    else:
        found = memoryview(_strict_base64(name, state.state_b64))
    if state.sha256 is not None and hashlib.sha256(found).hexdigest() != state.sha256:
        refuse("its digest does not match")
    return found


def _strict_base64(name: str, text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise OperatorStateCorrupt(operator=name, why=f"base64: {error}") from error
    if base64.b64encode(found).decode() != text:  # unused bits after the last byte are set
        raise OperatorStateCorrupt(operator=name, why="base64: bits after its end")
    return found
