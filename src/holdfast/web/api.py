"""`/api/…`: the documents that the commands print with `--json`, made by the same functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.cli.answers import Answer, envelope_of
from holdfast.cli.results import Envelope
from holdfast.cli.verbs.diff import diff
from holdfast.cli.verbs.doubt import doubt
from holdfast.cli.verbs.epochs import epochs
from holdfast.cli.verbs.gaps import gaps
from holdfast.cli.verbs.log import log
from holdfast.cli.verbs.ls import ls
from holdfast.cli.verbs.runs import runs
from holdfast.cli.verbs.show import show
from holdfast.cli.verbs.status import status
from holdfast.errors import BadValue
from holdfast.web.reading.status_lines import PipelineLine, StatusFound

_MOST = 10_000


def document_of(where: str, parts: Sequence[str], query: Mapping[str, str]) -> Envelope | None:
    """Return the document of one pipeline at an address below it, or `None` if there is no such address."""

    def last() -> int | None:
        return _count(query["last"]) if "last" in query else None

    found: dict[str, Callable[[], Answer]] = {
        "status": lambda: status(repo=where),
        "ls": lambda: ls(repo=where, last=last(), every=query.get("all") == "1"),
        "log": lambda: log(repo=where, last=last()),
        "gaps": lambda: gaps(repo=where, since=query.get("since")),
        "doubt": lambda: doubt(repo=where),
        "runs": lambda: runs(repo=where, last=last()),
        "diff": lambda: diff(a=query.get("a"), b=query.get("b"), repo=where),
    }
    match list(parts):
        case [verb] if verb in found:
            return envelope_of(verb, found[verb])
        case ["show"]:
            return envelope_of("show", lambda: show(repo=where, files=query.get("files") == "1"))
        case ["show", name]:
            return envelope_of("show", lambda: show(checkpoint=name, repo=where, files=query.get("files") == "1"))
        case ["epochs", stream]:
            since, slowest = query.get("since"), query.get("slowest") == "1"
            return envelope_of("epochs", lambda: epochs(stream, repo=where, last=last(), since=since, slowest=slowest))
    return None


def all_status(lines: list[PipelineLine]) -> Answer:
    """Return the status of several pipelines, as `holdfast status` does."""
    bad = any(problem.severity == "error" for each in lines for problem in each.problems)
    return Answer(StatusFound(lines), lambda _: None, found=bad, repository=None)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) <= _MOST):
        raise BadValue(what="last", value=text, expected=f"a number from 1 to {_MOST}")
    return int(text)
