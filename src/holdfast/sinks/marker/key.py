"""The key that a marker sink's database stores with the rows: one line of text, which identifies the last epoch.

    holdfast1/<pipeline>/<uid>/<stream>/t<timeline>-<epoch>/<digest of the handle>

Rules:
- The text has at most 255 characters, of the letters, digits and `_.-/`.
- Equal epochs have equal keys, whenever and wherever they are committed. Two decisions about one epoch have different
  ones, because their handles differ.
- The key of a rewind has `-` for the digest. No rows belong to it: it only says where its timeline begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.sinks.base import EpochKey, EpochPlace, Link, StreamIdentity
from holdfast.sinks.held_epochs import HeldEpochs
from holdfast.sinks.key_files import place

_FORMAT = "holdfast1"
_NO_HANDLE = "-"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_TEXT = re.compile(
    rf"{_FORMAT}/(?P<pipeline>{_NAME})/(?P<uid>{_NAME})/(?P<stream>{_NAME})"
    rf"/t(?P<timeline>[1-9][0-9]{{0,9}})-(?P<epoch>[0-9]{{10,19}})/(?P<handle>[0-9a-f]{{16}}|{_NO_HANDLE})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Marker:
    """The last epoch of a stream that a database holds."""

    owner: StreamIdentity
    timeline: int
    epoch: int
    handle: str | None  # digest of the handle that committed it; None: a rewind wrote the key

    def __str__(self) -> str:
        owner, at = self.owner, place(self.timeline, self.epoch)
        return f"{_FORMAT}/{owner.pipeline}/{owner.uid}/{owner.stream}/{at}/{self.handle or _NO_HANDLE}"

    @classmethod
    def parsed(cls, text: str) -> Marker | None:
        """Return the key with this text, or `None` if no key has it."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        owner = StreamIdentity(found["pipeline"], found["uid"], found["stream"])
        handle = None if found["handle"] == _NO_HANDLE else found["handle"]
        return cls(owner, int(found["timeline"]), int(found["epoch"]), handle)

    @property
    def place(self) -> EpochPlace:
        """Timeline and epoch."""
        return self.timeline, self.epoch

    def held(self, key: EpochKey) -> HeldEpochs:
        """Return what this key, as the whole ledger, says about an epoch."""
        link = Link(self.epoch, self.handle)
        own = link if self.place == key.place else None
        return HeldEpochs(self.timeline, own, link if self.timeline == key.timeline else Link(0, None))
