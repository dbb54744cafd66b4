"""The runs of a pipeline: when each began, what its recovery found, what happened to it, and how it ended."""

from __future__ import annotations

import msgspec

from holdfast.repository import Identity, Repository
from holdfast.repository import activity as kinds
from holdfast.repository.activity import Activity, ActivityEvent
from holdfast.repository.lease import RUN, seen_leases
from holdfast.web.reading.problems import NextSteps


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a run."""

    at_ms: int  # when
    lease: int  # of the run
    kind: str  # such as `recovered`, `restart` or `failed`
    stream: str = ""  # its stream; empty: the whole pipeline
    text: str = ""  # what happened
    next: str = ""  # what to do about it; empty: nothing
    error: str = ""  # the class of the error
    seconds: float = 0.0  # how long it took
    steps: dict[str, float] = {}  # by step of a recovery: how long it took, in seconds


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the pipeline."""

    lease: int  # its number
    who: str  # process and machine
    began_ms: int  # when it took the lease; 0: its record was deleted
    ended_ms: int | None  # when it ended; null: it runs, or was killed
    end: str  # how it ended: `stopped gracefully`, an error, or empty
    failed: bool  # it ended with an error
    restarts: int  # of its streams, as far as they are recorded
    recoveries: list[EventLine]  # one per recovered stream, oldest first


class RunsFound(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a pipeline, and everything that happened to them."""

    runs: list[RunLine]  # newest first: those of the last sixteen leases, and those with events
    events: list[EventLine]  # newest first
    damaged: list[str] = []  # what is wrong with records that could not be read


def runs_of(repository: Repository, last: int | None = None) -> RunsFound:
    """Return the runs of a pipeline and their events."""
    Identity.load(repository)
    found, bad = Activity(repository).events()
    taken, bad_leases = seen_leases(repository)
    next_steps = NextSteps(repository)
    events = [_event_line(each, next_steps) for each in found]
    leases = {each.number: each for each in taken if each.why == RUN}
    numbers = sorted({*leases, *(each.lease for each in events)}, reverse=True)
    runs = []
    for number in numbers:
        record, own = leases.get(number), [each for each in events if each.lease == number]
        runs.append(_run(number, record.holder if record else "", record.taken_at_ms if record else 0, own))
    damaged = [error.summary for error in [*bad, *bad_leases]]
    newest = events[::-1]
    return RunsFound(runs=runs[:last], events=newest[: last or len(newest)], damaged=damaged)


def _run(number: int, who: str, began_ms: int, events: list[EventLine]) -> RunLine:
    end = next((each for each in reversed(events) if each.kind in (kinds.ENDED, kinds.START_FAILED)), None)
    failed = any(each.kind in (kinds.FAILED, kinds.START_FAILED) for each in events)
    return RunLine(
        lease=number,
        who=who,
        began_ms=began_ms or (events[0].at_ms if events else 0),
        ended_ms=end.at_ms if end else None,
        end=end.text if end else "",
        failed=failed,
        restarts=sum(each.kind == kinds.RESTART for each in events),
        recoveries=[each for each in events if each.kind == kinds.RECOVERED],
    )


def _event_line(event: ActivityEvent, next_steps: NextSteps) -> EventLine:
    return EventLine(
        at_ms=event.at_ms,
        lease=event.lease,
        kind=event.kind,
        stream=event.stream,
        text=event.text,
        next=next_steps.of(event.next),
        error=event.error,
        seconds=event.seconds,
        steps=event.steps,
    )
