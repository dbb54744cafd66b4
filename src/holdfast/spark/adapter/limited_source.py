"""What a Python source with a limit per batch defines, independent of the version of Spark.

Its readers have these methods. Those that Spark calls are in `limits_of_spark` and `limits_of_source`, one class for
each way in which Spark asks for the end of a batch; `limited` chooses between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition


class LimitedSource(ABC):
    """A source whose offsets are dicts."""

    rows_per_batch: int | None = None  # the most rows of a batch; `None` for no limit

    @abstractmethod
    def first_offset(self) -> dict[str, Any]:
        """Return the offset at which a new stream begins."""

    @abstractmethod
    def last_offset(self) -> dict[str, Any]:
        """Return the current end."""

    @abstractmethod
    def end_here(self) -> None:
        """Read up to the current end, and no further."""

    @abstractmethod
    def end_after(self, start: dict[str, Any], rows: int | None) -> dict[str, Any]:
        """Return the end of a batch that begins at `start` and has at most so many rows; `start` if there are none."""

    @abstractmethod
    def position(self, offset: dict[str, Any]) -> int:
        """Return a number by which offsets are compared; raise if the offset is not one of this source."""

    @abstractmethod
    def inputs_between(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the inputs of the tasks of a batch."""
