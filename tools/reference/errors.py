"""`errors.md`: the tree of errors, and each error with its text, its attributes and the next step."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import cast

from holdfast import errors
from holdfast.cli.answers import exit_code
from holdfast.errors import HoldfastError
from tools.reference.source import fields, prose, summary

_HEAD = """# Errors

Every error that Holdfast raises deliberately is a [`HoldfastError`](#holdfasterror). Errors are grouped into families
by what the caller can do next. Catch a family or a single error; all are defined in `holdfast.errors`. The details of
an error are its attributes. Its text ends with the next step; `error.summary` is the text without it. All errors can be
pickled. In the texts below, {braces} mark attributes that are filled in."""


_FILLED = re.compile(r"\{[^}]+\}")
_SHORTEST = 20  # characters of a next step; shorter texts are values that the code compares with


def pages() -> dict[str, str]:
    """Return the page."""
    drawn = inspect.getdoc(errors) or ""
    tree = "\n".join(line[4:] for line in drawn.splitlines() if line.startswith("    "))
    parts = [_HEAD, f"```text\n{tree}\n```", "## HoldfastError", prose(HoldfastError.__doc__)]
    for family in HoldfastError.__subclasses__():
        step = re.search(rf"── {family.__name__}(?: \(\w+\))?\s+(.+)", tree)
        parts += [f"## {family.__name__}", _about(family), f"Next step: {step[1] if step else ''}."]
        code, run = (exit_code(family.__new__(family), verb) for verb in ("show", "run"))
        but = f"; for `run`: {run:d}" if run != code else ""
        parts.append(f"[Exit code](cli.md#exit-codes) of the command: {code:d}{but}.")
        for kind in _below(family):
            text = f"- Text: `{_words(kind.says)}`.\n- Next: {_next_step(kind)}.\n- Attributes: {_facts(kind)}."
            parts += [f"### {kind.__name__}", _about(kind), text]
    return {"errors.md": "\n\n".join(parts)}


def _below(family: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [each for kind in family.__subclasses__() for each in (kind, *_below(kind))]


def _about(kind: type[HoldfastError]) -> str:
    also = [each for each in kind.__bases__ if each is not HoldfastError and each not in HoldfastError.__subclasses__()]
    names = [each.__name__ for each in also]
    return prose(kind.__doc__) + "".join(
        f" It is also {'an' if name[0] in 'AEIOU' else 'a'} `{name}`." for name in names
    )


def _facts(kind: type[HoldfastError]) -> str:
    facts = [(f"{each.name}: {each.type}", each.meaning) for each in fields(kind)]
    for each in reversed(kind.__mro__[: kind.__mro__.index(HoldfastError)]):
        for name, value in vars(each).items():
            if isinstance(value, property) and value.fget and name != "advice":
                words = summary(value.fget.__doc__).rstrip(".")
                facts.append((f"{name}: {inspect.get_annotations(value.fget)['return']}", words[0].lower() + words[1:]))
    return "; ".join(f"`{fact}`" + (f", {meaning}" if meaning else "") for fact, meaning in facts)


def _words(template: str) -> str:
    return re.sub(r"\{e\.(\w+)[^}]*\}", r"{\1}", template)


def _next_step(kind: type[HoldfastError]) -> str:
    """Return the next step: the text itself, the default of its attribute, or the texts that its property returns."""
    chosen = re.fullmatch(r"\{e\.(\w+)\}", kind.next_step)
    if chosen is None:
        return f"`{_words(kind.next_step)}`"
    for each in fields(kind):
        if each.name == chosen[1]:
            return f"`{_words(str(ast.literal_eval(each.default)))}`, or the value of `{each.name}`"
    written = ast.parse(textwrap.dedent(inspect.getsource(getattr(kind, chosen[1]).fget)))
    after_docstring = ast.Module(cast("ast.FunctionDef", written.body[0]).body[1:], [])
    texts = [text for text in _texts(after_docstring) if len(text) >= _SHORTEST]
    return "; or ".join(f"`{re.sub(_FILLED, _inner, text)}`" for text in texts)


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts in a piece of code, in their order; an f-string is one text with placeholders in braces."""
    if isinstance(node, ast.JoinedStr):
        yield ast.unparse(node)[2:-1]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _inner(found: re.Match[str]) -> str:
    """Return the attribute that fills a placeholder, or an ellipsis if it is not an attribute."""
    name = re.search(r"self\.(\w+)", found[0])
    return f"{{{name[1]}}}" if name else "…"
