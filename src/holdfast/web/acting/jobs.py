"""Actions that are being carried out, each in a thread, and how they have ended.

Not guaranteed: that an action is known after the server has ended. What it did is in the history of the pipeline; a
request that the pipeline had not taken by then expires.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.web.acting.plans import ActionEnd, failed_end

MOST_RUNNING = 8
_KEPT = 100  # that have ended
Report = Callable[[str], None]  # how far an action is, as one line


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionJob:
    """One action at one moment."""

    id: str  # 32 hexadecimal digits; a request to the pipeline has the same id
    slug: str
    action: str
    title: str
    command: str  # the same action in a shell
    began_ms: int
    progress: str = "begins"
    ended_ms: int = 0  # 0: it is not over
    end: ActionEnd | None = None


class ActionJobs:
    """The actions of one server. Any thread may call it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._jobs: OrderedDict[str, ActionJob] = OrderedDict()

    def get(self, job_id: str) -> ActionJob | None:
        """Return an action by its id, or `None`."""
        with self._guard:
            return self._jobs.get(job_id)

    def of(self, slug: str) -> list[ActionJob]:
        """Return the actions of one pipeline, the newest first."""
        with self._guard:
            return [each for each in reversed(self._jobs.values()) if each.slug == slug]

    def start(
        self, slug: str, action: str, title: str, command: str, work: Callable[[str, Report], ActionEnd]
    ) -> str | None:
        """Carry out an action in the background; return its id, or `None` if too many are under way.

        `work` is called with the id and a function that reports progress.
        """
        made = ActionJob(
            id=uuid.uuid4().hex, slug=slug, action=action, title=title, command=command, began_ms=_now_ms()
        )
        with self._guard:
            if sum(each.end is None for each in self._jobs.values()) >= MOST_RUNNING:
                return None
            self._jobs[made.id] = made
            for old in [each.id for each in self._jobs.values() if each.end is not None][:-_KEPT]:
                del self._jobs[old]
        threading.Thread(target=self._run, args=(made, work), name="holdfast-action", daemon=True).start()
        return made.id

    def _run(self, job: ActionJob, work: Callable[[str, Report], ActionEnd]) -> None:
        try:
            end = work(job.id, lambda text: self._change(job.id, progress=text))
        except BaseException as error:  # an action ends with a result in any case
            end = failed_end(job.action, error)
        self._change(job.id, progress="", ended_ms=_now_ms(), end=end)

    def _change(self, job_id: str, **changes: object) -> None:
        with self._guard:
            if job_id in self._jobs:
                self._jobs[job_id] = replace(self._jobs[job_id], **changes)  # type: ignore[arg-type]


def _now_ms() -> int:
    return int(time.time() * 1000)
