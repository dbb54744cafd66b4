"""PlanTickets: a plan that was shown, and may be carried out once."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.web.acting.plans import ActionPlan

LASTS_S = 600.0
_MOST = 200  # open tickets; the oldest one is dropped for a new one


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """An action whose plan was shown: what is carried out is kept here, not in the form."""

    slug: str
    where: str  # its repository
    action: str
    values: Mapping[str, str]
    plan: ActionPlan
    confirm: str = ""  # what must be typed to carry it out: the name of the pipeline; empty: nothing


class PlanTickets:
    """The tickets of one server. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._open: OrderedDict[str, tuple[float, PlannedAction]] = OrderedDict()

    def issue(self, planned: PlannedAction) -> str:
        """Return a new ticket for a plan."""
        ticket = secrets.token_urlsafe(24)
        with self._guard:
            self._open[ticket] = (self._clock() + LASTS_S, planned)
            while len(self._open) > _MOST:
                self._open.popitem(last=False)
        return ticket

    def take(self, ticket: str) -> PlannedAction | None:
        """Return the plan of a ticket, which is then used; `None` if it was used, is too old, or never existed."""
        with self._guard:
            until, planned = self._open.pop(ticket, (0.0, None))
        return planned if planned is not None and self._clock() < until else None
