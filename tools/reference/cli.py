"""`cli.md`: every verb of the command, as the command itself knows it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from holdfast.cli import app
from holdfast.cli.answers import DEBUG, Exit
from tools.reference.shapes import shapes
from tools.reference.source import code, fields, prose, table

_HEAD = """# The command

{about}

Every verb has `--help`, and `--json`, which prints [one document](json.md) for machines.
`holdfast --install-completion` teaches your shell to complete verbs, options, and the names of checkpoints.

{verbs}

## Exit codes

{exits}

An error is one line of what is wrong, and one of what to do next; with `--json` it is a document too. Which error ends
with which code stands with [the errors](errors.md).

## Variables

{variables}"""


def verbs() -> Iterator[tuple[str, Any]]:
    """Return every verb by its name, those of groups too."""
    for name in app.VERBS:
        command = app.command_of(name)
        for inner, each in getattr(command, "commands", {"": command}).items():
            yield f"{name} {inner}".strip(), each


def pages() -> dict[str, str]:
    """Return the page."""
    found = dict(verbs())
    variables = {each.envvar: each for command in found.values() for each in command.params if each.envvar}
    head = _HEAD.format(
        about=prose(app.HELP.split("[bold]")[0]).strip(),
        verbs=table(
            ("verb", "what it does"),
            [(f"[`{name}`](#{slug(name)})", each.help.split("\n")[0]) for name, each in found.items()],
        ),
        exits=table(("code", "meaning"), [(str(Exit[each.name].value), each.meaning) for each in fields(Exit)]),
        variables=table(
            ("variable", "what it gives"),
            [(code(name), f"`{each.opts[0]}`, where that is not given") for name, each in variables.items()]
            + [(code(DEBUG), "the traceback of an error that is a defect, where it is set")],
        ),
    )
    return {"cli.md": "\n\n".join([head, *(_section(name, each) for name, each in found.items())])}


def slug(name: str) -> str:
    """Return the anchor of a verb."""
    return "holdfast-" + name.replace(" ", "-")


def _section(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=name)
    arguments = [each for each in command.params if isinstance(each, typer.core.TyperArgument)]
    places = [(each.metavar or each.name.upper(), each.required) for each in arguments]
    usage = " ".join(["holdfast", name, *(place if must else f"[{place}]" for place, must in places), "[OPTIONS]"])
    options = [each for each in command.params if each not in arguments and not each.hidden]
    words, examples = _parted(command.help)
    found = re.search(r"with 1 ((?:where|when|if) [^.;(]+[^.;( ])", words.replace("\n", " "))
    looks = any("--repo" in each.opts for each in options)
    reason = found[1] if found else "where a record or file that it reads is damaged" if looks else ""
    parts = [f"## holdfast {name}", words, f"```text\n{usage}\n```"]
    if arguments:
        given = zip(places, arguments, strict=True)
        told = dict.fromkeys((code(place), _cell(each.help)) for (place, _), each in given)
        parts.append(table(("argument", "meaning"), list(told)))
    rows = [(_names(each, context), _default(each), code(each.envvar or ""), _cell(each.help)) for each in options]
    parts += [table(("option", "default", "variable", "meaning"), rows), examples]
    document = f" `--json` prints [this](json.md#{slug(name)})." if name in shapes() else ""
    parts.append(f"Ends with [exit code](#exit-codes) {f'1 {reason}' if reason else '0, or 2'}.{document}")
    return "\n\n".join(parts)


def _parted(text: str) -> tuple[str, str]:
    """Return what a help says, and its examples as a block that can be copied; what is behind them is a comment."""
    words, _, rest = text.partition("[bold]Example")
    shown = rest.partition("[/]")[2].splitlines()
    words += "\n".join(line for line in shown if not line.startswith("    "))
    lines = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in shown if line.startswith("    ")]
    width = max((len(line[0]) for line in lines if len(line) > 1), default=0)
    block = "\n".join(f"{line[0]:{width}}  # {line[1]}" if len(line) > 1 else line[0] for line in lines)
    marked = re.sub(r"\[bold\](.*?)\[/\]", r"**\1**", prose(words).strip())
    return re.sub(r"\n{3,}", "\n\n", marked), f"```sh\n{block}\n```" if block else ""


def _names(option: Any, context: Any) -> str:
    shown = re.search(r"--[\w-]+ (.+)$", option.get_help_record(context)[0])  # with what the option takes
    metavar = "" if shown is None or option.secondary_opts else " N" if "int" in shown[1].lower() else f" {shown[1]}"
    return ", ".join(code(f"{each}{metavar}") for each in option.opts + option.secondary_opts)


def _default(option: Any) -> str:
    default = getattr(option.default, "value", option.default)  # of an enum
    return "" if default is None or default is False else code(str(default))


def _cell(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("<", "&lt;")
