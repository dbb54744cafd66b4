"""The views by address: `/p/orders/checkpoints/12` is the view of a checkpoint.

Rules:
- A view is rendered at most once a second, for all readers together.
- An address that means nothing gives `None`; a repository that cannot be read gives a view of the error.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast._html import h
from holdfast.cli.holder import readable_holder
from holdfast.cli.options import checkpoint_of
from holdfast.cli.timelines import timeline_lines, unfinished_text
from holdfast.cli.verbs.doubt import doubts_of
from holdfast.cli.verbs.gaps import gaps_of
from holdfast.cli.verbs.log import history_of
from holdfast.cli.verbs.show import shown_checkpoint
from holdfast.difference import diff
from holdfast.errors import Absent, BadInput, HoldfastError
from holdfast.repository import Lineage, Summary
from holdfast.repository.activity import Activity, Period
from holdfast.repository.rewinds import unfinished_rewind
from holdfast.repository.verdicts import Verdicts
from holdfast.web.acting.control import PageControl
from holdfast.web.drawing.actions import actions_view, job_view
from holdfast.web.drawing.checkpoints import checkpoint_view, checkpoints_view, diff_view
from holdfast.web.drawing.frame import View, pipeline_view, place
from holdfast.web.drawing.history import ledger_view, runs_view, timelines_view
from holdfast.web.drawing.one_pipeline import pipeline_overview
from holdfast.web.drawing.pipelines import pipelines_view
from holdfast.web.drawing.stream import ROWS, SPANS, StreamChoice, stream_view, unreadable_stream_view
from holdfast.web.places import Place, Places
from holdfast.web.reading.epochs import ActivityPoint, all_streams, epoch_of, epochs_of, points
from holdfast.web.reading.problems import NextSteps
from holdfast.web.reading.runs import runs_of
from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import PipelineLine

_FRESH_S = 0.9
_MOST = 256  # rendered views in memory
_CHART_SHARE = 1 / 2000  # of the span of a chart: for so long it is not read again
_SLOWEST_OF = 500  # epochs that are sorted by their duration
_HOURS_MS = 3 * 3_600_000  # of the charts in an overview
_EPOCH = re.compile("[1-9][0-9]{0,17}")
_AGES = re.compile(r"(<time[^>]*data-at=[^>]*>)[^<]*")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A view that was rendered, and a version that changes with its content, but not with the ages in it."""

    view: View
    version: str
    status: int = 200


class Book:
    """Renders views. Any thread may call it."""

    def __init__(
        self, places: Places, clock: Callable[[], float] = time.time, control: PageControl | None = None
    ) -> None:
        self.places = places
        self.control = control  # `None`: the page only reads
        self._clock = clock
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._activities: dict[tuple[str, str, int], tuple[float, list[ActivityPoint]]] = {}
        self._rendered: OrderedDict[str, tuple[float, Rendered | None]] = OrderedDict()

    def peek(self, address: str) -> tuple[Rendered | None] | None:
        """Return the view of an address if it was rendered in the last second, in a tuple; nothing is read."""
        with self._guard:
            found = self._rendered.get(address)
            return (found[1],) if found is not None and time.monotonic() - found[0] < _FRESH_S else None

    def look(self, address: str) -> Rendered | None:
        """Return the view of an address, at most a second old, or `None` if there is none."""
        with self._guard:
            lock = self._locks.setdefault(address, threading.Lock())
        with lock:
            known = self.peek(address)
            if known is not None:
                return known[0]
            rendered = self._render(address)
            with self._guard:
                now = time.monotonic()
                self._rendered[address] = (now, rendered)
                self._rendered.move_to_end(address)
                self._forget_old(now)
            return rendered

    def _forget_old(self, now: float) -> None:
        """Drop what `peek` no longer returns: a view may have megabytes, and each query makes another one."""
        while len(self._rendered) > _MOST or now - next(iter(self._rendered.values()))[0] > _FRESH_S:
            old, _ = self._rendered.popitem(last=False)
            lock = self._locks.get(old)
            if lock is not None and not lock.locked():  # otherwise the view is being rendered again
                del self._locks[old]

    def status(self) -> dict[str, PipelineLine]:
        """Return the status of all pipelines, by slug."""
        return {slug: self._status(each) for slug, each in self.places.all().items()}

    def _status(self, found: Place) -> PipelineLine:
        return status_of(found.repository, summaries=found.checkpoints.all, clock=self._clock)

    def _render(self, address: str) -> Rendered | None:
        try:
            url = urlsplit(address)
        except ValueError:
            return None
        parts = [unquote(each) for each in url.path.strip("/").split("/")] if url.path.strip("/") else []
        if url.netloc or url.scheme:
            return None
        query = dict(parse_qsl(url.query))
        status = 200
        try:
            view = self._view(parts, query)
        except Absent as error:
            view, status = self._error_view(parts, error), 404
        except BadInput as error:
            view, status = self._error_view(parts, error), 400
        except HoldfastError as error:
            view, status = self._error_view(parts, error), 500
        if view is None:
            return None
        text = _AGES.sub(r"\1", view.body)
        return Rendered(view, hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest(), status)

    def _view(self, parts: list[str], query: Mapping[str, str]) -> View | None:
        now_ms = int(self._clock() * 1000)
        if not parts:
            return pipelines_view(self.status(), self.places.roots, self.places.unreadable, now_ms)
        found = self.places.get(parts[1]) if parts[0] == "p" and len(parts) > 1 else None
        if found is None:
            return None
        return self._pipeline_view(found, parts[2:], query, now_ms)

    def _pipeline_view(self, found: Place, parts: list[str], query: Mapping[str, str], now_ms: int) -> View | None:
        views: dict[str, Callable[[], View]] = {
            "": lambda: self._overview(found, now_ms),
            "checkpoints": lambda: self._checkpoints(found, now_ms),
            "runs": lambda: runs_view(found.slug, runs_of(found.repository), self._held(found), now_ms),
            "ledger": lambda: self._ledger(found, now_ms),
            "timelines": lambda: self._timelines(found),
        }
        match parts or [""]:
            case [name] if name in views:
                return views[name]()
            case ["streams", stream]:
                return self._stream(found, stream, query, now_ms)
            case ["checkpoints", name]:
                return self._checkpoint(found, name, now_ms)
            case ["actions", *rest] if self.control is not None:
                return self._actions(self.control, found, rest, query, now_ms)
            case ["diff"] if "a" in query and "b" in query:
                a, b = (checkpoint_of(found.repository, query[each]) for each in ("a", "b"))
                return diff_view(found.slug, diff(found.repository, a, b))
        return None

    def _actions(
        self, control: PageControl, found: Place, parts: list[str], query: Mapping[str, str], now_ms: int
    ) -> View | None:
        if parts and parts[0] not in control.actions:
            job = control.jobs.get(parts[0])
            do = NextSteps(found.repository).of
            return job_view(found.slug, job, do, now_ms) if job is not None and job.slug == found.slug else None
        line, jobs = self._status(found), control.jobs.of(found.slug)
        actions = list(control.actions.values())
        return actions_view(found.slug, line, actions, found.checkpoints.all(), jobs=jobs, given=query, now_ms=now_ms)

    def _checkpoints(self, found: Place, now_ms: int) -> View:
        lineage, verdicts = Lineage.load(found.repository), Verdicts(found.repository).shown()
        return checkpoints_view(found.slug, found.checkpoints.all(), lineage, verdicts, now_ms)

    def _checkpoint(self, found: Place, name: str, now_ms: int) -> View:
        shown = shown_checkpoint(found.repository, name, files=True)
        verdict, control = shown.result.last_verify, self.control is not None
        return checkpoint_view(found.slug, shown, found.checkpoints.all(), verdict, now_ms, control=control)

    def _ledger(self, found: Place, now_ms: int) -> View:
        doubts = doubts_of(found.repository)
        advice = NextSteps(found.repository).of(doubts.advice)
        return ledger_view(found.slug, doubts, gaps_of(found.repository), now_ms, advice=advice)

    def _timelines(self, found: Place) -> View:
        repository = found.repository
        lineage = Lineage.load(repository)
        rewinding = unfinished_rewind(repository, lineage)
        text = None if rewinding is None else NextSteps(repository).of(unfinished_text(rewinding))
        return timelines_view(found.slug, timeline_lines(repository, lineage), history_of(repository), text)

    def _held(self, found: Place) -> int:
        """Return the lease that a live process holds; 0: none, or it is not known."""
        holder, _ = readable_holder(found.repository)
        return holder.lease if holder is not None and holder.certain else 0

    def _overview(self, found: Place, now_ms: int) -> View:
        line = self._status(found)
        periods: list[Period] = []
        checkpoints: list[Summary] = []
        with contextlib.suppress(HoldfastError):  # what cannot be listed is among the problems of the status
            periods, _ = Activity(found.repository).periods(now_ms - _HOURS_MS)
        with contextlib.suppress(HoldfastError):
            checkpoints = found.checkpoints.all() if line.uid else []
        verdicts = Verdicts(found.repository).shown()
        activity = {each.stream: points(periods, each.stream) for each in line.streams}
        return pipeline_overview(found.slug, line, activity, checkpoints, verdicts=verdicts, now_ms=now_ms)

    def _stream(self, found: Place, stream: str, query: Mapping[str, str], now_ms: int) -> View | None:
        whole = self._status(found)
        line = next((each for each in whole.streams if each.stream == stream), None)
        span = query.get("span", "1h") if query.get("span") in SPANS else "1h"
        choice = StreamChoice(span, slowest=query.get("sort") == "slowest", epoch=_number(query.get("epoch", "")))
        if line is None:
            is_known = stream in all_streams(found.repository, Lineage.load(found.repository))
            return unreadable_stream_view(found.slug, stream, choice, whole.problems, now_ms) if is_known else None
        epochs = epochs_of(found.repository, stream, last=_SLOWEST_OF if choice.slowest else ROWS)
        epochs = msgspec.structs.replace(epochs, activity=self._activity(found, stream, SPANS[span], now_ms))
        chosen = epoch_of(found.repository, stream, choice.epoch) if choice.epoch else []
        return stream_view(found.slug, line, epochs, choice, chosen=chosen, now_ms=now_ms)

    def _activity(self, found: Place, stream: str, span_s: int, now_ms: int) -> list[ActivityPoint]:
        """Return what a stream did. The longer the span, the less it changes, and the longer the result is kept."""
        key = (found.repository.where, stream, span_s)
        with self._guard:
            known = self._activities.get(key)
        if known is not None and time.monotonic() - known[0] < span_s * _CHART_SHARE:
            return known[1]
        made = points(Activity(found.repository).periods(now_ms - span_s * 1000)[0], stream)
        with self._guard:
            self._activities[key] = (time.monotonic(), made)
            while len(self._activities) > _MOST:
                self._activities.pop(next(iter(self._activities)))
        return made

    def _error_view(self, parts: list[str], error: HoldfastError) -> View:
        slug = parts[1] if len(parts) > 1 else ""
        found = self.places.get(slug) if slug else None
        do = NextSteps(found.repository).of(error.what_next) if found else error.what_next
        body = h(
            '<h1>This cannot be shown</h1><div class="problem error"><p class="what">{}</p>'
            '<p class="next"><b>Next:</b> {}</p><p class="dim">{}</p></div>',
            error.summary,
            do,
            type(error).__name__,
        )
        return pipeline_view("Error", slug, "none", body, path=place(*parts[1:]) if slug else "/")


def _number(text: str) -> int:
    """Return the number of an epoch in an address; 0 if it is not one."""
    return int(text) if _EPOCH.fullmatch(text) else 0
