"""Everything that a server with `--allow-control` has and another one lacks: the token, the actions, their jobs."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.web.acting.access import ControlToken
from holdfast.web.acting.actions import (
    CancelCheckpoint,
    DrainPipeline,
    PageAction,
    PruneCheckpoints,
    StopPipeline,
    TakeCheckpoint,
    TakeSavepoint,
    VerifyCheckpoint,
)
from holdfast.web.acting.jobs import ActionJobs
from holdfast.web.acting.rewinding import RewindPipeline, UndoRewind
from holdfast.web.acting.tickets import PlanTickets


class PageControl:
    """What a page may change, and who may ask it to."""

    def __init__(self, token: str | None = None, programs: Mapping[str, str] | None = None) -> None:
        found = programs or {}
        self.token = ControlToken(token)
        self.tickets = PlanTickets()
        self.jobs = ActionJobs()
        made: tuple[PageAction, ...] = (
            TakeCheckpoint(),
            TakeSavepoint(),
            CancelCheckpoint(),
            StopPipeline(),
            DrainPipeline(),
            VerifyCheckpoint(),
            PruneCheckpoints(),
            RewindPipeline(found),
            UndoRewind(found),
        )
        self.actions = {each.name: each for each in made}
