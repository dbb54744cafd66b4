"""Protocols as tables: state and move to next state. A move that is not in the table is a bug."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from holdfast.errors import BadValue

S = TypeVar("S", bound=StrEnum)
M = TypeVar("M", bound=StrEnum)


def moved(moves: Mapping[tuple[S, M], S], what: str, state: S, move: M) -> S:
    """Return the state that a move leads to, or raise `BadValue`; `what` names the object in the error."""
    try:
        return moves[state, move]
    except KeyError:
        raise BadValue(what="move", value=str(move), why=f"{what} in state {state} does not allow it") from None


def drawn(moves: Mapping[tuple[S, M], S], start: S, ends: Iterable[S]) -> str:
    """Return the table as a Mermaid state diagram, as shown in the docs."""
    lines = ["stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {state} --> {to}: {move}" for (state, move), to in moves.items()]
    lines += [f"    {end} --> [*]" for end in ends]
    return "\n".join(lines)
