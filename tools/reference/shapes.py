"""`json.md` and `schema.json`: the documents of `--json`, from their types."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import typing
from typing import Any

import msgspec

from holdfast.cli.app import VERBS, verb_module
from holdfast.cli.results import FORMAT, LINES, Envelope
from tools.reference.source import code, fields, prose, table

_HEAD = """# What `--json` prints

With `--json`, a subcommand always prints one document to stdout: the [envelope](#envelope), which contains either the
`result` of the subcommand or the `error`. [schema.json](schema.json) describes the same as a JSON Schema. Fields may be
added at any time. Removing a field or changing its meaning requires a new `format`; the current one is {format}. Times
that end in `_ms` are milliseconds since 1970, UTC. `run` is different: it prints
[one document per line](#holdfast-run-line-by-line), and the last line is the envelope.

```sh
holdfast ls --json | jq '.result.pipelines[].checkpoints[-1]'
```"""


def shapes() -> dict[str, type]:
    """Return the shape of each verb's result."""
    found: dict[str, type] = {}
    for verb in VERBS:
        found |= verb_module(verb).SHAPES
    return found


def lines() -> dict[str, type]:
    """Return the shape of the lines before the last one, for verbs that print one document per line."""
    found: dict[str, type] = {}
    for verb in LINES:
        found |= verb_module(verb).STEPS
    return found


def schema() -> dict[str, Any]:
    """Return the JSON Schema of every document, with the comments of the source as descriptions."""
    verbs = shapes()
    kinds = [Envelope, *verbs.values(), *lines().values()]
    refs, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    written = {each.__name__: each for kind in kinds for each in _reached(kind)}
    for part in parts.values():
        for field in fields(written[part["title"].split("[")[0]]):
            if "enum" not in part and field.meaning and field.name in part["properties"]:
                part["properties"][field.name]["description"] = field.meaning
    results = [
        {"if": {"properties": {"command": {"const": verb}}}, "then": {"properties": {"result": ref}}}
        for verb, ref in zip(verbs, refs[1:], strict=False)
    ]
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "holdfast --json", **refs[0], "allOf": results, "$defs": parts}


def _reached(kind: Any) -> set[type]:
    """Return a type and all types that it is composed of."""
    inner = {each for part in typing.get_args(kind) for each in _reached(part)}
    plain = typing.get_origin(kind) or kind
    if isinstance(plain, type) and (dataclasses.is_dataclass(plain) or issubclass(plain, msgspec.Struct | enum.Enum)):
        hints = {} if issubclass(plain, enum.Enum) else typing.get_type_hints(plain)
        return inner | {plain} | {each for hint in hints.values() for each in _reached(hint)}
    return inner


def pages() -> dict[str, str]:
    """Return the page and the schema."""
    whole = schema()
    parts, verbs = whole["$defs"], {verb: kind.__name__ for verb, kind in shapes().items()}
    steps = {verb: kind.__name__ for verb, kind in lines().items()}
    own, inside = {*verbs.values(), *steps.values(), "Envelope"}, json.dumps(parts)
    shared = [name for name in parts if name not in own or f'"#/$defs/{name}"' in inside]  # links lead to these
    text = [_HEAD.format(format=FORMAT), _section("Envelope", "Envelope", parts)]
    text += [_section(f"holdfast {verb}", name, parts) for verb, name in verbs.items()]
    text += [_section(f"holdfast {verb}, line by line", name, parts) for verb, name in steps.items()]
    text += [
        "## Parts\n\nTypes that occur in the results.",
        *(_section(_title(parts[name]), name, parts, 3) for name in shared),
    ]
    return {"json.md": "\n\n".join(text), "schema.json": json.dumps(whole, indent=2, ensure_ascii=False)}


def _title(part: dict[str, Any]) -> str:
    return re.sub(r"\[(.*)\]", r" of \1", part["title"]).replace(" | None", " or null")


def _section(heading: str, name: str, parts: dict[str, Any], level: int = 2) -> str:
    part = parts[name]
    lines = [f"{'#' * level} {heading}", prose(part.get("description"))]
    if "enum" in part:
        lines.append("One of " + ", ".join(code(json.dumps(each)) for each in part["enum"]) + ".")
    else:
        optional = part["properties"].keys() - set(part.get("required", ()))
        rows = []
        for field, kind in part["properties"].items():
            words = _words(kind, parts)
            if name == "Envelope" and field in optional - {"format"}:
                words = words.replace(" or null", "") + "; omitted if there is none"
            rows.append((code(field), words, kind.get("description", "")))
        lines.append(table(("field", "type", "meaning"), rows))
    return "\n\n".join(lines)


def _words(kind: dict[str, Any], parts: dict[str, Any]) -> str:
    """Return a readable name of a type."""
    if "$ref" in kind:
        title = _title(parts[kind["$ref"].rpartition("/")[2]])
        return f"[{title}](#{title.lower().replace(' ', '-')})"
    if "anyOf" in kind:
        return " or ".join(_words(each, parts) for each in kind["anyOf"])
    inner = kind.get("items") or kind.get("additionalProperties")
    if kind.get("type") in ("array", "object") and isinstance(inner, dict):
        return f"{kind['type']} of {_words(inner, parts)}"
    one_of = kind.get("enum", [kind["const"]] if "const" in kind else [])
    return " or ".join(code(json.dumps(each)) for each in one_of) or str(kind.get("type", "any"))
