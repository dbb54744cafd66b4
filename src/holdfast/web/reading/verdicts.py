"""The verdicts of verifications that were recorded, by checkpoint."""

from __future__ import annotations

from holdfast.repository import Repository
from holdfast.repository.verdicts import LastVerify, Verdicts

__all__ = ["LastVerify", "verdicts_of"]


def verdicts_of(repository: Repository) -> dict[str, LastVerify]:
    """Return the last verdict of each checkpoint, by its id or name. A damaged record hides only itself."""
    return Verdicts(repository).all()[0]
