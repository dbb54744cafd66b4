"""The verdicts of verifications that were recorded, by checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.repository import Repository
from holdfast.repository.activity import VERIFIED, Activity, ActivityEvent


class LastVerify(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the last recorded verification of one checkpoint."""

    checkpoint: str  # its id, or the name of a savepoint
    ok: bool  # whether it can be restored
    grade: str  # how thoroughly it was checked
    at_ms: int  # when
    text: str = ""  # the first finding


def verdicts_of(repository: Repository) -> dict[str, LastVerify]:
    """Return the last verdict of each checkpoint, by its id or name."""
    return verdicts_in(Activity(repository).events()[0])


def verdicts_in(events: Iterable[ActivityEvent]) -> dict[str, LastVerify]:
    """Return the last verdict of each checkpoint in a list of events, oldest first."""
    found = {}
    for each in events:
        if each.kind == VERIFIED:
            name = str(each.facts.get("checkpoint", ""))
            found[name] = LastVerify(
                checkpoint=name,
                ok=each.facts.get("ok") is True,
                grade=str(each.facts.get("grade", "")),
                at_ms=each.at_ms,
                text=each.text,
            )
    return found
