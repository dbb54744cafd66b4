"""Gaps of sources: input that a stream has lost, recorded if the user accepts it."""

from __future__ import annotations

from typing import Any

from holdfast.repository.gaps import SOURCE
from holdfast.spark.parts import StreamParts


def record_gap(parts: StreamParts, epoch: int, why: str, facts: dict[str, Any]) -> None:
    """Record a gap, unless an earlier try at the epoch has recorded the same one. More may be lost since."""
    number, kind = 1, SOURCE
    while parts.gaps.add(parts.name, parts.timeline, epoch, kind=kind, why=why, facts=facts).facts != facts:
        number += 1
        kind = f"{SOURCE}-{number}"
