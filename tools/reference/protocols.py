"""`protocols.md`: the two protocols and the prune, from their tables."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from enum import StrEnum
from types import ModuleType
from typing import Any

from holdfast import coordinator, epoch, pruning
from tools.reference.source import comment, fields, table, tree

_HEAD = """# Protocols

Drawn from the tables that the code runs by: a move that is not here cannot be made. Where a driver may die is a
*point*: the tests kill one at each of them, and look at what is prepared and what is visible afterwards;
[so can you](../pipelines.md#test-your-own-crashes). How to read them: [epochs](../pipelines.md#how-an-epoch-goes),
[checkpoints](../checkpoints.md#how-a-cut-is-made), [prune](../checkpoints.md#retention-and-prune)."""


def pages() -> dict[str, str]:
    """Return the page."""
    holds = {str(state): (prepared.value, visible.value) for state, (prepared, visible) in epoch.HOLDS.items()}
    states = [(name, words, *holds[name]) for name, words in _members(epoch.State)]
    parts = [
        _HEAD,
        "## An epoch",
        f"```mermaid\n{epoch.diagram()}\n```",
        "### Its states\n\nHow many of its sinks have prepared it, and how many show it, in each.",
        table(("state", "what it means", "prepared", "visible"), states),
        "### Its moves",
        table(("move", "what is done", "takes it"), _moves(epoch.Move, epoch.MOVES)),
        "### Where a driver may die in it",
        table(("point", "leaves the epoch", "where that is"), _points(epoch)),
        "## A checkpoint",
        f"```mermaid\n{coordinator.diagram()}\n```",
        "### Its phases\n\nThe sinks have no part in it. What is visible of a checkpoint is its manifest, which is "
        f"there from *{coordinator.Phase.RESTORABLE}* on and not before.",
        table(("phase", "what it means"), _members(coordinator.Phase)),
        "### Its steps",
        table(("step", "what is done", "takes it"), _moves(coordinator.Step, coordinator.MOVES)),
        "### Where a driver may die in it",
        table(("point", "leaves the checkpoint", "where that is"), _points(coordinator)),
        "## A prune\n\n### Where one may die in it",
        table(("point", "what it leaves behind"), [each[:2] for each in _points(pruning)]),
    ]
    return {"protocols.md": "\n\n".join(parts)}


def _members(kind: type[StrEnum]) -> list[tuple[str, ...]]:
    meanings = {each.name: each.meaning for each in fields(kind)}
    return [(str(each), meanings[each.name]) for each in kind]


def _moves(kind: type[StrEnum], moves: Mapping[Any, StrEnum]) -> list[tuple[str, ...]]:
    ways = [(move, f"{state} → {to}") for (state, move), to in moves.items()]
    return [(name, words, ", ".join(way for move, way in ways if move == name)) for name, words in _members(kind)]


def _points(module: ModuleType) -> list[tuple[str, ...]]:
    """Return name, what is left behind, and the comment of each point of a table that is written out."""
    for node in tree(module).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "POINTS":
            values = node.value.values  # type: ignore[attr-defined] # a dict, or the next line fails
            points = zip(module.POINTS.items(), values, strict=True)
            return [(name, str(left), comment(module, value)) for (name, left), value in points]
    raise LookupError(module.__name__)
