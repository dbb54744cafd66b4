"""The two steps of an action as requests: show the plan, carry it out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.errors import HoldfastError
from holdfast.repository import Identity
from holdfast.web.acting.access import FormRefused, read_form
from holdfast.web.acting.actions import PageAction
from holdfast.web.acting.control import PageControl
from holdfast.web.acting.jobs import MOST_RUNNING
from holdfast.web.acting.plans import failed_end
from holdfast.web.acting.tickets import PlannedAction
from holdfast.web.drawing.actions import plan_view, refused_view
from holdfast.web.drawing.frame import View, document, place
from holdfast.web.places import Place, Places
from holdfast.web.reading.problems import NextSteps

MOST_FORMS = 16  # that are read or planned at the same time
_USED = "This form was used already, or it is older than ten minutes. Look at the plan again."


class ActionRoutes:
    """Answers the POST requests of one server."""

    def __init__(self, control: PageControl, places: Places) -> None:
        self._control = control
        self._places = places
        self._open = 0

    def routes(self) -> list[Route]:
        """Return the addresses: `/p/<slug>/actions/<action>` shows the plan, `…/apply` carries it out."""
        return [
            Route("/p/{slug}/actions/{action}", self._limited(self.plan), methods=["POST"]),
            Route("/p/{slug}/actions/{action}/apply", self._limited(self.apply), methods=["POST"]),
        ]

    def _limited(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def limited(request: Request) -> Response:
            if self._open >= MOST_FORMS:
                return PlainTextResponse("Too many requests at the same time.\n", 503, {"retry-after": "5"})
            self._open += 1
            try:
                return await answer(request)
            except FormRefused as refused:
                return _page(refused_view(request.path_params["slug"], refused.text), refused.status)
            finally:
                self._open -= 1

        return limited

    async def plan(self, request: Request) -> Response:
        """Show the plan of an action, with a ticket to carry it out."""
        form = await self._form(request)
        found, action = self._target(request)
        return await anyio.to_thread.run_sync(lambda: self._planned(found, action, form))

    def _planned(self, found: Place, action: PageAction, form: dict[str, str]) -> Response:
        try:
            values = action.given(form)
            confirm = Identity.load(found.repository).pipeline if action.typed else ""
            plan = action.plan(found, values)
            planned = PlannedAction(found.slug, found.repository.where, action.name, values, plan, confirm)
        except HoldfastError as error:
            failure = failed_end(action.name, error).error
            assert failure is not None  # noqa: S101 - it ended with an error
            do = NextSteps(found.repository).of(failure.next)
            return _page(refused_view(found.slug, failure.message, do, failure.kind), 409)
        return self._shown(planned, action)

    def _shown(self, planned: PlannedAction, action: PageAction, note: str = "", status: int = 200) -> Response:
        ticket = "" if planned.plan.refused else self._control.tickets.issue(planned)
        view = plan_view(
            planned.slug, action.name, action.title, planned.plan, confirm=planned.confirm, ticket=ticket, note=note
        )
        return _page(view, status)

    async def apply(self, request: Request) -> Response:
        """Carry out a plan in the background, and lead to the view of its progress."""
        form = await self._form(request)
        found, action = self._target(request)
        planned = self._control.tickets.take(form.get("ticket", ""))
        if planned is None:
            raise FormRefused(409, _USED)
        if (planned.slug, planned.where, planned.action) != (found.slug, found.repository.where, action.name):
            raise FormRefused(409, "The ticket belongs to another plan. Look at the plan again.")
        if planned.confirm and form.get("name", "") != planned.confirm:
            note = f"Type the name of the pipeline to confirm: {planned.confirm}"
            return self._shown(planned, action, note, 400)
        job = self._control.jobs.start(
            found.slug,
            action.name,
            action.title,
            planned.plan.command,
            lambda job, report: action.carry_out(found, planned.values, planned.plan, job, report),
        )
        if job is None:
            raise FormRefused(503, f"{MOST_RUNNING} actions are under way. Wait until one of them has ended.")
        return RedirectResponse(place(found.slug, "actions", job), 303, {"cache-control": "no-store"})

    async def _form(self, request: Request) -> dict[str, str]:
        """Read the form and check its token. Nothing about the pipelines is revealed before that."""
        form = await read_form(request)
        self._control.token.require(form.get("token", ""))
        return form

    def _target(self, request: Request) -> tuple[Place, PageAction]:
        found = self._places.get(request.path_params["slug"])
        action = self._control.actions.get(request.path_params["action"])
        if found is None or action is None:
            raise FormRefused(404, "There is no such action.")
        return found, action


def _page(view: View, status: int) -> Response:
    text = document(view, live=False, control=True)
    headers = {"cache-control": "no-store"}
    return Response(text.encode("utf-8", "replace"), status, headers, "text/html; charset=utf-8")
