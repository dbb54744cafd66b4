"""The views of checkpoints: all of them as a strip and a table, one with its files, and the difference of two."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from holdfast import _figures as figures
from holdfast._html import Markup, h, joined, table
from holdfast.cli.verbs.show import ShownCheckpoint
from holdfast.difference import Difference
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import StreamCut
from holdfast.repository import FileList, Lineage, Status, Summary
from holdfast.repository.verdicts import LastVerify
from holdfast.web.drawing.charts import Column, spans, strip
from holdfast.web.drawing.frame import (
    View,
    age,
    badge,
    cut_off,
    empty,
    facts,
    moment,
    pipeline_view,
    place,
    scroll,
    seconds,
    section,
)

STEPS = ("barrier", "acknowledged", "linked", "held")  # in the order of a checkpoint
_WORDS = {"barrier": "barrier", "acknowledged": "acknowledge", "linked": "link", "held": "keep", "manifest": "manifest"}
_STRIP = 120
_ROWS = 200
_FILES = 500
_STREAMS = 12  # with a strip of their own
_MARKS = {Status.DAMAGED: "m-bad", "unsound": "m-bad", Status.ABORTED: "m-dim"}


def checkpoint_strip(slug: str, found: Sequence[Summary], verdicts: Mapping[str, LastVerify]) -> Markup:
    """Return the last checkpoints as columns: the size of each, with the new part below."""
    shown = [each for each in found if each.status is not Status.OPEN][-_STRIP:]
    if not shown:
        return empty("No checkpoints yet: a running pipeline takes one every minute and one when it stops.")
    columns = [
        Column(
            _parts(each),
            f"checkpoint {each.name}, {_status(each, verdicts.get(str(each.name)))}: {figures.size(each.file_bytes)}"
            + (f", {figures.size(each.new_bytes)} new" if each.new_bytes is not None else "")
            + (f", took {seconds(each.seconds)}" if each.seconds is not None else ""),
            place(slug, "checkpoints", each.name) if each.status is Status.RESTORABLE else "",
            _MARKS.get(_status(each, verdicts.get(str(each.name))), "m-save" if each.savepoint else ""),
            each.timestamp_ms,
        )
        for each in shown
    ]
    tallest = figures.size(max((each.file_bytes for each in shown), default=0))
    legend = Markup(
        '<p class="legend"><span class="key c-new">new</span><span class="key c-old">kept before</span>'
        '<span class="key m-save">savepoint</span><span class="key m-bad">damaged or unsound</span>'
        '<span class="key m-dim">aborted</span></p>'
    )
    return h("{}{}", strip(columns, "Size of checkpoints", unit=tallest), legend)


def _parts(each: Summary) -> list[tuple[str, float]]:
    new = each.new_bytes if each.new_bytes is not None else 0
    return [("c-new", float(min(new, each.file_bytes))), ("c-old", float(max(each.file_bytes - new, 0)))]


def duration_strip(slug: str, found: Sequence[Summary]) -> Markup:
    """Return the last checkpoints as columns: how long each step took."""
    taken = [each for each in found if each.status is Status.RESTORABLE]
    if not taken:
        return empty("No checkpoint is restorable.")
    shown = [each for each in taken if each.phases and each.seconds is not None][-_STRIP:]
    if not shown:
        return empty("The phases of these checkpoints are not recorded: an earlier version of Holdfast took them.")
    columns = [
        Column(
            [(f"st-{name}", size) for name, size in step_lengths(each.phases or {}, each.seconds or 0.0).items()],
            f"checkpoint {each.name}: {seconds(each.seconds)}",
            place(slug, "checkpoints", each.name),
            at_ms=each.timestamp_ms,
        )
        for each in shown
    ]
    names = joined(h('<span class="key st-{}">{}</span>', each, word) for each, word in _WORDS.items())
    tallest = seconds(max(each.seconds or 0.0 for each in shown))
    drawn = strip(columns, "Duration of checkpoints by step", unit=tallest)
    return h('{}<p class="legend">{}</p>{}', drawn, names, _acknowledged(shown))


def _acknowledged(shown: Sequence[Summary]) -> Markup:
    """Return a strip for each stream: when it had acknowledged. All have the same scale, so the slow one stands out."""
    streams = sorted({name for each in shown for name in each.acknowledged or {}})
    top = max((size for each in shown for size in (each.acknowledged or {}).values()), default=0.0)
    strips = joined(_acknowledge_strip(each, shown, top) for each in streams[:_STREAMS])
    left = len(streams) - _STREAMS
    more = f"and {figures.counted(left, 'more stream')}: each checkpoint shows all" if left > 0 else ""
    return h('<h3>Acknowledge by stream</h3>{}<p class="dim">{}</p>', strips, more)


def _acknowledge_strip(stream: str, shown: Sequence[Summary], top: float) -> Markup:
    sizes = [(each.acknowledged or {}).get(stream) for each in shown]
    columns = [
        Column(
            [("st-acknowledged", size or 0.0)],
            f"checkpoint {each.name}, stream {stream}: acknowledged after {seconds(size)}",
            at_ms=each.timestamp_ms,
        )
        for each, size in zip(shown, sizes, strict=True)
    ]
    tallest = seconds(max(size or 0.0 for size in sizes))
    return strip(columns, f"Acknowledge of stream {stream}", unit=tallest, name=stream, top=top)


def step_lengths(phases: Mapping[str, float], whole: float) -> dict[str, float]:
    """Return how long each step took, from the moments at which all streams had reached it."""
    last, found = 0.0, {}
    for step in STEPS:
        reached = max(phases.get(step, 0.0), last)
        found[step], last = reached - last, reached
    found["manifest"] = max(whole - last, 0.0)
    return found


def checkpoints_view(
    slug: str, found: Sequence[Summary], lineage: Lineage, verdicts: Mapping[str, LastVerify], now_ms: int
) -> View:
    """Return the view of all checkpoints."""
    rows = [_row(slug, each, lineage, verdicts.get(str(each.name)), now_ms) for each in reversed(found[-_ROWS:])]
    head = ("id", "name", "status", "taken", "took", "files", "new", "size", "epochs", "last verify")
    body = scroll(table(head, rows, right=("took", "files", "new", "size"))) if rows else ""
    parts = [
        Markup("<h1>Checkpoints</h1>"),
        section("Size", checkpoint_strip(slug, found, verdicts)),
        section("Duration", duration_strip(slug, found)),
        section("All", body or empty("No checkpoints yet."), cut_off(_ROWS, len(found), "holdfast ls --all")),
    ]
    return pipeline_view("Checkpoints", slug, "checkpoints", joined(parts), ("checkpoints", place(slug, "checkpoints")))


def _row(slug: str, each: Summary, lineage: Lineage, verdict: LastVerify | None, now_ms: int) -> tuple[object, ...]:
    left = each.checkpoint > 0 and not lineage.holds_checkpoint(each.timeline, each.checkpoint)
    restorable = each.status is Status.RESTORABLE
    name = str(each.checkpoint) if each.checkpoint else "?"
    epochs = ", ".join(f"{stream} {epoch}" for stream, epoch in (each.epochs or {}).items())
    return (
        h('<a href="{}">{}</a>', place(slug, "checkpoints", each.name), name) if restorable else name,
        each.savepoint or "",
        badge("abandoned" if left and restorable else _status(each, verdict)),
        h("{} ago", age(each.timestamp_ms, now_ms)) if each.timestamp_ms else "-",
        seconds(each.seconds),
        figures.number(each.file_count) if restorable else "",
        figures.size(each.new_bytes) if each.new_bytes is not None else "-",
        figures.size(each.file_bytes) if restorable else "",
        each.why or epochs,
        verdict_text(verdict, now_ms),
    )


def _status(each: Summary, verdict: LastVerify | None) -> str:
    """Return the status, or in place of restorable the verdict of a verification that found the checkpoint unsound."""
    if each.status is Status.RESTORABLE and verdict is not None and verdict.is_unsound:
        return verdict.word
    return str(each.status)


def verdict_text(verdict: LastVerify | None, now_ms: int) -> Markup:
    """Return the verdict of the last verification."""
    if verdict is None:
        return Markup('<span class="dim">never</span>')
    return h("{} {} ago", badge(verdict.word), age(verdict.at_ms, now_ms))


# --- one checkpoint ---


def checkpoint_view(
    slug: str,
    found: ShownCheckpoint,
    others: Sequence[Summary],
    verdict: LastVerify | None,
    now_ms: int,
    *,
    control: bool = False,
) -> View:
    """Return the view of one checkpoint."""
    manifest, result = found.manifest, found.result
    name = manifest.savepoint or manifest.checkpoint_id
    here = place(slug, "checkpoints", name)
    pairs: list[tuple[str, object]] = [
        ("taken", h("{}, {} ago", moment(manifest.timestamp_ms), age(manifest.timestamp_ms, now_ms))),
        ("timeline", f"{manifest.timeline}, lease {manifest.lease}"),
        ("took", seconds(manifest.times.seconds) if manifest.times else "not recorded"),
        ("last verify", _verify_note(verdict, name, now_ms)),
        ("digest", h("<code>{}</code>", result.manifest.get("digest", "none"))),
        ("parent", h("<code>{}</code>", manifest.parent or "none: the first of its chain")),
        ("file", h("<code>{}</code>", found.key)),
        ("gaps up to here", manifest.gaps.total if manifest.gaps else "not recorded"),
    ]
    title = f"Savepoint {name}" if manifest.savepoint else f"Checkpoint {name}"
    notes = [text for text, wrong in (("A rewind has abandoned this checkpoint.", result.abandoned),) if wrong]
    warnings = joined(h('<div class="problem warning"><p>{}</p></div>', each) for each in notes)
    streams = joined(_cut(name, each, cut, found.lists.get(each)) for each, cut in manifest.streams.items())
    text = json.dumps(result.manifest, indent=2, ensure_ascii=False, default=str)
    parts = [
        h("<h1>{}</h1>", title),
        warnings,
        _links(slug, name) if control else "",
        facts(pairs),
        section("Steps", _steps(manifest)),
        section("Streams", streams),
        section("Compare", _compare_form(slug, name, others)),
        h("<details><summary>Manifest</summary><pre>{}</pre></details>", text[:200_000]),
    ]
    crumbs = (("checkpoints", place(slug, "checkpoints")), (str(name), here))
    return pipeline_view(title, slug, "checkpoints", joined(parts), *crumbs, path=here)


def _links(slug: str, name: int | str) -> Markup:
    """Return the actions that begin at a checkpoint."""
    address = f"{place(slug, 'actions')}?checkpoint={quote(str(name))}&to={quote(str(name))}"
    return h('<p><a href="{0}#do-verify">Verify it</a>, <a href="{0}#do-rewind">rewind to it</a></p>', address)


def _verify_note(verdict: LastVerify | None, name: int | str, now_ms: int) -> Markup:
    if verdict is None:
        return h("never recorded; run <code>holdfast verify {} --record</code>", name)
    extra = h(": {}", verdict.text) if not verdict.ok else ""
    return h("{}, {}{}", verdict_text(verdict, now_ms), verdict.grade, extra)


def _steps(manifest: Manifest) -> Markup:
    times = manifest.times
    if times is None:
        return empty("Not recorded: an earlier version of Holdfast took this checkpoint.")
    rows: list[tuple[str, list[tuple[str, float, float, str]]]] = []
    numbers: list[tuple[str, ...]] = []
    for name, each in times.streams.items():
        last, bars = 0.0, []
        for step in STEPS:
            reached = max(getattr(each, step), last)
            bars.append((f"st-{step}", last, reached, f"{_WORDS[step]}: {seconds(reached - last)}"))
            last = reached
        rows.append((name, bars))
        numbers.append((name, *(seconds(end - start) for _, start, end, _ in bars)))
    done = max((each.held for each in times.streams.values()), default=0.0)
    rows.append(("manifest", [("st-manifest", done, times.seconds, f"manifest: {seconds(times.seconds - done)}")]))
    names = joined(h('<span class="key st-{}">{}</span>', each, word) for each, word in _WORDS.items())
    steps = tuple(_WORDS[each] for each in STEPS)
    return h(
        '{}<p class="legend">{} 0 to {}</p>{}',
        scroll(spans(rows, times.seconds)),
        names,
        seconds(times.seconds),
        scroll(table(("stream", *steps), numbers, right=steps)),
    )


def _cut(checkpoint: int | str, name: str, cut: StreamCut, files: FileList | None) -> Markup:
    pairs: list[tuple[str, object]] = [
        ("epoch", cut.epoch or "not started"),
        ("rows", figures.number(cut.rows)),
        ("output mode", cut.output_mode),
        ("state", cut.state_format or "stateless"),
        ("reads", ", ".join(cut.reads) or "-"),
        ("files", f"{figures.number(cut.file_count)}, {figures.size(cut.file_bytes)}"),
        ("sinks", ", ".join(cut.sinks) or "-"),
    ]
    for number, offset in enumerate(cut.offsets):
        source = cut.sources[number] if number < len(cut.sources) else f"source {number}"
        pairs.append((f"offset of {source}", h("<code>{}</code>", offset or "its beginning")))
    listed = ""
    if files is not None and files.files:
        rows = [
            (each.path, figures.size(each.size), h("<code>{}</code>", each.sha256[:16]))
            for each in files.files[:_FILES]
        ]
        more = len(files.files) - _FILES
        listed = h(
            "<details><summary>{}</summary>{}{}</details>",
            figures.counted(len(files.files), "file"),
            scroll(table(("path", "size", "sha256"), rows, right=("size",))),
            h("<p class=dim>and {} more: <code>holdfast show {} --files</code></p>", figures.number(more), checkpoint)
            if more > 0
            else "",
        )
    return h("<h3>{}</h3>{}{}", name, facts(pairs), listed)


def _compare_form(slug: str, name: int | str, others: Sequence[Summary]) -> Markup:
    choices = [each for each in others if each.status is Status.RESTORABLE and each.name != name][-200:]
    if not choices:
        return empty("There is no other checkpoint to compare it with.")
    before = [each for each in choices if isinstance(name, str) or each.checkpoint < name]
    chosen = (before or choices)[-1].name
    options = joined(h('<option value="{}">', each.name) for each in reversed(choices))
    return h(
        '<form action="{}"><label>with checkpoint or savepoint <input name="a" value="{}" required maxlength="200" '
        'autocomplete="off" list="others"></label><datalist id="others">{}</datalist>'
        '<input type="hidden" name="b" value="{}"> <button>Compare</button></form>',
        place(slug, "diff"),
        chosen,
        options,
        name,
    )


def diff_view(slug: str, found: Difference) -> View:
    """Return the difference of two checkpoints."""
    parts = [h("<h1>{}</h1>", f"Checkpoint {found.a} to {found.b}")]
    parts.append(h("<ul>{}</ul>", joined(h("<li>{}</li>", each) for each in found.head())))
    for name, stream in found.streams.items():
        changes = list(stream.lines())
        rows = [(what, text) for what, text in changes]
        body = scroll(table(("what", "change"), rows)) if rows else empty("Nothing has changed.")
        parts.append(section(f"Stream {name}", body))
    crumbs = (("checkpoints", place(slug, "checkpoints")), ("diff", place(slug, "checkpoints")))
    path = f"{place(slug, 'diff')}?a={found.a}&b={found.b}"
    return pipeline_view("Difference", slug, "checkpoints", joined(parts), *crumbs, path=path)
