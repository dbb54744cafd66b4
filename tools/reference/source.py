"""Facts that only the source text has: types as written, and the comment after a field."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Field:
    """A field of a class, or a member of an enum, as written in the source."""

    name: str
    type: str
    default: str
    meaning: str


@functools.cache
def tree(module: ModuleType) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(inspect.getsource(module))


@functools.cache
def _comments(module: ModuleType) -> dict[int, str]:
    words = tokenize.generate_tokens(io.StringIO(inspect.getsource(module)).readline)
    found = {each.start[0]: each.string.lstrip("# ") for each in words if each.type == tokenize.COMMENT}
    return {line: re.sub(r"\s*\bnoqa.*", "", text) for line, text in found.items()}


def comment(module: ModuleType, node: ast.stmt | ast.expr) -> str:
    """Return the comment after a piece of code."""
    return _comments(module).get(node.end_lineno or 0, "")


def class_node(kind: type) -> ast.ClassDef:
    """Return the syntax tree of a class."""
    body = tree(module_of(kind)).body
    return next(each for each in body if isinstance(each, ast.ClassDef) and each.name == kind.__name__)


def module_of(thing: Any) -> ModuleType:
    """Return the module that defines a class or function.

    `holdfast.errors` publishes the names of its modules as its own: there, search the modules of the package.
    """
    named = sys.modules[thing.__module__]
    inside = [module for name, module in sys.modules.items() if name.startswith("holdfast.errors.")]
    if named.__name__ != "holdfast.errors":
        return named
    return next(each for each in inside if thing.__name__ in {getattr(node, "name", "") for node in tree(each).body})


def fields(kind: type) -> list[Field]:
    """Return the public fields of a class, or the members of an enum; those of base classes come first."""
    found: dict[str, Field] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.split(".")[0] != "holdfast":
            continue
        for node in class_node(each).body:
            match node:
                case ast.AnnAssign(target=ast.Name(name), annotation=annotation, value=value):
                    written = ast.unparse(annotation)
                case ast.Assign(targets=[ast.Name(name)], value=value):
                    written = "" if issubclass(kind, Exception) else "member"
                case _:
                    continue
            if written and not (name.startswith("_") or written.startswith("ClassVar")):
                default = "" if value is None else default_of(value, module_of(each))
                found[name] = Field(name, written, default, comment(module_of(each), node))
    return list(found.values())


def default_of(value: ast.expr, module: ModuleType) -> str:
    """Return a default as written, with constants replaced by their values and factories by their results."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        made = {each.arg: ast.unparse(each.value) for each in value.keywords}
        return made.get("default") or (f"{made['default_factory']}()" if "default_factory" in made else "")
    if isinstance(value, ast.Name | ast.Attribute):
        meant = eval(ast.unparse(value), vars(module))  # noqa: S307 - our own source
        if type(meant) in (int, float, str, tuple):
            return repr(meant)
    return ast.unparse(value)


def prose(doc: str | None) -> str:
    """Return a docstring as Markdown: numbered steps become a list, and nothing is taken for HTML."""
    paragraphs = []
    for each in inspect.cleandoc(doc or "").split("\n\n"):
        if each.startswith("    "):
            paragraphs.append("```text\n" + inspect.cleandoc(each) + "\n```")
            continue
        text = re.sub(r"(?:  |\n)(?=\d\. )", "\n", each) if each.startswith("1. ") else each
        paragraphs.append(re.sub(r"<(?=[a-zA-Z/])(?=[^`]*(?:`[^`]*`[^`]*)*$)", "&lt;", text))
    return "\n\n".join(paragraphs)


def summary(doc: str | None) -> str:
    """Return the first line of a docstring."""
    return prose(doc).split("\n", maxsplit=1)[0]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table without empty columns."""
    kept = [at for at in range(len(head)) if any(row[at] for row in rows)]
    lines = [[head[at] for at in kept], ["---"] * len(kept)]
    lines += [[row[at].replace("|", "\\|").replace("\n", " ") for at in kept] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def code(text: str) -> str:
    """Return text as inline code; empty text stays empty."""
    return f"`{text}`" if text else ""
