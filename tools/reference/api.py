"""`api.md` and `api/`: every public name with its signature, fields, methods and docstring."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import posixpath
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import holdfast
from holdfast import errors
from tools.reference.source import class_node, fields, module_of, prose, summary, table

_PAGES = {  # page -> the modules that it describes, in this order; all others go to `_ELSE`
    "pipelines": "spark.pipeline spark.handle spark.pipeline_status spark.context spark.status policy spark.outages",
    "sinks": "sinks.base sinks.files sinks.sqlite sinks.postgres sinks.kafka sinks.log sinks.foreach",
    "checkpoints": "repository.checkpoints repository.summary formats verification difference spark",
    "logs": "eventlog.log eventlog.writer eventlog.segment eventlog.region eventlog.cursor eventlog spark.logsource",
    "state": "stages formats.blocks repository.blockfile formats.state stores barriers formats.sidecar",
    "repository": "repository.opening repository.base repository.local repository.memory repository epoch recovery",
    "testing": "testing",
}
_ELSE = "checkpoints"
_EXPORTS = {  # name -> the module that it is imported from; the root comes first
    name: module
    for module in ("testing", *reversed([each for each in holdfast._MODULES if each not in ("errors", "testing")]))
    for name in importlib.import_module(f"holdfast.{module}").__all__
} | {name: "" for names in holdfast._HOMES.values() for name in names}
_PUBLIC = {
    name: getattr(importlib.import_module(f"holdfast.{_EXPORTS[name]}".rstrip(".")), name) for name in sorted(_EXPORTS)
}
_SOURCES = [path.read_text() for path in sorted(Path(inspect.getfile(holdfast)).parent.rglob("*.py"))]
_ALIAS = re.compile(r'^([A-Z][a-z]\w*)(?:: TypeAlias = | = (?=Callable\[))(.+)\n(?:"""(.+?)""")?', re.MULTILINE)
_ALIASES = {name: (meant, words) for text in _SOURCES for name, meant, words in _ALIAS.findall(text)}
_HEAD = """# The library

The table names the module that each public name is imported from. All errors are in
[`holdfast.errors`](errors.md). Names that are not listed here are not public, and may change at any time.
[Types](api/types.md) describes the types that occur in signatures; you need not import them.

{pages}

{names}"""


def pages() -> dict[str, str]:
    """Return the pages."""
    homes: dict[str, list[str]] = {}
    for name, thing in _PUBLIC.items():
        if thing is not errors.HoldfastError:
            home = f"holdfast.{_EXPORTS[name]}" if name in _ALIASES else module_of(thing).__name__
            homes.setdefault(home.removeprefix("holdfast."), []).append(name)
    anchors = {each.__name__: f"errors.md#{each.__name__.lower()}" for each in _tree(errors.HoldfastError)}
    made, named = {}, dict[str, Any]()
    for page in _PAGES:
        parts = [f"# API: {page}"]
        for home in sorted((home for home in homes if _place(home)[0] == page), key=_place):
            module = importlib.import_module(f"holdfast.{home}")
            parts += [f"## holdfast.{home}", prose(module.__doc__)]
            for name in sorted(homes[home], key=lambda name: _line(_PUBLIC[name])):
                parts += _entry(name, _PUBLIC[name], module, named)
        made[f"api/{page}.md"] = "\n\n".join(part for part in parts if part)
    described: dict[str, str] = {}
    while rest := sorted(named.keys() - described.keys() - _PUBLIC.keys() - anchors.keys()):
        parts = _entry(rest[0], named[rest[0]], module_of(named[rest[0]]), named)
        described[rest[0]] = "\n\n".join(part for part in parts if part)
    head = "# API: types\n\nTypes that occur in signatures. You receive most of them; you rarely create them."
    made["api/types.md"] = "\n\n".join([head, *(described[name] for name in sorted(described))])
    for page, text in made.items():
        for heading in re.findall(r"^###+ (\S+)$", text, re.MULTILINE):
            anchors[heading] = f"{page}#{heading.lower().replace('.', '')}"
    rows = [
        (f"[`{name}`]({anchors[name]})", f"`holdfast.{_EXPORTS[name]}`".replace(".`", "`"), summary(_doc(name, thing)))
        for name, thing in _PUBLIC.items()
    ]
    made["api.md"] = _HEAD.format(
        pages="\n".join(f"- [{page[4:-3].capitalize()}]({page})" for page in made),
        names=table(("name", "import from", "summary"), rows),
    )
    return {page: _linked(text, anchors, page) for page, text in made.items()}


def _tree(kind: type[errors.HoldfastError]) -> list[type[errors.HoldfastError]]:
    return [kind, *(each for inner in kind.__subclasses__() for each in _tree(inner))]


def _place(home: str) -> tuple[str, int, str]:
    """Return the page of a module and its position there; the entry with the longest matching prefix decides."""
    listed = [(page, at, each) for page, text in _PAGES.items() for at, each in enumerate(text.split())]
    fitting = [each for each in listed if f"{home}.".startswith(f"{each[2]}.")]
    page, at, _ = max(fitting, key=lambda each: len(each[2]), default=(_ELSE, 99, ""))
    return page, at, home


def _line(thing: Any) -> int:
    if isinstance(thing, type):
        return class_node(thing).lineno
    return int(thing.__code__.co_firstlineno) if inspect.isfunction(thing) else 0


def _doc(name: str, thing: Any) -> str:
    return _ALIASES[name][1] if name in _ALIASES else inspect.getdoc(thing) or ""


# --- one name --------------------------------------------------------------------------------------------------------


def _entry(name: str, thing: Any, module: ModuleType, named: dict[str, Any]) -> list[str]:
    """Return the section of a name, and record in `named` which other types it mentions."""
    meant, words = _ALIASES.get(name, ("", ""))
    alias = [f"```py\n{name} = {meant}\n```", prose(words)]
    if meant and not isinstance(thing, type):
        parts = alias
    elif not isinstance(thing, type):
        parts = [_signature(name, thing), prose(thing.__doc__)]
    elif issubclass(thing, enum.Enum):
        lines = [f"{name}.{each.name}" + f"  # {each.meaning}" * bool(each.meaning) for each in fields(thing)]
        parts = ["```py\n" + "\n".join(lines) + "\n```", prose(thing.__doc__), *_members(name, thing)]
    else:
        bases = ", ".join(f"`{each.__name__}`" for each in _bases(thing))
        same = f"It also has everything of {bases}." if bases else ""
        called = "" if _is_made_elsewhere(thing) else _signature(name, thing)
        parts = [called, prose(thing.__doc__), same, *_members(name, thing)]
        parts += ["As the type of a parameter, the name stands for:", *alias] if meant else []
    blocks = "".join(re.findall(r"```py\n.*?```", "\n".join(parts), re.DOTALL))
    for word in re.findall(r"\b[A-Z]\w+", re.sub(r"#.*|'.*?'", "", blocks)):
        found = _named(word, module)
        if word in _ALIASES or str(getattr(found, "__module__", "")).startswith("holdfast."):
            named[word] = found if isinstance(found, type) else named.get(word, found)
    return [f"### {name}", *parts]


def _named(word: str, module: ModuleType) -> Any:
    """Return the object that a signature names: from its own module, or from the one that defines shared options."""
    return vars(module).get(word, getattr(importlib.import_module("holdfast.spark.options"), word, None))


def _bases(thing: type) -> list[type]:
    """Return the public base classes of a class, and the public protocols that it satisfies."""
    found = [each for each in thing.__mro__[1:] if _PUBLIC.get(each.__name__) is each]
    return found + [each for each in _PUBLIC.values() if each not in (*found, thing) and _has_all(thing, each)]


def _has_all(thing: type, proto: Any) -> bool:
    if not getattr(proto, "_is_protocol", False):
        return False
    return all(hasattr(thing, each) for each in vars(proto) if not each.startswith("_"))


def _is_made_elsewhere(thing: type) -> bool:
    """Whether users do not construct a class: it is a protocol, or its constructor takes private types."""
    if getattr(thing, "_is_protocol", False) or issubclass(thing, BaseException):
        return True
    if _is_data(thing):
        return False
    words = re.findall(r"\w+", " ".join(map(str, inspect.get_annotations(thing.__init__).values())))
    found = {word: getattr(module_of(thing), word, None) for word in words}
    ours = [kind for kind in found.values() if isinstance(kind, type) and kind.__module__.startswith("holdfast.")]
    return any(each.__name__ not in _PUBLIC and not getattr(each, "_is_protocol", False) for each in ours)


def _is_data(thing: type) -> bool:
    return dataclasses.is_dataclass(thing) or issubclass(thing, msgspec.Struct)


def _members(name: str, thing: type) -> list[str]:
    passed = {each for base in _bases(thing) for each in vars(base)} | {each.name for each in fields(thing)}
    methods, properties = [], []
    for each, value in vars(thing).items():
        if each.startswith("_") or each in passed:
            continue
        if isinstance(value, property | functools.cached_property):
            getter = value.fget if isinstance(value, property) else value.func
            kind = inspect.get_annotations(getter)["return"] if getter else ""
            properties.append((f"`{each}`", f"`{kind}`", prose(value.__doc__)))
        elif inspect.isroutine(value):
            called = f"{name}.{each}" if isinstance(value, classmethod | staticmethod) else each
            methods += [f"#### {name}.{each}", _signature(called, getattr(thing, each)), prose(value.__doc__)]
    return [table(("property", "type", "meaning"), properties) if properties else "", *methods]


class _Raw(str):
    """Text that appears unquoted in a signature."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(name: str, thing: Any) -> str:
    """Return the signature as code; a long one has one parameter per line."""
    written = {each.name: each for each in fields(thing)} if isinstance(thing, type) and _is_data(thing) else {}
    found = inspect.signature(thing)
    lines: list[tuple[str, str]] = []
    for each in found.parameters.values():
        shown, meaning = each, ""
        if each.kind is each.KEYWORD_ONLY and not any(line.startswith("*") for line, _ in lines):
            lines.append(("*", ""))
        if each.name in written:
            field = written[each.name]
            default, meaning = re.sub(r"^_\w+$", "...", field.default), f"  # {field.meaning}" * bool(field.meaning)
            if default == "DEFAULT_RETENTION":
                default = repr(each.default)  # the rules, not the name of a constant that is not public
            shown = each.replace(annotation=_Raw(field.type), default=_Raw(default) if default else each.empty)
        elif each.annotation is not each.empty:
            given = each.default if each.default is each.empty else _Raw(_shown(each.default))
            shown = each.replace(annotation=_Raw(each.annotation), default=given)
        if each.name != "self":
            lines.append((str(shown), meaning))
    back = "" if found.return_annotation in (found.empty, "None", None) else f" -> {found.return_annotation}"
    short = f"{name}({', '.join(line for line, _ in lines)}){back}"
    if len(short) > 100 or any(meaning for _, meaning in lines):
        short = f"{name}(\n" + "".join(f"    {line},{meaning}\n" for line, meaning in lines) + f"){back}"
    return f"```py\n{short}\n```"


def _shown(default: Any) -> str:
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if not inspect.isroutine(default):
        return repr(default)
    name = default.__name__ if default.__module__.startswith("holdfast") else f"{default.__module__}.{default.__name__}"
    return "..." if name.startswith("_") else name


def _linked(text: str, anchors: dict[str, str], page: str) -> str:
    """Turn each name in the prose that has a heading into a link to it."""

    def link(found: re.Match[str]) -> str:
        to = anchors.get(found[1])
        if to is None:
            return found[0]
        return f"[{found[0]}]({posixpath.relpath(to, posixpath.dirname(page) or '.')})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    known = r"(?<!\[)`(\w+(?:\.\w+)?)(?:\(\))?`"
    return "".join(part if part.startswith("```") else re.sub(known, link, part) for part in parts)
