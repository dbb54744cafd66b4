"""The views of actions: their forms, the plan of one, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast._html import Markup, h, joined, table
from holdfast.repository import Status, Summary
from holdfast.web.acting.actions import FormField, PageAction
from holdfast.web.acting.jobs import ActionJob
from holdfast.web.acting.plans import ActionPlan
from holdfast.web.drawing.frame import View, age, badge, pipeline_view, place, scroll, section, state_text
from holdfast.web.reading.status_lines import PipelineLine

_TOKEN = Markup(
    '<label class="token">Token<input type="password" name="token" required autocomplete="off" spellcheck="false">'
    '<span class="hint">printed by holdfast serve</span></label>'
)
_SHOWN = 20


def actions_view(
    slug: str,
    line: PipelineLine,
    actions: Sequence[PageAction],
    checkpoints: Sequence[Summary],
    *,
    jobs: Sequence[ActionJob],
    given: Mapping[str, str],
    now_ms: int,
) -> View:
    """Return the forms of all actions. `given` fills in fields."""
    names = [str(each.name) for each in reversed(checkpoints) if each.status is Status.RESTORABLE]
    forms = joined(_form(slug, each, names, given) for each in actions)
    done = [
        (
            h('<a href="{}">{}</a>', place(slug, "actions", each.id), each.title),
            badge(_state(each)),
            h("{} ago", age(each.began_ms, now_ms)),
            (each.end.error.message if each.end and each.end.error else each.progress) or "",
        )
        for each in jobs[:_SHOWN]
    ]
    parts = [
        h("<h1>Actions</h1><p>{}</p>", state_text(line, now_ms)),
        section("Since this server was started", scroll(table(("action", "state", "begun", ""), done))) if done else "",
        h('<p class="dim">Each action shows its plan first. Nothing is done before you confirm it.</p>'),
        h('<div class="actions">{}</div>', forms),
    ]
    return _view("Actions", slug, joined(parts))


def _form(slug: str, action: PageAction, checkpoints: Sequence[str], given: Mapping[str, str]) -> Markup:
    fields = joined(_input(each, given.get(each.name, ""), checkpoints, action.name) for each in action.fields)
    return h(
        '<form class="action" method="post" action="{}" id="{}"><h2>{}</h2><p class="dim">{}</p>{}{}'
        "<button>Show the plan</button></form>",
        place(slug, "actions", action.name),
        f"do-{action.name}",
        action.title,
        action.about,
        fields,
        _TOKEN,
    )


def _input(field: FormField, value: str, checkpoints: Sequence[str], action: str) -> Markup:
    hint = h('<span class="hint">{}</span>', field.hint) if field.hint else ""
    if field.kind == "tick":
        ticked = Markup(" checked") if value else ""
        return h(
            '<label class="tick"><input type="checkbox" name="{}" value="1"{}> {}</label>',
            field.name,
            ticked,
            field.label,
        )
    more = Markup(" required") if field.required else Markup("")
    known = Markup("")
    if field.kind == "checkpoint":
        listed = f"checkpoints-{action}"
        more = h('{} list="{}"', more, listed)
        known = h(
            '<datalist id="{}">{}</datalist>',
            listed,
            joined(h('<option value="{}">', each) for each in checkpoints[:200]),
        )
    return h(
        '<label>{}<input name="{}" value="{}" maxlength="{}" autocomplete="off"{}>{}{}</label>',
        field.label,
        field.name,
        value,
        field.longest,
        more,
        hint,
        known,
    )


def plan_view(slug: str, action: str, title: str, plan: ActionPlan, *, confirm: str, ticket: str, note: str) -> View:
    """Return a plan, with the form that carries it out unless it is refused. `confirm`: what must be typed."""
    parts = [h("<h1>{}: {}</h1>", title, slug)]
    if note:
        parts.append(h('<div class="problem warning" role="alert"><p class="what">{}</p></div>', note))
    if plan.text:
        parts.append(section("Plan", h("<pre>{}</pre>", plan.text)))
    if plan.refused:
        parts.append(
            h(
                '<div class="problem warning" role="alert"><p class="what">This plan cannot be carried out from here.'
                "</p><p>{}</p></div>",
                plan.refused,
            )
        )
    else:
        name = (
            h('<label>Type <b>{}</b> to confirm<input name="name" required autocomplete="off"></label>', confirm)
            if confirm
            else ""
        )
        parts.append(
            h(
                '<form class="action" method="post" action="{}"><input type="hidden" name="ticket" value="{}">{}{}'
                '<p class="buttons"><button class="do">{}</button> <a href="{}">Do nothing</a></p></form>',
                place(slug, "actions", action, "apply"),
                ticket,
                name,
                _TOKEN,
                f"Carry out: {title}",
                place(slug, "actions"),
            )
        )
    parts.append(section("The same in a shell", h("<pre>{}</pre>", plan.command)))
    return _view(title, slug, joined(parts), (title, place(slug, "actions")))


def refused_view(slug: str, what: str, do: str = "", kind: str = "") -> View:
    """Return why nothing was done."""
    next_step = h('<p class="next"><b>Next:</b> {}</p>', do) if do else ""
    body = h(
        '<h1>Nothing was done</h1><div class="problem error" role="alert"><p class="what">{}</p>{}<p class="dim">{}</p>'
        '</div><p><a href="{}">Back to the actions</a></p>',
        what,
        next_step,
        kind,
        place(slug, "actions"),
    )
    return _view("Nothing was done", slug, body)


def job_view(slug: str, job: ActionJob, next_step: Callable[[str], str], now_ms: int) -> View:
    """Return the progress or the end of an action. `next_step` puts the program into a next step."""
    parts = [h("<h1>{}: {}</h1><p>{} begun {} ago</p>", job.title, slug, badge(_state(job)), age(job.began_ms, now_ms))]
    end = job.end
    if end is None:
        parts.append(section("Progress", h('<p role="status">{}</p>', job.progress)))
    elif end.error is not None:
        do = next_step(end.error.next)
        step = h('<p class="next"><b>Next:</b> {}</p>', do) if do else ""
        parts.append(
            h(
                '<div class="problem error" role="alert"><p class="what">{}</p>{}<p class="dim">{}</p></div>',
                end.error.message,
                step,
                end.error.kind,
            )
        )
    else:
        parts.append(section("Result", h("<pre>{}</pre>", end.text)))
    parts.append(section("The same in a shell", h("<pre>{}</pre>", job.command)))
    parts.append(h('<p><a href="{}">Back to the actions</a></p>', place(slug, "actions")))
    here = place(slug, "actions", job.id)
    return pipeline_view(job.title, slug, "actions", joined(parts), ("actions", place(slug, "actions")), path=here)


def _state(job: ActionJob) -> str:
    if job.end is None:
        return "running"
    return "failed" if job.end.error or job.end.found else "done"


def _view(title: str, slug: str, body: Markup, *more: tuple[str, str]) -> View:
    """Return a view with forms: it is not replaced while the reader fills them in."""
    crumbs = [(slug, place(slug)), ("actions", place(slug, "actions")), *more]
    return View(title, place(slug, "actions"), body, crumbs, slug=slug, current="actions", live=False)
