"""How Spark's triggers spent their time, over the same epochs as the samples."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_SUM = "triggerExecution"


class Spent:
    """The durations of the triggers that were returned as samples, as Spark reports them (`durationMs`)."""

    def __init__(self) -> None:
        self._counted: list[Mapping[str, float]] = []

    def samples(self, progress: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the duration of each trigger in seconds, and keep its parts."""
        found: list[Mapping[str, float]] = [each["durationMs"] for each in progress]
        self._counted += found
        return [each[_SUM] / 1e3 for each in found]

    def parts(self, samples: int) -> dict[str, float]:
        """Return the median of each part over the last samples: those that count, without the warm-up."""
        if not 0 < samples <= len(self._counted):
            raise ValueError(f"{samples} samples are not among the {len(self._counted)} that were returned")
        found = self._counted[-samples:]
        names = {name for each in found for name in each if name != _SUM}
        return {name: statistics.median(each.get(name, 0) for each in found) / 1e3 for name in sorted(names)}
