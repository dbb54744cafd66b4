"""The report of the results: a table in the terminal, and the page of the docs with its plots.

`python -m bench.report` generates the pages and their plots from their JSON: docs/benchmarks.md and
docs/benchmarks-peers.md. With `--check`, it only reports which files are out of date. A page depends on nothing but its
JSON and the texts in `pages` and `questions`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.compare import ENOUGH, Result
from bench.curves import Curve, Fact, curves, facts, sizes
from bench.document import Document
from bench.formatting import floor_of, goal_of, ratio_of, shown, sized, title_of, total, verdict_of
from bench.pages import FOLDER, MAIN, PAGES, Page
from bench.plot import charts, plot
from bench.questions import PROSE, QUESTIONS

WIDTH, NARROW = 120, 110
_FIGURE = len("1,234,567 rows/s")


# --- in a terminal ---------------------------------------------------------------------------------------------------


def table(results: Sequence[Result], width: int = WIDTH) -> str:
    """Return the output of `show` as plain text."""
    text = io.StringIO()
    show(results, {}, Console(file=text, width=width, color_system=None))
    return text.getvalue()


def show(results: Sequence[Result], failed: dict[str, str], console: Console) -> None:
    """Print a table for each question, all with the same columns, and the total."""
    row = _row if console.width >= NARROW else _narrow_row
    if results:
        console.print(row([Text(word, "dim") for word in ("what", "against", "ours", "theirs", "ratio", "goal", "")]))
    for question, title in QUESTIONS.items():
        found = [each for each in results if each.question == question]
        if not found:
            continue
        console.print(Text(f"\n{title}", "bold"))
        for each in found:
            console.print(row(_cells(each)))
            if each.of_floor:
                console.print(row(_cells(each.of_floor)))
            details = " · ".join(f"{name}: {shown(value, unit)}" for name, unit, value in _details(each))
            if details:
                console.print(Padding(Text(details, "dim"), (0, 2, 0, 4)))
    console.print()
    for module, why in failed.items():
        console.print(Text(f"{module} could not run: {why}", "red"))
    console.print(Text(total(results), "bold"))


def _cells(result: Result) -> list[Text]:
    ours, theirs = (shown(result.figure(side), result.unit) for side in (result.ours, result.theirs))
    verdict = Text(verdict_of(result), {True: "green", False: "bold red", None: ""}[result.met])
    return [*map(Text, (result.name, result.against, ours, theirs, ratio_of(result), goal_of(result))), verdict]


def _row(cells: Sequence[Text]) -> Table:
    """Return one row as a separate table, so that its details can be printed below it."""
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(width=1)
    row.add_column(ratio=7, overflow="fold")
    row.add_column(ratio=6, overflow="fold")
    return _with_figures(row, ["", *cells])


def _narrow_row(cells: Sequence[Text]) -> Table:
    """Return the same for a narrow screen: the other side is named below the result."""
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1, overflow="fold")
    what, against, *figures = cells
    return _with_figures(row, [Group(what, Padding(Text(against.plain, "dim"), (0, 0, 0, 2))), *figures])


def _with_figures(row: Table, cells: Sequence[RenderableType]) -> Table:
    for width in (_FIGURE, _FIGURE, 7, 7):
        row.add_column(width=width, justify="right", no_wrap=True)
    row.add_column(width=6, no_wrap=True)
    row.add_row(*cells)
    return row


def _details(result: Result) -> list[tuple[str, str, float]]:
    """Return the further measurements: name, unit, value."""
    on_curves = [
        (" ".join(filter(None, (sized(size), curve.by))) + f"{', ' if curve.label else ''}{curve.label}", curve, value)
        for curve in curves(result)
        for size, value in curve.points.items()
    ]
    alone = [(each.name, each.unit, each.value) for each in facts(result)]
    return [(name, curve.unit, value) for name, curve, value in on_curves] + alone


# --- the page --------------------------------------------------------------------------------------------------------

_FLOOR, PLAIN = "floor:", "plain Spark"
_OURSELVES = ("decision", "growth", "path")  # questions that compare with a floor, or with Holdfast at another size
_SETTINGS = """\
Much of the speed comes from the settings of an embedded session, which any other session can use too. The following
table compares Holdfast with other sides that have these settings too, and with plain Spark's defaults. With the same
settings, the difference is the cost of exactly-once.
"""
_PARTS = """\
Modules of another commit were measured in another run, on a machine of the same kind. Only their ratios can be
compared with those of the others.
"""


def page(document: Document, about: Page = MAIN) -> str:
    """Return the text of a page."""
    described: set[str] = set()  # modules whose method is already on the page
    results = document.results
    names = {"json": about.json, "plot": about.plot}
    parts = [
        about.opening.format(**names, total=total(results), price=_price(results), enough=ENOUGH),
        _machine(document),
        *(_section(document, about, question, title, described) for question, title in QUESTIONS.items()),
        _growth(results, about) if about.grows else "",
        _not_in_our_favour(document, about),
    ]
    return "\n".join(part for part in parts if part)


def _price(results: Sequence[Result]) -> str:
    """Return the table of results in which both sides have the same settings."""
    rows = []
    for name, question in dict.fromkeys((each.name, each.question) for each in results if each.alike):
        here = [each for each in results if (each.name, each.question) == (name, question)]
        first = "".join(ratio_of(each) for each in here if each.against == PLAIN)
        better = "less" if here[0].less_is_better else "more"
        rows += [
            [QUESTIONS[question], name, each.against, ratio_of(each), first, better] for each in here if each.alike
        ]
    if not rows:
        return ""
    head = ["", "what", "against", "with the same settings", "plain Spark with its defaults", "better is"]
    return f"\n{_SETTINGS}\n{_grid(head, rows, words=3)}"


def _machine(document: Document) -> str:
    rows = [*document.machine.items(), *document.versions.items(), ("date", document.date)]
    rows.append(("took", f"{document.seconds / 60:.1f} minutes{', quick: few rounds, small sizes' * document.quick}"))
    return (
        "## Measured on\n\n" + _grid(["", ""], rows) + ("\n" + _PARTS) * (";" in document.versions.get("Holdfast", ""))
    )


def _section(document: Document, about: Page, question: str, title: str, described: set[str]) -> str:
    found = document.of(question)
    if not found:
        return ""
    results = [each for measured in found for each in measured.results]
    methods = [
        f"*`{about.file_of(each.module)}`*: {'see above.' if each.module in described else each.method}\n"
        for each in found
    ]
    described.update(each.module for each in found)
    also = [f"Also measured, {each.name}:\n\n{_facts(facts(each))}" for each in results if facts(each)]
    return "\n".join([f"## {title}\n", f"{PROSE[question]}\n", *methods, _figures(results), *also])


def _facts(found: Sequence[Fact]) -> str:
    """Return further figures: a table if all names have two parts, "what, where"; otherwise a list."""
    if not all(", " in each.name for each in found):
        return "".join(f"- {each.name}: {shown(each.value, each.unit)}\n" for each in found)
    cells = {tuple(each.name.split(", ", 1)): shown(each.value, each.unit) for each in found}
    columns = list(dict.fromkeys(column for _, column in cells))
    rows = [
        [row, *(cells.get((row, column), "") for column in columns)] for row in dict.fromkeys(row for row, _ in cells)
    ]
    return _grid(["", *columns], rows, words=1)


def _figures(results: Sequence[Result]) -> str:
    """Return the table of a question. It has columns for p99 if one of its results has a p99.

    A floor has a row after the result that it belongs to.
    """
    results = [row for each in results for row in (each, each.of_floor) if row]
    tails = [[each.p99(side) for side in (each.ours, each.theirs)] for each in results]
    with_tails = any(tail is not None for pair in tails for tail in pair)
    head = [
        "what",
        "against",
        "ours",
        "theirs",
        *(["p99, ours", "p99, theirs"] * with_tails),
        "ratio",
        "goal",
        "verdict",
        "samples",
        "spread",
    ]
    rows = []
    for each, pair in zip(results, tails, strict=True):
        sides = [shown(each.figure(side), each.unit) + ", best" * each.best for side in (each.ours, each.theirs)]
        p99 = ["" if tail is None else shown(tail, each.unit) for tail in pair] * with_tails
        verdict = "; ".join(filter(None, (f"**{verdict_of(each)}**" * (each.met is False), floor_of(each))))
        verdict = verdict or verdict_of(each)
        samples = " : ".join(str(len(side)) for side in (each.ours, each.theirs))
        spreads = [each.spread(side) for side in (each.ours, each.theirs)]
        spread = "" if None in spreads else " : ".join(f"{one:.0%}" for one in spreads if one is not None)
        rows.append([each.name, each.against, *sides, *p99, ratio_of(each), goal_of(each), verdict, samples, spread])
    return _grid(head, rows, words=2)


def _growth(results: Sequence[Result], about: Page) -> str:
    parts = [f"### {_capital(title_of(each))}\n\n{_curves(found)}" for each in results if (found := curves(each))]
    picture = f"![The curves, on logarithmic scales]({about.charts})\n"
    return "\n".join(["## How it grows\n", picture, *parts]) if parts else ""


def _curves(found: Sequence[Curve]) -> str:
    """Return a table by size, with one column per curve."""
    parts = []
    for by in dict.fromkeys(curve.by for curve in found):
        here = [curve for curve in found if curve.by == by]
        rows = [
            [sized(size), *(shown(curve.points[size], curve.unit) if size in curve.points else "" for curve in here)]
            for size in sizes(here)
        ]
        names = [curve.label or {"s": "time", "rows/s": "rate"}.get(curve.unit, curve.unit) for curve in here]
        parts.append(_grid([by or "size", *names], rows, words=0))
    return "\n".join(parts)


def _not_in_our_favour(document: Document, about: Page) -> str:
    slower = [each for each in document.results if each.behind and each.met is not False]
    behind = [each for each in slower if ratio_of(each) != "1.00x"]
    with_floor = [each for each in behind if each.against.startswith(_FLOOR) or each.question in _OURSELVES]
    groups = {
        "Goals that were missed": [each for each in document.results if each.met is False],
        "Slower than others with the same settings": [each for each in behind if each.alike],
        "Slower than others": [each for each in behind if not each.alike and each not in with_floor],
        "Slower than a floor, or growing with size": with_floor,
    }
    parts = []
    for title, found in groups.items():
        lines = [f"- {_sentence(each)}{_goal_sentence(each)}." for each in found]
        parts += [f"**{title}**\n", *lines, ""] if lines else []
    lines = [f"- `{module}` could not run: {why}." for module, why in document.failed.items()]
    if document.left_out:
        lines.append(f"- Left out of this run: {', '.join(f'`{module}`' for module in document.left_out)}.")
    return "\n".join(["## What is not in our favour\n", about.not_in_our_favour, "", *parts, *lines]).rstrip() + "\n"


def _sentence(result: Result) -> str:
    ours, theirs = (shown(result.figure(side), result.unit) for side in (result.ours, result.theirs))
    title = QUESTIONS[result.question]
    return f"{title}: {result.name}, {ours} against {theirs}, {ratio_of(result)} ({result.against})"


def _goal_sentence(result: Result) -> str:
    goal = f"; the goal was {goal_of(result)}" if result.goal else ""
    floor = f", the {floor_of(result)}: {result.floor.name}" if result.floor and floor_of(result) else ""
    return goal + floor


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 2) -> str:
    """Return a Markdown table. The first columns are text, the others are figures."""
    lines = [head, ["---" if at < words or not any(head) else "--:" for at in range(len(head))], *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


# --- writing and checking --------------------------------------------------------------------------------------------


def drawn(document: Document, about: Page = MAIN) -> dict[str, str]:
    """Return the files that are generated from a run, by name."""
    pictures = {about.plot: plot(document), **({about.charts: charts(document)} if about.grows else {})}
    return {about.page: page(document, about), **pictures}


def main() -> int:
    """Write or check the files of all pages."""
    stale = []
    for about in PAGES:
        source = FOLDER / about.json
        if not source.is_file():
            sys.stderr.write(f"docs/{about.json} does not exist. Next: make {about.target}\n")
            return 1
        files = drawn(Document.from_json(source.read_text()), about)
        stale += [name for name, text in files.items() if not _is_written(FOLDER / name, text)]
        if "--check" not in sys.argv:
            for name, text in files.items():
                (FOLDER / name).write_text(text)
    if stale and "--check" in sys.argv:
        sys.stderr.write(f"out of date: {', '.join(stale)}. Next: make docs\n")
        return 1
    return 0


def _is_written(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
