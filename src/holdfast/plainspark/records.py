"""`adopted.json` in the folder of a stream: where the stream comes from.

If a batch was in doubt and its rows are in some sinks and not in others, the record also lists the sinks that must
not be given that batch, and the offsets that it must have.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.errors import NotFound
from holdfast.formats.sealed_json import Record
from holdfast.repository import Repository
from holdfast.repository.decisions import stream_folder

NAME = "adopted.json"


class LastBatch(StrEnum):
    """Whether the rows of a batch in doubt are in a sink. Only a person can know this."""

    WRITTEN = "written"
    NOT_WRITTEN = "not-written"


class AdoptedRecord(Record, frozen=True, kw_only=True):
    """The plain Spark query that a stream continues."""

    stream: str
    checkpoint: str  # the folder, as it was given
    query: str  # the id of the query
    committed: int | None  # its last committed batch
    in_doubt: int | None  # the batch after it, if it had begun
    last_batch: dict[str, LastBatch]  # by sink: whether it has the rows of that batch
    offsets_digest: str = ""  # of the offsets of that batch
    who: str = ""  # the user and the machine
    at_ms: int = 0  # when it was adopted

    @property
    def mixed(self) -> bool:
        """Whether some sinks have the rows of the batch in doubt, and others do not."""
        return len(set(self.last_batch.values())) > 1

    @property
    def pending(self) -> int:
        """The epoch that only some of the sinks must be given; 0 if there is none."""
        return self.in_doubt + 1 if self.mixed and self.in_doubt is not None else 0

    @property
    def written(self) -> frozenset[str]:
        """The sinks that have the rows of the batch in doubt."""
        return frozenset(name for name, answer in self.last_batch.items() if answer is LastBatch.WRITTEN)


def adopted(repository: Repository, stream: str, timeline: int) -> AdoptedRecord | None:
    """Return where a stream comes from; `None` if Holdfast began it."""
    key = f"{stream_folder(stream, timeline)}/{NAME}"
    try:
        return AdoptedRecord.unsealed(repository.read(key), key)
    except NotFound:
        return None
