"""`cli.md`: every verb of the command, from its help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from holdfast.cli import app
from holdfast.cli.answers import DEBUG, Exit
from holdfast.spark.class_archive import VARIABLE
from tools.reference.shapes import shapes
from tools.reference.source import code, fields, prose, table

_HEAD = """# The command

{about}

Every subcommand has the options `--help` and `--json`, which prints [one JSON document](json.md).
`holdfast --install-completion` installs shell completion of subcommands, options and checkpoint names.

{verbs}

## Exit codes

{exits}

An error is printed as two lines: what is wrong, and what to do next. With `--json`, it is a document too.
[Errors](errors.md) lists the exit code of each error.

## Environment variables

{variables}"""


def verbs() -> Iterator[tuple[str, Any]]:
    """Yield every verb with its name, including those of groups."""
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
            ("subcommand", "what it does"),
            [(f"[`{name}`](#{slug(name)})", each.help.split("\n")[0]) for name, each in found.items()],
        ),
        exits=table(("code", "meaning"), [(str(Exit[each.name].value), each.meaning) for each in fields(Exit)]),
        variables=table(
            ("variable", "meaning"),
            [(code(name), f"the default of `{each.opts[0]}`") for name, each in variables.items()]
            + [
                (code(DEBUG), "if set, the command prints the traceback of an unexpected error"),
                (code(VARIABLE), "where [archives of Spark's classes](../howto.md#start-faster) are kept, or `off`"),
            ],
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
    text, examples = _split_help(command.help)
    found = re.search(r"with 1 (if [^.;(]+[^.;( ])", text.replace("\n", " "))
    reads = any("--repo" in each.opts for each in options)
    reason = found[1] if found else "if a record or file that it reads is damaged" if reads else ""
    parts = [f"## holdfast {name}", text, f"```text\n{usage}\n```"]
    if arguments:
        given = zip(places, arguments, strict=True)
        meanings = dict.fromkeys((code(place), _cell(each.help)) for (place, _), each in given)
        parts.append(table(("argument", "meaning"), list(meanings)))
    rows = [(_names(each, context), _default(each), code(each.envvar or ""), _cell(each.help)) for each in options]
    parts += [table(("option", "default", "variable", "meaning"), rows), examples]
    document = f" `--json` prints [this document](json.md#{slug(name)})." if name in shapes() else ""
    parts.append(f"[Exit code](#exit-codes): {f'1 {reason}' if reason else '0 or 2'}.{document}")
    return "\n\n".join(parts)


def _split_help(text: str) -> tuple[str, str]:
    """Return the text of a help, and its examples as a shell block. Remarks after an example become comments."""
    words, _, rest = text.partition("[bold]Example")
    shown = rest.partition("[/]")[2].splitlines()
    words += "\n".join(line for line in shown if not line.startswith("    "))
    lines = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in shown if line.startswith("    ")]
    width = max((len(line[0]) for line in lines if len(line) > 1), default=0)
    block = "\n".join(f"{line[0]:{width}}  # {line[1]}" if len(line) > 1 else line[0] for line in lines)
    marked = re.sub(r"\[bold\](.*?)\[/\]", r"**\1**", prose(words).strip())
    return re.sub(r"\n{3,}", "\n\n", marked), f"```sh\n{block}\n```" if block else ""


def _names(option: Any, context: Any) -> str:
    shown = re.search(r"--[\w-]+ (.+)$", option.get_help_record(context)[0])  # with the metavar
    metavar = "" if shown is None or option.secondary_opts else " N" if "int" in shown[1].lower() else f" {shown[1]}"
    return ", ".join(code(f"{each}{metavar}") for each in option.opts + option.secondary_opts)


def _default(option: Any) -> str:
    default = getattr(option.default, "value", option.default)  # if it is an enum
    return "" if default is None or default is False else code(str(default))


def _cell(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("<", "&lt;")
