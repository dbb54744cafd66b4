"""`protocols.md`: the two protocols, pruning and rewinds, from their tables."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from enum import StrEnum
from types import ModuleType
from typing import Any

from holdfast import coordinator, epoch, pruning
from holdfast.control import protocol
from holdfast.rewind import steps
from tools.reference.source import comment, fields, table, tree

_HEAD = """# Protocols

Generated from the transition tables that the code uses: a transition that is not listed here is impossible. A *point*
is a place where a driver may crash. The tests kill a driver at each point, and check what is prepared and visible
afterwards; [you can do the same](../pipelines.md#test-your-own-crashes). For explanations, see
[epochs](../pipelines.md#the-steps-of-an-epoch), [checkpoints](../checkpoints.md#how-a-cut-is-made) and
[prune](../checkpoints.md#retention-and-prune)."""


def pages() -> dict[str, str]:
    """Return the page."""
    holds = {str(state): (prepared.value, visible.value) for state, (prepared, visible) in epoch.HOLDS.items()}
    states = [(name, words, *holds[name]) for name, words in _members(epoch.State)]
    parts = [
        _HEAD,
        "## An epoch",
        f"```mermaid\n{epoch.diagram()}\n```",
        "### States\n\nFor each state: how many sinks have prepared the epoch, and in how many it is visible.",
        table(("state", "meaning", "prepared", "visible"), states),
        "### Transitions",
        table(("move", "action", "from → to"), _moves(epoch.Move, epoch.MOVES)),
        "### Crash points",
        table(("point", "state of the epoch afterwards", "location"), _points(epoch)),
        "## A checkpoint",
        f"```mermaid\n{coordinator.diagram()}\n```",
        "### Phases\n\nSinks are not involved. Only the manifest of a checkpoint is visible. It exists from phase "
        f"*{coordinator.Phase.RESTORABLE}* on.",
        table(("phase", "meaning"), _members(coordinator.Phase)),
        "### Steps",
        table(("step", "action", "from → to"), _moves(coordinator.Step, coordinator.MOVES)),
        "### Crash points of a checkpoint",
        table(("point", "phase of the checkpoint afterwards", "location"), _points(coordinator)),
        "## A request\n\nA request of another process to the driver of a running pipeline; see "
        "[Control](../control.md).",
        f"```mermaid\n{protocol.diagram()}\n```",
        table(("state", "meaning"), _members(protocol.RequestState)),
        "### Moves",
        table(("move", "action", "from → to"), _moves(protocol.RequestMove, protocol.REQUEST_MOVES)),
        "## A prune\n\n### Crash points of a prune",
        table(("point", "what is left"), [each[:2] for each in _points(pruning)]),
        "## A rewind\n\nThe steps, in their order; see [Going back](../going-back.md).",
        table(("step", "action"), _members(steps.RewindStep)),
        "### Steps in each sink",
        table(("step", "action"), _members(steps.SinkStep)),
        "### Crash points of a rewind",
        table(("point", "what is left"), [each[:2] for each in _points(steps)]),
    ]
    return {"protocols.md": "\n\n".join(parts)}


def _members(kind: type[StrEnum]) -> list[tuple[str, ...]]:
    meanings = {each.name: each.meaning for each in fields(kind)}
    return [(str(each), meanings[each.name]) for each in kind]


def _moves(kind: type[StrEnum], moves: Mapping[Any, StrEnum]) -> list[tuple[str, ...]]:
    ways = [(move, f"{state} → {to}") for (state, move), to in moves.items()]
    return [(name, words, ", ".join(way for move, way in ways if move == name)) for name, words in _members(kind)]


def _points(module: ModuleType) -> list[tuple[str, ...]]:
    """Return the name, the state afterwards, and the comment of each point of a module's `POINTS`."""
    for node in tree(module).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "POINTS":
            values = node.value.values  # type: ignore[attr-defined] # a dict, or the next line fails
            points = zip(module.POINTS.items(), values, strict=True)
            return [(name, str(left), comment(module, value)) for (name, left), value in points]
    raise LookupError(module.__name__)
