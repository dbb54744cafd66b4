"""The note in the folder of a Kafka sink: the topic has a marker of this stream, and the id that the topic had then.

It detects a topic that was created again and a marker that was lost: the server remembers neither.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.repository.files import make_folder
from holdfast.sinks.base import StreamIdentity
from holdfast.sinks.owners import OWNER_FILE, claim, owner_of


class MarkerNote:
    """The note about one topic. It is written after the marker, so a note without a marker means that it was lost."""

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder = folder / f"topic-{topic}"

    def make(self) -> None:
        """Create the folder of the note."""
        make_folder(self._folder)

    def topic_id(self) -> str | None:
        """Return the id of the topic that has the marker, or `None` if no marker was written."""
        known = owner_of(self._folder)
        return None if known is None else known.shape

    def write(self, owner: StreamIdentity, topic_id: str) -> None:
        """Record the topic that has the marker, unless one is recorded."""
        claim(self._folder, owner, topic_id)

    def replace(self, owner: StreamIdentity, topic_id: str) -> None:
        """Record the topic that has the marker now."""
        self.make()
        if self.topic_id() not in (None, topic_id):
            (self._folder / OWNER_FILE).unlink(missing_ok=True)
        self.write(owner, topic_id)
